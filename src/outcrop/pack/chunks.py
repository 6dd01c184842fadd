"""Chunks: a plan, packed -> a folder; read back as tables, and as blocks of a chunk's bytes.

docs/format.md has the bytes.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from xxhash import xxh3_64_intdigest

from outcrop.disk import Disk, File, aligned_empty
from outcrop.errors import CorruptError, StoreError
from outcrop.pack.partial import mark
from outcrop.pack.pieces import PIECE_BYTES, Checksums, chunk_checksum
from outcrop.pack.plan import CHUNKS, IDS, PLACES, PLAN, ROW, TABLES, PackPlan
from outcrop.pack.predict import Predicted, predict
from outcrop.pack.segments.layout import Segments
from outcrop.pack.segments.order import order_segments
from outcrop.pack.segments.rows import Block, SharedRows
from outcrop.pack.tables import Table, read_table, round_up, table_sizes
from outcrop.progress import SILENT, Progress
from outcrop.sample.seeds import Ids
from outcrop.schema import AtLeast, Count
from outcrop.store.arrays import READ_BLOCK_BYTES, ArrayWriter, PieceHasher, read_blocks
from outcrop.store.format import ArrayEntry, seal, unseal, unseal_as
from outcrop.store.locks import sync_directory, write_synced

PACK_FORMAT, PACK_VERSION = "outcrop-pack", 2
_HEADER, _INDEX, _CACHED, _DEVICE = "pack.json", "index.npy", "cached.npy", "device.npy"
_IDS = np.dtype("<i8")

Fill = Callable[[Disk, Path, PackPlan], Checksums]
StoredRows = NDArray[np.uint8]


def write_pack(
    disk: Disk, folder: Path, plan: PackPlan, fill: Fill, progress: Progress = SILENT
) -> None:
    """Makes the folder a pack; `fill` makes the chunks. On return all has reached the device.

    Where the file of chunks exists, an earlier call was interrupted, and `fill` goes on.
    """
    if (folder / CHUNKS).exists():
        with disk.open_for_update(folder / CHUNKS) as file:
            file.reserve(plan.reserved_bytes)  # killed before that, it may be shorter
    else:
        disk.create(folder / CHUNKS, plan.reserved_bytes).close()
    checksums = fill(disk, folder, plan)
    index = plan.index[: plan.batches + 1].copy()
    index["chunk_checksum"] = checksums[: len(index)]
    if plan.segments is not None:
        shared = order_segments(disk, folder, plan, checksums, progress)
        index["shared_checksum"][:-1] = shared
    cached, device = _cached_ids(disk, folder, plan)
    header = {
        "format": PACK_FORMAT,
        "version": PACK_VERSION,
        "row_bytes": plan.row_bytes,
        "piece_bytes": PIECE_BYTES,
        "packed": plan.packed,
        "table_bytes": plan.table_bytes,
        "chunk_bytes": plan.chunk_bytes,
        "segments": None if plan.segments is None else plan.segments.to_json(),
        "predicted": asdict(predict(plan)),
        "index": _write_array(disk, folder, _INDEX, index),
        "cached": _write_array(disk, folder, _CACHED, cached),
    }
    if len(device):
        header["device"] = _write_array(disk, folder, _DEVICE, device)
    write_synced(folder / _HEADER, seal(header))
    sync_directory(folder)  # before what it was made from goes
    tidy_finished(folder)


def tidy_finished(folder: Path) -> bool:
    """Whether the pack is finished: then what only its making needs is removed."""
    try:
        unseal((folder / _HEADER).read_bytes(), str(folder / _HEADER))
    except (FileNotFoundError, CorruptError):  # or its writer was killed
        return False
    for path in folder.iterdir():
        if path.name in (IDS, PLACES, PLAN) or path.name.lstrip(".").startswith("progress"):
            os.unlink(path)
    return True


def _cached_ids(disk: Disk, folder: Path, plan: PackPlan) -> tuple[Ids, Ids]:
    """All cached ids, and those of the device."""
    with disk.open(folder / IDS) as file:
        begin, count = int(plan.first_ids[plan.batches]), int(plan.rows[plan.batches])
        ids = file.read(8 * begin, 8 * (count + plan.device_rows)).view(np.int64)
        return ids[:count], ids[count:]


def _write_array(disk: Disk, folder: Path, name: str, array: NDArray[Any]) -> dict[str, Any]:
    (folder / name).unlink(missing_ok=True)  # of a call that was interrupted here
    with ArrayWriter(disk, folder, name, array.dtype, rows=len(array)) as writer:
        writer.append(array)
        return writer.close().to_json()


class Pack(AbstractContextManager["Pack"]):
    """A finished pack. Thread-safe, apart from `close`."""

    def __init__(self, disk: Disk, folder: Path) -> None:
        """StoreError where it was never finished; CorruptError where it is damaged."""
        header = _read_header(folder / _HEADER)
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
                f"{folder / _HEADER}: {most} rows of {self.row_bytes} B each are not in the "
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

    def load_cache(self, to_device: Callable[[StoredRows], None] | None = None) -> StoredRows:
        """The rows of `cached`, as they are stored, in memory of their own.

        `to_device` is given those of `device`, [some, row bytes] at a time, in their order.
        """
        rows = aligned_empty(len(self.cached) * self.row_bytes)
        done, first = 0, 0
        for whole in self._cached_rows():
            kept = whole
            if len(self.device):
                chosen = self._on_device[first : first + len(whole)]
                kept = whole[~chosen]
                if to_device is not None:
                    to_device(whole[chosen])
            rows[done : done + kept.size] = kept.reshape(-1)
            done += kept.size
            first += len(whole)
        return rows

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

    def __exit__(self, *_: object) -> None:
        self.close()


def pack_sizes(folder: Path) -> dict[str, int]:
    """The files of a finished pack that its header speaks of, and their bytes."""
    header = _read_header(folder / _HEADER)
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
    return _bytes_of(_read_header(folder / _HEADER))


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
    header.index.check_is(f"{path}: index", _INDEX, ROW)
    header.cached.check_is(f"{path}: cached", _CACHED, _IDS)
    if header.device is not None:
        header.device.check_is(f"{path}: device", _DEVICE, _IDS)
    return header


def _load(disk: Disk, folder: Path, entry: ArrayEntry) -> NDArray[Any]:
    with disk.open(folder / entry.file) as file:
        data = file.read(0, min(file.size, entry.file_bytes))
    hasher = PieceHasher()
    hasher.update(data)
    if hasher.checksums() != entry.checksums:
        raise CorruptError(f"{folder / entry.file}: differs from its checksum")
    return data[entry.data_offset :].view(entry.dtype)


def _opened(disk: Disk, path: Path, size: int) -> File:
    file = disk.open(path)
    if file.size != size:
        raise CorruptError(f"{path}: {file.size} B, but {_HEADER} says {size} B")
    return file
