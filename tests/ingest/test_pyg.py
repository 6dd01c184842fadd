"""A PyG Data becomes a store."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch_geometric.data import Data, HeteroData, InMemoryDataset

import outcrop
from outcrop.errors import IngestError, OptionError
from outcrop.ingest.pyg import _features
from tests.graphs import Graph, assert_topology, expected_csc, random_graph

# torch says so of every sparse tensor.
pytestmark = pytest.mark.filterwarnings("ignore:Sparse (CSR|invariant)")


def make_data(graph: Graph, dtype: torch.dtype = torch.float32) -> Data:
    torch.manual_seed(0)
    mask = torch.zeros(graph.num_nodes, dtype=torch.bool)
    train = mask.clone()
    train[:10] = True
    return Data(
        x=torch.randn(graph.num_nodes, 6).to(dtype),
        edge_index=torch.from_numpy(graph.edges),
        y=torch.arange(graph.num_nodes) % 3,
        train_mask=train,
        val_mask=mask,
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
def test_data_arrives_whole(tmp_path: Path, dtype: torch.dtype) -> None:
    graph = random_graph(100, 700)
    data = make_data(graph, dtype)
    with outcrop.from_pyg(data, tmp_path / "s", undirected=True, memory="64MB") as store:
        assert_topology(store, expected_csc(graph, undirected=True))
        assert np.array_equal(store.labels, data.y.numpy())
        assert store.split("train").tolist() == list(range(10))
        assert len(store.split("val")) == 0
        expected = data.x.float().numpy()
        assert np.array_equal(store.features.gather(np.arange(100)), expected)


def test_what_is_left_out_is_said(tmp_path: Path) -> None:
    data = make_data(random_graph(20, 50))
    data.edge_attr = torch.zeros(50, 2)
    with pytest.warns(UserWarning, match="edge_attr"):
        outcrop.from_pyg(data, tmp_path / "s")


def test_nan_may_mean_no_label(tmp_path: Path) -> None:
    data = make_data(random_graph(20, 50))
    data.y = data.y.double()
    data.y[15] = float("nan")
    with pytest.raises(IngestError, match=r"label of node 15: NaN.*nan_is_missing=True"):
        outcrop.from_pyg(data, tmp_path / "s")
    with outcrop.from_pyg(data, tmp_path / "s", nan_is_missing=True) as store:
        assert store.labels[14:17].tolist() == [2, -1, 1]


def test_data_without_edges_is_refused(tmp_path: Path) -> None:
    with pytest.raises(IngestError, match="edge_index"):
        outcrop.from_pyg(Data(x=torch.zeros(3, 2)), tmp_path / "s")


# What else a PyG user has at hand


class OneFile(InMemoryDataset):  # type: ignore[misc]
    """Graphs as PyG's datasets hold them."""

    def __init__(self, graphs: list[Data]) -> None:
        super().__init__()
        self._data, self.slices = self.collate(graphs)


class FakeSparseTensor:
    """As torch_sparse's SparseTensor, whose package is not needed for it."""

    def __init__(self, dense: torch.Tensor) -> None:
        self._dense = dense

    def dim(self) -> int:
        return self._dense.dim()

    def size(self, dim: int) -> int:
        return self._dense.shape[dim]

    def dtype(self) -> torch.dtype:
        return self._dense.dtype

    def coo(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
        row, col = self._dense.nonzero().t()
        values = self._dense[row, col]
        return row, col, None if (values == 1).all() else values


def test_a_dataset_of_one_graph_is_that_graph(tmp_path: Path) -> None:
    data = make_data(random_graph(20, 50))
    with outcrop.from_pyg(OneFile([data]), tmp_path / "s") as store:
        assert np.array_equal(store.labels, data.y.numpy())


def test_a_dataset_of_several_graphs_is_asked_which(tmp_path: Path) -> None:
    data = make_data(random_graph(20, 50))
    with pytest.raises(IngestError, match=r"2 graphs.*from_pyg\(dataset\[0\], path\)"):
        outcrop.from_pyg(OneFile([data, data]), tmp_path / "s")


def test_several_types_are_not_there_yet(tmp_path: Path) -> None:
    data = HeteroData()
    data["paper"].x = torch.randn(4, 2)
    data["author"].x = torch.randn(3, 2)
    data["author", "writes", "paper"].edge_index = torch.tensor([[0, 1], [3, 2]])
    with pytest.raises(IngestError, match=r"HeteroData: .*not there yet.*to_homogeneous\(\)"):
        outcrop.from_pyg(data, tmp_path / "s")
    with (
        pytest.warns(UserWarning, match="node_type"),
        outcrop.from_pyg(data.to_homogeneous(), tmp_path / "s") as store,
    ):
        assert (store.num_nodes, store.num_edges) == (7, 2)


@pytest.mark.parametrize("given", ["cora.npz", [1], None, Path("x")])
def test_what_is_no_data_is_named(tmp_path: Path, given: Any) -> None:
    with pytest.raises(OptionError, match=rf"a PyG Data .got {type(given).__name__}\); .*import"):
        outcrop.from_pyg(given, tmp_path / "s")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16])
