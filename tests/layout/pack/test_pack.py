"""Packing: every chunk has its rows, whatever the row size, the memory and the interruptions."""

from __future__ import annotations

import errno
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import outcrop.layout.pack.batched as batched
import outcrop.layout.pack.scatter as scatter
from individual import pack_individually
from outcrop.disk import Disk
from outcrop.errors import CorruptError, ReadError, StoreError, WriteError
from outcrop.layout.pack.batched import pack_batched
from outcrop.layout.pack.pieces import SPARE_SLOTS, PieceWriter
from outcrop.layout.pack.plan import IDS, PackPlan, load_plan, make_plan
from outcrop.layout.pack.reader import CHUNKS, PIECE_BYTES, TABLES, Pack
from outcrop.layout.pack.scatter import PackMemory
from outcrop.layout.pack.writer import write_pack
from outcrop.layout.trace import Trace
from outcrop.options import DiskOptions, Faults
from outcrop.store.format import seal, unseal
from outcrop.store.store import GraphStore
from tests.conftest import SOAK
from tests.layout.pack.traces import cached_rows, write_trace
from tests.stores import make_random_store

NODES = 3000


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("pack")


def make(root: Path, dim: int, encoding: str = "float32") -> Path:
    path = root / f"{dim}-{encoding}.outcrop"
    if not path.exists():
        make_random_store(path, NODES, 10, dim=dim, feature_dtype=encoding).close()
    return path


def random_batches(seed: int, count: int, most: int) -> list[np.ndarray[Any, Any]]:
    rng = np.random.default_rng(seed)
    return [rng.integers(0, NODES, rng.integers(0, most)) for _ in range(count)]


def plan_of(
    store: GraphStore, folder: Path, batches: list[Any], cache_rows: int, packed: bool = True
) -> PackPlan:
    (folder / "trace").mkdir(parents=True)
    (folder / "pack").mkdir()
    write_trace(store.disk, folder / "trace", batches, NODES)
    with Trace(store.disk, folder / "trace") as trace:
        return make_plan(
            store.disk,
            folder / "pack",
            trace,
            num_nodes=NODES,
            row_bytes=store.encoding.row_bytes,
            cache_rows=cache_rows,
            packed=packed,
        )


def fill_batched(store: GraphStore, memory_bytes: int = 0, **options: Any) -> Any:
    least = PackMemory.least_bytes(store.encoding.row_bytes, NODES)
    return lambda disk, folder, plan: pack_batched(
        disk, folder, store.features, plan, max(memory_bytes, least), **options
    )


def check(store: GraphStore, folder: Path, batches: list[Any]) -> None:
    """Every row of every batch is found, and is the store's."""
    with Pack(store.disk, folder) as pack:
        raw = np.ascontiguousarray(store.array("features")).reshape(NODES, -1)
        stored = raw.view(np.uint8).reshape(NODES, -1)
        cache = cached_rows(pack)
        assert np.array_equal(cache, stored[pack.cached])
        assert len(pack) == len(batches)
        for t, nodes in enumerate(batches):
            table = pack.table(t)
            rows = np.zeros((len(nodes), stored.shape[1]), np.uint8)
            rows[table.cached_rows] = cache[table.cached_slots]
            chunk = np.concatenate([np.empty(0, np.uint8), *(b.copy() for b in pack.blocks(t))])
            used = len(table.packed_rows) * pack.row_bytes
            rows[table.packed_rows] = chunk[:used].reshape(-1, pack.row_bytes)
            assert not chunk[used:].any()
            rows[table.copied_rows] = rows[table.copied_from]
            assert np.array_equal(rows, stored[nodes])


@pytest.mark.parametrize("dim", [1, 7, 100, 127, 129, 768, 1025])
@pytest.mark.parametrize("encoding", ["float32", "int8"])
def test_rows_of_any_size_are_packed(root: Path, tmp_path: Path, dim: int, encoding: str) -> None:
    batches = random_batches(dim, 9, 2500)
    with GraphStore(make(root, dim, encoding)) as store:
        plan = plan_of(store, tmp_path, batches, cache_rows=200)
        write_pack(store.disk, tmp_path / "pack", plan, fill_batched(store))
        check(store, tmp_path / "pack", batches)
    assert not (tmp_path / "pack" / IDS).exists()


