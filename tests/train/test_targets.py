"""Targets of each kind: their loss, their metric, and training that learns them."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch.nn.functional import cross_entropy
from torch_geometric.data import Data
from typer.testing import CliRunner

import outcrop
from outcrop.cli.app import app
from outcrop.errors import OptionError
from outcrop.store.store import GraphStore
from outcrop.train import TrainOptions, fit, infer, load_checkpoint
from outcrop.train.targets import Targets, balanced_weights
from tests.graphs import random_graph

NAN = float("nan")
SMALL: dict[str, Any] = {
    "layers": 2,
    "hidden": 16,
    "num_neighbors": (5, 5),
    "batch_size": 50,
    "epochs": 8,
    "lr": 0.01,
    "dropout": 0.1,
    "memory": "200MB",
    "device": "cpu",
}


def targets_of(kind: Any, count: int, **options: Any) -> Targets:
    return Targets(kind, count, TrainOptions(**options))


# Losses


def test_classes_have_cross_entropy() -> None:
    logits = torch.randn(6, 3, generator=torch.Generator().manual_seed(0))
    y = torch.tensor([0, 2, -1, 1, 1, -1])
    plain = targets_of("classes", 3).loss(logits, y)
    assert plain.equal(cross_entropy(logits[y >= 0], y[y >= 0]))
    options: dict[str, Any] = {"label_smoothing": 0.1, "class_weights": [1, 2, 0.5]}
    found = targets_of("classes", 3, **options).loss(logits, y)
    wanted = cross_entropy(
        logits[y >= 0], y[y >= 0], torch.tensor([1, 2, 0.5]), label_smoothing=0.1
    )
    torch.testing.assert_close(found, wanted)


@given(nodes=st.integers(1, 9), width=st.integers(1, 4), seed=st.integers(0, 1000))
def test_missing_targets_are_left_out(nodes: int, width: int, seed: int) -> None:
    """By hand, over what is there."""
    rng = np.random.default_rng(seed)
    logits = rng.standard_normal((nodes, width))
    labels = rng.integers(0, 2, (nodes, width)).astype(float)
    values = rng.standard_normal((nodes, width))
    missing = rng.random((nodes, width)) < 0.3
    labels[missing] = values[missing] = np.nan
    error = np.abs(logits - values)
    each = {
        "multilabel": np.log1p(np.exp(logits)) - np.nan_to_num(labels) * logits,
        "mse": error**2,
        "mae": error,
        "huber": np.where(error < 1, error**2 / 2, error - 0.5),
    }
    for name, losses in each.items():
        is_labels = name == "multilabel"
        made = (
            targets_of("multilabel", width) if is_labels else targets_of("values", width, loss=name)
        )
        y = torch.tensor(labels if is_labels else values, dtype=torch.float32)
        found = made.loss(torch.tensor(logits, dtype=torch.float32), y)
        wanted = losses[~missing].mean() if (~missing).any() else 0.0
        assert float(found) == pytest.approx(wanted, abs=1e-5)


@pytest.mark.parametrize(
    ("kind", "y", "options"),
    [
        ("classes", torch.tensor([-1, -1]), {}),
        ("classes", torch.tensor([-1, -1]), {"label_smoothing": 0.2, "class_weights": (1, 2, 3)}),
        ("multilabel", torch.full((2, 3), NAN), {}),
        ("values", torch.full((2, 3), NAN), {"loss": "huber"}),
    ],
)
def test_a_batch_without_targets_moves_nothing(
    kind: str, y: torch.Tensor, options: dict[str, Any]
) -> None:
    logits = torch.randn(2, 3, requires_grad=True)
    loss = targets_of(kind, 3, **options).loss(logits, y)
    loss.backward()  # type: ignore[no-untyped-call]
    assert loss.item() == 0 and logits.grad is not None and logits.grad.abs().sum() == 0


def test_values_may_have_one_dimension() -> None:
    logits, y = torch.tensor([[1.0], [2.0]]), torch.tensor([3.0, NAN])
    assert targets_of("values", 1).loss(logits, y).item() == 4


def test_balanced_weights_are_inverse_frequencies() -> None:
    weights = balanced_weights(np.array([10, 40, 0, 20]))
    inverse = np.array([1 / 10, 1 / 40, 1 / 20])
    wanted = inverse / inverse.mean()
    np.testing.assert_allclose(weights.numpy(), [wanted[0], wanted[1], 1, wanted[2]], rtol=1e-6)
    assert weights.mean().item() == pytest.approx(1)


# Metrics, computed by hand


def score(kind: Any, metric: str, logits: Any, y: Any, parts: int = 2) -> float:
    """In several batches, as an evaluation has them."""
    logits, y = torch.as_tensor(logits).float(), torch.as_tensor(y)
    count = logits.shape[1] if logits.ndim > 1 else 1
    made = targets_of(kind, count, metric=metric).score()
    for some, wanted in zip(logits.chunk(parts), y.chunk(parts), strict=True):
        made.add(some, wanted)
    return made.value()


def auc_by_pairs(scores: NDArray[Any], labels: NDArray[Any]) -> float:
    positive, negative = scores[labels == 1], scores[labels == 0]
    wins = (positive[:, None] > negative).sum() + 0.5 * (positive[:, None] == negative).sum()
    return float(wins / (len(positive) * len(negative)))


def ap_by_ranks(scores: NDArray[Any], labels: NDArray[Any]) -> float:
    ranked = labels[np.argsort(-scores)]
    hits = np.cumsum(ranked) / np.arange(1, len(ranked) + 1)
    return float(hits[ranked == 1].mean())


def f1_of(predicted: NDArray[Any], wanted: NDArray[Any]) -> float:
    hits = (predicted & wanted).sum()
    return float(2 * hits / (predicted.sum() + wanted.sum()))


@pytest.mark.parametrize("seed", range(3))
def test_metrics_of_labels(seed: int) -> None:
    rng = np.random.default_rng(seed)
    logits = rng.standard_normal((60, 4)).astype(np.float32)
    y = (rng.random((60, 4)) < 0.4).astype(np.float32)
    y[rng.random((60, 4)) < 0.2] = np.nan
    y[:, 3] = 1  # of one class only: left out of roc_auc and ap
    there = ~np.isnan(y)
    pairs = [(logits[there[:, c], c], y[there[:, c], c]) for c in range(4)]
    predicted, wanted = logits > 0, np.nan_to_num(y) == 1
    hand = {
        "roc_auc": np.mean([auc_by_pairs(*pair) for pair in pairs[:3]]),
        "ap": np.mean([ap_by_ranks(*pair) for pair in pairs[:3]]),
        "f1": np.mean([f1_of(scores > 0, labels == 1) for scores, labels in pairs]),
        "f1_micro": f1_of(predicted[there], wanted[there]),
        "accuracy": (predicted == wanted)[there].mean(),
    }
    for metric, value in hand.items():
        assert score("multilabel", metric, logits, y) == pytest.approx(value, abs=1e-5), metric


def test_labels_of_which_none_can_be_told_apart_have_no_score() -> None:
    assert math.isnan(score("multilabel", "roc_auc", torch.zeros(4, 2), torch.ones(4, 2)))
    assert math.isnan(score("multilabel", "f1", torch.zeros(0, 2), torch.ones(0, 2), 1))


@pytest.mark.parametrize("width", [None, 1, 3])
def test_metrics_of_values(width: int | None) -> None:
    rng = np.random.default_rng(1)
    shape = (50,) if width is None else (50, width)
    y = rng.standard_normal(shape).astype(np.float32)
    logits = (y + 0.3 * rng.standard_normal(shape)).astype(np.float32)
    y[rng.random(shape) < 0.2] = np.nan
    error = (logits - y)[~np.isnan(y)]
    columns = zip(logits.reshape(50, -1).T, y.reshape(50, -1).T, strict=True)
    hand = {
        "mae": np.abs(error).mean(),
        "mse": (error**2).mean(),
        "rmse": np.sqrt((error**2).mean()),
        "r2": np.mean([1 - np.nansum((p - t) ** 2) / np.nansum((t - np.nanmean(t)) ** 2)
                       for p, t in columns]),
    }  # fmt: skip
    for metric, value in hand.items():
        found = score("values", metric, logits.reshape(50, -1), y)
        assert found == pytest.approx(value, abs=1e-5), metric
    assert math.isnan(score("values", "mae", np.zeros((4, 1)), np.full(4, np.nan)))


def test_metrics_of_classes() -> None:
    rng = np.random.default_rng(2)
    logits = rng.standard_normal((80, 2)).astype(np.float32)
    y = rng.integers(-1, 2, 80)
    there, guess = y >= 0, logits.argmax(1)
    margin = logits[there, 1] - logits[there, 0]
    f1 = [f1_of(guess[there] == c, y[there] == c) for c in (0, 1)]
    hand = {
        "accuracy": (guess == y)[there].mean(),
        "f1": np.mean(f1),
        "f1_micro": (guess == y)[there].mean(),
        "roc_auc": auc_by_pairs(margin, y[there]),
        "ap": ap_by_ranks(margin, y[there]),
    }
    for metric, value in hand.items():
        assert score("classes", metric, logits, y) == pytest.approx(value, abs=1e-5), metric


@pytest.mark.parametrize(
    ("kind", "options", "metric", "higher"),
    [
        ("classes", {}, "accuracy", True),
        ("multilabel", {}, "roc_auc", True),
        ("values", {}, "mae", False),
        ("values", {"metric": "r2"}, "r2", True),
        ("values", {"metric": "rmse"}, "rmse", False),
    ],
)
def test_the_better_validation_is_known(
    kind: str, options: dict[str, Any], metric: str, higher: bool
) -> None:
    made = targets_of(kind, 2, **options)
    assert (made.metric, made.higher_is_better) == (metric, higher)


@pytest.mark.parametrize(
    ("kind", "count", "options", "message"),
    [
        ("classes", 3, {"metric": "mae"}, "metric=mae does not fit .* classes; there are accuracy"),
        ("multilabel", 3, {"metric": "r2"}, "there are roc_auc, ap, f1, f1_micro, accuracy"),
        ("values", 1, {"metric": "accuracy"}, "there are mae, mse, rmse, r2"),
        ("classes", 3, {"metric": "roc_auc"}, r"is for two classes \(the store has 3\)"),
        ("classes", 3, {"loss": "mse"}, "loss=mse is for values, .* cross entropy: give auto"),
        ("multilabel", 3, {"loss": "mae"}, "whose loss is binary cross entropy"),
        ("values", 1, {"label_smoothing": 0.1}, "label_smoothing is for classes"),
        ("multilabel", 3, {"class_weights": "balanced"}, "class_weights is for classes"),
        ("classes", 3, {"class_weights": [1.0, 2.0]}, r"each of 3 classes \(got 2\)"),
    ],
)
def test_options_that_do_not_fit_the_targets_are_named(
    kind: str, count: int, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(OptionError, match=message):
        targets_of(kind, count, **options)


@pytest.mark.parametrize(
    ("given_weights", "kept"),
    [("none", "none"), ("balanced", "balanced"), ("1,2.5", (1.0, 2.5)), ([1, 2], (1.0, 2.0))],
)
def test_class_weights_are_names_or_numbers(given_weights: Any, kept: Any) -> None:
    options = TrainOptions(class_weights=given_weights)
    assert options.class_weights == kept
    assert TrainOptions.from_dict(options.as_dict()) == options


@pytest.mark.parametrize("bad", ["balance", "1,x", [], [-1.0], [NAN], "inf", 3, None, ""])
def test_class_weights_that_are_none_are_refused(bad: Any) -> None:
    with pytest.raises(OptionError, match="class_weights must be none, balanced, or a list of num"):
        TrainOptions(class_weights=bad)


# Training


def make(path: Path, kind: str, nodes: int = 800) -> GraphStore:
    """Targets that follow from features: their own and those of neighbours."""
    graph = random_graph(nodes, 4 * nodes)
    rng = np.random.default_rng(0)
    x = rng.standard_normal((nodes, 8)).astype(np.float32)
    hidden = x @ rng.standard_normal((8, 3)).astype(np.float32)
    if kind == "values":
        y = hidden + 5
    elif kind == "multilabel":
        y = (hidden > 0).astype(np.float32)
    else:  # few of the first
        y = (hidden[:, 0] > np.quantile(hidden[:, 0], 0.1)).astype(np.int64)
    if kind != "classes":
        y[:, 1:][rng.random((nodes, 2)) < 0.3] = np.nan
    parts = rng.permutation(nodes) % 4
    return outcrop.from_pyg(
        Data(
            x=torch.from_numpy(x),
            y=torch.from_numpy(y),
            edge_index=torch.from_numpy(graph.edges.copy()),
            train_mask=torch.from_numpy(parts < 2),
            val_mask=torch.from_numpy(parts == 2),
            test_mask=torch.from_numpy(parts == 3),
        ),
        path,
    )


@pytest.mark.parametrize("sampler", ["neighbor", "shadow"])
def test_labels_are_learnt(tmp_path: Path, sampler: Any) -> None:
    with make(tmp_path / "s", "multilabel") as store:
        result = fit(store, TrainOptions(sampler=sampler, **SMALL))
    losses = [epoch.loss for epoch in result.history]
    assert losses[-1] < 0.8 * losses[0]
    assert result.metric == "roc_auc" and result.test is not None
    assert result.test > 0.8, "chance is 0.5"


@pytest.mark.parametrize("loss", ["auto", "mae", "huber"])
def test_values_are_learnt(tmp_path: Path, loss: Any) -> None:
    with make(tmp_path / "s", "values") as store:
        result = fit(store, TrainOptions(loss=loss, evaluate="full", **{**SMALL, "epochs": 15}))
        y = store.targets(store.split("test"))
        train = store.targets(store.split("train"))
    losses = [epoch.loss for epoch in result.history]
    assert losses[-1] < 0.5 * losses[0]
    trivial = np.nanmean(np.abs(y - np.nanmedian(train, axis=0)))
    assert result.test is not None and result.test < 0.8 * trivial
    scores = [epoch.val for epoch in result.history]
    assert result.val == min(score for score in scores if score is not None)


def test_balanced_classes_are_counted_over_training_nodes(tmp_path: Path) -> None:
    with make(tmp_path / "s", "classes") as store:
        labels = np.asarray(store.labels)[store.split("train")]
        made = Targets.of(store, TrainOptions(class_weights="balanced"))
        wanted = balanced_weights(np.bincount(labels))
        assert made._weights is not None and made._weights.equal(wanted)
        rare = np.flatnonzero(np.asarray(store.labels) == 0)
        found = []
        for weights in ("none", "balanced"):
            options = TrainOptions(**{**SMALL, "epochs": 2}, class_weights=weights, metric="f1")
            infer(store, fit(store, options).model, tmp_path / f"{weights}.npy")
            found.append((np.load(tmp_path / f"{weights}.npy")[rare].argmax(1) == 0).mean())
    assert found[0] < 0.1 and found[1] > 0.4, "of the rare class"


@pytest.mark.parametrize("kind", ["multilabel", "values"])
def test_a_run_is_resumed_bit_by_bit(tmp_path: Path, kind: str) -> None:
    options = {**SMALL, "evaluate": "full", "memory": "300MB"}
    with make(tmp_path / "s", kind) as store:
        whole = fit(store, TrainOptions(**{**options, "epochs": 4}))
        runs = {**options, "checkpoint_dir": str(tmp_path / "c")}
        fit(store, TrainOptions(**{**runs, "epochs": 2}))
        found = fit(store, TrainOptions(**{**runs, "epochs": 4, "resume": True}))
        for name, value in whole.model.state_dict().items():
            assert torch.equal(value, found.model.state_dict()[name]), name
        assert (found.val, found.test, found.best_epoch) == (
            whole.val,
            whole.test,
            whole.best_epoch,
        )
        checkpoint = load_checkpoint(tmp_path / "c" / "last.safetensors")
        assert checkpoint.facts["out_channels"] == store.num_targets == 3
        # A name in place of "auto" is the same run; another name is not.
        again = {**runs, "epochs": 4, "resume": True}
        fit(store, TrainOptions(**again, metric="roc_auc" if kind == "multilabel" else "mae"))
        with pytest.raises(OptionError, match="saved with metric="):
            fit(store, TrainOptions(**again, metric="f1" if kind == "multilabel" else "r2"))


def test_the_command_line_trains_and_infers(tmp_path: Path) -> None:
    make(tmp_path / "s", "values").close()
    runs = ["--checkpoint-dir", str(tmp_path / "c"), "--epochs", "1", "--layers", "2"]
    more = ["--loss", "huber", "--metric", "r2", "--memory", "200MB", "--device", "cpu"]
    done = CliRunner().invoke(app, ["train", str(tmp_path / "s"), *runs, *more])
    assert done.exit_code == 0, done.output
    checkpoint, out = tmp_path / "c" / "best.safetensors", tmp_path / "out.npy"
    arguments = [str(tmp_path / "s"), str(checkpoint), "--out", str(out), "--device", "cpu"]
    done = CliRunner().invoke(app, ["infer", *arguments])
    assert done.exit_code == 0 and "outputs" not in done.output, done.output
    assert np.load(out).shape == (800, 3)
