"""Gathering a window: only what is wanted is read, by blocks or by rows, and lands in its chunk."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import outcrop.layout.pack.scatter as scatter
from outcrop import _core
from outcrop.errors import CancelledError
from outcrop.layout.pack.scatter import (
    BlockReads,
    WantedBlocks,
    least_scatter_bytes,
    scatter_bytes,
    scatter_wanted,
)
from outcrop.layout.pack.writer import write_pack
from outcrop.store.store import GraphStore
from tests.conftest import SOAK
from tests.layout.pack.test_pack import NODES, check, make, plan_of, random_batches

ALL = 1 << 30  # a request that is worth more than any block: all are read whole


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("wanted")


def gather(store: GraphStore, folder: Path, batches: list[Any], **given: Any) -> WantedBlocks:
    """Packs batches so, checks every row of them, and gives what was read."""
    options = {"block_bytes": 4096, "request_bytes": ALL, "cache_rows": 50, "memory": 0, **given}
    plan = plan_of(store, folder, batches, options["cache_rows"])
    reads = BlockReads(options["block_bytes"], options["request_bytes"])
    memory = max(options["memory"], least_scatter_bytes(plan.row_bytes, NODES))
    readers: list[WantedBlocks] = []

    def fill(disk: Any, at: Path, of: Any) -> Any:
        checksums, reader = scatter_wanted(
            disk, at, store.features, of, reads, memory, lambda: None
        )
        readers.append(reader)
        return checksums

    write_pack(store.disk, folder / "pack", plan, fill)
    check(store, folder / "pack", batches)
    return readers[0]


@pytest.mark.parametrize("dim", [1, 7, 100, 129, 1025])
@pytest.mark.parametrize("request_bytes", [4096, 1 << 14, ALL])
def test_rows_of_any_size_by_blocks_and_by_rows(
    root: Path, tmp_path: Path, dim: int, request_bytes: int
) -> None:
    with GraphStore(make(root, dim)) as store:
        gather(store, tmp_path, random_batches(dim, 5, 600), request_bytes=request_bytes)


@settings(max_examples=100 if SOAK else 10)
@given(
    seed=st.integers(0, 1000),
    spread=st.sampled_from([5, 100, NODES]),
    block_bytes=st.sampled_from([4096, 8192, 1 << 16]),
    request_bytes=st.sampled_from([4096, 20_000, ALL]),
    memory=st.integers(0, 20 << 20),
)
def test_whatever_is_wanted_and_however_it_is_read(
    root: Path,
    tmp_path_factory: pytest.TempPathFactory,
    seed: int,
    spread: int,
    block_bytes: int,
    request_bytes: int,
    memory: int,
) -> None:
    rng = np.random.default_rng(seed)
    batches = [
        (rng.integers(0, spread, rng.integers(0, 400)) * 7919 + seed) % NODES for _ in range(6)
    ]
    with GraphStore(make(root, 100)) as store:
        gather(
            store, tmp_path_factory.mktemp("pack"), batches, memory=memory,
            block_bytes=block_bytes, request_bytes=request_bytes,
        )  # fmt: skip


def test_blocks_that_nobody_wants_are_not_read(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where whole partitions are left out, between others."""
    monkeypatch.setattr(scatter, "_LEAST_PARTITION_BYTES", 64 << 10)
    batches = [[5, 6, 7], [2500, 6], [1400]]
    with GraphStore(make(root, 128)) as store:
        reader = gather(store, tmp_path, batches, cache_rows=0)
        # Eight rows of 512 B in a block; data begin on a page.
        assert reader.block_bytes == 3 * 4096 and reader.rows == 0


def test_blocks_in_which_few_rows_are_wanted_are_read_by_rows(root: Path, tmp_path: Path) -> None:
    crowded, lonely = list(range(64, 72)), [640, 1280, 1281]
    with GraphStore(make(root, 128)) as store:
        reader = gather(
            store, tmp_path, [crowded, lonely], cache_rows=0, block_bytes=1 << 15,
            request_bytes=1 << 13,
        )  # fmt: skip
        assert (reader.block_bytes, reader.rows) == (1 << 15, 3)


def test_it_ends_between_partitions(root: Path, tmp_path: Path) -> None:
    calls = []

    def stop() -> None:
        calls.append(1)
        if len(calls) == 2:
            raise CancelledError("enough")

    with GraphStore(make(root, 100)) as store:
        plan = plan_of(store, tmp_path, random_batches(0, 5, 600), 50)
        memory = least_scatter_bytes(plan.row_bytes, NODES)

        def fill(disk: Any, at: Path, of: Any) -> Any:
            return scatter_wanted(
                disk, at, store.features, of, BlockReads(4096, ALL), memory, stop
            )[0]

        with pytest.raises(CancelledError, match="enough"):
            write_pack(store.disk, tmp_path / "pack", plan, fill)


def test_more_chunks_take_more_memory_for_one_pass() -> None:
    least = least_scatter_bytes(512, 10**6)
    assert least <= scatter_bytes(1, 512, 10**6) < scatter_bytes(100, 512, 10**6)


def test_a_set_of_rows_is_counted_and_listed() -> None:
    rng = np.random.default_rng(0)
    wanted, rows = _core.RowSet(1000), np.unique(rng.integers(0, 1000, 300))
    wanted.add(rng.permutation(rows))
    wanted.add(rows[:10])
    for first, last in ((0, 1000), (3, 997), (64, 128), (500, 500), (999, 1000)):
        inside = rows[(rows >= first) & (rows < last)]
        assert np.array_equal(wanted.list(first, last), inside)
        for block in (1, 7, 64, 1000):
            blocks = -(-(last - first) // block)
            counts = np.bincount((inside - first) // block, minlength=blocks)
            assert np.array_equal(wanted.count_blocks(first, last, block), counts)
    assert _core.RowSet.bytes(1000) == 128
    with pytest.raises(ValueError, match="0 to 999"):
        wanted.add(np.array([1000]))
    with pytest.raises(ValueError, match="a range of rows"):
        wanted.list(5, 1001)
