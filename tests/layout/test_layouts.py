"""Derived layouts: none is made of damaged bytes, and verify finds those that are damaged."""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import outcrop
from outcrop.errors import CorruptError
from outcrop.layout.pack import batched, scatter
from outcrop.layout.pack.reader import Pack
from outcrop.loader import NeighborLoader
from outcrop.store.derived import find_garbage
from outcrop.store.format import seal, unseal
from outcrop.store.store import GraphStore
from tests.conformance.contract import all_contents
from tests.damage import damage, overwrite
from tests.stores import make_random_store

LAYOUTS = [
    ("diskgnn", "features"),
    ("diskgnn", "indices"),
    ("diskgnn", "indptr"),
    ("diskgnn:topology=cache:packing=false", "indices"),
    ("ginex", "indices"),
    ("ginex", "indptr"),
    ("pagraph", "indices"),
    ("gnndrive:topology=cache", "indices"),
]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[GraphStore]:
    with make_random_store(tmp_path / "s", nodes=300, edges=3000) as made:
        yield made


def batches(path: Path, strategy: str, **more: Any) -> list[dict[str, Any]]:
    options: dict[str, Any] = {"batch_size": 32, "memory": "64MB", "shuffle": True, "epochs": 1}
    with GraphStore(path) as store:
        loader = NeighborLoader(store, [4, 4], "train", strategy=strategy, **(options | more))
        try:
            return all_contents(loader.epoch(0))
        finally:
            loader.close()


def layouts(path: Path) -> list[str]:
    return os.listdir(path / "derived") if (path / "derived").exists() else []


@pytest.mark.parametrize("strategy,name", LAYOUTS)
def test_a_damaged_store_leaves_no_layout_that_outlives_its_repair(
    store: GraphStore, strategy: str, name: str
) -> None:
    expected = batches(store.path, "memory")
    good = store.file(name).read_bytes()
    damage(store, name)
    with pytest.raises(CorruptError, match=rf"{name}\.npy: piece 0 .*outcrop verify"):
        batches(store.path, strategy)
    of_the_topology = ["trace"] if name == "features" else []
    assert [layout.partition("-")[0] for layout in layouts(store.path)] == of_the_topology
    store.file(name).write_bytes(good)
    assert batches(store.path, strategy) == expected
    assert batches(store.path, strategy) == expected  # and from what was made


def test_interrupted_packing_keeps_nothing_that_was_not_checked(
    store: GraphStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the rows of a damaged file would stay, were it repaired before packing goes on."""
    saved: list[int] = []
    monkeypatch.setattr(batched._Saved, "save", lambda self, _: saved.append(self.row))
    monkeypatch.setattr(scatter, "MOST_PARTITION_BYTES", 2048)
    monkeypatch.setattr(scatter, "_LEAST_PARTITION_BYTES", 1024)
    monkeypatch.setattr(
        "outcrop.ahead.prepare.pack_batched", partial(batched.pack_batched, save_seconds=0)
    )
    batches(store.path, "diskgnn:cpu_cache=false")
    assert saved[0] > 0  # in the middle of a pass
    saved.clear()
    damage(store, "features")
    with pytest.raises(CorruptError, match=r"features\.npy: piece 0"):
        batches(store.path, "diskgnn")
    assert saved == []


# Layouts that are there


@pytest.fixture
def layout_files(tmp_path: Path) -> Iterator[list[Path]]:
    """Of a layout of each kind, and a pack with segments."""
    with make_random_store(tmp_path / "wide", nodes=300, edges=3000, dim=256) as store:
        loader = NeighborLoader(store, [4, 4], "train", batch_size=32, memory="64MB")
        outcrop.import_samples(store, list(loader), "mine")
        batches(store.path, "diskgnn:topology=cache")
        batches(store.path, "diskgnn:cpu_cache=false", disk="1MB")
        packs = [Pack(store.disk, path) for path in store.path.glob("derived/pack-*")]
        assert sorted(pack.segments is not None for pack in packs) == [False, True]
        yield sorted(path for path in store.path.glob("derived/*/*") if path.name != ".lock")


def test_verify_finds_a_flipped_bit_in_any_byte_of_any_layout(
    layout_files: list[Path],
) -> None:
    files, store = layout_files, layout_files[0].parents[2]
    kinds = {file.parent.name.partition("-")[0] for file in files}
    assert kinds == {"neighbors", "pack", "samples", "trace"}
    report = outcrop.verify(store)
    assert report.ok and report.layouts == len({file.parent for file in files})
    rng = np.random.default_rng(0)
    for file in files:
        good = file.read_bytes()
        for at in {0, len(good) - 1, *rng.integers(0, len(good), 6).tolist()}:
            overwrite(file, at, bytes([good[at] ^ 1 << int(rng.integers(8))]))
            [problem] = outcrop.verify(store).problems
            assert problem.file == str(file), (at, problem)
            assert f"remove {file.parent}" in problem.what
            overwrite(file, at, good[at : at + 1])
    assert outcrop.verify(store).ok


def test_quick_verify_looks_at_the_records_and_sizes_of_layouts(layout_files: list[Path]) -> None:
    files, store = layout_files, layout_files[0].parents[2]
    report = outcrop.verify(store, quick=True)
    assert report.ok and report.bytes == 0
    for file in files:
        good = file.read_bytes()
        file.write_bytes(good[:-1])
        [problem] = outcrop.verify(store, quick=True).problems
        assert problem.file == str(file) and f"remove {file.parent}" in problem.what
        file.unlink()
        [problem] = outcrop.verify(store, quick=True).problems
        assert f"remove {file.parent}" in problem.what
        file.write_bytes(good)


def test_a_layout_of_a_version_that_checked_nothing_is_made_again(store: GraphStore) -> None:
    expected = batches(store.path, "memory")
    batches(store.path, "diskgnn")
    for record in store.path.glob("derived/*/layout.json"):
        values = unseal(record.read_bytes(), "")
        del values["checked"]
        record.write_bytes(seal(values))
    assert {item.why for item in find_garbage(store.path)} == {
        "made by a version that did not check what it read"
    }
    assert outcrop.verify(store.path).layouts == 0
    assert batches(store.path, "diskgnn") == expected
    assert list(find_garbage(store.path)) == []
    assert outcrop.verify(store.path).layouts == 2
