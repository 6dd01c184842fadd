"""Loaders: a store -> the batches that PyG's own loaders would give, prepared by a strategy."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.utils.data
from torch_geometric.data import Batch, Data
from torch_geometric.loader import NeighborLoader as PygNeighborLoader
from torch_geometric.sampler import NodeSamplerInput

from outcrop.batch import Prepared
from outcrop.errors import OptionError
from outcrop.feed import Feed, seed_nodes
from outcrop.metrics import LoaderRecord
from outcrop.progress import SILENT, Progress
from outcrop.sample.sampler import Sampling
from outcrop.sample.seeds import SeedOrder, Stream
from outcrop.schedule import Schedule
from outcrop.store.store import GraphStore

if TYPE_CHECKING:
    from typing_extensions import Self

Transform = Callable[[Data], Any]

# Arguments of torch's DataLoader and of PyG's loaders that would be accepted in silence and mean
# nothing here: what each should be left at, and why.
_NOT_USED = {
    "num_workers": "batches are prepared by threads, whose number the strategy chooses",
    "persistent_workers": "there are no worker processes",
    "prefetch_factor": "memory= decides how many batches are prepared ahead",
    "multiprocessing_context": "there are no worker processes",
    "worker_init_fn": "there are no worker processes",
    "filter_per_worker": "there are no worker processes",
    "pin_memory": "give device= instead, and batches arrive there",
    "sampler": "Outcrop orders seeds itself; with Lightning use outcrop.lightning",
    "batch_sampler": "Outcrop orders seeds itself; with Lightning use outcrop.lightning",
    "generator": "randomness comes from seed=",
    "collate_fn": "use transform=",
    "timeout": "there are no worker processes",
    "subgraph_type": "only directional subgraphs are sampled",
    "disjoint": "only joint subgraphs are sampled; ShaDowLoader has one per seed",
    "temporal_strategy": "temporal sampling is not there yet",
    "time_attr": "temporal sampling is not there yet",
    "input_time": "temporal sampling is not there yet",
    "weight_attr": "weighted sampling is not there yet",
    "transform_sampler_output": "use transform=",
    "neighbor_sampler": "the store's own sampler is used",
}
_HARMLESS: dict[str, Any] = {"subgraph_type": "directional", "temporal_strategy": "uniform"}


@dataclass(frozen=True)
class LoaderOptions:
    """What a loader is made with, beside its store and sampler."""

    input_nodes: Any = None
    batch_size: int = 1
    strategy: str = "auto"
    memory: str | int = "8GB"
    disk: str | int | None = None
    epochs: int | None = None
    progress: Progress = SILENT
    seed: int = 0
    shuffle: bool = False
    drop_last: bool = False
    stream: Stream | None = None
    transform: Transform | None = None
    device: str | torch.device = "cpu"

    def seeds(self, store: GraphStore) -> SeedOrder:
        nodes, usual = seed_nodes(store, self.input_nodes)
        return SeedOrder(
            nodes,
            batch_size=self.batch_size,
            stream=usual if self.stream is None else self.stream,
            seed=self.seed,
            shuffle=self.shuffle,
            drop_last=self.drop_last,
        )


class _FedLoader(torch.utils.data.DataLoader[Any]):
    """What both loaders share: a schedule on a feed, and tensors over its memory."""

    feed: Feed
    schedule: Schedule
    transform: Transform | None
    device: torch.device

    def _open(
        self,
        store: GraphStore | str | os.PathLike[str],
        sampling: Sampling,
        options: LoaderOptions,
        rest: dict[str, Any],
    ) -> None:
        _refuse(rest)
        _refuse_ranks()
        self.store = store if isinstance(store, GraphStore) else GraphStore(store)
        seeds = options.seeds(self.store)
        self.feed = Feed(
            self.store,
            sampling,
            seeds,
            strategy=options.strategy,
            memory=options.memory,
            disk=options.disk,
            epochs=options.epochs,
            progress=options.progress,
            device=_device_name(torch.device(options.device)),
        )
        if self.feed.rows.in_slots and torch.device(options.device).type != "cpu":
            self.feed.close()
            raise OptionError(f"x=slots is for the CPU (got device={str(options.device)!r})")
        self._attach(options, seeds)

    def _attach(self, options: LoaderOptions, seeds: SeedOrder) -> None:
        self.options = options
        self.schedule = Schedule(self.feed, seeds)
        self.transform = options.transform
        self.device = torch.device(options.device)
        torch.utils.data.DataLoader.__init__(
            self,
            range(len(seeds.nodes)),  # type: ignore[arg-type]
            batch_size=options.batch_size,
            shuffle=options.shuffle and len(seeds.nodes) > 0,
            drop_last=options.drop_last,
            collate_fn=self.collate_fn,
        )

    def sibling(self, input_nodes: Any, **changes: Any) -> Self:
        """A loader of other seeds (say "val", shuffle=False) that shares this one's memory.

        `changes`: batch_size, shuffle, drop_last, stream, transform. Use one of them at a time.
        """
        options = replace(self.options, input_nodes=input_nodes, **changes)
        fixed = ("strategy", "memory", "disk", "epochs", "seed", "device")
        for name in fixed:
            if getattr(options, name) != getattr(self.options, name):
                raise OptionError(f"{name} is shared with the sibling; make another loader")
        other = type(self).__new__(type(self))
        other.__dict__.update(store=self.store, feed=self.feed)
        other._attach(options, options.seeds(self.store))
        return other

    def _convert(self, batch: Prepared) -> Data:
        raise NotImplementedError

    def _finish(self, batch: Prepared) -> Any:
        data = self._convert(batch)
        if self.device.type != "cpu":
            data = data.to(self.device, non_blocking=True)
        return data if self.transform is None else self.transform(data)

    def _finished(self, batches: Iterator[Prepared]) -> Iterator[Any]:
        try:
            for batch in batches:
                data = self._finish(batch)
                del batch  # the loop alone holds it now
                yield data
                del data
        finally:
            batches.close()  # type: ignore[attr-defined]

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        """The next epoch; after load_state_dict, the rest of the saved one."""
        return self._finished(self.schedule.next_epoch())

    def epoch(self, epoch: int, batches: int | None = None, first_batch: int = 0) -> Iterator[Any]:
        """The batches of one epoch, by its number; iterating the loader goes on after it.

        `batches`: only so many of them, from `first_batch` on.
        """
        last_batch = None if batches is None else first_batch + batches
        return self._finished(self.schedule.epoch(epoch, first_batch, last_batch))

    def __call__(self, index: torch.Tensor | Sequence[int]) -> Any:
        """The batch around input nodes at these positions."""
        return self.collate_fn(index)

    def collate_fn(self, index: torch.Tensor | Sequence[int]) -> Any:
        positions = np.asarray(index, dtype=np.int64)
        count = len(self.schedule.seeds.nodes)
        if positions.size and not 0 <= positions.min() <= positions.max() < count:
            raise OptionError(f"positions of input nodes must be 0 to {count - 1}")
        return self._finish(self.schedule.one(positions))

    @property
    def record(self) -> LoaderRecord:
        """What was counted so far; siblings share it."""
        return self.feed.record

    def state_dict(self) -> dict[str, Any]:
        """The position: save it between batches, and a loader made alike resumes there."""
        return self.schedule.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.schedule.load_state_dict(state)

    def close(self) -> None:
        """Gives the strategy's memory back; siblings end with it."""
        self.feed.close()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.store}, strategy={self.record.strategy!r})"


