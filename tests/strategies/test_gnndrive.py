"""gnndrive: what it promises beyond the contract of all strategies."""

from __future__ import annotations

import gc
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from outcrop.errors import BudgetError, OptionError, ReadError
from outcrop.loader import NeighborLoader, ShaDowLoader
from outcrop.options import DiskOptions, Faults
from outcrop.store.store import GraphStore
from outcrop.strategies.gnndrive import GnnDrive
from tests.conformance.contract import all_contents, check_against_store, contents
from tests.conftest import SOAK
from tests.stores import make_random_store, smallest_memory
from tests.test_loader import threads

NODES, DIM = 400, 33
SLOW = Faults(delay_us=300, reorder=True)
"""Reads that come late and in any order."""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    make_random_store(tmp_path / "g.outcrop", NODES, 4000, dim=DIM, train=200).close()
    return tmp_path / "g.outcrop"


@pytest.fixture
def store(path: Path) -> Iterator[GraphStore]:
    with GraphStore(path) as opened:
        yield opened


def with_faults(path: Path, faults: Faults) -> GraphStore:
    return GraphStore(path, DiskOptions(faults=faults))


def make(store: GraphStore, strategy: str = "gnndrive", **options: Any) -> NeighborLoader:
    given: dict[str, Any] = {
        "num_neighbors": [4, 3],
        "input_nodes": "train",
        "batch_size": 16,
        "memory": "100MB",
        "shuffle": True,
        "strategy": strategy,
    }
    return NeighborLoader(store, **(given | options))


def standby(loader: NeighborLoader) -> tuple[int, int]:
    """Slots that nobody uses, of all slots."""
    strategy = loader.feed._strategy
    assert isinstance(strategy, GnnDrive) and strategy._buffer is not None
    return strategy._buffer.num_standby, strategy._buffer.num_slots


def ordered(batches: list[dict[str, Any]]) -> list[Any]:
    return sorted(batches, key=lambda batch: batch["input_id"][2])


# The same batches


@pytest.mark.parametrize("extractors", [1, 2, 3, 4])
@pytest.mark.parametrize("buffer", [0.05, 1, 100])
def test_any_number_of_extractors_and_slots_gives_the_reference_batches(
    path: Path, extractors: int, buffer: float
) -> None:
    with GraphStore(path) as store:
        expected = [all_contents(make(store, "memory").epoch(epoch)) for epoch in range(3)]
    with with_faults(path, SLOW) as store:
        loader = make(store, f"gnndrive:extractors={extractors}:buffer={buffer}")
        assert [all_contents(loader.epoch(epoch)) for epoch in range(3)] == expected
        unused, slots = standby(loader)
        assert unused == slots


@pytest.mark.parametrize("memory", ["least", "100MB"])
def test_the_topology_may_come_from_the_neighbour_cache(path: Path, memory: str) -> None:
    with GraphStore(path) as store:
        expected = all_contents(make(store, "memory").epoch(0))

        def of(memory: Any) -> NeighborLoader:
            return make(store, "gnndrive:topology=cache", memory=memory)

        loader = of(smallest_memory(of) if memory == "least" else memory)
        assert all_contents(loader.epoch(0)) == expected
        assert "indptr" in loader.record.charges
        loader.close()


def test_shadow_batches_share_the_slots_of_equal_nodes(path: Path) -> None:
    with GraphStore(path) as store:
        expected = all_contents(ShaDowLoader(store, 2, 5, "train", batch_size=40))
    with with_faults(path, SLOW) as store:
        loader = ShaDowLoader(store, 2, 5, "train", batch_size=40, strategy="gnndrive")
        assert all_contents(loader) == expected
        (epoch,) = loader.record.epochs
        assert epoch.rows > NODES, "nodes occur again within a batch"
        assert epoch.rows - sum(epoch.hits.values()) <= NODES


@pytest.mark.parametrize("extractors", [1, 4])
def test_completion_order_delivers_the_same_set_of_batches(path: Path, extractors: int) -> None:
    with GraphStore(path) as store:
        expected = all_contents(make(store, "memory", batch_size=3).epoch(1))
    with with_faults(path, SLOW) as store:
        strategy = f"gnndrive:order=completion:extractors={extractors}"
        loader = make(store, strategy, batch_size=3)
        found = all_contents(loader.epoch(1))
        assert ordered(found) == ordered(expected)
        assert loader.record.order == "completion"
        assert make(store, batch_size=3).record.order == "exact"


@pytest.mark.parametrize("stop", [0, 1, 7, 40, 66])
def test_a_position_in_completion_order_resumes_with_what_is_left(path: Path, stop: int) -> None:
    with GraphStore(path) as store:
        expected = all_contents(make(store, "memory", batch_size=3).epoch(0))
        following = all_contents(make(store, "memory", batch_size=3).epoch(1))
    with with_faults(path, SLOW) as store:
        loader = make(store, "gnndrive:order=completion", batch_size=3)
        batches = iter(loader)
        seen = [contents(next(batches)) for _ in range(stop)]
        state = loader.state_dict()
        assert state["batch"] + len(state["ahead"]) == stop
        del batches
        resumed = make(store, "gnndrive:order=completion", batch_size=3)
        resumed.load_state_dict(state)
        rest = all_contents(resumed)
        assert ordered(seen + rest) == ordered(expected)
        assert ordered(all_contents(resumed)) == ordered(following)


