"""gnndrive: what it promises beyond the contract of all strategies."""

from __future__ import annotations

import gc
import hashlib
import itertools
import signal
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from outcrop.errors import BudgetError, OptionError, ReadError
from outcrop.loader import NeighborLoader, ShaDowLoader
from outcrop.options import DiskOptions, Faults, parse_size
from outcrop.rows import shared
from outcrop.rows.buffer import FeatureBuffer
from outcrop.rows.shared import SharedRows
from outcrop.store.store import GraphStore
from tests.conformance.contract import all_contents, check_against_store, contents
from tests.conftest import SOAK
from tests.loader.test_neighbor import threads
from tests.processes import program, running
from tests.stores import make_random_store, smallest_memory

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


def buffer_of(loader: NeighborLoader) -> FeatureBuffer:
    rows = loader.runner.parts.rows
    assert isinstance(rows, SharedRows) and rows.buffer is not None
    return rows.buffer


def standby(loader: NeighborLoader) -> tuple[int, int]:
    """Slots that nobody uses, of all slots."""
    buffer = buffer_of(loader)
    return buffer.num_standby, buffer.num_slots


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


@pytest.mark.parametrize("prefetch", ["true", "false"])
def test_each_row_is_read_once_where_all_have_slots(store: GraphStore, prefetch: str) -> None:
    loader = make(store, f"gnndrive:prefetch={prefetch}")
    rows = set()
    for _ in range(3):
        for batch in loader:
            rows |= set(batch.n_id.tolist())
            del batch
    epochs = loader.record.epochs
    assert sum(epoch.bytes_wanted for epoch in epochs) == 4 * DIM * len(rows)
    for epoch in epochs:
        read = epoch.bytes_wanted // (4 * DIM)
        found = epoch.rows - epoch.hits["buffer"] - epoch.hits["shared"]
        assert read > found if prefetch == "true" and epoch is epochs[0] else read == found
    assert epochs[2].hits["buffer"] > 0.9 * epochs[2].rows