class NeighborLoader(_FedLoader, PygNeighborLoader):  # type: ignore[misc]
    """PyG's NeighborLoader over a store: the same batches, whatever the strategy and the memory."""

    def __init__(
        self,
        store: GraphStore | str | os.PathLike[str],
        num_neighbors: Sequence[int],
        input_nodes: Any = None,
        *,
        batch_size: int = 1,
        strategy: str = "auto",
        memory: str | int = "8GB",
        disk: str | int | None = None,
        epochs: int | None = None,
        progress: Progress = SILENT,
        seed: int = 0,
        shuffle: bool = False,
        drop_last: bool = False,
        replace: bool = False,
        stream: Stream | None = None,
        transform: Transform | None = None,
        device: str | torch.device = "cpu",
        **rest: Any,
    ) -> None:
        """A store, or its path -> batches around `input_nodes`.

        input_nodes: "train", "val", "test", node ids, a mask, or None for all nodes.
        strategy: who decides what is read and kept; auto: `memory` where everything fits, else the
            one that should be fastest (docs/training.md). Batches do not depend on it.
        memory: what everything together may use, beside Python, torch and the model.
        disk: what the strategy may write beside the store; None: what it needs.
        epochs: how many there will be, for strategies that prepare them all; None: not known.
        progress: is told of what is prepared before the first batch.
        stream: random choices of their own for validation, test ...; by default as input_nodes say.
        device: where batches go.

        PyG's NodeLoader.__init__ is not called: it would hold the ids of all nodes.
        """
        sampling = Sampling.of(num_neighbors, replace=replace)
        options = LoaderOptions(
            input_nodes=input_nodes,
            batch_size=batch_size,
            strategy=strategy,
            memory=memory,
            disk=disk,
            epochs=epochs,
            progress=progress,
            seed=seed,
            shuffle=shuffle,
            drop_last=drop_last,
            stream=stream,
            transform=transform,
            device=device,
        )
        self._open(store, sampling, options, rest)

    # What PyG's own code reads of a loader

    transform_sampler_output = None
    filter_per_worker = False
    custom_cls = None

    @property
    def data(self) -> StoreData:
        return StoreData(self.store)

    @property
    def node_sampler(self) -> _SamplerFacts:
        return _SamplerFacts(list(self.feed.sampling.num_neighbors))

    @property
    def input_nodes(self) -> Any:
        return self.options.input_nodes

    @property
    def input_data(self) -> NodeSamplerInput:
        """All input nodes, as PyG's loaders keep them; made when asked for."""
        seeds = self.schedule.seeds
        nodes = torch.from_numpy(seeds.seeds(np.arange(len(seeds.nodes))))
        return NodeSamplerInput(input_id=None, node=nodes)

    def _convert(self, batch: Prepared) -> Data:
        data = _data(batch, Data())
        data.batch = None
        # Samples of others may come without.
        data.num_sampled_nodes = batch.nodes_per_hop or None
        data.num_sampled_edges = batch.edges_per_hop or None
        data.input_id = torch.from_numpy(batch.task.input_ids)
        data.seed_time = None
        data.batch_size = len(batch.task.seeds)
        return data


