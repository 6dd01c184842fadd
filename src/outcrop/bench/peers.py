"""Peers: PyG's own NeighborLoader, in memory and on memory maps, measured like a strategy.

Needs torch-sparse or pyg-lib, which pip does not bring: benchmarks/peers.md says how to install.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from outcrop.store.store import GraphStore

PEERS = {"pyg-memory": "PyG NeighborLoader, in memory", "pyg-mmap": "PyG NeighborLoader on mmap"}
_NEEDED = ("torch_sparse", "pyg_lib")


def peers_present() -> bool:
    return any(importlib.util.find_spec(module) for module in _NEEDED)


class PygPeer:
    """PyG's loader over a store's arrays; as a user would build it."""

    def __init__(
        self,
        store: GraphStore,
        name: str,
        *,
        num_neighbors: list[int],
        batch_size: int,
        scratch: Path,
    ) -> None:
        """`scratch`: where 64-bit indices are kept, which PyG needs and the store may not have."""
        import torch
        from torch_geometric.data import Data
        from torch_geometric.loader import NeighborLoader
        from torch_geometric.typing import SparseTensor

        mapped = name == "pyg-mmap"
        indices = _wide_indices(store, scratch)
        arrays = [store.array(n, private=True) for n in ("features", "labels", "indptr")]
        if not mapped:
            arrays = [np.array(array) for array in arrays]
            indices = np.array(indices)
        x, y, indptr = (torch.from_numpy(array) for array in arrays)
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

    def epoch(self, batches: int) -> Iterator[Any]:
        for number, batch in enumerate(self._loader, 1):
            yield batch
            if number == batches:
                return


def _wide_indices(store: GraphStore, scratch: Path) -> Any:
    """Indices as int64, as a writable memory map."""
    narrow = store.array("indices")
    file = scratch / "indices64.npy"
    wide = np.lib.format.open_memmap(file, "w+", np.int64, narrow.shape)
    for begin in range(0, len(narrow), 1 << 22):
        wide[begin : begin + (1 << 22)] = narrow[begin : begin + (1 << 22)]
    wide.flush()
    return wide