def test_a_position_with_batches_delivered_ahead_skips_them(store: GraphStore) -> None:
    loader = make(store, batch_size=20)
    expected = all_contents(loader.epoch(0))
    state = {**loader.state_dict(), "epoch": 0, "batch": 2, "ahead": [3, 6]}
    loader.load_state_dict(state)
    assert loader.state_dict() == state
    assert all_contents(loader) == [expected[i] for i in (2, 4, 5, 7, 8, 9)]
    assert (loader.state_dict()["epoch"], loader.state_dict()["ahead"]) == (1, [])


def test_no_stale_row_and_no_deadlock_under_random_delays(tmp_path: Path) -> None:
    """Small batches, few slots, more batches at a time than slots for them."""
    wanted = 10_000 if SOAK else 600
    make_random_store(tmp_path / "g.outcrop", 200, 1500, dim=7, train=200).close()
    faults = Faults(delay_us=100, reorder=True, short_every=13)
    done = 0
    with with_faults(tmp_path / "g.outcrop", faults) as store:
        for seed in itertools.count():
            order = ("exact", "completion")[seed % 2]
            buffer = (0.3, 1, 2.5)[seed % 3]
            loader = make(store, f"gnndrive:order={order}:buffer={buffer}", batch_size=2, seed=seed)
            for batch in loader:
                check_against_store(batch, store)
                del batch
                done += 1
            unused, slots = standby(loader)
            assert unused == slots
            loader.close()
            if done >= wanted:
                break


# What is read


def test_each_row_is_read_once_where_all_have_slots(store: GraphStore) -> None:
    loader = make(store)
    rows = set()
    for _ in range(3):
        for batch in loader:
            rows |= set(batch.n_id.tolist())
            del batch
    epochs = loader.record.epochs
    assert sum(epoch.bytes_wanted for epoch in epochs) == 4 * DIM * len(rows)
    for epoch in epochs:
        read = epoch.bytes_wanted // (4 * DIM)
        assert epoch.rows == read + epoch.hits["buffer"] + epoch.hits["shared"]
    assert epochs[2].hits["buffer"] > 0.9 * epochs[2].rows


def test_the_copy_out_of_the_slots_is_a_stage(store: GraphStore) -> None:
    loader = make(store)
    all_contents(loader)
    stages = loader.record.epochs[0].stages
    assert set(stages) == {"sample", "gather", "copy", "compute"}
    assert stages["copy"].busy_seconds > 0 and stages["gather"].busy_seconds > 0


# Memory


def test_the_buffer_takes_what_is_spare_and_no_more(store: GraphStore) -> None:
    def of(memory: Any) -> NeighborLoader:
        return make(store, memory=memory, batch_size=50)

    least = int(smallest_memory(of).removesuffix("MB")) * 10**6
    for memory in (least, 2 * least):
        loader = of(memory)
        record = loader.record
        assert "feature buffer" in record.charges
        assert sum(record.charges.values()) + record.batch_memory_bytes <= memory
    assert standby(of("100MB"))[1] == NODES, "one per node is enough"


def test_a_buffer_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    with make_random_store(tmp_path / "g.outcrop", 3000, 9000, dim=1000) as store:
        assert make(store, "gnndrive:buffer=1", memory="8MB")
        with pytest.raises(BudgetError, match=r"feature buffer .* the smallest that would do"):
            make(store, "gnndrive:buffer=20", memory="8MB")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("extractors=0", "extractors must be 1 to 64"),
        ("samplers=65", "samplers must be 1 to 64"),
        ("buffer=0", "buffer must be more than 0"),
        ("buffer=nan", "buffer must be more than 0"),
        ("order=random", "order cannot be 'random'"),
        ("topology=disk", "topology cannot be 'disk'"),
    ],
)
def test_bad_options_are_named(store: GraphStore, options: str, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        make(store, f"gnndrive:{options}")


# Endings and errors


@pytest.mark.parametrize("order", ["exact", "completion"])
def test_a_failing_read_is_raised_and_the_loader_goes_on(path: Path, order: str) -> None:
    with GraphStore(path) as store:
        expected = all_contents(make(store, "memory").epoch(0))
    # Of every request from the 8th on, so that retries of those who wait fail, too; then none.
    faults = Faults(fail_read_at=8, fail_count=40, delay_us=200)
    with with_faults(path, faults) as store:
        loader = make(store, f"gnndrive:order={order}:buffer=0.2")
        for _ in range(40):
            try:
                found = all_contents(loader.epoch(0))
                break
            except ReadError as error:
                assert error.errno == 5 and error.length > 0
                assert str(error.filename).endswith("features.npy")
                assert not threads()
                unused, slots = standby(loader)
                assert unused == slots
        else:
            pytest.fail("still failing")
        assert ordered(found) == ordered(expected)


def test_a_loop_that_is_left_gives_its_slots_back(path: Path) -> None:
    with with_faults(path, Faults(delay_us=3000)) as store:
        loader = make(store, "gnndrive:buffer=0.1", batch_size=4)
        for stop in (1, 2, 5):
            for number, _batch in enumerate(loader, 1):
                if number == stop:
                    break
            gc.collect()
            assert not threads()
            unused, slots = standby(loader)
            assert unused == slots


def test_loops_that_share_a_small_buffer_do_not_wait_for_each_other(store: GraphStore) -> None:
    expected = all_contents(make(store, "memory").epoch(0))
    loader = make(store, "gnndrive:buffer=0.05")
    outer = loader.epoch(0)
    found = [contents(next(outer))]
    inner = loader.sibling("val", shuffle=False)
    assert len(all_contents(inner)) == len(inner)
    assert found + all_contents(outer) == expected
