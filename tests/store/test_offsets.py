"""Offsets in memory: compressed ones serve as plain ones do, and hold what is charged for them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import outcrop
from outcrop import _core
from outcrop.disk import reading_bytes
from outcrop.errors import CorruptError
from outcrop.layout.neighbors import whole_bytes
from outcrop.loader import NeighborLoader
from outcrop.store import offsets
from outcrop.store.facts import ArrayFacts, GraphFacts
from outcrop.store.offsets import load_offsets, loading_bytes, offsets_bytes
from outcrop.store.store import GraphStore
from outcrop.topology.lists import NeighborCache, making_bytes
from tests.conformance.contract import all_contents
from tests.damage import damage
from tests.stores import make_random_store, rewrite_array


@pytest.fixture
def store(tmp_path: Path) -> Iterator[GraphStore]:
    with make_random_store(tmp_path / "s", nodes=2000, edges=20_000) as made:
        yield made


@pytest.fixture
def compressing(monkeypatch: pytest.MonkeyPatch) -> None:
    """indptr of any size is compressed."""
    monkeypatch.setattr(offsets, "COMPRESSED_FROM_BYTES", 0)


def facts(nodes: int, edges: int) -> GraphFacts:
    arrays = {"indptr": ArrayFacts(8 * (nodes + 1), 8), "indices": ArrayFacts(4 * edges, 4)}
    return GraphFacts("g", nodes, edges, arrays, None, label_bytes=0)


# Size


def test_a_small_array_stays_as_it_is(store: GraphStore) -> None:
    loaded = load_offsets(store)
    assert isinstance(loaded, np.ndarray)
    assert loaded.nbytes == offsets_bytes(store.facts) == loading_bytes(store.facts)


@pytest.mark.usefixtures("compressing")
def test_what_is_charged_is_what_is_held(store: GraphStore) -> None:
    loaded = load_offsets(store)
    assert isinstance(loaded, _core.CompressedOffsets)
    assert loaded.memory_bytes == offsets_bytes(store.facts)
    reading = reading_bytes(store.array_bytes("indptr"))
    assert loading_bytes(store.facts) == loaded.memory_bytes + reading


def test_a_large_array_takes_a_few_bits_per_node() -> None:
    graph = facts(100_000_000, 1_000_000_000)
    assert offsets_bytes(graph) < 6 * graph.num_nodes / 8
    assert loading_bytes(graph) < offsets_bytes(graph) + (9 << 20)
    below, above = facts((8 << 20) - 2, 10 << 23), facts((8 << 20) - 1, 10 << 23)
    assert offsets_bytes(below) == below.array_bytes("indptr")
    assert offsets_bytes(above) < above.array_bytes("indptr") / 10
    for each in (graph, below, above):  # what is charged before the first batch covers both
        assert making_bytes(each) >= loading_bytes(each)


# Use


def test_the_same_layout_is_made(
    store: GraphStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with make_random_store(tmp_path / "other", nodes=2000, edges=20_000) as other:
        made = []
        for of, least in ((store, 1 << 30), (other, 0)):
            monkeypatch.setattr(offsets, "COMPRESSED_FROM_BYTES", least)
            with NeighborCache.open(of, whole_bytes(of.facts) // 3) as cache:
                assert cache.nodes > 0
                made.append((cache._layout.path / "lists.npy").read_bytes())
        assert made[0] == made[1]


@pytest.mark.parametrize(
    "strategy", ["ginex", "ginex:mode=split", "pagraph", "gnndrive:topology=cache"]
)
def test_batches_are_the_same(
    store: GraphStore, strategy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def batches() -> tuple[list[dict[str, Any]], int]:
        loader = NeighborLoader(
            store, [5, 5], "train", batch_size=64, memory="64MB", strategy=strategy, seed=3
        )
        try:
            return all_contents(loader.epoch(0)), loader.record.charges["indptr"]
        finally:
            loader.close()

    expected, plain_bytes = batches()
    monkeypatch.setattr(offsets, "COMPRESSED_FROM_BYTES", 0)
    found, compressed_bytes = batches()
    assert found == expected
    assert plain_bytes == store.array_bytes("indptr")
    assert compressed_bytes == _core.CompressedOffsets.bytes(store.num_nodes, store.num_edges)


def test_a_topology_keeps_its_offsets_and_needs_all_of_them(store: GraphStore) -> None:
    with NeighborCache.open(store, 0) as cache:
        half = _core.CompressedOffsets(store.num_nodes, store.num_edges)
        half.append(store.load("indptr")[:1000])
        with pytest.raises(ValueError, match="entries of indptr are missing"):
            cache.topology(half)
        half.append(store.load("indptr")[1000:])
        topology = cache.topology(half)
        del half
        assert (topology.num_nodes, topology.num_edges) == (store.num_nodes, store.num_edges)


# Damage


@pytest.mark.usefixtures("compressing")
def test_a_damaged_array_is_refused(store: GraphStore) -> None:
    damage(store, "indptr")
    with pytest.raises(CorruptError, match=r"indptr\.npy: piece 0 .* differs from its checksum"):
        load_offsets(store)


def _descends(entries: NDArray[np.int64]) -> None:
    entries[5] = entries[6] + 1


def _begins_late(entries: NDArray[np.int64]) -> None:
    entries[0] = 1


def _ends_early(entries: NDArray[np.int64]) -> None:
    entries[-1] -= 1


@pytest.mark.usefixtures("compressing")
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_descends, "node 5: its list begins at edge"),
        (_begins_late, "begins at edge 1"),
        (_ends_early, "ends at edge 19999, but there are 20000 edges"),
    ],
)
def test_an_array_that_was_written_wrong_is_refused(
    store: GraphStore, change: Any, message: str
) -> None:
    rewrite_array(store.path, "indptr", change)
    with (
        outcrop.open(store.path) as wrong,
        pytest.raises(CorruptError, match=rf"indptr\.npy: {message}"),
    ):
        load_offsets(wrong)
