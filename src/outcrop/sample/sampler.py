"""Samplers: a task -> the subgraph around its seeds; choices are keyed, so it is always the same.

Neighbour sampling and ShaDow differ in C++ only (cpp/sample); here they are one class.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from outcrop import _core
from outcrop.disk import Disk, Recycled, RowReader
from outcrop.errors import OptionError
from outcrop.sample.seeds import Ids, Task
from outcrop.store.checks import ArrayChecks
from outcrop.store.store import GraphStore

# The generator, the draw and the order of picks, as docs/format.md has them: enters every key of
# what is derived from samples.
SAMPLING_VERSION = 1
EDGE_IDS = "edge_ids"
"""The array of a store that has the user's own edges, by place in its topology."""


@dataclass(frozen=True)
class Reuse:
    """What of a batch is used again, and for whom it makes what others will use (history=).

    Pulled nodes follow those of the first hop: they are the first that the second one found.
    """

    iteration: int
    pulled_slots: NDArray[np.int32]
    """Where the embedding of each is."""
    pulled_from: NDArray[np.int32]
    """The iteration that pushed it."""
    pushed: NDArray[np.uint32]
    """Local ids, of seeds and of the first hop ..."""
    pushed_slots: NDArray[np.int32]
    """... and where their embeddings go."""


class FirstHopGate(Protocol):
    """Decides, batch by batch, who is not expanded by the second hop."""

    def decide(self, iteration: int, nodes: Ids, seeds: int) -> tuple[NDArray[np.uint8], Reuse]:
        """`nodes`: the seeds, then what the first hop found -> an entry for each of the latter, 1
        where it is put off. Waits for the batches before."""

    def cancel(self) -> None:
        """Whoever waits, or would, gets CancelledError. From any thread."""


@dataclass(frozen=True)
class Subgraph:
    """A sampled subgraph, compact: edges are grouped by target, targets ascending.

    `counts[t]` edges end at local node t; `sources` are local ids.
    """

    nodes: NDArray[np.int64]
    sources: NDArray[np.uint32]
    counts: NDArray[np.uint32]
    edge_ids: NDArray[Any] | None
    """int32 or int64: the user's own edges, or positions in the topology; None: not kept."""
    nodes_per_hop: list[int]
    """Neighbour sampling: the seeds, then what each hop discovered."""
    edges_per_hop: list[int]
    roots: list[int]
    """ShaDow: where each root's own nodes begin, and where the last end."""
    reuse: Reuse | None = None
    """None: nothing is used again."""


class WaitingBatches:
    """Memory for subgraphs that wait, each in a copy of its own, so that samplers need not."""

    def __init__(self, subgraph_bytes: int) -> None:
        """`subgraph_bytes`: what most of them take, at most."""
        self._memory = Recycled(subgraph_bytes)

    @staticmethod
    def subgraph_bytes(nodes: int, edges: int) -> int:
        return 12 * (nodes + edges)

    def copy(self, subgraph: Subgraph) -> Subgraph:
        """The same one, until it is dropped."""
        # The widest first, so that all are aligned.
        names = ("nodes", "edge_ids", "sources", "counts")
        arrays = {name: getattr(subgraph, name) for name in names}
        arrays = {name: array for name, array in arrays.items() if array is not None}
        memory = self._memory.take(sum(array.nbytes for array in arrays.values()))
        copies = {}
        for name, array in arrays.items():
            copy, memory = memory[: array.nbytes].view(array.dtype), memory[array.nbytes :]
            copy[:] = array
            copies[name] = copy
        return replace(subgraph, **copies)


@dataclass(frozen=True)
class Sampling:
    """What is sampled around seeds."""

    num_neighbors: tuple[int, ...]
    """Per hop; -1 takes all."""
    replace: bool = False
    kind: Literal["neighbor", "shadow"] = "neighbor"
    edge_ids: bool = False
    """Whether batches have `e_id`. Changes nothing else of them."""

    def __post_init__(self) -> None:
        if self.kind not in ("neighbor", "shadow"):
            raise OptionError(f"a sampler is neighbor or shadow (got {self.kind!r})")
        if not self.num_neighbors:
            raise OptionError("num_neighbors needs an entry per hop (got none)")
        if any(n < -1 for n in self.num_neighbors):
            raise OptionError(
                f"num_neighbors takes counts, or -1 for all (got {list(self.num_neighbors)})"
            )

    @classmethod
    def of(
        cls,
        num_neighbors: Sequence[int],
        *,
        replace: bool = False,
        kind: Literal["neighbor", "shadow"] = "neighbor",
        edge_ids: bool = False,
    ) -> Sampling:
        if isinstance(num_neighbors, Mapping):
            raise OptionError(
                "a store has one type of edges: num_neighbors needs a count per hop, such as "
                f"[10, 10] (got {num_neighbors!r})"
            )
        try:
            counts = tuple(operator.index(count) for count in num_neighbors)
        except TypeError:
            raise OptionError(
                f"num_neighbors needs a count per hop, such as [10, 10] (got {num_neighbors!r})"
            ) from None
        return cls(counts, replace, kind, edge_ids)


