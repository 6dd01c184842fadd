"""Batched packing: one pass over the features -> all chunks at once.

The features are read in sequence, partition by partition, the next one while the rows of the
current one are scattered. The ids of a chunk are ascending, so those of a partition are a run of
them, which goes to the end of the chunk. Where there are more chunks than memory for their pieces,
a part of the chunks has a pass of its own (an episode), and then the next part.

What has been done is saved every few seconds: up to which row of which episode, and the checksums
of all pieces written. The pieces that were begun are not: their rows are read again.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from xxhash import xxh3_64_intdigest

from outcrop.disk import PAGE_BYTES, Disk, File, Pending, aligned_empty, landed, read_blocks
from outcrop.errors import CorruptError
from outcrop.layout.pack.pieces import SPARE_SLOTS, PieceWriter
from outcrop.layout.pack.plan import IDS, PackPlan
from outcrop.layout.pack.reader import CHUNKS, PIECE_BYTES, Checksums, chunk_checksum
from outcrop.progress import SILENT, Progress
from outcrop.sample.seeds import Ids
from outcrop.store.locks import replace_synced
from outcrop.store.store import FeatureRows

PROGRESS = "progress.bin"
# A larger partition means longer runs of ids; beyond this they are long enough.
_MOST_PARTITION_BYTES = 64 << 20
_LEAST_PARTITION_BYTES = 256 << 10
_MOST_IDS_BYTES = 4 << 20
_LEAST_IDS_BYTES = 64 << 10
# What an open chunk takes in the lists of runs, of two blocks of ids.
_RUN_BYTES = 1024
# A sync costs the drive some 10 ms; so much work is lost by a kill.
SAVE_SECONDS = 5.0


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
        partition = max(least, min(least + spare // 16, _MOST_PARTITION_BYTES))
        spare = memory_bytes - _fixed_bytes(partition, row_bytes, num_rows)
        each = _open_bytes(partition, row_bytes, num_rows)
        open_chunks = min(chunks, spare // each)
        spare -= open_chunks * each
        more_ids = min(spare // 8, _MOST_IDS_BYTES - _LEAST_IDS_BYTES)
        spare -= 2 * more_ids
        partition = max(partition, min(partition + spare // 2, _MOST_PARTITION_BYTES))
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
    return -(-num_rows // _partition_rows(partition_bytes, row_bytes))


def _partition_rows(partition_bytes: int, row_bytes: int) -> int:
    return max(1, partition_bytes // row_bytes)


def pack_batched(
    disk: Disk,
    folder: Path,
    features: FeatureRows,
    plan: PackPlan,
    memory_bytes: int,
    progress: Progress = SILENT,
    save_seconds: float = SAVE_SECONDS,
) -> Checksums:
    """Fills the file of chunks, which is there and has its size -> the checksum of each chunk.

    On return all of it has reached the device. Goes on where an earlier call was interrupted.
    CorruptError where the features are damaged: every byte is compared as it is read.
    """
    memory = PackMemory.divide(memory_bytes, len(plan.index), plan.row_bytes, features.num_rows)
    saved = _Saved.load(folder, len(plan.index))
    with disk.open_for_update(folder / CHUNKS) as chunks, disk.open(folder / IDS) as ids:
        packing = _Packing(chunks, ids, features, plan, memory, folder, save_seconds, progress)
        episodes = list(_episodes(plan, memory, saved))
        passes = features.num_rows * plan.row_bytes * len(episodes)
        progress.stage("pack", passes + int(plan.sizes.sum()))
        for episode in episodes:
            packing.run(episode, saved)
        chunks.sync()
    return saved.chunks


@dataclass
class _Saved:
    """What has been done, as it is kept in PROGRESS."""

    chunks: Checksums
    """One for each chunk of the plan; where one is not finished, as if it had no rows."""
    first: int = 0
    """The episode under way: chunks [first, last), and the first row that it has yet to see."""
    last: int = 0
    row: int = 0
    pieces: Checksums | None = None
    """One for each piece of the chunks under way."""

    @classmethod
    def load(cls, folder: Path, chunks: int) -> _Saved:
        """Nothing done, where nothing was saved."""
        path = folder / PROGRESS
        try:
            data = np.fromfile(path, "<u8")
        except FileNotFoundError:
            return cls(np.full(chunks, chunk_checksum(np.empty(0, "<u8")), "<u8"))
        if len(data) < chunks + 4 or xxh3_64_intdigest(data[:-1].data) != data[-1]:
            raise CorruptError(f"{path}: differs from its checksum")
        first, last, row = (int(value) for value in data[:3])
        return cls(data[3 : 3 + chunks].copy(), first, last, row, data[3 + chunks : -1].copy())

    def save(self, folder: Path) -> None:
        """On return it has reached the device."""
        position = np.array([self.first, self.last, self.row], "<u8")
        pieces = np.empty(0, "<u8") if self.pieces is None else self.pieces
        data = np.concatenate([position, self.chunks, pieces])
        checksum = np.array([xxh3_64_intdigest(data.data)], "<u8")
        replace_synced(folder / PROGRESS, data.data, checksum.data)


@dataclass(frozen=True)
class _Episode:
    """Chunks [first, last), over the rows from `row` on."""

    first: int
    last: int
    row: int


def _episodes(plan: PackPlan, memory: PackMemory, saved: _Saved) -> Iterator[_Episode]:
    """What is left to do. Chunks without rows are nobody's work, so episodes go around them."""
    begin = saved.first
    if saved.row and saved.last - saved.first <= memory.open_chunks:
        yield _Episode(saved.first, saved.last, saved.row)
        begin = saved.last
    for first in range(begin, len(plan.index), memory.open_chunks):
        last = min(first + memory.open_chunks, len(plan.index))
        if plan.rows[first:last].any():
            yield _Episode(first, last, 0)


