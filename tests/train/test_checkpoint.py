"""Checkpoints: everything comes back, and a file that is not whole is refused."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load, save
from torch import nn

from outcrop.errors import OptionError, StoreError
from outcrop.store.store import GraphStore
from outcrop.train import TrainOptions, fit, load_model
from outcrop.train.checkpoint import (
    Checkpoint,
    load_checkpoint,
    restore_checkpoint,
    save_checkpoint,
    take_checkpoint,
)
from outcrop.train.facts import RunFacts, saved_options
from outcrop.train.loop import make_loader
from tests.stores import make_random_store

OPTIONS: dict[str, Any] = {
    "layers": 2, "hidden": 4, "num_neighbors": (4, 3), "batch_size": 40, "epochs": 2,
    "memory": "200MB", "device": "cpu", "strategy": "memory",
}  # fmt: skip


def step(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    model(torch.randn(5, 3)).square().sum().backward()
    optimizer.step()


def make() -> tuple[nn.Module, torch.optim.Optimizer]:
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(), nn.Linear(4, 2))
    return model, torch.optim.Adam(model.parameters(), lr=0.01)


def test_a_restored_run_goes_on_bit_by_bit(tmp_path: Path) -> None:
    torch.manual_seed(1)
    model, optimizer = make()
    for _ in range(3):
        step(model, optimizer)
    save_checkpoint(tmp_path / "c", take_checkpoint(model, optimizer, {"epoch": 2}))
    for _ in range(3):
        step(model, optimizer)

    torch.manual_seed(99)
    other, other_optimizer = make()
    checkpoint = load_checkpoint(tmp_path / "c")
    restore_checkpoint(checkpoint, other, other_optimizer)
    assert checkpoint.facts == {"epoch": 2}
    for _ in range(3):
        step(other, other_optimizer)
    for name, value in model.state_dict().items():
        assert torch.equal(value, other.state_dict()[name]), name


def test_what_was_loaded_does_not_change_with_the_file(tmp_path: Path) -> None:
    path = tmp_path / "c"
    save_checkpoint(path, Checkpoint({"w": torch.arange(5000.0)}))
    loaded = load_checkpoint(path).model["w"]
    path.write_bytes(b"")  # in place: a map of it would end the process
    assert torch.equal(loaded, torch.arange(5000.0))


def test_an_older_checkpoint_is_replaced_whole(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "c"
    for value in (1.0, 2.0):
        save_checkpoint(path, Checkpoint({"w": torch.tensor([value])}))
    assert load_checkpoint(path).model["w"].item() == 2.0
    assert [file.name for file in path.parent.iterdir()] == ["c"]


def test_what_a_killed_writer_left_is_no_checkpoint_and_no_hindrance(tmp_path: Path) -> None:
    save_checkpoint(tmp_path / "c", Checkpoint({"w": torch.tensor([1.0])}))
    (tmp_path / ".c.writing").write_bytes(b"half")
    assert load_checkpoint(tmp_path / "c").model["w"].item() == 1.0
    save_checkpoint(tmp_path / "c", Checkpoint({"w": torch.tensor([2.0])}))
    assert [file.name for file in tmp_path.iterdir()] == ["c"]


@pytest.mark.parametrize("keep", [0, 7, 100, -1])
def test_a_truncated_file_is_refused(tmp_path: Path, keep: int) -> None:
    save_checkpoint(tmp_path / "c", Checkpoint({"w": torch.arange(100.0)}))
    data = (tmp_path / "c").read_bytes()
    (tmp_path / "c").write_bytes(data[:keep])
    with pytest.raises(StoreError, match="not a checkpoint"):
        load_checkpoint(tmp_path / "c")


def test_files_of_other_programs_are_refused(tmp_path: Path) -> None:
    torch.save({"w": torch.ones(1)}, tmp_path / "c")
    with pytest.raises(StoreError, match="not a checkpoint"):
        load_checkpoint(tmp_path / "c")
    with pytest.raises(FileNotFoundError):
        load_checkpoint(tmp_path / "none")


# Damage


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GraphStore]:
    with make_random_store(tmp_path_factory.mktemp("c") / "g.outcrop", train=100) as made:
        yield made


@pytest.fixture(scope="module")
def real(store: GraphStore, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The last checkpoint of a run."""
    folder = tmp_path_factory.mktemp("real")
    fit(store, TrainOptions(**{**OPTIONS, "epochs": 1}, checkpoint_dir=str(folder)))
    return folder / "last.safetensors"


