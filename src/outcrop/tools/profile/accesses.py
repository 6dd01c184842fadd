"""Accesses: a trace -> which rows each batch wants, how often, and how long after the last time.

An access is a pair of a batch and a row that it wants, however often the batch has that row (ShaDow
repeats it). A batch gets all its rows at once: rows of one batch do not evict each other before
they are used.

Memory: 9 bytes per node of the graph, 16 to 24 per touched node, 4 per pair of batches, and the
batch at hand; never all accesses.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from outcrop.errors import OptionError, StoreError
from outcrop.layout.trace import TraceReader
from outcrop.progress import SILENT, Progress
from outcrop.sample.seeds import Ids

Counts = NDArray[np.uint32]

# The table of reuses takes 4 bytes per pair of batches: 400 MB.
MOST_BATCHES = 10_000
_NEVER = -1


class Accesses:
    """The accesses of the first batches of a trace. Not thread-safe.

    One pass counts, when it is made; others follow when something is asked for that needs one.
    """

    def __init__(
        self,
        trace: TraceReader,
        num_rows: int,
        out_degrees: Callable[[], Counts],
        *,
        batches: int | None = None,
        progress: Progress = SILENT,
    ) -> None:
        """`num_rows`: of the graph. `out_degrees`: called when first needed.

        OptionError where the trace has fewer `batches` than wanted (None: all that it has), or too
        many; StoreError where it has no accesses, or rows that the graph has not.
        """
        self.num_rows = num_rows
        self.num_batches = _checked_batches(batches, len(trace))
        self._trace = trace
        self._progress = progress
        self._find_out_degrees = out_degrees
        self.seeds = 0
        """Distinct seeds, summed over batches."""
        self.rows_wanted = 0
        """Entries of all batches, repetitions included."""
        self.batch_rows: Ids = np.zeros(self.num_batches, np.int64)
        """Accesses of each batch: its distinct rows."""
        self.counts: Counts = np.zeros(num_rows, np.uint32)
        """Accesses of each row."""
        self.reuses: Counts = np.zeros((self.num_batches, self.num_batches), np.uint32)
        """reuses[s, t]: rows that batch s and then, next, batch t accesses."""
        self._rows_by_count: Ids = np.zeros(self.num_batches + 1, np.int64)
        self._rows_by_count[0] = num_rows
        self._count()
        if not self.total:
            raise StoreError("the trace has no accesses: its batches are empty")

    def _count(self) -> None:
        last_use = np.full(self.num_rows, _NEVER, np.int32)
        self._progress.stage("count", self.num_batches, "batches")
        for t, (task, subgraph) in enumerate(self._trace.scan(0, self.num_batches)):
            rows = self._checked_rows(t, distinct(subgraph.nodes))
            self.seeds += len(np.unique(task.seeds))
            self.rows_wanted += len(subgraph.nodes)
            self.batch_rows[t] = len(rows)
            self._count_rows(rows)
            self._count_reuses(t, last_use[rows])
            last_use[rows] = t
            self._progress.advance(1)

    def _checked_rows(self, t: int, rows: Ids) -> Ids:
        if len(rows) and not 0 <= rows.min() <= rows.max() < self.num_rows:
            raise StoreError(
                f"batch {t} of the trace has nodes {rows.min()} to {rows.max()}, but the store's "
                f"are 0 to {self.num_rows - 1}: a trace of another store"
            )
        return rows

    def _count_rows(self, rows: Ids) -> None:
        before = np.bincount(self.counts[rows], minlength=self.num_batches)
        self._rows_by_count[:-1] -= before
        self._rows_by_count[1:] += before
        self.counts[rows] += 1

    def _count_reuses(self, t: int, last_use: NDArray[np.int32]) -> None:
        self.reuses[:t, t] = np.bincount(last_use[last_use != _NEVER], minlength=t)

    @property
    def total(self) -> int:
        return int(self.batch_rows.sum())

    @property
    def distinct_rows(self) -> int:
        """Rows that any batch accesses; so many accesses are a row's first."""
        return int(self.num_rows - self._rows_by_count[0])

    @property
    def first_uses(self) -> Ids:
        """Per batch: accesses to rows that no batch before it accessed."""
        reused: Ids = self.reuses.sum(axis=0, dtype=np.int64)
        return self.batch_rows - reused

    @property
    def redundancy_ratio(self) -> float | None:
        """OUTRE's equation 2: RR = sum over b of |N~_b| / sum over b of |N_b|.

        N~_b: the distinct rows of batch b, its seeds among them; N_b: its distinct seeds. None
        where there are no seeds.
        """
        return self.total / self.seeds if self.seeds else None

    def top_accesses(self, rows: int) -> int:
        """Accesses to the `rows` rows with the most accesses."""
        having = self._rows_by_count[::-1]
        counts = np.arange(self.num_batches, -1, -1)
        taken = np.clip(rows - (np.cumsum(having) - having), 0, having)
        return int((taken * counts).sum())

    def reuse_batches(self) -> Ids:
        """[d]: accesses whose row was last accessed d batches before."""
        found = np.zeros(self.num_batches, np.int64)
        for d in range(1, self.num_batches):
            found[d] = np.diagonal(self.reuses, d).sum(dtype=np.int64)
        return found

    @cached_property
    def reuse_rows(self) -> Ids:
        """[d]: accesses whose row was used, and d other rows since: LRU's stack distances, exactly.

        Since a batch gets all its rows at once, what counts is the stack before the batch. It then
        puts them on top in the order of the trace, the last one topmost.
        """
        found = np.zeros(self.distinct_rows, np.int64)
        wanted = np.zeros(self.num_rows, np.bool_)
        stack = np.empty(0, np.uint32 if self.num_rows <= 1 << 32 else np.int64)
        for rows in self.batches("reuse"):
            wanted[rows] = True
            reused = wanted[stack]
            found[np.flatnonzero(reused)] += 1
            stack = np.concatenate([rows[::-1].astype(stack.dtype), stack[~reused]])
            wanted[rows] = False
        return found

    @cached_property
    def out_degrees(self) -> Counts:
        """Edges that begin at each node."""
        return self._find_out_degrees()

    def batches(self, stage: str) -> Iterator[Ids]:
        """The distinct rows of each batch, in the order of the trace; the trace is read again.

        `stage`: what for, as progress shows it.
        """
        self._progress.stage(stage, self.num_batches, "batches")
        for nodes in self._trace.scan(0, self.num_batches, what="nodes"):
            yield distinct(nodes)
            self._progress.advance(1)


