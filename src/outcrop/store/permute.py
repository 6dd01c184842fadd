"""Permute: the rows of an array, and where each goes -> the rows in that order, out of core.

All that is read and written is in sequence. Where memory holds a large enough part of the result,
the rows are swept over once for each part; else they are dealt out to files first, one for each
part, by as many sweeps as there is memory for files, and each is read back and put in order.
"""

from __future__ import annotations

import math
import resource
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from outcrop import _core
from outcrop.disk import READ_BLOCK_BYTES, Disk, File, aligned_empty, read_blocks
from outcrop.progress import SILENT, Progress
from outcrop.store.arrays import Appender
from outcrop.store.checks import ArrayChecks

Bytes = NDArray[np.uint8]
Places = NDArray[np.uint32] | NDArray[np.uint64]
"""Each row of the source -> its row in the result: 4 bytes each, 8 beyond 2^32 rows."""

LEAST_PERMUTE_BYTES = 8 << 20
# What is dealt out is written so much at a time; smaller writes cost a request each.
_ROWS_BUFFER_BYTES = 256 << 10
_PLACES_BUFFER_BYTES = 16 << 10
_FILE_BYTES = 2 * (_ROWS_BUFFER_BYTES + _PLACES_BUFFER_BYTES)


def places_dtype(count: int) -> np.dtype[Any]:
    """The type of `Places` of so many rows."""
    return np.dtype(np.uint32 if count <= 1 << 32 else np.uint64)


