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
from outcrop.errors import BudgetError, CorruptError, OptionError, ReadError, StoreError
from outcrop.ingest.build import import_graph
from outcrop.ingest.edgelist import edgelist_source
from outcrop.ingest.files import Files, file_attributes
from outcrop.ingest.reorder import reorder
from outcrop.options import DiskOptions, Faults
from outcrop.store.store import GraphStore
from outcrop.train import TrainOptions, fit, infer
from outcrop.train.evaluate import evaluate_full
from outcrop.train.targets import Targets
from tests.graphs import Graph, random_graph
from tests.stores import CLASSES, make_random_store, make_store, rewrite_array


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


@pytest.mark.parametrize("spread", [1, 1000])
def test_rows_of_a_reordered_store_are_where_its_source_has_them(
    tmp_path: Path, spread: int
) -> None:
    graph = random_graph(200, 3000)
    np.save(tmp_path / "x.npy", np.random.default_rng(0).random((200, 8), np.float32))
    (tmp_path / "g.txt").write_text(
        "".join(f"{s * spread} {t * spread}\n" for s, t in graph.edges.T.tolist())
    )
    # Sparse ids are compacted, and then mapped.
    source = edgelist_source(
        tmp_path / "g.txt",
        num_nodes=None if spread > 1 else 200,
        attributes=lambda _: file_attributes(Files(tmp_path / "x.npy", False, None, {})),
    )
    import_graph(source, tmp_path / "s")
    torch.manual_seed(0)
    model = GraphSAGE(8, 16, num_layers=2, out_channels=CLASSES)
    with GraphStore(tmp_path / "s") as store:
        assert store.has("node_ids") == (spread > 1)
        reorder(store, tmp_path / "r", "bfs", "100MB")
        infer(store, model, tmp_path / "expected.npy")
    with GraphStore(tmp_path / "r") as store:
        infer(store, model, tmp_path / "found.npy", memory="1MB")
        infer(store, model, tmp_path / "stored.npy", original_order=False)
        ids = store.node_ids // spread
        with pytest.raises(BudgetError, match=r"original order need 800 B .*original_order=False"):
            infer(store, model, tmp_path / "refused.npy", memory=700)
    expected, found, stored = (
        np.load(tmp_path / f"{name}.npy") for name in ("expected", "found", "stored")
    )
    assert not np.array_equal(ids, np.arange(200))
    assert np.allclose(found, expected, atol=1e-5)
    assert np.array_equal(stored, found[ids])
    made = {"x.npy", "g.txt", "s", "r", "expected.npy", "found.npy", "stored.npy"}
    assert {path.name for path in tmp_path.iterdir()} == made


def test_two_nodes_of_one_id_are_refused(tmp_path: Path) -> None:
    def change(ids: Any) -> None:
        ids[3] = ids[7]

    model = GraphSAGE(8, 16, num_layers=1, out_channels=CLASSES)
    with make_random_store(tmp_path / "s") as store:
        reorder(store, tmp_path / "r", "bfs", "100MB")
    rewrite_array(tmp_path / "r", "node_ids", change)
    with GraphStore(tmp_path / "r") as store, pytest.raises(CorruptError, match="node 7 has the"):
        infer(store, model, tmp_path / "out.npy")


def test_full_evaluation_of_a_reordered_store_is_the_same(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = GraphSAGE(8, 16, num_layers=2, out_channels=CLASSES)
    scores = []
    with make_random_store(tmp_path / "s") as store:
        reorder(store, tmp_path / "r", "degree", "100MB")
    for name in ("s", "r"):
        with GraphStore(tmp_path / name) as store:
            scores.append(
                evaluate_full(
                    model, store, ["val", "test"], Targets.of(store, TrainOptions()), 10**8
                )
            )
    assert scores[0] == scores[1]


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
