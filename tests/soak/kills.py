"""Kills: work killed at random instants and begun again -> the same weights, stores and layouts."""

from __future__ import annotations

import random
import shutil
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from outcrop.ingest.build import import_graph
from outcrop.ingest.npz import npz_source
from outcrop.ingest.source import IngestOptions
from outcrop.layout.verify import verify
from outcrop.store.derived import find_garbage, remove
from outcrop.store.store import GraphStore
from outcrop.train import TrainOptions, fit, load_checkpoint
from tests.conformance.contract import all_contents
from tests.graphs import files_of, random_graph, save_npz
from tests.soak.faults import make_loader
from tests.soak.trials import Trial, run_and_kill
from tests.stores import make_random_store

STRATEGIES = (
    "auto", "direct", "pagraph", "ginex", "ginex:mode=split", "gnndrive",
    "gnndrive:topology=cache", "diskgnn", "diskgnn:refresh=background",
)  # fmt: skip
_MEMORY = "60MB"
_MOST_KILLS = 3
_TRAINING: dict[str, Any] = {
    "layers": 2, "hidden": 8, "num_neighbors": (5, 5), "batch_size": 40, "epochs": 4,
    "evaluate": "sampled", "device": "cpu", "deterministic": True, "memory": _MEMORY,
}  # fmt: skip


def trials(folder: Path, count: int, seed: int) -> Iterator[Trial]:
    """Of each kind a third: training, importing, preparing."""
    graph = folder / "graph.outcrop"
    make_random_store(graph, 3000, 30_000, dim=40, train=300).close()
    archive = _archive(folder)
    # In a child: threads that it starts must not be in the process that forks trials.
    assert not run_and_kill(partial(_reference, graph, archive, folder), 600), "ten minutes"
    rng = random.Random(seed)
    kinds = (_killed_training, _killed_import, _killed_preparation)
    for number in range(count):
        kind = kinds[number % len(kinds)]
        strategy = STRATEGIES[number // len(kinds) % len(STRATEGIES)]
        work = partial(kind, folder, strategy, rng.randrange(2**32))
        yield Trial(f"{kind.__name__} {number} ({strategy})", work)


def _archive(folder: Path) -> Path:
    rng = np.random.default_rng(0)
    nodes = 20_000
    return save_npz(
        folder / "graph.npz",
        random_graph(nodes, 400_000),
        compressed=False,
        x=rng.standard_normal((nodes, 60)).astype(np.float32),
        y=rng.integers(0, 5, nodes),
    )


def _reference(graph: Path, archive: Path, folder: Path) -> None:
    """What an undisturbed run gives: weights, the imported store, batches."""
    _train(graph, folder / "whole", "memory")
    _import(archive, folder / "imported.outcrop")


# Training


def _train(store: Path, checkpoints: Path, strategy: str) -> None:
    torch.set_num_threads(1)
    checkpoints.mkdir(exist_ok=True)
    options = TrainOptions(
        **_TRAINING, strategy=strategy, checkpoint_dir=str(checkpoints), checkpoint_every=1,
        resume=True,
    )  # fmt: skip
    with GraphStore(store) as opened:
        fit(opened, options)


def _weights(checkpoints: Path) -> dict[str, torch.Tensor]:
    return load_checkpoint(checkpoints / "last.safetensors").model


def _killed_training(folder: Path, strategy: str, seed: int) -> dict[str, int]:
    with tempfile.TemporaryDirectory(dir=folder) as own:
        store = Path(own) / "graph.outcrop"
        shutil.copytree(folder / "graph.outcrop", store)
        checkpoints = Path(own) / "run"
        kills = _killed_often(partial(_train, store, checkpoints, strategy), seed, seconds=1.5)
        expected, found = _weights(folder / "whole"), _weights(checkpoints)
        assert all(found[name].equal(value) for name, value in expected.items()), "other weights"
        _check_store(store)
    return {"kills of training": kills}


def _killed_often(work: Callable[[], None], seed: int, seconds: float) -> int:
    """Kills the work up to three times, then lets it end -> how often it was killed.

    `seconds`: about what it takes.
    """
    rng = random.Random(seed)
    kills = sum(run_and_kill(work, rng.uniform(0, seconds)) for _ in range(_MOST_KILLS))
    assert not run_and_kill(work, 120), "it did not end within two minutes"
    return kills


def _check_store(store: Path) -> None:
    report = verify(store)
    assert report.ok, [str(problem) for problem in report.problems]


# Importing


def _import(archive: Path, store: Path) -> None:
    import_graph(npz_source(archive), store, IngestOptions(memory=64 << 20))


def _killed_import(folder: Path, _: str, seed: int) -> dict[str, int]:
    with tempfile.TemporaryDirectory(dir=folder) as own:
        store = Path(own) / "imported.outcrop"
        work = partial(_import_unless_there, folder / "graph.npz", store)
        kills = _killed_often(work, seed, seconds=0.4)
        assert files_of(store) == files_of(folder / "imported.outcrop"), "another store"
        assert [path.name for path in Path(own).iterdir()] == [store.name], "leftovers"
    return {"kills of imports": kills}


def _import_unless_there(archive: Path, store: Path) -> None:
    if not store.exists():
        _import(archive, store)


# Preparing


def _two_epochs(store: Path, strategy: str) -> None:
    with GraphStore(store) as opened:
        loader = make_loader(opened, strategy)
        for epoch in range(2):
            for _ in loader.epoch(epoch):
                pass
        loader.close()


def _killed_preparation(folder: Path, strategy: str, seed: int) -> dict[str, int]:
    """Killed while it prepares and reads; then batches are right, and gc leaves only the store."""
    with tempfile.TemporaryDirectory(dir=folder) as own:
        store = Path(own) / "graph.outcrop"
        shutil.copytree(folder / "graph.outcrop", store)
        kills = _killed_often(partial(_two_epochs, store, strategy), seed, seconds=0.3)
        assert not run_and_kill(partial(_check_batches, store, strategy), 120)
    return {"kills of preparations": kills}


def _check_batches(path: Path, strategy: str) -> None:
    with GraphStore(path) as store:
        loader, reference = make_loader(store, strategy), make_loader(store, "memory")
        for epoch in range(2):
            assert all_contents(loader.epoch(epoch)) == all_contents(reference.epoch(epoch))
        loader.close()
        reference.close()
    _check_store(path)
    for garbage in list(find_garbage(path, everything=True)):
        remove(garbage)
    derived = path / "derived"
    assert not derived.exists() or not list(derived.iterdir()), "gc left something"
