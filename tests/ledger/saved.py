"""Saved: folders as this version leaves them, and what must come of them, in one archive.

`facts.json` in it has the expectations. Killing a preparation in its middle needs to know where its
middle is: programs here, which only recording runs, use parts that the tests do not.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch_geometric.data import Data

import outcrop
from outcrop.train import TrainOptions, TrainReporter, fit
from tests.ledger.cases import CLASSES, DISK, digest
from tests.processes import program, running

NODES, EDGES, DIM, TRAIN = 600, 4000, 32, 150
MEMORY = "20MB"
# A cache of some rows, so that the others are packed.
PACKED = "diskgnn:distinct_epochs=2:cache_share=0.001"
REFRESHED = "diskgnn:cache_share=0.001:refresh=background"
REFRESH_EPOCHS = 4
TRAIN_OPTIONS: dict[str, Any] = {
    "layers": 2, "hidden": 8, "num_neighbors": (4, 3), "batch_size": 20, "epochs": 3,
    "memory": MEMORY, "strategy": "direct", "device": "cpu", "deterministic": True,
    "checkpoint_every": 2,
}  # fmt: skip
# Where training was stopped: after so many batches of its second epoch.
STOPPED_AFTER = 4


@dataclass(frozen=True)
class Position:
    """A loop that is left in its second epoch."""

    strategy: str
    kind: str = "neighbor"
    nodes: str = "train"
    edge_ids: bool = True


POSITIONS = [
    Position("memory"),
    Position("mmap"),
    Position("direct"),
    Position("direct", edge_ids=False),
    Position("direct", kind="shadow"),
    Position("direct", nodes="val"),
    Position("pagraph"),
    Position("ginex:superbatch=3"),
    Position("ginex:mode=split:superbatch=3:overlap=true"),
    Position("gnndrive"),
    Position("gnndrive:order=completion"),
    Position(PACKED),
    Position("diskgnn:cycle=true:distinct_epochs=1"),
    Position(REFRESHED),
]
SAMPLES = "mine"
# Strategies whose layouts are in the whole store, and further arguments of their loaders.
WHOLE: dict[str, dict[str, Any]] = {
    PACKED: {},
    "diskgnn:cycle=true:distinct_epochs=1": {},
    f"diskgnn:samples={SAMPLES}:cache_share=0.001": {},
    # Batches share rows.
    "diskgnn:distinct_epochs=2:cpu_cache=false": {"disk": 500_000},
    "pagraph": {},
    "ginex:superbatch=3": {},
}
# Packs that a kill left: with a plan alone, with some of their rows, with all but their record.
HALF = ("planned", "packing", "ending")


def make_loader(store: Any, strategy: str, kind: str = "neighbor", **more: Any) -> Any:
    options: dict[str, Any] = {
        "input_nodes": "train", "batch_size": 20, "shuffle": True, "seed": 3, "memory": MEMORY,
        "strategy": strategy, **more,
    }  # fmt: skip
    if kind == "shadow":
        return outcrop.ShaDowLoader(store, 2, 3, **options)
    return outcrop.NeighborLoader(store, [4, 3], **options)


def positioned(store: Any, position: Position) -> Any:
    """A loader whose position it is, or was."""
    loader = make_loader(store, position.strategy, position.kind, edge_ids=position.edge_ids)
    return loader if position.nodes == "train" else loader.sibling(position.nodes)


def weights(model: torch.nn.Module) -> dict[str, list[float]]:
    return {name: value.flatten().tolist() for name, value in model.state_dict().items()}


def listing(folder: Path) -> dict[str, tuple[int, int]]:
    """Every file below, with its size and when it was written."""
    files = {at: at.stat() for at in folder.rglob("*") if at.is_file()}
    return {
        str(at.relative_to(folder)): (stat.st_size, stat.st_mtime_ns) for at, stat in files.items()
    }


# Recording


def save_all(folder: Path, archive: Path) -> None:
    """Makes everything in `folder`, and the archive of it."""
    folder.mkdir()
    with inside(folder):  # paths that are saved are relative
        facts = {
            "whole": save_whole(Path("whole.outcrop")),
            "half": {name: save_half(Path(f"{name}.outcrop"), name) for name in HALF},
            "refresh": save_refresh(Path("refresh.outcrop")),
            "positions": save_positions(Path("whole.outcrop")),
            "training": save_training(Path("whole.outcrop"), Path("run")),
            "records": save_records(Path("whole.outcrop"), Path("records")),
        }
        Path("facts.json").write_text(json.dumps(facts, indent=1))
    with tarfile.open(archive, "w:xz", preset=9) as tar:
        for at in sorted(folder.iterdir()):
            tar.add(at, at.name, filter=nobody)


def nobody(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    return entry


@contextmanager
def inside(folder: Path) -> Iterator[None]:
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


def make_small_store(path: Path) -> None:
    rng = np.random.default_rng(11)
    parts: dict[str, Any] = {
        "edge_index": torch.from_numpy(rng.integers(0, NODES, (2, EDGES))),
        "x": torch.from_numpy((rng.integers(-8, 9, (NODES, DIM)) / 8).astype(np.float32)),
        "y": torch.from_numpy(rng.integers(0, CLASSES, NODES)),
        "num_nodes": NODES,
    }
    ids = torch.from_numpy(rng.permutation(NODES))
    for name, begin, end in (("train", 0, TRAIN), ("val", TRAIN, 230), ("test", 230, 300)):
        mask = torch.zeros(NODES, dtype=torch.bool)
        mask[ids[begin:end]] = True
        parts[f"{name}_mask"] = mask
    outcrop.from_pyg(Data(**parts), path, edge_ids=True).close()


def epochs(path: Path, strategy: str, count: int, **more: Any) -> list[str]:
    """Digests of the first epochs."""
    with outcrop.open(path, DISK) as store:
        loader = make_loader(store, strategy, **more)
        found = [digest(loader, strategy) for _ in range(count)]
        loader.close()
    return found


def save_whole(path: Path) -> dict[str, Any]:
    make_small_store(path)
    with outcrop.open(path, DISK) as store:
        loader = make_loader(store, "memory", seed=8)
        outcrop.import_samples(store, list(loader), SAMPLES)
        loader.close()
    found = {strategy: epochs(path, strategy, 2, **more) for strategy, more in WHOLE.items()}
    layouts = sorted(at.name for at in (path / "derived").iterdir())
    return {"digests": found, "layouts": layouts}


PREPARES = f"""
    import os, signal, sys
    import outcrop
    from outcrop.disk import File
    from outcrop.layout.pack import batched, scatter
    from tests.ledger.cases import DISK
    from tests.ledger.saved import make_loader

    # Many small parts, each saved.
    scatter._LEAST_PARTITION_BYTES = scatter.MOST_PARTITION_BYTES = 16 << 10
    batched.pack_batched.__defaults__ = (*batched.pack_batched.__defaults__[:-1], 0.0)
    left = int(sys.argv[2])

    def dying(call):
        def counted(*args, **options):
            global left
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return call(*args, **options)
        return counted

    for owner, name in ((File, "start_write_extents"), (File, "sync"), (os, "rename"),
                        (os, "fsync"), (os, "unlink")):
        setattr(owner, name, dying(getattr(owner, name)))
    make_loader(outcrop.open(sys.argv[1], DISK), {PACKED!r}).close()
    print(int(sys.argv[2]) - left)
