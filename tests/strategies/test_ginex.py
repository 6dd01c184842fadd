"""ginex: what it keeps between superbatches and epochs, and that nothing goes wrong in between."""

from __future__ import annotations

import errno
import gc
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest
import torch

from outcrop.errors import BudgetError, OptionError, ReadError, WriteError
from outcrop.loader import NeighborLoader
from outcrop.options import DiskOptions, Faults
from outcrop.store.store import GraphStore
from outcrop.tools.bench.variants import variant_named
from outcrop.train import TrainOptions, fit
from tests.conformance.contract import all_contents
from tests.processes import program
from tests.stores import make_random_store

OPTIONS: dict[str, Any] = {
    "num_neighbors": [4, 3],
    "input_nodes": "train",
    "batch_size": 10,
    "shuffle": True,
}
MODES = [
    "ginex:superbatch=4:mode=split",
    "ginex:superbatch=4:mode=split:overlap=true",
    "ginex:superbatch=4",
]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[GraphStore]:
    with make_random_store(tmp_path / "g.outcrop", 1000, 15_000, dim=33, train=155) as made:
        yield made


def loader_of(store: GraphStore, strategy: str, memory: str = "200MB", **more: Any) -> Any:
    options = {**OPTIONS, **more}
    return NeighborLoader(store, strategy=variant_named(strategy), memory=memory, **options)


def expected(store: GraphStore, epochs: int = 1) -> list[dict[str, Any]]:
    loader = loader_of(store, "memory")
    return [batch for epoch in range(epochs) for batch in all_contents(loader.epoch(epoch))]


def scratch(store: GraphStore) -> list[str]:
    folder = store.path / "derived"
    return [name for name in os.listdir(folder) if "scratch" in name] if folder.exists() else []


@pytest.mark.parametrize("strategy", MODES)
def test_a_loop_that_is_left_early_leaves_nothing_behind(store: GraphStore, strategy: str) -> None:
    loader = loader_of(store, strategy)
    wanted = expected(store)
    for stop in (1, 5, 9, 16):
        found = []
        for batch in loader.epoch(0):
            found += all_contents([batch])
            if len(found) == stop:
                break
        del batch
        assert found == wanted[:stop]
    assert all_contents(loader.epoch(0)) == wanted
    (folder,) = scratch(store)
    assert os.listdir(store.path / "derived" / folder) == [".lock"]
    loader.close()
    assert scratch(store) == []


@pytest.mark.parametrize("strategy", MODES)
def test_a_loop_that_is_left_does_not_wait_for_the_next_superbatch(
    store: GraphStore, strategy: str
) -> None:
    # Every read is late: the superbatch that is sampled meanwhile would take many seconds.
    with reopened(store, delay_us=20_000) as slow:
        loader = loader_of(slow, strategy.replace("superbatch=4", "superbatch=3"))
        for number, batch in enumerate(loader.epoch(0)):
            del batch
            if number == 2:
                break
        start = time.perf_counter()
        del number
        loader.close()
        assert time.perf_counter() - start < 2
        assert scratch(slow) == []


def test_a_loader_can_be_closed_twice_and_while_a_loop_runs(store: GraphStore) -> None:
    loader = loader_of(store, "ginex:superbatch=16:topology=mmap")
    batches, found = loader.epoch(0), []
    for batch in batches:
        found += all_contents([batch])
        del batch
        if len(found) == 3:
            break
    batches.close()
    loader.close()
    loader.close()
    assert found == expected(store)[:3]


def test_a_superbatch_takes_no_more_disk_than_it_was_given(store: GraphStore) -> None:
    limit = 400_000
    loader = loader_of(store, "ginex:mode=split:overlap=false", disk=limit)
    used = 0
    for batch in loader.epoch(0):
        del batch
        (folder,) = (store.path / "derived").glob(".scratch*")
        now = 0
        for parent, _, names in os.walk(folder):  # the run removes files and folders meanwhile
            for name in names:
                with suppress(FileNotFoundError):
                    now += os.stat(os.path.join(parent, name)).st_blocks * 512
        used = max(used, now)
    assert 0 < used <= limit


