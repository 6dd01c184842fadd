"""NeighborLoader: a store -> the batches that PyG's own would give, prepared by a strategy.

What it shares with other loaders is `StoreLoader`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.utils.data
from torch_geometric.data import Data
from torch_geometric.loader import NeighborLoader as PygNeighborLoader
from torch_geometric.sampler import NodeSamplerInput

from outcrop.errors import OptionError
from outcrop.loader.arguments import as_device, as_store, sort_out, whole_number
from outcrop.loader.history import History, history_given
from outcrop.memory.batches import Batch
from outcrop.observe.record import LoaderRecord
from outcrop.plan.plan import Strategy
from outcrop.progress import SILENT, Progress
from outcrop.run.order import check_batching, seed_order
from outcrop.run.runner import Runner
from outcrop.run.schedule import Schedule
from outcrop.sample.batching import RANDOM
from outcrop.sample.sampler import Sampling
from outcrop.sample.seeds import SeedOrder, Stream
from outcrop.store.store import GraphStore
from outcrop.strategies import strategy_named
from outcrop.strategies.auto import AUTO

if TYPE_CHECKING:
    from typing_extensions import Self

Transform = Callable[[Data], Any]
_CPU = torch.device("cpu")


@dataclass(frozen=True)
class LoaderOptions:
    """What a loader is made with, beside its store and sampler."""

    input_nodes: Any = None
    batch_size: int = 1
    strategy: str | Strategy = "auto"
    memory: str | int = "8GB"
    disk: str | int | None = None
    epochs: int | None = None
    progress: Progress = SILENT
    seed: int = 0
    shuffle: bool = False
    drop_last: bool = False
    stream: Stream | None = None
    transform: Transform | None = None
    device: torch.device = _CPU
    strict_memory: bool = False
    siblings: Sequence[Mapping[str, Any]] = ()
    check: bool = False
    lent_bytes: int = 0
    edge_ids: bool = True
    batching: Any = None
    history: Any = None

    def __post_init__(self) -> None:
        for name in ("batch_size", "seed", "epochs"):
            if name != "epochs" or self.epochs is not None:
                object.__setattr__(self, name, whole_number(name, getattr(self, name)))
        if not isinstance(self.strategy, str | Strategy):
            raise OptionError(f"strategy must be a name such as 'auto' (got {self.strategy!r})")
        object.__setattr__(self, "history", history_given(self.history))
        if self.transform is not None and not callable(self.transform):
            raise OptionError(f"transform must be a function (got {self.transform!r})")

    @classmethod
    def split(cls, arguments: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """Arguments of a loader -> those that are options, and the rest."""
        own = {field.name for field in fields(cls)}
        known = {name: value for name, value in arguments.items() if name in own}
        if "device" in known:
            known["device"] = as_device(known["device"])
        return known, {name: value for name, value in arguments.items() if name not in own}

    def seeds(self, store: GraphStore) -> SeedOrder:
        return seed_order(
            store,
            self.input_nodes,
            batch_size=self.batch_size,
            seed=self.seed,
            stream=self.stream,
            shuffle=self.shuffle,
            drop_last=self.drop_last,
            batching=self.order,
            memory=self.memory,
            disk=self.disk,
            progress=self.progress,
        )

    def with_partitions_of(self, seeds: SeedOrder) -> LoaderOptions:
        """Siblings have the same partitions, however many seeds they have."""
        made = None if seeds.groups is None else seeds.groups.batching
        return self if made is None else replace(self, batching=made)

    @property
    def order(self) -> Any:
        """How shuffled seeds come together: as given; or, where embeddings are used again, as the
        strategy has it."""
        if self.batching is not None:
            return self.batching
        if self.history is None or self.strategy == AUTO or not self.shuffle:
            return RANDOM
        strategy = self.strategy
        return (strategy_named(strategy) if isinstance(strategy, str) else strategy).batching


class StoreLoader(torch.utils.data.DataLoader[Any]):
    """What both loaders share: a schedule of a runner, and tensors over its memory."""

    runner: Runner
    schedule: Schedule
    history: History | None
    """Embeddings that are used again; save its state_dict with the position."""
    transform: Transform | None
    device: torch.device

    def _open(
        self,
        data: GraphStore | str | os.PathLike[str],
        sampling: Sampling,
        options: LoaderOptions,
        rest: dict[str, Any],
    ) -> None:
        sort_out(type(self).__name__, rest, stacklevel=3)
        _refuse_ranks()
        check_batching(options.order, shuffle=options.shuffle)
        self.store = as_store(data)
        seeds = options.seeds(self.store)
        options = options.with_partitions_of(seeds)
        self.runner = Runner(
            self.store,
            sampling,
            seeds,
            strategy=options.strategy,
            memory=options.memory,
            disk=options.disk,
            epochs=options.epochs,
            progress=options.progress,
            device=_device_name(options.device),
            strict_memory=options.strict_memory,
            others=[replace(options, **changes).seeds(self.store) for changes in options.siblings],
            check=options.check,
            lent_bytes=options.lent_bytes,
            history=None if options.history is None else options.history.options,
            candidates=None if options.history is None else options.history.nodes,
        )
        if self.runner.rows.held == "slots" and options.device.type != "cpu":
            self.runner.close()
            raise OptionError(f"x=slots is for the CPU (got device={str(options.device)!r})")
        self.history = self._make_history(options)
        self._attach(options, seeds)

    def _make_history(self, options: LoaderOptions) -> History | None:
        table = self.runner.history
        if table is None:
            return None
        wanted = options.history.options
        device = options.device if wanted.place == "device" else _CPU
        return History(table, wanted, device)

    def _attach(self, options: LoaderOptions, seeds: SeedOrder) -> None:
        self.options = options
        self.schedule = Schedule(self.runner, seeds, trains=self.history is not None)
        self.transform = options.transform
        self.device = options.device
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

        `changes`: batch_size, shuffle, batching, drop_last, stream, transform. Use one of them at a
        time.
        """
        self.runner.check_open()
        known, rest = LoaderOptions.split(changes)
        options = replace(self.options, input_nodes=input_nodes, **known)
        for name in (
            "strategy",
            "memory",
            "disk",
            "epochs",
            "seed",
            "device",
            "strict_memory",
            "check",
            "edge_ids",
            "history",
        ):
            if getattr(options, name) != getattr(self.options, name):
                raise OptionError(f"{name} is shared with the sibling; make another loader")
        for name in ("num_neighbors", "depth", "replace"):
            if name in rest:
                raise OptionError(f"{name} is shared with the sibling; make another loader")
        sort_out(type(self).__name__, rest, stacklevel=2)
        other = type(self).__new__(type(self))
        # Embeddings are of the loop that trains.
        other.__dict__.update(store=self.store, runner=self.runner, history=None)
        seeds = options.seeds(self.store)
        self.runner.foresee(seeds)
        other._attach(options, seeds)
        return other

    def _convert(self, batch: Batch) -> Data:
        raise NotImplementedError

    def _finish(self, batch: Batch) -> Any:
        data = self._convert(batch)
        if self.device.type != "cpu":
            data = data.to(self.device, non_blocking=True)
        return data if self.transform is None else self.transform(data)

    def _finished(self, batches: Iterator[Batch]) -> Iterator[Any]:
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
        return self.runner.record

    def state_dict(self) -> dict[str, Any]:
        """The position: save it between batches, and a loader made alike resumes there."""
        return self.schedule.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.schedule.load_state_dict(state)

    def close(self) -> None:
        """Gives the strategy's memory back; siblings end with it."""
        self.runner.close()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.store}, strategy={self.record.strategy!r})"