class EdgeIds(Protocol):
    """Places -> ids."""

    def look_up(self, positions: Ids) -> NDArray[Any]:
        """int32 or int64, as they are stored."""

    def cancel(self) -> None:
        """A look-up under way, and every later one, raises CancelledError. From any thread."""


class LoadedEdgeIds:
    """Ids of all edges in memory. Thread-safe."""

    def __init__(self, ids: NDArray[Any]) -> None:
        self._ids = ids

    def look_up(self, positions: Ids) -> NDArray[Any]:
        found: NDArray[Any] = self._ids[positions]
        return found

    def cancel(self) -> None:
        """A look-up takes milliseconds."""


class StoredEdgeIds:
    """Ids read from the drive, around the page cache. Not thread-safe, apart from `cancel`."""

    def __init__(self, disk: Disk, checks: ArrayChecks) -> None:
        """`checks`: of their file."""
        self._disk, self._checks, self._dtype = disk, checks, checks.entry.dtype
        self._reader = RowReader(disk.open(checks.path), checks.entry.data_offset)

    def look_up(self, positions: Ids) -> NDArray[Any]:
        if self._checks.on_read:
            self._checks.check_rows(self._disk, positions, self._dtype.itemsize)
        found = np.empty(len(positions), self._dtype)
        self._reader.read(positions, found)
        return found

    def cancel(self) -> None:
        self._reader.cancel()


class TaskSampler(Protocol):
    """What samples one task at a time. Not thread-safe, apart from `cancel`: one per thread."""

    def sample(self, task: Task) -> Subgraph:
        """The arrays are views, valid until the next call."""

    @property
    def memory_bytes(self) -> int:
        """What it holds for its next call, beside what looking edges up takes."""

    def cancel(self) -> None:
        """A sample under way, and every later one, raises CancelledError. From any thread."""


class Topology:
    """An open topology, wherever its lists are. Samplers of many threads may draw from it."""

    def __init__(
        self,
        store: GraphStore,
        core: _core.Topology,
        threads: int,
        *,
        edge_ids: bool = False,
        loaded: EdgeIds | None = None,
    ) -> None:
        """`threads`: of each sampler. `edge_ids`: looked up in `loaded`, or else on the drive."""
        self._core = core
        self._threads = threads
        self._loaded = loaded
        self._stored = (store.disk, store.checks(EDGE_IDS)) if edge_ids else None

    def sampler(
        self, sampling: Sampling, seed: int, gate: FirstHopGate | None = None
    ) -> TaskSampler:
        """For one thread. `gate`: of tasks that have an iteration."""
        edge_ids = self._loaded
        if edge_ids is None and self._stored is not None:
            edge_ids = StoredEdgeIds(*self._stored)
        return Sampler(sampling, self._core, seed, self._threads, edge_ids, gate)

    def close(self) -> None:
        with suppress(AttributeError):  # closed twice is closed
            del self._core
        self._loaded = None


class Sampler:
    """Samples tasks from a topology. Not thread-safe: one per thread."""

    def __init__(
        self,
        sampling: Sampling,
        topology: _core.Topology,
        seed: int,
        threads: int = 1,
        edge_ids: EdgeIds | None = None,
        gate: FirstHopGate | None = None,
    ) -> None:
        """`edge_ids`: of its own, to look sampled edges up in; None: they have their positions."""
        make = _core.NeighborSampler if sampling.kind == "neighbor" else _core.ShadowSampler
        self._core = make(
            topology, list(sampling.num_neighbors), replace=sampling.replace, threads=threads
        )
        self._seed = seed
        self._edge_ids = edge_ids
        self._gate = gate

    def sample(self, task: Task) -> Subgraph:
        """The arrays are views, valid until the next call."""
        core = self._core
        key = {"stream": task.stream, "epoch": task.epoch, "batch": task.batch}
        reuse = None
        if self._gate is None or task.iteration is None:
            core.sample(task.seeds, seed=self._seed, **key)
        else:
            assert isinstance(core, _core.NeighborSampler)
            core.begin(task.seeds, seed=self._seed, **key)
            deferred, reuse = self._gate.decide(task.iteration, core.nodes, len(task.seeds))
            core.finish(deferred)
        positions = core.edge_ids
        return Subgraph(
            nodes=core.nodes,
            sources=core.sources,
            counts=core.counts,
            edge_ids=positions if self._edge_ids is None else self._edge_ids.look_up(positions),
            nodes_per_hop=core.nodes_per_hop,
            edges_per_hop=core.edges_per_hop,
            roots=core.roots,
            reuse=reuse,
        )

    @property
    def memory_bytes(self) -> int:
        """What it holds for its next call, beside what looking edges up takes."""
        return self._core.memory_bytes

    def cancel(self) -> None:
        """A sample under way, and every later one, raises CancelledError. From any thread."""
        self._core.cancel()
        if self._edge_ids is not None:
            self._edge_ids.cancel()
        if self._gate is not None:
            self._gate.cancel()
