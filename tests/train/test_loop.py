"""Training: it learns, repeats itself bit by bit, and goes on after whatever ended it."""

from __future__ import annotations

import hashlib
import json
import os
import random
import shlex
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import outcrop
from outcrop.cli import app
from outcrop.errors import BudgetError, LockedError, OptionError, StoreError
from outcrop.ingest.synthetic import SynthOptions, synthesise
from outcrop.observe.monitor import Monitor
from outcrop.store.locks import DirectoryLock
from outcrop.store.store import GraphStore
from outcrop.train import (
    FitResult,
    TrainOptions,
    TrainReporter,
    evaluate,
    fit,
    infer,
    load_checkpoint,
    load_model,
    loop,
)
from outcrop.train.loop import make_loader
from outcrop.train.reporter import EpochResult
from tests.cage import OUTCROP
from tests.conftest import SOAK
from tests.graphs import Graph
from tests.processes import running
from tests.stores import make_random_store, make_store, smallest_memory

SMALL: dict[str, Any] = {
    "layers": 2,
    "hidden": 16,
    "num_neighbors": (5, 5),
    "batch_size": 50,
    "epochs": 3,
    "lr": 0.01,
    "memory": "200MB",
    "device": "cpu",  # where runs repeat themselves bit by bit
}
FLAGS = ["--layers", "2", "--hidden", "16", "--num-neighbors", "5,5", "--batch-size", "50",
         "--lr", "0.01", "--memory", "200MB", "--device", "cpu"]  # fmt: skip


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A graph with labels that can be learnt."""
    path = tmp_path_factory.mktemp("train") / "g.outcrop"
    options = SynthOptions(nodes=4000, edges=40_000, dim=16, classes=4, train_fraction=0.1)
    synthesise(path, options, memory=100_000_000)
    return path


@pytest.fixture
def store(path: Path) -> GraphStore:
    return GraphStore(path)


def weights_hash(model: torch.nn.Module | dict[str, torch.Tensor]) -> str:
    state = model if isinstance(model, dict) else model.state_dict()
    digest = hashlib.sha256()
    for name in sorted(state):
        digest.update(name.encode() + state[name].numpy().tobytes())
    return digest.hexdigest()


@pytest.mark.parametrize("model", ["sage", "gcn", "gat", "gin"])
def test_every_model_learns(store: GraphStore, model: str) -> None:
    result = fit(store, TrainOptions(model=model, dropout=0.1, **{**SMALL, "epochs": 8}))
    losses = [epoch.loss for epoch in result.history]
    assert losses[-1] < 0.7 * losses[0]
    assert result.test is not None and result.test > 0.5, "chance is 0.25"
    assert result.best_epoch == max(range(8), key=lambda e: (result.history[e].val, -e))


def test_shadow_learns(store: GraphStore) -> None:
    options = TrainOptions(sampler="shadow", dropout=0.1, **{**SMALL, "epochs": 6})
    result = fit(store, options)
    assert result.test is not None and result.test > 0.5


@pytest.mark.parametrize("strategy", ["mmap", "direct", "gnndrive", "gnndrive:x=slots"])
def test_strategies_train_the_same_model(store: GraphStore, strategy: str) -> None:
    reference = fit(store, TrainOptions(**SMALL))
    other = fit(store, TrainOptions(strategy=strategy, **SMALL))
    assert weights_hash(other.model) == weights_hash(reference.model)


def test_subgraphs_per_seed_are_trained_from_slots_alike(store: GraphStore) -> None:
    options = {**SMALL, "sampler": "shadow", "epochs": 1}
    one, other = (
        fit(store, TrainOptions(strategy=strategy, **options))
        for strategy in ("memory", "gnndrive:x=slots")
    )
    assert weights_hash(one.model) == weights_hash(other.model)
    assert (one.val, one.test) == (other.val, other.test)


def test_full_evaluation_leaves_nothing_behind(store: GraphStore) -> None:
    result = fit(store, TrainOptions(evaluate="full", **SMALL))
    assert result.val is not None and result.val > 0.4
    assert all(not path.name.startswith(".evaluate") for path in store.path.parent.iterdir())


@pytest.mark.parametrize("strategy", ["direct", "ginex", "diskgnn"])
def test_full_evaluation_has_no_memory_of_its_own(
    store: GraphStore, monkeypatch: pytest.MonkeyPatch, strategy: str
) -> None:
    loaders: list[Any] = []
    given: list[int] = []

    def made(*args: Any) -> Any:
        loaders.append(make_loader(*args))
        return loaders[0]

    def watched(*args: Any, memory: int, **more: Any) -> None:
        runner = loaders[0].runner
        given.append(memory)
        beside = runner.budget.charges.get("lent between epochs", 0)
        assert runner._pool.held_bytes >= memory - beside > 0, "batches have given it up"
        assert sum(runner.budget.charges.values()) + memory - beside <= runner.budget.total_bytes
        infer(*args, memory=memory, **more)

    monkeypatch.setattr(loop, "make_loader", made)
    monkeypatch.setattr(evaluate, "infer", watched)
    options = {**SMALL, "strategy": strategy, "memory": "60MB"}
    full = fit(store, TrainOptions(evaluate="full", **options))
    assert len(given) == SMALL["epochs"] and full.val is not None
    monkeypatch.undo()
    last = {**options, "evaluate": "none"}
    assert full.history[-1].loss == fit(store, TrainOptions(**last)).history[-1].loss


def test_a_hub_that_batches_have_no_memory_for_is_charged_and_refused_by_what_would_do(
    tmp_path: Path,
) -> None:
    """The hub is no training node, and far from those that are: no batch shows how large it is."""
    spokes = np.stack([np.arange(60_000), np.full(60_000, 60_001)])
    ring = np.stack([np.arange(100), (np.arange(100) + 1) % 100])
    graph = Graph(60_002, np.concatenate([ring, spokes], axis=1))
    options = {**SMALL, "batch_size": 10, "epochs": 1, "strategy": "memory", "evaluate": "full"}
    with make_store(tmp_path / "g.outcrop", graph, train=100) as made:
        with pytest.raises(BudgetError, match=r"lent between epochs .*smallest that would do is"):
            fit(made, TrainOptions(**{**options, "memory": "5MB"}))

        def of(memory: Any) -> FitResult:
            return fit(made, TrainOptions(**{**options, "memory": memory}))

        result = of(smallest_memory(of))
        assert result.record.charges["lent between epochs"] > 10_000_000
        assert result.val is not None


def test_early_stopping_keeps_the_best_weights(store: GraphStore, tmp_path: Path) -> None:
    options = TrainOptions(**{**SMALL, "epochs": 50, "lr": 0.3}, patience=2,
                           checkpoint_dir=str(tmp_path))  # fmt: skip
    result = fit(store, options)
    assert result.stopped_early and len(result.history) < 50
    assert result.best_epoch == len(result.history) - 3
    best = load_checkpoint(tmp_path / "best.safetensors")
    assert weights_hash(load_model(best)) == weights_hash(result.model)
    again = fit(store, TrainOptions.from_dict({**options.as_dict(), "resume": True}))
    assert len(again.history) == len(result.history), "nothing more is done"


class StopAt(TrainReporter):
    def __init__(self, stop: int) -> None:
        self.left = stop

    def batch(self, epoch: int, batch: int, loss: float, seeds: int, bytes_read: int) -> None:
        self.left -= 1
        if self.left == 0:
            raise KeyboardInterrupt

    def epoch(self, result: EpochResult) -> None: ...


@pytest.mark.parametrize("every", [0, 1, 3])
@pytest.mark.parametrize("stop", [1, 8, 11, 20])
def test_an_interrupted_run_resumes_bit_by_bit(
    store: GraphStore, tmp_path: Path, stop: int, every: int
) -> None:
    expected = fit(store, TrainOptions(**SMALL))
    options = TrainOptions(**SMALL, checkpoint_dir=str(tmp_path), checkpoint_every=every)
    with pytest.raises(KeyboardInterrupt):
        fit(store, options, reporter=StopAt(stop))
    result = fit(store, TrainOptions.from_dict({**options.as_dict(), "resume": True}))
    assert weights_hash(result.model) == weights_hash(expected.model)
    for one, other in zip(result.history, expected.history, strict=True):
        assert (one.loss, one.val, one.test) == (other.loss, other.val, other.test)


def test_a_run_with_other_options_is_not_resumed(store: GraphStore, tmp_path: Path) -> None:
    fit(store, TrainOptions(**SMALL, checkpoint_dir=str(tmp_path)))
    with pytest.raises(OptionError, match=r"lr=0\.01 "):
        fit(store, TrainOptions(**{**SMALL, "lr": 0.1}, checkpoint_dir=str(tmp_path), resume=True))
    with pytest.raises(OptionError, match="give resume"):
        fit(store, TrainOptions(**SMALL, checkpoint_dir=str(tmp_path)))
    more = {**SMALL, "epochs": 5}
    result = fit(store, TrainOptions(**more, checkpoint_dir=str(tmp_path), resume=True))
    assert weights_hash(result.model) == weights_hash(fit(store, TrainOptions(**more)).model)


def test_what_there_is_to_resume_from_is_said(store: GraphStore, tmp_path: Path) -> None:
    class Notes(StopAt):
        def __init__(self, stop: int) -> None:
            super().__init__(stop)
            self.notes: list[str] = []
            self.progress = SimpleNamespace(note=self.notes.append)  # type: ignore[assignment]

    folder = tmp_path / "runs"
    options = TrainOptions(**SMALL, checkpoint_dir=str(folder), checkpoint_every=1, resume=True)
    with pytest.raises(OptionError, match=f"there is no directory {folder} to resume from"):
        fit(store, options)
    assert not folder.exists()
    folder.mkdir()
    for notes in (
        [f"{folder} has no checkpoint: training starts from the beginning"],
        [f"resumed from {folder}/last.safetensors: epoch 1 of 3, after 4 of 8 batches"],
    ):
        reporter = Notes(5)
        with pytest.raises(KeyboardInterrupt):
            fit(store, options, reporter=reporter)
        assert reporter.notes == notes
    fit(store, options)
    reporter = Notes(5)
    fit(store, options, reporter=reporter)
    assert reporter.notes == [
        f"resumed from {folder}/last.safetensors: epoch 4 of 3",
        "epochs=3: nothing was trained; the run has had 3",
    ]


def test_a_run_that_ends_badly_leaves_no_scratch(store: GraphStore) -> None:
    options = TrainOptions(**{**SMALL, "strategy": "ginex"})
    with pytest.raises(KeyboardInterrupt) as raised:
        fit(store, options, reporter=StopAt(3))
    left = list((store.path / "derived").glob("**/*scratch*"))
    assert not left, "while the exception, and all that it refers to, lives"
    del raised


def test_a_run_goes_on_with_another_strategy_if_its_batches_are_the_same(
    store: GraphStore, tmp_path: Path
) -> None:
    def go_on(strategy: str) -> FitResult:
        options = TrainOptions(
            **SMALL, strategy=strategy, checkpoint_dir=str(tmp_path), resume=True
        )
        return fit(store, options)

    expected = fit(store, TrainOptions(**SMALL))
    with pytest.raises(KeyboardInterrupt):
        saved = TrainOptions(**SMALL, checkpoint_dir=str(tmp_path), checkpoint_every=1)
        fit(store, saved, reporter=StopAt(11))
    for strategy, difference in (
        ("diskgnn:cycle=true:distinct_epochs=1", "diskgnn:cycle was not set, and is True"),
        ("gnndrive:order=completion", "came in exact order .* completion"),
    ):
        with pytest.raises(OptionError, match=rf"last\.safetensors: .*{difference}"):
            go_on(strategy)
    assert weights_hash(go_on("diskgnn").model) == weights_hash(expected.model)


def test_two_runs_do_not_share_a_directory(store: GraphStore, tmp_path: Path) -> None:
    (tmp_path / ".lock").touch()
    lock = DirectoryLock(tmp_path, shared=False)
    with pytest.raises(LockedError):
        fit(store, TrainOptions(**SMALL, checkpoint_dir=str(tmp_path)))
    lock.release()


def test_a_store_without_labels_is_refused(tmp_path: Path) -> None:
    with (
        make_random_store(tmp_path / "g.outcrop", dim=None) as store,
        pytest.raises(StoreError, match="training needs features"),
    ):
        fit(store)


def test_a_users_own_model_is_trained(store: GraphStore) -> None:
    from torch_geometric.nn import GraphSAGE

    model = GraphSAGE(16, 8, num_layers=2, out_channels=4, jk="cat")
    result = fit(store, TrainOptions(**SMALL), model=model)
    assert result.model is model


# The command, in processes of its own


def run(
    args: list[str], cwd: Path | None = None, **environment: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*OUTCROP, "train", *args], capture_output=True, text=True, cwd=cwd,
                          env={**os.environ, **environment})  # fmt: skip


def test_bf16_trains_where_the_cpu_can(path: Path) -> None:
    flags = [str(path), *FLAGS, "--epochs", "2", "--precision", "bf16"]
    done = run(flags, ONEDNN_MAX_CPU_ISA="AVX512_CORE_BF16")
    assert done.returncode == 0, done.stderr


def test_bf16_that_would_kill_torch_is_refused(
    store: GraphStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(OptionError, match="use fp32"):
        fit(store, TrainOptions(precision="bf16", **SMALL))


def last_weights(directory: Path) -> str:
    return weights_hash(load_checkpoint(directory / "last.safetensors").model)


def test_the_command_trains_records_and_says_so(path: Path, tmp_path: Path) -> None:
    config = tmp_path / "run.yaml"
    config.write_text("epochs: 7\nhidden: 8\n")
    record = tmp_path / "run.json"
    done = run([str(path), *FLAGS, "--config", str(config), "--epochs", "2",
                "--record", str(record), "--strategy", "direct", "--log", "tensorboard"],
               cwd=tmp_path)  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "epoch   2" in done.stdout and "test 0." in done.stdout and "memory:" in done.stdout
    written = json.loads(record.read_text())
    assert written["format"] == "outcrop-record" and written["kind"] == "train"
    options = written["configuration"]
    assert options["epochs"] == 2 and options["hidden"] == 16
    assert [epoch["epoch"] for epoch in written["history"]] == [0, 1]
    trained = [e for e in written["loader"]["epochs"] if e["stream"] == "train"]
    assert [e["seeds"] for e in trained] == [400, 400] and trained[0]["bytes_read"] > 0
    assert any((tmp_path / "runs").rglob("events.out.tfevents*"))


def test_weights_are_equal_in_every_process_and_for_every_number_of_threads(
    path: Path, tmp_path: Path
) -> None:
    hashes = {}
    for name, flags, threads in (
        ("one", [], "2"),
        ("two", [], "2"),
        ("deterministic 1", ["--deterministic"], "1"),
        ("deterministic 2", ["--deterministic"], "2"),
    ):
        folder = tmp_path / name
        done = run([str(path), *FLAGS, "--epochs", "1", "--evaluate", "none", "--hidden", "64",
                    "--checkpoint-dir", str(folder), *flags], OMP_NUM_THREADS=threads,
                   MKL_NUM_THREADS=threads)  # fmt: skip
        assert done.returncode == 0, done.stderr
        hashes[name] = last_weights(folder)
    assert hashes["one"] == hashes["two"]
    assert hashes["deterministic 1"] == hashes["deterministic 2"]


def test_a_killed_run_resumes_bit_by_bit(path: Path, tmp_path: Path) -> None:
    flags = [str(path), *FLAGS, "--epochs", "6", "--checkpoint-every", "1"]
    start = time.monotonic()
    assert run([*flags, "--checkpoint-dir", str(tmp_path / "whole")]).returncode == 0
    seconds = time.monotonic() - start
    expected = last_weights(tmp_path / "whole")
    rng = random.Random(0)
    for number in range(20 if SOAK else 1):
        folder = tmp_path / f"killed-{number}"
        folder.mkdir()
        args = [*flags, "--checkpoint-dir", str(folder), "--resume"]
        for _ in range(2):  # killed twice
            process = subprocess.Popen([*OUTCROP, "train", *args], stdout=subprocess.DEVNULL,
                                       stderr=subprocess.DEVNULL)  # fmt: skip
            time.sleep(seconds * rng.uniform(0.4, 1))
            process.kill()
            process.wait()
        done = run(args)
        assert done.returncode == 0, done.stderr
        assert last_weights(folder) == expected


@pytest.mark.parametrize("strategy", ["memory", "gnndrive", "gnndrive:order=completion"])
def test_ctrl_c_ends_at_once_and_keeps_the_checkpoint(
    path: Path, tmp_path: Path, strategy: str
) -> None:
    folder = tmp_path / "c"
    command = [*OUTCROP, "train", str(path), *FLAGS, "--epochs", "10000", "--checkpoint-every", "1",
               "--strategy", strategy, "--checkpoint-dir", str(folder)]  # fmt: skip
    with running(command, stdout=None) as process:
        deadline = time.monotonic() + 60
        while not (folder / "last.safetensors").exists():
            assert time.monotonic() < deadline and process.poll() is None
            time.sleep(0.05)
        start = time.monotonic()
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=30)
    assert process.returncode == 130
    assert time.monotonic() - start < 10  # of epochs that would take hours
    assert "--resume" in errors
    assert load_checkpoint(folder / "last.safetensors").facts["loader"]["batch"] >= 0


def test_a_full_drive_names_the_file_and_keeps_the_old_one(path: Path, tmp_path: Path) -> None:
    limited = f"ulimit -f 1; exec {shlex.join([*OUTCROP, 'train', str(path), *FLAGS])} --epochs 1"
    for name, flags in (
        ("last.safetensors", ["--checkpoint-dir", str(tmp_path), "--evaluate", "none"]),
        ("run.json", ["--record", str(tmp_path / "run.json")]),
    ):
        (tmp_path / "run.json").write_text("old")
        done = subprocess.run(
            ["bash", "-c", f"{limited} {shlex.join(flags)}"], capture_output=True, text=True
        )
        assert done.returncode == 1, done.stderr
        assert f"{name}: " in done.stderr and "File too large" in done.stderr
        assert {file.name for file in tmp_path.iterdir()} <= {"run.json", ".lock"}
    assert (tmp_path / "run.json").read_text() == "old"


@pytest.mark.parametrize("kept", [True, False])
def test_ctrl_c_advises_what_can_be_done(path: Path, tmp_path: Path, kept: bool) -> None:
    def interrupt(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    (tmp_path / "a b").mkdir()
    if kept:
        (tmp_path / "a b" / "last.safetensors").touch()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "fit", interrupt)
        flags = ["--checkpoint-dir", str(tmp_path / "a b")]
        done = CliRunner().invoke(app, ["train", str(path), *FLAGS, *flags])
        nowhere = CliRunner().invoke(app, ["train", str(path), *FLAGS])
    assert done.exit_code == nowhere.exit_code == 130
    assert ("a b' --resume" in done.stderr) == kept
    assert ("no checkpoint yet; --checkpoint-every" in done.stderr) == (not kept)
    assert "--resume" not in nowhere.stderr and "--checkpoint-dir DIR" in nowhere.stderr


def test_no_epochs_are_said_to_be_none(path: Path, tmp_path: Path) -> None:
    flags = ["--epochs", "0", "--checkpoint-dir", str(tmp_path / "c"), "--record",
             str(tmp_path / "r.json"), "--report", str(tmp_path / "r.html")]  # fmt: skip
    done = CliRunner().invoke(app, ["train", str(path), *FLAGS, *flags])
    assert done.exit_code == 0, done.stderr
    assert "epochs=0: nothing was trained; the model has its first weights" in done.stdout
    assert "no checkpoint was written" in done.stdout


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--num-neighbors", "10;10"], "num_neighbors must be like"),
        (["--memory", "1MB"], "the smallest that would do"),
        (["--log", "comet"], "log must be tensorboard, wandb or"),
        (["--device", "tpu9"], "device must be"),
        (["--device", "cuda:99"], "torch sees"),
        (["--record", "/no/such/folder/run.json"], "there is no folder"),
        (["--epochs", "-1"], "epochs must be a whole number of at least 0"),
    ],
)
def test_bad_commands_say_what_is_wrong(path: Path, flags: list[str], message: str) -> None:
    done = CliRunner().invoke(app, ["train", str(path), *flags])
    assert done.exit_code in (1, 2)
    assert message in done.stderr and "Traceback" not in done.stderr


def test_outcrop_train_is_importable_lazily() -> None:
    assert outcrop.train.fit is fit


def test_the_series_has_the_queues_of_the_pipeline(
    store: GraphStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "Monitor", partial(Monitor, every=0.002))
    series = fit(store, TrainOptions(**SMALL)).series
    assert {"queue_sample", "queue_gather", "queue_consumer"} <= set(series)
    assert len({len(column) for column in series.values()}) == 1
    assert max(series["queue_consumer"]) > 0
