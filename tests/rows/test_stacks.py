"""Rows that stack: what is allowed gives the batches of memory; the rest is refused."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import pytest

from outcrop.errors import OptionError
from outcrop.loader import NeighborLoader, ShaDowLoader
from outcrop.options import DiskOptions
from outcrop.plan.tiers import check_stack
from outcrop.rows.array import ArrayRows
from outcrop.rows.device import DeviceCache
from outcrop.rows.drive import DriveRows
from outcrop.rows.packed import PackedTiers
from outcrop.rows.shared import SharedSlots
from outcrop.rows.slots import PlannedSlots, StaticSlots
from outcrop.store.store import GraphStore
from tests.conformance.contract import all_contents
from tests.stores import make_random_store, smallest_memory

NODES, EPOCHS = 1000, 2
ENCODINGS = ["float32", "float16", "int8"]
DEVICE, CACHE = "device_cache=90rows", "cache=170rows"
OWN = ["direct", "ginex:superbatch=3", "ginex:mode=split:superbatch=3:overlap=false", "gnndrive",
       "gnndrive:buffer=0.3:extractors=2"]  # fmt: skip
STACKS = [
    *(f"{own}:{above}" for own in OWN for above in (DEVICE, CACHE, f"{DEVICE}:{CACHE}")),
    *(
        f"{own}:{DEVICE}"
        for own in ("memory", "mmap", "pagraph", "diskgnn", "diskgnn:packing=false")
    ),
]


@pytest.fixture(scope="module", params=ENCODINGS)
def path(request: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("stacks") / f"{request.param}.outcrop"
    make_random_store(folder, NODES, 12_000, dim=37, train=150, feature_dtype=request.param).close()
    return folder


def make(store: GraphStore, strategy: str, memory: Any = "200MB", **more: Any) -> Any:
    given: dict[str, Any] = {"batch_size": 20, "shuffle": True, "epochs": EPOCHS, **more}
    return NeighborLoader(store, [4, 3], "train", strategy=strategy, memory=memory, **given)


@pytest.mark.parametrize("engine", ["auto", "pool"])
@pytest.mark.parametrize("strategy", STACKS)
def test_a_stack_gives_the_batches_of_memory(path: Path, strategy: str, engine: Any) -> None:
    with GraphStore(path, DiskOptions(engine=engine)) as store:
        wanted = [all_contents(make(store, "memory").epoch(epoch)) for epoch in range(EPOCHS)]

        def of(memory: Any) -> Any:
            return make(store, f"{strategy}:verify_rows=true", memory)

        for memory in ("200MB", smallest_memory(of)):
            loader = of(memory)
            assert [all_contents(loader) for _ in range(EPOCHS)] == wanted
            for entry in loader.record.epochs:
                assert sum(entry.hits.values()) + entry.fetched_rows == entry.rows
                assert (entry.hits.get("device cache", 0) > 0) == (DEVICE in strategy)
                assert CACHE not in strategy or entry.hits["cache"] > 0
            validation = loader.sibling("val", shuffle=False)
            reference = make(store, "memory").sibling("val", shuffle=False)
            assert all_contents(validation.epoch(0)) == all_contents(reference.epoch(0))
            loader.close()


@pytest.mark.parametrize("strategy", STACKS)
def test_nodes_that_a_batch_has_twice(path: Path, strategy: str) -> None:
    with GraphStore(path) as store:
        options: dict[str, Any] = {"batch_size": 8, "memory": "200MB", "epochs": 1}
        reference = ShaDowLoader(store, 2, 3, "train", strategy="memory", **options)
        loader = ShaDowLoader(store, 2, 3, "train", strategy=strategy, **options)
        assert all_contents(loader.epoch(0)) == all_contents(reference.epoch(0))
        loader.close()


def test_a_tier_above_takes_its_rows_from_what_is_below(tmp_path: Path) -> None:
    with make_random_store(tmp_path / "g", NODES, 12_000, dim=37, train=150) as store:
        hits: dict[str, dict[str, int]] = {}
        for above in ("device_cache=0", DEVICE, f"{DEVICE}:{CACHE}", "cache=260rows"):
            loader = make(store, f"direct:{above}")
            for batch in loader.epoch(0):
                del batch
            (entry,) = loader.record.epochs
            hits[above] = entry.hits
            assert entry.bytes_wanted == entry.fetched_rows * 37 * 4
        assert hits["device_cache=0"] == {}
        # On the device the first 90, in memory the 170 after them: together the first 260.
        assert sum(hits[f"{DEVICE}:{CACHE}"].values()) == hits["cache=260rows"]["cache"]
        assert hits[DEVICE]["device cache"] == hits[f"{DEVICE}:{CACHE}"]["device cache"]


@pytest.mark.parametrize(
    ("strategy", "message"),
    [
        ("gnndrive:x=slots:device_cache=10rows", "x=slots leaves rows in its slots"),
        ("gnndrive:x=slots:cache=10rows", "x=slots leaves rows in its slots"),
        ("memory:cache=10rows", "all rows are at an address already"),
        ("mmap:cache=10rows", "all rows are at an address already"),
        ("pagraph:cache=10rows", "one of the same kind"),
        ("diskgnn:cache=10rows", "packs choose what is in memory"),
        ("direct:cache=many", "cache must be a size such as 2GB"),
    ],
)
def test_what_makes_no_sense_is_refused(tmp_path: Path, strategy: str, message: str) -> None:
    with (
        make_random_store(tmp_path / "g", 100, 500) as store,
        pytest.raises(OptionError, match=message),
    ):
        make(store, strategy)


def test_the_stacks_that_are_allowed_are_these() -> None:
    """Static tiers, then at most one that changes, then a bottom."""
    drive = DriveRows()
    static: dict[str, Any] = {
        "": lambda rows: rows,
        "device": lambda rows: DeviceCache(1, rows),
        "slots": lambda rows: StaticSlots(1, rows),
        "both": lambda rows: DeviceCache(1, StaticSlots(1, rows)),
    }
    lower = [drive, ArrayRows(loaded=True), PackedTiers(1), PlannedSlots(100), SharedSlots(1, 1)]
    for (_, above), rows in product(static.items(), lower):
        check_stack(above(rows))
    wrong: list[Any] = [
        PlannedSlots(100, over=SharedSlots(1, 1)),  # type: ignore[arg-type]
        SharedSlots(1, 1, over=PlannedSlots(100)),  # type: ignore[arg-type]
        SharedSlots(1, 1, over=StaticSlots(1)),  # type: ignore[arg-type]
        PlannedSlots(100, over=DeviceCache(1, drive)),  # type: ignore[arg-type]
    ]
    for rows in wrong:
        with pytest.raises(OptionError, match="rows cannot stack so"):
            check_stack(rows)
