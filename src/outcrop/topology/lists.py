"""Neighbour cache: the lists of some nodes in memory, for samplers whose topology is on disk."""

from __future__ import annotations

import time

from outcrop import _core
from outcrop.closing import Closing
from outcrop.disk import READ_BLOCK_BYTES, aligned_empty, reading_bytes
from outcrop.errors import CorruptError, OptionError
from outcrop.layout.neighbors import (
    KIND,
    METRICS,
    NEIGHBORS_VERSION,
    Bytes,
    Metric,
    blocks_bytes,
    entry_dtype,
    least_bytes,
    read_header,
    read_lists,
    whole_bytes,
    write_lists,
)
from outcrop.options import format_size
from outcrop.progress import SILENT, Progress
from outcrop.store.arrays import WRITE_BUFFER_BYTES
from outcrop.store.derived import Layout
from outcrop.store.facts import GraphFacts
from outcrop.store.offsets import Offsets, loading_bytes, offsets_bytes
from outcrop.store.store import GraphStore

_ALIGNMENT = 8

# What ShaDow fetches at a time, unless one list is longer.
SHADOW_ENTRIES = 1 << 20
# Budgets of caches that are nearly alike share a layout.
_STEPS = 64


def neighbor_bytes(graph: GraphFacts, spare_bytes: int) -> int:
    """A budget for a cache within `spare_bytes`: in steps, so that layouts are found again."""
    whole = whole_bytes(graph)
    step = -(-whole // _STEPS)
    return whole if spare_bytes >= whole else max(spare_bytes, 0) // step * step


def making_bytes(graph: GraphFacts) -> int:
    """What making the layout of any cache takes: offsets, a score per node, a start per list."""
    entries = graph.array_bytes("indices")
    copying = reading_bytes(entries) + min(READ_BLOCK_BYTES, entries) + 2 * WRITE_BUFFER_BYTES
    making = blocks_bytes(graph.num_nodes) + 4 * graph.num_nodes + copying
    return max(loading_bytes(graph), offsets_bytes(graph) + making)


def scratch_bytes(graph: GraphFacts, nodes: int, entries: int) -> int:
    """The most that a sampler keeps in the topology, if none of its frontiers is larger.

    For neighbour sampling these are a batch's nodes and edges. ShaDow also fetches whole lists, up
    to 2^20 entries or one list at a time, and takes 16 bytes more per entry while it does.
    """
    return _core.cached_topology_bytes(graph.item_bytes("indices"), nodes, entries)


class NeighborCache(Closing):
    """The lists of some nodes, in memory. Topologies over it may be used by many threads.

    Nodes are taken by descending score (the metric), of equals by ascending id; a list that does
    not fit into what is left of the budget is passed over.
    """

    def __init__(self, store: GraphStore, layout: Layout) -> None:
        """Nothing is loaded yet: `open` does both."""
        self._store = store
        self._layout = layout
        self._file = read_header(layout.path)
        self.nodes = self._file.lists
        """Cached nodes."""
        self.entries = self._file.entries
        self.memory_bytes = self._file.memory_bytes
        """What it holds while it is loaded; never above the budget."""
        self._lists = _core.NeighborLists(store.num_nodes, entry_dtype(store).itemsize)
        self.loaded = False
        self.load_seconds = 0.0
        """What the last load took."""

    @staticmethod
    def open(
        store: GraphStore,
        budget_bytes: int,
        metric: str = "out/in",
        progress: Progress | None = None,
        memory: Bytes | None = None,
    ) -> NeighborCache:
        """The cache of a budget, loaded; its layout is made where it is missing.

        `memory`: as in `reload`.
        """
        cache = NeighborCache.made(store, budget_bytes, metric, progress)
        try:
            cache.reload(memory)
        except BaseException:
            cache.close()
            raise
        return cache

    @staticmethod
    def made(
        store: GraphStore,
        budget_bytes: int,
        metric: str = "out/in",
        progress: Progress | None = None,
        scores: Metric | None = None,
    ) -> NeighborCache:
        """The same, without its lists in memory yet: `reload` gets them.

        `scores`: what a metric of any other name is.
        """
        chosen = scores or METRICS.get(metric)
        if chosen is None:
            raise OptionError(f"metric must be one of {', '.join(METRICS)} (got {metric!r})")
        if budget_bytes < 0:
            raise OptionError(f"budget_bytes must not be negative (got {budget_bytes})")
        # More than the whole is the whole, and less than the least is nothing: one layout each.
        budget = min(budget_bytes, whole_bytes(store.facts))
        if budget < least_bytes(store.facts):
            budget = 0
        layout = store.derived.get_or_build(
            KIND,
            {"bytes": budget, "metric": metric, "version": NEIGHBORS_VERSION},
            lambda folder: write_lists(store, folder, budget, chosen, progress or SILENT),
            progress=progress or SILENT,
        )
        try:
            return NeighborCache(store, layout)
        except BaseException:
            layout.close()
            raise

    # Memory

    def unload(self) -> None:
        """Waits for samplers that read lists now, and gives the memory up.

        Topologies go on, with every entry from disk.
        """
        self._lists.detach()
        self.loaded = False

    def reload(self, memory: Bytes | None = None) -> None:
        """Loads the lists, into the first `memory_bytes` of `memory` where it is given.

        That should begin on a page, so that the drive reads into it, and is the cache's until it is
        unloaded. CorruptError where a byte of the layout differs.
        """
        self.unload()
        start = time.perf_counter()
        if memory is None:
            memory = aligned_empty(self.memory_bytes)
        elif len(memory) < self.memory_bytes:
            raise OptionError(
                f"memory must have {format_size(self.memory_bytes)} "
                f"(got {format_size(len(memory))})"
            )
        elif memory.ctypes.data % _ALIGNMENT:
            raise OptionError(f"memory must begin at a multiple of {_ALIGNMENT} bytes")
        memory = memory[: self.memory_bytes]
        read_lists(self._store.disk, self._layout.path, self._file, memory)
        try:
            self._lists.attach(memory, self.nodes, self.entries)
        except ValueError as error:
            raise CorruptError(f"{self._layout.path}: {error}") from error
        self.loaded = True
        self.load_seconds = time.perf_counter() - start

    def close(self) -> None:
        """Also gives up the lease on the layout. Topologies may live on, as after `unload`."""
        self.unload()
        self._layout.close()

    # Use

    def topology(self, offsets: Offsets, macro: _core.MacroLists | None = None) -> _core.Topology:
        """A topology over this cache and the store's file; plain offsets may be mapped.

        `macro`: lists that come and go, for nodes that are not cached. It reads through the store's
        disk engine, and keeps the cache's memory.
        """
        entry = self._store.manifest.arrays["indices"]
        with self._store.disk.open(self._store.file("indices")) as file:
            engine, core = file.core
            return _core.cached_topology(
                offsets, self._lists, engine, core, entry.data_offset, macro
            )

    @property
    def hits(self) -> int:
        """Entries that were drawn from memory."""
        return self._lists.counts()[1]

    @property
    def misses(self) -> int:
        """Entries that were drawn from disk."""
        return self._lists.counts()[3]

    def reset(self) -> None:
        """Hits and misses are counted from now."""
        self._lists.reset_counts()
