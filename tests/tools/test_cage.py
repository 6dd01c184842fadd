"""Every strategy keeps to its budget under a hard limit, page cache included."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from outcrop.ingest.synthetic import SynthOptions, synthesise
from outcrop.strategies import STRATEGIES
from tests.cage import run_caged

# Python, torch, PyG and their libraries, measured below, and slack for allocators and threads.
SLACK_BYTES = 60_000_000
REFRESHED = "diskgnn:refresh=background"
ON_DEVICE = "diskgnn:device_cache=30MB"  # here the device is the CPU

PROGRAM = """
    import sys
    from outcrop.loader import NeighborLoader
    from outcrop.strategies import STRATEGIES
    store, strategy, memory, *disk = sys.argv[1:]
    if strategy == "nothing":
        sys.exit()
    loader = NeighborLoader(store, [10, 10], "train", batch_size=500, shuffle=True,
                            strategy=strategy, memory=memory, disk=disk[0] if disk else None)
    total = 0
    for epoch in range(2):
        for batch in loader:
            total += float(batch.x[0, 0]) + len(batch.n_id)
    held = loader.record
    assert sum(held.charges.values()) + held.peak_batch_bytes <= held.memory_bytes
    print("done", total)
"""


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """200 MB of features."""
    path = tmp_path_factory.mktemp("cage") / "g.outcrop"
    options = SynthOptions(nodes=400_000, edges=4_000_000, dim=125, classes=8)
    synthesise(path, options, memory=200_000_000)
    return path


def command(path: Path, strategy: str, memory: str, *disk: str) -> list[str]:
    return [sys.executable, "-c", textwrap.dedent(PROGRAM), str(path), strategy, memory, *disk]


@pytest.fixture(scope="module")
def overhead_bytes(path: Path) -> int:
    """What a process takes that only imports."""
    caged = run_caged(command(path, "nothing", "0"), 2_000_000_000)
    assert caged.returncode == 0, caged.output
    return caged.peak_bytes


def test_every_strategy_stays_within_budget_and_overhead(path: Path, overhead_bytes: int) -> None:
    totals = set()
    more = {"memory": 320_000_000, "agnes": 90_000_000, REFRESHED: 90_000_000}
    more[ON_DEVICE] = 134_000_000
    for strategy in (*STRATEGIES, REFRESHED, ON_DEVICE):
        memory = more.get(strategy, 60_000_000)
        caged = run_caged(
            command(path, strategy, str(memory)), memory + overhead_bytes + SLACK_BYTES
        )
        assert caged.returncode == 0, f"{strategy}: {caged.output}"
        totals.add(caged.output.splitlines()[-1])  # after what the log says
    assert len(totals) == 1, "and the batches are the same"


@pytest.mark.soak
def test_sharing_rows_on_disk_stays_within_budget_and_overhead(
    path: Path, overhead_bytes: int
) -> None:
    memory = 60_000_000
    limit_bytes = memory + overhead_bytes + SLACK_BYTES
    shutil.rmtree(path / "derived", ignore_errors=True)
    strategy = "diskgnn:distinct_epochs=5:cpu_cache=false"
    caged = run_caged(command(path, strategy, str(memory), "160MB"), limit_bytes)
    assert caged.returncode == 0, caged.output
    [pack] = (path / "derived").glob("pack-*")
    assert json.loads((pack / "pack.json").read_bytes())["segments"] is not None


def test_a_budget_that_is_too_small_is_refused_before_anything_is_loaded(path: Path) -> None:
    done = subprocess.run(command(path, "memory", "100MB"), capture_output=True, text=True)
    assert done.returncode == 1
    assert "the smallest that would do is" in done.stderr and "features 200.0 MB" in done.stderr
