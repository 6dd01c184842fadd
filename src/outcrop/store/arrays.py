"""Arrays on disk: chunks of rows -> a .npy file with checksums; and files read back in pieces."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from outcrop.disk import Disk, File, Pending, aligned_empty, read_blocks
from outcrop.errors import StoreError, WriteError
from outcrop.store.format import HEADER_BYTES, PIECE_BYTES, ArrayEntry, npy_header, read_npy_header

# Appends below 256 KiB cost a request each; 1 MiB is where the drive's sequential speed begins.
WRITE_BUFFER_BYTES = 1 << 20
# How far ahead of its end a file of unknown length is allocated: as much as it has, within these.
_LEAST_RESERVE_BYTES = 4 << 20
_MOST_RESERVE_BYTES = 256 << 20


class PieceHasher:
    """Bytes in order -> one checksum per piece of PIECE_BYTES."""

    def __init__(self) -> None:
        self._hash = xxhash.xxh3_128()
        self._room = PIECE_BYTES
        self._done: list[str] = []

    def update(self, data: NDArray[np.uint8]) -> None:
        while len(data):
            taken = data[: self._room]
            self._hash.update(taken.data)
            self._room -= len(taken)
            data = data[len(taken) :]
            if self._room == 0:
                self._finish_piece()

    def _finish_piece(self) -> None:
        self._done.append(self._hash.hexdigest())
        self._hash = xxhash.xxh3_128()
        self._room = PIECE_BYTES

    def checksums(self) -> tuple[str, ...]:
        """The checksums of everything so far; the last piece may be short."""
        if self._room < PIECE_BYTES:
            self._finish_piece()
        return tuple(self._done)


def piece_checksums(blocks: Iterable[NDArray[np.uint8]]) -> tuple[str, ...]:
    """All bytes of a file, in order -> the checksums of its pieces."""
    hasher = PieceHasher()
    for block in blocks:
        hasher.update(block)
    return hasher.checksums()


class Appender:
    """Appends bytes to a new file; two buffers, so that writing overlaps with making."""

    def __init__(
        self,
        disk: Disk,
        path: Path,
        size: int | None = None,
        buffer_bytes: int = WRITE_BUFFER_BYTES,
    ) -> None:
        """`size`: of the whole file, where it is known; allocated now, so a full disk shows now."""
        path.parent.mkdir(parents=True, exist_ok=True)
        self.file: File = disk.create(path, size or 0)
        self.bytes = 0
        """Appended so far."""
        self._reserved = size or 0
        self._buffers = [aligned_empty(buffer_bytes) for _ in range(2)]
        self._pending: list[Pending | None] = [None, None]
        self._current = 0
        self._filled = 0

    def append(self, array: NDArray[Any]) -> None:
        data = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        while len(data):
            buffer = self._buffers[self._current]
            taken = data[: len(buffer) - self._filled]
            buffer[self._filled : self._filled + len(taken)] = taken
            self._filled += len(taken)
            self.bytes += len(taken)
            data = data[len(taken) :]
            if self._filled == len(buffer):
                self._send()

    def _send(self) -> None:
        """Sends the current buffer, and waits for the other one, which is used next."""
        start = self.bytes - self._filled
        if self.bytes > self._reserved:
            self._reserve()
        full = self._buffers[self._current][: self._filled]
        self._pending[self._current] = self.file.start_write_extents([start], [len(full)], full)
        self._filled = 0
        self._current ^= 1
        self._wait(self._current)

    def _reserve(self) -> None:
        ahead = min(max(self.bytes, _LEAST_RESERVE_BYTES), _MOST_RESERVE_BYTES)
        try:
            self.file.reserve(self.bytes + ahead)
            self._reserved = self.bytes + ahead
        except WriteError:  # what lies ahead may never be needed
            self.file.reserve(self.bytes)
            self._reserved = self.bytes

    def _wait(self, buffer: int) -> None:
        pending, self._pending[buffer] = self._pending[buffer], None
        if pending is not None:
            pending.wait()

    def flush(self) -> None:
        """Everything so far is in the file. Later writes are slower if it ends within a page."""
        if self._filled:
            self._send()
        for buffer in (0, 1):
            self._wait(buffer)

    def finish(self) -> None:
        """Everything is in the file, which has its final length. Not yet synced."""
        self.flush()
        self._buffers = []
        if self._reserved != self.bytes:
            self.file.truncate(self.bytes)

    def close(self) -> None:
        self._pending = [None, None]  # a Pending that is dropped first waits for its transfer
        self.file.close()


class ArrayWriter:
    """Appends chunks to a .npy file and hashes them on the way.

    Where the number of rows is not known at first, the header is written at the end.
    """

    def __init__(
        self,
        disk: Disk,
        root: Path,
        file: str,
        dtype: np.dtype[Any],
        row_shape: tuple[int, ...] = (),
        rows: int | None = None,
    ) -> None:
        self._name = file
        self._dtype = np.dtype(dtype)
        self._row_shape = row_shape
        self._row_bytes = self._dtype.itemsize * int(np.prod(row_shape, dtype=np.int64))
        self._rows = rows
        size = None if rows is None else HEADER_BYTES + rows * self._row_bytes
        self._appender = Appender(disk, root / file, size)
        self._hasher = PieceHasher()
        self._append_bytes(self._header(rows or 0))

    def _header(self, rows: int) -> NDArray[np.uint8]:
        return np.frombuffer(npy_header(self._dtype, (rows, *self._row_shape)), dtype=np.uint8)

    def append(self, chunk: NDArray[Any]) -> None:
        """Rows of the array's dtype."""
        assert chunk.dtype == self._dtype and chunk.shape[1:] == self._row_shape
        self._append_bytes(np.ascontiguousarray(chunk).reshape(-1).view(np.uint8))

    def _append_bytes(self, data: NDArray[np.uint8]) -> None:
        self._appender.append(data)
        self._hasher.update(data)

    def close(self) -> ArrayEntry:
        """Syncs the file; the entry describes it."""
        size = self._appender.bytes
        rows, rest = divmod(size - HEADER_BYTES, self._row_bytes)
        assert rest == 0 and self._rows in (None, rows), f"{self._name}: {rows} rows"
        self._appender.finish()
        file = self._appender.file
        checksums = self._hasher.checksums()
        if self._rows is None:
            file.write(0, self._header(rows))
            first = piece_checksums(read_blocks(file, 0, min(size, PIECE_BYTES)))
            checksums = (*first, *checksums[1:])
        file.sync()
        self._appender.close()
        shape = (rows, *self._row_shape)
        return ArrayEntry(self._name, self._dtype, shape, HEADER_BYTES, size, checksums)

    def __enter__(self) -> ArrayWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self._appender.close()