def tensors_of(checkpoint: Checkpoint) -> dict[str, torch.Tensor]:
    state = checkpoint.optimizer["state"]
    return (
        checkpoint.model
        | checkpoint.random
        | {f"{index} {name}": value for index in state for name, value in state[index].items()}
    )


def is_same(one: Checkpoint, other: Checkpoint) -> bool:
    mine, its = tensors_of(one), tensors_of(other)
    return (
        (one.facts, one.optimizer["param_groups"]) == (other.facts, other.optimizer["param_groups"])
        and mine.keys() == its.keys()
        and all(mine[n].dtype == its[n].dtype and torch.equal(mine[n], its[n]) for n in mine)
    )


def test_no_flipped_bit_is_resumed_from(real: Path, tmp_path: Path) -> None:
    data, whole = real.read_bytes(), load_checkpoint(real)
    header = 8 + int.from_bytes(data[:8], "little")
    rng = random.Random(4)
    places = [rng.randrange(len(data)) for _ in range(300)]
    places += [rng.randrange(header) for _ in range(200)] + list(range(8))
    harmless = 0
    for place in places:
        damaged = bytearray(data)
        damaged[place] ^= 1 << rng.randrange(8)
        (tmp_path / "c").write_bytes(damaged)
        try:
            found = load_checkpoint(tmp_path / "c")
        except StoreError as error:
            assert str(tmp_path / "c") in str(error)
        else:
            harmless += 1
            assert is_same(found, whole), f"byte {place}"
    assert harmless < 5, "spaces after the header"


def test_a_checkpoint_of_an_earlier_version_is_read_with_a_warning(
    real: Path, tmp_path: Path
) -> None:
    with safe_open(real, framework="pt") as file:
        header = json.loads(file.metadata()["outcrop-checkpoint"])
    tensors = load(real.read_bytes())
    path = tmp_path / "c"
    path.write_bytes(save(tensors, {"outcrop-checkpoint": json.dumps({**header, "version": 1})}))
    with pytest.warns(UserWarning, match="without a checksum"):
        assert is_same(load_checkpoint(path), load_checkpoint(real))
    for version, message in ((2, "has no checksum"), (3, "of version 3; this reads 1 and 2")):
        header["version"] = version
        path.write_bytes(save(tensors, {"outcrop-checkpoint": json.dumps(header)}))
        with pytest.raises(StoreError, match=message):
            load_checkpoint(path)


def places_in(value: Any) -> list[list[Any]]:
    """The way to every value in plain ones, outer ones included."""
    inner: Any = {}
    if isinstance(value, dict):
        inner = value.items()
    elif isinstance(value, list):
        inner = list(enumerate(value))
    return [[], *([name, *rest] for name, item in inner for rest in places_in(item))]


