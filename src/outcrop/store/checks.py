"""Checks: bytes of an array's file -> compared with their checksums on the way to their use.

A piece is compared once while a store is open, unless its file has changed since.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from outcrop.disk import Disk, File, Ints, Pending, aligned_empty, given, landed, read_blocks
from outcrop.errors import CorruptError
from outcrop.progress import SILENT, Progress
from outcrop.store.format import PIECE_BYTES, ArrayEntry

Bytes = NDArray[np.uint8]

# Four of them are in flight: that is all the memory that a check takes.
_BLOCK_BYTES = 1 << 20
CHECK_BYTES = 4 * _BLOCK_BYTES
# Read at a time while an array is loaded: one is hashed while two are on their way.
_LOAD_BYTES = 16 << 20
_LOADS_AHEAD = 2


class ArrayChecks:
    """The file of one array, and which of its pieces are known to be good. Thread-safe."""

    def __init__(self, folder: Path, entry: ArrayEntry, advice: str = "") -> None:
        """`advice`: what to do where it is damaged."""
        # Constant after construction
        self.entry = entry
        self.path = folder / entry.file
        self._advice = advice
        self.on_read = False
        """Whether rows that are read here and there have their pieces compared first."""
        # Guarded by _lock
        self._good = np.zeros(len(entry.checksums), bool)
        self._state = self._file_state()
        self._lock = threading.Lock()

    # Read whole

    def load(self, disk: Disk) -> NDArray[Any]:
        """The array in memory of its own, read around the page cache; CorruptError if damaged."""
        out = aligned_empty(self.entry.shape, self.entry.dtype)
        data = out.reshape(-1).view(np.uint8)

        def starts() -> Iterator[tuple[Pending, Bytes]]:
            for begin in range(0, len(data), _LOAD_BYTES):
                part = data[begin : begin + _LOAD_BYTES]
                offset = self.entry.data_offset + begin
                yield file.start_read_extents([offset], [len(part)], part), part

        with disk.open(self.path) as file:
            sweep = self.sweep(file, self.entry.data_offset)
            for part in landed(starts(), 1 + _LOADS_AHEAD):
                sweep.feed(part)
            sweep.settle()
        return given(out)

    def blocks(self, disk: Disk) -> Iterator[Bytes]:
        """The array's bytes, as `read_blocks` gives them; CorruptError before the end if damaged.

        What is made of them is good only once the last one was taken.
        """
        with disk.open(self.path) as file:
            sweep = self.sweep(file, self.entry.data_offset)
            for block in read_blocks(file, self.entry.data_offset, self.entry.file_bytes):
                sweep.feed(block)
                yield block
            sweep.settle()

    def sweep(self, file: File, start: int) -> Sweep:
        """Compares what is read of `file`, which is this one, in sequence from byte `start` on."""
        return Sweep(self, file, start)

    # Read here and there

    def check(self, disk: Disk, progress: Progress = SILENT) -> None:
        """Compares all pieces that were not compared yet; CorruptError if one is damaged."""
        self._check(disk, np.arange(len(self._good)), progress)

    def check_rows(self, disk: Disk, ids: Ints, row_bytes: int) -> None:
        """Compares the pieces that these rows lie in."""
        begins = self.entry.data_offset + np.asarray(ids, np.int64) * row_bytes
        touched = np.zeros(len(self._good), bool)
        for places in (begins, begins + row_bytes - 1):
            # An id that does not exist is the reader's to refuse.
            touched[np.clip(places // PIECE_BYTES, 0, len(touched) - 1)] = True
        self._check(disk, np.flatnonzero(touched), SILENT)

    def _check(self, disk: Disk, pieces: NDArray[np.int64], progress: Progress) -> None:
        with self._lock:
            self._forget_if_changed()
            missing = pieces[~self._good[pieces]].tolist()
            if not missing:
                return
            progress.stage(f"check {self.path.stem}", sum(map(self._piece_bytes, missing)))
            with disk.open(self.path) as file:
                for piece in missing:
                    found = xxhash.xxh3_128()
                    self.read_into(
                        found, file, piece * PIECE_BYTES, self.piece_end(piece), progress
                    )
                    self._compare(piece, found)

    def _forget_if_changed(self) -> None:
        state = self._file_state()
        if state != self._state:
            self._state = state
            self._good[:] = False

    def _file_state(self) -> tuple[int, int, int]:
        found = os.stat(self.path)
        return found.st_ino, found.st_size, found.st_mtime_ns

    # Pieces

    def piece_end(self, piece: int) -> int:
        return min((piece + 1) * PIECE_BYTES, self.entry.file_bytes)

    def _piece_bytes(self, piece: int) -> int:
        return self.piece_end(piece) - piece * PIECE_BYTES

    @staticmethod
    def read_into(
        hasher: xxhash.xxh3_128, file: File, begin: int, end: int, progress: Progress = SILENT
    ) -> None:
        """Bytes [begin, end) of the file -> the hash."""
        for block in read_blocks(file, begin, end, _BLOCK_BYTES):
            hasher.update(block.data)
            progress.advance(len(block))

    def compare(self, piece: int, found: xxhash.xxh3_128) -> None:
        """CorruptError where it is not the piece's; else the piece is known to be good."""
        with self._lock:
            self._forget_if_changed()
            self._compare(piece, found)

    def _compare(self, piece: int, found: xxhash.xxh3_128) -> None:
        if found.hexdigest() != self.entry.checksums[piece]:
            first, last = piece * PIECE_BYTES, self.piece_end(piece) - 1
            raise CorruptError(
                f"{self.path}: piece {piece} (bytes {first} to {last}) differs from its checksum"
                + (self._advice and f"; {self._advice}")
            )
        self._good[piece] = True


class Sweep:
    """Bytes of a file in sequence -> compared, piece by piece. Not thread-safe."""

    def __init__(self, checks: ArrayChecks, file: File, start: int) -> None:
        """What the first piece has before `start` is read here."""
        self._checks = checks
        self._file = file
        self._position = start
        self._hash = xxhash.xxh3_128()
        checks.read_into(self._hash, file, start - start % PIECE_BYTES, start)

    def feed(self, data: Bytes) -> None:
        """The next bytes; CorruptError where a piece that ends in them is damaged."""
        while len(data):
            taken = data[: PIECE_BYTES - self._position % PIECE_BYTES]
            self._hash.update(taken.data)
            self._position += len(taken)
            if self._position % PIECE_BYTES == 0:
                self._checks.compare(self._position // PIECE_BYTES - 1, self._hash)
                self._hash = xxhash.xxh3_128()
            data = data[len(taken) :]

    def settle(self) -> None:
        """All that was fed is good, or CorruptError; what is left of its last piece is read."""
        piece = self._position // PIECE_BYTES
        if self._position % PIECE_BYTES:
            whole = self._hash.copy()
            self._checks.read_into(whole, self._file, self._position, self._checks.piece_end(piece))
            self._checks.compare(piece, whole)
