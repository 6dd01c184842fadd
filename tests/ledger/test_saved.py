"""What an earlier version saved is still read: found, gone on with, or made anew where listed."""

from __future__ import annotations

import json
import shutil
import tarfile
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

import outcrop
from outcrop.cli import app
from outcrop.observe.record import read_record
from outcrop.progress import Progress
from outcrop.train import TrainOptions, TrainReporter, fit, models
from tests.ledger.cases import DISK, digest
from tests.ledger.record import SAVED
from tests.ledger.saved import (
    HALF,
    POSITIONS,
    REFRESH_EPOCHS,
    REFRESHED,
    STOPPED_AFTER,
    TRAIN_OPTIONS,
    WHOLE,
    Position,
    epochs,
    listing,
    make_loader,
    positioned,
    weights,
)
from tests.ledger.saved import PACKED as PACKED_STRATEGY
from tests.ledger.test_ledger import REBUILT, RENAMED

# Positions that only a strategy with its own order or its own batches takes up.
_OWN = ("order=completion", "cycle=true")


@pytest.fixture(scope="session")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("saved")
    with tarfile.open(SAVED) as archive:
        archive.extractall(folder, filter="data")
    return folder


@pytest.fixture(scope="session")
def facts(unpacked: Path) -> dict[str, Any]:
    return dict(json.loads((unpacked / "facts.json").read_text()))


@pytest.fixture
def saved(unpacked: Path, tmp_path: Path) -> Path:
    """All of it, for one test."""
    return Path(shutil.copytree(unpacked, tmp_path / "saved"))


def derived(store: Path) -> list[str]:
    return sorted(at.name for at in (store / "derived").iterdir())


def changed(layouts: list[str]) -> list[str]:
    """Those that are listed as ones that the code no longer looks for."""
    return [name for name in layouts if name in REBUILT or name in RENAMED]


@pytest.mark.parametrize("strategy", WHOLE)
def test_layouts_are_found(saved: Path, facts: dict[str, Any], strategy: str) -> None:
    path = saved / "whole.outcrop"
    before = listing(path)
    assert epochs(path, strategy, 2, **WHOLE[strategy]) == facts["whole"]["digests"][strategy]
    after = listing(path)
    assert {name: after.get(name) for name in before} == before, "nothing is made anew"
    kept = facts["whole"]["layouts"]
    assert len(set(derived(path)) - set(kept)) <= len(changed(kept))


def test_a_whole_store_is_verified(saved: Path) -> None:
    result = CliRunner().invoke(app, ["verify", str(saved / "whole.outcrop")])
    assert result.exit_code == 0, result.output


@pytest.mark.parametrize("stage", HALF)
def test_a_pack_that_a_kill_left_is_made_to_its_end(
    saved: Path, facts: dict[str, Any], stage: str
) -> None:
    path = saved / f"{stage}.outcrop"
    [begun] = path.glob("derived/.pack-*.building")
    assert sorted(file.name for file in begun.iterdir()) == facts["half"][stage]["begun"]
    assert epochs(path, PACKED_STRATEGY, 2) == facts["half"][stage]["digests"]
    assert {name.partition("-")[0] for name in derived(path)} >= {"pack", "trace"}
    if not changed(facts["whole"]["layouts"]):
        made = [name for name in facts["whole"]["layouts"] if name in derived(path)]
        assert derived(path) == made, "what was begun is whole, and nothing is left over"


def test_generations_of_a_killed_run_are_taken_up(saved: Path, facts: dict[str, Any]) -> None:
    path, kept = saved / "refresh.outcrop", facts["refresh"]
    assert derived(path) == kept["layouts"]
    before = listing(path)
    with outcrop.open(path, DISK) as store:
        loader = make_loader(store, REFRESHED, epochs=REFRESH_EPOCHS)
        assert changed(kept["layouts"]) or listing(path) == before, "what is there is used"
        found = [digest(loader.epoch(epoch)) for epoch in range(1, REFRESH_EPOCHS)]
        assert found == kept["digests"][1:]
        assert not any(epoch["unprepared_batches"] for epoch in loader.record.as_dict()["epochs"])
        loader.close()
    assert changed(kept["layouts"]) or derived(path) == [], "and nothing is left"


@pytest.mark.parametrize("number", range(len(POSITIONS)), ids=[repr(one) for one in POSITIONS])
def test_a_loop_goes_on_from_its_position(saved: Path, facts: dict[str, Any], number: int) -> None:
    kept = facts["positions"][number]
    own = Position(**{name: kept[name] for name in ("strategy", "kind", "nodes", "edge_ids")})
    assert own == POSITIONS[number]
    takers = [own]
    if not any(option in own.strategy for option in _OWN):
        takers.append(Position("memory", own.kind, own.nodes, own.edge_ids))
    with outcrop.open(saved / "whole.outcrop", DISK) as store:
        for taker in takers:
            loader = positioned(store, taker)
            loader.load_state_dict(kept["state"])
            found = [digest(loader, own.strategy), digest(loader, own.strategy)]
            loader.close()
            assert found == kept["rest"]


class _Notes(Progress):
    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)


@pytest.mark.parametrize("by_layers", [False, True])
def test_training_resumes_from_its_checkpoint(
    saved: Path, facts: dict[str, Any], monkeypatch: pytest.MonkeyPatch, by_layers: bool
) -> None:
    """With PyG's forward pass, which it was saved with; with layers other values are dropped."""
    if not by_layers:
        monkeypatch.setattr(models, "as_layered", lambda _: None)
    reporter = TrainReporter()
    reporter.progress = notes = _Notes()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with outcrop.open(saved / "whole.outcrop", DISK) as store:
            options = TrainOptions(**TRAIN_OPTIONS, checkpoint_dir=str(saved / "run"), resume=True)
            result = fit(store, options, reporter=reporter)
    finally:
        torch.set_num_threads(threads)
    [note] = notes.notes
    assert f"epoch 2 of 3, after {STOPPED_AFTER} of" in note
    # Not to the last bit: processors add in other orders.
    kept = facts["training"]
    losses = [epoch.loss for epoch in result.history]
    assert losses == pytest.approx(kept["losses"], rel=0.03 if by_layers else 1e-3)
    found = weights(result.model)
    assert found.keys() == kept["weights"].keys()
    if by_layers:
        return
    for name, values in kept["weights"].items():
        assert found[name] == pytest.approx(values, rel=1e-3, abs=1e-4), name


def test_records_are_read_and_reported(saved: Path, facts: dict[str, Any]) -> None:
    folder = saved / "records"
    assert sorted(str(at.relative_to(folder)) for at in folder.rglob("*.json")) == facts["records"]
    record = read_record(folder / "train.json")
    assert record["loader"]["strategy"] == PACKED_STRATEGY
    for source in (folder / "train.json", folder / "bench"):
        result = CliRunner().invoke(app, ["report", str(source), "--out", str(saved / "page.html")])
        assert result.exit_code == 0, result.output
