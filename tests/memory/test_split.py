"""Split: the best division of memory, against all of them."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outcrop.errors import OptionError
from outcrop.layout.ranking import Curve
from outcrop.layout.savings import SavingsFacts
from outcrop.memory.split import Split, split


def curve(scores: list[int]) -> Curve:
    scores = sorted(scores, reverse=True)
    return Curve(
        tuple(range(len(scores) + 1)),
        tuple(float(sum(scores[:count])) for count in range(len(scores) + 1)),
    )


def facts_of(levels: list[int], features: list[int], histories: list[list[int]]) -> SavingsFacts:
    return SavingsFacts(
        path="derived/savings-0", hops=2, staleness=100, batches=10, rows=100, neighbours=200,
        sampling_seconds=1.0, requests_per_second=1e5, beta=0.5, seconds=2.0,
        levels=tuple(levels), features=curve(features), planned=curve(features),
        histories=tuple(map(curve, histories)),
    )  # fmt: skip


SCORES = st.lists(st.integers(1, 50), max_size=25)


@st.composite
def profiles(draw: st.DrawFn) -> SavingsFacts:
    levels = [0, *sorted(draw(st.lists(st.integers(0, 40), max_size=5)))]
    # Of equal levels the last one counts: they are of the same cache.
    return facts_of(levels, draw(SCORES), [draw(SCORES) for _ in levels])


def best_of_all(facts: SavingsFacts, room: int, row: int, embedding: int, table: int) -> Split:
    found = []
    for step in range(101):
        alpha = step / 100
        fits = [n for n in range(1, 60) if table + n * embedding <= alpha * room]
        embeddings = min(max(fits, default=0), max(len(c.counts) - 1 for c in facts.histories))
        left = room - (table + embeddings * embedding if embeddings else 0)
        fits = [n for n in range(1, 60) if table + n * row <= left]
        rows = min(max(fits, default=0), len(facts.features.counts) - 1)
        benefit = facts.features.sums[rows] + facts.history_at(embeddings, rows)
        found.append(Split(alpha, rows, embeddings, benefit))
    most = max(one.benefit for one in found)
    return next(one for one in found if one.benefit == most)


@given(profiles(), st.integers(-5, 900), st.integers(1, 20), st.integers(1, 20), st.integers(0, 90))
def test_no_other_division_saves_more(
    facts: SavingsFacts, room: int, row: int, embedding: int, table: int
) -> None:
    def rows_bytes(count: int) -> int:
        return table + count * row

    def embeddings_bytes(count: int) -> int:
        return table + count * embedding

    found = split(facts, facts.features, room, rows_bytes, embeddings_bytes)
    assert found == best_of_all(facts, room, row, embedding, table)
    assert found == split(
        facts, facts.features, room, rows_bytes, embeddings_bytes, alpha=found.alpha
    )
    taken = (rows_bytes(found.rows) if found.rows else 0) + (
        embeddings_bytes(found.embeddings) if found.embeddings else 0
    )
    assert taken <= max(room, 0)


def test_a_given_alpha_is_kept() -> None:
    facts = facts_of([0], [9] * 20, [[1] * 20])
    assert split(facts, facts.features, 100, lambda n: 10 * n, lambda n: 10 * n) == Split(
        0.0, 10, 0, 90.0
    )
    assert split(facts, facts.features, 100, lambda n: 10 * n, lambda n: 10 * n, 0.57) == Split(
        0.57, 5, 5, 50.0
    )
    for alpha in (-0.1, 1.1):
        with pytest.raises(OptionError, match="alpha must be 0 to 1"):
            split(facts, facts.features, 100, lambda n: n, lambda n: n, alpha)


def test_curves_are_linear_between_points_and_flat_beyond() -> None:
    one = Curve((0, 1, 5), (0.0, 10.0, 18.0))
    assert [one.at(count) for count in (0, 0.5, 1, 3, 5, 99)] == [0, 5, 10, 14, 18, 18]
    assert Curve((0,), (0.0,)).at(3) == 0


def test_histories_are_linear_between_levels() -> None:
    facts = facts_of([0, 0, 10, 20], [], [[8], [8], [6], [2]])
    found = [facts.history_at(1, rows) for rows in (0, 5, 10, 15, 20, 30)]
    assert found == [8, 7, 6, 4, 2, 2]
    assert facts == replace(facts) and facts != replace(facts, beta=0.6)
