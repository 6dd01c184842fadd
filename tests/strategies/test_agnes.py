"""agnes: hyperbatches from blocks give the batches of `memory`, whatever ends or fails when."""

from __future__ import annotations

import errno
import random
import signal
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outcrop.ahead.window import Window
from outcrop.errors import BudgetError, CorruptError, OptionError, ReadError, WriteError
from outcrop.layout.blocks import KIND
from outcrop.loader import NeighborLoader, ShaDowLoader
from outcrop.memory.context import DiskFacts
from outcrop.options import DiskOptions, Faults, parse_size
from outcrop.plan.plan import Strategy
from outcrop.store.store import GraphStore
from outcrop.strategies.agnes import AGNES, AgnesOptions
from tests.conformance.contract import all_contents, check_against_store
from tests.conformance.test_strategies import cases
from tests.damage import damage
from tests.graphs import random_graph
from tests.layout.test_blocks import with_hubs
from tests.plan.test_refusals import MB, context
from tests.stores import make_store, smallest_memory

EPOCHS, PAGE = 3, 4096


def agnes(**options: Any) -> Strategy:
    return replace(AGNES, options=AgnesOptions(**options))


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Lists of many blocks of a page; 16 batches per epoch."""
    folder = tmp_path_factory.mktemp("agnes") / "g.outcrop"
    graph = with_hubs(random_graph(1000, 15_000), {3: 20_000, 500: 3000})
    make_store(folder, graph, dim=33, train=155, edge_ids=True).close()
    return folder


@pytest.fixture
def store(path: Path) -> Iterator[GraphStore]:
    with GraphStore(path) as opened:
        yield opened


def make(store: GraphStore, strategy: Any, memory: Any = None, **more: Any) -> NeighborLoader:
    given: dict[str, Any] = {
        "num_neighbors": [4, 3], "input_nodes": "train", "batch_size": 10, "shuffle": True,
        "epochs": EPOCHS, **more,
    }  # fmt: skip

    def of(memory: Any) -> NeighborLoader:
        return NeighborLoader(store, strategy=strategy, memory=memory, **given)

    return of(parse_size(smallest_memory(of)) + 60_000 if memory is None else memory)


def expected(store: GraphStore, **more: Any) -> list[list[dict[str, Any]]]:
    loader = make(store, "memory", "1GB", **more)
    return [all_contents(loader.epoch(epoch)) for epoch in range(EPOCHS)]


@pytest.mark.parametrize("hyperbatch", [1, 2, 7, 16, 40, 200, None])
@pytest.mark.parametrize("overlap", [False, True])
def test_hyperbatches_end_within_and_across_epochs(
    store: GraphStore, hyperbatch: int | None, overlap: bool
) -> None:
    wanted = expected(store)
    for memory in (None, "200MB"):
        strategy = agnes(hyperbatch=hyperbatch, overlap=overlap, block_bytes=PAGE)
        loader = make(store, strategy, memory)
        assert [all_contents(loader) for _ in range(EPOCHS)] == wanted
        loader.close()
    assert not list(store.derived.root.glob(".scratch*"))


@pytest.mark.parametrize("block_bytes", [PAGE, 64 << 10, 1 << 20, 4 << 20])
def test_blocks_of_any_size(store: GraphStore, block_bytes: int) -> None:
    loader = make(store, agnes(hyperbatch=5, block_bytes=block_bytes))
    assert [all_contents(loader) for _ in range(EPOCHS)] == expected(store)
    assert loader.record.plan["topology"] == "blocks"
    loader.close()


def test_edge_ids_are_those_of_the_store(store: GraphStore) -> None:
    more = {"edge_ids": True}
    loader = make(store, agnes(hyperbatch=5, block_bytes=PAGE), **more)
    assert [all_contents(loader) for _ in range(EPOCHS)] == expected(store, **more)
    loader.close()


@given(
    case=cases(), budget=st.sampled_from(["least", "1GB"]), hyperbatch=st.sampled_from([2, None])
)
def test_any_graph_and_any_options_give_the_reference_batches(
    case: Any, budget: str, hyperbatch: int | None
) -> None:
    graph, stored, options = case
    if options.pop("kind") == "shadow":
        return
    with (
        tempfile.TemporaryDirectory() as folder,
        make_store(Path(folder) / "g.outcrop", graph, **stored) as store,
    ):

        def batches(strategy: Any, memory: str) -> list[dict[str, Any]]:
            def of(memory: Any) -> NeighborLoader:
                return NeighborLoader(store, strategy=strategy, memory=memory, **options)

            loader, found = of(smallest_memory(of) if memory == "least" else memory), []
            for epoch in range(2):
                for batch in loader.epoch(epoch):
                    check_against_store(batch, store)
                    found += all_contents([batch])
                    del batch
            if len(loader.schedule.seeds.nodes):
                found += all_contents([loader([0])])
            loader.close()
            return found

        strategy = agnes(hyperbatch=hyperbatch, block_bytes=PAGE)
        assert batches(strategy, budget) == batches("memory", "1GB")


def test_other_batches_in_between_change_nothing(store: GraphStore) -> None:
    """They are sampled alone, from the same blocks."""
    wanted = expected(store)
    reference = make(store, "memory", "1GB")
    loader = make(store, agnes(hyperbatch=7, overlap=True, block_bytes=PAGE), "100MB")
    for epoch in range(EPOCHS):
        found = []
        for batch in loader.epoch(epoch):
            found += all_contents([batch])
            del batch
            assert all_contents([loader([1, 2])]) == all_contents([reference([1, 2])])
        assert found == wanted[epoch]
    loader.close()


@pytest.mark.parametrize("overlap", [False, True])
def test_validation_between_epochs_and_loops_that_are_left(
    store: GraphStore, overlap: bool
) -> None:
    """What was gathered stays good, whatever comes between."""
    wanted = expected(store)
    reference = make(store, "memory", "1GB", input_nodes=range(40))
    validated = all_contents(reference.epoch(0))
    loader = make(store, agnes(hyperbatch=20, overlap=overlap, block_bytes=PAGE), "100MB")
    validation = loader.sibling(range(40))
    for epoch in range(EPOCHS):
        left = iter(loader.epoch(epoch))
        for _ in range(5):
            next(left)
        left.close()  # type: ignore[attr-defined]
        assert all_contents(loader.epoch(epoch)) == wanted[epoch]
        assert len(all_contents(validation)) == len(validated)
    read = [entry.tier_bytes.get("feature blocks", 0) for entry in loader.record.epochs]
    assert sum(map(bool, read)) < len(read)  # some epochs had windows that were there
    loader.close()


@pytest.mark.parametrize("overlap", [False, True])
def test_a_position_within_a_hyperbatch_resumes_bit_by_bit(
    store: GraphStore, overlap: bool
) -> None:
    strategy = agnes(hyperbatch=7, overlap=overlap, block_bytes=PAGE)
    wanted = expected(store)
    loader = make(store, strategy)
    batches = iter(loader)
    found = all_contents(next(batches) for _ in range(4))
    position = loader.state_dict()
    batches.close()  # type: ignore[attr-defined]
    loader.close()
    again = make(store, strategy)
    again.load_state_dict(position)
    assert found + all_contents(again) == wanted[0]
    assert all_contents(again) == wanted[1]
    again.close()


def test_rows_on_a_device_are_left_out_of_hyperbatches(store: GraphStore) -> None:
    strategy = agnes(hyperbatch=5, block_bytes=PAGE, device_cache="100rows", verify_rows=True)
    loader = make(store, strategy, "100MB")
    assert [all_contents(loader) for _ in range(EPOCHS)] == expected(store)
    hits = loader.record.epochs[0].hits
    assert hits["device cache"] and hits["cpu cache"]
    loader.close()
    with pytest.raises(OptionError, match="each window chooses what is in memory itself"):
        make(store, agnes(cache="100rows"), "100MB")


def test_what_was_read_of_blocks_is_in_the_record(store: GraphStore) -> None:
    loader = make(store, agnes(hyperbatch=16, block_bytes=PAGE), "100MB")
    all_contents(loader.epoch(0))
    found = loader.record.epochs[0].tier_bytes
    assert found["graph blocks"] % PAGE == 0 and found["graph blocks"] > 0
    assert found["feature blocks"] > 0
    loader.close()


def test_no_table_of_the_nodes_is_charged(store: GraphStore) -> None:
    loader = make(store, agnes(block_bytes=PAGE), "100MB")
    next(iter(loader))
    charges = loader.record.charges
    assert charges["index of blocks"] < store.num_nodes
    assert charges["graph buffer"] >= 2 * PAGE
    assert "indptr" not in charges
    assert "table of rows" not in charges
    loader.close()


def test_shadow_is_sampled_from_the_page_cache_and_gathered_by_blocks(store: GraphStore) -> None:
    def batches(strategy: Any) -> list[dict[str, Any]]:
        loader = ShaDowLoader(store, 2, 5, input_nodes="train", strategy=strategy, memory="100MB")
        found = all_contents(loader)
        assert loader.record.plan["topology"] == ("memory" if strategy == "memory" else "mmap")
        loader.close()
        return found

    assert batches(AGNES) == batches("memory")


@pytest.mark.parametrize(
    "options", [{"hyperbatch": 0}, {"graph_share": 1.5}, {"block_bytes": 5000}]
)
def test_options_that_cannot_be_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(OptionError):
        AgnesOptions(**options)


def test_small_rows_are_cached_as_far_as_memory_can_tell_which(tmp_path: Path) -> None:
    """To choose a row of 4 bytes takes several times its memory."""
    with make_store(tmp_path / "g", random_graph(4_000_000, 500_000), dim=1, train=40) as store:
        least = parse_size(smallest_memory(lambda memory: make(store, "agnes", memory)))
        assert least < 12 * store.num_nodes, "a row and its node"
        wanted = all_contents(make(store, "memory", "1GB").epoch(0))
        for more in (1 << 20, 32 << 20):
            with closing(make(store, "agnes", least + more)) as loader:
                assert all_contents(loader.epoch(0)) == wanted


def test_a_disk_that_is_too_small_is_refused(store: GraphStore) -> None:
    for overlap, count in ((False, "two"), (True, "three")):
        with pytest.raises(BudgetError, match=f"{count} hyperbatches of 7 batches need"):
            make(store, agnes(hyperbatch=7, overlap=overlap), "100MB", disk="10KB")


# Failures


def test_a_damaged_topology_leaves_no_blocks(tmp_path: Path) -> None:
    with make_store(tmp_path / "g.outcrop", random_graph(300, 3000)) as store:
        damage(store, "indices")
        with pytest.raises(CorruptError, match=r"indices\.npy: piece 0"):
            all_contents(make(store, AGNES, "100MB"))
        assert not store.derived.records(KIND)


@pytest.mark.parametrize("overlap", [False, True])
def test_a_drive_that_fails_is_an_error_and_the_next_run_is_right(
    path: Path, overlap: bool
) -> None:
    strategy = agnes(hyperbatch=7, overlap=overlap, block_bytes=PAGE)
    with GraphStore(path) as store:
        wanted = expected(store)
        make(store, strategy, "100MB").close()
    failed = 0
    for fail_at in range(5, 400, 45):
        faults = Faults(fail_read_at=fail_at, fail_count=1, error=errno.EIO)
        with GraphStore(path, DiskOptions(faults=faults)) as store:
            try:
                loader = make(store, strategy, "100MB")
                with closing(loader):
                    all_contents(loader.epoch(0))
            except ReadError as error:
                failed += 1
                assert error.errno == errno.EIO
    assert failed >= 2
    with GraphStore(path) as store:
        loader = make(store, strategy, "100MB")
        assert all_contents(loader.epoch(0)) == wanted[0]
        loader.close()


@pytest.mark.parametrize("given", [None, 32])
def test_the_next_is_made_beside_the_loop_where_memory_and_disk_have_room(
    given: int | None,
) -> None:
    def planned(memory: int, disk: int) -> Window:
        _, known = context("agnes", memory, disk=DiskFacts(disk, 10**13, writable=True))
        made = AGNES.plan(replace(known, options=AgnesOptions(hyperbatch=given))).ahead
        assert isinstance(made, Window)
        return made

    room = planned(3000 * MB, 10**12)
    assert room.when == "beside" and room.at_a_time == 3
    assert planned(120 * MB, 10**12).when == "between"
    _, known = context("agnes", 3000 * MB)
    topology = room.topology.written_bytes(known)
    least = topology + 3 * room.first_batches * room.batch_disk_bytes(known)
    assert planned(3000 * MB, least).when == "beside"
    assert planned(3000 * MB, least - 1).when == "between"


@pytest.mark.parametrize("overlap", [False, True])
def test_a_full_disk_is_an_error_and_the_next_run_is_right(path: Path, overlap: bool) -> None:
    strategy = agnes(hyperbatch=7, overlap=overlap, block_bytes=PAGE)
    with GraphStore(path) as store:
        wanted = expected(store)
        make(store, strategy, "100MB").close()
    failed = 0
    for fail_at in (1, 2, 3, 5, 8, 13, 21):
        faults = Faults(fail_write_at=fail_at, fail_count=1, error=errno.ENOSPC)
        with GraphStore(path, DiskOptions(faults=faults)) as store:
            loader = make(store, strategy, "100MB")
            try:
                assert all_contents(loader.epoch(0)) == wanted[0]
            except WriteError as error:
                failed += 1
                assert error.errno == errno.ENOSPC and "scratch" in str(error.filename)
            assert all_contents(loader.epoch(0)) == wanted[0]
            loader.close()
            assert not list(store.derived.root.glob(".scratch*"))
    assert failed > 2


LOOPS = """
    import sys
    from dataclasses import replace
    from outcrop.loader import NeighborLoader
    from outcrop.strategies.agnes import AGNES, AgnesOptions

    options = AgnesOptions(hyperbatch=7, overlap=sys.argv[2] == "True", block_bytes=4096)
    loader = NeighborLoader(sys.argv[1], [4, 3], "train", batch_size=10, shuffle=True, epochs=3,
                            strategy=replace(AGNES, options=options), memory="100MB")
    print("ready", flush=True)
    for _ in range(3):
        for batch in loader:
            print("batch", flush=True)
