"""make demo: a graph is made, verified and read back, beside what a memory map does."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

import outcrop
from outcrop.cli.output import Bars, print_facts, say
from outcrop.ingest.synthetic import SynthOptions, synthesise
from outcrop.options import DiskOptions, format_size

STORE = Path("build/demo.outcrop")
ROWS = 100_000


def main() -> None:
    shutil.rmtree(STORE, ignore_errors=True)
    STORE.parent.mkdir(exist_ok=True)
    say("A graph of 2 million nodes, made in 200 MB of memory:", style="bold")
    options = SynthOptions(nodes=2_000_000, edges=20_000_000, dim=128, classes=16)
    with Bars() as progress:
        synthesise(STORE, options, memory=200_000_000, progress=progress)
    say("Every byte of it checked:", style="bold")
    with Bars() as progress:
        report = outcrop.verify(STORE, progress=progress)
    assert report.ok, report.problems
    say(f"{ROWS:,} random feature rows, read from the drive:", style="bold")
    print_facts(_read(STORE))


def _read(path: Path) -> dict[str, str]:
    ids = np.sort(np.random.default_rng(0).choice(2_000_000, ROWS, replace=False))
    with outcrop.open(path) as store:
        shape = (ROWS, store.features.encoding.row_bytes)
        rows = np.empty(shape, np.uint8)
        mapped = np.load(store.file("features"), mmap_mode="r")
        facts = {}
        _forget(store.file("features"))
        facts["numpy memory map"] = _rate(lambda: mapped[ids])
        expected = np.asarray(mapped[ids])
    for engine in ("pool", "uring"):
        try:
            with outcrop.open(path, DiskOptions(engine=engine)) as store:  # type: ignore[arg-type]
                facts[f"outcrop ({engine})"] = _rate(
                    lambda features=store.features: features.start_read(ids, rows).wait()  # type: ignore[misc]
                )
                counters = store.disk.counters
        except outcrop.errors.DiskError as error:
            facts[f"outcrop ({engine})"] = str(error)
        assert np.array_equal(rows.view(np.float32), expected)
    facts["read"] = (
        f"{format_size(counters.bytes_read)} in {counters.read_requests:,} requests "
        f"for {format_size(counters.bytes_wanted)} wanted"
    )
    return facts


def _forget(path: Path) -> None:
    """The file leaves the page cache: a memory map starts cold, as on a graph beyond memory."""
    descriptor = os.open(path, os.O_RDONLY)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(descriptor)


def _rate(work: Callable[[], object]) -> str:
    start = time.perf_counter()
    work()
    seconds = time.perf_counter() - start
    return f"{ROWS / seconds:,.0f} rows per second"


if __name__ == "__main__":
    main()