@settings(max_examples=100 if SOAK else 8)
@given(
    seed=st.integers(0, 1000),
    batches=st.integers(0, 20),
    cache_rows=st.integers(0, NODES),
    more_memory=st.integers(0, 30 * PIECE_BYTES),
)
def test_any_memory_gives_the_same_bytes_as_individual_packing(
    root: Path,
    tmp_path_factory: pytest.TempPathFactory,
    seed: int,
    batches: int,
    cache_rows: int,
    more_memory: int,
) -> None:
    given_batches = random_batches(seed, batches, 3000)
    with GraphStore(make(root, 129)) as store:
        found = []
        least = PackMemory.least_bytes(store.encoding.row_bytes, NODES)
        fills: list[Callable[..., Any]] = [
            fill_batched(store, least + more_memory),
            lambda disk, folder, plan: pack_individually(disk, folder, store.features, plan),
        ]
        for fill in fills:
            folder = tmp_path_factory.mktemp("case")
            plan = plan_of(store, folder, given_batches, cache_rows)
            write_pack(store.disk, folder / "pack", plan, fill)
            check(store, folder / "pack", given_batches)
            names = (CHUNKS, TABLES, "index.npy", "cached.npy", "pack.json")
            found.append([(folder / "pack" / name).read_bytes() for name in names])
        assert found[0] == found[1]


def test_without_packing_only_the_cache_has_a_chunk(root: Path, tmp_path: Path) -> None:
    with GraphStore(make(root, 7)) as store:
        plan = plan_of(store, tmp_path, random_batches(0, 5, 500), 100, packed=False)
        write_pack(store.disk, tmp_path / "pack", plan, fill_batched(store))
        assert (tmp_path / "pack" / CHUNKS).stat().st_size == 4096
        with Pack(store.disk, tmp_path / "pack") as pack:
            assert cached_rows(pack).size == 100 * 28


@pytest.mark.parametrize("num_rows", [1, 3000, 10**8])
def test_memory_is_divided_within_its_bounds(num_rows: int) -> None:
    for row_bytes in (4, 512, 1_000_000):
        least = PackMemory.least_bytes(row_bytes, num_rows)
        for memory_bytes in (least, least + 12345, 3 * least, 10**9):
            if memory_bytes < least:
                continue
            for chunks in (1, 50, 2000, 10**6):
                memory = PackMemory.divide(memory_bytes, chunks, row_bytes, num_rows)
                assert used_bytes(memory, row_bytes, num_rows) <= memory_bytes
                assert memory.partition_bytes >= row_bytes
                assert 1 <= memory.open_chunks <= chunks
    assert PackMemory.divide(10**9, 50, 512, 3000).open_chunks == 50


