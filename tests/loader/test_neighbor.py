"""Loaders: what a PyG training loop relies on, positions, memory, errors and endings."""

from __future__ import annotations

import copy
import gc
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
import warnings
import weakref
from collections.abc import Iterator
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch_geometric.data import Data
from torch_geometric.loader import NeighborLoader as PygNeighborLoader
from torch_geometric.nn import GraphSAGE

import outcrop
from outcrop.errors import BudgetError, BudgetWarning, OptionError, ReadError, StoreError
from outcrop.loader import NeighborLoader, ShaDowLoader
from outcrop.memory.batches import Batch
from outcrop.options import DiskOptions, Faults
from outcrop.run.runner import Runner
from outcrop.sample.seeds import Stream
from outcrop.store.store import GraphStore
from outcrop.strategies import STRATEGIES
from outcrop.tools.bench.variants import variant_named
from tests.conformance.contract import all_contents, check_against_store, contents
from tests.descriptors import descriptors
from tests.graphs import Graph
from tests.processes import program, running
from tests.stores import CLASSES, make_random_store, make_store, smallest_memory


@pytest.fixture
def store(tmp_path: Path) -> Iterator[GraphStore]:
    with make_random_store(tmp_path / "g.outcrop", train=100) as made:
        yield made


def make(store: GraphStore, **options: Any) -> NeighborLoader:
    given: dict[str, Any] = {
        "num_neighbors": [4, 3],
        "input_nodes": "train",
        "batch_size": 16,
        "memory": "100MB",
        "shuffle": True,
    }
    options = given | options
    if options.get("strategy", "auto") != "auto":
        options["strategy"] = variant_named(options["strategy"])
    return NeighborLoader(store, **options)


# PyG's contract


def test_batches_have_what_pyg_gives(store: GraphStore) -> None:
    loader = make(store)
    assert isinstance(loader, PygNeighborLoader) and isinstance(outcrop.NeighborLoader, type)
    batch = next(iter(loader))
    assert type(batch) is Data
    assert batch.n_id.dtype == batch.e_id.dtype == batch.edge_index.dtype == torch.int64
    assert batch.batch_size == len(batch.input_id) == 16
    assert torch.equal(batch.n_id[:16], torch.from_numpy(store.split("train")[batch.input_id]))
    assert sum(batch.num_sampled_nodes) == batch.num_nodes == len(batch.x) == len(batch.y)
    assert sum(batch.num_sampled_edges) == batch.edge_index.shape[1]
    assert len(batch.num_sampled_nodes) == 3 and len(batch.num_sampled_edges) == 2
    check_against_store(batch, store)
    batch.validate()


def test_the_last_batch_is_short_unless_dropped(store: GraphStore) -> None:
    assert [batch.batch_size for batch in make(store)] == [16] * 6 + [4]
    assert [batch.batch_size for batch in make(store, drop_last=True)] == [16] * 6
    assert len(make(store)) == 7 and len(make(store, drop_last=True)) == 6
    assert len(make(store, batch_size=20)) == 5


def test_a_trimmed_forward_equals_the_untrimmed_one(store: GraphStore) -> None:
    model = GraphSAGE(8, 16, num_layers=2, out_channels=CLASSES).eval()
    for batch in make(store):
        trimmed = model(
            batch.x,
            batch.edge_index,
            num_sampled_nodes_per_hop=batch.num_sampled_nodes,
            num_sampled_edges_per_hop=batch.num_sampled_edges,
        )
        whole = model(batch.x, batch.edge_index)
        size = batch.batch_size
        assert torch.allclose(trimmed[:size], whole[:size], atol=1e-6)


