"""Compact: sparse node ids -> 0 ... N - 1 in ascending order of id, in bounded memory.

The mapping is monotonic, so edges are sorted by their original ids and relabelled afterwards.
Where a bitmap of all possible ids fits into a part of the memory, it gives the ranks; where not,
edges and ids are joined by sorting.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from outcrop import _core
from outcrop.disk import Disk, aligned_empty, read_blocks
from outcrop.ingest.source import EdgeChunk, Queue
from outcrop.store.arrays import Appender
from outcrop.store.edges import Block, EdgeSorter, RecordLayout, add_pairs, view_records

_IDS_PER_BLOCK = 1 << 16


class Compaction:
    """Sees all edges, then relabels their sorted records. Uses at most `memory` bytes.

    Self loops are dropped here, where that is wanted: a node that has nothing else is still a node.
    """

    def __init__(self, disk: Disk, scratch: Path, memory: int, *, drop_loops: bool) -> None:
        self._disk = disk
        self._scratch = scratch
        self._drop_loops = drop_loops
        capacity = 8 * memory * 4 // 5  # a bit and a quarter per possible id
        self._bitmap: _core.IdSet | None = _core.IdSet(capacity)
        self._join: _Join | None = None
        self.num_nodes = 0
        """Known after the first block was relabelled."""

    def add(self, chunk: EdgeChunk) -> None:
        if self._bitmap is not None and not (
            self._bitmap.add(chunk.sources) and self._bitmap.add(chunk.targets)
        ):
            self._bitmap = None  # an id beyond the bitmap: join instead

    def prepare(self, sorter: EdgeSorter, memory: int) -> None:
        """After the last edge: counts the nodes."""
        if self._bitmap is not None:
            self.num_nodes = self._bitmap.seal()
        else:
            self._join = _Join(self._disk, self._scratch, memory, sorter, self._drop_loops)
            self.num_nodes = self._join.num_nodes

    def blocks(self, sorter: EdgeSorter) -> Iterator[Block]:
        """The sorter's records with their new ids."""
        if self._join is not None:
            yield from self._join.blocks()
            return
        assert self._bitmap is not None
        for block in sorter.blocks():
            self._bitmap.relabel(block.records, block.count, sorter.layout.numbered)
            yield _without_loops(block, sorter.layout) if self._drop_loops else block

    def node_ids(self) -> Iterator[NDArray[np.int64]]:
        """The original id of each node."""
        if self._join is not None:
            yield from self._join.node_ids()
            return
        assert self._bitmap is not None
        yield from list_ids(self._bitmap)


def list_ids(bitmap: _core.IdSet) -> Iterator[NDArray[np.int64]]:
    """The ids in a bitmap, ascending. A block is overwritten by the next one."""
    out = np.empty(_IDS_PER_BLOCK, np.int64)
    start = 0
    while True:
        count, start = bitmap.list(start, out)
        if count == 0:
            return
        yield out[:count]


class _Spill:
    """Items of one dtype, appended, then read in order."""

    def __init__(self, disk: Disk, path: Path, dtype: Any) -> None:
        self._path = path
        self._dtype = np.dtype(dtype)
        self._appender = Appender(disk, path)

    def append(self, items: NDArray[Any]) -> None:
        self._appender.append(items)

    def finish(self) -> int:
        """How many items there are."""
        self._appender.finish()
        return self._appender.bytes // int(self._dtype.itemsize)

    def blocks(self, items: int = _IDS_PER_BLOCK) -> Iterator[NDArray[Any]]:
        step = items * self._dtype.itemsize
        for block in read_blocks(self._appender.file, 0, self._appender.bytes, step):
            yield block.view(self._dtype)

    def remove(self) -> None:
        self._appender.close()
        self._path.unlink()


class _Distinct:
    """Ascending values in chunks -> the distinct ones."""

    def __init__(self) -> None:
        self._last: int | None = None

    def __call__(self, values: NDArray[Any]) -> NDArray[np.int64]:
        keep = np.ones(len(values), dtype=bool)
        keep[1:] = values[1:] != values[:-1]
        keep[0] = self._last is None or int(values[0]) != self._last
        self._last = int(values[-1])
        return values[keep].astype(np.int64)


