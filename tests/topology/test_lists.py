"""The neighbour cache: the right lists within its budget, and batches as without it."""

from __future__ import annotations

import errno
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

import outcrop
from outcrop import _core
from outcrop.disk import aligned_empty
from outcrop.errors import CancelledError, CorruptError, OptionError, ReadError
from outcrop.ingest.synthetic import SynthOptions, synthesise
from outcrop.layout import neighbors
from outcrop.layout.neighbors import METRICS, least_bytes, read_lists, whole_bytes
from outcrop.options import DiskOptions, Faults
from outcrop.sample.sampler import Sampler, Sampling
from outcrop.sample.seeds import Stream, Task
from outcrop.store.derived import find_garbage
from outcrop.store.offsets import Offsets
from outcrop.store.store import GraphStore
from outcrop.topology.lists import NeighborCache, scratch_bytes
from tests.graphs import graphs, random_graph
from tests.stores import make_store

Kind = Literal["neighbor", "shadow"]

NODES, EDGES = 3000, 40_000


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A graph with hubs."""
    path = tmp_path_factory.mktemp("cache") / "s"
    synthesise(path, SynthOptions(nodes=NODES, edges=EDGES, dim=4))
    return path


@pytest.fixture
def store(path: Path) -> Iterator[GraphStore]:
    with outcrop.open(path) as store:
        yield store


def task(seeds: Any, batch: int = 0) -> Task:
    ids = np.asarray(seeds, np.int64)
    return Task(Stream.TRAIN, 0, batch, np.arange(len(ids)), ids)


def sampled(topology: _core.Topology, sampling: Sampling, of: Task, threads: int = 1) -> list[Any]:
    found = Sampler(sampling, topology, 7, threads).sample(of)
    assert found.edge_ids is not None
    arrays = (found.nodes, found.sources, found.counts, found.edge_ids)
    return [*(a.tolist() for a in arrays), found.nodes_per_hop, found.roots]


def whole_topology(store: GraphStore) -> _core.Topology:
    return _core.array_topology(store.load("indptr"), store.load("indices"))


def plain(store: GraphStore) -> Offsets:
    return store.indptr


def compressed(store: GraphStore) -> Offsets:
    offsets = _core.CompressedOffsets(store.num_nodes, store.num_edges)
    offsets.append(store.load("indptr"))
    return offsets


def scores(store: GraphStore, metric: str) -> NDArray[np.float32]:
    out = np.bincount(store.indices, minlength=store.num_nodes)
    if metric == "out":
        return out.astype(np.float32)
    return (out / np.maximum(np.diff(store.indptr), 1)).astype(np.float32)


def expected_nodes(store: GraphStore, budget: int, metric: str) -> list[int]:
    """By descending score, then id, whatever still fits."""
    degrees = np.diff(store.indptr)
    size = store.indices.dtype.itemsize
    room = budget - 64 * -(-store.num_nodes // 384) - 4
    taken = []
    for node in np.argsort(-scores(store, metric), kind="stable").tolist():
        cost = 4 + int(degrees[node]) * size
        if degrees[node] and cost <= room:
            taken.append(node)
            room -= cost
    return sorted(taken)


def cached_lists(cache: NeighborCache, store: GraphStore) -> dict[int, list[int]]:
    """What its layout holds, read as docs/format.md says."""
    if cache.nodes == 0:
        assert cache.memory_bytes == 0
        return {}
    memory = np.empty(cache.memory_bytes, np.uint8)
    read_lists(store.disk, cache._layout.path, cache._file, memory)
    blocks = memory[: 64 * -(-store.num_nodes // 384)].view("<u8").reshape(-1, 8)
    starts = memory[blocks.nbytes :][: 4 * cache.nodes].view("<u4")
    first = blocks.nbytes + (4 * cache.nodes + 7) // 8 * 8
    entries = memory[first:].view(store.indices.dtype)
    assert len(entries) == cache.entries
    lists, number = {}, 0
    for b, (lists_before, entries_before, *bits) in enumerate(blocks.tolist()):
        assert lists_before == number
        for bit in range(384):
            if bits[bit // 64] >> bit % 64 & 1:
                node = 384 * b + bit
                begin = entries_before + int(starts[number])
                degree = int(store.indptr[node + 1] - store.indptr[node])
                lists[node] = entries[begin : begin + degree].tolist()
                number += 1
    assert number == cache.nodes
    return lists


def flip_byte(path: Path, offset: int) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([byte ^ 1]))


# What is cached


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("share", [0, 0.01, 0.05, 0.3, 0.9, 1, 2])
def test_the_best_lists_are_cached_within_the_budget(
    store: GraphStore, metric: str, share: float
) -> None:
    budget = int(share * whole_bytes(store.facts))
    with NeighborCache.open(store, budget, metric) as cache:
        lists = cached_lists(cache, store)
        assert list(lists) == expected_nodes(store, budget, metric)
        for node, entries in lists.items():
            assert entries == store.indices[store.indptr[node] : store.indptr[node + 1]].tolist()
        assert cache.memory_bytes <= budget
        assert cache.entries == sum(map(len, lists.values()))


@given(data=st.data())
def test_any_graph_and_budget(data: st.DataObject) -> None:
    """The chosen lists equal the model's; batches are those of the graph in memory."""
    graph = data.draw(graphs())
    with (
        tempfile.TemporaryDirectory() as folder,
        make_store(Path(folder) / "s", graph, dim=None) as store,
    ):
        budget = data.draw(st.integers(0, whole_bytes(store.facts) + 10))
        metric = data.draw(st.sampled_from(list(METRICS)))
        with NeighborCache.open(store, budget, metric) as cache:
            assert cache.memory_bytes <= budget
            assert list(cached_lists(cache, store)) == expected_nodes(store, budget, metric)
            topology = cache.topology(data.draw(st.sampled_from([plain, compressed]))(store))
            fanouts = data.draw(st.lists(st.sampled_from([-1, 0, 1, 3]), min_size=1))
            kinds: list[Kind] = ["neighbor", "shadow"]
            for kind in kinds:
                sampling = Sampling.of(fanouts[:3], kind=kind, replace=data.draw(st.booleans()))
                node = st.integers(0, graph.num_nodes - 1)
                seeds = task(data.draw(st.lists(node, max_size=12)))
                expected = sampled(whole_topology(store), sampling, seeds)
                assert sampled(topology, sampling, seeds) == expected