@pytest.mark.parametrize("cache", [False, True])
def test_inference_of_pyg_equals_the_full_forward(store: GraphStore, cache: bool) -> None:
    model = GraphSAGE(8, 16, num_layers=2, out_channels=CLASSES).eval()
    loader = make(store, num_neighbors=[-1], input_nodes=None, shuffle=False)
    targets = np.repeat(np.arange(store.num_nodes), np.diff(store.indptr))
    edges = torch.from_numpy(np.stack([store.indices.astype(np.int64), targets]))
    with torch.no_grad():
        expected = model(torch.tensor(store.array("features")), edges)
    assert torch.allclose(model.inference(loader, cache=cache), expected, atol=1e-5)


def test_a_loaders_data_reads_as_a_data_does(store: GraphStore) -> None:
    data = make(store).data
    assert isinstance(data, Data)
    assert (data.num_nodes, data.num_edges, data.num_features) == (300, 3000, 8)
    assert data.num_classes == int(data.y.max()) + 1 == CLASSES
    assert data.train_mask.sum() == 100 and data.x.shape == (300, 8)
    assert torch.equal(copy.copy(data).train_mask, store.train_mask)
    data.mine = 3
    assert data.mine == 3 and not hasattr(data, "yours")
    with pytest.raises(AttributeError, match=r"has no edge_index: .*store\.indptr"):
        _ = data.edge_index


def test_a_loaders_data_without_rows_and_labels_has_none(tmp_path: Path) -> None:
    graph = Data(edge_index=torch.zeros((2, 1), dtype=torch.int64), num_nodes=2)
    with outcrop.from_pyg(graph, tmp_path / "bare.outcrop") as bare:
        data = make(bare, input_nodes=None).data
        assert data.x is None and data.y is None and data.num_features == 0
        with pytest.raises(AttributeError, match="made without a train split"):
            _ = data.train_mask


def test_quantised_rows_have_no_raw_x(tmp_path: Path) -> None:
    with make_random_store(tmp_path / "q.outcrop", feature_dtype="int8") as store:
        loader = make(store, num_neighbors=[-1], input_nodes=None, shuffle=False)
        with pytest.raises(StoreError, match="outcrop infer"):
            GraphSAGE(8, 16, 2, CLASSES).eval().inference(loader)


def test_transform_is_applied_to_every_batch(store: GraphStore) -> None:
    def mark(batch: Data) -> Data:
        batch.marked = True
        return batch

    loader = make(store, transform=mark)
    assert all(batch.marked for batch in loader)
    assert loader([0]).marked


def test_a_call_gives_the_batch_around_input_positions(store: GraphStore) -> None:
    loader = make(store)
    batch = loader(torch.tensor([3, 5]))
    assert batch.n_id[:2].tolist() == store.split("train")[[3, 5]].tolist()
    assert batch.input_id.tolist() == [3, 5]
    draws = {tuple(loader([3]).e_id.tolist()) for _ in range(10)}
    assert len(draws) > 1, "calls are numbered: each draws afresh"
    again = make(store)
    assert contents(again(torch.tensor([3, 5]))) == contents(batch)
    with pytest.raises(OptionError, match="0 to 99"):
        loader([100])