@pytest.mark.parametrize("strategy", MODES)
def test_runs_that_are_open_at_once(store: GraphStore, strategy: str) -> None:
    loader = loader_of(store, strategy)
    first, second = loader.epoch(0), loader.epoch(0)
    found = [
        contents for pair in zip(first, second, strict=True) for contents in all_contents(pair)
    ]
    assert found[::2] == found[1::2] == expected(store)


def test_a_cache_that_holds_everything_reads_each_row_once(store: GraphStore) -> None:
    loader = loader_of(store, "ginex:superbatch=4:topology=mmap")
    seen = {int(node) for epoch in range(3) for batch in loader.epoch(epoch) for node in batch.n_id}
    epochs = loader.record.epochs
    assert sum(entry.rows - entry.hits["cache"] for entry in epochs) == len(seen)
    assert {"sample", "inspect", "gather", "cache update"} <= epochs[0].stages.keys()


@pytest.mark.parametrize("strategy", MODES)
def test_tables_of_touched_nodes_change_nothing_but_memory(
    store: GraphStore, strategy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run() -> tuple[Any, Any, Any]:
        with closing(loader_of(store, strategy, strict_memory=True)) as loader:
            found = [all_contents(loader.epoch(epoch)) for epoch in range(2)]
            counted = [(entry.hits, entry.rows) for entry in loader.record.epochs]
            return found, counted, loader.record.charges

    *usual, charges = run()
    # The graph counts as a large one, and no window touches more nodes than there is room for.
    monkeypatch.setattr("outcrop.rows.policy._SMALL_TABLE_BYTES", 0)
    monkeypatch.setattr("outcrop.rows.slots._TOUCHED_SHARE", 0.7)
    *small, fewer = run()
    assert small == usual
    assert sum(fewer.values()) <= sum(charges.values())
    ahead, less = (sum(c for name, c in of.items() if "ahead" in name) for of in (charges, fewer))
    assert less < ahead


def test_handover_loads_the_memory_again(store: GraphStore) -> None:
    loader = loader_of(store, "ginex:superbatch=4")
    for _ in range(2):
        all_contents(loader)
    for entry in loader.record.epochs:
        assert entry.stages["switch"].busy_seconds > 0
        assert entry.hits["cache"] == entry.rows  # the first rows of a superbatch are filled in
        assert entry.stall_seconds >= entry.stages["switch"].busy_seconds


def reopened(store: GraphStore, **faults: Any) -> GraphStore:
    return GraphStore(store.path, DiskOptions(faults=Faults(**faults)))


@pytest.mark.parametrize("strategy", MODES)
def test_a_failing_read_is_raised_wherever_it_happens(store: GraphStore, strategy: str) -> None:
    wanted = expected(store, 2)
    loader_of(store, strategy).close()  # the neighbour cache's layout is there
    failures = 0
    for number in (20, 25, 30, 40, 60, 80, 120):
        with reopened(store, fail_read_at=number) as failing:
            loader = loader_of(failing, strategy)
            found = []
            for epoch in range(2):
                try:
                    found += all_contents(loader.epoch(epoch))
                except ReadError as error:
                    failures += 1
                    assert error.errno == errno.EIO and error.filename
                    found += all_contents(loader.epoch(epoch))  # the fault is over: it goes on
            assert found == wanted
            loader.close()
            assert scratch(failing) == []
    assert failures > 2


@pytest.mark.parametrize("strategy", MODES)
def test_a_loader_that_cannot_be_made_leaves_nothing(store: GraphStore, strategy: str) -> None:
    loader_of(store, strategy).close()
    for number in range(1, 4):
        with (
            reopened(store, fail_read_at=number) as failing,
            pytest.raises(ReadError, match="Input/output error"),
        ):
            loader_of(failing, strategy)
        assert scratch(store) == []


@pytest.mark.parametrize("strategy", MODES)
def test_a_full_disk_is_raised_and_nothing_is_left(store: GraphStore, strategy: str) -> None:
    loader_of(store, strategy).close()
    wanted = expected(store)
    failures = 0
    for number in (1, 2, 3, 5, 8):
        with reopened(store, fail_write_at=number, error=errno.ENOSPC) as failing:
            loader = loader_of(failing, strategy)
            try:
                found = all_contents(loader.epoch(0))
            except WriteError as error:
                failures += 1
                assert error.errno == errno.ENOSPC and "scratch" in str(error.filename)
                found = all_contents(loader.epoch(0))
            assert found == wanted
            loader.close()
            assert scratch(failing) == []
    assert failures > 2


def test_what_a_killed_run_leaves_is_removed_by_the_next(store: GraphStore) -> None:
    program = """
        import os, signal, sys
        from outcrop.loader import NeighborLoader
        loader = NeighborLoader(sys.argv[1], [4, 3], "train", batch_size=10, shuffle=True,
                                strategy="ginex:superbatch=4", memory="200MB")
        for number, batch in enumerate(loader):
            if number == 6:
                os.kill(os.getpid(), signal.SIGKILL)
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(program), str(store.path)])
    assert done.returncode == -signal.SIGKILL
    (left,) = scratch(store)
    loader = loader_of(store, "ginex:superbatch=4")
    assert all_contents(loader.epoch(0)) == expected(store)
    assert left not in scratch(store)


def test_the_disk_limits_the_superbatch(store: GraphStore) -> None:
    with pytest.raises(
        BudgetError, match=r"disk=1\.0 kB is too little: two superbatches of 1 batch"
    ):
        loader_of(store, "ginex", disk="1kB")
    with pytest.raises(BudgetError, match="two superbatches of 1000 batches need"):
        loader_of(store, "ginex:superbatch=1000", disk="1MB")
    loader = loader_of(store, "ginex", disk="250kB")
    assert all_contents(loader.epoch(0)) == expected(store)
    assert 1 <= loader.record.plan["window_batches"] < 16


def test_large_reads_are_fewer_and_are_counted(store: GraphStore) -> None:
    small, large = (
        loader_of(store, f"ginex:mode=split:read_unit={unit}") for unit in (4096, 131_072)
    )
    assert all_contents(small.epoch(0)) == all_contents(large.epoch(0))
    before, after = small.record.epochs[0], large.record.epochs[0]
    assert after.bytes_wanted == before.bytes_wanted
    assert after.read_requests < before.read_requests and after.bytes_read > before.bytes_read


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("superbatch=0", "superbatch must be at least 1"),
        ("read_unit=5000", "read_unit must be a power of two"),
        ("neighbors=2", "neighbors must be 0 to 1"),
        ("metric=age", "metric is one of out/in, out"),
        ("mode=both", "mode must be one of handover, split"),
        ("policy=fifo", "policy must be one of belady, static, lru"),
    ],
)
def test_wrong_options_are_named(store: GraphStore, options: str, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        loader_of(store, f"ginex:{options}")


LEFT = {"error": "raise RuntimeError('no')", "interrupt": "os.kill(os.getpid(), signal.SIGINT)"}


@pytest.mark.parametrize("strategy", MODES)
@pytest.mark.parametrize("ending", LEFT)
def test_a_program_that_ends_in_its_loop_leaves_nothing_behind(
    store: GraphStore, strategy: str, ending: str
) -> None:
    code = textwrap.dedent(f"""
        import os, signal, outcrop
        loader = outcrop.NeighborLoader({str(store.path)!r}, [4, 3], "train", batch_size=10,
                                        strategy={strategy!r}, memory="200MB")
        for number, batch in enumerate(loader):
            if number == 5:
                {LEFT[ending]}
                import time; time.sleep(10)
    """)
    done = subprocess.run(program(code), capture_output=True, text=True, timeout=60)
    assert done.returncode and ("no" if ending == "error" else "Interrupt") in done.stderr
    assert scratch(store) == []


@pytest.mark.parametrize("strategy", MODES)
def test_a_loader_that_is_dropped_leaves_nothing_behind(store: GraphStore, strategy: str) -> None:
    loader = loader_of(store, strategy)
    batches = iter(loader)
    next(batches)
    assert scratch(store)
    del loader, batches
    gc.collect()
    assert scratch(store) == []


def test_training_that_fails_leaves_nothing_behind(store: GraphStore) -> None:
    class Failing(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.zeros(1))

        def forward(self, *_: Any, **__: Any) -> None:
            raise RuntimeError("no such model")

    with pytest.raises(RuntimeError, match="no such model") as kept:
        fit(store, TrainOptions(strategy="ginex", layers=2, batch_size=10), model=Failing())
    assert scratch(store) == [], "though the error still holds the loop"
    del kept
