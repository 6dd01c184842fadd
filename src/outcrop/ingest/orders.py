"""Orders of nodes: a store -> all its nodes, in the order in which another store is to have them.

Each order yields ids of the store, each once, a few MB at a time. What it keeps in memory for every
node it says beforehand.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from outcrop import _core
from outcrop.disk import Disk, File, aligned_empty, read_blocks
from outcrop.errors import CorruptError, IngestError, OptionError
from outcrop.ingest.source import NODES_PER_CHUNK, Ids
from outcrop.progress import SILENT, Progress
from outcrop.store.arrays import Appender
from outcrop.store.degrees import out_degrees
from outcrop.store.edges import EdgeSorter, RecordLayout, add_pairs, view_records
from outcrop.store.format import read_npy_header
from outcrop.store.store import GraphStore

# Lists of roots are read ahead for so many at a time at most.
_MOST_ROOTS = 1 << 16
# What a step of a breadth-first search takes for each node of it, beside its list: ids, offsets,
# lengths and places, in two orders.
_STEP_BYTES_PER_NODE = 160


@dataclass(frozen=True)
class OrderWork:
    """What an order is made with."""

    store: GraphStore
    disk: Disk
    scratch: Path
    """For files that are removed again."""
    memory: int
    """For sorting and reading, beside what is kept for every node."""
    progress: Progress = SILENT


@dataclass(frozen=True)
class NodeOrder:
    """An order by name. That by communities is in layout/partitions.py, which stands above."""

    name: str
    node_bytes: Callable[[int], int]
    """What it keeps for so many nodes while it is made."""
    nodes: Callable[[OrderWork], Iterator[Ids]]


def node_order(order: str | os.PathLike[str]) -> NodeOrder:
    """degree, bfs, or a .npy file; OptionError where it is none of them."""
    if isinstance(order, str) and order in ORDERS:
        return ORDERS[order]
    path = Path(order)
    if not path.is_file():
        raise OptionError(
            f"order must be one of {', '.join(ORDERS)}, or a .npy file of all nodes "
            f"(got {os.fspath(order)!r}, and there is no such file)"
        )
    return NodeOrder(str(path), lambda _: 0, lambda work: _in_file(work, path))


# By a file


def _in_file(work: OrderWork, path: Path) -> Iterator[Ids]:
    header = read_npy_header(path)
    nodes = work.store.num_nodes
    if header.dtype.newbyteorder("=") not in (np.int32, np.int64) or header.shape != (nodes,):
        raise IngestError(
            path, "", f"must be int32 or int64 [{nodes}] (got {header.dtype} {list(header.shape)})"
        )
    end = header.data_offset + header.data_bytes
    if os.stat(path).st_size < end:
        raise IngestError(path, "", f"is cut off: {os.stat(path).st_size} of {end} B")
    work.progress.stage("order", nodes, "nodes")
    with work.disk.open(path) as file:
        for block in read_blocks(file, header.data_offset, end):
            yield block.view(header.dtype).astype(np.int64)
            work.progress.advance(len(block) // header.dtype.itemsize)


# By degree


def _by_degree(work: OrderWork) -> Iterator[Ids]:
    """Nodes from which the most edges begin first, of equals those of lower ids."""
    degrees = out_degrees(work.store, work.progress)
    most = int(degrees.max())
    layout = RecordLayout(wide=work.store.num_nodes > 1 << 32)
    runs = work.scratch / "degrees"
    runs.mkdir()
    with EdgeSorter(work.disk, runs, work.memory, layout) as sorter:
        work.progress.stage("sort by degree", 2 * len(degrees), "nodes")
        for first in range(0, len(degrees), NODES_PER_CHUNK):
            piece = degrees[first : first + NODES_PER_CHUNK]
            add_pairs(sorter, most - piece, np.arange(first, first + len(piece)))
            work.progress.advance(len(piece))
        del degrees, piece
        for block in sorter.blocks():
            yield view_records(block, layout)["source"].astype(np.int64)
            work.progress.advance(block.count)
    runs.rmdir()


# Breadth first


def _breadth_first(work: OrderWork) -> Iterator[Ids]:
    """Nodes as a search along in-edges meets them, from the one with the most out-edges on.

    Once it meets no more, it begins anew at the one that has most among those that are left.
    """
    roots = work.scratch / "roots"
    appender = Appender(work.disk, roots, 8 * work.store.num_nodes)
    try:
        for chunk in _by_degree(work):
            appender.append(chunk)
        appender.finish()
        visits = _search(work, appender.file)
    finally:
        appender.close()
        roots.unlink()
    out = np.empty(NODES_PER_CHUNK, np.int64)
    first = 0
    while count := visits.list(first, out):
        yield out[:count]
        first += count


def _search(work: OrderWork, roots: File) -> _core.Visits:
    nodes = work.store.num_nodes
    work.progress.stage("breadth-first search", nodes, "nodes")
    with _Lists(work) as lists:
        search = _Search(lists, nodes, work.progress)
        for block in read_blocks(roots, 0, 8 * nodes):
            search.begin_at(block.view(np.int64))
    return search.visits


class _Search:
    """The queue of a search, and where in it the first node is whose list was not looked at."""

    def __init__(self, lists: _Lists, num_nodes: int, progress: Progress) -> None:
        self.visits = _core.Visits(num_nodes)
        self._lists = lists
        self._progress = progress
        self._head = 0
        self._told = 0
        self._roots_at_a_time = 1
        self._step = np.empty(min(lists.most_nodes, num_nodes), np.int64)
        # Lists of roots stay while others are looked at between them.
        self._of_roots, self._of_step = lists.buffer(), lists.buffer()

    def begin_at(self, roots: Ids) -> None:
        """At each of these in turn that was not met by then, until no more are met."""
        left = np.empty(len(roots), np.int64)
        while len(roots):
            # Most of what is left are nodes whose neighbours were all met, many in a row: their
            # lists are read together. At first a single one meets most of all nodes.
            some = roots[: self._roots_at_a_time]
            roots = roots[len(some) :]
            self._roots_at_a_time = min(2 * self._roots_at_a_time, _MOST_ROOTS)
            self._begin_at_some(left[: self.visits.unmet(some, left)])

    def _begin_at_some(self, roots: Ids) -> None:
        while len(roots):
            fit = self._lists.fit(roots)
            if fit == 0:  # a list longer than the memory: looked at in parts
                self.visits.meet(roots[:1])
                roots = roots[1:]
                self._drain()
                continue
            counts, entries = self._lists.read(roots[:fit], self._of_roots)
            group, roots = roots[:fit], roots[fit:]
            while len(group):
                done, self._head = self.visits.meet_roots(group, counts, entries)
                entries = entries[int(counts[:done].sum()) :]
                self._drain()
                group, counts = group[done:], counts[done:]
            self._tell()

    def _drain(self) -> None:
        """Looks at the lists of all in the queue, in its order, and of those that join it."""
        while count := self.visits.list(self._head, self._step):
            nodes = self._step[:count]
            fit = self._lists.fit(nodes)
            if fit == 0:
                fit = 1
                for part in self._lists.parts(int(nodes[0]), self._of_step):
                    self.visits.meet(part)
            else:
                self.visits.meet(self._lists.read(nodes[:fit], self._of_step)[1])
            self._head += fit
            self._tell()

    def _tell(self) -> None:
        self._progress.advance(self.visits.count - self._told)
        self._told = self.visits.count


class _Lists:
    """In-neighbours of many nodes at a time, read in the order of the file."""

    def __init__(self, work: OrderWork) -> None:
        store = work.store
        self._entry = store.manifest.arrays["indices"]
        self._indptr: NDArray[np.int64] = store.load("indptr")
        self._file = work.disk.open(store.file("indices"))
        self.most_nodes = max(1, work.memory // 2 // _STEP_BYTES_PER_NODE)
        """Nodes whose lists are read in one step, at most."""
        self._most_entries = min(work.memory // 4 // self._entry.dtype.itemsize, store.num_edges)
        self._path = store.file("indices")

    def buffer(self) -> NDArray[Any]:
        """Memory for lists; there are two."""
        return aligned_empty(max(1, self._most_entries), self._entry.dtype)

    def fit(self, nodes: Ids) -> int:
        """How many of these, from the first on, have lists that fit into memory together."""
        lengths = self._indptr[nodes + 1] - self._indptr[nodes]
        return int(np.searchsorted(np.cumsum(lengths), self._most_entries, side="right"))

    def read(self, nodes: Ids, out: NDArray[Any]) -> tuple[Ids, NDArray[Any]]:
        """The length of each list, and their entries one after the other, in `out`, a buffer.

        REQUIRES: they fit.
        """
        begins = self._indptr[nodes]
        lengths = self._indptr[nodes + 1] - begins
        places = np.cumsum(lengths) - lengths
        by_offset = np.argsort(begins, kind="stable")
        by_offset = by_offset[lengths[by_offset] > 0]
        size = self._entry.dtype.itemsize
        out = out[: int(lengths.sum())]
        self._file.read_extents(
            self._entry.data_offset + begins[by_offset] * size,
            lengths[by_offset] * size,
            out,
            places[by_offset] * size,
        )
        return lengths, out

    def parts(self, node: int, out: NDArray[Any]) -> Iterator[NDArray[Any]]:
        """One list, however long; each part overwrites the last."""
        begin, end = (int(offset) for offset in self._indptr[node : node + 2])
        size = self._entry.dtype.itemsize
        for first in range(begin, end, len(out)):
            part = out[: min(len(out), end - first)]
            self._file.read_extents([self._entry.data_offset + first * size], [part.nbytes], part)
            yield part

    def __enter__(self) -> _Lists:
        return self

    def __exit__(self, _: object, error: BaseException | None, trace: object) -> None:
        self._file.close()
        if isinstance(error, ValueError):  # it was good a moment ago, when degrees were counted
            raise CorruptError(f"{self._path}: changed while it was read: {error}") from error


def _degree_bytes(num_nodes: int) -> int:
    return 4 * num_nodes


def _search_bytes(num_nodes: int) -> int:
    return 8 * num_nodes + _core.Visits.memory_bytes(num_nodes)


ORDERS = {
    order.name: order
    for order in (
        NodeOrder("degree", _degree_bytes, _by_degree),
        NodeOrder("bfs", _search_bytes, _breadth_first),
    )
}