def used_bytes(memory: PackMemory, row_bytes: int, num_rows: int) -> int:
    partitions = -(-num_rows // (memory.partition_bytes // row_bytes))
    bounds = 8 * (memory.open_chunks + 4) * (partitions + 1)
    blocks = 2 * (memory.partition_bytes + 8192 + memory.ids_bytes)
    return blocks + bounds + memory.slots * PIECE_BYTES


def test_memory_for_less_than_all_chunks_does_not_make_tiny_partitions() -> None:
    """Where chunks would take it all, partitions are few, and so are the bounds of chunks."""
    for memory_bytes, chunks, num_rows in (
        (5 * 10**8, 2000, 2 * 10**7),
        (2 * 10**9, 12_000, 10**8),
    ):
        memory = PackMemory.divide(memory_bytes, chunks, 512, num_rows)
        assert num_rows * 512 / memory.partition_bytes < 1000
        assert memory.open_chunks * PIECE_BYTES > memory_bytes * 3 // 4
        assert used_bytes(memory, 512, num_rows) <= memory_bytes


def test_packing_keeps_within_its_memory(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many partitions, many chunks: what is beside the blocks is what was counted."""
    monkeypatch.setattr(scatter, "_LEAST_PARTITION_BYTES", 4096)
    monkeypatch.setattr(scatter, "MOST_PARTITION_BYTES", 4096)
    with GraphStore(make(root, 768)) as store:
        plan = plan_of(store, tmp_path, random_batches(0, 150, 20), cache_rows=0)
        memory = PackMemory.divide(10**9, 151, plan.row_bytes, NODES)
        used = used_bytes(memory, plan.row_bytes, NODES)
        blocks = 2 * (4096 + 8192 + memory.ids_bytes) + memory.slots * PIECE_BYTES
        tracemalloc.start()
        try:
            write_pack(store.disk, tmp_path / "pack", plan, fill_batched(store, 10**9))
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert used - blocks > 3_000_000
    assert peak < (used - blocks) + 151 * scatter._RUN_BYTES + 200_000


class Killed(BaseException):
    """As a kill: nothing is tidied up."""


@pytest.mark.parametrize("dim", [129, 768])
def test_an_interrupted_packing_goes_on_where_it_was(
    root: Path, tmp_path: Path, dim: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed at a random write or save, again and again, with other memory each time."""
    rng = np.random.default_rng(dim)
    monkeypatch.setattr(scatter, "_LEAST_PARTITION_BYTES", 64 << 10)  # more of them
    with GraphStore(make(root, dim)) as store:
        for round_ in range(20 if SOAK else 2):
            folder = tmp_path / str(round_)
            batches = random_batches(round_, 7, 3000)
            plan = plan_of(store, folder, batches, cache_rows=300)
            resumed = 0
            for _ in range(1000):
                left = int(rng.integers(1, 20))

                def dies(*_: object) -> None:
                    nonlocal left
                    left -= 1
                    if left == 0:
                        raise Killed

                memory_bytes = int(rng.integers(0, 12)) * PIECE_BYTES
                memory_bytes += PackMemory.least_bytes(plan.row_bytes, NODES)
                fill = fill_batched(store, memory_bytes, save_seconds=0)
                loaded = load_plan(folder / "pack")
                assert loaded is not None
                with pytest.MonkeyPatch.context() as patch:
                    patch.setattr("outcrop.layout.pack.pieces.PieceWriter._land", _after(dies))
                    patch.setattr("outcrop.store.locks.sync_directory", dies)
                    try:
                        write_pack(store.disk, folder / "pack", loaded, fill)
                    except Killed:
                        resumed += (folder / "pack" / batched.PROGRESS).exists()
                        continue
                break
            check(store, folder / "pack", batches)
            assert resumed


@pytest.mark.parametrize("size", [0, 5000])
def test_a_file_of_chunks_that_was_never_reserved_is_reserved(
    root: Path, tmp_path: Path, size: int
) -> None:
    batches = random_batches(0, 7, 3000)
    with GraphStore(make(root, 129)) as store:
        plan = plan_of(store, tmp_path, batches, cache_rows=300)
        path = tmp_path / "pack" / CHUNKS
        path.write_bytes(bytes(size))
        fill = fill_batched(store)

        def checked(disk: Disk, folder: Path, plan: PackPlan) -> Any:
            assert path.stat().st_blocks * 512 >= plan.chunk_bytes
            return fill(disk, folder, plan)

        write_pack(store.disk, tmp_path / "pack", plan, checked)
        check(store, tmp_path / "pack", batches)


def _after(dies: Callable[[], None]) -> Any:
    land = PieceWriter._land

    def both(self: PieceWriter, count: int) -> None:
        dies()
        land(self, count)

    return both


def test_an_unfinished_pack_is_none_and_a_damaged_save_is_found(root: Path, tmp_path: Path) -> None:
    with GraphStore(make(root, 7)) as store:
        plan = plan_of(store, tmp_path, random_batches(0, 3, 500), 10)
        with pytest.raises(StoreError, match="never finished"):
            Pack(store.disk, tmp_path / "pack")
        (tmp_path / "pack" / batched.PROGRESS).write_bytes(bytes(200))
        with pytest.raises(CorruptError, match=r"progress\.bin"):
            write_pack(store.disk, tmp_path / "pack", plan, fill_batched(store))


@pytest.mark.parametrize("name", [CHUNKS, TABLES, "index.npy", "cached.npy", "pack.json"])
def test_a_flipped_byte_is_found(root: Path, tmp_path: Path, name: str) -> None:
    batches = random_batches(1, 6, 2000)
    folder = tmp_path / "pack"
    with GraphStore(make(root, 100)) as store:
        plan = plan_of(store, tmp_path, batches, cache_rows=100)
        write_pack(store.disk, folder, plan, fill_batched(store))
        size = (folder / name).stat().st_size
        rng = np.random.default_rng(3)
        for at in [0, size - 1, *rng.integers(0, size, 5).tolist()]:
            good = (folder / name).read_bytes()
            bad = bytearray(good)
            bad[at] ^= 1 << int(rng.integers(0, 8))
            (folder / name).write_bytes(bad)
            with pytest.raises(CorruptError, match=name):
                check(store, folder, batches)
            (folder / name).write_bytes(good)
        check(store, folder, batches)


def test_a_damaged_chunk_is_named_by_file_batch_and_offset(root: Path, tmp_path: Path) -> None:
    with GraphStore(make(root, 100)) as store:
        plan = plan_of(store, tmp_path, random_batches(1, 6, 2000), cache_rows=100)
        write_pack(store.disk, tmp_path / "pack", plan, fill_batched(store))
        offset = int(plan.index["chunk_offset"][4])
        with (tmp_path / "pack" / CHUNKS).open("r+b") as file:
            file.seek(offset + 5)
            file.write(b"x")
        with Pack(store.disk, tmp_path / "pack") as pack:
            for _ in pack.blocks(3):
                pass
            with pytest.raises(CorruptError, match=rf"{CHUNKS}: batch 4: \d+ B at {offset} "):
                for _ in pack.blocks(4):
                    pass


@pytest.mark.parametrize("cut", [0, 5000])
def test_a_truncated_file_is_found_when_it_is_opened(root: Path, tmp_path: Path, cut: int) -> None:
    with GraphStore(make(root, 100)) as store:
        plan = plan_of(store, tmp_path, random_batches(1, 6, 2000), cache_rows=100)
        write_pack(store.disk, tmp_path / "pack", plan, fill_batched(store))
        with (tmp_path / "pack" / CHUNKS).open("r+b") as file:
            file.truncate(cut)
        with pytest.raises(CorruptError, match=f"{cut} B, but pack.json says"):
            Pack(store.disk, tmp_path / "pack")


@pytest.mark.parametrize("row_bytes", [2**40, 2**62])
def test_rows_larger_than_the_file_of_chunks_are_refused(
    root: Path, tmp_path: Path, row_bytes: int
) -> None:
    folder = tmp_path / "pack"
    with GraphStore(make(root, 100)) as store:
        plan = plan_of(store, tmp_path, random_batches(1, 6, 2000), cache_rows=100)
        write_pack(store.disk, folder, plan, fill_batched(store))
        header = unseal((folder / "pack.json").read_bytes(), "header")
        (folder / "pack.json").write_bytes(seal(header | {"row_bytes": row_bytes}))
        with pytest.raises(CorruptError, match=f"pack.json: .* rows of {row_bytes} B each"):
            Pack(store.disk, folder)


@pytest.mark.parametrize("fault", ["fail_read_at", "fail_write_at"])
def test_a_failing_drive_is_an_error_and_not_a_pack(root: Path, tmp_path: Path, fault: str) -> None:
    batches = random_batches(2, 6, 3000)
    error, code = (ReadError, errno.EIO) if "read" in fault else (WriteError, errno.ENOSPC)
    seen = 0
    for at in range(1, 40, 3):
        folder = tmp_path / str(at)
        with GraphStore(make(root, 768)) as store:
            plan = plan_of(store, folder, batches, cache_rows=100)
        faults = replace(Faults(error=code), **{fault: at})  # type: ignore[arg-type]
        with GraphStore(make(root, 768), DiskOptions(faults=faults)) as store:
            try:
                write_pack(store.disk, folder / "pack", plan, fill_batched(store))
            except error as raised:
                assert raised.errno == code
                seen += 1
                with pytest.raises(StoreError, match="never finished"):
                    Pack(store.disk, folder / "pack")
    assert seen > 5


def test_slots_suffice_when_all_chunks_are_full_at_once(root: Path, tmp_path: Path) -> None:
    """Chunks that reach the end of a piece together need slots together."""
    nodes = np.arange(NODES)
    batches = [nodes] * (SPARE_SLOTS + 10)
    with GraphStore(make(root, 128)) as store, Disk() as disk:
        plan = plan_of(store, tmp_path, batches, cache_rows=0)
        write_pack(disk, tmp_path / "pack", plan, fill_batched(store, 10**8))
        check(store, tmp_path / "pack", batches)


class PromptFile:
    """Writes are done at once, into memory."""

    def __init__(self, size: int) -> None:
        self.data = np.zeros(size, np.uint8)
        self.done = True

    def start_write_extents(self, offsets: list[int], lengths: list[int], source: Any) -> Any:
        self.data[offsets[0] : offsets[0] + lengths[0]] = source
        return self

    def wait(self) -> None:
        pass


def test_slots_that_are_free_again_before_they_are_waited_for(root: Path, tmp_path: Path) -> None:
    with GraphStore(make(root, 768)) as store:
        plan = plan_of(store, tmp_path, [np.arange(NODES)], cache_rows=0)
        rows = np.ascontiguousarray(store.array("features")).view(np.uint8).reshape(-1)
    file = PromptFile(plan.chunk_bytes)
    writer = PieceWriter(file, plan, 0, 1, slots=2)  # type: ignore[arg-type]
    ids = np.arange(NODES)
    writer.append(rows, 0, np.array([0]), np.array([NODES]), ids)
    writer.finish()
    assert np.array_equal(file.data[: len(rows)], rows)
