"""Random graphs, and what an import of them must give, computed the slow way."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from outcrop.store.store import GraphStore


@dataclass(frozen=True)
class Graph:
    """A graph in memory."""

    num_nodes: int
    edges: NDArray[np.int64]
    """[2, E]: sources, targets."""


@st.composite
def graphs(draw: st.DrawFn, max_nodes: int = 30, max_edges: int = 120) -> Graph:
    """Graphs with self loops, multi-edges and isolated nodes."""
    nodes = draw(st.integers(1, max_nodes))
    pairs = draw(st.lists(st.tuples(st.integers(0, nodes - 1), st.integers(0, nodes - 1)),
                          max_size=max_edges))  # fmt: skip
    return Graph(nodes, np.array(pairs, dtype=np.int64).reshape(-1, 2).T)


def random_graph(num_nodes: int, num_edges: int, seed: int = 0) -> Graph:
    rng = np.random.default_rng(seed)
    return Graph(num_nodes, rng.integers(0, num_nodes, (2, num_edges)))


def expected_csc(
    graph: Graph, *, undirected: bool = False, drop_loops: bool = False, merge: bool = False
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """indptr, indices and edge ids, as docs/format.md defines them."""
    records = []
    for number, (source, target) in enumerate(graph.edges.T.tolist()):
        if drop_loops and source == target:
            continue
        records.append((target, source, number))
        if undirected and source != target:
            records.append((source, target, number))
    if merge:
        first: dict[tuple[int, int], int] = {}
        for target, source, number in records:
            first.setdefault((target, source), number)
        records = [(t, s, number) for (t, s), number in sorted(first.items())]
    else:
        records.sort(key=lambda record: record[0])  # stable
    targets, indices, numbers = (
        np.array([record[i] for record in records], dtype=np.int64) for i in range(3)
    )
    indptr = np.zeros(graph.num_nodes + 1, np.int64)
    np.cumsum(np.bincount(targets, minlength=graph.num_nodes), out=indptr[1:])
    return indptr, indices, numbers


def assert_topology(
    store: GraphStore, expected: tuple[Any, Any, Any], *, edge_ids: bool = True
) -> None:
    """`edge_ids`: whether they were to be kept, unless the edges were in the store's order."""
    indptr, indices, numbers = expected
    assert np.array_equal(store.indptr, indptr)
    assert np.array_equal(store.indices, indices)
    assert store.num_edges == len(indices)
    moved = not np.array_equal(numbers, np.arange(len(numbers)))
    assert store.has("edge_ids") == (edge_ids and moved)
    if store.has("edge_ids"):
        assert store.array("edge_ids").dtype == np.int32
        assert np.array_equal(store.array("edge_ids"), numbers)


def save_npz(path: Path, graph: Graph, *, compressed: bool = True, **arrays: Any) -> Path:
    save = np.savez_compressed if compressed else np.savez
    save(path, edge_index=graph.edges.astype(np.int32), num_nodes=graph.num_nodes, **arrays)
    return path


def files_of(path: Path) -> dict[str, bytes]:
    """Every file below a folder but those that say when or how long it was made."""
    return {
        str(file.relative_to(path)): file.read_bytes()
        for file in sorted(path.rglob("*"))
        if file.is_file() and file.name not in ("manifest.json", "layout.json")
    }
