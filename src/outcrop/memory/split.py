"""Split: memory for two caches, of rows and of histories -> how much each gets (OUTRE's alpha)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from outcrop.errors import OptionError
from outcrop.layout.ranking import Curve
from outcrop.layout.savings import SavingsFacts

_STEPS = 100  # OUTRE's

Sizes = Callable[[int], int]
"""How many are cached -> all that takes, tables of all nodes included; ascending."""


@dataclass(frozen=True)
class Split:
    """How memory is divided."""

    alpha: float
    """The part that histories may take."""
    rows: int
    embeddings: int
    benefit: float
    """What both save, in rows of an epoch."""


def split(
    facts: SavingsFacts,
    rows: Curve,
    room: int,
    row_bytes: Sizes,
    embedding_bytes: Sizes,
    alpha: float | None = None,
) -> Split:
    """The division of `room` bytes that saves most, of equals that with the smaller alpha.

    `rows`: what a cache of so many saves: one that is planned, or one that never changes.

    Histories get as many embeddings as their part holds, and rows all that these leave. A cache of
    none takes nothing. `alpha`: given; None: the best of 0, 0.01 ... 1.
    """
    if alpha is not None and not 0 <= alpha <= 1:
        raise OptionError(f"alpha must be 0 to 1 (got {alpha})")
    alphas = [step / _STEPS for step in range(_STEPS + 1)] if alpha is None else [alpha]
    splits = [_split_at(facts, rows, room, row_bytes, embedding_bytes, one) for one in alphas]
    return max(splits, key=lambda one: one.benefit)  # the first of equals


def _split_at(
    facts: SavingsFacts,
    curve: Curve,
    room: int,
    row_bytes: Sizes,
    embedding_bytes: Sizes,
    alpha: float,
) -> Split:
    embeddings = _most(embedding_bytes, alpha * room, facts.most_histories)
    left = room - (embedding_bytes(embeddings) if embeddings else 0)
    rows = _most(row_bytes, left, curve.length)
    benefit = curve.at(rows) + facts.history_at(embeddings, rows)
    return Split(alpha, rows, embeddings, benefit)


def _most(sizes: Sizes, room: float, limit: int) -> int:
    """The most that fit, up to a limit; 0 where not even one does."""
    low, high = 0, limit
    while low < high:
        middle = (low + high + 1) // 2
        if sizes(middle) <= room:
            low = middle
        else:
            high = middle - 1
    return low
