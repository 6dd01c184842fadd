"""Curves: what tensorboard and wandb are told of a run, and how it ended."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from typer.testing import CliRunner

from outcrop.cli import app
from outcrop.train import loop
from tests.cage import OUTCROP
from tests.stores import make_random_store

FLAGS = ["--layers", "1", "--hidden", "4", "--num-neighbors", "3", "--batch-size", "20", "--epochs",
         "2", "--device", "cpu", "--memory", "200MB"]  # fmt: skip
BATCHES = 5
STEP = {"loss", "lr", "gradient_norm"}
MEMORY = {"memory/data_bytes", "memory/model_bytes", "memory/runtime_bytes"}
EPOCH = {"epoch_loss", "seconds", "val", "test", "memory/resident_bytes"}


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    make_random_store(tmp_path / "s", train=100).close()
    return "s"


class FakeWandb(ModuleType):
    """Keeps what it is told."""

    class Error(Exception):
        pass

    def __init__(self) -> None:
        super().__init__("wandb")
        self.begun: dict[str, Any] = {}
        self.logged: list[tuple[int, dict[str, float]]] = []
        self.exit_codes: list[int] = []
        self.refuses = False

    def init(self, **arguments: Any) -> FakeWandb:
        if self.refuses:
            raise self.Error("api_key not configured")
        self.begun = arguments
        return self

    def log(self, values: dict[str, float], step: int) -> None:
        self.logged.append((step, values))

    def finish(self, exit_code: int) -> None:
        self.exit_codes.append(exit_code)


@pytest.fixture
def wandb(monkeypatch: pytest.MonkeyPatch) -> FakeWandb:
    fake = FakeWandb()
    monkeypatch.setitem(sys.modules, "wandb", fake)
    monkeypatch.delenv("WANDB_PROJECT", raising=False)
    return fake


def events(folder: Path) -> Iterator[tuple[str, int, Any]]:
    """Names, steps and values of what tensorboard has."""
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

    for path in folder.rglob("events.out.tfevents*"):
        for event in EventFileLoader(str(path)).Load():
            for value in event.summary.value:
                yield value.tag, event.step, value


def test_wandb_is_told_the_configuration_and_every_step(store: str, wandb: FakeWandb) -> None:
    flags = ["--log", "wandb", "--clip", "1.0", "--schedule", "linear", "--lr", "0.01"]
    done = CliRunner().invoke(app, ["train", store, *FLAGS, *flags])
    assert done.exit_code == 0, done.output
    assert wandb.begun["project"] == "outcrop"
    configuration = wandb.begun["config"]
    assert (configuration["store"], configuration["clip"]) == ("s", 1.0)
    steps = {step: values for step, values in wandb.logged if set(values) >= STEP}
    assert list(steps) == list(range(1, 2 * BATCHES + 1))
    assert [values["lr"] for values in steps.values()] == pytest.approx(
        [0.01 * (1 - step / 10) for step in range(10)]
    )
    assert [set(values) for step, values in wandb.logged if values not in steps.values()] == [
        MEMORY, EPOCH | {"epoch"}, EPOCH | {"epoch"},
    ]  # fmt: skip
    ends = [(step, values["epoch"]) for step, values in wandb.logged if "epoch" in values]
    assert ends == [(BATCHES, 1), (2 * BATCHES, 2)]
    assert [step for step, _ in wandb.logged] == sorted(step for step, _ in wandb.logged)
    assert wandb.exit_codes == [0]


def test_tensorboard_and_wandb_go_together(store: str, wandb: FakeWandb) -> None:
    done = CliRunner().invoke(app, ["train", store, *FLAGS, "--log", "tensorboard,wandb"])
    assert done.exit_code == 0, done.output
    found = list(events(Path("runs")))
    assert {name for name, _, _ in found} >= (STEP - {"gradient_norm"}) | MEMORY | EPOCH
    assert [step for name, step, _ in found if name == "loss"] == list(range(1, 2 * BATCHES + 1))
    assert [step for name, step, _ in found if name == "val"] == [0, 1]
    [text] = [value for name, _, value in found if name.startswith("configuration")]
    assert '"batch_size": 20' in text.tensor.string_val[0].decode()
    assert wandb.exit_codes == [0] and len(wandb.logged) == 2 * BATCHES + 3


@pytest.mark.parametrize(
    ("error", "status", "exit_code"),
    [(KeyboardInterrupt(), 130, 130), (ValueError("x"), 1, 1), (OSError("full"), 1, 1)],
)
def test_wandb_learns_how_a_run_ended(
    store: str,
    wandb: FakeWandb,
    monkeypatch: pytest.MonkeyPatch,
    error: BaseException,
    status: int,
    exit_code: int,
) -> None:
    def fit(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr(loop, "fit", fit)
    done = CliRunner().invoke(app, ["train", store, *FLAGS, "--log", "wandb"])
    assert done.exit_code == status
    assert wandb.exit_codes == [exit_code]


def test_a_refusal_of_wandb_closes_tensorboard_and_says_what_to_do(
    store: str, wandb: FakeWandb
) -> None:
    wandb.refuses = True
    done = CliRunner().invoke(app, ["train", store, *FLAGS, "--log", "tensorboard,wandb"])
    assert done.exit_code == 2
    assert "log=wandb: api_key not configured" in done.stderr and "WANDB_MODE=off" in done.stderr


@pytest.mark.parametrize(
    ("name", "module"), [("wandb", "wandb"), ("tensorboard", "torch.utils.tensorboard.writer")]
)
def test_a_package_that_is_not_there_is_named(
    store: str, monkeypatch: pytest.MonkeyPatch, name: str, module: str
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    done = CliRunner().invoke(app, ["train", store, *FLAGS, "--log", name])
    assert done.exit_code == 2
    assert f"log={name} needs the package {name} (pip install 'outcrop[{name}]')" in done.stderr


@pytest.mark.parametrize("log", ["comet", "wandb,wandb", "", "tensorboard,"])
def test_other_names_are_refused(store: str, log: str) -> None:
    done = CliRunner().invoke(app, ["train", store, "--log", log])
    assert done.exit_code == 2 and "log must be tensorboard, wandb or" in done.stderr


@pytest.mark.skipif(
    importlib.util.find_spec("wandb") is None,
    reason="wandb is not installed: pip install 'outcrop[wandb]'",
)
@pytest.mark.parametrize(("memory", "status"), [("200MB", 0), ("1MB", 1)])
def test_wandb_itself_keeps_a_run_offline(store: str, memory: str, status: int) -> None:
    flags = ["--log", "wandb", "--clip", "1", "--memory", memory]
    done = subprocess.run(
        [*OUTCROP, "train", store, *FLAGS, *flags],
        env={**os.environ, "WANDB_MODE": "offline", "WANDB_SILENT": "true"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == status, done.stderr
    found = list(wandb_records(next(Path("wandb").glob("offline-run-*/*.wandb"))))
    names = {
        item.key or "/".join(item.nested_key)
        for record in found
        if record.WhichOneof("record_type") == "history"
        for item in record.history.item
    }
    assert status or names >= STEP | MEMORY | EPOCH
    ends = [record.exit for record in found if record.WhichOneof("record_type") == "exit"]
    assert [end.exit_code for end in ends] == [status]


def wandb_records(path: Path) -> Iterator[Any]:
    """A file of wandb: 7 bytes, then LevelDB's log of messages."""
    from wandb.proto import wandb_internal_pb2

    data, at, message = path.read_bytes(), 7, b""
    while at + 7 <= len(data):
        if (1 << 15) - at % (1 << 15) < 7:  # no room for a header in this block
            at += (1 << 15) - at % (1 << 15)
            continue
        size, kind = int.from_bytes(data[at + 4 : at + 6], "little"), data[at + 6]
        message += data[at + 7 : at + 7 + size]
        at += 7 + size
        if kind in (1, 4):  # whole, or the last part
            record: Any = wandb_internal_pb2.Record()  # type: ignore[attr-defined,unused-ignore]
            record.ParseFromString(message)
            yield record
            message = b""