def adopt_array(disk: Disk, path: Path) -> ArrayEntry:
    """An existing .npy file, left where it is: hashed once, then known by size and mtime."""
    path = path.absolute()
    header = read_npy_header(path)
    if header.fortran_order:
        raise StoreError(f"{path}: is in Fortran order; what is adopted must be in C order")
    before = os.stat(path)
    with disk.open(path) as file:
        checksums = piece_checksums(read_blocks(file, 0, before.st_size))
    return ArrayEntry(
        file=str(path),
        dtype=header.dtype,
        shape=header.shape,
        data_offset=header.data_offset,
        file_bytes=before.st_size,
        checksums=checksums,
        adopted_mtime_ns=before.st_mtime_ns,
    )


def map_array(
    root: Path, entry: ArrayEntry, *, random_access: bool = False, private: bool = False
) -> NDArray[Any]:
    """The array as a read-only memory map. `root / entry.file` is the file, adopted or not.

    `random_access`: no readahead, since it would read pages that nobody wants.
    `private`: writable, but what is written stays in memory.
    """
    if 0 in entry.shape:
        return np.empty(entry.shape, dtype=entry.dtype)
    with (root / entry.file).open("rb") as file:
        access = mmap.ACCESS_COPY if private else mmap.ACCESS_READ
        memory = mmap.mmap(file.fileno(), 0, access=access)
    if random_access:
        memory.madvise(mmap.MADV_RANDOM)
    count = int(np.prod(entry.shape, dtype=np.int64))
    flat = np.frombuffer(memory, entry.dtype, count, entry.data_offset)
    return flat.reshape(entry.shape)
