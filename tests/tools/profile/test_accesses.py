"""Every figure of a profile equals its slow definition."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from outcrop.disk import Disk
from outcrop.errors import OptionError, StoreError
from outcrop.layout.trace import TraceWriter
from outcrop.options import DiskOptions
from outcrop.sample.sampler import Subgraph
from outcrop.sample.seeds import Stream, Task
from outcrop.tools.profile import accesses as accesses_module
from outcrop.tools.profile.accesses import Accesses, Bin, powers_of_two
from outcrop.tools.profile.policies import (
    POLICIES,
    belady,
    belady_filled,
    lru,
    static_by_count,
    static_by_out_degree,
)
from outcrop.tools.profile.reads import RowPlace, plan_reads
from tests.tools.profile import model
from tests.tools.profile.model import Batches

ROWS = 12
SLOTS = range(ROWS + 1)


def traces(max_row: int = ROWS - 1, max_batches: int = 7) -> st.SearchStrategy[Batches]:
    """Batches with repetitions, short and empty ones among them; never all empty."""
    batch = st.lists(st.integers(0, max_row), max_size=10)
    return st.lists(batch, min_size=1, max_size=max_batches).filter(any)


class Maker:
    """Batches -> Accesses, over a real trace."""

    def __init__(self, disk: Disk, factory: pytest.TempPathFactory) -> None:
        self._disk, self._factory = disk, factory

    def __call__(
        self,
        batches: Batches,
        *,
        num_rows: int = ROWS,
        first: int | None = None,
        degrees: Sequence[int] | None = None,
    ) -> Accesses:
        """The first two entries of a batch are its seeds."""
        folder = self._factory.mktemp("trace") / "t"
        none = np.empty(0, np.uint32)
        with TraceWriter(
            self._disk, folder, num_nodes=1000, num_edges=1, identity={}, edge_ids=False
        ) as writer:
            for t, batch in enumerate(batches):
                nodes = np.array(batch, np.int64)
                task = Task(Stream.TRAIN, 0, t, nodes[:2], nodes[:2])
                no_ids = np.empty(0, np.int64)
                writer.append(task, Subgraph(nodes, none, none, no_ids, [], [], []))
            trace = writer.flush()
        found = degrees if degrees is not None else [0] * num_rows
        return Accesses(trace, num_rows, lambda: np.array(found, np.uint32), batches=first)


@pytest.fixture(scope="module")
def make(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Maker]:
    with Disk(DiskOptions(workers=2)) as disk:
        yield Maker(disk, tmp_path_factory)


def as_counts(values: Counter[int], length: int) -> list[int]:
    return [values[value] for value in range(length)]


# Figures


@given(batches=traces())
def test_counts_are_those_of_batches_and_distinct_rows(make: Maker, batches: Batches) -> None:
    found = make(batches)
    counts = model.counts(batches)
    assert found.counts.tolist() == as_counts(counts, ROWS)
    assert found.total == counts.total() == sum(len(set(batch)) for batch in batches)
    assert found.rows_wanted == sum(map(len, batches))
    assert found.batch_rows.tolist() == [len(set(batch)) for batch in batches]
    assert found.distinct_rows == len(counts) == found.first_uses.sum()
    seeds = sum(len(set(batch[:2])) for batch in batches)
    assert found.seeds == seeds
    assert found.redundancy_ratio == found.total / seeds


@given(batches=traces())
def test_top_accesses_are_the_largest_counts(make: Maker, batches: Batches) -> None:
    found = make(batches)
    largest = sorted(model.counts(batches).values(), reverse=True)
    assert [found.top_accesses(k) for k in SLOTS] == [sum(largest[:k]) for k in SLOTS]


@given(batches=traces())
def test_reuse_distances(make: Maker, batches: Batches) -> None:
    found = make(batches)
    expected = as_counts(model.reuse_batches(batches), len(batches))
    assert found.reuse_batches().tolist() == expected
    expected = as_counts(model.reuse_rows(batches), found.distinct_rows)
    assert found.reuse_rows.tolist() == expected


@given(batches=traces(), first=st.integers(1, 7))
def test_the_first_batches_of_a_trace(make: Maker, batches: Batches, first: int) -> None:
    if first > len(batches) or not any(batches[:first]):
        return
    part, whole = make(batches, first=first), make(batches[:first])
    assert part.counts.tolist() == whole.counts.tolist()
    assert [rows.tolist() for rows in part.batches("")] == [
        model.distinct(batch) for batch in batches[:first]
    ]


@given(values=st.lists(st.integers(0, 70), max_size=30))
def test_powers_of_two(values: list[int]) -> None:
    bins = powers_of_two(np.bincount(values) if values else np.zeros(0, np.int64))
    bounds = [(0, 0), (1, 1), (2, 3), (4, 7), (8, 15), (16, 31), (32, 63), (64, 127)]
    expected = [Bin(a, b, sum(a <= value <= b for value in values)) for a, b in bounds]
    while expected and not expected[-1].count:
        expected.pop()
    assert bins == expected


# Policies


def misses(outcomes: Sequence[tuple[int, int]]) -> list[int]:
    return [misses for misses, _ in outcomes]


@given(batches=traces())
def test_static_by_count_is_the_best_static_set(make: Maker, batches: Batches) -> None:
    found = static_by_count(make(batches), SLOTS)
    assert misses(found) == [model.best_static_misses(batches, k) for k in SLOTS]
    distinct = len(model.counts(batches))
    assert [outcome.filled for outcome in found] == [min(k, distinct) for k in SLOTS]


@given(batches=traces(), degrees=st.lists(st.integers(0, 4), min_size=ROWS, max_size=ROWS))
def test_static_by_out_degree(make: Maker, batches: Batches, degrees: list[int]) -> None:
    found = static_by_out_degree(make(batches, degrees=degrees), SLOTS)
    order = sorted(range(ROWS), key=lambda row: (-degrees[row], row))
    assert misses(found) == [model.static_misses(batches, set(order[:k])) for k in SLOTS]


@given(batches=traces())
def test_lru(make: Maker, batches: Batches) -> None:
    assert misses(lru(make(batches), SLOTS)) == [model.lru_misses(batches, k) for k in SLOTS]


@given(batches=traces())
def test_belady_equals_the_simulation_row_by_row(make: Maker, batches: Batches) -> None:
    accesses = make(batches)
    expected = [model.belady_misses(batches, k, set()) for k in SLOTS]
    assert misses(belady(accesses, SLOTS)) == expected
    every = set(range(ROWS))
    fills = [model.nearest(every, batches, k) for k in SLOTS]
    expected = [model.belady_misses(batches, k, fill) for k, fill in zip(SLOTS, fills, strict=True)]
    found = belady_filled(accesses, SLOTS)
    assert misses(found) == expected
    distinct = len(model.counts(batches))
    assert [outcome.filled for outcome in found] == [min(k, distinct) for k in SLOTS]


@given(batches=traces(max_row=4, max_batches=5), slots=st.integers(0, 3))
def test_belady_is_the_least_of_all_that_a_cache_can_do(
    make: Maker, batches: Batches, slots: int
) -> None:
    accesses = make(batches)
    assert misses(belady(accesses, [slots])) == [model.least_misses(batches, slots, frozenset())]
    fills = combinations(range(5), slots)
    least = min(model.least_misses(batches, slots, frozenset(fill)) for fill in fills)
    assert misses(belady_filled(accesses, [slots])) == [least]


@given(batches=traces())
def test_the_order_of_policies(make: Maker, batches: Batches) -> None:
    accesses = make(batches, degrees=range(ROWS))
    table = {name: policy(accesses, SLOTS) for name, policy in POLICIES.items()}
    for k in SLOTS:
        at = {name: outcomes[k] for name, outcomes in table.items()}
        assert accesses.distinct_rows <= at["belady"].misses <= at["lru"].misses
        assert at["belady_filled"].misses == min(outcome.misses for outcome in at.values())
        # Belady reads a row that a static set holds at most once: to fill the set took as much.
        for name in ("static_by_count", "static_by_out_degree"):
            assert at["belady"].misses <= at[name].misses + at[name].filled
    for outcomes in table.values():
        ratios = misses(outcomes)
        assert ratios == sorted(ratios, reverse=True) and ratios[0] == accesses.total


# Reads


@given(
    batches=traces(max_row=200),
    base=st.sampled_from([128, 4096, 5000]),
    row_bytes=st.sampled_from([1, 7, 512, 4096, 4100, 10_000]),
)
def test_reads_are_runs_of_pages(batches: Batches, base: int, row_bytes: int) -> None:
    rows = [np.array(model.distinct(batch), np.int64) for batch in batches]
    plans = plan_reads(rows, RowPlace(base, row_bytes), (0, 8192))
    wanted = row_bytes * sum(map(len, rows))
    for plan in plans:
        runs = [model.requests(batch, base, row_bytes, plan.gap_bytes) for batch in batches]
        pages = [length for run in runs for length in run]
        assert (plan.requests, plan.pages) == (len(pages), sum(pages))
        assert plan.requests_per_batch == plan.requests / len(batches)
        assert plan.pages_per_batch == plan.pages / len(batches)
        assert plan.amplification == plan.pages * 4096 / wanted
        for b in plan.pages_per_request:
            assert b.count == sum(b.first <= length <= b.last for length in pages)
        assert sum(b.count for b in plan.pages_per_request) == len(pages)


# What cannot be profiled


def test_rows_of_another_graph_are_refused(make: Maker) -> None:
    with pytest.raises(StoreError, match=r"batch 1 .* nodes 2 to 99, but the store's are 0 to 11"):
        make([[1], [2, 99]])


def test_a_trace_without_accesses_is_refused(make: Maker) -> None:
    with pytest.raises(StoreError, match="no accesses"):
        make([])
    with pytest.raises(StoreError, match="no accesses"):
        make([[], []])


def test_more_batches_than_there_are_or_than_memory_allows(
    make: Maker, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(OptionError, match=r"1 to 2, as many as the trace has \(got 3\)"):
        make([[1], [2]], first=3)
    monkeypatch.setattr(accesses_module, "MOST_BATCHES", 1)
    with pytest.raises(OptionError, match=r"at most 1 \(got 2\)"):
        make([[1], [2]])
