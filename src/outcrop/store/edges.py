"""Edges, out of core: chunks of edges in source order -> records sorted by target, in blocks.

An external merge sort: runs that fit into memory are sorted and spilled, then merged. It is stable,
so the result is the same, byte for byte, whatever the memory.
"""

from __future__ import annotations

import resource
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from outcrop import _core
from outcrop.closing import Closing
from outcrop.disk import Disk, File, Pending, aligned_empty
from outcrop.errors import BudgetError
from outcrop.options import format_size

Bytes = NDArray[np.uint8]

# A run is read back in windows of at least this size: smaller ones cost a request each.
_LEAST_WINDOW_BYTES = 256 << 10
_MOST_WINDOW_BYTES = 4 << 20
_BLOCK_BYTES = 1 << 20
LEAST_SORT_BYTES = 8 << 20


@dataclass(frozen=True)
class RecordLayout:
    """What a record holds, and the order in which records are wanted."""

    wide: bool
    """Ids of 64 bits instead of 32."""
    numbered: bool = False
    """Each record carries its edge's number in the source."""
    by_source: bool = False
    """Sorted by (target, source), keeping the first of equal edges; else by target, stable."""

    @property
    def bytes(self) -> int:
        return _core.record_bytes(self.wide, self.numbered)

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type of a record, for numpy."""
        node = np.uint64 if self.wide else np.uint32
        fields: list[tuple[str, Any]] = [("target", node), ("source", node)]
        if self.numbered:
            fields.append(("number", np.int64))
        return np.dtype(fields)


@dataclass(frozen=True)
class Block:
    """`count` sorted records at the beginning of `records`; overwritten by the next block."""

    records: Bytes
    count: int


@dataclass(frozen=True)
class _Run:
    """A file, closed: there may be more runs than a process may have files open."""

    path: Path
    records: int


class EdgeSorter(Closing):
    """Takes records, gives them back sorted. Uses at most `memory` bytes.

    Fill `room()` and tell with `filled(count)`; then iterate over `blocks()`, once.
    """

    def __init__(self, disk: Disk, scratch: Path, memory: int, layout: RecordLayout) -> None:
        if memory < LEAST_SORT_BYTES:
            raise BudgetError(
                f"sorting needs {format_size(LEAST_SORT_BYTES)} of memory "
                f"(got {format_size(memory)})"
            )
        self.layout = layout
        self.records = 0
        """Taken so far."""
        self._disk = disk
        self._scratch = scratch
        self._memory = memory
        # One buffer is filled while another is sorted into a third.
        self._capacity = memory // 3 // layout.bytes
        self._filling, self._sorting, self._spare = (self._buffer() for _ in range(3))
        self._filled = 0
        self._runs: list[_Run] = []
        self._paths: list[Path] = []
        """The files of all runs that were begun."""
        self._pool = ThreadPoolExecutor(1)
        self._spilling: Future[None] | None = None

    def _buffer(self) -> Bytes:
        return aligned_empty(self._capacity * self.layout.bytes)

    def room(self) -> Bytes:
        """Memory for the next records: at least one, or many more."""
        if self._filled == self._capacity:
            self._spill_in_background()
        return self._filling[self._filled * self.layout.bytes :]

    def filled(self, count: int) -> None:
        """`count` records were written to the beginning of `room()`."""
        self._filled += count
        self.records += count

    def spill(self) -> None:
        """Ends the current run: `room()` has all of a run's room again."""
        if self._filled:
            self._spill_in_background()

    def _spill_in_background(self) -> None:
        self._finish_spilling()
        self._filling, self._sorting = self._sorting, self._filling
        count, self._filled = self._filled, 0
        self._spilling = self._pool.submit(self._sort_and_spill, count)

    def _finish_spilling(self) -> None:
        spilling, self._spilling = self._spilling, None
        if spilling is not None:
            spilling.result()

    def _sort(self, records: Bytes, count: int) -> tuple[Bytes, int]:
        """Sorts; returns where the result is and how many are left. The other buffer is spare."""
        layout = self.layout
        left, swapped = _core.sort_edges(
            records, count, self._spare, layout.by_source, layout.wide, layout.numbered
        )
        if swapped:
            records, self._spare = self._spare, records
        return records, left

    def _sort_and_spill(self, count: int) -> None:
        self._sorting, count = self._sort(self._sorting, count)
        path = self._new_path()
        with self._disk.create(path, count * self.layout.bytes) as file:
            file.write(0, self._sorting[: count * self.layout.bytes])
        self._runs.append(_Run(path, count))

    def _new_path(self) -> Path:
        path = self._scratch / f"run-{len(self._paths):06d}"
        self._paths.append(path)
        return path

    def blocks(self, memory: int | None = None) -> Iterator[Block]:
        """All records in order. `memory`: for merging, where it is to be less than for sorting."""
        self._memory = memory or self._memory
        self._finish_spilling()
        if not self._runs:
            yield from self._blocks_in_memory()
            return
        self.spill()
        self._finish_spilling()
        self._filling = self._sorting = self._spare = np.empty(0, np.uint8)
        while len(self._runs) > self._fan_in:
            # Neighbours are merged with each other, so the order of runs, and stability, remain.
            runs, step = self._runs, self._fan_in
            groups = [runs[first : first + step] for first in range(0, len(runs), step)]
            self._runs = [self._merge_to_run(group) for group in groups]
        yield from self._merge(self._runs)
        self._remove_runs()

    def _blocks_in_memory(self) -> Iterator[Block]:
        records, count = self._sort(self._filling, self._filled)
        self._filling = self._sorting = self._spare = np.empty(0, np.uint8)
        size = self.layout.bytes
        step = _BLOCK_BYTES // size
        for first in range(0, count, step):
            yield Block(records[first * size :], min(step, count - first))

    @property
    def _fan_in(self) -> int:
        by_memory = (self._memory - 4 * _BLOCK_BYTES) // (2 * _LEAST_WINDOW_BYTES)
        # An open run takes two descriptors; half of all are left to the rest of the process.
        by_files = resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 4
        return max(2, min(by_memory, by_files))

    def _merge_to_run(self, runs: list[_Run]) -> _Run:
        path = self._new_path()
        size = self.layout.bytes
        written = 0
        with self._disk.create(path, sum(run.records for run in runs) * size) as file:
            for block in self._merge(runs):
                file.write(written * size, block.records[: block.count * size])
                written += block.count
        for run in runs:
            run.path.unlink()
        return _Run(path, written)

    def _merge(self, runs: list[_Run]) -> Iterator[Block]:
        layout = self.layout
        room = (self._memory - 4 * _BLOCK_BYTES) // (2 * len(runs))
        window = max(_LEAST_WINDOW_BYTES, min(_MOST_WINDOW_BYTES, room))
        merger = _core.Merger(len(runs), layout.by_source, layout.wide, layout.numbered)
        readers = [
            _RunReader(self._disk.open(run.path), run.records, window // layout.bytes, layout.bytes)
            for run in runs
        ]
        blocks = [aligned_empty(_BLOCK_BYTES) for _ in range(2)]
        while True:
            for index, reader in enumerate(readers):
                if merger.window_empty(index) and not reader.ended:
                    merger.set_window(index, *reader.next_window())
            blocks.reverse()
            count = merger.merge(blocks[0])
            if count:
                yield Block(blocks[0], count)
            elif all(reader.ended for reader in readers):
                return

    def _remove_runs(self) -> None:
        self._runs = []
        for path in self._paths:
            path.unlink(missing_ok=True)  # merged into another run, or never created

    def close(self) -> None:
        """Frees memory and spilled runs."""
        self._pool.shutdown(wait=True, cancel_futures=True)
        self._remove_runs()
        self._filling = self._sorting = self._spare = np.empty(0, np.uint8)


class _RunReader:
    """Reads a run window by window, one ahead."""

    def __init__(self, file: File, records: int, window_records: int, record_bytes: int) -> None:
        self._file = file
        self._records = records
        self._window = window_records
        self._size = record_bytes
        self._buffers = [aligned_empty(window_records * record_bytes) for _ in range(2)]
        self._next = 0
        self.ended = False
        self._ahead = self._send()

    def _send(self) -> tuple[Pending, Bytes, int] | None:
        count = min(self._window, self._records - self._next)
        if count <= 0:
            return None
        self._buffers.reverse()
        target = self._buffers[0][: count * self._size]
        offset = self._next * self._size
        pending = self._file.start_read_extents([offset], [len(target)], target)
        self._next += count
        return pending, target, count

    def next_window(self) -> tuple[Bytes, int, bool]:
        """(records, count, whether they are the last)."""
        if self._ahead is None:  # an empty run
            self.ended = True
            return self._buffers[0], 0, True
        pending, window, count = self._ahead
        pending.wait()
        self._ahead = self._send()
        self.ended = self._ahead is None
        return window, count, self.ended


def view_records(block: Block, layout: RecordLayout) -> NDArray[Any]:
    """A block's records, for numpy."""
    return block.records[: block.count * layout.bytes].view(layout.dtype)


def add_pairs(sorter: EdgeSorter, keys: NDArray[Any], values: NDArray[Any]) -> None:
    """Adds records (target = key, source = value), which are sorted by key."""
    dtype = sorter.layout.dtype
    done = 0
    while done < len(keys):
        room = sorter.room().view(dtype)
        count = min(len(room), len(keys) - done)
        room["target"][:count] = keys[done : done + count]
        room["source"][:count] = values[done : done + count]
        sorter.filled(count)
        done += count
