"""Labels that are read batch by batch: the same batches, within the memory that is charged."""

from __future__ import annotations

import errno
import os
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from outcrop.errors import CancelledError, CorruptError, ReadError
from outcrop.loader import NeighborLoader, ShaDowLoader
from outcrop.memory import context
from outcrop.options import DiskOptions, Faults
from outcrop.store.labels import LabelReader, label_read_bytes
from outcrop.store.store import GraphStore
from outcrop.strategies import STRATEGIES
from outcrop.strategies.agnes import AGNES
from outcrop.train.loop import fit
from outcrop.train.options import TrainOptions
from tests.conformance.contract import all_contents, check_against_store
from tests.damage import damage
from tests.stores import make_random_store, rewrite_array, smallest_memory

KINDS = [("classes", None), ("multilabel", 5), ("values", None), ("values", 3)]
ALL: list[Any] = [*STRATEGIES, "gnndrive:x=slots", "ginex:mode=split", AGNES]


@pytest.fixture
def read_labels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Labels stay on disk, however few they are."""
    read_all(monkeypatch)


def read_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(context, "KEPT_LABEL_BYTES", 0)
    monkeypatch.setattr(context, "LABELS_PART", 2**62)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("labels") / "s"
    make_random_store(folder, 600, 6000, train=95).close()
    return folder


@pytest.fixture
def store(path: Path) -> Iterator[GraphStore]:
    with GraphStore(path) as opened:
        yield opened


def loader(store: GraphStore, strategy: Any, memory: Any = "100MB", **more: Any) -> NeighborLoader:
    """Ten batches, of which the last is short."""
    return NeighborLoader(
        store, [4, 3], "train", batch_size=10, shuffle=True, strategy=strategy, memory=memory,
        epochs=2, **more,
    )  # fmt: skip


def batches(store: GraphStore, strategy: Any, memory: Any = "100MB") -> list[dict[str, Any]]:
    with closing(loader(store, strategy, memory)) as made:
        found = [all_contents(made.epoch(epoch)) for epoch in range(2)]
        return [*found[0], *found[1], *all_contents([made([5])])]


# Which are read


def settled(store: GraphStore) -> context.Context:
    with closing(loader(store, "direct")) as made:
        return made.runner._settled.context


@pytest.mark.parametrize(
    ("label_mb", "memory_mb", "read"),
    [
        (0, 1, False),
        (60, 1, False),
        (100, 100, True),
        (100, 799, True),
        (100, 800, False),
        (2800, 16_000, True),
        (2800, 32_000, False),
    ],
)
def test_labels_are_read_where_they_would_take_a_large_part_of_memory(
    store: GraphStore, label_mb: int, memory_mb: int, read: bool
) -> None:
    found = settled(store)
    graph = replace(found.graph, label_bytes=label_mb * 10**6)
    assert replace(found, graph=graph, memory_bytes=memory_mb * 10**6).reads_labels == read


@pytest.mark.usefixtures("read_labels")
def test_only_what_reading_takes_is_charged(store: GraphStore) -> None:
    with closing(loader(store, "direct")) as made:
        charges = made.record.charges
    assert "labels" not in charges
    nodes = settled(store).batch.nodes
    assert charges["label reads"] == nodes * store.facts.label_read_bytes


@pytest.mark.parametrize(("targets", "width"), KINDS)
def test_what_is_charged_is_taken(tmp_path: Path, targets: str, width: int | None) -> None:
    count = 100_000
    with make_random_store(tmp_path / "s", count, 10, targets=targets, width=width) as store:
        reader, nodes = store.stored_labels().reader(), np.arange(count)[::-1].copy()
        wanted = store.targets(nodes)
        y = np.empty_like(wanted)
        tracemalloc.start()
        reader.read(nodes, y)
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert np.array_equal(y, wanted, equal_nan=targets != "classes")
        charged = count * label_read_bytes(store.manifest.targets)
        assert 0.7 * charged < most < charged + 400_000


# The same batches


@pytest.mark.parametrize("strategy", ALL, ids=str)
@pytest.mark.parametrize(("targets", "width"), KINDS)
def test_batches_are_those_with_labels_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, strategy: Any, targets: str, width: int | None
) -> None:
    with make_random_store(
        tmp_path / "s", 600, 6000, train=95, targets=targets, width=width
    ) as store:
        wanted = batches(store, "memory", "1GB")
        read_all(monkeypatch)
        assert batches(store, strategy) == wanted
        least = smallest_memory(lambda memory: loader(store, strategy, memory))
        assert batches(store, strategy, least) == wanted


@pytest.mark.usefixtures("read_labels")
@pytest.mark.parametrize("strategy", ["direct", "gnndrive"])
def test_loaders_without_features_and_with_shadow(tmp_path: Path, strategy: str) -> None:
    with make_random_store(tmp_path / "s", 600, 6000, train=95, dim=None) as store:
        made = loader(store, strategy, edge_ids=True)
        for batch in made:
            check_against_store(batch, store)
            del batch
        made.close()
        shadow = ShaDowLoader(
            store, 2, 4, input_nodes="train", batch_size=10, strategy=strategy, memory="100MB",
            edge_ids=True,
        )  # fmt: skip
        for batch in shadow:
            check_against_store(batch, store)
            del batch
        shadow.close()


def test_training_learns_the_same(store: GraphStore, monkeypatch: pytest.MonkeyPatch) -> None:
    options = TrainOptions(
        strategy="gnndrive", epochs=1, layers=2, hidden=8, num_neighbors=(4, 3), batch_size=20,
        deterministic=True,
    )  # fmt: skip

    def scores() -> list[Any]:
        found = fit(store, options)
        assert ("labels" in found.record.charges) == (not settled(store).reads_labels)
        return [found.val, found.test, *(epoch.loss for epoch in found.history)]

    wanted = scores()
    read_all(monkeypatch)
    assert scores() == wanted


@pytest.mark.usefixtures("read_labels")
def test_two_loops_at_once(store: GraphStore) -> None:
    made = loader(store, "gnndrive")
    wanted = all_contents(made.epoch(0))
    for first, second in zip(made.epoch(0), made.epoch(0), strict=True):
        assert all_contents([first, second]) == [wanted[0]] * 2
        wanted = wanted[1:]
        del first, second
    made.close()


# What goes wrong


def failing(path: Path, strategy: Any, fail_at: int, wanted: list[dict[str, Any]]) -> str:
    """What the error says, after which the same loader goes on; empty: there was none."""
    faults = Faults(fail_read_at=fail_at, error=errno.EIO)
    with GraphStore(path, DiskOptions(faults=faults)) as store:
        try:
            made = loader(store, strategy)
        except ReadError as error:
            return str(error)
        with closing(made):
            try:
                all_contents(made.epoch(0))
            except ReadError as error:
                assert error.errno == errno.EIO
                assert all_contents(made.epoch(0)) == wanted
                return str(error)
    return ""


@pytest.mark.usefixtures("read_labels")
@pytest.mark.parametrize(
    "strategy", ["memory", "direct", "ginex", "gnndrive", "diskgnn", AGNES], ids=str
)
def test_a_drive_that_fails_is_an_error_and_the_next_loop_is_right(
    path: Path, strategy: Any
) -> None:
    with GraphStore(path) as store:
        loader(store, strategy).close()  # what it makes ahead is there from now on
    with GraphStore(path) as store, closing(loader(store, strategy)) as made:
        wanted = all_contents(made.epoch(0))
        reads = store.counters.read_requests
    places = range(1, reads, max(reads // 20, 1))
    said = [failing(path, strategy, fail_at, wanted) for fail_at in places]
    assert any("labels.npy" in message for message in said)


@pytest.mark.usefixtures("read_labels")
def test_a_file_that_was_cut_is_named(tmp_path: Path) -> None:
    with make_random_store(tmp_path / "s", 5000, 20_000) as store:
        made = loader(store, "direct")
        os.truncate(store.file("labels"), 8192)
        with pytest.raises(ReadError, match=r"labels\.npy"):
            all_contents(made)
        made.close()


def corrupt(path: Path, change: Callable[[Any], None], **more: Any) -> str:
    make_random_store(path, **more).close()
    rewrite_array(path, "labels", change)
    with GraphStore(path) as store, pytest.raises(CorruptError) as raised:
        loader_of_all = NeighborLoader(store, [2], batch_size=50, memory="64MB")
        with closing(loader_of_all):
            all_contents(loader_of_all)
    return str(raised.value)


@pytest.mark.usefixtures("read_labels")
@pytest.mark.parametrize(
    ("more", "bad", "message"),
    [
        ({}, 77, "node 48 has label 77, but there are 4 classes"),
        ({"targets": "multilabel", "width": 5}, 2, "node 9 has 2 for label 3"),
        ({"targets": "values", "width": 5}, np.inf, "node 9 has inf for value 3"),
    ],
)
def test_a_number_that_is_no_label_is_found(
    tmp_path: Path, more: dict[str, Any], bad: float, message: str
) -> None:
    def change(labels: Any) -> None:
        labels.reshape(-1)[48] = bad

    assert f"labels.npy: {message}" in corrupt(tmp_path / "s", change, **more)


@pytest.mark.usefixtures("read_labels")
@pytest.mark.parametrize("strategy", ["memory", "gnndrive"])
def test_damaged_labels_are_found_with_check(tmp_path: Path, strategy: str) -> None:
    with make_random_store(tmp_path / "s", 600, 6000, train=95) as store:
        wanted = batches(store, strategy)
    with GraphStore(tmp_path / "s") as store, closing(loader(store, strategy, check=True)) as made:
        assert all_contents(made.epoch(0)) == wanted[:10]
    with GraphStore(tmp_path / "s") as store:
        damage(store, "labels")
        made = loader(store, strategy, check=True)
        with closing(made), pytest.raises(CorruptError, match=r"labels\.npy: piece 0"):
            all_contents(made)


@pytest.mark.usefixtures("read_labels")
def test_a_loop_that_is_left_waits_for_no_labels(path: Path) -> None:
    slow = DiskOptions(engine="pool", workers=1, gap_bytes=0, faults=Faults(delay_us=20_000))
    with GraphStore(path, slow) as store:
        made = loader(store, "direct")
        left = iter(made)
        next(left)
        start = time.perf_counter()
        left.close()  # type: ignore[attr-defined]
        made.close()
        assert time.perf_counter() - start < 1.5


def test_a_read_under_way_can_be_cancelled_and_others_go_on(tmp_path: Path) -> None:
    make_random_store(tmp_path / "s", 200_000, 10).close()
    slow = DiskOptions(
        engine="pool", workers=1, merge=False, faults=Faults(delay_us=2000), access="direct"
    )
    nodes = np.arange(0, 200_000, 512)
    with GraphStore(tmp_path / "s", slow) as store:
        labels = store.stored_labels()
        first, second = labels.reader(), labels.reader()
        raised: list[Exception] = []

        def read(reader: LabelReader) -> None:
            try:
                reader.read(nodes, np.empty(len(nodes), np.int64))
            except CancelledError as error:
                raised.append(error)

        thread = threading.Thread(target=read, args=(first,))
        thread.start()
        time.sleep(0.02)
        first.cancel()
        thread.join(5)
        assert not thread.is_alive() and len(raised) == 1
        read(first)
        assert "labels.npy" in str(raised[1])
        read(second)
        assert len(raised) == 2