def test_an_argument_that_no_loader_has_is_named(store: GraphStore) -> None:
    with pytest.raises(TypeError, match="fanout"):
        make(store, fanout=3)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"input_nodes": "training"}, "train, val, test"),
        ({"input_nodes": [300]}, "0 to 299"),
        ({"input_nodes": torch.ones(5, dtype=torch.bool)}, "an entry per node"),
        ({"input_nodes": torch.ones(5)}, "node ids or a mask"),
        ({"num_neighbors": []}, "per hop"),
        ({"num_neighbors": [-2]}, "-1 for all"),
        ({"batch_size": 0}, "at least 1"),
        ({"strategy": "magic"}, "memory, mmap"),
        ({"memory": "8 gallons"}, "a size such as"),
        ({"disk": "much"}, "a size such as"),
    ],
)
def test_bad_arguments_are_named(store: GraphStore, options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        make(store, **options)


def test_input_nodes_may_be_a_mask_or_ids(store: GraphStore) -> None:
    ids = torch.tensor([7, 3, 250])
    mask = torch.zeros(300, dtype=torch.bool)
    mask[ids] = True
    by_id = next(iter(make(store, input_nodes=ids, shuffle=False)))
    by_mask = next(iter(make(store, input_nodes=mask, shuffle=False)))
    assert by_id.n_id[:3].tolist() == [7, 3, 250]
    assert by_mask.n_id[:3].tolist() == [3, 7, 250]


def test_a_process_group_of_several_ranks_is_refused(
    store: GraphStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 2)
    with pytest.raises(OptionError, match="2 ranks"):
        make(store)


# Epochs and positions


def test_epochs_differ_and_can_be_named(store: GraphStore) -> None:
    loader = make(store)
    first, second = all_contents(loader), all_contents(loader)
    assert first != second
    assert all_contents(loader.epoch(0)) == first
    assert all_contents(loader) == second, "iteration goes on after a named epoch"
    assert all_contents(make(store, seed=1)) != first


def test_a_broken_off_epoch_is_followed_by_the_next(store: GraphStore) -> None:
    loader = make(store)
    for _ in islice(loader, 2):  # one would be a look
        pass
    assert all_contents(loader) == all_contents(make(store).epoch(1))


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_saved_position_resumes_in_mid_epoch(store: GraphStore, strategy: str) -> None:
    loader = make(store, strategy=strategy)
    whole = all_contents(loader.epoch(3)) + all_contents(loader)
    for stop in (0, 1, 5, 7):
        loader = make(store, strategy=strategy)
        batches = loader.epoch(3)
        seen = all_contents(next(batches) for _ in range(stop))
        if not stop:
            loader.load_state_dict({**loader.state_dict(), "epoch": 3})
        state = loader.state_dict()
        del batches
        resumed = make(store)
        resumed.load_state_dict(state)
        rest = all_contents(resumed) + all_contents(resumed)
        assert seen + rest == whole, f"after {stop} batches"


def test_a_position_of_other_batches_is_refused(store: GraphStore) -> None:
    state = make(store).state_dict()
    with pytest.raises(OptionError, match="batch_size was 16, and is 8"):
        make(store, batch_size=8).load_state_dict(state)


def test_streams_draw_differently(store: GraphStore) -> None:
    nodes = store.split("train").copy()
    train, val = (
        all_contents(make(store, input_nodes=nodes, stream=stream, shuffle=False))
        for stream in (Stream.TRAIN, Stream.VAL)
    )
    assert train != val


def test_siblings_share_memory_and_record(store: GraphStore) -> None:
    loader = make(store)
    val = loader.sibling("val", shuffle=False, batch_size=10)
    assert val.runner is loader.runner and len(val) == 8
    assert all_contents(val) == all_contents(
        make(store, input_nodes="val", shuffle=False, batch_size=10)
    )
    assert [epoch.stream for epoch in loader.record.epochs] == ["val"]
    with pytest.raises(OptionError, match="memory is shared"):
        loader.sibling("val", memory="1GB")


# ShaDow


def test_shadow_batches_have_what_pyg_gives(store: GraphStore) -> None:
    loader = ShaDowLoader(store, 2, 3, "train", batch_size=10, memory="100MB")
    for batch in loader:
        assert batch.num_graphs == len(batch.root_n_id) == len(batch.input_id) == len(batch.y)
        assert torch.equal(batch.ptr[:-1], batch.root_n_id)
        sources, targets = batch.edge_index
        assert torch.equal(batch.batch[sources], batch.batch[targets]), "subgraphs are apart"
        check_against_store(batch, store)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_first_look_does_not_use_up_an_epoch(store: GraphStore, strategy: str) -> None:
    wanted = make(store, strategy="memory")
    loader = make(store, strategy=strategy, epochs=2)
    for _ in range(3):
        assert contents(next(iter(loader))) == contents(next(wanted.epoch(0)))
    for epoch in range(2):
        assert all_contents(loader) == all_contents(wanted.epoch(epoch))
    assert contents(next(iter(loader))) == contents(next(wanted.epoch(2)))
    assert contents(next(iter(loader))) == contents(next(wanted.epoch(3))), "not the first look"


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_loop_that_is_given_up_has_used_its_epoch(store: GraphStore, strategy: str) -> None:
    wanted = make(store, strategy="memory")
    loader = make(store, strategy=strategy, epochs=2)
    batches = iter(loader)
    next(batches)
    next(batches)
    del batches
    assert all_contents(loader) == all_contents(wanted.epoch(1))


def test_a_part_of_an_epoch_that_was_asked_for_is_no_look(store: GraphStore) -> None:
    loader = make(store)
    assert len(list(loader.epoch(0, batches=1))) == 1
    assert contents(next(iter(loader))) == contents(next(make(store).epoch(1)))


def test_the_position_of_a_look_is_after_its_batch(store: GraphStore) -> None:
    loader, resumed = make(store), make(store)
    next(iter(loader))
    resumed.load_state_dict(loader.state_dict())
    assert all_contents(resumed) == all_contents(loader.epoch(0))[1:]


# Memory


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_with_strict_memory_keeping_every_batch_raises_with_advice(
    store: GraphStore, strategy: str
) -> None:
    def of(memory: Any) -> NeighborLoader:
        return make(store, strategy=strategy, memory=memory, batch_size=4, strict_memory=True)

    loader = of(smallest_memory(of))
    with pytest.raises(BudgetError, match="still referenced"):
        _kept = [batch for _ in range(100) for batch in loader]
    assert len(all_contents(loader)) == 25, "the loader goes on once they are dropped"


TIGHT = [*STRATEGIES, "ginex:mode=split:overlap=false", "gnndrive:x=slots", "diskgnn:pipeline=off"]
"""Strategies, and those of their options that hold memory in other ways."""


def tight(store: GraphStore, strategy: str, **options: Any) -> NeighborLoader:
    """In the least memory, with room for two batches."""

    def of(memory: Any) -> NeighborLoader:
        return make(store, strategy=strategy, memory=memory, batch_size=4, **options)

    return of(smallest_memory(of))


@pytest.fixture
def wide(tmp_path: Path) -> Iterator[GraphStore]:
    """Rows so large that a batch is a large part of the least memory."""
    made = make_random_store(tmp_path / "w.outcrop", 600, 9000, dim=4000, train=100)
    with made:
        yield made


@pytest.mark.parametrize("strategy", TIGHT)
def test_a_loop_goes_on_beside_batches_that_are_kept(wide: GraphStore, strategy: str) -> None:
    loader = tight(wide, strategy)
    expected = all_contents(make(wide, batch_size=4))
    kept = []
    with pytest.warns(BudgetWarning, match=r"take \d.* more than memory= allows") as warned:
        start = time.perf_counter()
        for batch in loader.epoch(0):
            kept.append(batch)
        seconds = time.perf_counter() - start
    assert len(warned) == 1, "once per loader"
    assert seconds < 15, "one wait for the user's code to let go, not one per batch"
    assert [contents(batch) for batch in kept] == expected
    record = loader.record
    assert record.over_budget_bytes == record.peak_batch_bytes - record.batch_memory_bytes > 0
    del kept, batch
    over = record.over_budget_bytes
    assert all_contents(loader) != expected, "epoch 1"
    assert record.over_budget_bytes == over, "what was dropped is used again"


@pytest.mark.parametrize("strategy", TIGHT)
def test_a_first_batch_that_is_kept_does_not_stop_the_loop(wide: GraphStore, strategy: str) -> None:
    loader = tight(wide, strategy)
    first = next(iter(loader.epoch(0)))
    before = contents(first)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", BudgetWarning)
        found = []
        for batch in loader.epoch(1):
            found.append(contents(batch))
    assert found == all_contents(make(wide, batch_size=4).epoch(1))
    assert contents(first) == before, "nobody wrote over it"


@pytest.mark.parametrize("strategy", TIGHT)
def test_two_open_loops_share_the_least_memory(wide: GraphStore, strategy: str) -> None:
    loader = tight(wide, strategy)
    expected = all_contents(make(wide, batch_size=4))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", BudgetWarning)
        one, other = loader.epoch(0), loader.epoch(0)
        for wanted in expected[:6]:
            assert contents(next(one)) == wanted
            assert contents(next(other)) == wanted
        assert [contents(batch) for batch in one] == expected[6:]
        assert [contents(batch) for batch in other] == expected[6:]


def test_an_error_that_holds_a_batch_does_not_stop_the_next_loop(wide: GraphStore) -> None:
    loader = tight(wide, "direct")

    def interrupted_cell() -> BaseException:
        try:
            for batch in loader:
                assert batch.x is None, "no such batch"
        except AssertionError as error:
            return error
        raise AssertionError("unreachable")

    held = interrupted_cell()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", BudgetWarning)
        assert len(all_contents(loader)) == 25
    assert held.__traceback__ is not None


def test_a_batch_larger_than_all_memory_is_served(wide: GraphStore) -> None:
    positions = range(100)
    with pytest.warns(BudgetWarning, match="the next batch needs"):
        found = contents(tight(wide, "direct")(positions))
    assert found == contents(make(wide, batch_size=4)(positions))
    with pytest.raises(BudgetError, match=r"more than the .* that memory= leaves for all batches"):
        tight(wide, "direct", strict_memory=True)(positions)


@pytest.fixture
def uneven(tmp_path: Path) -> Iterator[GraphStore]:
    """Of 400 nodes, the first 100 have no edges, and the last 100 a hundred each."""
    rng = np.random.default_rng(0)
    targets = np.concatenate([rng.integers(100, 300, 200), np.repeat(np.arange(300, 400), 100)])
    edges = np.stack([rng.integers(0, 400, len(targets)), targets])
    graph = Graph(400, edges)
    with make_store(tmp_path / "u.outcrop", graph, dim=2000) as made:
        yield made


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_batches_are_foreseen_though_the_first_are_small(uneven: GraphStore, strategy: str) -> None:
    """In the least memory, unshuffled, and refused where one were not foreseen."""

    def of(memory: Any) -> NeighborLoader:
        return NeighborLoader(uneven, [20, 20], range(400), batch_size=10, strategy=strategy,
                              memory=memory, strict_memory=True)  # fmt: skip

    assert sum(batch.batch_size for batch in of(smallest_memory(of))) == 400


def test_a_sibling_that_is_named_before_has_memory(uneven: GraphStore) -> None:
    def of(memory: Any, **more: Any) -> NeighborLoader:
        return NeighborLoader(uneven, [5, 5], range(400), batch_size=2, strategy="direct",
                              memory=memory, **more)  # fmt: skip

    least = smallest_memory(of)
    large: dict[str, Any] = {"input_nodes": "val", "batch_size": 100}
    with pytest.warns(BudgetWarning, match=r"batches of 100 seeds take up to .* leaves"):
        of(least).sibling(**large)
    with pytest.raises(BudgetError, match=r"make the loader with siblings="):
        of(least, strict_memory=True).sibling(**large)

    def foreseeing(memory: Any) -> NeighborLoader:
        return of(memory, strict_memory=True, siblings=[large])

    loader = foreseeing(smallest_memory(foreseeing))
    assert sum(batch.batch_size for batch in loader.sibling(**large)) == 100


def test_the_smallest_memory_named_is_accepted(store: GraphStore) -> None:
    def of(memory: Any) -> NeighborLoader:
        return make(store, memory=memory)

    least = smallest_memory(of)
    assert len(list(all_contents(of(least)))) == 7
    below = f"{int(least.removesuffix('MB')) - 1}MB"
    with pytest.raises(BudgetError):
        of(below)


def test_memory_is_charged_while_a_tensor_of_a_batch_lives(store: GraphStore) -> None:
    loader = make(store)
    pool = loader.runner._pool
    batches = iter(loader)
    kept = next(batches).x
    del batches
    gc.collect()
    assert pool.held_bytes == pool.charged_bytes(kept.numel() * 4)
    row = kept[3]
    del kept
    assert pool.held_bytes > 0
    del row
    assert pool.held_bytes == 0


def test_a_batch_is_not_kept_while_the_next_one_is_awaited(
    store: GraphStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = []

    run = Runner.run

    def watching(self: Runner, *given: Any, **options: Any) -> Iterator[Batch]:
        last: weakref.ref[Any] | None = None
        for batch in run(self, *given, **options):
            kept.append(last is not None and last() is not None)
            last = weakref.ref(batch.n_id)
            yield batch
            del batch

    monkeypatch.setattr(Runner, "run", watching)
    for batch in make(store, strategy="memory"):
        del batch
    assert kept == [False] * 7


def test_the_record_counts_what_was_delivered(store: GraphStore) -> None:
    loader = make(store, strategy="direct")
    batches = list(loader)
    (epoch,) = loader.record.epochs
    assert epoch.batches == 7 and epoch.seeds == 100
    assert epoch.rows == sum(len(batch.n_id) for batch in batches)
    assert epoch.row_bytes == epoch.bytes_wanted == 4 * 8 * epoch.rows
    assert epoch.bytes_read >= epoch.bytes_wanted and epoch.read_requests > 0
    assert sum(epoch.read_sizes) == epoch.read_requests and len(epoch.write_sizes) == 12
    assert epoch.sampled_edges == sum(len(batch.e_id) for batch in batches)
    assert set(epoch.stages) == {"sample", "gather", "compute"}
    assert epoch.seconds >= epoch.stall_seconds > 0
    assert loader.record.as_dict()["epochs"][0]["batches"] == 7


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_queue_lengths_are_of_the_run_that_is_open(store: GraphStore, strategy: str) -> None:
    loader = make(store, strategy=strategy)
    lengths = loader.runner.queue_lengths
    assert lengths() == {}
    run: Any = loader.epoch(0)
    with closing(run) as batches:
        next(batches)
        deadline = time.monotonic() + 20
        while not lengths()["consumer"]:
            assert time.monotonic() < deadline
            time.sleep(0.001)
        # A second run, while the first stays open.
        second: Any = loader.sibling("val").epoch(0)
        with closing(second) as others:
            next(others)
            assert "consumer" in lengths()
        assert lengths()["consumer"] > 0
    assert lengths() == {}


# Endings and errors


def threads() -> set[threading.Thread]:
    return {t for t in threading.enumerate() if t.name.startswith("outcrop-")}


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_nothing_is_left_behind(store: GraphStore, strategy: str) -> None:
    loader = make(store, strategy=strategy)
    next(iter(loader))  # opens what stays open
    gc.collect()
    before = descriptors().files
    for _ in loader:
        break
    with pytest.raises(ZeroDivisionError):
        for batch in loader:
            del batch
            _ = 1 // 0
    iterator = iter(loader)
    next(iterator)
    del iterator
    assert len(all_contents(loader)) == 7
    del _
    gc.collect()
    assert not threads()
    assert descriptors().files == before
    assert loader.runner._pool.held_bytes == 0


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_threads_end_with_their_loop_not_with_garbage_collection(
    store: GraphStore, strategy: str
) -> None:
    loader = make(store, strategy=strategy)
    all_contents(loader)
    gc.collect()
    gc.disable()
    try:
        before = len(os.listdir("/proc/self/task"))
        for _ in range(3):
            all_contents(loader)
        # Threads that have ended may still be listed for a moment.
        assert len(os.listdir("/proc/self/task")) <= before + 2
    finally:
        gc.enable()


def test_a_failing_read_of_labels_is_raised_by_the_constructor(tmp_path: Path) -> None:
    make_random_store(tmp_path / "g.outcrop").close()
    faults = Faults(fail_read_at=1)
    with (
        GraphStore(tmp_path / "g.outcrop", DiskOptions(faults=faults)) as store,
        pytest.raises(ReadError, match=r"labels\.npy"),
    ):
        make(store, input_nodes=[1, 2, 3])


def test_a_failing_read_of_rows_is_raised_in_the_loop(tmp_path: Path) -> None:
    make_random_store(tmp_path / "g.outcrop", dim=2000, train=100).close()
    with GraphStore(tmp_path / "g.outcrop") as store:
        expected = all_contents(make(store))
    faults = Faults(fail_read_at=20, fail_count=10**6)
    with GraphStore(tmp_path / "g.outcrop", DiskOptions(faults=faults)) as store:
        seen = []
        with pytest.raises(ReadError, match=r"features\.npy") as raised:
            for batch in make(store, strategy="direct"):
                seen.append(contents(batch))
        assert seen == expected[: len(seen)]
        assert raised.value.errno == 5
        assert not threads()


def test_an_error_in_transform_ends_the_loop_cleanly(store: GraphStore) -> None:
    def fail(batch: Data) -> Data:
        raise RuntimeError("my transform")

    with pytest.raises(RuntimeError, match="my transform"):
        list(make(store, transform=fail))
    assert not threads()


def test_interrupted_loops_end_at_once(store: GraphStore) -> None:
    endless = textwrap.dedent(f"""
        import outcrop, time
        loader = outcrop.NeighborLoader({str(store.path)!r}, [4, 3], "train", batch_size=16,
                                        strategy="direct", memory="100MB")
        print("ready", flush=True)
        while True:
            for batch in loader:
                time.sleep(0.01)
    """)
    with running(program(endless)) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        time.sleep(0.3)
        start = time.monotonic()
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=20)
    assert time.monotonic() - start < 5
    assert "KeyboardInterrupt" in errors


@pytest.mark.parametrize("strategy", [*STRATEGIES, "gnndrive:x=slots"])
def test_dropping_a_batch_runs_no_python(store: GraphStore, strategy: str) -> None:
    """A Ctrl-C that comes while a finalizer runs is printed and lost."""
    ran = []
    batches = iter(make(store, strategy=strategy))
    batch = next(batches)
    del batches  # nobody but the test has the batch now
    sys.setprofile(lambda frame, event, _: ran.append((event, frame.f_code.co_name)))
    del batch
    sys.setprofile(None)
    assert [name for event, name in ran if event == "call"] == []


def test_a_loader_left_open_does_not_hinder_the_exit(store: GraphStore) -> None:
    code = textwrap.dedent(f"""
        import outcrop
        loader = outcrop.NeighborLoader({str(store.path)!r}, [4, 3], "train", batch_size=16)
        batches = iter(loader)
        next(batches)
    """)
    done = subprocess.run(program(code), capture_output=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, b"")


def test_a_closed_loader_says_so(tmp_path: Path) -> None:
    loader = NeighborLoader(make_random_store(tmp_path / "s"), [3], "train", strategy="direct")
    sibling = loader.sibling("val")
    loader.close()
    loader.close()
    for use in (
        lambda: next(iter(loader)),
        lambda: next(iter(sibling)),
        lambda: next(loader.epoch(0)),
        lambda: loader([0]),
        lambda: loader.sibling("test"),
    ):
        with pytest.raises(StoreError, match="this loader is closed"):
            use()


def test_a_loader_whose_store_is_closed_says_so(tmp_path: Path) -> None:
    store = make_random_store(tmp_path / "s")
    loader = NeighborLoader(store, [3], "train", strategy="direct")
    store.close()
    with pytest.raises(StoreError, match="this store is closed"):
        next(iter(loader))
