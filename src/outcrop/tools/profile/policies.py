"""Cache policies: accesses and numbers of slots -> the misses of each.

A miss is an access (a batch and one of its rows) whose row is not in the cache when the batch
begins. After a batch, a cache keeps any of what it held and of the batch's rows; what it keeps
costs no read. To add a policy to the table is to write one function and name it in POLICIES.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

import numpy as np

from outcrop.sample.seeds import Ids
from outcrop.tools.profile.accesses import Accesses


class Outcome(NamedTuple):
    """What a cache of some number of slots does."""

    misses: int
    filled: int = 0
    """Rows that were read before the first batch, to begin with."""


class Policy(Protocol):
    """Who stays in the cache."""

    def __call__(self, accesses: Accesses, slots: Sequence[int]) -> list[Outcome]:
        """One outcome per number of slots; none is above `accesses.num_rows`."""


def static_by_count(accesses: Accesses, slots: Sequence[int]) -> list[Outcome]:
    """The rows with the most accesses, as counted: no set that never changes does better."""
    return [
        Outcome(accesses.total - accesses.top_accesses(k), min(k, accesses.distinct_rows))
        for k in slots
    ]


def static_by_out_degree(accesses: Accesses, slots: Sequence[int]) -> list[Outcome]:
    """The rows of the nodes with the most out-edges (PaGraph); of equals, the lower ids."""
    return [Outcome(accesses.total - _hits_by_degree(accesses, k), k) for k in slots]


def _hits_by_degree(accesses: Accesses, slots: int) -> int:
    if slots == 0:
        return 0
    degrees, counts = accesses.out_degrees, accesses.counts
    least = np.partition(degrees, len(degrees) - slots)[len(degrees) - slots]
    above = degrees > least
    equal = np.flatnonzero(degrees == least)[: slots - np.count_nonzero(above)]
    return int(counts.sum(where=above, dtype=np.int64) + counts[equal].sum(dtype=np.int64))


def lru(accesses: Accesses, slots: Sequence[int]) -> list[Outcome]:
    """The rows used last; empty at first. A row hits in k slots if fewer than k came after it."""
    hits = np.concatenate([[0], np.cumsum(accesses.reuse_rows)])
    return [Outcome(accesses.total - int(hits[min(k, len(hits) - 1)])) for k in slots]


def belady(accesses: Accesses, slots: Sequence[int]) -> list[Outcome]:
    """The rows whose next use is nearest; empty at first. No policy that begins so does better.

    "Next" ends with the profiled batches.
    """
    nothing = np.zeros(accesses.num_batches, np.int64)
    return [Outcome(_belady_misses(accesses, k, nothing)) for k in slots]


def belady_filled(accesses: Accesses, slots: Sequence[int]) -> list[Outcome]:
    """Belady that begins with the rows whose first use is nearest, as Ginex: the lower bound."""
    fills = [_nearest(accesses.first_uses, k) for k in slots]
    return [
        Outcome(_belady_misses(accesses, k, fill), int(fill.sum()))
        for k, fill in zip(slots, fills, strict=True)
    ]


def _belady_misses(accesses: Accesses, slots: int, cached: Ids) -> int:
    """`cached`: rows in the cache at first, by the batch of their next use.

    Rows with the same next use are interchangeable: whichever of them is kept, that batch reads
    the others, and all of them are there to be kept after it. So numbers of rows suffice.
    """
    hits = 0
    for t in range(accesses.num_batches):
        hits += int(cached[t])
        cached = cached + accesses.reuses[t]
        cached[: t + 1] = 0
        cached = _nearest(cached, slots)
    return accesses.total - hits


def _nearest(rows: Ids, slots: int) -> Ids:
    """Rows by the batch of their next use -> those of them that `slots` slots keep."""
    return np.diff(np.minimum(np.cumsum(rows), slots), prepend=0)


POLICIES: Mapping[str, Policy] = {
    "static_by_count": static_by_count,
    "static_by_out_degree": static_by_out_degree,
    "lru": lru,
    "belady": belady,
    "belady_filled": belady_filled,
}
