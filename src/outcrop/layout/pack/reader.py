"""A finished pack: where the rows of each batch are (its table), and the bytes of its chunk.

docs/format.md has the bytes. Rows that several batches share are in segments, read by pages: every
page is read once for a batch, and pages that follow each other by one request. Rows may have any
size: one that goes on in the next page finds it, since both are read and follow each other.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from xxhash import xxh3_64_intdigest

from outcrop import _core
from outcrop.closing import Closing
from outcrop.disk import (
    PAGE_BYTES,
    READ_BLOCK_BYTES,
    Disk,
    File,
    Pending,
    aligned_empty,
    landed,
    read_blocks,
    round_up,
)
from outcrop.errors import CorruptError, StoreError
from outcrop.layout.pack.segments.layout import Segments
from outcrop.progress import SILENT, Progress
from outcrop.sample.seeds import Ids
from outcrop.schema import AtLeast, Count
from outcrop.store.arrays import piece_checksums
from outcrop.store.format import ArrayEntry, unseal_as

PACK_FORMAT, PACK_VERSION = "outcrop-pack", 2
TABLES, CHUNKS = "tables.bin", "chunks.bin"
HEADER, INDEX, CACHED, DEVICE = "pack.json", "index.npy", "cached.npy", "device.npy"
# Smaller writes cost the drive more requests than bytes: store/arrays.py. Part of the format.
PIECE_BYTES = 256 << 10
ROW = np.dtype(
    [
        (name, "<i8")
        for name in ("table_offset", "chunk_offset", "cached", "packed", "shared", "copied")
    ]
    + [(name, "<u8") for name in ("table_checksum", "chunk_checksum", "shared_checksum")]
)
_IDS = np.dtype("<i8")
# In flight at a time; sequential reads have as many (disk.py).
_BLOCKS = 4

Rows = NDArray[np.uint32]
StoredRows = NDArray[np.uint8]
Checksums = NDArray[np.uint64]


# Tables


@dataclass(frozen=True)
class Table:
    """Where the rows of a batch are found; every row is in one of the four lists of rows."""

    cached_rows: Rows
    """And for each its slot in the cache."""
    cached_slots: Rows
    packed_rows: Rows
    """In the order of the batch's chunk."""
    shared_rows: Rows
    """And for each its position in the batch's segment; these ascend."""
    shared_positions: Rows
    copied_rows: Rows
    """And for each the row that it is a copy of."""
    copied_from: Rows

    def split(self, device_slots: int) -> tuple[Rows, Rows, Table]:
        """Rows on the device, their slots there, and the table of all others."""
        count = int(np.count_nonzero(self.cached_slots < device_slots))
        rest = replace(
            self,
            cached_rows=self.cached_rows[count:],
            cached_slots=self.cached_slots[count:] - np.uint32(device_slots),
        )
        return self.cached_rows[:count], self.cached_slots[:count], rest

    def to_bytes(self) -> NDArray[np.uint8]:
        """In whole pages."""
        parts = tuple(vars(self).values())
        words = sum(map(len, parts))
        table = np.zeros(int(round_up(np.int64(4 * words))) // 4, "<u4")
        np.concatenate(parts, out=table[:words])
        return table.view(np.uint8)


def table_sizes(index: NDArray[Any]) -> Any:
    """Rows of an index -> bytes of each table."""
    pairs = index["cached"] + index["shared"] + index["copied"]
    return round_up(4 * (2 * pairs + index["packed"]))


def read_table(file: File, t: int, row: Any) -> Table:
    """The table of batch t, whose row of the index is `row`."""
    cached, packed = int(row["cached"]), int(row["packed"])
    shared, copied = int(row["shared"]), int(row["copied"])
    sizes = (cached, cached, packed, shared, shared, copied, copied)
    size, offset = int(table_sizes(row)), int(row["table_offset"])
    data = file.read(offset, size)
    if xxh3_64_intdigest(data.data) != row["table_checksum"]:
        raise CorruptError(
            f"{file.path}: batch {t}: {size} B at {offset} differ from their checksum"
        )
    words = data.view("<u4")
    bounds = np.concatenate([[0], np.cumsum(sizes)]).tolist()
    return Table(*(words[b:e] for b, e in itertools.pairwise(bounds)))


# Segments


def count_pages(positions: Rows, row_bytes: int) -> int:
    """REQUIRES: ascending, each once."""
    first, last = _pages_of(positions, row_bytes)
    return int((last - first + 1).sum() - np.count_nonzero(first[1:] == last[:-1]))


def _pages_of(positions: Rows, row_bytes: int) -> tuple[Ids, Ids]:
    """The first and the last page of each row."""
    begin = positions.astype(np.int64) * row_bytes
    last = begin + (row_bytes - 1)
    return np.floor_divide(begin, PAGE_BYTES, out=begin), np.floor_divide(
        last, PAGE_BYTES, out=last
    )


class PageRuns:
    """The pages of some rows of a segment, one after the other: a stream of bytes."""

    def __init__(self, positions: Rows, row_bytes: int) -> None:
        """REQUIRES: ascending, each once."""
        first, last = _pages_of(positions, row_bytes)
        begins = np.flatnonzero(first[1:] > last[:-1] + 1) + 1
        begins = np.concatenate([np.zeros(min(1, len(first)), np.int64), begins])
        ends = np.append(begins[1:], len(first))
        self.firsts: Ids = first[begins]
        """The first page of each run, and how many it has."""
        self.counts: Ids = last[ends - 1] - self.firsts + 1 if len(begins) else begins
        del first, last
        self._before = np.cumsum(self.counts) - self.counts
        self.pages = int(self.counts.sum())
        gone = np.repeat((self.firsts - self._before) * PAGE_BYTES, ends - begins)
        self.offsets: Ids = np.multiply(positions, row_bytes, dtype=np.int64)
        """The byte of the stream at which each row begins."""
        self.offsets -= gone

    def blocks(self, pages: int) -> Iterator[tuple[Ids, Ids]]:
        """The stream in blocks of so many pages: runs of each, their first pages and counts."""
        for begin in range(0, self.pages, pages):
            end = min(begin + pages, self.pages)
            low = int(np.searchsorted(self._before, begin, side="right")) - 1
            high = int(np.searchsorted(self._before, end))
            before, counts = self._before[low:high], self.counts[low:high]
            skipped = np.maximum(begin - before, 0)
            taken = np.minimum(before + counts, end) - before - skipped
            yield self.firsts[low:high] + skipped, taken


@dataclass(frozen=True)
class Block:
    """Bytes, the rows that begin and end in them, and at which byte each begins."""

    data: NDArray[np.uint8]
    offsets: Ids
    rows: Rows
    read_bytes: int
    """How much at the end of data was read for it; before are bytes of a row that began earlier."""


class SharedRows:
    """What one batch reads of its segment."""

    def __init__(self, file: File, offset: int, positions: Rows, rows: Rows, row_bytes: int):
        """`offset`: of the segment. REQUIRES: positions ascending, each once."""
        self._file = file
        self._first_page = offset // PAGE_BYTES
        self._rows = rows
        self._row_bytes = row_bytes
        self._runs = PageRuns(positions, row_bytes)
        self.bytes = self._runs.pages * PAGE_BYTES
        """What its pages take, which are all that is read."""
        self.checksum = 0
        """The sum of those of all pages so far, modulo 2^64."""

    def blocks(self) -> Iterator[Block]:
        """The following ones are read while one is used, which is overwritten then."""
        offsets, row_bytes = self._runs.offsets, self._row_bytes
        head = int(round_up(row_bytes))
        begun = np.empty(0, np.uint8)  # of a row that goes on in the next block
        done, end = 0, 0
        for memory, size, firsts, counts in self._read(head):
            read = memory[head : head + size]
            self.checksum += _core.sum_of_pages(read, firsts, counts)
            memory[head - len(begun) : head] = begun
            begin, end = end, end + size
            ready = int(np.searchsorted(offsets, end - row_bytes, side="right"))
            places = offsets[done:ready] + (head - begin)
            if ready < len(offsets) and offsets[ready] < end:
                begun = memory[head + int(offsets[ready]) - begin : head + size].copy()
            else:
                begun = begun[:0]
            yield Block(memory[: head + size], places, self._rows[done:ready], size)
            done = ready
        self.checksum %= 1 << 64

    def _read(self, head: int) -> Iterator[tuple[NDArray[np.uint8], int, Ids, Ids]]:
        """Memory, how many bytes are behind its head, and which runs of pages they are."""
        room = min(READ_BLOCK_BYTES, self.bytes)
        count = min(_BLOCKS, -(-self.bytes // max(1, room)))
        memory = [aligned_empty(head + room) for _ in range(count)]

        def starts() -> Iterator[tuple[Pending, tuple[NDArray[np.uint8], int, Ids, Ids]]]:
            for number, (firsts, counts) in enumerate(self._runs.blocks(room // PAGE_BYTES)):
                firsts = firsts + self._first_page
                size = int(counts.sum()) * PAGE_BYTES
                into = memory[number % count]
                pending = self._file.start_read_extents(
                    firsts * PAGE_BYTES, counts * PAGE_BYTES, into[head : head + size]
                )
                yield pending, (into, size, firsts, counts)

        return landed(starts(), count)


def shared_memory_bytes(rows: int, row_bytes: int) -> int:
    """What reading so many shared rows takes, at most."""
    pages = rows * (row_bytes // PAGE_BYTES + 2) * PAGE_BYTES
    blocks = _BLOCKS * (min(READ_BLOCK_BYTES, pages) + int(round_up(row_bytes)))
    # Per row: its first and last page, its offset, and what becomes of it.
    return blocks + 40 * rows


# Packs


@dataclass(frozen=True)
class Predicted:
    """What all batches read, each once."""

    chunk_bytes: Count
    segment_bytes: Count
    """What pages of segments take, each once for a batch."""
    wanted_bytes: Count
    """What rows that are not cached take."""

    @property
    def bytes(self) -> int:
        return self.chunk_bytes + self.segment_bytes

    @property
    def amplification(self) -> float:
        return self.bytes / self.wanted_bytes if self.wanted_bytes else 1.0


class Pack(Closing):
    """A finished pack. Thread-safe, apart from `close`."""

    def __init__(self, disk: Disk, folder: Path) -> None:
        """StoreError where it was never finished; CorruptError where it is damaged."""
        header = _read_header(folder / HEADER)
        self.folder = folder
        self.row_bytes = header.row_bytes
        self.packed = header.packed
        """Whether batches have chunks."""
        self.bytes = _bytes_of(header)
        self.segments = header.segments
        """Where batches share rows; None where every batch has its own."""
        offsets = [] if self.segments is None else self.segments.offsets.tolist()
        self._segment_offsets: list[int] = offsets
        self.predicted = header.predicted
        """What all batches read, once each."""
        self._index = _load(disk, folder, header.index)
        self.cached: Ids = _load(disk, folder, header.cached)
        """Nodes whose rows belong into memory, ascending: their places are slots."""
        self._check_row_bytes(folder, header)
        self.device: Ids = self.cached[:0]
        """Nodes whose rows belong onto the device, ascending: their places are its slots."""
        self._on_device = np.empty(0, np.bool_)
        if header.device is not None:
            self.device = _load(disk, folder, header.device)
            self._on_device = mark(self.cached, self.device)
            self.cached = self.cached[~self._on_device]
        self._tables = _opened(disk, folder / TABLES, header.table_bytes)
        self._chunks = _opened(disk, folder / CHUNKS, header.chunk_bytes)

    def _check_row_bytes(self, folder: Path, header: _Header) -> None:
        """No checksum covers them: too large, they would ask for memory for impossible rows."""
        chunks = self._index["packed"] if self.packed else self._index["packed"][-1:]
        most = max(len(self.cached), int(chunks.max(initial=0)))
        if most * self.row_bytes > header.chunk_bytes:
            raise CorruptError(
                f"{folder / HEADER}: {most} rows of {self.row_bytes} B each are not in the "
                f"{header.chunk_bytes} B of {CHUNKS}"
            )

    def __len__(self) -> int:
        """Batches."""
        return len(self._index) - 1

    @property
    def counts(self) -> tuple[Ids, Ids, Ids]:
        """Per batch: rows that are cached, that are packed, and that it shares."""
        index = self._index[:-1]
        return index["cached"].copy(), index["packed"].copy(), index["shared"].copy()

    def table(self, t: int) -> Table:
        return read_table(self._tables, t, self._index[t])

    def blocks(self, t: int) -> Iterator[NDArray[np.uint8]]:
        """The rows of batch t, one after the other, in blocks that may end within a row.

        The following blocks are read while one is used, which is overwritten then. CorruptError
        after the last one where any of them was not as it was written.
        """
        return self._blocks(t, f"batch {t}")

    def _blocks(self, t: int, name: str) -> Iterator[NDArray[np.uint8]]:
        row = self._index[t]
        offset = int(row["chunk_offset"])
        size = int(round_up(row["packed"] * self.row_bytes))
        checksums = np.zeros(-(-size // PIECE_BYTES), "<u8")
        piece = 0
        for block in read_blocks(self._chunks, offset, offset + size):
            for begin in range(0, len(block), PIECE_BYTES):
                part = block[begin : begin + PIECE_BYTES]
                checksums[piece] = xxh3_64_intdigest(part.data)
                piece += 1
            yield block
        if chunk_checksum(checksums) != row["chunk_checksum"]:
            raise CorruptError(
                f"{self._chunks.path}: {name}: {size} B at {offset} differ from their checksum"
            )

    def shared_blocks(self, t: int, table: Table) -> Iterator[Block]:
        """What batch t, whose table it is, reads of its segment, in blocks with their rows.

        As `blocks`.
        """
        if self.segments is None or not len(table.shared_rows):
            return
        offset = self._segment_offsets[t // self.segments.batches]
        shared = SharedRows(
            self._chunks, offset, table.shared_positions, table.shared_rows, self.row_bytes
        )
        yield from shared.blocks()
        if shared.checksum != self._index[t]["shared_checksum"]:
            raise CorruptError(
                f"{self._chunks.path}: batch {t}: {shared.bytes} B of its segment at {offset} "
                "differ from their checksum"
            )

    def cache_blocks(self) -> Iterator[tuple[StoredRows, StoredRows]]:
        """Rows of `cached` and of `device` as they are stored, in their order, some at a time:
        [some, row bytes] each. The next ones overwrite them."""
        first = 0
        for whole in self._cached_rows():
            chosen = self._on_device[first : first + len(whole)]
            yield (whole[~chosen], whole[chosen]) if len(chosen) else (whole, whole[:0])
            first += len(whole)

    def _cached_rows(self) -> Iterator[StoredRows]:
        """Rows of both `cached` and `device`, in ascending order: [some, row bytes] at a time."""
        left = (len(self.cached) + len(self.device)) * self.row_bytes
        begun = np.empty(0, np.uint8)  # of a row that goes on in the next block
        for block in self._blocks(len(self), "the cache"):
            data = block[:left]
            left -= len(data)
            if len(begun):
                missing = self.row_bytes - len(begun)
                begun, data = np.concatenate([begun, data[:missing]]), data[missing:]
                if len(begun) < self.row_bytes:
                    continue
                yield begun.reshape(1, -1)
            ends = len(data) // self.row_bytes * self.row_bytes
            yield data[:ends].reshape(-1, self.row_bytes)
            begun = data[ends:].copy()

    def check(self, progress: Progress = SILENT) -> None:
        """Reads all of it; CorruptError where a byte differs."""
        cache = int(round_up(self._index[-1]["packed"] * self.row_bytes))
        progress.stage("check pack", self._tables.size + self.predicted.bytes + cache)
        for t in range(len(self)):
            table = self.table(t)
            progress.advance(int(table_sizes(self._index[t])))
            if self.packed:
                for block in self.blocks(t):
                    progress.advance(len(block))
            for shared in self.shared_blocks(t, table):
                progress.advance(shared.read_bytes)
        for block in self._blocks(len(self), "the cache"):
            progress.advance(len(block))

    def close(self) -> None:
        self._tables.close()
        self._chunks.close()


def pack_sizes(folder: Path) -> dict[str, int]:
    """The files of a finished pack that its header speaks of, and their bytes."""
    header = _read_header(folder / HEADER)
    arrays = (header.index, header.cached, header.device)
    return {
        **{array.file: array.file_bytes for array in arrays if array is not None},
        TABLES: header.table_bytes,
        CHUNKS: header.chunk_bytes,
    }


def check_pack(disk: Disk, folder: Path, progress: Progress) -> None:
    """CorruptError where a byte of it differs."""
    with Pack(disk, folder) as pack:
        pack.check(progress)


def pack_bytes(folder: Path) -> int:
    """What a finished pack takes on disk: tables, chunks and segments."""
    return _bytes_of(_read_header(folder / HEADER))


def _bytes_of(header: _Header) -> int:
    return header.table_bytes + header.chunk_bytes


def block_bytes(chunk_bytes: int) -> int:
    """Memory that reading a chunk of this size takes."""
    return 4 * min(READ_BLOCK_BYTES, int(round_up(chunk_bytes)))


@dataclass(frozen=True)
class _Header:
    """pack.json, beside its format and version."""

    row_bytes: Annotated[int, AtLeast(1)]
    piece_bytes: Count
    packed: bool
    table_bytes: Count
    chunk_bytes: Count
    segments: Segments | None
    predicted: Predicted
    index: ArrayEntry
    cached: ArrayEntry
    device: ArrayEntry | None = None


def _read_header(path: Path) -> _Header:
    try:
        data = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        raise StoreError(f"{path.parent}: not a pack, or one that was never finished") from None
    header = unseal_as(_Header, data, str(path), PACK_FORMAT, PACK_VERSION)
    if header.piece_bytes != PIECE_BYTES:
        raise StoreError(f"{path}: pieces of {header.piece_bytes} B, not {PIECE_BYTES}")
    header.index.check_is(f"{path}: index", INDEX, ROW)
    header.cached.check_is(f"{path}: cached", CACHED, _IDS)
    if header.device is not None:
        header.device.check_is(f"{path}: device", DEVICE, _IDS)
    return header


def _load(disk: Disk, folder: Path, entry: ArrayEntry) -> NDArray[Any]:
    with disk.open(folder / entry.file) as file:
        data = file.read(0, min(file.size, entry.file_bytes))
    if piece_checksums([data]) != entry.checksums:
        raise CorruptError(f"{folder / entry.file}: differs from its checksum")
    return data[entry.data_offset :].view(entry.dtype)


def _opened(disk: Disk, path: Path, size: int) -> File:
    file = disk.open(path)
    if file.size != size:
        raise CorruptError(f"{path}: {file.size} B, but {HEADER} says {size} B")
    return file


def mark(cached: Ids, device: Ids) -> NDArray[np.bool_]:
    """Which of the cached nodes are on the device."""
    chosen = np.zeros(len(cached), bool)
    chosen[np.searchsorted(cached, device)] = True
    return chosen


def chunk_checksum(pieces: Checksums) -> int:
    """The checksum of a chunk, from those of its pieces."""
    return xxh3_64_intdigest(np.ascontiguousarray(pieces, "<u8").data)
