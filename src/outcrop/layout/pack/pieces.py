"""Pieces: rows -> chunks of one file, in pieces of one size that are hashed and written when full.

The checksum of a chunk is that of its pieces' checksums, so that pieces may come in any order and a
packing that was interrupted need not read back what it has written.
"""

from __future__ import annotations

import itertools
from collections import deque

import numpy as np
from numpy.typing import NDArray
from xxhash import xxh3_64_intdigest

from outcrop import _core
from outcrop.disk import PAGE_BYTES, File, Pending, aligned_empty
from outcrop.layout.pack.plan import PackPlan
from outcrop.layout.pack.reader import PIECE_BYTES, Checksums, chunk_checksum
from outcrop.progress import SILENT, Progress
from outcrop.sample.seeds import Ids

# Beside one for each open chunk: pieces on their way to the drive; 8 MiB fill it.
SPARE_SLOTS = 32


class PieceWriter:
    """Chunks [first, last) of a plan, open at once. Not thread-safe."""

    def __init__(
        self,
        file: File,
        plan: PackPlan,
        first: int,
        last: int,
        slots: int,
        progress: Progress = SILENT,
    ) -> None:
        """`slots`: at least one more than there are chunks."""
        self._file = file
        self._progress = progress
        self._first, self._last = first, last
        self._offsets = plan.index["chunk_offset"][first:last].tolist()
        pieces = -(-plan.rows[first:last] * plan.row_bytes // PIECE_BYTES)
        self._first_piece = np.concatenate([[0], np.cumsum(pieces)])
        self.checksums: Checksums = np.zeros(int(self._first_piece[-1]), "<u8")
        """One for each piece of each chunk."""
        self._memory = aligned_empty((slots, PIECE_BYTES))
        self._scatter = _core.Scatter(
            last - first, plan.row_bytes, PIECE_BYTES, self._memory.reshape(-1)
        )
        self._row_bytes = plan.row_bytes
        self._flying: deque[tuple[Pending, int]] = deque()

    def append(
        self, rows: NDArray[np.uint8], first_row: int, chunks: Ids, counts: Ids, ids: Ids
    ) -> None:
        """Rows of a partition -> the ends of chunks: counts[i] of `ids` to chunks[i], and so on."""
        local = chunks - self._first
        while not self._scatter.append(rows, first_row, local, counts, ids):
            self._write_full()
            if self._flying:
                self._land(1)
        self._write_full()

    def resume(self, chunk: int, rows: int) -> tuple[int, int]:
        """The chunk has `rows` rows, all but its last piece written -> rows to append anew.

        They are [first, rows) of the chunk.
        """
        piece = rows * self._row_bytes // PIECE_BYTES
        first, skip = divmod(piece * PIECE_BYTES, self._row_bytes)
        self._scatter.resume(chunk - self._first, piece, skip)
        return first, rows

    def finish(self) -> Checksums:
        """What is left of all chunks -> the checksum of each, once all is written."""
        for chunk in range(self._last - self._first):
            piece = self._scatter.finish(chunk, PAGE_BYTES)
            if piece[3]:
                self._write(piece)
                if len(self._flying) >= SPARE_SLOTS:
                    self._land(1)
        self.settle()
        bounds = self._first_piece.tolist()
        return np.array(
            [
                chunk_checksum(self.checksums[begin:end])
                for begin, end in itertools.pairwise(bounds)
            ],
            "<u8",
        )

    def settle(self) -> None:
        """Waits for what is in flight. Not yet synced."""
        self._land(len(self._flying))

    def _write_full(self) -> None:
        for piece in self._scatter.take_full():
            self._write(piece)
        while self._flying and self._flying[0][0].done:
            self._land(1)

    def _write(self, piece: tuple[int, int, int, int]) -> None:
        chunk, number, slot, size = piece
        data = self._memory[slot, :size]
        self.checksums[self._first_piece[chunk] + number] = xxh3_64_intdigest(data.data)
        offset = self._offsets[chunk] + number * PIECE_BYTES
        self._flying.append((self._file.start_write_extents([offset], [size], data), slot))

    def _land(self, count: int) -> None:
        for _ in range(count):
            pending, slot = self._flying.popleft()
            pending.wait()
            self._scatter.release(slot)
            self._progress.advance(PIECE_BYTES)
