"""diskgnn's device cache: the same batches, wherever rows are; on the CPU by the same code."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from outcrop.errors import BudgetError, CorruptError, OptionError
from outcrop.loader import NeighborLoader
from outcrop.run.runner import Runner
from outcrop.sample.sampler import Sampling
from outcrop.store.format import ENCODINGS
from outcrop.store.store import GraphStore
from outcrop.tools.bench.variants import variant_named
from tests.conformance.test_strategies import check
from tests.stores import make_random_store, smallest_memory

BASE: dict[str, Any] = {"num_neighbors": [4, 3], "input_nodes": "train", "batch_size": 25}
TWO = "diskgnn:distinct_epochs=2"
VARIANTS = [
    "1rows",
    "40kB",
    "2000rows",
    "300rows",
    "300rows:packing=false",
    "300rows:cpu_cache=false",
    "1rows:cpu_cache=false",
    "300rows:raw=true",
    "2000rows:raw=true",
    "300rows:pipeline=off:verify_rows=true",
]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("device") / "g.outcrop"
    make_random_store(path, 2000, 12_000, dim=100, train=203).close()
    return path


@pytest.fixture
def store(path: Path) -> Iterator[GraphStore]:
    with GraphStore(path) as opened:
        yield opened
    shutil.rmtree(path / "derived", ignore_errors=True)


def loader(store: GraphStore, strategy: str, **options: Any) -> NeighborLoader:
    options = {"memory": "1GB", "shuffle": True, **BASE, **options}
    return NeighborLoader(store, strategy=variant_named(strategy), **options)


# An epoch beyond the prepared ones and a direct call are in it: both are looked up.
@pytest.mark.parametrize("variant", VARIANTS)
def test_any_size_gives_the_reference_batches(store: GraphStore, variant: str) -> None:
    budget = "least" if variant.startswith("300") else "1GB"
    check(store, f"{TWO}:device_cache={variant}", budget, epochs=3, shuffle=True, **BASE)


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_rows_of_every_encoding_are_decoded_alike(tmp_path: Path, encoding: str) -> None:
    with make_random_store(tmp_path / "g", dim=7, feature_dtype=encoding) as store:
        check(store, "diskgnn:device_cache=100rows:cache_share=0.001", "least", **BASE)


@pytest.mark.parametrize("replace", [False, True])
def test_shadow_subgraphs_repeat_nodes(store: GraphStore, replace: bool) -> None:
    options = {**BASE, "num_neighbors": [4, 4], "kind": "shadow", "replace": replace}
    strategy = f"{TWO}:device_cache=300rows:cpu_cache=false"
    check(store, strategy, "1GB", shuffle=True, **options)


def test_rows_longer_than_the_blocks_in_which_the_cache_is_read(tmp_path: Path) -> None:
    with make_random_store(tmp_path / "g", 20, 60, dim=600_001, train=6) as store:
        options = {"num_neighbors": [2], "input_nodes": "train", "batch_size": 3}
        check(store, "diskgnn:device_cache=3rows", "1GB", epochs=1, **options)


def test_batches_that_share_rows_in_segments(tmp_path: Path) -> None:
    strategy = f"{TWO}:device_cache=100rows:cpu_cache=false"
    with make_random_store(tmp_path / "g", 2000, 12_000, dim=100, train=203) as store:
        with pytest.raises(BudgetError) as refusal:
            loader(store, strategy, disk="600kB")
        least = str(refusal.value).rsplit(" ", 1)[1]
        made = loader(store, strategy, disk=least)
        assert made.record.plan["segments"] and made.record.plan["device_rows"] == 100
        made.close()
        check(store, strategy, "1GB", shuffle=True, disk=least, **BASE)


def test_the_hottest_rows_are_the_devices_and_the_next_the_cpus(store: GraphStore) -> None:
    wanted = np.zeros(store.num_nodes, np.int64)
    for epoch in range(2):
        for batch in loader(store, "memory").epoch(epoch):
            wanted[batch.n_id.numpy()] += 1
    found = np.sort(wanted)[::-1]
    made = loader(store, f"{TWO}:device_cache=100rows:cpu_cache=false:packing=false")
    hits = {"device cache": 0, "cpu cache": 0}
    for epoch in range(2):
        for _ in made.epoch(epoch):
            pass
        for tier in hits:
            hits[tier] += made.record.epochs[-1].hits[tier]
    made.close()
    assert hits == {"device cache": found[:100].sum(), "cpu cache": 0}
    made = loader(store, f"{TWO}:device_cache=100rows")
    for batch in made:
        del batch
    [counted] = made.record.epochs
    made.close()
    assert sum(counted.hits.values()) == counted.rows  # all rows fit into both
    assert 0 < counted.hits["cpu cache"] < counted.rows
    assert made.record.plan["device_rows"] == 100
    assert made.record.charges["device cache"] >= 100 * 400


def test_epochs_that_are_prepared_beside_training_bring_their_own_rows(store: GraphStore) -> None:
    strategy = "diskgnn:refresh=background:device_cache=200rows:verify_rows=true"
    check(store, strategy, "1GB", epochs=3, shuffle=True, **BASE)


def test_a_pack_without_a_device_cache_is_another_layout(store: GraphStore) -> None:
    def packs() -> list[Path]:
        return sorted((store.path / "derived").glob("pack-*"))

    loader(store, "diskgnn:cache_share=0.01").close()
    [plain] = packs()
    assert not (plain / "device.npy").exists()
    loader(store, "diskgnn:cache_share=0.01:device_cache=50rows").close()
    assert len(packs()) == 2
    loader(store, "diskgnn:cache_share=0.01:device_cache=50rows").close()
    assert len(packs()) == 2


def test_an_interrupted_packing_goes_on_with_its_rows(
    store: GraphStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def dies(*_: object) -> None:
        raise KeyboardInterrupt

    strategy = f"{TWO}:device_cache=100rows:cache_share=0.0001"
    with monkeypatch.context() as patch:
        patch.setattr("outcrop.ahead.prepare.pack_batched", dies)
        with pytest.raises(KeyboardInterrupt):
            loader(store, strategy)
    monkeypatch.setattr("outcrop.ahead.prepare.make_plan", None)  # it is there
    check(store, strategy, "1GB", shuffle=True, **BASE)


def test_a_damaged_list_of_its_nodes_is_found(store: GraphStore) -> None:
    strategy = "diskgnn:device_cache=100rows"
    loader(store, strategy).close()
    [found] = (store.path / "derived").glob("pack-*/device.npy")
    data = bytearray(found.read_bytes())
    data[-5] ^= 1
    found.write_bytes(data)
    with pytest.raises(CorruptError, match=r"device.npy: differs from its checksum; remove .*pack"):
        loader(store, strategy)


def test_what_is_no_size_is_refused(store: GraphStore) -> None:
    for text in ("many", "-1", "1.5rows", "rows"):
        with pytest.raises(OptionError, match="device_cache must be a size such as 2GB"):
            loader(store, f"diskgnn:device_cache={text}")


def test_a_cache_on_the_cpu_belongs_to_the_budget(store: GraphStore) -> None:
    made = loader(store, "diskgnn:device_cache=800kB")
    assert made.record.charges["device cache"] > 0.99 * 800_000
    made.close()
    with pytest.raises(BudgetError, match="the smallest that would do is"):
        loader(store, "diskgnn:device_cache=800kB", memory="1MB")


def test_a_cache_elsewhere_does_not(store: GraphStore) -> None:
    seeds = loader(store, "memory").schedule.seeds
    charges = []
    for device in ("cpu", "cuda"):
        runner = Runner(store, Sampling.of([4, 3]), seeds, memory="1GB", device=device,
                    strategy="diskgnn:device_cache=500rows")  # fmt: skip
        charges.append(runner.record.charges["device cache"])
        runner.close()
    assert charges[0] - charges[1] >= 500 * 400 and charges[1] == 500 * 9


def test_batches_are_freed_while_others_are_held_by_nobody(store: GraphStore) -> None:
    """What x was put together from goes back, so that the smallest budget suffices for an epoch."""
    strategy = "diskgnn:device_cache=300rows"
    least = smallest_memory(lambda memory: loader(store, strategy, memory=memory))
    made = loader(store, strategy, memory=least)
    held = [batch.x.clone() for batch in made]
    made.close()
    assert sum(map(len, held)) == made.record.epochs[0].rows


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_what_is_prepared_for_a_gpu_may_be_made_where_there_is_none(store: GraphStore) -> None:
    made = loader(store, "diskgnn:device_cache=50rows", device="cuda")
    with pytest.raises(OptionError, match="torch sees no GPU"):
        next(iter(made))
    made.close()
