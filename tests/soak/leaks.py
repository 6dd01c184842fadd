"""Leaks: many epochs of every strategy -> memory, threads and files as after the first ones."""

from __future__ import annotations

import gc
import shutil
import tempfile
import threading
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from outcrop.observe.record import rss_bytes
from outcrop.store.store import GraphStore
from tests.descriptors import MOST_PAGES, Descriptors, descriptors
from tests.soak.faults import STRATEGIES, make_loader
from tests.soak.trials import Trial
from tests.stores import make_random_store

# A loader's epochs, after the last of which nothing is prepared in the background.
_ROUND = 2
_WARM_EPOCHS = 20
# Of a run of hundreds of epochs: an allocator's noise, not a leak per epoch.
_MOST_GROWTH_BYTES = 8 << 20


class Held(NamedTuple):
    """What a process has between two epochs."""

    memory_bytes: int
    threads: int
    opened: Descriptors


def trials(folder: Path, count: int, _: int) -> Iterator[Trial]:
    """`count` epochs, spread over the strategies."""
    make_random_store(folder / "graph.outcrop", 3000, 30_000, dim=40, train=300).close()
    epochs = max(count // len(STRATEGIES) // _ROUND * _ROUND, 2 * _WARM_EPOCHS)
    for strategy in STRATEGIES:
        yield Trial(f"leaks ({strategy})", partial(_watched, folder, strategy, epochs))


def _watched(folder: Path, strategy: str, epochs: int) -> dict[str, int]:
    with tempfile.TemporaryDirectory(dir=folder) as own:
        path = Path(own) / "graph.outcrop"
        shutil.copytree(folder / "graph.outcrop", path)
        before = _held()
        with GraphStore(path) as store:
            loader = make_loader(store, strategy)
            first: list[Held] = []
            for epoch in range(epochs):
                for batch in loader.epoch(epoch % _ROUND):
                    del batch
                if epoch < _WARM_EPOCHS and epoch % _ROUND == _ROUND - 1:
                    first.append(_held())
            check(_held(), first)
            loader.close()
        del loader
        after = _held()
    assert after[1:] == before[1:], f"{after} when closed, {before} before"
    return {"epochs watched": epochs}


def check(last: Held, first: Sequence[Held]) -> None:
    """AssertionError where more is held than after the first epochs; pages: than are ever kept."""
    threads, files = max(held.threads for held in first), max(held.opened.files for held in first)
    memory_bytes = last.memory_bytes - max(held.memory_bytes for held in first)
    assert last.threads <= threads, f"{last.threads} threads, {threads} at first"
    assert last.opened.files <= files, f"{last.opened.files} open files, {files} at first"
    assert last.opened.pages <= MOST_PAGES, f"{last.opened.pages} pages are kept"
    assert memory_bytes < _MOST_GROWTH_BYTES, f"{memory_bytes} B more"


def _held() -> Held:
    gc.collect()
    return Held(rss_bytes(), threading.active_count(), descriptors())
