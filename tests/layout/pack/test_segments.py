"""Segments: what batches share, in which order and where, against a plain reference."""

from __future__ import annotations

import itertools
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

import outcrop.layout.pack.scatter as scatter
import outcrop.layout.pack.segments.order as order_module
import outcrop.layout.pack.segments.search as search_module
from brute_force import brute_force, candidates, segment_pages
from outcrop import _core
from outcrop.disk import Disk, File
from outcrop.errors import BudgetError, CorruptError
from outcrop.layout.pack.batched import pack_batched
from outcrop.layout.pack.plan import PackPlan, load_plan, make_plan
from outcrop.layout.pack.reader import (
    CHUNKS,
    PIECE_BYTES,
    Pack,
    PageRuns,
    count_pages,
)
from outcrop.layout.pack.scatter import PackMemory
from outcrop.layout.pack.segments.layout import Segments
from outcrop.layout.pack.segments.plan import make_segmented
from outcrop.layout.pack.segments.search import Order, OrderName, PackedLists, measure, search
from outcrop.layout.pack.writer import predict, write_pack
from outcrop.layout.trace import Trace
from outcrop.options import parse_size
from outcrop.store.store import GraphStore
from tests.conftest import SOAK
from tests.layout.pack.traces import cached_rows, write_trace
from tests.stores import make_random_store

NODES = 1000
PAGE = 4096

batch_lists = st.lists(
    st.sets(st.integers(0, 40), max_size=40).map(sorted), min_size=1, max_size=12
)


# Order


def reference_order(batches: list[list[int]], above: int, order: OrderName) -> list[int]:
    """Nodes of a segment in their order; of hashes, only what does not depend on them."""
    wanted = {n: [t for t, b in enumerate(batches) if n in b] for b in batches for n in b}
    shared = sorted(n for n, at in wanted.items() if len(at) > above)
    if order == "set":
        # The place of a set in the Gray code: each bit says whether so far their number is odd.
        shared.sort(key=lambda n: [sum(u <= t for u in wanted[n]) % 2 for t in range(64)])
    return shared


@pytest.mark.parametrize("num_nodes", [41, 1 << 39])  # a table of all nodes, or of those touched
@given(batches=batch_lists, above=st.integers(0, 4), order=st.sampled_from(["set", "id"]))
def test_the_order_of_a_segment(
    num_nodes: int, batches: list[list[int]], above: int, order: OrderName
) -> None:
    stride = num_nodes // 41
    segment = Order(order).segment(num_nodes, 41)
    for _ in range(2):  # used again
        for t, nodes in enumerate(batches):
            segment.add(t, np.array(nodes, np.int64) * stride)
        expected = reference_order(batches, above, order)
        assert segment.share(above) == len(expected)
        for nodes in batches:
            segment.split(np.array(nodes, np.int64) * stride)
            own = [place for place, n in enumerate(nodes) if n not in expected]
            assert segment.own.tolist() == own
            places = sorted(expected.index(n) for n in nodes if n in expected)
            assert segment.positions.tolist() == places
            assert [nodes[i] for i in segment.shared] == [expected[p] for p in places]
        for begin in range(0, len(expected), 7):
            part = expected[begin : begin + 7]
            ids, places_ = np.empty(len(part), np.int64), np.empty(len(part), np.uint32)
            segment.bucket(begin, ids, places_)
            assert ids.tolist() == [n * stride for n in sorted(part)]
            assert [part[p] * stride for p in places_] == ids.tolist()
        segment.clear()


@given(batches=batch_lists, hashes=st.integers(1, 4), order=st.sampled_from(["minhash", "printed"]))
def test_rows_of_the_same_batches_stay_together(
    batches: list[list[int]], hashes: int, order: OrderName
) -> None:
    """Whatever the hashes are: equal sets have equal keys, and then the lower id comes first."""
    segment = Order(order, hashes).segment(41, 41)
    for t, nodes in enumerate(batches):
        segment.add(t, np.array(nodes, np.int64))
    rows = segment.share(0)
    ids, places = np.empty(rows, np.int64), np.empty(rows, np.uint32)
    segment.bucket(0, ids, places)
    found = np.empty(rows, np.int64)
    found[places] = ids
    wanted = {n: tuple(t for t, b in enumerate(batches) if n in b) for n in found.tolist()}
    singles = [wanted[n] for n in found.tolist() if len(wanted[n]) == 1]
    runs = [key for key, _ in itertools.groupby(singles)]
    assert len(runs) == len(set(runs))
    for same in set(wanted.values()):
        of_them = [n for n in found.tolist() if wanted[n] == same]
        assert of_them == sorted(of_them)


