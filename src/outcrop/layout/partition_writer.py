"""The files of partitions: the part of each node -> nodes, lists and training nodes, part by part.

Lists are put together in passes over the topology, each for as many parts as there is memory for.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from outcrop import _core
from outcrop.disk import READ_BLOCK_BYTES, aligned_empty, reading_bytes
from outcrop.layout.fennel import PART_BYTES, Assignment, PartCounts, check_seeds
from outcrop.layout.stream import stream_lists
from outcrop.progress import Progress
from outcrop.store.arrays import WRITE_BUFFER_BYTES, ArrayWriter
from outcrop.store.facts import GraphFacts
from outcrop.store.format import ArrayEntry
from outcrop.store.store import GraphStore

_INT64, _UINT64 = np.dtype("<i8"), np.dtype("<u8")
_WRITERS = 4  # that are open at once
_TABLES_BYTES = 12 * 8  # per part: counts, offsets and cursors, beside those of the core

Ids = NDArray[np.int64]


def passing_bytes(graph: GraphFacts, parts: int) -> int:
    """What is read and written at a time, and what is kept for each part."""
    reading = sum(reading_bytes(graph.array_bytes(name)) for name in ("indptr", "indices"))
    # A part that is larger than the memory goes through as much as is read at a time.
    passing = 3 * READ_BLOCK_BYTES
    writing = _WRITERS * 2 * WRITE_BUFFER_BYTES
    return reading + passing + writing + parts * (PART_BYTES + _TABLES_BYTES)


class PartsWriter:
    """Writes the files of a layout."""

    def __init__(self, store: GraphStore, folder: Path, assignment: Assignment, parts: int) -> None:
        self._store = store
        self._folder = folder
        self._assignment = assignment
        self._parts = parts
        self.index: np.dtype[Any] = store.manifest.arrays["indices"].dtype
        self.entries: dict[str, ArrayEntry] = {}

    def _writer(self, name: str, dtype: np.dtype[Any], rows: int | np.int64) -> ArrayWriter:
        return ArrayWriter(self._store.disk, self._folder, f"{name}.npy", dtype, rows=int(rows))

    def write(self, name: str, values: NDArray[Any]) -> None:
        with self._writer(name, values.dtype, len(values)) as writer:
            writer.append(values)
            self.entries[name] = writer.close()

    # Lists

    def write_lists(self, counts: PartCounts, room: int, progress: Progress) -> None:
        """Members and their lists, of as many parts at a time as there is room for."""
        nodes, entries = (
            _offsets(each.astype(np.int64)) for each in (counts.nodes, counts.entries)
        )
        self.write("member_offsets", nodes)
        self.write("entry_offsets", entries)
        size = (self.index.itemsize + 8) * nodes + self.index.itemsize * entries
        ranges = list(_ranges(size, room))
        with ExitStack() as stack:
            lists = _ListsWriter(
                members=stack.enter_context(self._writer("members", self.index, nodes[-1])),
                list_offsets=stack.enter_context(
                    self._writer("list_offsets", _INT64, nodes[-1] + 1)
                ),
                lists=stack.enter_context(self._writer("lists", self.index, entries[-1])),
                list_sums=stack.enter_context(self._writer("list_sums", _UINT64, self._parts)),
            )
            for number, (first, last) in enumerate(ranges, 1):
                stage = "lists" if len(ranges) == 1 else f"lists {number}/{len(ranges)}"
                if size[last] - size[first] > room:  # one part, which is passed through
                    self._pass_part(first, int(entries[first]), lists, stage, progress)
                else:
                    self._gather(first, nodes[first : last + 1], entries[first : last + 1], lists,
                                 stage, progress)  # fmt: skip
            lists.list_offsets.append(entries[-1:])
            for name, writer in vars(lists).items():
                self.entries[name] = writer.close()

    def _gather(
        self,
        first: int,
        nodes: Ids,
        entries: Ids,
        lists: _ListsWriter,
        stage: str,
        progress: Progress,
    ) -> None:
        """Parts from `first` on, whose nodes and entries begin here, and the end of the last."""
        out_nodes = aligned_empty(int(nodes[-1] - nodes[0]), self.index)
        begins = aligned_empty(len(out_nodes), np.int64)
        out_entries = aligned_empty(int(entries[-1] - entries[0]), self.index)
        core = self.core(
            first,
            nodes[:-1] - nodes[0],
            entries[:-1] - entries[0],
            out_nodes,
            begins,
            out_entries,
            int(entries[0]),
        )
        stream_lists(self._store, core, stage, progress)
        lists.members.append(out_nodes)
        lists.list_offsets.append(begins)
        lists.lists.append(out_entries)
        bounds = entries - entries[0]
        sums = [list_sum(out_entries[begin:end]) for begin, end in pairwise(bounds.tolist())]
        lists.list_sums.append(np.array(sums, np.uint64))

    def _pass_part(
        self, part: int, first_entry: int, lists: _ListsWriter, stage: str, progress: Progress
    ) -> None:
        """A part of any size: its lists come in the order that they are to have."""
        stream = _PartStream(self, part, first_entry, lists)
        stream_lists(self._store, stream, stage, progress)
        lists.list_sums.append(np.array([stream.sum.intdigest()], np.uint64))

    def core(
        self,
        first_part: int,
        first_node: Ids,
        first_entry: Ids,
        nodes: NDArray[Any],
        begins: Ids,
        entries: NDArray[Any],
        entries_before: int,
    ) -> _core.PartLists32 | _core.PartLists64:
        make = _core.PartLists32 if self.index.itemsize == 4 else _core.PartLists64
        return make(self._assignment, first_part, first_node, first_entry, nodes, begins, entries,
                    entries_before)  # fmt: skip

    # Training nodes

    def write_seeds(self, room: int, progress: Progress) -> Ids:
        """The training nodes of each part, in the order of their split; returns how many."""
        counts = np.zeros(self._parts, np.int64)
        for parts, _ in self._seed_blocks():
            counts += np.bincount(parts, minlength=self._parts)
        offsets = _offsets(counts)
        self.write("seed_offsets", offsets)
        ranges = list(_ranges(8 * offsets, max(room, READ_BLOCK_BYTES)))
        progress.stage("training nodes", int(offsets[-1]) * len(ranges), "nodes")
        with self._writer("seeds", _INT64, int(offsets[-1])) as writer:
            for first, last in ranges:
                cursors = offsets[first:last] - offsets[first]
                out = np.empty(int(offsets[last] - offsets[first]), np.int64)
                for parts, ids in self._seed_blocks():
                    here = (parts >= first) & (parts < last)
                    _place(parts[here] - first, ids[here], cursors, out)
                    progress.advance(len(ids))
                writer.append(out)
            self.entries["seeds"] = writer.close()
        return counts

    def _seed_blocks(self) -> Iterator[tuple[Ids, Ids]]:
        """Training nodes in pieces, and the part of each."""
        if not self._store.has("train"):
            return
        done = 0
        for block in self._store.checks("train").blocks(self._store.disk):
            ids = block.view(np.int64)
            check_seeds(self._store, ids, done)
            yield self._assignment[ids].astype(np.int64), ids
            done += len(ids)


@dataclass(frozen=True)
class _ListsWriter:
    """Arrays that grow together, by their names."""

    members: ArrayWriter
    list_offsets: ArrayWriter
    lists: ArrayWriter
    list_sums: ArrayWriter


class _PartStream:
    """One part's lists, written as they come."""

    def __init__(
        self, files: PartsWriter, part: int, first_entry: int, lists: _ListsWriter
    ) -> None:
        self._lists = lists
        self._done = first_entry
        self.sum = xxhash.xxh3_64()
        # A stream gives no more than it reads at a time.
        self._nodes = np.empty(1 + READ_BLOCK_BYTES // 8, files.index)
        self._begins = np.empty(len(self._nodes), np.int64)
        self._entries = np.empty(READ_BLOCK_BYTES // files.index.itemsize, files.index)
        self._first_node, self._first_entry = np.zeros(1, np.int64), np.zeros(1, np.int64)
        self._core = files.core(
            part, self._first_node, self._first_entry, self._nodes, self._begins, self._entries, 0
        )

    @property
    def num_edges(self) -> int:
        return self._core.num_edges

    def add(self, offsets: Ids, entries: NDArray[Any]) -> tuple[int, int]:
        taken = self._core.add(offsets, entries)
        nodes, count = int(self._first_node[0]), int(self._first_entry[0])
        self._lists.members.append(self._nodes[:nodes])
        self._lists.list_offsets.append(self._begins[:nodes] + self._done)
        self._lists.lists.append(self._entries[:count])
        self.sum.update(self._entries[:count].data)
        self._done += count
        self._first_node[0] = self._first_entry[0] = 0
        return taken


def _offsets(counts: Ids) -> Ids:
    return np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)


def _ranges(bounds: Ids, room: int) -> Iterator[tuple[int, int]]:
    """Parts from, to: as many as fit into `room` together, and at least one.

    `bounds`: where the bytes of each part begin, and where the last ends.
    """
    first = 0
    while first < len(bounds) - 1:
        last = int(np.searchsorted(bounds, bounds[first] + max(room, 0), side="right")) - 1
        last = max(last, first + 1)
        yield first, last
        first = last


def _place(parts: Ids, ids: Ids, cursors: Ids, out: Ids) -> None:
    """Each id -> where its part's cursor is, which moves on."""
    order = np.argsort(parts, kind="stable")
    parts, ids = parts[order], ids[order]
    counts = np.bincount(parts, minlength=len(cursors))
    run = np.arange(len(parts)) - np.repeat(_offsets(counts)[:-1], counts)
    out[cursors[parts] + run] = ids
    cursors += counts


def list_sum(entries: NDArray[Any]) -> int:
    """The checksum of a part's lists."""
    return xxhash.xxh3_64_intdigest(np.ascontiguousarray(entries).view(np.uint8).data)
