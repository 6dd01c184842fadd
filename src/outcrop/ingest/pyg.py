"""PyG: a torch_geometric Data in memory -> a store."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from outcrop.errors import IngestError
from outcrop.ingest.build import import_graph
from outcrop.ingest.source import (
    Attributes,
    EdgeChunk,
    GraphSource,
    Ids,
    IngestOptions,
    LabelStream,
    RowStream,
    check_mask,
    edge_numbers,
    in_chunks,
    mask_ids,
)
from outcrop.progress import SILENT, Progress
from outcrop.store.format import SPLITS
from outcrop.store.store import GraphStore

if TYPE_CHECKING:
    import torch
    from torch_geometric.data import Data

_EDGES_PER_CHUNK = 1 << 17
_TAKEN = ("edge_index", "x", "y", "train_mask", "val_mask", "test_mask", "num_nodes")


def from_pyg(
    data: Data,
    path: str | os.PathLike[str],
    *,
    progress: Progress = SILENT,
    memory: str | int = "2GB",
    nan_is_missing: bool = False,
    **options: Any,
) -> GraphStore:
    """Writes a PyG `Data` (edge_index, x, y, masks) as a store and opens it.

    `options` are those of `outcrop import`: undirected, drop_self_loops, merge_multi_edges,
    edge_ids, feature_dtype. `nan_is_missing`: NaN in y means a node without a label. Other
    attributes of the data are left out, with a warning.
    """
    ignored = [name for name in data.keys() if name not in _TAKEN]  # noqa: SIM118 - PyG's keys()
    if ignored:
        warnings.warn(f"from_pyg leaves out {', '.join(sorted(ignored))}", stacklevel=2)
    if data.edge_index is None or data.num_nodes is None:
        raise IngestError("Data", "edge_index", "is missing")
    source = GraphSource(
        name="PyG Data",
        edges=_edges(data.edge_index),
        num_nodes=int(data.num_nodes),
        attributes=lambda num_nodes: _attributes(data, num_nodes, nan_is_missing),
        total=int(data.edge_index.shape[1]),
    )
    import_graph(source, Path(path), IngestOptions.with_sizes(memory, **options), progress)
    return GraphStore(path)


def _edges(edge_index: torch.Tensor) -> Iterator[EdgeChunk]:
    for first in range(0, edge_index.shape[1], _EDGES_PER_CHUNK):
        part = edge_index[:, first : first + _EDGES_PER_CHUNK].cpu().long()
        sources, targets = (np.ascontiguousarray(row.numpy()) for row in part)
        yield EdgeChunk(sources, targets, edge_numbers(first), len(sources))


def _attributes(data: Data, num_nodes: int, nan_is_missing: bool) -> Attributes:
    labels = None
    if data.y is not None:
        y = data.y.cpu().numpy().reshape(-1)
        labels = LabelStream(len(y), y.dtype, in_chunks(y), nan_is_missing)
    splits = {
        split: _mask_ids(data, f"{split}_mask", num_nodes)
        for split in SPLITS
        if f"{split}_mask" in data
    }
    return Attributes(_features(data.x), labels, splits)


def _mask_ids(data: Data, name: str, num_nodes: int) -> Iterator[Ids]:
    mask = data[name].cpu().bool().numpy()
    check_mask("PyG Data", name, mask.dtype, mask.shape, num_nodes)
    return mask_ids(in_chunks(mask))


def _features(x: torch.Tensor | None) -> RowStream | None:
    if x is None:
        return None
    if x.dim() != 2:
        raise IngestError("PyG Data", "x", f"must be [N, F] (got {list(x.shape)})")
    encoding = str(x.dtype).removeprefix("torch.")

    def chunks(count: int) -> Iterator[NDArray[np.float32]]:
        for first in range(0, x.shape[0], count):
            yield x[first : first + count].detach().cpu().float().numpy()

    return RowStream(
        int(x.shape[0]),
        int(x.shape[1]),
        encoding if encoding in ("float16", "bfloat16") else "float32",
        chunks,
    )
