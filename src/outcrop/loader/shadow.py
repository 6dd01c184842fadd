"""ShaDowLoader: PyG's ShaDowKHopSampler over a store."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch_geometric.data import Batch as PygBatch
from torch_geometric.data import Data

from outcrop.errors import OptionError
from outcrop.loader.arguments import as_device, whole_number
from outcrop.loader.neighbor import LoaderOptions, StoreLoader, Transform, base_data
from outcrop.memory.batches import Batch
from outcrop.plan.plan import Strategy
from outcrop.progress import SILENT, Progress
from outcrop.sample.sampler import Sampling
from outcrop.sample.seeds import Stream
from outcrop.store.store import GraphStore


class ShaDowLoader(StoreLoader):
    """PyG's ShaDowKHopSampler over a store: for each seed its own k-hop subgraph.

    Batches have `root_n_id`, the local ids of the seeds; `y` is of the seeds alone.
    """

    def __init__(
        self,
        data: GraphStore | str | os.PathLike[str],
        depth: int,
        num_neighbors: int,
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
        edge_ids: bool = True,
        **rest: Any,
    ) -> None:
        """As NeighborLoader; `depth` hops of `num_neighbors` each."""
        depth = whole_number("depth", depth)
        if depth < 1:
            raise OptionError(f"depth must be at least 1 (got {depth})")
        if isinstance(num_neighbors, Sequence):
            raise OptionError(f"num_neighbors is one count for every hop (got {num_neighbors!r})")
        sampling = Sampling.of(
            [num_neighbors] * depth, replace=replace, kind="shadow", edge_ids=edge_ids
        )
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
            edge_ids=edge_ids,
        )
        self._open(data, sampling, options, rest)

    def _convert(self, batch: Batch) -> Data:
        data = base_data(batch, PygBatch())
        data.ptr = torch.tensor(batch.roots)
        data.root_n_id = data.ptr[:-1]
        data.input_id = torch.from_numpy(batch.task.input_ids)
        data.batch = torch.repeat_interleave(
            torch.arange(len(batch.roots) - 1), data.ptr.diff(), output_size=len(batch.n_id)
        )
        if batch.y is not None:
            data.y = data.y[data.root_n_id]
        return data
