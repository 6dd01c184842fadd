"""Windows: they cross epochs and outlive runs, and whatever comes in between, batches are right."""

from __future__ import annotations

import gc
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from outcrop.ahead.window import FIRST_BATCHES
from outcrop.errors import WriteError
from outcrop.loader import NeighborLoader
from outcrop.options import DiskOptions, Faults, parse_size
from outcrop.rows.policy import Policy
from outcrop.sample.sampler import Sampler
from outcrop.sample.seeds import Stream
from outcrop.store.store import GraphStore
from outcrop.tools.bench.variants import variant_named
from outcrop.train import TrainOptions, fit
from tests.conformance.contract import all_contents
from tests.stores import make_random_store, smallest_memory

EPOCHS, BATCHES = 4, 16
# An epoch has 16 batches: windows of 7 end in the middle, windows of 40 have several epochs.
MODES = [
    f"ginex:{mode}:superbatch={length}"
    for mode in ("mode=split:overlap=false", "mode=split:overlap=true", "mode=handover")
    for length in (7, 40)
] + ["ginex", "ginex:mode=split", "ginex:superbatch=9:policy=lru:mode=split",
     "ginex:superbatch=9:policy=static", "ginex:superbatch=9:topology=mmap",
     "ginex:superbatch=9:topology=memory"]  # fmt: skip


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("windows") / "g.outcrop"
    make_random_store(folder, 1000, 15_000, dim=33, train=155).close()
    return folder


@pytest.fixture
def store(path: Path) -> Iterator[GraphStore]:
    with GraphStore(path) as opened:
        yield opened


def make(store: GraphStore, strategy: str, memory: Any = None, **more: Any) -> NeighborLoader:
    """With a cache that holds a part of the rows, unless memory is given."""
    given: dict[str, Any] = {
        "num_neighbors": [4, 3], "input_nodes": "train", "batch_size": 10, "shuffle": True,
        "epochs": EPOCHS, **more,
    }  # fmt: skip

    def of(memory: Any) -> NeighborLoader:
        return NeighborLoader(store, strategy=variant_named(strategy), memory=memory, **given)

    return of(parse_size(smallest_memory(of)) + 60_000 if memory is None else memory)


def expected(store: GraphStore, nodes: str = "train") -> list[list[dict[str, Any]]]:
    loader = make(store, "memory", "1GB", input_nodes=nodes, shuffle=nodes == "train")
    return [all_contents(loader.epoch(epoch)) for epoch in range(EPOCHS)]


class Sampled:
    """Counts what is sampled, by stream, epoch and batch."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.tasks: Counter[tuple[int, int, int]] = Counter()
        self._lock = threading.Lock()
        sample = Sampler.sample

        def counted(sampler: Sampler, task: Any) -> Any:
            with self._lock:
                self.tasks[task.stream, task.epoch, task.batch] += 1
            return sample(sampler, task)

        monkeypatch.setattr(Sampler, "sample", counted)

    def of_training(self) -> list[int]:
        return [count for (stream, *_), count in self.tasks.items() if stream == Stream.TRAIN]


def windows(loader: NeighborLoader) -> int:
    """Folders that are there now: of the run's windows."""
    (scratch,) = (loader.store.path / "derived").glob(".scratch*")
    return len([each for each in scratch.iterdir() if each.is_dir()])