"""


def prepare_and_die(path: Path, at: int) -> subprocess.CompletedProcess[str]:
    """Prepares in a process that is killed at its n-th write, sync or rename."""
    command = program(textwrap.dedent(PREPARES), str(path), str(at))
    return subprocess.run(command, capture_output=True, text=True, env=environment())


def environment() -> dict[str, str]:
    """In which programs find this package and these tests."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(p or os.getcwd() for p in sys.path)}


def save_half(path: Path, stage: str) -> dict[str, Any]:
    """A store whose pack was begun."""
    make_small_store(path)
    done = prepare_and_die(path, 10**6)
    assert done.returncode == 0, done.stderr
    calls = int(done.stdout)
    start = {"planned": calls // 3, "packing": calls // 2, "ending": calls - 3}[stage]
    for at in range(start, 0, -1):
        shutil.rmtree(path / "derived")
        done = prepare_and_die(path, at)
        assert done.returncode == -signal.SIGKILL, done.stderr
        begun = sorted(file.name for file in path.glob("derived/.pack-*.building/*"))
        if stage_of(begun) == stage:
            return {"begun": begun, "digests": epochs(path, "memory", 2)}
    raise AssertionError(f"no kill leaves a pack that is {stage}")


def stage_of(begun: list[str]) -> str:
    """How far a pack is that has these files."""
    if "layout.json" in begun:
        return "done"
    if "pack.json" in begun:
        return "ending"
    if "progress.bin" in begun:
        return "packing"
    return "planned" if "plan.json" in begun else "sampled"


REFRESHES = f"""
    import sys, time
    from pathlib import Path
    import outcrop
    from tests.ledger.cases import DISK
    from tests.ledger.saved import REFRESH_EPOCHS, make_loader

    path = Path(sys.argv[1])
    loader = make_loader(outcrop.open(path, DISK), {REFRESHED!r}, epochs=REFRESH_EPOCHS)
    for batch in loader:
        pass
    batches = iter(loader)
    next(batches)
    while len(list(path.glob("derived/pack-*"))) < 2 or list(path.glob("derived/.*")):
        time.sleep(0.01)
    print("ready", flush=True)
    time.sleep(600)
"""


def save_refresh(path: Path) -> dict[str, Any]:
    """A store with two generations of a run that was killed in its second epoch."""
    make_small_store(path)
    command = program(textwrap.dedent(REFRESHES), str(path))
    with running(command, env=environment(), stderr=None) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.kill()
    layouts = sorted(at.name for at in (path / "derived").iterdir())
    return {"layouts": layouts, "digests": epochs(path, "memory", REFRESH_EPOCHS)}


def save_positions(path: Path) -> list[dict[str, Any]]:
    """Of a store with its layouts, which stays as it is."""
    with copied(path) as copy, outcrop.open(copy, DISK) as store:
        return [{**asdict(one), **save_position(store, one)} for one in POSITIONS]


def save_position(store: Any, position: Position) -> dict[str, Any]:
    loader = positioned(store, position)
    digest(loader)
    begun = iter(loader)
    for batch in islice(begun, 3):
        del batch
    state = loader.state_dict()
    found = [digest(begun, position.strategy), digest(loader, position.strategy)]
    loader.close()
    return {"state": state, "rest": found}


@contextmanager
def copied(path: Path) -> Iterator[Path]:
    copy = path.with_name(f"copy-{path.name}")
    shutil.copytree(path, copy)
    try:
        yield copy
    finally:
        shutil.rmtree(copy)


class _Stopped(BaseException):
    """As a kill: what was saved stays."""


class _Stopping(TrainReporter):
    def batch(self, epoch: int, batch: int, loss: float, seeds: int, bytes_read: int) -> None:
        if (epoch, batch) == (1, STOPPED_AFTER + 1):
            raise _Stopped


def save_training(path: Path, folder: Path) -> dict[str, Any]:
    """A run that was stopped in its second epoch; and how it ends."""
    with outcrop.open(path, DISK) as store:
        whole = fit(store, TrainOptions(**TRAIN_OPTIONS))
        stopped = TrainOptions(**TRAIN_OPTIONS, checkpoint_dir=str(folder))
        try:
            fit(store, stopped, reporter=_Stopping())
        except _Stopped:
            pass
        else:
            raise AssertionError("it was to be stopped")
    return {
        "losses": [epoch.loss for epoch in whole.history],
        "weights": weights(whole.model),
    }


def save_records(path: Path, folder: Path) -> list[str]:
    """Records of training and of a benchmark."""
    folder.mkdir()
    outcrop_ = [sys.executable, "-m", "outcrop"]
    common = [str(path), "--num-neighbors", "4,3", "--batch-size", "20", "--memory", MEMORY]
    train = [*outcrop_, "train", *common, "--layers", "2", "--hidden", "8", "--epochs", "2"]
    train += ["--strategy", PACKED, "--device", "cpu", "--record", str(folder / "train.json")]
    bench = [*outcrop_, "bench", *common, "--batches", "3", "--repeat", "1", "--no-report"]
    bench += ["--strategies", "memory,direct", "--cage", "2GB", "--out", str(folder / "bench")]
    with copied(path) as copy:
        for command in (train, bench):
            command[command.index(str(path))] = str(copy)
            done = subprocess.run(command, capture_output=True, text=True, env=environment())
            assert done.returncode == 0, done.stderr
    for file in folder.rglob("*.json"):
        values = json.loads(file.read_text())
        if "machine" in values:
            values["machine"] |= {"cpu": "a CPU", "system": "a system"}
        file.write_text(json.dumps(values))
    return sorted(str(file.relative_to(folder)) for file in folder.rglob("*.json"))