def test_segments_are_checked_at_the_door() -> None:
    segment = Order("set").segment(10, 10)
    with pytest.raises(ValueError, match="more batches than this order"):
        segment.add(64, np.array([1]))
    with pytest.raises(ValueError, match="node ids must be 0 to 9"):
        segment.add(0, np.array([10]))
    with pytest.raises(ValueError, match="share first"):
        segment.split(np.array([1]))
    segment.share(0)
    with pytest.raises(ValueError, match="already"):
        segment.add(0, np.array([1]))


# Pages


@given(
    positions=st.sets(st.integers(0, 300), max_size=60).map(sorted),
    row_bytes=st.sampled_from([1, 4, 100, 516, 4095, 4096, 4100, 10_000]),
    block=st.integers(1, 5),
)
def test_every_page_is_read_once_and_every_row_found(
    positions: list[int], row_bytes: int, block: int
) -> None:
    data = np.random.default_rng(0).integers(0, 256, 301 * row_bytes + 2 * PAGE).astype(np.uint8)
    wanted = {p * row_bytes // PAGE for p in positions}
    wanted |= {((p + 1) * row_bytes - 1) // PAGE for p in positions}
    for p in positions:
        wanted |= set(range(p * row_bytes // PAGE, ((p + 1) * row_bytes - 1) // PAGE + 1))
    array = np.array(positions, np.uint32)
    assert count_pages(array, row_bytes) == len(wanted)
    runs = PageRuns(array, row_bytes)
    pages: list[int] = []
    for firsts, counts in runs.blocks(block):
        read = [
            list(range(f, f + c)) for f, c in zip(firsts.tolist(), counts.tolist(), strict=True)
        ]
        for before, after in itertools.pairwise(read):
            assert before[-1] + 1 < after[0]  # else they were one request
        assert sum(map(len, read)) == min(block, len(wanted) - len(pages))
        pages += [page for run in read for page in run]
    assert pages == sorted(wanted)
    stream = np.concatenate([np.empty(0, np.uint8), *(data[p * PAGE :][:PAGE] for p in pages)])
    for position, offset in zip(positions, runs.offsets.tolist(), strict=True):
        row = data[position * row_bytes :][:row_bytes]
        assert np.array_equal(stream[offset : offset + row_bytes], row)


def test_checksums_of_pages_are_xxh64_with_the_number_of_the_page() -> None:
    data = np.random.default_rng(0).integers(0, 256, 5 * PAGE).astype(np.uint8)
    expected = [xxhash.xxh64_intdigest(data[PAGE * i :][:PAGE].data, 7 + i) for i in range(5)]
    found = np.zeros(5, np.uint64)
    _core.checksum_pages(data, 7, found)
    assert found.tolist() == expected
    some = np.concatenate([data[: 2 * PAGE], data[4 * PAGE :]])
    total = _core.sum_of_pages(some, np.array([7, 11]), np.array([2, 1]))
    assert total == (expected[0] + expected[1] + expected[4]) % (1 << 64)
    with pytest.raises(ValueError, match="all pages"):
        _core.sum_of_pages(some, np.array([7]), np.array([2]))


# Buckets


@given(
    rows=st.lists(st.integers(0, 30_000), min_size=1, max_size=6),
    row_bytes=st.sampled_from([1, 4, 100, 512, 4100, 70_000]),
)
def test_buckets_move_over_none_that_may_be_needed_again(rows: list[int], row_bytes: int) -> None:
    segments = Segments(5, 1, np.array(rows), row_bytes, first=8 * PAGE)
    counts, places, filled_at = segments.buckets
    assert counts.sum() == sum(rows) and (counts > 0).all()
    assert (filled_at % PAGE == 0).all() and segments.moves_per_sync >= 1
    ends = places + counts * row_bytes
    for first in range(0, len(counts), segments.moves_per_sync):
        last = min(first + segments.moves_per_sync, len(counts)) - 1
        # All of these may have been written, and any of them may have to be read again.
        assert ends[last] <= filled_at[first]
    if len(counts):
        assert ends[-1] <= segments.first + segments.bytes
        filled = filled_at[-1] + counts[-1] * row_bytes
        assert filled <= segments.first + segments.reserved_bytes
    assert (places[1:] >= ends[:-1]).all()


# Search


class Case:
    """A store, batches, and their plan without segments."""

    def __init__(self, folder: Path, store: GraphStore, batches: list[Any], cache: int) -> None:
        for name in ("trace", "whole", "pack"):
            (folder / name).mkdir(parents=True)
        write_trace(store.disk, folder / "trace", batches, NODES)
        with Trace(store.disk, folder / "trace") as trace:
            self.whole = make_plan(
                store.disk,
                folder / "whole",
                trace,
                num_nodes=NODES,
                row_bytes=store.encoding.row_bytes,
                cache_rows=cache,
                packed=True,
            )
        self.store, self.folder, self.batches = store, folder, batches

    def lists(self) -> PackedLists:
        return PackedLists(self.store.disk, self.folder / "whole", self.whole, NODES)

    def segmented(self, batches: int, above: int, order: Order | None = None) -> PackPlan:
        with self.lists() as lists:
            chosen = measure(lists, batches).plan(above)
            folder, whole = self.folder / "pack", self.folder / "whole"
            return make_segmented(self.store.disk, folder, whole, lists, chosen, order=order)

    def write(self, plan: PackPlan, memory_bytes: int = 0, **options: Any) -> None:
        memory_bytes += PackMemory.least_bytes(plan.row_bytes, NODES)
        write_pack(
            self.store.disk,
            self.folder / "pack",
            plan,
            lambda disk, folder, of: pack_batched(
                disk, folder, self.store.features, of, memory_bytes, **options
            ),
        )

    def check(self) -> None:
        """Every row of every batch is found, and is the store's."""
        store = self.store
        raw = np.ascontiguousarray(store.array("features")).reshape(NODES, -1)
        stored = raw.view(np.uint8).reshape(NODES, -1)
        with Pack(store.disk, self.folder / "pack") as pack:
            cache = cached_rows(pack)
            read = 0
            for t, nodes in enumerate(self.batches):
                table = pack.table(t)
                rows = np.zeros((len(nodes), stored.shape[1]), np.uint8)
                rows[table.cached_rows] = cache[table.cached_slots]
                chunk = np.concatenate([np.empty(0, np.uint8), *(b.copy() for b in pack.blocks(t))])
                used = len(table.packed_rows) * pack.row_bytes
                rows[table.packed_rows] = chunk[:used].reshape(-1, pack.row_bytes)
                for block in pack.shared_blocks(t, table):
                    for offset, row in zip(block.offsets.tolist(), block.rows, strict=True):
                        rows[row] = block.data[offset : offset + pack.row_bytes]
                    read += block.read_bytes
                rows[table.copied_rows] = rows[table.copied_from]
                assert np.array_equal(rows, stored[nodes])
            assert read == pack.predicted.segment_bytes


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("segments")


def make(root: Path, dim: int, encoding: str = "float32") -> Path:
    path = root / f"{dim}-{encoding}.outcrop"
    if not path.exists():
        make_random_store(path, NODES, 10, dim=dim, feature_dtype=encoding).close()
    return path


def random_batches(seed: int, count: int, most: int) -> list[Any]:
    """Some nodes are in many of them; some more than once."""
    rng = np.random.default_rng(seed)
    return [
        (NODES * rng.random(rng.integers(0, most + 1)) ** 2).astype(np.int64) for _ in range(count)
    ]


def sizes(batches: list[Any], cached: set[int], length: int, above: int) -> tuple[int, int, int]:
    """The reference: rows of chunks, rows of segments, and rows that batches find there."""
    own = shared = found = 0
    for first in range(0, len(batches), length):
        part = [set(b.tolist()) - cached for b in batches[first : first + length]]
        counts: dict[int, int] = {}
        for nodes in part:
            for n in nodes:
                counts[n] = counts.get(n, 0) + 1
        shared += sum(c > above for c in counts.values())
        own += sum(counts[n] <= above for nodes in part for n in nodes)
        found += sum(counts[n] > above for nodes in part for n in nodes)
    return own, shared, found


@settings(max_examples=200 if SOAK else 10)
@given(
    seed=st.integers(0, 1000),
    count=st.integers(2, 15),
    cache=st.sampled_from([0, 30]),
    budget=st.floats(0.2, 1.1),
)
def test_the_search_is_that_of_the_reference(
    root: Path,
    tmp_path_factory: pytest.TempPathFactory,
    seed: int,
    count: int,
    cache: int,
    budget: float,
) -> None:
    batches = random_batches(seed, count, 300)
    with GraphStore(make(root, 129)) as store:
        case = Case(tmp_path_factory.mktemp("case"), store, batches, cache)
        with case.lists() as lists:
            bytes_of = {}
            for length in range(2, count + 1):
                measured = measure(lists, length)
                for above in range(1, max(2, length)):
                    plan = measured.plan(above)
                    cached = set(cached_nodes(case))
                    own, shared, found = sizes(batches, cached, length, above)
                    assert plan.segments is not None
                    assert plan.index["packed"][:count].sum() == own
                    assert plan.index["shared"][:count].sum() == found
                    assert plan.segments.rows.sum() == shared
                    bytes_of[length, above] = measured.most_bytes(above)
            disk_bytes = int(budget * case.whole.most_bytes)
            fitting = [s for s in range(2, count + 1) if bytes_of[s, 1] <= disk_bytes]
            if not fitting:
                with pytest.raises(BudgetError, match="smallest that would do") as refused:
                    search(lists, disk_bytes, 0)
                search(lists, parse(str(refused.value)), 0)
                return
            chosen = search(lists, disk_bytes, 0).segments
            assert chosen is not None and chosen.batches == fitting[0]
            most = [m for m in range(1, chosen.batches) if bytes_of[fitting[0], m] <= disk_bytes]
            assert chosen.above == most[-1]


def parse(message: str) -> int:
    return parse_size(message.rsplit("is ", 1)[1])


def cached_nodes(case: Case) -> list[int]:
    plan = case.whole
    with case.store.disk.open(case.folder / "whole" / "ids.bin") as file:
        ids = file.read(8 * int(plan.first_ids[-1]), 8 * int(plan.rows[-1]))
    nodes: list[int] = ids.view(np.int64).tolist()
    return nodes


def test_many_batches_are_searched_in_units(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search_module, "_MOST_UNITS", 4)
    with GraphStore(make(root, 129)) as store:
        case = Case(tmp_path, store, random_batches(1, 10, 300), 0)
        with case.lists() as lists:
            room = measure(lists, 5).most_bytes(1)
            chosen = search(lists, room + 100, 100).segments
            assert chosen is not None and chosen.batches == 6  # 3 is too short, 6 the next
            with pytest.raises(BudgetError):
                search(lists, 1000, 100)


def test_brute_force_finds_the_least_of_all(root: Path, tmp_path: Path) -> None:
    with GraphStore(make(root, 100)) as store:
        case = Case(tmp_path, store, random_batches(2, 8, 400), 20)
        with case.lists() as lists:
            room = measure(lists, 4).most_bytes(2)
            found = list(candidates(lists, room, range(2, 9), range(1, 8)))
            kinds = [
                (length, above)
                for length in range(2, 9)
                for above in range(1, length)
                if measure(lists, length).most_bytes(above) <= room
            ]
            assert [(one.batches, one.above) for one in found] == kinds and len(kinds) > 3
            best = brute_force(found)
            assert best is not None
            assert best.predicted.bytes == min(one.predicted.bytes for one in found)
            assert best.predicted.bytes <= heuristic_bytes(lists, room)
            assert brute_force(candidates(lists, 100, range(2, 9), [1])) is None


def heuristic_bytes(lists: PackedLists, room: int) -> int:
    plan = search(lists, room, 0)
    assert plan.segments is not None
    length, above = plan.segments.batches, plan.segments.above
    pages = segment_pages(lists, length, above, Order.best(length))
    return predict(replace(plan, pages=int(pages.sum()))).bytes


# Packing


@pytest.mark.parametrize("dim", [1, 7, 100, 128, 129, 1025])
@pytest.mark.parametrize("encoding", ["float32", "int8"])
def test_rows_of_any_size_are_shared(root: Path, tmp_path: Path, dim: int, encoding: str) -> None:
    with GraphStore(make(root, dim, encoding)) as store:
        case = Case(tmp_path, store, random_batches(dim, 9, 600), cache=50)
        case.write(case.segmented(4, 1))
        case.check()
    assert sorted(os.listdir(tmp_path / "pack")) == [
        "cached.npy",
        "chunks.bin",
        "index.npy",
        "pack.json",
        "tables.bin",
    ]


@pytest.mark.parametrize("order", ["set", "minhash", "printed", "id"])
@pytest.mark.parametrize("length", [1, 3, 70])
def test_any_order_and_length_can_be_packed(
    root: Path, tmp_path: Path, order: OrderName, length: int
) -> None:
    with GraphStore(make(root, 129)) as store:
        case = Case(tmp_path, store, random_batches(3, 7, 600), cache=0)
        plan = case.segmented(length, 1, Order(order))
        case.write(plan)
        case.check()
        assert plan.segments is not None
        _, shared, found = sizes(case.batches, set(), length, 1)
        assert plan.segments.rows.sum() == shared
        assert plan.index["shared"].sum() == found
        with case.lists() as lists:
            assert segment_pages(lists, length, 1, Order(order)).sum() == plan.pages


class Killed(BaseException):
    """As a kill: nothing is tidied up."""


@pytest.mark.parametrize("dim", [129, 768])
def test_an_interrupted_packing_of_segments_goes_on_where_it_was(
    root: Path, tmp_path: Path, dim: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed at a random write, save or move, with other memory each time: the same bytes."""
    rng = np.random.default_rng(dim)
    monkeypatch.setattr(scatter, "_LEAST_PARTITION_BYTES", 64 << 10)
    batches = random_batches(dim, 8, 900)
    with GraphStore(make(root, dim)) as store:
        whole = Case(tmp_path / "whole", store, batches, cache=30)
        whole.write(whole.segmented(4, 1))
        expected = {p.name: p.read_bytes() for p in (tmp_path / "whole" / "pack").iterdir()}
        for round_ in range(20 if SOAK else 1):
            case = Case(tmp_path / str(round_), store, batches, cache=30)
            case.segmented(4, 1)
            moves = 0
            for _ in range(1000):
                left = int(rng.integers(1, 12))

                def dies(*_: object) -> None:
                    nonlocal left
                    left -= 1
                    if left == 0:
                        raise Killed

                loaded = load_plan(case.folder / "pack")
                assert loaded is not None
                with pytest.MonkeyPatch.context() as patch:
                    patch.setattr("outcrop.store.locks.sync_directory", dies)
                    patch.setattr("outcrop.disk.File.write", before(dies, "write"))
                    patch.setattr("outcrop.disk.File.truncate", before(dies, "truncate"))
                    try:
                        case.write(loaded, int(rng.integers(0, 12)) * PIECE_BYTES, save_seconds=0)
                    except Killed:
                        moves += (case.folder / "pack" / order_module._MOVED).exists()
                        continue
                break
            assert moves
            case.check()
            pack = case.folder / "pack"
            assert {p.name: p.read_bytes() for p in pack.iterdir()} == expected


def before(dies: Any, name: str) -> Any:
    call = getattr(File, name)

    def both(self: Any, *arguments: Any) -> Any:
        dies()
        return call(self, *arguments)

    return both


def test_a_flipped_byte_of_any_page_is_found(root: Path, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    with GraphStore(make(root, 100)) as store:
        case = Case(tmp_path, store, random_batches(5, 6, 800), cache=20)
        plan = case.segmented(3, 1)
        case.write(plan)
        assert plan.segments is not None
        path = tmp_path / "pack" / CHUNKS
        good = path.read_bytes()
        used = plan.segments.offsets[0], plan.segments.offsets[0] + plan.segments.rows[0] * 400
        for at in [used[0], used[1] - 1, *rng.integers(*used, 5).tolist()]:
            bad = bytearray(good)
            bad[at] ^= 1 << int(rng.integers(0, 8))
            path.write_bytes(bad)
            with pytest.raises(CorruptError, match=rf"{CHUNKS}: batch \d: \d+ B of its segment at"):
                case.check()
        swapped = bytearray(good)  # two pages that are good, but not in their place
        at = int(used[0])
        swapped[at : at + 2 * PAGE] = good[at + PAGE : at + 2 * PAGE] + good[at : at + PAGE]
        path.write_bytes(swapped)
        with pytest.raises(CorruptError, match="of its segment"):
            case.check()
        path.write_bytes(good)
        case.check()


def test_a_bucket_that_is_damaged_before_it_is_ordered_is_found(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with GraphStore(make(root, 100)) as store:
        case = Case(tmp_path, store, random_batches(5, 6, 800), cache=0)
        plan = case.segmented(3, 1)
        assert plan.segments is not None
        offset = int(plan.segments.buckets[2][0])

        def damaged(disk: Disk, folder: Path, of: PackPlan) -> Any:
            memory = PackMemory.least_bytes(of.row_bytes, NODES)
            checksums = pack_batched(disk, folder, store.features, of, memory)
            with (folder / CHUNKS).open("r+b") as file:
                file.seek(offset + 3)
                file.write(b"x")
            return checksums

        with pytest.raises(CorruptError, match=rf"at {offset} differ .* while packing"):
            write_pack(store.disk, tmp_path / "pack", plan, damaged)
