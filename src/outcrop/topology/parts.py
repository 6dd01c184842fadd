"""Topology: where samplers find a store's neighbour lists. Batches do not depend on it.

Each place is a part of a plan (`Resident`, `Mapped`, `Paged`, `CachedLists`), which says what it
takes; opened, it is a `Topology`.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Literal

from outcrop import _core
from outcrop.layout.neighbors import Bytes
from outcrop.memory.charges import PREPARATION, Charge, Phase
from outcrop.memory.context import Context
from outcrop.progress import SILENT, Progress
from outcrop.sample.sampler import LoadedEdgeIds, Topology
from outcrop.store.offsets import load_offsets, offsets_bytes
from outcrop.store.store import GraphStore
from outcrop.threads.parallel import cpu_count
from outcrop.topology.lists import (
    SHADOW_ENTRIES,
    NeighborCache,
    making_bytes,
    neighbor_bytes,
    scratch_bytes,
)

if TYPE_CHECKING:
    from typing_extensions import Self

# Each waits for a page that is not there: as many threads as the drive serves at once.
PAGE_THREADS = 64

TopologyName = Literal["auto", "mmap", "cache", "memory"]
"""Where neighbour lists are: in the page cache; some in memory and the others read around the page
cache; all in memory. auto: as the strategy finds best."""


@dataclass(frozen=True)
class Opening:
    """What a topology is opened with."""

    store: GraphStore
    edge_ids: bool = False
    """Whether sampled edges are looked up in what the store keeps of them."""
    progress: Progress = SILENT
    memory: Bytes | None = None
    """The memory of the region that it may be in."""


class TopologyPart(ABC):
    """What a plan says of the topology."""

    name: ClassVar[str]
    """As options and records have it."""

    def charges(self, _: Context) -> Sequence[Charge]:
        """All that it keeps."""
        return []

    def sampler_bytes(self, context: Context) -> int:
        """What one sampler that draws from it takes."""
        return context.sampler_bytes()

    def kept_bytes(self, _: Context) -> int:
        """What neighbour lists take in memory."""
        return 0

    def written_bytes(self, _: Context) -> int:
        """What it keeps on disk, at most."""
        return 0

    @abstractmethod
    def open(self, on: Opening) -> Topology: ...


class CachedTopology(Topology):
    """An open topology with the lists of some nodes in memory."""

    def __init__(
        self, on: Opening, lists: NeighborCache, core: _core.Topology | None = None
    ) -> None:
        """`core`: over these lists; None: over them alone."""
        core = core or lists.topology(load_offsets(on.store))
        super().__init__(on.store, core, cpu_count(), edge_ids=on.edge_ids)
        self.lists = lists

    def load(self, memory: Bytes | None = None) -> None:
        """Loads what it keeps; into this memory, if it is one that others have meanwhile."""
        self.lists.reload(memory)

    def unload(self) -> None:
        """Waits for samplers that read lists now, and gives the memory up."""
        self.lists.unload()

    def close(self) -> None:
        super().close()
        self.lists.close()


@dataclass(frozen=True)
class Resident(TopologyPart):
    """All of it in memory."""

    name: ClassVar[str] = "memory"

    def charges(self, context: Context) -> Sequence[Charge]:
        kept = context.graph.array_bytes("edge_ids") if context.keeps_edge_ids else 0
        return [Charge("topology", context.graph.topology_bytes), Charge("edge ids", kept)]

    def kept_bytes(self, context: Context) -> int:
        return context.graph.topology_bytes

    def sampler_bytes(self, context: Context) -> int:
        return context.sampler_bytes(loaded_edge_ids=True)

    def open(self, on: Opening) -> Topology:
        store = on.store
        core = _core.array_topology(store.load("indptr"), store.load("indices"))
        loaded = LoadedEdgeIds(store.load("edge_ids")) if on.edge_ids else None
        return Topology(store, core, cpu_count(), edge_ids=on.edge_ids, loaded=loaded)


@dataclass(frozen=True)
class Mapped(TopologyPart):
    """A memory map: no memory of its own, a page fault per miss. A drive that fails is SIGBUS."""

    threads: int = PAGE_THREADS
    name: ClassVar[str] = "mmap"

    def open(self, on: Opening) -> Topology:
        core = mapped_topology(on.store)
        return Topology(on.store, core, self.threads, edge_ids=on.edge_ids)


@dataclass(frozen=True)
class Paged(Mapped):
    """The page cache, read and not mapped: a drive that fails is an error."""

    page_cache_bytes: int = 0
    """What is left to it: a hard limit counts it as ours."""

    def charges(self, _: Context) -> Sequence[Charge]:
        return [Charge("topology in the page cache", self.page_cache_bytes)]

    def kept_bytes(self, _: Context) -> int:
        return self.page_cache_bytes

    def open(self, on: Opening) -> Topology:
        core = paged_topology(on.store)
        return Topology(on.store, core, self.threads, edge_ids=on.edge_ids)


@dataclass(frozen=True)
class CachedLists(TopologyPart):
    """The lists of some nodes in memory; entries of others are read around the page cache."""

    bytes: int
    metric: str = "out/in"
    region: str | None = None
    """The name of memory that has others' rows while nobody samples."""
    name: ClassVar[str] = "cache"

    def within(self, context: Context, room: int) -> Self:
        """The largest in so much memory, in steps."""
        return replace(self, bytes=neighbor_bytes(context.graph, room))

    def charges(self, context: Context) -> Sequence[Charge]:
        when = Phase.AHEAD if self.region else Phase.RUN
        return [
            Charge("indptr", offsets_bytes(context.graph)),
            Charge("neighbour cache", self.kept_bytes(context), when, self.region),
            Charge("choosing lists", making_bytes(context.graph), Phase.PREPARE, PREPARATION),
        ]

    def sampler_bytes(self, context: Context) -> int:
        return context.sampler_bytes() + lists_scratch_bytes(context)

    def kept_bytes(self, _: Context) -> int:
        return self.bytes

    def written_bytes(self, _: Context) -> int:
        return self.bytes

    def open(self, on: Opening) -> Topology:
        # Loading indptr needs a little more than is kept of it: less than choosing lists did, as
        # long as no list is in memory.
        lists = NeighborCache.made(on.store, self.bytes, self.metric, on.progress)
        try:
            topology = CachedTopology(on, lists)
            topology.load(on.memory if self.region is not None else None)
            return topology
        except BaseException:
            lists.close()
            raise