def test_below_the_least_nothing_is_cached_and_at_it_a_list_is(tmp_path: Path) -> None:
    with make_store(tmp_path / "s", random_graph(300, 300), dim=None) as store:
        assert 1 in np.diff(store.indptr)
        least = least_bytes(store.facts)
        with NeighborCache.open(store, least - 1) as below, NeighborCache.open(store, least) as at:
            assert (below.nodes, below.entries, below.memory_bytes) == (0, 0, 0)
            assert (at.nodes, at.entries) == (1, 1)


def test_a_cache_of_everything_never_reads(store: GraphStore) -> None:
    with NeighborCache.open(store, whole_bytes(store.facts)) as cache:
        topology = cache.topology(store.load("indptr"))
        before = store.disk.counters.read_requests
        sampled(topology, Sampling.of([10, 10]), task(range(0, NODES, 7)))
        assert store.disk.counters.read_requests == before
        assert cache.hits > 0
        assert cache.misses == 0


# Batches


@pytest.mark.parametrize("engine", ["pool", "auto"])
@pytest.mark.parametrize("kind", ["neighbor", "shadow"])
@pytest.mark.parametrize("share", [0, 0.1, 0.5])
def test_batches_equal_those_of_the_graph_in_memory(
    path: Path, kind: Kind, share: float, engine: Literal["pool", "auto"]
) -> None:
    sampling = Sampling.of([10, 5], kind=kind)
    with outcrop.open(path, disk=DiskOptions(engine=engine)) as store:
        budget = int(share * whole_bytes(store.facts))
        with NeighborCache.open(store, budget) as cache:
            whole = whole_topology(store)
            for offsets, threads in ((plain(store), 1), (plain(store), 3), (compressed(store), 3)):
                topology = cache.topology(offsets)
                for batch in range(3):
                    of = task(range(batch, NODES, 20), batch)
                    expected = sampled(whole, sampling, of)
                    assert sampled(topology, sampling, of, threads) == expected
            assert (cache.hits > 0) == (share > 0)
            assert cache.misses > 0


