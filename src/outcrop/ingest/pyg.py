"""PyG: a torch_geometric Data in memory -> a store."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from outcrop.errors import IngestError, OptionError
from outcrop.ingest.build import import_graph
from outcrop.ingest.labels import array_labels, parse_targets
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
from outcrop.store.targets import TargetKind

if TYPE_CHECKING:
    import torch
    from torch_geometric.data import Data, Dataset

_EDGES_PER_CHUNK = 1 << 17
_TAKEN = ("edge_index", "adj_t", "x", "y", "train_mask", "val_mask", "test_mask", "num_nodes")


def from_pyg(
    data: Data | Dataset,
    path: str | os.PathLike[str],
    *,
    progress: Progress = SILENT,
    memory: str | int = "2GB",
    nan_is_missing: bool = False,
    targets: str | None = None,
    **options: Any,
) -> GraphStore:
    """Writes a PyG `Data` (edge_index or adj_t, x, y, masks) as a store and opens it.

    Or a dataset of one graph. `x` may be sparse; it is stored dense. `options` are those of
    `outcrop import`: undirected, drop_self_loops, merge_multi_edges, edge_ids, feature_dtype.
    `targets`: what y is, "classes", "multilabel" or "values". None: whole numbers, one per node,
    are classes, columns of 0, 1 and NaN are labels, other floats are values. `nan_is_missing`: NaN
    among classes means a node without one. Other attributes of the data are left out, with a
    warning.
    """
    kind = parse_targets(targets)
    known = [field.name for field in fields(IngestOptions) if field.name != "memory"]
    for name in options:
        if name not in known:
            raise TypeError(f"from_pyg has no option {name!r}; there are {', '.join(known)}")
    graph = _one_graph(data)
    edge_index, weighted = _edge_index(graph)
    ignored = sorted(set(graph.keys()) - set(_TAKEN)) + ["the values of adj_t"] * weighted
    if ignored:
        warnings.warn(f"from_pyg leaves out {', '.join(ignored)}", stacklevel=2)
    source = GraphSource(
        name="PyG Data",
        edges=_edges(edge_index),
        num_nodes=int(graph.num_nodes),
        attributes=lambda num_nodes: _attributes(graph, num_nodes, nan_is_missing, kind),
        total=int(edge_index.shape[1]),
    )
    import_graph(source, Path(path), IngestOptions.with_sizes(memory, **options), progress)
    return GraphStore(path)


def _one_graph(data: Any) -> Data:
    """A Data, or the only one of a dataset."""
    from torch_geometric.data import Data, Dataset, HeteroData

    if isinstance(data, Dataset):
        if len(data) != 1:
            what = f"has {len(data)} graphs; give one of them: from_pyg(dataset[0], path)"
            raise IngestError(type(data).__name__, "", what)
        data = data[0]
    if isinstance(data, HeteroData):
        raise IngestError(
            "HeteroData",
            "",
            "graphs of several node types are not there yet; where their features are alike, "
            "from_pyg(data.to_homogeneous(), path) stores them as one type",
        )
    if not isinstance(data, Data):
        raise OptionError(
            f"from_pyg takes a PyG Data (got {type(data).__name__}); for files there is "
            "outcrop import npz, and outcrop import edgelist"
        )
    return data


def _edge_index(data: Data) -> tuple[torch.Tensor, bool]:
    """[2, E], and whether edges have weights in adj_t, which are lost."""
    if data.edge_index is None and "adj_t" in data:
        targets, sources, values = _entries(data.adj_t)
        edge_index = sources.new_empty((2, len(sources)))
        edge_index[0], edge_index[1] = sources, targets
        return edge_index, values is not None and bool((values != 1).any())
    edges = data.edge_index
    if edges is None or data.num_nodes is None:
        raise IngestError("PyG Data", "edge_index", "is missing")
    if edges.dim() != 2 or edges.shape[0] != 2 or edges.is_floating_point():
        dtype = str(edges.dtype).removeprefix("torch.")
        what = f"must be integers [2, E] (got {dtype} {list(edges.shape)})"
        raise IngestError("PyG Data", "edge_index", what)
    return edges, False


def _entries(matrix: Any) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """A sparse matrix of torch, or a SparseTensor of torch_sparse -> rows, columns, values."""
    if hasattr(matrix, "coo"):
        rows, columns, values = matrix.coo()
        return rows, columns, values
    coo = matrix.to_sparse_coo()
    rows, columns = coo._indices()  # indices() would refuse where multi-edges are not merged
    return rows, columns, coo._values()


def _edges(edge_index: torch.Tensor) -> Iterator[EdgeChunk]:
    for first in range(0, edge_index.shape[1], _EDGES_PER_CHUNK):
        part = edge_index[:, first : first + _EDGES_PER_CHUNK].cpu().long()
        sources, targets = (np.ascontiguousarray(row.numpy()) for row in part)
        yield EdgeChunk(sources, targets, edge_numbers(first), len(sources))


def _attributes(
    data: Data, num_nodes: int, nan_is_missing: bool, kind: TargetKind | None
) -> Attributes:
    splits = {
        split: _mask_ids(data, f"{split}_mask", num_nodes)
        for split in SPLITS
        if f"{split}_mask" in data
    }
    return Attributes(_features(data.x), _labels(data.y, nan_is_missing, kind), splits)


def _labels(y: Any, nan_is_missing: bool, kind: TargetKind | None) -> LabelStream | None:
    import torch

    if y is None:
        return None
    tensor = _tensor("y", y).detach().cpu()
    labels = (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy()
    return array_labels(np.atleast_1d(labels), nan_is_missing=nan_is_missing, targets=kind)


def _mask_ids(data: Data, name: str, num_nodes: int) -> Iterator[Ids]:
    mask = _tensor(name, data[name]).cpu().bool().numpy()
    if mask.ndim == 2 and len(mask) == num_nodes:
        what = f"has {mask.shape[1]} splits; choose one: data.{name} = data.{name}[:, 0]"
        raise IngestError("PyG Data", name, what)
    check_mask("PyG Data", name, mask.dtype, mask.shape, num_nodes)
    return mask_ids(in_chunks(mask))


def _tensor(name: str, value: Any) -> torch.Tensor:
    """What PyG takes for a tensor, as one."""
    import torch

    if isinstance(value, np.ndarray):
        value = torch.from_numpy(value)
    if not isinstance(value, torch.Tensor):
        raise IngestError("PyG Data", name, f"must be a tensor (got {type(value).__name__})")
    return value


def _features(x: Any) -> RowStream | None:
    if x is None:
        return None
    rows = _SparseRows.of(x) or _DenseRows(_tensor("x", x))
    if len(rows.shape) != 2:
        raise IngestError("PyG Data", "x", f"must be [N, F] (got {list(rows.shape)})")
    count, dim = rows.shape
    encoding = str(rows.dtype).removeprefix("torch.")
    encoding = encoding if encoding in ("float16", "bfloat16") else "float32"
    return RowStream(count, dim, encoding, rows.chunks)


class _DenseRows:
    """A tensor, some rows at a time."""

    def __init__(self, x: torch.Tensor) -> None:
        self.shape, self.dtype = tuple(x.shape), x.dtype
        self._x = x

    def chunks(self, count: int) -> Iterator[NDArray[np.float32]]:
        for first in range(0, self.shape[0], count):
            yield self._x[first : first + count].detach().cpu().float().numpy()


@dataclass(frozen=True)
class _SparseRows:
    """A sparse matrix as CSR, some rows at a time, dense."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    indptr: NDArray[np.int64]
    columns: NDArray[np.int64]
    values: NDArray[np.float32]

    @classmethod
    def of(cls, x: Any) -> _SparseRows | None:
        """The rows of a sparse tensor of torch, or of torch_sparse; None for anything else."""
        import torch

        shape: tuple[int, ...]
        if hasattr(x, "coo"):
            shape, dtype = (x.size(0), x.size(1)), x.dtype()
        elif isinstance(x, torch.Tensor) and x.layout != torch.strided and x.dim() == 2:
            shape, dtype = tuple(x.shape), x.dtype
        else:
            return None
        rows, columns, values = _entries(x)
        values = torch.ones(len(rows)) if values is None else values.detach().float()
        order = rows.argsort(stable=True)
        indptr = np.searchsorted(rows[order].cpu().numpy(), np.arange(shape[0] + 1))
        return cls(shape, dtype, indptr, columns[order].cpu().numpy(), values[order].cpu().numpy())

    def chunks(self, count: int) -> Iterator[NDArray[np.float32]]:
        for first in range(0, self.shape[0], count):
            ends = self.indptr[first : first + count + 1]
            rows = np.repeat(np.arange(len(ends) - 1), np.diff(ends))
            entries = slice(ends[0], ends[-1])
            block = np.zeros((len(ends) - 1, self.shape[1]), dtype=np.float32)
            np.add.at(block, (rows, self.columns[entries]), self.values[entries])
            yield block