class NeighborLoader(StoreLoader, PygNeighborLoader):  # type: ignore[misc]
    """PyG's NeighborLoader over a store: the same batches, whatever the strategy and the memory."""

    def __init__(
        self,
        data: GraphStore | str | os.PathLike[str],
        num_neighbors: Sequence[int],
        input_nodes: Any = None,
        *,
        batch_size: int = 1,
        strategy: str | Strategy = "auto",
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
        strict_memory: bool = False,
        siblings: Sequence[Mapping[str, Any]] = (),
        check: bool = False,
        lent_bytes: int = 0,
        edge_ids: bool = True,
        batching: Any = None,
        history: Any = None,
        **rest: Any,
    ) -> None:
        """`data`, a store or its path -> batches around `input_nodes`.

        input_nodes: "train", "val", "test", "all", node ids or a mask; None is "all".
        strategy: who decides what is read and kept; auto: `memory` where everything fits, else the
            one that should be fastest (docs/training.md). Batches do not depend on it. By its name
            and options, as in "ginex:mode=split"; or one's own (docs/adding_a_strategy.md).
        memory: what everything together may use, beside Python, torch and the model.
        disk: what the strategy may write beside the store; None: what it needs.
        epochs: how many there will be, for strategies that prepare them all; None: not known.
        progress: is told of what is prepared before the first batch.
        stream: random choices of their own for validation, test ...; by default as input_nodes say.
        device: where batches go.
        strict_memory: where batches that you keep leave too little for the next one, BudgetError;
        else it is served beyond `memory`, with a BudgetWarning.
        siblings: what `sibling` will be called with, as in [{"input_nodes": "val", "batch_size":
        4000}], so that there is memory for such batches, too.
        check: whether whatever is read is compared with its checksums first; from then on, for all
        loaders of this store. docs/training.md has what it costs.
        lent_bytes: what `loader.runner.lend()` must be able to lend to other work between epochs.
        edge_ids: whether batches have e_id: your own edges, where the store keeps them (which are
        read, unless strategy="memory"), else places in its topology.
        batching: which shuffled seeds come together: "random", any; "partition", those of some
        partitions of the graph, which are made where they are missing; an array with the partition
        of each node, those of yours (docs/outre.md). Siblings that are shuffled have it, too.

        history: embeddings of the input of a model's last layer are used again: its width, as in
            256, or with options, "width=256:staleness=100"; None: none are. The model pushes and
            pulls them by layer.exchange (docs/outre.md); outcrop.seed_logits does. Siblings,
            `epoch` and single batches go without.

        PyG's NodeLoader.__init__ is not called: it would hold the ids of all nodes.
        """
        sampling = Sampling.of(num_neighbors, replace=replace, edge_ids=edge_ids)
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
            device=as_device(device),
            strict_memory=strict_memory,
            siblings=siblings,
            check=check,
            lent_bytes=lent_bytes,
            edge_ids=edge_ids,
            batching=batching,
            history=history,
        )
        self._open(data, sampling, options, rest)

    # What PyG's own code reads of a loader

    transform_sampler_output = None
    filter_per_worker = False
    custom_cls = None

    @property
    def data(self) -> StoreData:
        return StoreData(self.store)

    @property
    def node_sampler(self) -> _SamplerFacts:
        return _SamplerFacts(list(self.runner.sampling.num_neighbors))

    @property
    def input_nodes(self) -> Any:
        return self.options.input_nodes

    @property
    def input_data(self) -> NodeSamplerInput:
        """All input nodes, as PyG's loaders keep them; made when asked for."""
        seeds = self.schedule.seeds
        nodes = torch.from_numpy(seeds.seeds(np.arange(len(seeds.nodes))))
        return NodeSamplerInput(input_id=None, node=nodes)

    def _convert(self, batch: Batch) -> Data:
        data = base_data(batch, Data())
        data.batch = None
        # Samples of others may come without.
        data.num_sampled_nodes = batch.nodes_per_hop or None
        data.num_sampled_edges = batch.edges_per_hop or None
        data.input_id = torch.from_numpy(batch.task.input_ids)
        data.seed_time = None
        data.batch_size = len(batch.task.seeds)
        if self.history is not None:
            data.history = self.history.of(batch)
        return data


def base_data(batch: Batch, data: Data) -> Data:
    """What both kinds of batches have. Tensors share the batch's memory and keep it charged."""
    data.edge_index = torch.from_numpy(batch.edge_index)
    data.num_nodes = len(batch.n_id)
    for name, tensor in ({} if batch.rows is None else batch.rows.tensors()).items():
        data[name] = tensor
    if batch.y is not None:
        data.y = torch.from_numpy(batch.y)
    data.n_id = torch.from_numpy(batch.n_id)
    data.e_id = None if batch.e_id is None else torch.from_numpy(batch.e_id)
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


def _refuse_ranks() -> None:
    distributed = torch.distributed
    if distributed.is_available() and distributed.is_initialized():
        ranks = distributed.get_world_size()
        if ranks > 1:
            raise OptionError(
                f"training on {ranks} ranks is not there yet: each would see all seeds; give each "
                "its own input_nodes in a process group of its own"
            )