def test_hits_and_misses_are_the_drawn_entries(store: GraphStore) -> None:
    with NeighborCache.open(store, whole_bytes(store.facts) // 4) as cache:
        known = np.array(list(cached_lists(cache, store)))
        drawn = np.minimum(np.diff(store.indptr), 5)
        sampled(cache.topology(store.indptr), Sampling.of([5]), task(range(NODES)))
        assert cache.hits == drawn[known].sum()
        assert cache.hits + cache.misses == drawn.sum()
        hit_nodes, _, missed_nodes, _ = cache._lists.counts()
        assert hit_nodes == len(known)
        assert hit_nodes + missed_nodes == np.count_nonzero(drawn)
        cache.reset()
        assert (cache.hits, cache.misses, *cache._lists.counts()) == (0,) * 6


def test_a_topology_outlives_its_cache_and_its_arrays(store: GraphStore) -> None:
    sampling, of = Sampling.of([5, 5]), task(range(100))
    expected = sampled(whole_topology(store), sampling, of)
    cache = NeighborCache.open(store, whole_bytes(store.facts) // 3)
    topology = cache.topology(store.load("indptr"))
    del cache
    assert sampled(topology, sampling, of) == expected


def test_a_read_that_fails_is_an_error_of_the_file(path: Path) -> None:
    with outcrop.open(path) as store:
        NeighborCache.open(store, 0).close()
    faults = Faults(fail_read_at=1, fail_count=1000, error=errno.EIO)
    with outcrop.open(path, disk=DiskOptions(faults=faults)) as store:
        layout = store.derived.find("neighbors", inputs(0))
        assert layout is not None
        topology = NeighborCache(store, layout).topology(store.indptr)
        with pytest.raises(ReadError, match=r"indices\.npy: \d+ B at \d+: ") as caught:
            sampled(topology, Sampling.of([5]), task(range(100)))
        assert caught.value.errno == errno.EIO


def test_cancel_ends_a_sample_that_waits_for_the_drive(path: Path) -> None:
    with outcrop.open(path) as store:
        NeighborCache.open(store, 0).close()
    slow = DiskOptions(engine="pool", workers=1, gap_bytes=0, faults=Faults(delay_us=200_000))
    with outcrop.open(path, disk=slow) as store, NeighborCache.open(store, 0) as cache:
        sampler = Sampler(Sampling.of([10, 10, 10]), cache.topology(store.indptr), 0)
        timer = threading.Timer(0.1, sampler.cancel)
        timer.start()
        start = time.perf_counter()
        with pytest.raises(CancelledError):
            sampler.sample(task(range(NODES)))
        assert time.perf_counter() - start < 5
        timer.join()


def test_sizes_that_contradict_each_other_are_refused(store: GraphStore) -> None:
    with NeighborCache.open(store, 0) as cache:
        with pytest.raises(ValueError, match="another number of nodes"):
            cache.topology(store.load("indptr")[:-1])
        with pytest.raises(ValueError, match="at least one entry"):
            cache.topology(np.empty(0, np.int64))


# Memory


def test_what_is_unloaded_reads_from_disk_and_is_loaded_again(store: GraphStore) -> None:
    sampling, of = Sampling.of([5, 5]), task(range(200))
    expected = sampled(whole_topology(store), sampling, of)
    budget = whole_bytes(store.facts) // 2
    with NeighborCache.open(store, budget) as cache:
        topology = cache.topology(store.indptr)
        shared = aligned_empty(budget)
        for memory in (None, shared):
            cache.unload()
            assert not cache.loaded
            shared[:] = 255  # what else it serves meanwhile
            cache.reset()
            assert sampled(topology, sampling, of) == expected
            assert cache.hits == 0
            cache.reload(memory)
            assert cache.loaded
            assert cache.load_seconds > 0
            assert sampled(topology, sampling, of) == expected
            assert cache.hits > 0
        assert (shared[cache.memory_bytes :] == 255).all()


def test_memory_that_is_too_small_or_crooked_is_refused(store: GraphStore) -> None:
    with NeighborCache.open(store, whole_bytes(store.facts) // 2) as cache:
        with pytest.raises(OptionError, match="memory must have"):
            cache.reload(np.empty(cache.memory_bytes - 1, np.uint8))
        with pytest.raises(OptionError, match="multiple of 8"):
            cache.reload(aligned_empty(cache.memory_bytes + 1)[1:])


def test_scratch_stays_within_what_is_charged(store: GraphStore) -> None:
    assert scratch_bytes(store.facts, 0, 0) < 1 << 20
    assert scratch_bytes(store.facts, 1000, 10_000) > 32 * 1000 + 16 * 10_000


# The layout


def inputs(budget: int, metric: str = "out/in") -> dict[str, Any]:
    return {"bytes": budget, "metric": metric, "version": neighbors.NEIGHBORS_VERSION}


def test_a_layout_is_made_once_and_found_again(
    store: GraphStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    budget = whole_bytes(store.facts) // 7
    with NeighborCache.open(store, budget) as cache:
        lists = cached_lists(cache, store)

    def never(*_: object) -> NDArray[np.float32]:
        raise AssertionError("scored again")

    monkeypatch.setattr("outcrop.topology.lists.METRICS", dict.fromkeys(METRICS, never))
    with NeighborCache.open(store, budget) as again:
        assert cached_lists(again, store) == lists
        held = [garbage.path for garbage in find_garbage(store.path, everything=True)]
        assert again._layout.path not in held
    with pytest.raises(AssertionError, match="scored again"):
        NeighborCache.open(store, budget, "out")
    with pytest.raises(AssertionError, match="scored again"):
        NeighborCache.open(store, budget + 1)


def test_budgets_beyond_the_whole_share_a_layout(store: GraphStore) -> None:
    whole = whole_bytes(store.facts)
    with NeighborCache.open(store, whole) as one, NeighborCache.open(store, 10 * whole) as other:
        assert one._layout.path == other._layout.path


@pytest.mark.parametrize("name", ["lists.npy", "neighbors.json", "layout.json"])
def test_a_damaged_layout_is_refused(tmp_path: Path, name: str) -> None:
    synthesise(tmp_path / "s", SynthOptions(nodes=500, edges=3000, dim=2))
    with outcrop.open(tmp_path / "s") as store:
        budget = whole_bytes(store.facts) // 2
        with NeighborCache.open(store, budget) as cache:
            file = cache._layout.path / name
        original = file.read_bytes()
        for offset in (10, len(original) // 2, len(original) - 3):
            flip_byte(file, offset)
            with pytest.raises(CorruptError, match=name):
                NeighborCache.open(store, budget)
            file.write_bytes(original)
        file.write_bytes(original[:-8])
        with pytest.raises(CorruptError, match=name):
            NeighborCache.open(store, budget)
        file.write_bytes(original)
        NeighborCache.open(store, budget).close()


def test_a_missing_file_of_a_layout_is_named(tmp_path: Path) -> None:
    synthesise(tmp_path / "s", SynthOptions(nodes=500, edges=3000, dim=2))
    with outcrop.open(tmp_path / "s") as store:
        for name in ("lists.npy", "neighbors.json"):
            with NeighborCache.open(store, 0) as cache:
                file = cache._layout.path / name
            original = file.read_bytes()
            file.unlink()
            with pytest.raises(CorruptError, match=name):
                NeighborCache.open(store, 0)
            file.write_bytes(original)


def test_bad_options_are_refused(store: GraphStore) -> None:
    with pytest.raises(OptionError, match="out/in, out"):
        NeighborCache.open(store, 0, "in")
    with pytest.raises(OptionError, match="negative"):
        NeighborCache.open(store, -1)