def distinct(nodes: Ids) -> Ids:
    """Each node once, in the order of their last appearances."""
    if (np.diff(np.sort(nodes)) > 0).all():
        return nodes
    _, places = np.unique(nodes[::-1], return_index=True)
    return nodes[::-1][np.sort(places)][::-1]


@dataclass(frozen=True)
class Bin:
    """How many values are from `first` to `last`."""

    first: int
    last: int
    count: int


def powers_of_two(counts: Ids) -> list[Bin]:
    """counts[v] of each value v -> counts of 0, 1, 2 to 3, 4 to 7 ..., up to the last of any."""
    values = np.flatnonzero(counts)
    bits = np.frexp(values.astype(np.float64))[1]  # 0, 1, 2 ... for the bins above
    bins = np.zeros(int(bits.max(initial=-1)) + 1, np.int64)
    np.add.at(bins, bits, counts[values])
    return [Bin((1 << b) >> 1, (1 << b) - 1, int(count)) for b, count in enumerate(bins)]


def _checked_batches(wanted: int | None, there: int) -> int:
    if wanted is not None and not 1 <= wanted <= there:
        raise OptionError(f"batches must be 1 to {there}, as many as the trace has (got {wanted})")
    count = there if wanted is None else wanted
    if count > MOST_BATCHES:
        raise OptionError(f"batches must be at most {MOST_BATCHES} (got {count})")
    return count
