"""Search: a plan of packed rows and a disk budget -> how many batches share a segment, and what.

The paper's heuristic: a row that more than m = 1 batches of a segment want is stored once for it,
and segments are as short as the disk allows; short ones read less for it. The disk that is left
goes to a larger m. How many rows segments of any length have is known from one pass over the lists
of rows, so only lengths that may fit are looked at.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from outcrop import _core
from outcrop.closing import Closing
from outcrop.disk import PAGE_BYTES, Disk, Pending, aligned_empty, landed
from outcrop.errors import BudgetError
from outcrop.layout.pack.plan import IDS, PackPlan
from outcrop.layout.pack.segments.layout import Segments
from outcrop.options import format_size, size_of_at_least
from outcrop.progress import SILENT, Progress
from outcrop.sample.seeds import Ids

# More copies of a row in the chunks of one segment are not considered.
MOST_ABOVE = 64
# Where there are more batches, lengths are multiples of a unit: pairs of units take 8 MiB at most,
# and sums of them as much.
_MOST_UNITS = 1024
# The exact set of batches is a word; beyond it there are hashes of it.
_MOST_IN_SET = 64
_HASHES = 4

OrderName = Literal["set", "minhash", "printed", "id"]


@dataclass(frozen=True)
class Order:
    """How the rows of a segment are ordered."""

    name: OrderName
    hashes: int = _HASHES

    @classmethod
    def best(cls, batches: int) -> Order:
        """The best order for segments of so many batches."""
        return cls("set" if batches <= _MOST_IN_SET else "minhash")

    def segment(self, num_nodes: int, expected: int) -> _core.Segment:
        order = _core.SegmentOrder[self.name.upper()]
        return _core.Segment(num_nodes, expected, order, self.hashes)


class PackedLists(Closing):
    """The nodes of each batch that a plan without segments packs, from its file."""

    def __init__(self, disk: Disk, folder: Path, plan: PackPlan, num_nodes: int) -> None:
        self.plan = plan
        self.num_nodes = num_nodes
        self.rows = plan.rows[: plan.batches]
        self._first_ids = plan.first_ids
        self._file = disk.open(folder / IDS)

    def __len__(self) -> int:
        return len(self.rows)

    def scan(self, first: int, last: int) -> Iterator[Ids]:
        """The nodes of each of batches [first, last), ascending; the next are read meanwhile."""
        most = int(self.rows[first:last].max(initial=0))
        memory = [aligned_empty(most, np.int64) for _ in range(2)]

        def starts() -> Iterator[tuple[Pending, Ids]]:
            for t in range(first, last):
                nodes = memory[t % 2][: self.rows[t]]
                offset = 8 * int(self._first_ids[t])
                yield self._file.start_read_extents([offset], [nodes.nbytes], nodes), nodes

        return landed(starts(), len(memory))

    def segments(self, batches: int) -> list[tuple[int, int]]:
        """The first batch of each, and the one after its last."""
        return [(first, min(first + batches, len(self))) for first in range(0, len(self), batches)]

    def most_distinct(self, batches: int) -> int:
        """Nodes of a segment, at most."""
        most = max((int(self.rows[b:e].sum()) for b, e in self.segments(batches)), default=0)
        return min(self.num_nodes, most)

    def close(self) -> None:
        self._file.close()


@dataclass(frozen=True)
class Measured:
    """Segments of one length: how many rows are wanted by how many of their batches."""

    lists: PackedLists
    batches: int
    of_batches: NDArray[np.uint64]
    """[batches of the trace, c]: rows that c batches of the segment want."""
    of_segments: NDArray[np.uint64]

    @property
    def most_above(self) -> int:
        """With a larger `above` there would be no segments."""
        return max(1, min(MOST_ABOVE, self.batches - 1))

    def plan(self, above: int) -> PackPlan:
        """What would be packed; it has sizes, but neither offsets nor checksums."""
        whole = self.lists.plan
        own = self.of_batches[:, : above + 1].sum(axis=1).astype(np.int64)
        rows = self.of_segments[:, above + 1 :].sum(axis=1).astype(np.int64)
        index = whole.index.copy()
        index["packed"][:-1] = own
        index["shared"][:-1] = self.lists.rows - own
        first = int(PackPlan(index, whole.row_bytes, packed=True).sizes.sum())
        segments = Segments(self.batches, above, rows, whole.row_bytes, first)
        bucket_rows, _, filled_at = segments.buckets
        buckets = np.zeros(len(bucket_rows), index.dtype)
        buckets["packed"], buckets["chunk_offset"] = bucket_rows, filled_at
        return PackPlan(
            np.concatenate([index, buckets]),
            whole.row_bytes,
            True,
            segments,
            device_rows=whole.device_rows,
        )

    def most_bytes(self, above: int) -> int:
        """What it takes on disk, while it is planned and while it is made."""
        plan, whole = self.plan(above), self.lists.plan
        planned = plan.table_bytes + plan.list_bytes + whole.table_bytes + whole.list_bytes
        return max(plan.most_bytes, planned)


def measure(lists: PackedLists, batches: int, progress: Progress = SILENT) -> Measured:
    of_batches = np.zeros((len(lists), MOST_ABOVE + 2), np.uint64)
    bounds = lists.segments(batches)
    of_segments = np.zeros((len(bounds), MOST_ABOVE + 2), np.uint64)
    segment = Order("id").segment(lists.num_nodes, lists.most_distinct(batches))
    progress.stage(f"measure segments of {batches}", 2 * len(lists), "batches")
    for number, (first, last) in enumerate(bounds):
        for t, nodes in enumerate(lists.scan(first, last)):
            segment.add(t, nodes)
            progress.advance(1)
        segment.count(of_segments[number])
        for t, nodes in enumerate(lists.scan(first, last), first):
            segment.count_of(nodes, of_batches[t])
            progress.advance(1)
        segment.clear()
    return Measured(lists, batches, of_batches, of_segments)


def search(
    lists: PackedLists, disk_bytes: int, other_bytes: int, progress: Progress = SILENT
) -> PackPlan:
    """The heuristic -> what is packed. `other_bytes`: on disk beside it, of the same budget.

    BudgetError, with the smallest budget that would do, where nothing fits.
    """
    room = disk_bytes - other_bytes
    lengths = _lengths(lists, progress)
    for batches, least in lengths:
        if least > room:
            continue
        measured = measure(lists, batches, progress)
        if measured.most_bytes(1) <= room:
            fitting = [
                m for m in range(1, measured.most_above + 1) if measured.most_bytes(m) <= room
            ]
            return measured.plan(fitting[-1])
    batches, _ = min(lengths, key=lambda length: length[1])
    whole, shared = lists.plan.most_bytes, measure(lists, batches, progress).most_bytes(1)
    raise BudgetError(
        f"disk={format_size(disk_bytes)} is too little: samples {format_size(other_bytes)}; packed "
        f"rows and tables take {format_size(whole)}, or {format_size(shared)} where batches share "
        f"rows; the smallest that would do is {size_of_at_least(other_bytes + min(whole, shared))}"
    )


def pairs_bytes(batches: int) -> int:
    """Memory that comparing so many batches takes beside a table of nodes."""
    return 2 * 8 * (min(batches, _MOST_UNITS) + 1) ** 2


def _lengths(lists: PackedLists, progress: Progress) -> list[tuple[int, int]]:
    """Lengths of segments, ascending, each with the least that it can take where m is 1."""
    unit = max(1, -(-len(lists) // _MOST_UNITS))
    units = -(-len(lists) // unit)
    pairs = _core.ReusePairs(lists.num_nodes, lists.most_distinct(len(lists)), units)
    progress.stage("compare batches", len(lists), "batches")
    for t, nodes in enumerate(lists.scan(0, len(lists))):
        pairs.add(t // unit, nodes)
        progress.advance(1)
    # sums[a, b]: of the pairs whose first is in a unit before a, and whose second before b.
    sums = np.zeros((units + 1, units + 1), np.int64)
    sums[1:, 1:] = pairs.pairs.reshape(units, units)
    np.cumsum(np.cumsum(sums, axis=0, out=sums), axis=1, out=sums)
    plan = lists.plan
    every, cached = int(lists.rows.sum()), int(plan.rows[-1])
    found = []
    for length in range(1, units + 1):
        batches = min(length * unit, len(lists))
        if batches == 1:
            continue
        first = np.arange(0, units, length)
        last = np.minimum(first + length, units)
        within = sums[last, last] - sums[first, last] - sums[last, first] + sums[first, first]
        # A row that is wanted again within the segment is not stored again, but then its batch has
        # its position in a table, whose last page may have been nearly empty.
        again = int(within.sum())
        tables = max(0, 4 * again - PAGE_BYTES * len(lists)) + plan.table_bytes
        found.append((batches, (every - again + cached) * (plan.row_bytes + 8) + tables))
    return found or [(1, plan.most_bytes)]
