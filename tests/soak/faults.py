"""Faults: requests that fail, come short, late or out of order -> errors, never other batches.

With a fault that passes, the same loader gives the right batches afterwards.
"""

from __future__ import annotations

import errno
import random
import shutil
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from outcrop.errors import OutcropError
from outcrop.loader import NeighborLoader
from outcrop.options import DiskOptions, Faults
from outcrop.store.store import GraphStore
from tests.conformance.contract import all_contents
from tests.soak.trials import Trial
from tests.stores import make_random_store

STRATEGIES = (
    "memory", "direct", "pagraph", "ginex", "ginex:mode=split", "gnndrive", "gnndrive:x=slots",
    "gnndrive:topology=cache", "diskgnn", "diskgnn:refresh=background",
)  # fmt: skip
_MEMORY = "60MB"
_MOST_REQUESTS = 400


def trials(folder: Path, count: int, seed: int) -> Iterator[Trial]:
    """Strategies, engines and kinds of faults in turn; which request fails is random."""
    graph = folder / "graph.outcrop"
    make_random_store(graph, 3000, 30_000, dim=40, train=300).close()
    rng = random.Random(seed)
    for number in range(count):
        strategy = STRATEGIES[number % len(STRATEGIES)]
        faults = _faults(rng)
        pool = number // len(STRATEGIES) % 2
        disk = DiskOptions(engine="pool" if pool else "auto", faults=faults)
        work = partial(_with_faults, folder, strategy, disk)
        yield Trial(f"faults {number} ({strategy}, {disk.engine}, {faults})", work)


def _faults(rng: random.Random) -> Faults:
    at = int(_MOST_REQUESTS ** rng.random())  # early ones more often: they hit preparation
    disturbed: dict[str, Any] = {
        "short_every": rng.choice((0, 0, 2, 3)),
        "reorder": rng.random() < 0.5,
        "delay_us": rng.choice((0, 0, 200)),
        "seed": rng.randrange(2**31),
    }
    if rng.random() < 0.25:
        full = rng.choice((errno.ENOSPC, errno.EIO))
        return Faults(fail_write_at=at, error=full, **disturbed)
    return Faults(fail_read_at=at, fail_count=rng.choice((1, 1, 3)), **disturbed)


def _with_faults(folder: Path, strategy: str, disk: DiskOptions) -> dict[str, int]:
    counts = {"faulty runs": 1, "errors raised": 0}
    with tempfile.TemporaryDirectory(dir=folder) as own:
        path = Path(own) / "graph.outcrop"
        shutil.copytree(folder / "graph.outcrop", path)
        with GraphStore(path) as sound:
            reference = make_loader(sound, "memory")
            expected = [all_contents(reference.epoch(epoch)) for epoch in range(2)]
            reference.close()
        with GraphStore(path, disk) as store:
            for _ in range(12):  # until the faults are used up
                try:
                    loader = make_loader(store, strategy)
                except (OutcropError, OSError):
                    counts["errors raised"] += 1
                    continue
                for epoch in range(2):
                    counts["errors raised"] += not _same(loader, epoch, expected[epoch])
                loader.close()
            loader = make_loader(store, strategy)
            assert _same(loader, 0, expected[0]), "it still fails"
            loader.close()
    return counts


def make_loader(store: GraphStore, strategy: str) -> NeighborLoader:
    """Two epochs of a few small batches."""
    return NeighborLoader(
        store, [5, 5], "train", batch_size=40, shuffle=True, strategy=strategy, memory=_MEMORY,
        epochs=2,
    )  # fmt: skip


def _same(loader: NeighborLoader, epoch: int, expected: list[dict[str, Any]]) -> bool:
    """Whether the epoch came; AssertionError where it came otherwise."""
    try:
        found = [_contents(batch) for batch in loader.epoch(epoch)]
    except (OutcropError, OSError):
        return False
    assert found == expected, "other batches"
    return True


def _contents(batch: Any) -> dict[str, Any]:
    if "x_buffer" in batch:
        batch = batch.clone()
        batch.x = batch.x_buffer[batch.x_index]
    return all_contents([batch])[0]