"""


@pytest.mark.parametrize("ending", [signal.SIGKILL, signal.SIGINT])
@pytest.mark.parametrize("overlap", [False, True])
def test_ended_at_any_moment_it_leaves_nothing_that_the_next_run_does_not_clear(
    path: Path, ending: signal.Signals, overlap: bool
) -> None:
    rng = random.Random(5)
    command = [sys.executable, "-c", textwrap.dedent(LOOPS), str(path), str(overlap)]
    for _ in range(2):
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
            assert process.stdout is not None
            for _ in range(rng.randrange(2, 20)):
                process.stdout.readline()
            time.sleep(rng.random() / 50)
            process.send_signal(ending)
            start = time.perf_counter()
            process.wait(20)
            assert ending == signal.SIGKILL or time.perf_counter() - start < 5
    with GraphStore(path) as store:
        loader = make(store, agnes(hyperbatch=7, overlap=overlap, block_bytes=PAGE), "100MB")
        assert all_contents(loader.epoch(0)) == expected(store)[0]
        loader.close()
        assert not list(store.derived.root.glob(".scratch*"))


def test_a_loop_that_is_left_ends_the_work_in_the_background(path: Path) -> None:
    with GraphStore(path) as store:
        make(store, agnes(hyperbatch=16, block_bytes=PAGE), "100MB").close()
    slow = DiskOptions(engine="pool", workers=1, faults=Faults(delay_us=20_000))
    with GraphStore(path, slow) as store:
        loader = make(store, agnes(hyperbatch=16, overlap=True, block_bytes=PAGE), "100MB")
        batches = iter(loader)
        next(batches)
        start = time.perf_counter()
        batches.close()  # type: ignore[attr-defined]
        loader.close()
        assert time.perf_counter() - start < 1.5
        assert not [t for t in threading.enumerate() if t.name == "outcrop-window"]
    with GraphStore(path) as store:
        assert not list(store.derived.root.glob(".scratch*"))
