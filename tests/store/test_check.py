"""check=: whatever a loader reads of a damaged store raises, whoever reads it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from outcrop.errors import CorruptError
from outcrop.loader import NeighborLoader
from outcrop.store import checks
from outcrop.store.store import GraphStore
from outcrop.strategies import STRATEGIES
from tests.conformance.contract import all_contents
from tests.damage import HUGE, damage, overwrite
from tests.stores import make_random_store

VARIANTS = [*STRATEGIES, "ginex:mode=split", "gnndrive:x=slots", "diskgnn:packing=false"]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[GraphStore]:
    with make_random_store(tmp_path / "s", nodes=300, edges=3000) as made:
        yield made


def batches(path: Path, strategy: str, check: bool = True) -> list[dict[str, Any]]:
    with GraphStore(path) as store:
        loader = NeighborLoader(
            store, [4, 4], "train", batch_size=32, memory="64MB", epochs=1, strategy=strategy,
            check=check,
        )  # fmt: skip
        try:
            return all_contents(loader.epoch(0))
        finally:
            loader.close()


@pytest.mark.parametrize("strategy", VARIANTS)
def test_a_huge_number_in_a_row_is_no_batch_of_any_strategy(
    store: GraphStore, strategy: str
) -> None:
    offset = store.manifest.arrays["features"].data_offset
    node = int(store.split("train")[0])
    overwrite(store.file("features"), offset + node * store.encoding.row_bytes, HUGE)
    with pytest.raises(CorruptError, match=r"features\.npy: piece 0 .*outcrop verify"):
        batches(store.path, strategy)


@pytest.mark.parametrize("strategy", VARIANTS)
def test_damaged_topology_is_no_batch_of_any_strategy(store: GraphStore, strategy: str) -> None:
    damage(store, "indices")
    with pytest.raises(CorruptError, match=r"indices\.npy: piece 0"):
        batches(store.path, strategy)


@pytest.mark.parametrize("strategy", VARIANTS)
def test_damaged_edge_ids_are_in_no_batch_of_any_strategy(tmp_path: Path, strategy: str) -> None:
    with make_random_store(tmp_path / "ids", nodes=300, edges=3000, edge_ids=True) as store:
        damage(store, "edge_ids")
        with pytest.raises(CorruptError, match=r"edge_ids\.npy: piece 0"):
            batches(store.path, strategy)


def test_no_layout_is_made_of_damaged_edge_ids(tmp_path: Path) -> None:
    with make_random_store(tmp_path / "ids", nodes=300, edges=3000, edge_ids=True) as store:
        damage(store, "edge_ids")
        with pytest.raises(CorruptError, match=r"edge_ids\.npy: piece 0"):
            batches(store.path, "diskgnn", check=False)
        assert not store.derived.records("trace")


@pytest.mark.parametrize("strategy", ["memory", "mmap", "direct"])
@pytest.mark.parametrize("name", ["labels", "train"])
def test_what_is_read_whole_is_always_checked(store: GraphStore, strategy: str, name: str) -> None:
    offset = store.manifest.arrays[name].data_offset
    overwrite(store.file(name), offset, bytes([store.file(name).read_bytes()[offset] ^ 1]))
    with pytest.raises(CorruptError, match=rf"{name}\.npy: piece 0"):
        batches(store.path, strategy, check=False)


def test_memory_always_checks_what_it_loads(store: GraphStore) -> None:
    overwrite(store.file("features"), 5000, HUGE)
    with pytest.raises(CorruptError, match=r"features\.npy: piece 0"):
        batches(store.path, "memory", check=False)


@pytest.mark.parametrize("strategy", ["mmap", "direct", "gnndrive"])
def test_batches_do_not_depend_on_it(store: GraphStore, strategy: str) -> None:
    assert batches(store.path, strategy) == batches(store.path, strategy, check=False)


@pytest.fixture
def small_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[GraphStore]:
    """A store whose rows lie in several pieces, some in two."""
    for module in ("arrays", "checks", "format"):
        monkeypatch.setattr(f"outcrop.store.{module}.PIECE_BYTES", 8192)
    with make_random_store(tmp_path / "pieces", nodes=1000, dim=25) as made:
        yield made


def test_only_pieces_that_are_read_are_compared_each_once(
    small_pieces: GraphStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, compared = small_pieces, []
    compare = checks.ArrayChecks._compare

    def noted(self: checks.ArrayChecks, piece: int, found: Any) -> None:
        compared.append(piece)
        compare(self, piece, found)

    monkeypatch.setattr(checks.ArrayChecks, "_compare", noted)
    store.check_reads()
    compared.clear()
    for _ in range(2):
        store.features.gather([700, 0])
    assert compared == [0, 9]
    for _ in range(2):
        store.features.gather([0, 40])  # which ends in the next piece
    assert compared == [0, 9, 1]


def test_a_file_that_was_changed_is_compared_again(small_pieces: GraphStore) -> None:
    store = small_pieces
    store.check_reads()
    expected = store.features.gather([3])
    overwrite(store.file("features"), 4096, np.float32(1).tobytes())
    with pytest.raises(CorruptError, match="piece 0"):
        store.features.gather([3])
    store.features.gather([900])
    assert np.isfinite(expected).all()


def test_damage_is_found_in_the_piece_it_is_in(small_pieces: GraphStore) -> None:
    store = small_pieces
    overwrite(store.file("features"), 20_000, HUGE)
    for use in (
        lambda: store.load("features"),
        lambda: list(store.checks("features").blocks(store.disk)),
        lambda: store.checks("features").check(store.disk),
    ):
        with pytest.raises(CorruptError, match=r"piece 2 \(bytes 16384 to 24575\)"):
            use()