@pytest.mark.parametrize("form", ["coo", "unsorted", "csr", "csc", "SparseTensor", "numpy"])
def test_features_may_be_sparse_or_of_numpy(tmp_path: Path, form: str, dtype: torch.dtype) -> None:
    graph = random_graph(100, 50)
    data = make_data(graph)
    dense = (data.x * (torch.rand(100, 6) < 0.3)).to(dtype)
    forms: dict[str, Callable[[], Any]] = {
        "coo": dense.to_sparse,
        "unsorted": lambda: _unsorted(dense),
        "csr": dense.to_sparse_csr,
        "csc": dense.to_sparse_csc,
        "SparseTensor": lambda: FakeSparseTensor(dense),
        "numpy": dense.numpy,
    }
    data.x, data.num_nodes = forms[form](), 100
    with outcrop.from_pyg(data, tmp_path / "s") as store:
        assert store.encoding.name == ("float16" if dtype == torch.float16 else "float32")
        rows = store.features.gather(np.arange(100))
    assert np.array_equal(rows, dense.float().numpy())


def _unsorted(dense: torch.Tensor) -> torch.Tensor:
    """Entries in any order, each in two halves."""
    indices = dense.nonzero().t().flip(1)
    values = dense[indices[0], indices[1]] / 2
    return torch.sparse_coo_tensor(indices.repeat(1, 2), values.repeat(2), dense.shape)


def test_sparse_features_are_written_block_by_block() -> None:
    dense = torch.rand(100, 6) * (torch.rand(100, 6) < 0.3)
    stream = _features(dense.to_sparse_csr())
    assert stream is not None
    blocks = list(stream.chunks(7))
    assert [len(block) for block in blocks] == [7] * 14 + [2]
    assert np.array_equal(np.concatenate(blocks), dense.numpy())


@pytest.mark.parametrize("form", ["torch", "SparseTensor"])
def test_edges_may_come_as_adj_t(tmp_path: Path, form: str) -> None:
    graph = random_graph(30, 200)
    dense = torch.zeros(30, 30)
    dense[graph.edges[1], graph.edges[0]] = 1  # rows are targets
    adj_t = dense.to_sparse_csr() if form == "torch" else FakeSparseTensor(dense)
    data = Data(adj_t=adj_t, num_nodes=30, y=torch.arange(30))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        store = outcrop.from_pyg(data, tmp_path / "s")
    # Its entries are in the store's order already.
    assert_topology(store, expected_csc(graph, merge=True), edge_ids=False)


def test_weights_of_adj_t_are_said_to_be_left_out(tmp_path: Path) -> None:
    adj_t = torch.tensor([[0.0, 0.5], [1.0, 0.0]]).to_sparse_csr()
    with pytest.warns(UserWarning, match="leaves out the values of adj_t"):
        outcrop.from_pyg(Data(adj_t=adj_t, num_nodes=2), tmp_path / "s").close()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"edge_index": torch.zeros(50, 2).long()}, r"edge_index: must be integers \[2, E\] .got"),
        ({"edge_index": torch.zeros(2, 50)}, r"edge_index: must be integers \[2, E\] .got float32"),
        ({"y": torch.zeros(20, 4, 2)}, r"y: must be \[N\] or \[N, T\].*got \[20, 4, 2\]"),
        ({"x": torch.zeros(20)}, r"x: must be \[N, F\] .got \[20\]"),
        ({"x": [1, 2]}, "x: must be a tensor.*got list"),
        (
            {"train_mask": torch.zeros(20, 3).bool()},
            r"train_mask: has 3 splits.*data\.train_mask = data\.train_mask\[:, 0\]",
        ),
        ({"train_mask": torch.tensor([3, 5])}, r"train_mask: must be bool \[20\]"),
    ],
)
def test_what_cannot_be_stored_is_named(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    data = make_data(random_graph(20, 50))
    data.num_nodes = 20
    for name, value in changes.items():
        data[name] = value
    with pytest.raises(IngestError, match=message):
        outcrop.from_pyg(data, tmp_path / "s")
    assert not (tmp_path / "s").exists()


def test_an_option_that_is_none_is_named(tmp_path: Path) -> None:
    data = make_data(random_graph(20, 50))
    with pytest.raises(TypeError, match="no option 'directed'; there are undirected, drop_self"):
        outcrop.from_pyg(data, tmp_path / "s", directed=False)