def test_where_slots_are_few_rows_that_are_used_often_or_soon_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch is a sweep through more rows than there are slots."""
    monkeypatch.setattr(shared, "_LEAST_PART", 500)
    found = {}
    make_random_store(tmp_path / "g.outcrop", 40_000, 60_000, dim=1, train=3000).close()
    with GraphStore(tmp_path / "g.outcrop") as store:
        # Half of the seeds are in every batch.
        seeds = np.concatenate([np.r_[:8000, i * 8000 : (i + 1) * 8000] for i in range(1, 5)])
        for reuse in ("lookahead", "frequency", "lru"):
            loader = make(
                store, f"gnndrive:samplers=2:extractors=1:buffer=0.7:reuse={reuse}",
                num_neighbors=[1], input_nodes=seeds, batch_size=16_000, shuffle=False,
            )  # fmt: skip
            for _ in range(2):
                for batch in loader:
                    check_against_store(batch, store)
                    del batch
            found[reuse] = [epoch.hits["buffer"] for epoch in loader.record.epochs]
            loader.close()
    assert found["frequency"][1] > 1.2 * found["lru"][1]
    assert found["lookahead"][1] > found["frequency"][1]
    assert found["lookahead"][0] > 1.2 * found["frequency"][0], "before uses tell anything"


@pytest.mark.parametrize("x", ["copy:buffer=3", "slots:buffer=4"])
def test_rows_that_ride_along_save_requests(tmp_path: Path, x: str) -> None:
    make_random_store(tmp_path / "g.outcrop", 100_000, 400_000, dim=32, train=8000).close()
    requests = {}
    with GraphStore(
        tmp_path / "g.outcrop", DiskOptions(gap_bytes=0, faults=Faults(delay_us=2000))
    ) as store:
        for prefetch in ("true", "false"):
            loader = make(
                store, f"gnndrive:x={x}:prefetch={prefetch}:topology=mmap", batch_size=400
            )
            for batch in with_x(loader) if x.startswith("slots") else loader:
                check_against_store(batch, store)
                del batch
            requests[prefetch] = loader.record.epochs[0].read_requests
            loader.close()
    assert requests["true"] < requests["false"]


def test_no_row_rides_along_where_each_has_a_request_of_its_own(path: Path) -> None:
    with GraphStore(path, DiskOptions(merge=False)) as store:
        assert store.features.layout is None
        loader = make(store)
        assert all_contents(loader.epoch(0)) == all_contents(make(store, "memory").epoch(0))


def test_what_was_expected_of_an_epoch_that_was_given_up_is_forgotten(store: GraphStore) -> None:
    loader = make(store, "gnndrive:buffer=0.5")
    for epoch in range(20):  # more than may be expected at a time
        next(loader.epoch(epoch))
    gc.collect()
    buffer = buffer_of(loader)
    expected = [buffer.expect(np.arange(NODES)) for _ in range(8)]
    assert all(each is not None for each in expected)
    assert buffer.expect(np.arange(NODES)) is None


def test_topology_of_which_little_fits_is_cached(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # So large that there is memory to choose its lists where a quarter of it would not fit.
    make_random_store(tmp_path / "g.outcrop", 20_000, 8_000_000, dim=8, train=200).close()
    with GraphStore(tmp_path / "g.outcrop") as store:
        expected = all_contents(make(store, "memory").epoch(0))

        def of(memory: Any) -> NeighborLoader:
            return make(store, memory=memory)

        least = parse_size(smallest_memory(of))
        found = {}
        for memory in range(least, least + 27_000_000, 3_000_000):
            loader = of(memory)
            found[loader.record.plan["topology"]] = memory
            assert all_contents(loader.epoch(0)) == expected
            loader.close()
        assert max(found, key=lambda kind: found[kind]) == "mmap"
        assert make(store, memory=found["cache"], disk=1000).record.plan["topology"] == "mmap"
        monkeypatch.setattr("os.access", lambda *_: False)
        assert of(found["cache"]).record.plan["topology"] == "mmap", "a store that is read-only"


def test_the_record_has_what_was_chosen(store: GraphStore) -> None:
    plan = make(store, "gnndrive:samplers=3:extractors=2").record.plan
    assert (plan["samplers"], plan["gatherers"], plan["slots"]) == (3, 2, NODES)
    assert plan["part_rows"] == NODES // 4
    assert plan["topology"] == "mmap" and plan["topology_bytes"] > 0
    assert make(store, "gnndrive:x=slots").record.plan["part_rows"] is None


def test_the_copy_out_of_the_slots_is_a_stage(store: GraphStore) -> None:
    loader = make(store)
    all_contents(loader)
    stages = loader.record.epochs[0].stages
    assert set(stages) == {"sample", "gather", "copy", "compute"}
    assert stages["copy"].busy_seconds > 0 and stages["gather"].busy_seconds > 0


# Rows that stay in slots


def with_x(batches: Iterable[Any]) -> Iterator[Any]:
    """Batches with x in place of the slots."""
    for batch in batches:
        assert batch.get("x") is None
        batch.x = batch.x_buffer[batch.x_index]
        del batch.x_buffer, batch.x_index  # nothing else holds the slots now
        yield batch
        del batch


@pytest.mark.parametrize("order", ["exact", "completion"])
@pytest.mark.parametrize("extractors", [1, 4])
@pytest.mark.parametrize("buffer", [2, 100])
def test_slots_hold_the_reference_rows(
    path: Path, order: str, extractors: int, buffer: int
) -> None:
    with GraphStore(path) as store:
        expected = [all_contents(make(store, "memory").epoch(epoch)) for epoch in range(3)]
    with with_faults(path, SLOW) as store:
        loader = make(
            store, f"gnndrive:x=slots:order={order}:extractors={extractors}:buffer={buffer}"
        )
        for epoch in range(3):
            found = all_contents(with_x(loader.epoch(epoch)))
            assert ordered(found) == ordered(expected[epoch])
        unused, slots = standby(loader)
        assert unused == slots
        stages = loader.record.epochs[0].stages
        assert "copy" not in stages and loader.record.epochs[0].row_bytes > 0


def test_slots_of_equal_nodes_are_shared_within_a_batch(store: GraphStore) -> None:
    expected = all_contents(ShaDowLoader(store, 2, 5, "train", batch_size=40))
    loader = ShaDowLoader(store, 2, 5, "train", batch_size=40, strategy="gnndrive:x=slots")
    assert all_contents(with_x(loader)) == expected


def test_rows_are_not_overwritten_while_a_batch_has_them(tmp_path: Path) -> None:
    """The loop works on a batch while the next ones are read into the few other slots."""
    wanted = 10_000 if SOAK else 300
    make_random_store(tmp_path / "g.outcrop", 200, 1500, dim=7, train=200).close()
    done = 0
    with with_faults(tmp_path / "g.outcrop", Faults(delay_us=100, reorder=True)) as store:
        for seed in itertools.count():
            order = ("exact", "completion")[seed % 2]
            loader = make(
                store, f"gnndrive:x=slots:order={order}:buffer=5", batch_size=2, seed=seed
            )
            for batch in loader:
                time.sleep(0.0005)  # so that the next ones are under way
                rows = batch.x_buffer[batch.x_index].numpy()
                assert np.array_equal(rows, store.array("features")[batch.n_id.numpy()])
                done += 1
            del batch
            unused, slots = standby(loader)
            assert unused == slots
            loader.close()
            if done >= wanted:
                break


def test_a_model_over_slots_gives_what_it_gives_over_x(store: GraphStore) -> None:
    torch.manual_seed(0)
    near, far = torch.nn.Linear(DIM, 8), torch.nn.Linear(DIM, 8)

    def layer(rows: torch.Tensor, of: torch.Tensor, batch: Any) -> torch.Tensor:
        """SAGE's first layer; the row of node i is rows[of[i]]."""
        sources, targets = batch.edge_index
        messages = rows.index_select(0, of[sources])
        mean = torch.zeros(batch.num_nodes, DIM).index_add(0, targets, messages)
        mean /= torch.bincount(targets, minlength=batch.num_nodes).clamp(min=1)[:, None]
        out: torch.Tensor = near(rows.index_select(0, of)) + far(mean)
        return out.detach()

    by_x = [layer(b.x, torch.arange(b.num_nodes), b) for b in make(store, "memory").epoch(0)]
    by_slots = [layer(b.x_buffer, b.x_index, b) for b in make(store, "gnndrive:x=slots").epoch(0)]
    assert len(by_x) == len(by_slots)
    assert all(torch.equal(one, other) for one, other in zip(by_x, by_slots, strict=True))