class _Packing:
    """The episodes of one call."""

    def __init__(
        self,
        chunks: File,
        ids: File,
        features: FeatureRows,
        plan: PackPlan,
        memory: PackMemory,
        folder: Path,
        save_seconds: float,
        progress: Progress,
    ) -> None:
        self._chunks = chunks
        self._features = features
        self._plan = plan
        self._memory = memory
        self._folder = folder
        self._save_seconds = save_seconds
        self._progress = progress
        room = memory.partition_bytes + 2 * PAGE_BYTES
        self._partitions = [aligned_empty(room) for _ in range(2)]
        self._ids = _IdReader(ids, plan.first_ids, memory.ids_bytes)

    def run(self, episode: _Episode, saved: _Saved) -> None:
        first, last = episode.first, episode.last
        slots = last - first + SPARE_SLOTS
        writer = PieceWriter(self._chunks, self._plan, first, last, slots, self._progress)
        starts = self._starts(episode.row)
        # How many ids of each chunk are below the first row of each partition.
        bounds = np.empty((len(starts), last - first), np.int64)
        for chunk, rows in enumerate(self._plan.rows[first:last].tolist()):
            bounds[:, chunk] = self._ids.below(first + chunk, rows, starts)
        if episode.row:
            assert saved.pieces is not None
            writer.checksums[:] = saved.pieces
            self._restore(writer, episode, bounds[0])
            self._progress.advance(episode.row * self._plan.row_bytes)
        saved_at = time.monotonic()
        sweep = self._features.sweep(episode.row)
        for p, (begin, end, stored) in enumerate(self._read(starts)):
            sweep.feed(stored)
            for chunks, counts, ids in self._ids.runs(first, bounds[p], bounds[p + 1]):
                writer.append(stored, begin, chunks, counts, ids)
            self._progress.advance(len(stored))
            if time.monotonic() - saved_at >= self._save_seconds and end < starts[-1]:
                writer.settle()
                sweep.settle()  # who goes on from here does not read these rows again
                self._chunks.sync()
                saved.first, saved.last, saved.row = first, last, end
                saved.pieces = writer.checksums
                saved.save(self._folder)
                saved_at = time.monotonic()
        sweep.settle()
        saved.chunks[first:last] = writer.finish()
        self._chunks.sync()
        saved.first, saved.last, saved.row, saved.pieces = last, last, 0, None
        saved.save(self._folder)

    def _starts(self, row: int) -> Ids:
        """The first row of each partition from `row` on, and the number of all rows."""
        step = _partition_rows(self._memory.partition_bytes, self._plan.row_bytes)
        return np.append(np.arange(row, self._features.num_rows, step), self._features.num_rows)

    def _read(self, starts: Ids) -> Iterator[tuple[int, int, NDArray[np.uint8]]]:
        """Partitions: their first row, the one after their last, their bytes."""

        def reads() -> Iterator[tuple[Pending, tuple[int, int, NDArray[np.uint8]]]]:
            for p, (begin, end) in enumerate(itertools.pairwise(starts.tolist())):
                pending, rows = self._features.start_scan(begin, end, self._partitions[p % 2])
                yield pending, (begin, end, rows)

        return landed(reads(), len(self._partitions))

    def _restore(self, writer: PieceWriter, episode: _Episode, done: Ids) -> None:
        """Pieces that were begun before the interruption: their rows are read again."""
        row_bytes = self._plan.row_bytes
        step = _partition_rows(self._memory.partition_bytes, row_bytes)
        for chunk, rows in zip(range(episode.first, episode.last), done.tolist(), strict=True):
            first, last = writer.resume(chunk, rows)
            for begin in range(first, last, step):
                count = min(step, last - begin)
                ids = self._ids.read(chunk, begin, count)
                stored = self._partitions[0][: count * row_bytes]
                self._features.check(ids)
                self._features.start_read(ids, stored.reshape(count, row_bytes)).wait()
                writer.append(stored, 0, np.array([chunk]), np.array([count]), np.arange(count))


class _IdReader:
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
