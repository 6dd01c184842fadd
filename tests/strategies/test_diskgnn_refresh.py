"""diskgnn, refresh=background: every epoch is the reference's, and two generations are the most."""

from __future__ import annotations

import errno
import os
import random
import shutil
import signal
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from outcrop.errors import BudgetError, CorruptError, OptionError, StoreError, WriteError
from outcrop.layout.pack.batched import pack_batched
from outcrop.loader import NeighborLoader
from outcrop.sample.sampler import Sampler
from outcrop.store.store import GraphStore
from outcrop.train import TrainOptions, fit
from tests.conformance.contract import all_contents
from tests.processes import program, running
from tests.stores import make_random_store, smallest_memory

EPOCHS = 5
PACKS = "outcrop.ahead.prepare.pack_batched"
STRATEGY = "diskgnn:distinct_epochs=2:refresh=background"


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("refresh") / "g.outcrop"
    make_random_store(path, 2000, 12_000, dim=40, train=203).close()
    return path


@pytest.fixture
def store(path: Path) -> Iterator[GraphStore]:
    with GraphStore(path) as opened:
        yield opened
    assert not refreshing(), "ended with its loader"
    shutil.rmtree(path / "derived", ignore_errors=True)


def loader(store: GraphStore, strategy: str = STRATEGY, **more: Any) -> NeighborLoader:
    options: dict[str, Any] = {"memory": "1GB", "epochs": EPOCHS, **more}
    return NeighborLoader(
        store, [4, 3], "train", batch_size=25, shuffle=True, strategy=strategy, **options
    )


@pytest.fixture(scope="module")
def expected(path: Path) -> list[list[dict[str, Any]]]:
    with GraphStore(path) as store:
        made = loader(store, "memory")
        return [all_contents(made.epoch(epoch)) for epoch in range(EPOCHS)]


def layouts(store: GraphStore) -> list[str]:
    """Kinds of what is there."""
    names = (p.name for p in (store.path / "derived").glob("*") if not p.name.startswith("."))
    return sorted(name.partition("-")[0] for name in names)


def building(store: GraphStore) -> list[Path]:
    return list((store.path / "derived").glob(".*.building"))


def refreshing() -> list[threading.Thread]:
    return [t for t in threading.enumerate() if t.name == "outcrop-refresh"]


@pytest.mark.parametrize(
    ("more", "budget"),
    [("", "1GB"), ("", "least"), (":cache_share=0.01", "1GB"), (":topology=cache", "least"),
     (":packing=false", "least")],
)  # fmt: skip
def test_every_epoch_is_the_reference_s_and_prepared(
    store: GraphStore,
    expected: list[list[dict[str, Any]]],
    monkeypatch: pytest.MonkeyPatch,
    budget: str,
    more: str,
) -> None:
    threads = set()
    sample = Sampler.sample

    def watched(self: Sampler, task: Any) -> Any:
        threads.add(threading.current_thread().name)
        return sample(self, task)

    def make(memory: Any) -> NeighborLoader:
        return loader(store, STRATEGY + more, memory=memory)

    made = make(smallest_memory(make) if budget == "least" else budget)
    assert sum(made.record.charges.values()) <= made.record.memory_bytes
    monkeypatch.setattr(Sampler, "sample", watched)
    kept = 0
    for epoch in range(EPOCHS):
        found = []
        for batch in made.epoch(epoch):
            found += all_contents([batch])
            kept = max(kept, layouts(store).count("trace"))
            del batch
        assert found == expected[epoch], epoch
    assert threads == {"outcrop-sample"}, "nothing was sampled as it came: graph load"
    assert 1 <= kept <= 2, "how soon the next one is done is the machine's"
    made.close()
    assert layouts(store) in ([], ["neighbors"]) and not building(store)


def test_validation_and_direct_calls_do_not_disturb_it(store: GraphStore) -> None:
    found = []
    for strategy in ("memory", STRATEGY):
        made = loader(store, strategy)
        val = made.sibling("val", shuffle=False)
        contents = []
        for epoch in (0, 1, 2, 0, 4):  # back and on again: prepared anew
            contents.append(all_contents(made.epoch(epoch)))
            assert layouts(store).count("pack") <= 2
            contents.append(all_contents(val))
            contents.append(all_contents([made([3, 1])]))
        found.append(contents)
        made.close()
    assert found[0] == found[1]