class ShaDowLoader(_FedLoader):
    """PyG's ShaDowKHopSampler over a store: for each seed its own k-hop subgraph.

    Batches have `root_n_id`, the local ids of the seeds; `y` is of the seeds alone.
    """

    def __init__(
        self,
        store: GraphStore | str | os.PathLike[str],
        depth: int,
        num_neighbors: int,
        input_nodes: Any = None,
        *,
        batch_size: int = 1,
        strategy: str = "auto",
        memory: str | int = "8GB",
        disk: str | int | None = None,
        epochs: int | None = None,
        progress: Progress = SILENT,
        seed: int = 0,
        shuffle: bool = False,
        drop_last: bool = False,
        replace: bool = False,
        stream: Stream | None = None,
        transform: Transform | None = None,
        device: str | torch.device = "cpu",
        **rest: Any,
    ) -> None:
        """As NeighborLoader; `depth` hops of `num_neighbors` each."""
        if depth < 1:
            raise OptionError(f"depth must be at least 1 (got {depth})")
        sampling = Sampling.of([num_neighbors] * depth, replace=replace, kind="shadow")
        options = LoaderOptions(
            input_nodes=input_nodes,
            batch_size=batch_size,
            strategy=strategy,
            memory=memory,
            disk=disk,
            epochs=epochs,
            progress=progress,
            seed=seed,
            shuffle=shuffle,
            drop_last=drop_last,
            stream=stream,
            transform=transform,
            device=device,
        )
        self._open(store, sampling, options, rest)

    def _convert(self, batch: Prepared) -> Data:
        data = _data(batch, Batch())
        data.ptr = torch.tensor(batch.roots)
        data.root_n_id = data.ptr[:-1]
        data.input_id = torch.from_numpy(batch.task.input_ids)
        data.batch = torch.repeat_interleave(
            torch.arange(len(batch.roots) - 1), data.ptr.diff(), output_size=len(batch.n_id)
        )
        if batch.y is not None:
            data.y = data.y[data.root_n_id]
        return data


