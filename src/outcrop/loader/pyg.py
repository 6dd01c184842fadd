"""PyG's FeatureStore and GraphStore over a store, for code that asks for tensors by name.

    feature_store, graph_store = outcrop.loader.pyg.adapters(store)
    feature_store["node", "x", None]  # all rows; or an index: only those are read

Read-only. `x` is read by the disk engine, decoded; `y` and the topology are memory-mapped.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import torch
from torch_geometric.data import EdgeAttr, TensorAttr
from torch_geometric.data import FeatureStore as PygFeatureStore
from torch_geometric.data import GraphStore as PygGraphStore
from torch_geometric.data.graph_store import EdgeLayout

from outcrop.errors import StoreError
from outcrop.loader.arguments import as_store
from outcrop.store.store import GraphStore

NODE_TYPE = "node"
EDGE_TYPE = ("node", "to", "node")


def adapters(
    store: GraphStore | str | os.PathLike[str],
) -> tuple[FeatureAdapter, GraphAdapter]:
    """A store, or its path -> what PyG's loaders take as `data` for remote backends."""
    opened = as_store(store)
    return FeatureAdapter(opened), GraphAdapter(opened)


class FeatureAdapter(PygFeatureStore):  # type: ignore[misc]
    """x and y of the nodes."""

    def __init__(self, store: GraphStore) -> None:
        super().__init__()
        self.__dict__["_store"] = store

    def _get_tensor(self, attr: TensorAttr) -> torch.Tensor | None:
        store: GraphStore = self._store
        if attr.group_name not in (NODE_TYPE, None) or attr.attr_name not in self._names():
            return None
        index = _positions(attr.index, store.num_nodes)
        if attr.attr_name == "x":
            return torch.from_numpy(store.features.gather(index))
        return torch.from_numpy(store.targets(index))

    def _names(self) -> list[str]:
        arrays = {"x": "features", "y": "labels"}
        return [name for name, array in arrays.items() if self._store.has(array)]

    def _get_tensor_size(self, attr: TensorAttr) -> tuple[int, ...] | None:
        if attr.attr_name not in self._names():
            return None
        store: GraphStore = self._store
        if attr.attr_name == "x":
            return store.num_nodes, store.encoding.dim
        return store.num_nodes, *store.manifest.targets.row_shape

    def get_all_tensor_attrs(self) -> list[TensorAttr]:
        return [TensorAttr(NODE_TYPE, name) for name in self._names()]

    def _put_tensor(self, *_: Any) -> bool:
        raise StoreError(f"{self._store.path}: a store does not change")

    _remove_tensor = _put_tensor

    def __len__(self) -> int:
        return len(self._names())


class GraphAdapter(PygGraphStore):  # type: ignore[misc]
    """The topology, as CSC."""

    def __init__(self, store: GraphStore) -> None:
        super().__init__()
        self.__dict__["_store"] = store

    def _get_edge_index(self, attr: EdgeAttr) -> tuple[torch.Tensor, torch.Tensor] | None:
        if attr.edge_type not in (EDGE_TYPE, None) or attr.layout != EdgeLayout.CSC:
            return None
        store: GraphStore = self._store
        store.check_offsets()  # PyG's samplers do not
        indices = torch.from_numpy(store.array("indices", private=True))
        return indices.long(), torch.from_numpy(store.array("indptr", private=True))

    def get_all_edge_attrs(self) -> list[EdgeAttr]:
        nodes = self._store.num_nodes
        return [EdgeAttr(EDGE_TYPE, EdgeLayout.CSC, is_sorted=True, size=(nodes, nodes))]

    def _put_edge_index(self, *_: Any) -> bool:
        raise StoreError(f"{self._store.path}: a store does not change")

    _remove_edge_index = _put_edge_index


def _positions(index: Any, count: int) -> Any:
    """PyG's ways to say which rows -> node ids."""
    if index is None:
        return np.arange(count)
    if isinstance(index, slice):
        return np.arange(count)[index]
    chosen = np.asarray(index)
    return np.flatnonzero(chosen) if chosen.dtype == bool else np.atleast_1d(chosen)
