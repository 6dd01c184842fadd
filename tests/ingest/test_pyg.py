"""A PyG Data becomes a store."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch_geometric.data import Data

import outcrop
from outcrop.errors import IngestError
from tests.graphs import Graph, assert_topology, expected_csc, random_graph


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


def test_data_with_several_masks_per_split_is_refused(tmp_path: Path) -> None:
    data = make_data(random_graph(20, 50))
    data.val_mask = torch.zeros(20, 10, dtype=torch.bool)
    with pytest.raises(IngestError, match=r"val_mask: must be bool \[20\] .got bool \[20, 10\]"):
        outcrop.from_pyg(data, tmp_path / "s")


def test_data_without_edges_is_refused(tmp_path: Path) -> None:
    with pytest.raises(IngestError, match="edge_index"):
        outcrop.from_pyg(Data(x=torch.zeros(3, 2)), tmp_path / "s")