def lists_scratch_bytes(context: Context) -> int:
    """What cached lists keep for each sampler, beside the sampler's own."""
    entries = context.batch.edges
    repeated = 0
    if context.sampling.kind == "shadow":  # whole lists, many nodes more than once
        entries = max(entries, SHADOW_ENTRIES)
        repeated = 16 * entries
    return scratch_bytes(context.graph, context.batch.targets, entries) + repeated


def mapped_topology(store: GraphStore) -> _core.Topology:
    """The store's topology as a memory map."""
    return _core.array_topology(
        store.array("indptr", random_access=True), store.array("indices", random_access=True)
    )


def paged_topology(store: GraphStore) -> _core.Topology:
    """The store's topology through the page cache, which keeps what it has room for.

    It reads a page per miss, as a memory map does; but a file that was truncated, or a drive that
    fails, raises ReadError, where a map would end the process (SIGBUS).
    """
    indptr, indices = store.manifest.arrays["indptr"], store.manifest.arrays["indices"]
    return _core.paged_topology(
        _open(store, "indptr"),
        indptr.data_offset,
        _open(store, "indices"),
        indices.data_offset,
        entry_bytes=indices.dtype.itemsize,
        num_nodes=store.num_nodes,
        num_edges=store.num_edges,
    )


def _open(store: GraphStore, name: str) -> _core.File:
    return _core.File.open(os.fspath(store.file(name)), _core.Access.BUFFERED)