class _Join:
    """Relabels by sorting: records by target are there; sources are sorted, ranked, sorted back."""

    def __init__(
        self, disk: Disk, scratch: Path, memory: int, sorter: EdgeSorter, drop_loops: bool
    ) -> None:
        self._disk = disk
        self._scratch = scratch
        self._drop_loops = drop_loops
        self._memory = memory // 2  # two sorts are under way at a time
        self._layout = sorter.layout
        self._pairs = RecordLayout(wide=True)
        self._records = self._spill("records", self._layout.dtype)
        targets = self._spill("targets", np.int64)
        sources = self._spill("sources", np.int64)
        with self._sorter("by-source") as by_source:
            self._spill_records(sorter, by_source, targets)
            by_source_pairs = self._spill_pairs(by_source, sources)
        self._ids = self._spill("ids", np.int64)
        for ids in _union(targets.blocks(), sources.blocks()):
            self._ids.append(ids)
        self.num_nodes = self._ids.finish()
        targets.remove()
        sources.remove()
        self._by_position = self._sorter("by-position")
        self._rank_sources(by_source_pairs)

    def _spill(self, name: str, dtype: Any) -> _Spill:
        return _Spill(self._disk, self._scratch / name, dtype)

    def _sorter(self, name: str) -> EdgeSorter:
        folder = self._scratch / name
        folder.mkdir()
        return EdgeSorter(self._disk, folder, self._memory, self._pairs)

    def _spill_records(self, sorter: EdgeSorter, by_source: EdgeSorter, targets: _Spill) -> None:
        """Keeps the records, the distinct targets, and (source, position) pairs to be sorted."""
        distinct = _Distinct()
        position = 0
        for block in sorter.blocks(self._memory):
            records = view_records(block, self._layout)
            targets.append(distinct(records["target"]))
            if self._drop_loops:
                records = records[records["target"] != records["source"]]
            self._records.append(records)
            add_pairs(by_source, records["source"], np.arange(position, position + len(records)))
            position += len(records)
        self._records.finish()
        targets.finish()

    def _spill_pairs(self, by_source: EdgeSorter, sources: _Spill) -> _Spill:
        pairs = self._spill("pairs", self._pairs.dtype)
        distinct = _Distinct()
        for block in by_source.blocks():
            records = view_records(block, self._pairs)
            pairs.append(records)
            sources.append(distinct(records["target"]))
        pairs.finish()
        sources.finish()
        return pairs

    def _rank_sources(self, pairs: _Spill) -> None:
        """(source, position) by source -> (position, rank of source), to be sorted by position."""
        ranks = _Ranks(self._ids)
        for block in pairs.blocks():
            add_pairs(self._by_position, block["source"], ranks(block["target"]))
        pairs.remove()

    def blocks(self) -> Iterator[Block]:
        ranks = _Ranks(self._ids)
        records = Queue(self._records.blocks(), self._layout.dtype)
        out = aligned_empty(0, self._layout.dtype)
        for block in self._by_position.blocks():
            pairs = view_records(block, self._pairs)
            if len(out) < len(pairs):
                out = aligned_empty(len(pairs), self._layout.dtype)
            relabelled = out[: len(pairs)]
            relabelled[:] = records.take(len(pairs))
            relabelled["target"] = ranks(relabelled["target"])
            relabelled["source"] = pairs["source"]
            yield Block(relabelled.view(np.uint8), len(pairs))
        self._by_position.close()
        for folder in ("by-source", "by-position"):
            (self._scratch / folder).rmdir()
        self._records.remove()

    def node_ids(self) -> Iterator[NDArray[np.int64]]:
        yield from self._ids.blocks()
        self._ids.remove()


class _Ranks:
    """Ascending values, across calls -> their places in a spill of ascending distinct ids."""

    def __init__(self, ids: _Spill) -> None:
        self._blocks = ids.blocks()
        self._block = np.empty(0, np.int64)
        self._first = 0

    def __call__(self, values: NDArray[Any]) -> NDArray[np.int64]:
        wanted = values.astype(np.int64)
        out = np.empty(len(wanted), np.int64)
        done = 0
        while done < len(wanted):
            if len(self._block):
                upto = int(np.searchsorted(wanted, self._block[-1], side="right"))
                out[done:upto] = self._first + np.searchsorted(self._block, wanted[done:upto])
                done = max(done, upto)
            if done < len(wanted):
                self._first += len(self._block)
                self._block = next(self._blocks).copy()
        return out


def _union(a: Iterator[NDArray[Any]], b: Iterator[NDArray[Any]]) -> Iterator[NDArray[np.int64]]:
    """Two streams of ascending distinct values -> their union, ascending and distinct."""
    nothing = np.empty(0, np.int64)
    left, right = next(a, nothing).copy(), next(b, nothing).copy()
    while len(left) and len(right):
        bound = min(left[-1], right[-1])
        cut_left = int(np.searchsorted(left, bound, side="right"))
        cut_right = int(np.searchsorted(right, bound, side="right"))
        yield np.union1d(left[:cut_left], right[:cut_right])
        left, right = left[cut_left:], right[cut_right:]
        left = left if len(left) else next(a, nothing).copy()
        right = right if len(right) else next(b, nothing).copy()
    for rest, more in ((left, a), (right, b)):
        if len(rest):
            yield rest
            yield from more


def _without_loops(block: Block, layout: RecordLayout) -> Block:
    records = view_records(block, layout)
    kept = records[records["target"] != records["source"]]
    return Block(kept.view(np.uint8), len(kept))
