"""The examples run, and the two PyG scripts differ in what they should."""

from __future__ import annotations

import re
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch_geometric.loader
from torch_geometric.data import Data

import outcrop.loader.pyg
from outcrop.errors import StoreError
from outcrop.loader import NeighborLoader
from outcrop.store.store import GraphStore
from tests.stores import make_random_store

EXAMPLES = Path(__file__).parents[1] / "examples"


@pytest.fixture
def store(tmp_path: Path) -> GraphStore:
    return make_random_store(tmp_path / "g.outcrop", train=100)


def run(name: str, *arguments: str | Path) -> str:
    command = [sys.executable, str(EXAMPLES / name), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_script_over_a_store_trains(store: GraphStore) -> None:
    assert "epoch 4: loss" in run("pyg_after.py", store.path)


def test_two_lines_of_the_scripts_differ() -> None:
    before, after = (
        (EXAMPLES / name).read_text().splitlines() for name in ("pyg_before.py", "pyg_after.py")
    )
    changed = [(old, new) for old, new in zip(before, after, strict=True) if old != new]
    assert len(changed) == 2, "the import, and where the data comes from"


def test_both_scripts_train_alike(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """PyG's own loader is not installed everywhere; in its place is ours, on the same data."""
    torch.manual_seed(0)
    data = Data(
        x=torch.randn(300, 8),
        y=torch.arange(300) % 4,
        edge_index=torch.randint(0, 300, (2, 3000)),
        train_mask=torch.rand(300) < 0.4,
    )
    torch.save(data, tmp_path / "cora.pt")
    outcrop.from_pyg(data, tmp_path / "cora.outcrop").close()

    def of_pyg(given: Data, *arguments: Any, **options: Any) -> NeighborLoader:
        assert type(given) is Data
        stored = outcrop.from_pyg(given, tmp_path / "again.outcrop")
        return NeighborLoader(stored, *arguments, **options)

    monkeypatch.setattr(torch_geometric.loader, "NeighborLoader", of_pyg)
    printed = []
    for name, source in (("pyg_before.py", "cora.pt"), ("pyg_after.py", "cora.outcrop")):
        monkeypatch.setattr(sys, "argv", [name, str(tmp_path / source)])
        torch.manual_seed(0)
        runpy.run_path(str(EXAMPLES / name))
        printed.append(capsys.readouterr().out)
    assert printed[0] == printed[1] and "epoch 4: loss" in printed[0]


def test_three_lines_make_a_model_of_ones_own_compute_what_seeds_need(store: GraphStore) -> None:
    names = ("own_model_before.py", "own_model_after.py")
    before, after = ((EXAMPLES / name).read_text().splitlines() for name in names)
    assert sum(old != new for old, new in zip(before, after, strict=True)) == 3
    losses = [re.findall(r"loss ([\d.]+)", run(name, store.path)) for name in names]
    assert len(losses[0]) == 5
    assert [*map(float, losses[1])] == pytest.approx([*map(float, losses[0])], abs=2e-3)


def test_embeddings_are_used_again_and_the_run_goes_on(store: GraphStore, tmp_path: Path) -> None:
    name = "embeddings_used_again.py"
    whole = run(name, store.path, tmp_path / "whole.pt", "5").splitlines()
    assert len(whole) == 5
    assert all(re.search(r"[1-9]\d* embeddings used again", line) for line in whole)
    parts = [run(name, store.path, tmp_path / "parts.pt", epochs) for epochs in ("2", "5")]
    assert "".join(parts).splitlines() == whole


def test_lightning_fits_tests_and_predicts(store: GraphStore) -> None:
    assert "predicted 300 of 300 nodes" in run("with_lightning.py", store.path)


def test_inference_out_of_core(store: GraphStore, tmp_path: Path) -> None:
    assert "on all neighbours" in run(
        "out_of_core_inference.py", store.path, tmp_path / "logits.npy"
    )
    assert np.load(tmp_path / "logits.npy").shape == (300, store.num_classes)


# PyG's stores


def test_pygs_feature_store_reads_rows_and_labels(store: GraphStore) -> None:
    features, _ = outcrop.loader.pyg.adapters(store)
    x = torch.tensor(store.array("features"))
    ids = torch.tensor([5, 299, 5])
    assert torch.equal(features["node", "x", ids], x[ids])
    assert torch.equal(features["node", "x", None], x)
    assert torch.equal(features["node", "x", slice(10, 20)], x[10:20])
    assert torch.equal(features["node", "y", ids], torch.tensor(store.labels)[ids])
    assert features.get_tensor_size(group_name="node", attr_name="x", index=None) == (300, 8)
    assert [attr.attr_name for attr in features.get_all_tensor_attrs()] == ["x", "y"]
    assert features["node", "z", None] is None
    with pytest.raises(StoreError, match="does not change"):
        features["node", "x", None] = x


def test_pygs_graph_store_has_the_topology(store: GraphStore) -> None:
    _, graph = outcrop.loader.pyg.adapters(store)
    (attr,) = graph.get_all_edge_attrs()
    row, colptr = graph.get_edge_index(attr)
    assert np.array_equal(colptr.numpy(), store.indptr)
    assert np.array_equal(row.numpy(), store.indices)
    with pytest.raises(StoreError, match="does not change"):
        graph.put_edge_index((row, colptr), attr)
