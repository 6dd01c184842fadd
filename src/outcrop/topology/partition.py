"""Lists for batches of partitions: those that other partitions want, and the macro batch's own.

The first are chosen once, by how often lists of other partitions name a node, and stay. The others
are those of the partitions whose seeds are sampled now; they are read in sequence when the first
batch of a macro batch comes, in place of those before (OUTRE). Batches do not depend on them: what
is in neither is read.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from numpy.typing import NDArray

from outcrop import _core
from outcrop.disk import PAGE_BYTES, aligned_empty
from outcrop.errors import OptionError
from outcrop.layout.neighbors import Bytes, Metric, Scores, per_entry, whole_bytes
from outcrop.layout.partitions import PartitionOptions, Partitions, open_partitions
from outcrop.memory.context import Context
from outcrop.progress import Progress
from outcrop.sample.batching import Macro, PartitionBatching, SeedGroups
from outcrop.sample.sampler import FirstHopGate, Sampling, Subgraph, TaskSampler
from outcrop.sample.seeds import SeedOrder, Task
from outcrop.store.offsets import load_offsets
from outcrop.store.store import GraphStore
from outcrop.topology.lists import NeighborCache
from outcrop.topology.parts import CachedLists, CachedTopology, Opening

if TYPE_CHECKING:
    from typing_extensions import Self

# Macro batches differ in size: what the mean takes, and so much more.
_MARGIN = 1.25
# While lists are attached, their nodes and offsets are in memory as well, beside them and as read.
_ATTACHING_BYTES = 3 * 8


@dataclass(frozen=True)
class PartitionLists(CachedLists):
    """Cached lists, and those of the macro batch beside them."""

    macro_bytes: int = 0
    """For the lists of a macro batch; partitions that are too large for it are left out."""
    seeds: SeedOrder | None = None
    """Whose macro batches they are."""
    name: ClassVar[str] = "partition"

    @classmethod
    def of(cls, context: Context) -> PartitionLists:
        """Without lists yet; OptionError where batches are not of partitions."""
        groups = context.seeds.groups
        if groups is None or groups.batching is None:
            raise OptionError("topology=partition is for batching='partition'")
        return cls(0, seeds=context.seeds)

    def within(self, context: Context, room: int) -> Self:
        """A macro batch has half of it at most; nothing where all lists are in memory anyway."""
        assert self.seeds is not None and self.seeds.groups is not None
        batching, macro = self.seeds.groups.batching, 0
        assert batching is not None
        if room < whole_bytes(context.graph):
            macro = min(int(_macro_bytes(context, batching) * _MARGIN), room // 2)
            macro = macro // PAGE_BYTES * PAGE_BYTES
        return replace(super().within(context, room - macro), macro_bytes=macro)

    def kept_bytes(self, _: Context) -> int:
        return self.bytes + self.macro_bytes

    def open(self, on: Opening) -> PartitionTopology:
        assert self.seeds is not None and self.seeds.groups is not None
        partitions = _open(on, self.seeds.groups)
        try:
            metric = f"cross of {partitions.digest}"
            lists = NeighborCache.made(
                on.store, self.bytes, metric, on.progress, scores=cross_per_in(partitions)
            )
            try:
                topology = PartitionTopology(on, lists, self, partitions)
                topology.load(on.memory if self.region is not None else None)
                return topology
            except BaseException:
                lists.close()
                raise
        except BaseException:
            partitions.close()
            raise


def _open(on: Opening, groups: SeedGroups) -> Partitions:
    batching = groups.batching
    assert batching is not None
    options = PartitionOptions(parts=batching.parts, seed=batching.seed)
    return Partitions(on.store.disk, open_partitions(on.store, options, on.progress))


def _macro_bytes(context: Context, batching: PartitionBatching) -> int:
    """What the lists of a macro batch take on average, while they are attached."""
    graph = context.graph
    share = min(batching.macro / (batching.parts or 1), 1.0)
    return _lists_bytes(int(graph.num_nodes * share), int(graph.array_bytes("indices") * share))


def _lists_bytes(nodes: int, entry_bytes: int) -> int:
    """What lists of so many nodes take, while they are attached."""
    return _core.MacroLists.table_bytes(nodes) + entry_bytes + _ATTACHING_BYTES * nodes


def cross_per_in(partitions: Partitions) -> Metric:
    """How often other partitions want a list, by its length."""

    def scores(store: GraphStore, _: Progress) -> Scores:
        return per_entry(store, partitions.load_cross())

    return scores


class PartitionTopology(CachedTopology):
    """Samplers tell it what they sample; the first of a macro batch loads its lists."""

    def __init__(
        self, on: Opening, lists: NeighborCache, part: PartitionLists, partitions: Partitions
    ) -> None:
        self._macro = _core.MacroLists(partitions.file.entry_bytes)
        super().__init__(on, lists, lists.topology(load_offsets(on.store), self._macro))
        assert part.seeds is not None
        self._seeds, self._partitions = part.seeds, partitions
        self._room = part.macro_bytes
        self._lock = threading.Lock()
        # Guarded by _lock
        self._region: NDArray[np.uint8] | None = None
        self._recent: list[tuple[int, int]] = []

    def load(self, memory: Bytes | None = None) -> None:
        """Lists of macro batches come at the beginning of it, when they are sampled."""
        region = aligned_empty(self._room) if memory is None else memory[: self._room]
        super().load(None if memory is None else memory[self._room :])
        with self._lock:
            self._region = region if self._room else None

    def unload(self) -> None:
        super().unload()
        with self._lock:
            self._macro.detach()
            self._region, self._recent = None, []

    def sampler(
        self, sampling: Sampling, seed: int, gate: FirstHopGate | None = None
    ) -> TaskSampler:
        return _MacroSampler(self, super().sampler(sampling, seed, gate))

    def prepare(self, task: Task) -> None:
        """Loads the lists of the task's macro batch, unless they are loaded, or were before the
        ones that are (a sampler that is late reads its own), or their memory has others' rows."""
        seeds = self._seeds
        if seeds.groups is None or task.stream != seeds.stream or task.batch >= len(seeds):
            return
        end = seeds.range_of(task.batch)[1]
        (macro,) = seeds.groups.macros(seeds.seed, seeds.stream, task.epoch, end - 1, end)
        with self._lock:
            if self._region is not None and (task.epoch, macro.number) not in self._recent:
                self._load(macro, self._region)
                self._recent = [*self._recent[-1:], (task.epoch, macro.number)]

    def _load(self, macro: Macro, region: NDArray[np.uint8]) -> None:
        self._macro.detach()
        of, size = self._partitions, self._partitions.file.entry_bytes
        chosen, nodes, total = [], 0, 0
        for part in map(int, macro.parts):
            more = int(of.member_offsets[part + 1] - of.member_offsets[part])
            entries = int(of.entry_offsets[part + 1] - of.entry_offsets[part])
            if _lists_bytes(nodes + more, (total + entries) * size) <= self._room:
                chosen.append(part)
                nodes, total = nodes + more, total + entries
        table_bytes = _core.MacroLists.table_bytes(nodes)
        table, left = region[:table_bytes], region[table_bytes:]
        words = left[: 8 * (2 * nodes + 1)].view(np.int64)
        all_nodes, all_starts = words[:nodes], words[nodes:]
        entries_memory = left[words.nbytes : words.nbytes + total * size]
        all_starts[0] = 0
        at = first = 0
        for part in chosen:
            members, offsets = of.members(part), of.list_offsets(part)
            count, entries = len(members), int(offsets[-1] - offsets[0])
            all_nodes[at : at + count] = members
            all_starts[at + 1 : at + count + 1] = offsets[1:] - offsets[0] + first
            piece = entries_memory[first * size : (first + entries) * size]
            of.lists(part, piece.view(of.file.lists.dtype))
            at, first = at + count, first + entries
        self._macro.attach(table, all_nodes, all_starts, entries_memory)

    def close(self) -> None:
        self.unload()
        super().close()
        self._partitions.close()


class _MacroSampler:
    """A sampler that says what it is about to sample."""

    def __init__(self, topology: PartitionTopology, sampler: TaskSampler) -> None:
        self._topology, self._sampler = topology, sampler

    def sample(self, task: Task) -> Subgraph:
        self._topology.prepare(task)
        return self._sampler.sample(task)

    @property
    def memory_bytes(self) -> int:
        return self._sampler.memory_bytes

    def cancel(self) -> None:
        self._sampler.cancel()
