"""Peers: the loaders of others over a store's arrays, measured like a strategy.

PyG's own NeighborLoader, in memory and on memory maps, and DGL's GraphBolt with features on disk.
pip brings neither what PyG's needs nor dgl: benchmarks/peers.md says how to install them.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from itertools import islice
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from outcrop.errors import OptionError
from outcrop.observe.record import EpochRecord
from outcrop.store.store import GraphStore

PEERS = {
    "pyg-memory": "PyG NeighborLoader, in memory",
    "pyg-mmap": "PyG NeighborLoader on mmap",
    "graphbolt": "DGL GraphBolt, features on disk",
}
_FLOAT_BYTES = 4
_FEATURE = "feat"


def peer_missing(name: str) -> str | None:
    """What a peer lacks here, in words; None where it can run."""
    if name == "graphbolt":
        return _graphbolt_missing()
    if any(importlib.util.find_spec(module) for module in ("torch_sparse", "pyg_lib")):
        return None
    return "needs torch-sparse or pyg-lib; see benchmarks/peers.md"


def _graphbolt_missing() -> str | None:
    found = importlib.util.find_spec("dgl")
    if found is None or found.origin is None:
        return "needs dgl with GraphBolt; see benchmarks/peers.md"
    # dgl has one library for each torch that it was built for; without it, its import fails.
    torch = metadata.version("torch").split("+")[0]
    if not (Path(found.origin).parent / "graphbolt" / f"libgraphbolt_pytorch_{torch}.so").exists():
        return f"the dgl that is installed has no GraphBolt for torch {torch}"
    return None


@dataclass(frozen=True)
class PeerBatch:
    """A batch as the loop gets it, and what is in it."""

    n_id: Any
    """A tensor: whose rows it has."""
    seeds: int
    sampled_edges: int
    row_bytes: int
    """As float32."""
    data: Any
    """What a model is trained on."""

    def count(self, entry: EpochRecord) -> None:
        entry.count(self.seeds, self.sampled_edges, len(self.n_id), self.row_bytes)


class Peer(Protocol):
    """Delivers batches of its own choice: nothing of its inside is known."""

    def epoch(self, batches: int) -> Iterator[PeerBatch]: ...


def open_peer(
    name: str, store: GraphStore, *, num_neighbors: list[int], batch_size: int, scratch: Path
) -> Peer:
    """`scratch`: where 64-bit indices are kept, which peers need and the store may not have."""
    if store.encoding.name not in ("float32", "float16"):
        raise OptionError(
            f"{name} takes rows as they are stored: float32 or float16 (got {store.encoding.name})"
        )
    if name == "graphbolt":
        return GraphBoltPeer(store, num_neighbors, batch_size, scratch)
    return PygPeer(store, num_neighbors, batch_size, scratch, mapped=name == "pyg-mmap")


class PygPeer:
    """PyG's loader over a store's arrays; as a user would build it."""

    def __init__(
        self,
        store: GraphStore,
        num_neighbors: list[int],
        batch_size: int,
        scratch: Path,
        *,
        mapped: bool,
    ) -> None:
        import torch
        from torch_geometric.data import Data
        from torch_geometric.loader import NeighborLoader
        from torch_geometric.typing import SparseTensor

        indices = _wide_indices(store, scratch)
        arrays = [store.array(n, private=True) for n in ("features", "indptr")]
        y = store.y
        if not mapped:
            arrays = [np.array(array) for array in arrays]
            indices, y = np.array(indices), y.clone()
        x, indptr = (torch.from_numpy(array) for array in arrays)
        nodes = store.num_nodes
        adjacency = SparseTensor(
            rowptr=indptr,
            col=torch.from_numpy(indices),
            sparse_sizes=(nodes, nodes),
            is_sorted=True,
            trust_data=True,
        )
        data = Data(x=x, y=y, adj_t=adjacency, num_nodes=nodes)
        train = torch.from_numpy(np.array(store.split("train")))
        self._loader = NeighborLoader(
            data, num_neighbors, train, batch_size=batch_size, shuffle=True
        )

    def epoch(self, batches: int) -> Iterator[PeerBatch]:
        for data in islice(self._loader, batches):
            yield pyg_batch(data)


def pyg_batch(data: Any) -> PeerBatch:
    return PeerBatch(
        n_id=data.n_id,
        seeds=len(data.input_id),
        sampled_edges=data.num_edges,
        row_bytes=data.x.numel() * _FLOAT_BYTES,
        data=data,
    )


class GraphBoltPeer:
    """GraphBolt's pipeline over a store's arrays: topology memory-mapped, features on disk.

    Features by its DiskBasedFeature (io_uring) where this dgl has one, else as its OnDiskDataset
    has them with `in_memory: false`: a memory map.
    """

    def __init__(
        self, store: GraphStore, num_neighbors: list[int], batch_size: int, scratch: Path
    ) -> None:
        import torch
        from dgl import graphbolt as gb

        indptr = torch.from_numpy(store.array("indptr", private=True))
        graph = gb.fused_csc_sampling_graph(indptr, torch.from_numpy(_wide_indices(store, scratch)))
        if hasattr(gb, "DiskBasedFeature"):
            feature = gb.DiskBasedFeature(str(store.file("features")))
        else:
            rows = store.array("features", private=True)
            feature = gb.TorchBasedFeature(torch.from_numpy(rows))
        features = gb.BasicFeatureStore({("node", None, _FEATURE): feature})
        train = np.array(store.split("train"))
        labels = store.targets(train)
        seeds = (torch.from_numpy(train), torch.from_numpy(labels))
        items = gb.ItemSet(seeds, names=("seeds", "labels"))
        pipe = gb.ItemSampler(items, batch_size=batch_size, shuffle=True)
        pipe = pipe.sample_neighbor(graph, graphbolt_fanouts(num_neighbors))
        pipe = pipe.fetch_feature(features, node_feature_keys=[_FEATURE])
        self._loader = gb.DataLoader(pipe)

    def epoch(self, batches: int) -> Iterator[PeerBatch]:
        for batch in islice(self._loader, batches):
            yield graphbolt_batch(batch)


def graphbolt_fanouts(num_neighbors: list[int]) -> list[int]:
    """PyG's order begins at the seeds, GraphBolt's at the outermost hop."""
    return num_neighbors[::-1]


def graphbolt_batch(batch: Any) -> PeerBatch:
    """From a MiniBatch, which has a graph per layer, each sampled anew for all nodes so far."""
    return PeerBatch(
        n_id=batch.input_nodes,
        seeds=len(batch.seeds),
        sampled_edges=sum(len(layer.sampled_csc.indices) for layer in batch.sampled_subgraphs),
        row_bytes=batch.node_features[_FEATURE].numel() * _FLOAT_BYTES,
        data=batch,
    )


def _wide_indices(store: GraphStore, scratch: Path) -> Any:
    """Indices as int64, as a writable memory map."""
    narrow = store.array("indices")
    file = scratch / "indices64.npy"
    wide = np.lib.format.open_memmap(file, "w+", np.int64, narrow.shape)
    for begin in range(0, len(narrow), 1 << 22):
        wide[begin : begin + (1 << 22)] = narrow[begin : begin + (1 << 22)]
    wide.flush()
    return wide
