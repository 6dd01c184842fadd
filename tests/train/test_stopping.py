"""Stopping: what is better, and a run that ends when nothing is, with its best weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from outcrop.store.store import GraphStore
from outcrop.train import FitResult, TrainOptions, TrainReporter, fit, load_checkpoint, loop
from outcrop.train.stopping import is_better
from tests.stores import make_random_store

NAN = float("nan")


@pytest.mark.parametrize(
    ("score", "best", "higher", "min_delta", "expected"),
    [
        (0.5, None, True, 0.1, True),
        (0.5, 0.4, True, 0.0, True),
        (0.5, 0.5, True, 0.0, False),
        (0.5, 0.4, True, 0.2, False),
        (0.4, 0.5, False, 0.0, True),
        (0.5, 0.4, False, 0.0, False),
        (0.4, 0.5, False, 0.2, False),
        (NAN, 0.5, True, 0.0, False),
        (NAN, 0.5, False, 0.0, False),
        (NAN, None, True, 0.0, True),
        (NAN, NAN, False, 0.0, False),
        (0.1, NAN, True, 0.5, True),
        (0.9, NAN, False, 0.5, True),
    ],
)
def test_a_score_is_better_by_more_than_the_least_difference(
    score: float, best: float | None, higher: bool, min_delta: float, expected: bool
) -> None:
    assert is_better(score, best, higher_is_better=higher, min_delta=min_delta) is expected


@pytest.fixture
def store(tmp_path: Path) -> GraphStore:
    return make_random_store(tmp_path / "s", train=30)


def scored(
    store: GraphStore,
    monkeypatch: pytest.MonkeyPatch,
    scores: list[float],
    reporter: TrainReporter | None = None,
    **options: Any,
) -> FitResult:
    """A run whose evaluations are given."""
    left = iter(scores)
    monkeypatch.setattr(loop, "evaluate_sampled", lambda *_: {"val": next(left)})
    common: dict[str, Any] = {"layers": 1, "hidden": 4, "num_neighbors": (2,), "device": "cpu"}
    return fit(store, TrainOptions(**common, epochs=9, **options), reporter=reporter)


@pytest.mark.parametrize(
    ("min_delta", "epochs", "best"),
    [
        (0.0, 6, 3),
        (0.05, 4, 3),  # 0.43 is not better by enough; its weights are the best all the same
        (0.2, 3, 2),
    ],
)
def test_patience_waits_for_more_than_the_least_difference(
    store: GraphStore,
    monkeypatch: pytest.MonkeyPatch,
    min_delta: float,
    epochs: int,
    best: int,
) -> None:
    scores = [0.3, 0.40, 0.42, 0.43, 0.41, 0.42, 0.3, 0.3, 0.3]
    result = scored(store, monkeypatch, scores, patience=2, min_delta=min_delta)
    assert result.stopped_early and len(result.history) == epochs
    assert result.best_epoch == best and result.val == scores[best]


def test_small_gains_add_up(store: GraphStore, monkeypatch: pytest.MonkeyPatch) -> None:
    scores = [0.1 + 0.03 * n for n in range(9)]
    result = scored(store, monkeypatch, scores, patience=2, min_delta=0.05)
    assert not result.stopped_early and result.best_epoch == 8


def test_a_resumed_run_remembers_what_to_be_better_than(
    store: GraphStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class After(TrainReporter):
        def epoch(self, result: Any) -> None:
            if result.epoch == 2:
                raise KeyboardInterrupt

    kept: dict[str, Any] = {"checkpoint_dir": str(tmp_path / "c"), "patience": 3, "min_delta": 0.05}
    with pytest.raises(KeyboardInterrupt):
        scored(store, monkeypatch, [0.5, 0.52, 0.54], After(), **kept)
    progress = load_checkpoint(tmp_path / "c" / "last.safetensors").facts["progress"]
    assert (progress["reference"], progress["best"], progress["worse"]) == (0.5, 0.54, 2)
    result = scored(store, monkeypatch, [0.549], **kept, resume=True)
    assert result.stopped_early and result.val == 0.549