@dataclass(frozen=True)
class PermutePlan:
    """How the rows of an array are put into another order with so much memory."""

    rows: int
    row_bytes: int
    part_rows: int
    """Rows of the result that are in memory at a time."""
    files: int
    """Parts that are dealt out to files by one sweep; 0: parts are filled by sweeps themselves."""

    @classmethod
    def of(cls, rows: int, row_bytes: int, memory: int) -> PermutePlan:
        """The way that moves fewer bytes: by files all are written and read once more."""
        memory = max(memory, LEAST_PERMUTE_BYTES)
        part_rows = max(1, memory // row_bytes)
        parts = math.ceil(rows / part_rows)
        # A file takes a descriptor; half of all are left to the rest of the process.
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 4
        files = min(memory // _FILE_BYTES, most, parts)
        by_files = math.ceil(parts / files) + 2
        return cls(rows, row_bytes, part_rows, 0 if parts <= by_files else files)

    @property
    def parts(self) -> int:
        return math.ceil(self.rows / self.part_rows)

    @property
    def bytes_read(self) -> int:
        """Bytes of rows that all sweeps and all files give."""
        whole = self.rows * self.row_bytes
        if self.files == 0:
            return self.parts * whole
        return (math.ceil(self.parts / self.files) + 1) * whole

    @property
    def scratch_bytes(self) -> int:
        """The most that files take on disk."""
        rows = min(self.files * self.part_rows, self.rows)
        return rows * (self.row_bytes + places_dtype(self.rows).itemsize)


def permuted(
    disk: Disk,
    checks: ArrayChecks,
    places: Places,
    scratch: Path,
    memory: int,
    progress: Progress = SILENT,
) -> Iterator[NDArray[Any]]:
    """The array of `checks` with row i at places[i], part by part, each overwritten by the next.

    Uses at most `memory` bytes, but no less than LEAST_PERMUTE_BYTES or a row, beside `places` and
    what it reads ahead. CorruptError where a byte is not what its checksum says.
    """
    entry = checks.entry
    row_bytes = entry.dtype.itemsize * math.prod(entry.shape[1:])
    plan = PermutePlan.of(entry.shape[0], row_bytes, memory)
    progress.stage(checks.path.stem, plan.bytes_read)
    source = _Rows(disk, checks, places, row_bytes, progress)
    parts = _swept(source, plan) if plan.files == 0 else _dealt(source, plan, scratch)
    for part in parts:
        yield part.view(entry.dtype).reshape(-1, *entry.shape[1:])


@dataclass(frozen=True)
class _Rows:
    disk: Disk
    checks: ArrayChecks
    places: Places
    row_bytes: int
    progress: Progress

    def blocks(self) -> Iterator[tuple[Bytes, Places]]:
        """All rows in sequence, compared with their checksums, and where they go."""
        start = self.checks.entry.data_offset
        with self.disk.open(self.checks.path) as file:
            sweep = self.checks.sweep(file, start)
            for block, places in _in_step(file, start, self.places, self.row_bytes):
                sweep.feed(block)
                self.progress.advance(len(block))
                yield block, places
            sweep.settle()


def _in_step(
    file: File, start: int, places: Places, row_bytes: int
) -> Iterator[tuple[Bytes, Places]]:
    """Blocks of whole rows from byte `start` on, with their places."""
    at_a_time = max(1, READ_BLOCK_BYTES // row_bytes)
    end = start + len(places) * row_bytes
    for index, block in enumerate(read_blocks(file, start, end, at_a_time * row_bytes)):
        yield block, places[index * at_a_time : (index + 1) * at_a_time]


def _swept(source: _Rows, plan: PermutePlan) -> Iterator[Bytes]:
    memory = aligned_empty(min(plan.part_rows, plan.rows) * plan.row_bytes)
    for first in range(0, plan.rows, plan.part_rows):
        part = memory[: (plan.rows - first) * plan.row_bytes]
        for block, places in source.blocks():
            _core.scatter_rows(block, places, first, plan.row_bytes, part)
        yield part


def _dealt(source: _Rows, plan: PermutePlan, scratch: Path) -> Iterator[Bytes]:
    for first_part in range(0, plan.parts, plan.files):
        last_part = min(first_part + plan.files, plan.parts)
        with ExitStack() as stack:
            files = [
                stack.enter_context(_PartFile(source.disk, scratch, plan, part))
                for part in range(first_part, last_part)
            ]
            _deal(source, plan, first_part, files)
            for file in files:
                file.finish()
            memory = aligned_empty(plan.part_rows * plan.row_bytes)
            for file in files:
                yield file.read(memory, source.progress)
            del memory  # before the files of the next sweep have their buffers


def _deal(source: _Rows, plan: PermutePlan, first_part: int, files: list[_PartFile]) -> None:
    """One sweep: each row that belongs to one of the files -> the end of it."""
    first = first_part * plan.part_rows
    last = first + len(files) * plan.part_rows
    for block, places in source.blocks():
        here = np.flatnonzero((places >= first) & (places < last))
        parts = (places[here] - first) // plan.part_rows
        by_part = np.argsort(parts, kind="stable")
        here = here[by_part]
        rows = block.reshape(-1, plan.row_bytes)[here]
        moved = places[here]
        bounds = np.searchsorted(parts[by_part], np.arange(len(files) + 1))
        for file, begin, end in zip(files, bounds[:-1], bounds[1:], strict=True):
            file.append(rows[begin:end], moved[begin:end])


class _PartFile:
    """Rows of one part of the result, in the order of the source, and where they go in it."""

    def __init__(self, disk: Disk, scratch: Path, plan: PermutePlan, part: int) -> None:
        self._first = part * plan.part_rows
        self._rows = min(plan.part_rows, plan.rows - self._first)
        self._row_bytes = plan.row_bytes
        self._dtype = places_dtype(plan.rows)
        self._paths = [scratch / f"rows-{part:06d}", scratch / f"places-{part:06d}"]
        self._files: list[Appender] = []
        sizes = (plan.row_bytes, self._dtype.itemsize)
        buffers = (_ROWS_BUFFER_BYTES, _PLACES_BUFFER_BYTES)
        for path, size, buffer in zip(self._paths, sizes, buffers, strict=True):
            self._files.append(Appender(disk, path, self._rows * size, buffer))

    def append(self, rows: NDArray[Any], places: Places) -> None:
        for file, values in zip(self._files, (rows, places), strict=True):
            file.append(values)

    def finish(self) -> None:
        for file in self._files:
            file.finish()

    def read(self, memory: Bytes, progress: Progress) -> Bytes:
        """The rows in their order, in `memory`."""
        part: Bytes = memory[: self._rows * self._row_bytes]
        rows, places = (file.file for file in self._files)
        at_a_time = max(1, READ_BLOCK_BYTES // self._row_bytes)
        width = self._dtype.itemsize
        # Both in blocks of as many rows.
        blocks = read_blocks(rows, 0, len(part), at_a_time * self._row_bytes)
        for first, block in zip(range(0, self._rows, at_a_time), blocks, strict=True):
            count = len(block) // self._row_bytes
            where = places.read(first * width, count * width).view(self._dtype)
            _core.scatter_rows(block, where, self._first, self._row_bytes, part)
            progress.advance(len(block))
        self.__exit__()
        return part

    def __enter__(self) -> _PartFile:
        return self

    def __exit__(self, *_: object) -> None:
        for file in self._files:
            file.close()
        for path in self._paths:
            path.unlink(missing_ok=True)
