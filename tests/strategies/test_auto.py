"""auto: what is chosen, why, and that batches do not depend on it."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from outcrop.errors import BudgetError
from outcrop.loader import NeighborLoader
from outcrop.options import format_size
from outcrop.plan.settle import Wanted, settle
from outcrop.sample.sampler import Sampling
from outcrop.sample.seeds import SeedOrder, Stream
from outcrop.store.derived import DerivedLayouts
from outcrop.store.store import GraphStore
from outcrop.strategies import strategy_named
from outcrop.train import TrainOptions, fit
from tests.conformance.contract import all_contents
from tests.stores import make_random_store, smallest_memory

AHEAD = "diskgnn:refresh=background"


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("auto") / "g.outcrop"
    make_random_store(path, 40_000, 100_000, dim=300, train=300).close()
    return path


@pytest.fixture
def store(path: Path, tmp_path: Path) -> GraphStore:
    shutil.copytree(path, tmp_path / "g.outcrop", copy_function=os.link)
    return GraphStore(tmp_path / "g.outcrop")


@pytest.fixture(scope="module")
def tight(path: Path) -> str:
    """Less than `memory` needs, and enough for all others."""
    needed = sum(loader(GraphStore(path), strategy="memory").record.charges.values())
    return f"{needed * 3 // 4}"


def loader(store: GraphStore, **more: Any) -> NeighborLoader:
    return NeighborLoader(store, [5, 5], "train", batch_size=50, shuffle=True, **more)


def expected(store: GraphStore, epochs: int = 2) -> list[Any]:
    reference = loader(store, strategy="memory")
    return [all_contents(reference.epoch(epoch)) for epoch in range(epochs)]


def test_memory_is_taken_where_everything_fits_and_nothing_is_said_or_written(
    store: GraphStore, caplog: pytest.LogCaptureFixture
) -> None:
    with_default = loader(store)
    assert with_default.record.strategy == "memory"
    assert not with_default.record.passed_over
    assert not caplog.text and not (store.path / "derived").exists()


def test_a_graph_that_does_not_fit_is_prepared_and_batches_are_the_same(
    store: GraphStore, tight: str, caplog: pytest.LogCaptureFixture
) -> None:
    made = loader(store, memory=tight)
    assert made.record.strategy == AHEAD
    assert list(made.record.passed_over) == ["memory"]
    written = format_size(store.derived.disk_bytes())
    assert f"strategy auto: {AHEAD} (memory: the smallest" in caplog.text
    assert f"wrote {written} to {store.path / 'derived'}" in caplog.text
    assert [all_contents(made.epoch(epoch)) for epoch in range(2)] == expected(store)
    made.close()


def test_one_epoch_is_prepared_without_a_next_one(store: GraphStore, tight: str) -> None:
    made = loader(store, memory=tight, epochs=1)
    assert made.record.strategy == "diskgnn"
    made.close()


def test_a_small_disk_is_left_alone(
    store: GraphStore, tight: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = shutil._ntuple_diskusage(10**9, 10**9, 4096)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: small)
    made = loader(store, memory=tight)
    assert made.record.strategy.startswith("gnndrive")
    assert "a quarter of what is free" in made.record.passed_over["ginex"]
    assert all_contents(made.epoch(0)) == expected(store)[0]
    assert store.derived.disk_bytes() == 0
    made.close()


def test_disk_given_bounds_what_is_written(store: GraphStore, tight: str) -> None:
    made = loader(store, memory=tight, disk="1MB")
    assert made.record.strategy not in ("memory", AHEAD)
    assert "of disk=1.0 MB" in made.record.passed_over[AHEAD]
    assert all_contents(made.epoch(0)) == expected(store)[0]
    assert store.derived.disk_bytes() <= 10**6
    made.close()


def test_a_store_that_may_not_be_written_to_is_only_read(
    store: GraphStore, tight: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "access", lambda *_: False)
    made = loader(store, memory=tight)
    assert made.record.strategy.startswith("gnndrive")
    assert "cannot be written to" in made.record.passed_over[AHEAD]
    assert all_contents(made.epoch(0)) == expected(store)[0]
    made.close()


@pytest.mark.parametrize("code", [errno.EROFS, errno.ENOSPC])
def test_a_drive_that_refuses_while_preparing_is_worked_around(
    store: GraphStore, tight: str, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise OSError(code, os.strerror(code), "derived")

    monkeypatch.setattr(DerivedLayouts, "get_or_build", refuse)
    made = loader(store, memory=tight)
    assert os.strerror(code) in made.record.passed_over[AHEAD]
    assert os.strerror(code) in made.record.passed_over["ginex"]
    assert all_contents(made.epoch(0)) == expected(store)[0]
    made.close()


def test_other_errors_are_raised(
    store: GraphStore, tight: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise OSError(errno.EIO, "Input/output error", "indices.npy")

    monkeypatch.setattr(DerivedLayouts, "get_or_build", fail)
    with pytest.raises(OSError, match="Input/output error"):
        loader(store, memory=tight)


def test_the_refusal_of_memory_names_a_strategy_that_fits(store: GraphStore, tight: str) -> None:
    with pytest.raises(BudgetError, match=f"strategy='{AHEAD}' fits") as refused:
        loader(store, strategy="memory", memory=tight)
    assert "the smallest that would do" in str(refused.value)
    loader(store, strategy=AHEAD, memory=tight).close()


def test_where_nothing_fits_the_least_is_named_and_does(store: GraphStore) -> None:
    least = smallest_memory(lambda **more: loader(store, **more))
    made = loader(store, memory=least)
    assert all_contents(made.epoch(0)) == expected(store)[0]
    made.close()


def test_training_resumes_under_another_choice(
    store: GraphStore, tight: str, tmp_path: Path
) -> None:
    common: dict[str, Any] = {
        "layers": 2, "hidden": 8, "num_neighbors": (5, 5), "batch_size": 50,
        "evaluate": "none", "device": "cpu", "deterministic": True,
    }  # fmt: skip
    whole = fit(store, TrainOptions(**common, epochs=2))
    folder = str(tmp_path / "run")
    fit(store, TrainOptions(**common, epochs=1, memory=tight, checkpoint_dir=folder))
    resumed = TrainOptions(**common, epochs=2, checkpoint_dir=folder, resume=True)
    weights = fit(store, resumed).model.state_dict()
    for name, value in whole.model.state_dict().items():
        assert value.equal(weights[name]), name


@pytest.mark.parametrize("strategy", ["pagraph", "ginex", "ginex:mode=split", "diskgnn", AHEAD])
def test_what_a_strategy_writes_is_no_more_than_it_says(
    store: GraphStore, tight: str, strategy: str
) -> None:
    nodes = store.split("train")
    seeds = SeedOrder(nodes, batch_size=50, stream=Stream.TRAIN, seed=0)
    wanted = Wanted(store, Sampling((5, 5)), seeds, int(tight))
    settled = settle(wanted, strategy_named(strategy))
    made = loader(store, strategy=strategy, memory=tight)
    most = 0
    for epoch in range(2):
        for _ in made.epoch(epoch):
            most = max(most, store.derived.disk_bytes())
    made.close()
    headers = 10 * 4096 + (4 << 20)  # of .npy files; and what a trace reserves while it is written
    assert 0 < most <= settled.plan.written_bytes(settled.context) + headers
