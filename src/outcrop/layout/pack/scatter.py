"""Scatter: one ascending pass over the features -> the rows of many chunks at once.

The features are read partition by partition, the next one while the rows of the current one are
scattered. The ids of a chunk are ascending, so those of a partition are a run of them, which goes
to the end of the chunk. Where there are more chunks than memory for their pieces, a part of the
chunks has a pass of its own, and then the next part.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from outcrop import _core
from outcrop.disk import (
    PAGE_BYTES,
    READ_BLOCK_BYTES,
    Disk,
    File,
    Landing,
    Pending,
    aligned_empty,
    landed,
    read_blocks,
    round_up,
)
from outcrop.layout.pack.pieces import SPARE_SLOTS, PieceWriter
from outcrop.layout.pack.plan import IDS, PackPlan
from outcrop.layout.pack.reader import CHUNKS, PIECE_BYTES, Checksums, chunk_checksum
from outcrop.progress import SILENT, Progress
from outcrop.sample.seeds import Ids
from outcrop.store.store import FeatureRows

# A larger partition means longer runs of ids; beyond this they are long enough.
MOST_PARTITION_BYTES = 64 << 20
_LEAST_PARTITION_BYTES = 256 << 10
_MOST_IDS_BYTES = 4 << 20
_LEAST_IDS_BYTES = 64 << 10
# What an open chunk takes in the lists of runs, of two blocks of ids.
_RUN_BYTES = 1024

Bytes = NDArray[np.uint8]


@dataclass(frozen=True)
class PackMemory:
    """How packing divides its memory."""

    partition_bytes: int
    """The size of each of two partitions."""
    ids_bytes: int
    """The size of each of two blocks of ids."""
    slots: int
    """Pieces: one per open chunk, and those being written."""

    @property
    def open_chunks(self) -> int:
        return self.slots - SPARE_SLOTS

    @classmethod
    def least_bytes(cls, row_bytes: int, num_rows: int) -> int:
        """What packing takes with one open chunk. `num_rows`: of the features."""
        partition = max(_LEAST_PARTITION_BYTES, row_bytes)
        fixed = _fixed_bytes(partition, row_bytes, num_rows)
        return fixed + _open_bytes(partition, row_bytes, num_rows)

    @classmethod
    def one_pass_bytes(cls, chunks: int, row_bytes: int, num_rows: int) -> int:
        """What packing takes to fill all chunks in about one pass over the features."""
        partition = max(_LEAST_PARTITION_BYTES, row_bytes)
        fixed = _fixed_bytes(partition, row_bytes, num_rows)
        # An eighth goes to larger partitions.
        return fixed + chunks * _open_bytes(partition, row_bytes, num_rows) * 8 // 7

    @classmethod
    def divide(cls, memory_bytes: int, chunks: int, row_bytes: int, num_rows: int) -> PackMemory:
        """REQUIRES: memory_bytes >= least_bytes(row_bytes, num_rows)."""
        spare = memory_bytes - cls.least_bytes(row_bytes, num_rows)
        least = max(_LEAST_PARTITION_BYTES, row_bytes)
        # Partitions first: the smaller they are, the more of them there are, each with a bound and
        # a run of every open chunk. Then chunks: an episode costs a pass over the features.
        partition = max(least, min(least + spare // 16, MOST_PARTITION_BYTES))
        spare = memory_bytes - _fixed_bytes(partition, row_bytes, num_rows)
        each = _open_bytes(partition, row_bytes, num_rows)
        open_chunks = min(chunks, spare // each)
        spare -= open_chunks * each
        more_ids = min(spare // 8, _MOST_IDS_BYTES - _LEAST_IDS_BYTES)
        spare -= 2 * more_ids
        partition = max(partition, min(partition + spare // 2, MOST_PARTITION_BYTES))
        return cls(partition, (_LEAST_IDS_BYTES + more_ids) // 8 * 8, open_chunks + SPARE_SLOTS)


def _fixed_bytes(partition_bytes: int, row_bytes: int, num_rows: int) -> int:
    """Partitions, their first rows, the bounds of a chunk while they are found; ids and pieces."""
    starts = 4 * 8 * (_partitions(partition_bytes, row_bytes, num_rows) + 1)
    partitions = 2 * (partition_bytes + 2 * PAGE_BYTES)
    return partitions + starts + 2 * _LEAST_IDS_BYTES + SPARE_SLOTS * PIECE_BYTES


def _open_bytes(partition_bytes: int, row_bytes: int, num_rows: int) -> int:
    """What an open chunk takes: a piece, its runs of ids, and its bounds in the file of ids."""
    bounds = 8 * (_partitions(partition_bytes, row_bytes, num_rows) + 1)
    return PIECE_BYTES + _RUN_BYTES + bounds


def _partitions(partition_bytes: int, row_bytes: int, num_rows: int) -> int:
    return -(-num_rows // partition_rows(partition_bytes, row_bytes))


def partition_rows(partition_bytes: int, row_bytes: int) -> int:
    return max(1, partition_bytes // row_bytes)


# What is read


class PartitionReader(Protocol):
    """What brings the rows of a partition."""

    def start(self, first: int, last: int, memory: Bytes) -> tuple[Landing, Bytes] | None:
        """Begins to read rows [first, last) -> where they will be in `memory`, which begins on a
        page and has room for two pages more. None: nobody wants any of them."""


class WholeFeatures:
    """All rows, in sequence."""

    def __init__(self, features: FeatureRows) -> None:
        self.start = features.start_scan


@dataclass(frozen=True)
class BlockReads:
    """What blocks of the features are read whole, and when rows are read one by one instead."""

    block_bytes: int
    request_bytes: int
    """What the drive reads in sequence in the time of one random request."""

    def least_rows(self, block_bytes: int) -> int:
        """A block of which fewer rows are wanted is read by rows."""
        return -(-block_bytes // self.request_bytes)


class WantedBlocks:
    """Blocks in which rows are wanted; where these are few, by rows."""

    def __init__(self, features: FeatureRows, wanted: _core.RowSet, reads: BlockReads) -> None:
        self._features, self._wanted = features, wanted
        self._row_bytes = features.encoding.row_bytes
        self._block_rows = max(1, reads.block_bytes // self._row_bytes)
        self._least_rows = reads.least_rows(self._block_rows * self._row_bytes)
        self.block_bytes = 0
        """Read so far as blocks ..."""
        self.rows = 0
        """... and so many rows one by one."""

    def start(self, first: int, last: int, memory: Bytes) -> tuple[Landing, Bytes] | None:
        counts = self._wanted.count_blocks(first, last, self._block_rows)
        if not counts.any():
            return None
        # The memory begins with the page of the first row.
        begin = self._features.base + first * self._row_bytes
        start = begin - begin % PAGE_BYTES
        size = (last - first) * self._row_bytes
        rows = memory[begin - start : begin - start + size]
        whole = counts >= self._least_rows
        if self._features.checks.on_read:
            self._features.check(np.array([first, last - 1]))  # it has two pieces of them at most
        offsets, lengths = self._extents(first, last, whole)
        self.block_bytes += int(lengths.sum())
        blocks = self._features.file.start_read_extents(offsets, lengths, memory, offsets - start)
        few = np.flatnonzero((counts > 0) & ~whole)
        return _Several([blocks, self._start_rows(first, last, few, rows)]), rows

    def _extents(self, first: int, last: int, whole: NDArray[np.bool_]) -> tuple[Ids, Ids]:
        """Runs of blocks -> extents of whole pages, none of which overlap."""
        edges = np.diff(np.concatenate([[False], whole, [False]]).astype(np.int8))
        begins = first + np.flatnonzero(edges == 1) * self._block_rows
        ends = np.minimum(first + np.flatnonzero(edges == -1) * self._block_rows, last)
        base, row_bytes = self._features.base, self._row_bytes
        starts = (base + begins * row_bytes) // PAGE_BYTES * PAGE_BYTES
        stops = np.minimum(round_up(base + ends * row_bytes), self._features.file.size)
        apart = np.flatnonzero(starts[1:] > stops[:-1])  # else two runs share a page
        chosen = np.concatenate([[0], apart + 1]) if len(starts) else apart
        stops = stops[np.append(apart, len(stops) - 1)] if len(stops) else stops
        return starts[chosen], stops - starts[chosen]

    def _start_rows(self, first: int, last: int, blocks: Ids, rows: Bytes) -> Pending:
        """The wanted rows of these blocks -> their places in the partition."""
        lists = [
            self._wanted.list(begin, min(begin + self._block_rows, last))
            for begin in (first + blocks * self._block_rows).tolist()
        ]
        ids = np.concatenate([np.empty(0, np.int64), *lists])
        self.rows += len(ids)
        return self._features.start_read(ids, rows.reshape(last - first, -1), ids - first)


class _Several:
    def __init__(self, pending: list[Pending]) -> None:
        self._pending = pending

    def wait(self) -> None:
        for each in self._pending:
            each.wait()


# The pass


class Scattering:
    """Passes over the features, each of which fills some chunks of a plan."""

    def __init__(
        self,
        chunks: File,
        ids: File,
        reader: PartitionReader,
        plan: PackPlan,
        num_rows: int,
        memory: PackMemory,
        progress: Progress = SILENT,
    ) -> None:
        """`num_rows`: of the features."""
        self.chunks, self.plan, self.progress = chunks, plan, progress
        self.reader, self.num_rows = reader, num_rows
        self.step = partition_rows(memory.partition_bytes, plan.row_bytes)
        """Rows of a partition."""
        room = memory.partition_bytes + 2 * PAGE_BYTES
        self.partitions = [aligned_empty(room) for _ in range(2)]
        self.ids = IdReader(ids, plan.first_ids, memory.ids_bytes)

    def begin(self, first: int, last: int, row: int = 0) -> Pass:
        """A pass over the rows from `row` on, for chunks [first, last)."""
        return Pass(self, first, last, row)


class Pass:
    """One pass: iterate over it, then `finish`."""

    def __init__(self, of: Scattering, first: int, last: int, row: int) -> None:
        self._of, self._first = of, first
        slots = last - first + SPARE_SLOTS
        self.writer = PieceWriter(of.chunks, of.plan, first, last, slots, of.progress)
        self._starts = np.append(np.arange(row, of.num_rows, of.step), of.num_rows)
        self.bounds: Ids = np.empty((len(self._starts), last - first), np.int64)
        """How many ids of each chunk are below the first row of each partition."""
        for chunk, rows in enumerate(of.plan.rows[first:last].tolist()):
            self.bounds[:, chunk] = of.ids.below(first + chunk, rows, self._starts)

    def __iter__(self) -> Iterator[tuple[int, Bytes]]:
        """Each partition that was read, once its rows are scattered: the row after its last, and
        its bytes."""
        for p, begin, end, stored in self._read():
            runs = self._of.ids.runs(self._first, self.bounds[p], self.bounds[p + 1])
            for chunks, counts, ids in runs:
                self.writer.append(stored, begin, chunks, counts, ids)
            yield end, stored

    def _read(self) -> Iterator[tuple[int, int, int, Bytes]]:
        """Partitions: their number, first row, the one after their last, their bytes."""
        memory = self._of.partitions

        def starts() -> Iterator[tuple[Landing, tuple[int, int, int, Bytes]]]:
            count = 0
            for p, (begin, end) in enumerate(itertools.pairwise(self._starts.tolist())):
                started = self._of.reader.start(begin, end, memory[count % len(memory)])
                if started is not None:
                    count += 1
                    yield started[0], (p, begin, end, started[1])

        return landed(starts(), len(self._of.partitions))

    def finish(self) -> Checksums:
        """What is left of all chunks -> the checksum of each, once all is written."""
        return self.writer.finish()


def scatter_wanted(
    disk: Disk,
    folder: Path,
    features: FeatureRows,
    plan: PackPlan,
    reads: BlockReads,
    memory_bytes: int,
    stop: Callable[[], None],
) -> tuple[Checksums, WantedBlocks]:
    """Fills the file of chunks, which is there and has its size -> the checksum of each chunk.

    Only what is wanted is read. Nothing is saved or synced: it lives as long as its run. `stop` is
    called between partitions, and may raise.
    """
    num_rows = features.num_rows
    memory_bytes -= _core.RowSet.bytes(num_rows) + READ_BLOCK_BYTES
    memory = PackMemory.divide(memory_bytes, len(plan.index), plan.row_bytes, num_rows)
    checksums = np.full(len(plan.index), chunk_checksum(np.empty(0, "<u8")), "<u8")
    with disk.open_for_update(folder / CHUNKS) as chunks, disk.open(folder / IDS) as ids:
        wanted = _core.RowSet(num_rows)
        for block in read_blocks(ids, 0, ids.size):
            wanted.add(block.view(np.int64))
            stop()
        reader = WantedBlocks(features, wanted, reads)
        scattering = Scattering(chunks, ids, reader, plan, num_rows, memory)
        for first in range(0, len(plan.index), memory.open_chunks):
            last = min(first + memory.open_chunks, len(plan.index))
            filling = scattering.begin(first, last)
            for _ in filling:
                stop()
            checksums[first:last] = filling.finish()
    return checksums, reader


def scatter_bytes(chunks: int, row_bytes: int, num_rows: int) -> int:
    """What `scatter_wanted` takes to fill so many chunks in about one pass."""
    own = _core.RowSet.bytes(num_rows) + 4 * READ_BLOCK_BYTES
    return own + PackMemory.one_pass_bytes(chunks, row_bytes, num_rows)


def least_scatter_bytes(row_bytes: int, num_rows: int) -> int:
    """The least in which it works, one chunk after the other."""
    own = _core.RowSet.bytes(num_rows) + 4 * READ_BLOCK_BYTES
    return own + PackMemory.least_bytes(row_bytes, num_rows)


class IdReader:
    """The file of ids: those of a chunk are together, ascending."""

    def __init__(self, file: File, firsts: Ids, block_bytes: int) -> None:
        self._file = file
        self._firsts = firsts
        self._block_ids = block_bytes // 8
        self._blocks = [aligned_empty(self._block_ids, np.int64) for _ in range(2)]

    def read(self, chunk: int, begin: int, count: int) -> Ids:
        """In memory of their own."""
        offset = 8 * (int(self._firsts[chunk]) + begin)
        return self._file.read(offset, 8 * count).view(np.int64)

    def below(self, chunk: int, rows: int, starts: Ids) -> Ids:
        """How many ids of a chunk are below each of `starts`."""
        begin = 8 * int(self._firsts[chunk])
        found = np.zeros(len(starts), np.int64)
        for block in read_blocks(self._file, begin, begin + 8 * rows, 8 * self._block_ids):
            found += np.searchsorted(block.view(np.int64), starts)
        return found

    def runs(self, first: int, begins: Ids, ends: Ids) -> Iterator[tuple[Ids, Ids, Ids]]:
        """Ids [begins[i], ends[i]) of chunk first + i, in blocks: chunks, how many of each, ids.

        The next block is read while one is used.
        """
        return landed(self._start_runs(first, begins, ends), len(self._blocks))

    def _start_runs(
        self, first: int, begins: Ids, ends: Ids
    ) -> Iterator[tuple[Pending, tuple[Ids, Ids, Ids]]]:
        for number, runs in enumerate(self._grouped(first, begins, ends)):
            chunks, starts, counts = (np.array(part, np.int64) for part in zip(*runs, strict=True))
            ids = self._blocks[number % 2][: int(counts.sum())]
            offsets = 8 * (self._firsts[chunks] + starts)
            pending = self._file.start_read_extents(offsets, 8 * counts, ids)
            yield pending, (chunks, counts, ids)

    def _grouped(self, first: int, begins: Ids, ends: Ids) -> Iterator[list[tuple[int, int, int]]]:
        """Runs (chunk, begin, count) that fill a block."""
        group: list[tuple[int, int, int]] = []
        room = self._block_ids
        for chunk, (begin, end) in enumerate(
            zip(begins.tolist(), ends.tolist(), strict=True), first
        ):
            while begin < end:
                count = min(end - begin, room)
                group.append((chunk, begin, count))
                begin += count
                room -= count
                if room == 0:
                    yield group
                    group, room = [], self._block_ids
        if group:
            yield group