def altered_facts(facts: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """With one value removed, or one of another kind or size in its place."""
    others: list[Any] = [None, -1, 7, 10**30, float("nan"), "x", ["x"], {}]
    for place in places_in(facts)[1:]:
        for other in ("remove", *others):
            made = deepcopy(facts)
            inside: Any = made
            for name in place[:-1]:
                inside = inside[name]
            if other == "remove":
                del inside[place[-1]]
            else:
                inside[place[-1]] = other
            yield f"{place[0]}: {place[1:]} = {other!r}", made


def test_altered_facts_are_refused_by_name_or_harmless(
    real: Path, store: GraphStore, tmp_path: Path
) -> None:
    whole = load_checkpoint(real)
    options = TrainOptions(**OPTIONS, checkpoint_dir=str(tmp_path), resume=True)
    loader = make_loader(store, options, torch.device("cpu"))
    cases = list(altered_facts(whole.facts))
    assert len(cases) > 400
    passed = []
    for name, facts in cases:
        checkpoint = Checkpoint(whole.model, whole.optimizer, whole.random, facts, "FILE")
        try:
            if not name.startswith(("loader", "progress", "order")):
                load_model(checkpoint)
            found = RunFacts.of(checkpoint)
            saved_options(found, "FILE")
        except StoreError as error:
            assert "FILE: " in str(error), name
            continue
        try:
            loader.load_state_dict(found.loader)
        except OptionError:
            continue
        passed.append((name, checkpoint))
    loader.close()
    assert len(passed) < len(cases) / 3
    (tmp_path / "best.safetensors").write_bytes((real.parent / "best.safetensors").read_bytes())
    for name, checkpoint in random.Random(1).sample(passed, 6):
        save_checkpoint(tmp_path / "last.safetensors", checkpoint)
        try:
            fit(store, options)
        except (StoreError, OptionError) as error:
            assert "last.safetensors" in str(error), name


def set_group(name: str, value: Any) -> Any:
    return lambda c: c.optimizer["param_groups"][0].update({name: value})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c: c.model.pop("convs.0.lin_l.weight"), "convs.0.lin_l.weight is nothing there"),
        (lambda c: c.model.update(more=torch.ones(1)), "more is float32 .* there, and nothing"),
        (lambda c: c.model.update({"convs.0.lin_l.bias": torch.ones(4).double()}), "is float64"),
        (lambda c: c.model.update({"convs.0.lin_l.bias": torch.ones(3)}), r"float32 \[3\] there"),
        (set_group("lr", "fast"), "optimizer's lr cannot be 'fast'"),
        (set_group("betas", [0.9]), "optimizer's betas"),
        (set_group("amsgrad", 3), "optimizer's amsgrad"),
        (set_group("params", [0]), "other parameters"),
        (lambda c: c.optimizer["param_groups"].clear(), "other parameters"),
        (
            lambda c: c.optimizer["state"].update({99: deepcopy(c.optimizer["state"][0])}),
            "state 99",
        ),
        (lambda c: c.optimizer["state"][1].pop("exp_avg"), "optimizer's state 1"),
        (lambda c: c.optimizer["state"][0].update(exp_avg=torch.ones(5)), "optimizer's exp_avg 0"),
        (lambda c: c.random.pop("cpu"), "no random state"),
        (lambda c: c.random.update(cpu=torch.ones(3)), "random state"),
        (lambda c: c.random.update(cpu=torch.ones(9, dtype=torch.uint8)), "random state"),
    ],
)
def test_what_does_not_fit_the_run_is_named(
    real: Path, store: GraphStore, tmp_path: Path, change: Any, message: str
) -> None:
    checkpoint = load_checkpoint(real)
    change(checkpoint)
    save_checkpoint(tmp_path / "last.safetensors", checkpoint)
    options = TrainOptions(**OPTIONS, checkpoint_dir=str(tmp_path), resume=True)
    with pytest.raises(StoreError, match=rf"last\.safetensors: .*{message}"):
        fit(store, options)


def test_a_best_checkpoint_of_another_model_is_refused_at_once(
    real: Path, store: GraphStore, tmp_path: Path
) -> None:
    (tmp_path / "last.safetensors").write_bytes(real.read_bytes())
    other = load_checkpoint(real)
    del other.model["convs.1.lin_l.weight"]
    save_checkpoint(tmp_path / "best.safetensors", other)
    options = TrainOptions(**OPTIONS, checkpoint_dir=str(tmp_path), resume=True)
    with pytest.raises(StoreError, match=r"best\.safetensors: of another model"):
        fit(store, options)