@pytest.mark.parametrize("strategy", MODES)
def test_they_cross_epochs(
    store: GraphStore, strategy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = expected(store)
    loader = make(store, strategy)
    sampled = Sampled(monkeypatch)
    assert [all_contents(loader) for _ in range(EPOCHS)] == wanted
    assert sorted(sampled.tasks) == [(0, e, b) for e in range(EPOCHS) for b in range(BATCHES)]
    assert set(sampled.of_training()) == {1}, "each batch is sampled once"
    assert windows(loader) == 0, "the last one is removed with the last batch"
    loader.close()


@pytest.mark.parametrize("strategy", ["ginex:superbatch=64", "ginex:mode=split:superbatch=64"])
def test_a_window_of_several_epochs_is_made_once(store: GraphStore, strategy: str) -> None:
    ahead, alone = (make(store, strategy, epochs=epochs) for epochs in (EPOCHS, None))
    for loader in (ahead, alone):
        for _ in range(EPOCHS):
            for batch in loader:
                del batch
    inspected = [["inspect" in entry.stages for entry in loader.record.epochs]
                 for loader in (ahead, alone)]  # fmt: skip
    assert inspected == [[True] + [False] * (EPOCHS - 1), [True] * EPOCHS]
    if "split" in strategy:  # where the cache is refilled, memory is what it is about
        crossing, ending = (sum(e.hits["cache"] for e in loader.record.epochs)
                            for loader in (ahead, alone))  # fmt: skip
        assert crossing >= ending, "who knows more of the future reads no more"
    ahead.close()
    alone.close()


class InParts:
    """Planning has room for few nodes, though the graph is small; lists what was planned."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("outcrop.rows.policy._SMALL_TABLE_BYTES", 0)
        self.planned: list[tuple[int, int]] = []
        """Batches that were asked for, and that there was room for."""
        plan = Policy.plan

        def watched(policy: Policy, trace: Any, *given: Any, **options: Any) -> Any:
            made = plan(policy, trace, *given, **options)
            self.planned.append((options["last"] - options["first"], made.batches))
            return made

        monkeypatch.setattr(Policy, "plan", watched)


BELADY = [strategy for strategy in MODES if "policy" not in strategy]


@pytest.mark.parametrize("strategy", BELADY)
def test_where_planning_has_little_room_they_are_planned_in_parts(
    store: GraphStore, strategy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted, validated = expected(store), expected(store, "val")[0]
    loader = make(store, strategy)
    whole = sum(charge for name, charge in loader.record.charges.items() if "ahead" in name)
    loader.close()
    parts = InParts(monkeypatch)
    loader, sampled = make(store, strategy), Sampled(monkeypatch)
    charges = loader.record.charges
    assert sum(charge for name, charge in charges.items() if "ahead" in name) < whole
    assert [all_contents(loader) for _ in range(2)] == wanted[:2]
    assert set(sampled.of_training()) == {1}, "each batch is sampled once"
    assert any(made < asked for asked, made in parts.planned)
    validation = loader.sibling("val", shuffle=False)
    for epoch in range(2, EPOCHS):
        assert all_contents(validation.epoch(0)) == validated
        assert all_contents(loader) == wanted[epoch]
    trains = [entry for entry in loader.record.epochs if entry.stream == "train"]
    assert all(entry.hits["cache"] for entry in trains)
    loader.close()


@pytest.mark.parametrize("mode", ["split:overlap=false", "split:overlap=true", "handover"])
def test_windows_become_as_short_as_can_be_planned_at_once(
    store: GraphStore, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = InParts(monkeypatch)
    loader = make(store, f"ginex:mode={mode}:superbatch=16")
    for _ in range(EPOCHS):
        for batch in loader:
            del batch
    loader.close()
    assert parts.planned[0][0] == 16
    later = parts.planned[len(parts.planned) // 2 :]
    assert max(asked for asked, _ in later) <= max(made for _, made in parts.planned) < 16
    assert sum(made < asked for asked, made in later) < len(later) / 2


@pytest.mark.parametrize("strategy", ["ginex", "ginex:mode=split:overlap=false"])
def test_the_first_batch_does_not_wait_for_a_whole_superbatch(
    store: GraphStore, strategy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    loader = make(store, strategy, "200MB")
    assert loader.record.plan["window_batches"] == EPOCHS * BATCHES
    sampled = Sampled(monkeypatch)
    batches = iter(loader)
    next(batches)
    assert len(sampled.tasks) == FIRST_BATCHES
    del batches
    loader.close()


@pytest.mark.parametrize("strategy", MODES)
def test_validation_between_epochs(
    store: GraphStore, strategy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted, validated = expected(store), expected(store, "val")[0]
    loader = make(store, strategy)
    validation = loader.sibling("val", shuffle=False)
    sampled = Sampled(monkeypatch)
    for epoch in range(EPOCHS):
        assert all_contents(loader) == wanted[epoch]
        assert all_contents(validation.epoch(0)) == validated
    # Traces survive what comes in between; one in the making, in the background, does not.
    most = 1 if loader.record.plan["made"] != "beside" else 2
    assert max(sampled.of_training()) <= most
    trains = [entry for entry in loader.record.epochs if entry.stream == "train"]
    assert all(entry.hits["cache"] for entry in trains)
    loader.close()


def test_validation_costs_training_few_of_its_hits(store: GraphStore) -> None:
    found = []
    for validates in (False, True):
        loader = make(store, "ginex:mode=split:superbatch=40")
        validation = loader.sibling("val", shuffle=False)
        for _ in range(EPOCHS):
            for batch in loader:
                del batch
            for batch in validation.epoch(0) if validates else ():
                del batch
        trains = [entry for entry in loader.record.epochs if entry.stream == "train"]
        found.append(sum(entry.hits["cache"] for entry in trains))
        loader.close()
    assert found[1] > 0.8 * found[0]


@pytest.mark.parametrize("mode", ["split:overlap=false", "split:overlap=true", "handover"])
def test_where_others_come_between_epochs_little_is_decided_in_vain(
    store: GraphStore, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    planned = []
    plan = Policy.plan

    def watched(policy: Policy, trace: Any, *given: Any, **options: Any) -> Any:
        planned.append(options["last"] - options["first"])
        return plan(policy, trace, *given, **options)

    monkeypatch.setattr(Policy, "plan", watched)
    loader = make(store, f"ginex:mode={mode}:superbatch=64", epochs=EPOCHS)
    validation = loader.sibling("val", shuffle=False)
    for _ in range(EPOCHS):
        for batches in (loader, validation.epoch(0)):
            for batch in batches:
                del batch
    loader.close()
    validated = EPOCHS * len(validation)
    # The first time nobody knows.
    assert sum(planned) == validated + 4 * BATCHES + 3 * BATCHES
    assert planned[0] == 4 * BATCHES


@pytest.mark.parametrize("strategy", MODES)
def test_a_peek(store: GraphStore, strategy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = expected(store)
    loader = make(store, strategy)
    sampled = Sampled(monkeypatch)
    assert all_contents([next(iter(loader))]) == wanted[0][:1]
    assert [all_contents(loader) for _ in range(EPOCHS)] == wanted
    # But for what was under way in the background when the look was over.
    assert sum(sampled.of_training()) <= EPOCHS * BATCHES + 40
    loader.close()


@pytest.mark.parametrize("strategy", MODES)
def test_epochs_by_their_numbers(store: GraphStore, strategy: str) -> None:
    wanted = expected(store)
    loader = make(store, strategy)
    for epoch in (2, 0, 1, 1, 3):
        assert all_contents(loader.epoch(epoch)) == wanted[epoch], epoch
    assert all_contents(loader.epoch(1, batches=5, first_batch=3)) == wanted[1][3:8]
    assert all_contents(loader.epoch(2)) == wanted[2]
    loader.close()


@pytest.mark.parametrize("strategy", MODES)
def test_resuming_in_the_middle_of_a_window(store: GraphStore, strategy: str) -> None:
    wanted = expected(store)
    loader = make(store, strategy)
    batches = iter(loader)
    assert all_contents(next(batches) for _ in range(10)) == wanted[0][:10]
    state = loader.state_dict()
    del batches
    loader.close()
    resumed = make(store, strategy)
    resumed.load_state_dict(state)
    assert all_contents(resumed) == wanted[0][10:]
    assert [all_contents(resumed) for _ in range(1, EPOCHS)] == wanted[1:]
    resumed.close()


@pytest.mark.parametrize("strategy", MODES)
def test_two_open_loops(store: GraphStore, strategy: str) -> None:
    wanted, validated = expected(store), expected(store, "val")[0]
    loader = make(store, strategy, "200MB")
    validation = loader.sibling("val", shuffle=False)
    for epoch in range(2):
        found = []
        for number, batch in enumerate(loader):
            found += all_contents([batch])
            if number == 9:  # in the middle of an epoch, and of a window
                assert all_contents(validation.epoch(0)) == validated
            del batch
        assert found == wanted[epoch]
    both = list(zip(loader.epoch(2), loader.epoch(2), strict=True))
    assert all_contents(batch for pair in both for batch in pair)[::2] == wanted[2]
    del both
    assert all_contents(loader.epoch(3)) == wanted[3]
    loader.close()


@pytest.mark.parametrize("strategy", MODES)
def test_a_loop_that_is_left_early(
    store: GraphStore, strategy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = expected(store)
    loader = make(store, strategy)
    sampled = Sampled(monkeypatch)
    for epoch in range(EPOCHS):
        batches = iter(loader)
        left = (5, 16, 1, 11)[epoch]
        assert all_contents(next(batches) for _ in range(left)) == wanted[epoch][:left]
        del batches
    # What a window in the making had sampled is not kept; what was sampled whole is.
    assert sum(sampled.of_training()) <= EPOCHS * BATCHES + 3 * 40
    assert all_contents(loader.epoch(1)) == wanted[1]
    loader.close()


@pytest.mark.parametrize("length", [5, 40])
def test_a_window_that_cannot_be_made_in_the_background_is_an_error_of_its_batch(
    path: Path, length: int
) -> None:
    strategy = f"ginex:mode=split:overlap=true:superbatch={length}"
    with GraphStore(path) as whole:
        wanted = expected(whole)
        make(whole, strategy, "200MB").close()  # the neighbour cache's layout is there
    failures = 0
    for number in range(4, 24, 3):
        faults = Faults(fail_write_at=number, error=28)
        with GraphStore(path, DiskOptions(faults=faults)) as store:
            loader = make(store, strategy, "200MB")
            for epoch in range(EPOCHS):
                try:
                    assert all_contents(loader.epoch(epoch)) == wanted[epoch]
                except WriteError:
                    failures += 1
                    assert all_contents(loader.epoch(epoch)) == wanted[epoch]
            loader.close()
    assert failures > 1


def test_closing_ends_the_window_in_the_making(path: Path) -> None:
    gc.collect()  # loaders that failed tests left
    with GraphStore(path) as opened:
        make(opened, "ginex:mode=split:overlap=true:superbatch=16", "200MB").close()
    with GraphStore(path, DiskOptions(faults=Faults(delay_us=5000))) as store:
        loader = make(store, "ginex:mode=split:overlap=true:superbatch=16", "200MB")
        for batch in loader.epoch(0):
            del batch
        start = time.perf_counter()
        loader.close()  # while the window of the next epoch is sampled
        assert time.perf_counter() - start < 10
        assert not [t for t in threading.enumerate() if t.name.startswith("outcrop-")]
        assert not list((path / "derived").glob(".scratch*"))


@pytest.mark.parametrize("mode", ["split", "handover"])
def test_training_with_validation_gives_the_weights_of_memory(store: GraphStore, mode: str) -> None:
    def weights(strategy: str) -> Any:
        options = TrainOptions(
            strategy=strategy, layers=2, hidden=8, batch_size=10, num_neighbors=(4, 3), epochs=3,
            memory="200MB", evaluate_every=1, deterministic=True, device="cpu",
        )  # fmt: skip
        return fit(store, options).model.state_dict()

    reference = weights("memory")
    for name, value in weights(f"ginex:mode={mode}").items():
        assert value.equal(reference[name]), name