def _data(batch: Prepared, data: Data) -> Data:
    """What both kinds of batches have. Tensors share the batch's memory and keep it charged."""
    data.edge_index = torch.from_numpy(batch.edge_index)
    data.num_nodes = len(batch.n_id)
    if batch.assemble is not None:
        data.x = batch.assemble()
        batch.assemble = batch.stored = None  # their memory goes back now
    elif batch.x is not None:
        data.x = torch.from_numpy(batch.x)
    if batch.x_buffer is not None and batch.x_index is not None:
        data.x_buffer = torch.from_numpy(batch.x_buffer)
        data.x_index = torch.from_numpy(batch.x_index)
    if batch.y is not None:
        data.y = torch.from_numpy(batch.y)
    data.n_id = torch.from_numpy(batch.n_id)
    data.e_id = torch.from_numpy(batch.e_id)
    return data


def _device_name(device: torch.device) -> str:
    """There is one CPU, whether or not it has a number."""
    return "cpu" if device.type == "cpu" else str(device)


class _SamplerFacts:
    """What PyG reads of a loader's sampler."""

    edge_permutation = None

    def __init__(self, num_neighbors: list[int]) -> None:
        self.num_neighbors = num_neighbors


class StoreData(Data):  # type: ignore[misc]
    """A store as PyG's `Data`, for code that reads `loader.data`: memory-mapped, never loaded."""

    def __init__(self, store: GraphStore) -> None:
        super().__init__(num_nodes=store.num_nodes)
        self.__dict__["_outcrop_store"] = store

    @property
    def x(self) -> torch.Tensor | None:
        return getattr(self._outcrop_store, "x", None)

    @property
    def y(self) -> torch.Tensor | None:
        return getattr(self._outcrop_store, "y", None)

    @property
    def edge_index(self) -> Any:
        return self._outcrop_store.edge_index

    @property
    def num_edges(self) -> int:
        return int(self._outcrop_store.num_edges)

    @property
    def num_node_features(self) -> int:
        store = self._outcrop_store
        return int(store.num_features) if store.has("features") else 0

    def __getattr__(self, name: str) -> Any:
        """What the store has beside: num_classes, train_mask ..."""
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(self.__dict__["_outcrop_store"], name)


def _refuse(rest: dict[str, Any]) -> None:
    for name, value in rest.items():
        if name not in _NOT_USED:
            raise TypeError(f"unexpected argument {name!r}")
        if value and value != _HARMLESS.get(name):
            raise OptionError(f"{name}={value!r} cannot be used: {_NOT_USED[name]}")


def _refuse_ranks() -> None:
    distributed = torch.distributed
    if distributed.is_available() and distributed.is_initialized():
        ranks = distributed.get_world_size()
        if ranks > 1:
            raise OptionError(
                f"training on {ranks} ranks is not there yet: each would see all seeds; give each "
                "its own input_nodes in a process group of its own"
            )