def test_a_loop_that_is_still_open_keeps_its_generation(
    store: GraphStore, expected: list[list[dict[str, Any]]]
) -> None:
    made = loader(store)
    first = made.epoch(1)
    contents = all_contents([next(first)])
    assert all_contents(made.epoch(2)) == expected[2]  # sampled as it comes
    assert contents + all_contents(first) == expected[1]
    assert all_contents(made.epoch(3)) == expected[3]
    made.close()


def test_more_epochs_than_were_announced(
    store: GraphStore, expected: list[list[dict[str, Any]]]
) -> None:
    for epochs in (None, 3):
        made = loader(store, epochs=epochs)
        assert [all_contents(made.epoch(epoch)) for epoch in range(EPOCHS)] == expected
        made.close()
        shutil.rmtree(store.path / "derived")


def test_a_run_that_ends_early_leaves_its_generation_to_the_next(
    store: GraphStore, expected: list[list[dict[str, Any]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = loader(store)
    for epoch in range(2):
        assert all_contents(made.epoch(epoch)) == expected[epoch]
    begun = made.epoch(2)
    next(begun)
    while "pack-" in " ".join(p.name for p in building(store)) or layouts(store).count("pack") < 2:
        time.sleep(0.01)  # until the next one is there as well
    begun.close()  # type: ignore[attr-defined]
    made.close()
    assert layouts(store) == ["pack", "pack", "trace", "trace"]
    again = loader(store)
    monkeypatch.setattr(Sampler, "sample", None)
    for epoch in (2, 3, 4):
        assert all_contents(again.epoch(epoch)) == expected[epoch]
    again.close()
    assert layouts(store) == []


def in_background(call: Any, instead: Any) -> Any:
    """Does something else on the refresh's thread, and on those that sample for it."""

    def either(*args: Any, **options: Any) -> Any:
        background = threading.current_thread().name in ("outcrop-refresh", "outcrop-sample")
        return (instead if background else call)(*args, **options)

    return either


def _failing(code: int) -> Callable[..., None]:
    def fail(*_: object) -> None:
        raise WriteError(code, os.strerror(code), "chunks.bin", 0, 4096)

    return fail


def test_a_failure_is_raised_where_the_epochs_are_needed(
    store: GraphStore, expected: list[list[dict[str, Any]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = loader(store)
    with monkeypatch.context() as patch:
        patch.setattr(PACKS, in_background(pack_batched, _failing(errno.EIO)))
        for epoch in range(2):
            assert all_contents(made.epoch(epoch)) == expected[epoch]
        for _ in range(2):
            with pytest.raises(WriteError, match=r"chunks\.bin: .*Input/output error"):
                next(made.epoch(2))
        assert not building(store)
    assert all_contents(made.epoch(2)) == expected[2]
    made.close()


def test_a_drive_that_becomes_full_costs_speed_and_not_the_run(
    store: GraphStore,
    expected: list[list[dict[str, Any]]],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    made = loader(store)
    with monkeypatch.context() as patch:
        patch.setattr(PACKS, in_background(pack_batched, _failing(errno.ENOSPC)))
        for epoch in range(3):
            assert all_contents(made.epoch(epoch)) == expected[epoch]
        made.close()
    assert "epoch 2 could not be prepared" in caplog.text and "No space left" in caplog.text


def test_a_generation_that_cannot_be_opened_is_never_half_used(store: GraphStore) -> None:
    made = loader(store, STRATEGY + ":cache_share=0.01")
    list(made.epoch(0))
    while layouts(store).count("pack") < 2:
        time.sleep(0.01)
    for pack in (store.path / "derived").glob("pack-*"):
        with (pack / "chunks.bin").open("r+b") as file:
            file.seek(-1, os.SEEK_END)
            file.write(b"x")  # of the cache
    with pytest.raises(CorruptError, match=r"chunks\.bin: the cache: .*remove .*pack-"):
        next(made.epoch(2))
    for batches in (made.epoch(2), made.sibling("val")):
        with pytest.raises(StoreError, match="make the loader again"):
            next(iter(batches))
    made.close()


@pytest.mark.parametrize("stage", ["sample", "pack"])
def test_closing_ends_it_at_once(
    store: GraphStore, monkeypatch: pytest.MonkeyPatch, stage: str
) -> None:
    """What is under way waits a second, so that it is under way when the loader is closed."""
    begun = threading.Event()

    def slow(call: Any) -> Any:
        def slowly(*args: Any) -> Any:
            begun.set()
            time.sleep(1)
            return call(*args)

        return in_background(call, slowly)

    made = loader(store)
    if stage == "sample":
        monkeypatch.setattr(Sampler, "sample", slow(Sampler.sample))
    else:
        monkeypatch.setattr(PACKS, slow(pack_batched))
    batches = made.epoch(0)
    next(batches)
    begun.wait()
    batches.close()  # type: ignore[attr-defined]
    made.close()
    assert not refreshing()
    assert layouts(store) == (
        ["pack", "trace"] if stage == "sample" else ["pack", "trace", "trace"]
    )
    # Packing is gone on with; samples are drawn anew.
    assert [p.name[:5] for p in building(store)] == ([] if stage == "sample" else [".pack"])


def test_half_of_a_disk_budget_is_for_each_generation(store: GraphStore) -> None:
    strategy = STRATEGY + ":cpu_cache=false"
    with pytest.raises(BudgetError, match=r"of two generations one half: .*samples") as refused:
        loader(store, strategy, disk="300kB")
    least = str(refused.value).rsplit(" ", 1)[1]
    made = loader(store, strategy, disk=2 * int(least.removesuffix("MB")) * 10**6)
    assert len(list(made.epoch(0))) == 9
    made.close()


def test_options_that_repeat_samples_are_refused(store: GraphStore) -> None:
    for more in ("cycle=true", "samples=mine"):
        with pytest.raises(OptionError, match="never repeats"):
            loader(store, f"diskgnn:refresh=background:{more}")


def test_training_resumes_in_a_later_generation(store: GraphStore, tmp_path: Path) -> None:
    options: dict[str, Any] = {
        "epochs": 3, "layers": 2, "hidden": 8, "num_neighbors": (4, 3), "batch_size": 50,
        "evaluate": "none",
    }  # fmt: skip
    reference = fit(store, TrainOptions(**options))
    options |= {"strategy": "diskgnn:refresh=background", "checkpoint_dir": str(tmp_path / "c")}
    fit(store, TrainOptions(**{**options, "epochs": 2}))
    result = fit(store, TrainOptions(**options, resume=True))
    assert [e.loss for e in result.history] == [e.loss for e in reference.history]
    assert layouts(store) == [] and not building(store)


LOOPS = """
    import sys
    import numpy as np
    from outcrop.run.runner import Runner
    from outcrop.sample.sampler import Sampling
    from outcrop.sample.seeds import SeedOrder, Stream
    from outcrop.run.schedule import Schedule
    from outcrop.store.store import GraphStore

    store = GraphStore(sys.argv[1])
    nodes = np.array(store.split("train"))
    seeds = SeedOrder(nodes, batch_size=25, stream=Stream.TRAIN, seed=0, shuffle=True)
    runner = Runner(store, Sampling.of([4, 3]), seeds, strategy=sys.argv[2], memory="1GB", epochs=5)
    print("ready", flush=True)
    for epoch in range(int(sys.argv[3]), 5):
        for batch in Schedule(runner, seeds).epoch(epoch):
            print(epoch, flush=True)
"""


def test_killed_at_any_moment_it_goes_on_and_leaves_nothing(
    store: GraphStore, expected: list[list[dict[str, Any]]]
) -> None:
    rng = random.Random(5)
    epoch = 0
    for _ in range(3):
        command = program(textwrap.dedent(LOOPS), str(store.path), STRATEGY)
        with running([*command, str(epoch)], stderr=None) as process:
            assert process.stdout is not None
            for _ in range(rng.randrange(2, 20)):
                line = process.stdout.readline().strip()
                epoch = int(line) if line.isdigit() else epoch
            os.kill(process.pid, signal.SIGKILL)
    made = loader(store)
    for number in range(epoch, EPOCHS):
        assert all_contents(made.epoch(number)) == expected[number]
    made.close()
    assert layouts(store) == [] and not building(store)