@pytest.mark.parametrize("keep", ["x_buffer", "slice"])
def test_slots_are_held_while_a_tensor_over_them_lives(store: GraphStore, keep: str) -> None:
    loader = make(store, "gnndrive:x=slots", input_nodes=range(16))
    (batch,) = loader
    used = len(set(batch.n_id.tolist()))
    kept = batch.x_buffer if keep == "x_buffer" else batch.x_buffer[3:]
    del batch
    unused, slots = standby(loader)
    assert slots - unused == used
    del kept
    assert standby(loader) == (slots, slots)


def test_a_loop_that_keeps_batches_is_told_so(store: GraphStore) -> None:
    loader = make(store, "gnndrive:x=slots:buffer=5", batch_size=2, strict_memory=True)
    with pytest.raises(BudgetError, match=r"slots, and .* are held by batches"):
        list(loader)
    gc.collect()
    assert not threads()
    unused, slots = standby(loader)
    assert unused == slots
    assert len([None for _ in loader]) == len(loader)


def test_a_batch_that_finds_no_slots_has_rows_of_its_own(store: GraphStore) -> None:
    loader = make(store, "gnndrive:x=slots:buffer=5", batch_size=2)
    kept = list(loader.epoch(0))
    assert loader.record.over_budget_bytes == 0, "there was memory for them"
    own = [batch for batch in kept if batch.x_buffer.shape[0] == batch.num_nodes]
    assert 0 < len(own) < len(kept)
    assert [contents(batch) for batch in kept] == all_contents(make(store, "memory", batch_size=2))
    for batch in own:
        assert batch.x_index.tolist() == list(range(batch.num_nodes))
    del kept, own, batch
    unused, slots = standby(loader)
    assert unused == slots


def test_a_batch_larger_than_all_slots_has_rows_of_its_own(store: GraphStore) -> None:
    given: dict[str, Any] = {"batch_size": 2, "input_nodes": range(NODES)}
    strict = make(store, "gnndrive:x=slots:buffer=2", strict_memory=True, **given)
    with pytest.raises(BudgetError, match="needs as many slots, more than the"):
        next(iter(strict.sibling(range(NODES), batch_size=200)))
    loader = make(store, "gnndrive:x=slots:buffer=2", **given)
    large = loader.sibling(range(NODES), batch_size=200)
    assert all_contents(large) == all_contents(
        make(store, "memory", **(given | {"batch_size": 200}))
    )


def test_slots_need_no_memory_for_x_but_room_for_two_batches(tmp_path: Path) -> None:
    with make_random_store(tmp_path / "g.outcrop", 3000, 9000, dim=1000) as store:
        copied, held = make(store, "gnndrive:buffer=2"), make(store, "gnndrive:x=slots:buffer=2")
        for loader in (copied, held):
            next(iter(loader))
            gc.collect()
        assert standby(held)[1] == standby(copied)[1]
        assert held.record.peak_batch_bytes < copied.record.peak_batch_bytes / 10

        def of(memory: Any) -> NeighborLoader:
            return make(store, "gnndrive:x=slots", memory=memory)

        nodes = next(iter(make(store))).num_nodes
        assert standby(of(smallest_memory(of)))[1] >= 2 * nodes
        with pytest.raises(BudgetError, match=r"feature buffer .* the smallest that would do"):
            of(nodes * 4000)


