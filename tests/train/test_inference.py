"""Layer-wise inference: equal to the full forward pass, in little memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch_geometric.nn.models import GAT, GCN, GIN, GraphSAGE
from typer.testing import CliRunner

from outcrop.cli import app
from outcrop.errors import BudgetError, OptionError, ReadError, StoreError
from outcrop.options import DiskOptions, Faults
from outcrop.store.store import GraphStore
from outcrop.train import TrainOptions, fit, infer
from tests.graphs import Graph, random_graph
from tests.stores import CLASSES, make_random_store, make_store


def full_forward(store: GraphStore, model: torch.nn.Module) -> np.ndarray[Any, Any]:
    targets = np.repeat(np.arange(store.num_nodes), np.diff(store.indptr))
    edges = torch.from_numpy(np.stack([store.indices.astype(np.int64), targets]))
    x = torch.from_numpy(store.features.gather(np.arange(store.num_nodes)))
    with torch.no_grad():
        result: np.ndarray[Any, Any] = model.eval()(x, edges).numpy()
    return result


@pytest.mark.parametrize("kind", [GraphSAGE, GCN, GAT, GIN])
@pytest.mark.parametrize("encoding", ["float32", "int8"])
@pytest.mark.parametrize("memory", ["100kB", "1GB"])
def test_inference_equals_the_full_forward(
    tmp_path: Path, kind: Any, encoding: str, memory: str
) -> None:
    graph = random_graph(300, 3000)
    loops = np.array([[5, 5, 7], [5, 5, 7]])
    graph = Graph(300, np.concatenate([graph.edges, loops], axis=1))
    torch.manual_seed(0)
    model = kind(8, 16, num_layers=3, out_channels=CLASSES, norm="batch_norm")
    out = tmp_path / "out.npy"
    with make_store(tmp_path / "g.outcrop", graph, feature_dtype=encoding) as store:
        infer(store, model, out, memory=memory)
        expected = full_forward(store, model)
    found = np.load(out)
    assert found.dtype == np.float32 and found.shape == (300, CLASSES)
    assert np.allclose(found, expected, atol=1e-4)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["g.outcrop", "out.npy"]


def test_a_hub_beyond_the_memory_is_named_with_what_it_needs(tmp_path: Path) -> None:
    hub = np.stack([np.arange(2000), np.zeros(2000, np.int64)])
    model = GraphSAGE(8, 16, num_layers=1, out_channels=CLASSES)
    with make_store(tmp_path / "g.outcrop", Graph(2000, hub)) as store:
        with pytest.raises(BudgetError, match=r"node 0 .* memory=\d+MB") as raised:
            infer(store, model, tmp_path / "out.npy", memory="50kB")
        least = str(raised.value).rsplit("memory=", 1)[1]
        infer(store, model, tmp_path / "out.npy", memory=least)


def test_nothing_is_left_where_it_fails(tmp_path: Path) -> None:
    model = GraphSAGE(8, 16, num_layers=2, out_channels=CLASSES)
    make_random_store(tmp_path / "g.outcrop").close()
    disk = DiskOptions(faults=Faults(fail_read_at=1))
    with GraphStore(tmp_path / "g.outcrop", disk) as store, pytest.raises(ReadError):
        infer(store, model, tmp_path / "out.npy", memory="1GB")
    assert [path.name for path in tmp_path.iterdir()] == ["g.outcrop"]


def test_a_checkpoint_of_another_store_is_refused_with_both_numbers(tmp_path: Path) -> None:
    options: dict[str, Any] = {
        "layers": 1, "hidden": 4, "epochs": 1, "memory": "200MB", "device": "cpu",
        "checkpoint_dir": str(tmp_path),
    }  # fmt: skip
    with make_random_store(tmp_path / "g.outcrop", dim=8) as store:
        fit(store, TrainOptions(**options))
    last, out = str(tmp_path / "last.safetensors"), str(tmp_path / "out.npy")
    make_random_store(tmp_path / "other.outcrop", dim=5).close()
    make_random_store(tmp_path / "bare.outcrop", dim=None).close()
    for name, message in (
        ("other.outcrop", "takes 8 features per node, and those of"),
        ("bare.outcrop", "has no features"),
    ):
        done = CliRunner().invoke(app, ["infer", str(tmp_path / name), last, "--out", out])
        assert done.exit_code in (1, 2) and message in done.stderr
        assert str(tmp_path / name) in done.stderr and "mistake" not in done.stderr
    assert f"{last}: its model takes 8" in CliRunner().invoke(
        app, ["infer", str(tmp_path / "other.outcrop"), last, "--out", out]
    ).stderr  # fmt: skip
    with GraphStore(tmp_path / "other.outcrop") as store:
        model = GraphSAGE(8, 16, num_layers=1, out_channels=CLASSES)
        with pytest.raises(OptionError, match=r"8 features per node, .*other\.outcrop have 5"):
            infer(store, model, out)


def test_what_cannot_be_done_is_refused(tmp_path: Path) -> None:
    with make_random_store(tmp_path / "g.outcrop") as store:
        (tmp_path / "out.npy").touch()
        model = GraphSAGE(8, 16, num_layers=2, out_channels=CLASSES)
        with pytest.raises(StoreError, match="exists already"):
            infer(store, model, tmp_path / "out.npy")
        with pytest.raises(OptionError, match="BasicGNN"):
            infer(store, torch.nn.Linear(8, 4), tmp_path / "other.npy")
        jumping = GraphSAGE(8, 16, num_layers=2, out_channels=CLASSES, jk="cat")
        with pytest.raises(OptionError, match="jk"):
            infer(store, jumping, tmp_path / "other.npy")
