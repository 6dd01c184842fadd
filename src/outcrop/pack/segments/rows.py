"""Shared rows: positions in a segment -> its pages, read in blocks, with the rows that each has."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from outcrop import _core
from outcrop.cache.tiers import Rows
from outcrop.disk import File, Pending, aligned_empty
from outcrop.pack.segments.pages import PageRuns
from outcrop.pack.tables import PAGE_BYTES, round_up
from outcrop.sample.seeds import Ids
from outcrop.store.arrays import READ_BLOCK_BYTES

# In flight at a time; store/arrays.py has as many of sequential reads.
_BLOCKS = 4


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
        flying: deque[tuple[Pending, NDArray[np.uint8], int, Ids, Ids]] = deque()
        for number, (firsts, counts) in enumerate(self._runs.blocks(room // PAGE_BYTES)):
            firsts = firsts + self._first_page
            size = int(counts.sum()) * PAGE_BYTES
            into = memory[number % count]
            pending = self._file.start_read_extents(
                firsts * PAGE_BYTES, counts * PAGE_BYTES, into[head : head + size]
            )
            flying.append((pending, into, size, firsts, counts))
            if len(flying) == count:
                yield _landed(flying)
        while flying:
            yield _landed(flying)


def _landed(
    flying: deque[tuple[Pending, NDArray[np.uint8], int, Ids, Ids]],
) -> tuple[NDArray[np.uint8], int, Ids, Ids]:
    pending, memory, size, firsts, counts = flying.popleft()
    pending.wait()
    return memory, size, firsts, counts


def shared_memory_bytes(rows: int, row_bytes: int) -> int:
    """What reading so many shared rows takes, at most."""
    pages = rows * (row_bytes // PAGE_BYTES + 2) * PAGE_BYTES
    blocks = _BLOCKS * (min(READ_BLOCK_BYTES, pages) + int(round_up(row_bytes)))
    # Per row: its first and last page, its offset, and what becomes of it.
    return blocks + 40 * rows