def test_slots_are_for_rows_stored_as_float32_and_the_cpu(tmp_path: Path) -> None:
    half = make_random_store(tmp_path / "g.outcrop", 50, 100, dim=4, feature_dtype="float16")
    with half, pytest.raises(OptionError, match=r"float32 \(got float16\)"):
        make(half, "gnndrive:x=slots", batch_size=4)
    full = make_random_store(tmp_path / "h.outcrop", 50, 100, dim=4)
    with full, pytest.raises(OptionError, match="x=slots is for the CPU"):
        make(full, "gnndrive:x=slots", device="cuda")


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
        assert make(store, "gnndrive:buffer=1", memory="12MB")
        with pytest.raises(BudgetError, match=r"feature buffer .* the smallest that would do"):
            make(store, "gnndrive:buffer=20", memory="12MB")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("extractors=0", "extractors must be 1 to 64"),
        ("samplers=65", "samplers must be 1 to 64"),
        ("buffer=0", "buffer must be more than 0"),
        ("buffer=nan", "buffer must be a number or none"),
        ("order=random", "order must be one of exact, completion"),
        ("x=slots:buffer=1", "with x=slots buffer must be at least 2"),
        ("x=view", "x must be one of"),
        ("reuse=mru", "reuse must be one of lookahead, frequency, lru"),
        ("topology=disk", "topology must be one of auto, mmap, cache"),
    ],
)
def test_bad_options_are_named(store: GraphStore, options: str, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        make(store, f"gnndrive:{options}")


# Endings and errors


@pytest.mark.parametrize("x", ["copy:buffer=0.2", "slots:buffer=2"])
@pytest.mark.parametrize("order", ["exact", "completion"])
def test_a_failing_read_is_raised_and_the_loader_goes_on(path: Path, order: str, x: str) -> None:
    with GraphStore(path) as store:
        expected = all_contents(make(store, "memory").epoch(0))
    # Of every request from the 8th on, so that retries of those who wait fail, too; then none.
    faults = Faults(fail_read_at=8, fail_count=40, delay_us=200)
    with with_faults(path, faults) as store:
        loader = make(store, f"gnndrive:order={order}:x={x}")
        for _ in range(40):
            try:
                batches = loader.epoch(0)
                found = all_contents(with_x(batches) if x.startswith("slots") else batches)
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


@pytest.mark.parametrize("x", ["copy:buffer=0.1", "slots:buffer=3"])
def test_a_loop_that_is_left_gives_its_slots_back(path: Path, x: str) -> None:
    with with_faults(path, Faults(delay_us=3000)) as store:
        loader = make(store, f"gnndrive:x={x}", batch_size=4)
        for stop in (1, 2, 5):
            for number, _batch in enumerate(loader, 1):
                if number == stop:
                    break
            del _batch
            gc.collect()
            assert not threads()
            unused, slots = standby(loader)
            assert unused == slots


ENDLESS = """
import sys
from outcrop.loader import NeighborLoader
from outcrop.options import DiskOptions, Faults, parse_size
from outcrop.store.store import GraphStore

path, strategy = sys.argv[1:]
with GraphStore(path, DiskOptions(faults=Faults(delay_us=20_000, reorder=True))) as store:
    loader = NeighborLoader(store, [4, 3], "train", batch_size=4, memory="100MB", strategy=strategy)
    while True:
        for batch in loader:
            print("batch", flush=True)
            del batch
"""
"""A loop that mostly waits for extraction."""


@pytest.mark.parametrize("ending", [signal.SIGKILL, signal.SIGINT])
@pytest.mark.parametrize(
    "options", ["buffer=0.3", "buffer=0.3:order=completion", "x=slots:buffer=3:order=completion"]
)
def test_a_process_ended_in_mid_extraction_leaves_nothing_behind(
    path: Path, options: str, ending: signal.Signals
) -> None:
    def files() -> dict[str, str]:
        return {
            str(file): hashlib.sha256(file.read_bytes()).hexdigest()
            for file in path.parent.rglob("*")
            if file.is_file()
        }

    before = files()
    with running(program(ENDLESS, str(path), f"gnndrive:{options}")) as process:
        assert process.stdout is not None
        for _ in range(3):
            assert process.stdout.readline() == "batch\n"
        start = time.monotonic()
        process.send_signal(ending)
        _, errors = process.communicate(timeout=30)
    assert process.returncode == -ending
    assert time.monotonic() - start < 5, "at once, on a busy machine, too"
    if ending == signal.SIGINT:
        assert errors.rstrip().endswith("KeyboardInterrupt"), errors
    assert files() == before
    with GraphStore(path) as store:
        expected = all_contents(make(store, "memory").epoch(0))
        assert all_contents(make(store).epoch(0)) == expected


def test_loops_that_share_a_small_buffer_do_not_wait_for_each_other(store: GraphStore) -> None:
    expected = all_contents(make(store, "memory").epoch(0))
    loader = make(store, "gnndrive:buffer=0.05")
    outer = loader.epoch(0)
    found = [contents(next(outer))]
    inner = loader.sibling("val", shuffle=False)
    assert len(all_contents(inner)) == len(inner)
    assert found + all_contents(outer) == expected
