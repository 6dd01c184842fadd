"""Leaks: many epochs of every strategy -> memory, threads and files as after the first ones."""

from __future__ import annotations

import gc
import os
import shutil
import tempfile
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from outcrop.metrics import rss_bytes
from outcrop.store.store import GraphStore
from tests.soak.faults import STRATEGIES, make_loader
from tests.soak.trials import Trial
from tests.stores import make_random_store

_WARM_EPOCHS = 20
# Of a run of hundreds of epochs: an allocator's noise, not a leak per epoch.
_MOST_GROWTH_BYTES = 8 << 20
# Files that threads of a run open at the same time, more in one epoch than in another.
_MORE_FILES = 4


def trials(folder: Path, count: int, _: int) -> Iterator[Trial]:
    """`count` epochs, spread over the strategies."""
    make_random_store(folder / "graph.outcrop", 3000, 30_000, dim=40, train=300).close()
    epochs = max(count // len(STRATEGIES), 2 * _WARM_EPOCHS)
    for strategy in STRATEGIES:
        yield Trial(f"leaks ({strategy})", partial(_watched, folder, strategy, epochs))


def _watched(folder: Path, strategy: str, epochs: int) -> dict[str, int]:
    with tempfile.TemporaryDirectory(dir=folder) as own:
        path = Path(own) / "graph.outcrop"
        shutil.copytree(folder / "graph.outcrop", path)
        with GraphStore(path) as store:
            loader = make_loader(store, strategy)
            before: list[tuple[int, int, int]] = []
            for epoch in range(epochs):
                for batch in loader.epoch(epoch % 2):
                    del batch
                if epoch < _WARM_EPOCHS:
                    before.append(_held())
            memory, threads, files = _held()
            loader.close()
    most_memory, most_threads, most_files = (max(held) for held in zip(*before, strict=True))
    assert threads <= most_threads, f"{threads} threads, {most_threads} at first"
    assert files <= most_files + _MORE_FILES, f"{files} open files, {most_files} at first"
    assert memory - most_memory < _MOST_GROWTH_BYTES, f"{memory - most_memory} B more"
    return {"epochs watched": epochs}


def _held() -> tuple[int, int, int]:
    gc.collect()
    return rss_bytes(), threading.active_count(), len(os.listdir("/proc/self/fd"))
