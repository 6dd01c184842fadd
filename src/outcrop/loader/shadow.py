"""ShaDowLoader: PyG's ShaDowKHopSampler over a store."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import torch
from torch_geometric.data import Batch as PygBatch
from torch_geometric.data import Data

from outcrop.errors import OptionError
from outcrop.loader.arguments import whole_number
from outcrop.loader.neighbor import LoaderOptions, StoreLoader, base_data
from outcrop.memory.batches import Batch
from outcrop.sample.sampler import Sampling
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
        replace: bool = False,
        edge_ids: bool = True,
        **options: Any,
    ) -> None:
        """As NeighborLoader; `depth` hops of `num_neighbors` each.

        `options`: those of NeighborLoader, but for lent_bytes.
        """
        depth = whole_number("depth", depth)
        if depth < 1:
            raise OptionError(f"depth must be at least 1 (got {depth})")
        if isinstance(num_neighbors, Sequence):
            raise OptionError(f"num_neighbors is one count for every hop (got {num_neighbors!r})")
        sampling = Sampling.of(
            [num_neighbors] * depth, replace=replace, kind="shadow", edge_ids=edge_ids
        )
        if "lent_bytes" in options:
            raise TypeError(f"{type(self).__name__} has no argument 'lent_bytes'")
        known, rest = LoaderOptions.split(options)
        own = LoaderOptions(input_nodes=input_nodes, edge_ids=edge_ids, **known)
        self._open(data, sampling, own, rest)

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
