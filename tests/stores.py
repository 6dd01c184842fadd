"""Small stores with everything that training needs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch_geometric.data import Data

import outcrop
from outcrop.errors import BudgetError
from outcrop.store.arrays import PieceHasher
from outcrop.store.format import MANIFEST, read_manifest
from outcrop.store.store import GraphStore
from tests.graphs import Graph, random_graph

CLASSES = 4


def make_store(
    path: Path,
    graph: Graph,
    *,
    dim: int | None = 8,
    feature_dtype: str = "float32",
    train: int | None = None,
    seed: int = 0,
    edge_ids: bool = False,
    targets: str = "classes",
    width: int | None = None,
) -> GraphStore:
    """A graph with random features, labels, and the first `train` nodes as its training set.

    `edge_ids`: whether they are kept, and read for each batch beside what a strategy reads.
    `width`: labels or values per node.
    """
    rng = np.random.default_rng(seed)
    nodes = graph.num_nodes
    parts: dict[str, Any] = {"edge_index": torch.from_numpy(graph.edges.copy()), "num_nodes": nodes}
    if dim is not None:
        parts["x"] = torch.from_numpy(rng.standard_normal((nodes, dim)).astype(np.float32))
    parts["y"] = torch.from_numpy(
        rng.integers(0, CLASSES, nodes)
        if targets == "classes"
        else some(rng, nodes, targets, width)
    )
    ids = torch.randperm(nodes, generator=torch.Generator().manual_seed(seed))
    count = nodes // 2 if train is None else train
    for name, chosen in (
        ("train", ids[:count]),
        ("val", ids[count : count + nodes // 4]),
        ("test", ids[count + nodes // 4 :]),
    ):
        mask = torch.zeros(nodes, dtype=torch.bool)
        mask[chosen] = True
        parts[f"{name}_mask"] = mask
    return outcrop.from_pyg(
        Data(**parts), path, feature_dtype=feature_dtype, edge_ids=edge_ids, targets=targets
    )


def some(
    rng: np.random.Generator, nodes: int, targets: str, width: int | None
) -> NDArray[np.float32]:
    """Labels or values, about a fifth of them missing, of which each node has the first."""
    shape = (nodes,) if width is None else (nodes, width)
    made = rng.standard_normal(shape)
    if targets == "multilabel":
        made = (made > 0).astype(float)
    missing = rng.random(shape) < 0.2
    missing.reshape(nodes, -1)[:, 0] = False
    return np.where(missing, np.nan, made).astype(np.float32)


def make_random_store(path: Path, nodes: int = 300, edges: int = 3000, **more: Any) -> GraphStore:
    return make_store(path, random_graph(nodes, edges), **more)


def smallest_memory(make: Any) -> str:
    """What the refusal of make(memory=...) names as the least."""
    try:
        make(memory=1)
    except BudgetError as error:
        return str(error).rsplit(" ", 1)[1]
    raise AssertionError("a budget of one byte was accepted")


def rewrite_array(path: Path, name: str, change: Any) -> None:
    """change(array) in the store's file, with checksums and manifest made good again."""
    manifest = read_manifest(path)
    entry = manifest.arrays[name]
    with open(path / entry.file, "r+b") as file:
        data = bytearray(file.read())
        values = np.frombuffer(data, entry.dtype, offset=entry.data_offset).reshape(entry.shape)
        change(values)
        file.seek(0)
        file.write(data)
    hasher = PieceHasher()
    hasher.update(np.frombuffer(data, np.uint8))
    arrays = {**manifest.arrays, name: replace(entry, checksums=hasher.checksums())}
    (path / MANIFEST).write_bytes(replace(manifest, arrays=arrays).to_bytes())
