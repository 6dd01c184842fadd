"""Sampling by blocks: the batches that every sampler gives, in bounded memory, whatever fails."""

from __future__ import annotations

import errno
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import outcrop
from outcrop import _core
from outcrop.errors import CancelledError, CorruptError, OptionError, ReadError, WriteError
from outcrop.layout.blocks import open_blocks
from outcrop.options import DiskOptions, Faults
from outcrop.sample.hyperbatch import (
    HyperbatchSampler,
    least_hyperbatch_bytes,
    relabelling_bytes,
)
from outcrop.sample.sampler import Sampler, Sampling, Subgraph
from outcrop.sample.seeds import Stream, Task
from outcrop.store.store import GraphStore
from outcrop.topology.blocks import Blocks, GraphBlocks
from outcrop.topology.parts import Opening
from tests.damage import overwrite
from tests.graphs import graphs, random_graph
from tests.layout.test_blocks import with_hubs
from tests.stores import make_store

PAGE = 4096
NODES = 3000


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A graph with lists of many blocks, with self loops, multi-edges and nodes without edges."""
    path = tmp_path_factory.mktemp("blocks") / "s"
    graph = with_hubs(random_graph(NODES, 12_000), {0: 5000, 700: 1010, 701: 1011, 2999: 30_000})
    make_store(path, graph, dim=2).close()
    with GraphStore(path) as store:
        assert (np.diff(store.indptr) == 0).any()
        for block_bytes in (PAGE, 64 << 10, 1 << 20, 4 << 20):
            open_blocks(store, block_bytes).close()
    return path


@pytest.fixture
def store(path: Path) -> Iterator[GraphStore]:
    with outcrop.open(path) as store:
        yield store


def tasks(count: int, seeds: int, num_nodes: int, seed: int = 0) -> list[Task]:
    """Some batches of random seeds, some of them twice in a batch."""
    rng = np.random.default_rng(seed)
    made = []
    for batch in range(count):
        ids = rng.integers(0, num_nodes, seeds)
        ids[: seeds // 4] = ids[-(seeds // 4) :] if seeds >= 4 else ids[:0]
        made.append(Task(Stream.TRAIN, 1, batch, np.arange(seeds), ids))
    return made


def contents(found: Subgraph) -> list[Any]:
    assert found.edge_ids is not None
    arrays = (found.nodes, found.sources, found.counts, found.edge_ids)
    return [*(a.tolist() for a in arrays), found.nodes_per_hop, found.edges_per_hop, found.roots]


def expected(store: GraphStore, sampling: Sampling, of: Sequence[Task]) -> list[list[Any]]:
    whole = _core.array_topology(store.load("indptr"), store.load("indices"))
    sampler = Sampler(sampling, whole, 7)
    return [contents(sampler.sample(task)) for task in of]


class Sampled:
    """A sampler of a store's blocks, and what it has taken."""

    def __init__(
        self,
        store: GraphStore,
        sampling: Sampling,
        folder: Path,
        *,
        block_bytes: int = PAGE,
        buffer_blocks: int = 2,
        memory_bytes: int = 1 << 20,
        threads: int = 1,
    ) -> None:
        self.blocks = GraphBlocks.open(store, buffer_blocks * block_bytes, block_bytes)
        self.scratch = folder / "picks.bin"
        self.sampler = HyperbatchSampler(
            sampling,
            self.blocks.core,
            7,
            memory_bytes=memory_bytes,
            scratch=self.scratch,
            threads=threads,
        )

    def __call__(self, of: Sequence[Task]) -> list[list[Any]]:
        return [contents(found) for found in self.sampler.sample_all(of)]


def of(fanouts: Sequence[int], *, replace: bool = False) -> Sampling:
    return Sampling.of(fanouts, replace=replace, edge_ids=True)


# The same batches


@pytest.mark.parametrize("block_bytes", [PAGE, 64 << 10, 1 << 20, 4 << 20])
@pytest.mark.parametrize("batches", [1, 2, 7, 200])
@pytest.mark.parametrize("replace", [False, True])
def test_hyperbatches_equal_batches_sampled_alone(
    store: GraphStore, tmp_path: Path, block_bytes: int, batches: int, replace: bool
) -> None:
    sampling = of([4, 3, 2], replace=replace)
    some = tasks(batches, 8, NODES)
    least = least_hyperbatch_bytes(batches)
    sample = Sampled(store, sampling, tmp_path, block_bytes=block_bytes, memory_bytes=least)
    for hyperbatch in (some, some[: batches // 2 + 1], some[::-1]):  # what is kept must not show
        assert sample(hyperbatch) == expected(store, sampling, hyperbatch)


@pytest.mark.parametrize("fanouts", [[-1], [5, -1], [-1, 1], [0, 5], [5, 0], [60, 60], [2000]])
@pytest.mark.parametrize("replace", [False, True])
def test_any_fanout_of_lists_of_many_blocks(
    store: GraphStore, tmp_path: Path, fanouts: list[int], replace: bool
) -> None:
    sampling = of(fanouts, replace=replace)
    hubs = np.array([2999, 0, 700, 2999, 701, 5, 2998])
    some = [Task(Stream.VAL, 0, batch, np.arange(7), np.roll(hubs, batch)) for batch in range(3)]
    for block_bytes, memory_bytes in ((PAGE, 100_000), (64 << 10, 1 << 24)):
        sample = Sampled(
            store, sampling, tmp_path, block_bytes=block_bytes, memory_bytes=memory_bytes
        )
        assert sample(some) == expected(store, sampling, some)


@given(data=st.data())
def test_any_graph(data: st.DataObject) -> None:
    graph = data.draw(graphs())
    node = st.integers(0, graph.num_nodes - 1)
    hubs = data.draw(st.dictionaries(node, st.integers(900, 4000), max_size=3))
    with (
        tempfile.TemporaryDirectory() as folder,
        make_store(Path(folder) / "s", with_hubs(graph, hubs), dim=None) as store,
    ):
        fanouts = data.draw(st.lists(st.sampled_from([-1, 0, 1, 2, 3, 60]), min_size=1, max_size=3))
        sampling = of(fanouts, replace=data.draw(st.booleans()))
        seeds = data.draw(st.lists(st.lists(node, max_size=9), min_size=1, max_size=7))
        some = [
            Task(Stream.TRAIN, 3, batch, np.arange(len(ids)), np.array(ids, np.int64))
            for batch, ids in enumerate(seeds)
        ]
        sample = Sampled(
            store,
            sampling,
            Path(folder),
            block_bytes=data.draw(st.sampled_from([PAGE, 8 << 10, 4 << 20])),
            buffer_blocks=data.draw(st.sampled_from([2, 3, 50])),
            memory_bytes=data.draw(st.sampled_from([least_hyperbatch_bytes(7), 1 << 22])),
            threads=data.draw(st.sampled_from([1, 3])),
        )
        for _ in range(2):
            assert sample(some) == expected(store, sampling, some)


def test_any_number_of_threads_gives_the_same(store: GraphStore, tmp_path: Path) -> None:
    sampling, some = of([10, 10]), tasks(20, 1000, NODES)
    wanted = expected(store, sampling, some)
    for threads in (1, 2, 8):
        sample = Sampled(store, sampling, tmp_path, block_bytes=64 << 10, threads=threads)
        assert sample(some) == wanted
        del sample


def test_graphs_of_64_bit_ids_give_the_same() -> None:
    """Blocks of wide entries, made and drawn from without a store."""
    rng = np.random.default_rng(2)
    degrees = rng.choice([0, 3, 700], 100)
    indptr = np.concatenate([[0], np.cumsum(degrees)])
    indices = rng.integers(0, 100, indptr[-1])
    writer = _core.BlockWriter64(PAGE, 100)
    out, last_nodes = np.empty(200 * PAGE, np.uint8), np.empty(200, np.int64)
    nodes, _, count = writer.add(indptr, indices, out, last_nodes)
    assert nodes == 100
    assert writer.finish(out[count * PAGE :], last_nodes[count:])
    sampling, some = of([5, 5]), tasks(5, 8, 100)
    sampler = Sampler(sampling, _core.array_topology(indptr, indices), 7)
    wanted = [contents(sampler.sample(task)) for task in some]
    with tempfile.TemporaryDirectory() as folder, outcrop.disk.Disk() as disk:
        file = Path(folder) / "blocks"
        file.write_bytes(out[: (count + 1) * PAGE].tobytes())
        engine, core = disk.open(file).core
        blocks = _core.graph_blocks(
            last_nodes[: count + 1].copy(),
            engine,
            core,
            0,
            num_nodes=100,
            num_edges=len(indices),
            block_bytes=PAGE,
            entry_bytes=8,
            buffer_blocks=2,
        )
        own = HyperbatchSampler(
            sampling, blocks, 7, memory_bytes=1 << 20, scratch=Path(folder) / "picks"
        )
        assert [contents(found) for found in own.sample_all(some)] == wanted


def test_the_part_of_a_plan_samples_single_batches_too(store: GraphStore) -> None:
    sampling, some = of([5, 5]), tasks(3, 50, NODES)
    topology = Blocks(4 * PAGE, PAGE).open(Opening(store))
    try:
        samplers = [topology.sampler(sampling, 7) for _ in range(2)]
        for task, wanted in zip(some, expected(store, sampling, some), strict=True):
            assert [contents(sampler.sample(task)) for sampler in samplers] == [wanted] * 2
        with pytest.raises(OptionError, match="ShaDow"):
            topology.sampler(Sampling.of([5], kind="shadow"), 7)
    finally:
        del samplers
        topology.close()
    assert not list(store.derived.root.glob(".scratch*"))


def test_samplers_of_many_threads_share_the_blocks(store: GraphStore, tmp_path: Path) -> None:
    sampling, some = of([5, 5]), tasks(4, 50, NODES)
    wanted = expected(store, sampling, some)
    with GraphBlocks.open(store, 4 * PAGE, PAGE) as blocks:
        found: list[Any] = [None] * 4

        def run(t: int) -> None:
            sampler = HyperbatchSampler(
                sampling, blocks.core, 7, memory_bytes=1 << 20, scratch=tmp_path / str(t)
            )
            for _ in range(5):
                found[t] = [contents(each) for each in sampler.sample_all(some)]

        threads = [threading.Thread(target=run, args=(t,)) for t in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert found == [wanted] * 4


def test_edges_are_left_out_where_nobody_wants_them(store: GraphStore, tmp_path: Path) -> None:
    some = tasks(3, 20, NODES)
    sample = Sampled(store, Sampling.of([5, 5]), tmp_path)
    wanted = expected(store, Sampling.of([5, 5]), some)
    for found, [nodes, sources, *_] in zip(sample.sampler.sample_all(some), wanted, strict=True):
        assert found.edge_ids is None
        assert found.nodes.tolist() == nodes
        assert found.sources.tolist() == sources


# What is read


def test_a_block_is_read_once_per_hop_for_all_batches(store: GraphStore, tmp_path: Path) -> None:
    sampling, some = of([3, 3, 3]), tasks(50, 20, NODES)
    sample = Sampled(store, sampling, tmp_path, memory_bytes=1 << 25)
    sample(some)
    assert sample.blocks.read <= 3 * _count(store)
    assert sample.sampler.spilled_bytes == 0


def test_of_a_list_of_many_blocks_only_those_with_drawn_positions_are_read(
    store: GraphStore, tmp_path: Path
) -> None:
    sampling = of([2])
    task = Task(Stream.TRAIN, 0, 0, np.arange(1), np.array([2999]))
    begin = int(store.indptr[2999])
    [wanted] = expected(store, sampling, [task])
    parts = {0} | {(edge - begin) // 1010 for edge in wanted[3]}
    sample = Sampled(store, sampling, tmp_path)
    before = store.disk.counters.bytes_read
    assert sample([task]) == [wanted]
    assert sample.blocks.read == len(parts) < 5
    assert store.disk.counters.bytes_read - before == len(parts) * PAGE


def test_a_buffer_of_everything_is_read_into_once(store: GraphStore, tmp_path: Path) -> None:
    sample = Sampled(store, of([10, 10]), tmp_path, buffer_blocks=1000)
    some = tasks(2, NODES, NODES)
    sample(some)
    read = sample.blocks.read
    found = sample.blocks.found
    sample(some)
    assert sample.blocks.read == read
    assert sample.blocks.found > found


def test_a_larger_buffer_reads_less(store: GraphStore, tmp_path: Path) -> None:
    """Blocks that stayed are not pushed out before the sweep comes to them."""
    some, reads = tasks(5, 500, NODES), []
    for slots in (2, 10, 20, 80):
        sample = Sampled(store, of([5, 5, 5]), tmp_path, buffer_blocks=slots)
        sample(some)
        reads.append(sample.blocks.read)
        del sample
    # Two hops find what the hop before has left, but for what is read ahead.
    assert reads[1] <= reads[0] - 2 * 4
    assert reads[2] <= reads[0] - 2 * 9
    assert reads[3] < _count(store)  # of some parts of lists nobody draws


# Memory


def test_memory_of_the_topology_is_its_index_and_its_buffer(store: GraphStore) -> None:
    with GraphBlocks.open(store, 10 * PAGE, PAGE) as blocks:
        index = 8 * _count(store)
        assert blocks.memory_bytes <= 10 * (PAGE + 160) + index
    with GraphBlocks.open(store, 1 << 30, 64 << 10) as blocks:  # no more than there are blocks
        assert blocks.memory_bytes < 2 * store.facts.topology_bytes


def _count(store: GraphStore) -> int:
    with open_blocks(store, PAGE) as layout:
        return (layout.path / "blocks.npy").stat().st_size // PAGE - 1


def test_memory_of_a_hyperbatch_does_not_grow_with_its_batches(
    store: GraphStore, tmp_path: Path
) -> None:
    sampling = of([5, 5, 5])
    largest = expected(store, sampling, tasks(200, 30, NODES))
    edges = max(len(batch[1]) for batch in largest)
    targets = max(len(batch[2]) for batch in largest)
    nodes = max(len(batch[0]) for batch in largest)
    memory = least_hyperbatch_bytes(200)
    sample = Sampled(store, sampling, tmp_path, memory_bytes=memory)
    assert sample(tasks(200, 30, NODES)) == largest
    assert sample.sampler.spilled_bytes > memory
    one = relabelling_bytes(sampling, targets, edges) + 40 * (nodes + edges) + (1 << 20)
    assert sample.sampler.memory_bytes <= memory * 5 / 4 + one
    assert sample.scratch.exists()
    del sample.sampler
    assert not sample.scratch.exists()


def test_too_little_memory_is_refused(store: GraphStore, tmp_path: Path) -> None:
    sample = Sampled(store, of([5]), tmp_path, memory_bytes=least_hyperbatch_bytes(20) - 1)
    with pytest.raises(ValueError, match="must have at least"):
        sample(tasks(20, 3, NODES))
    with pytest.raises(OptionError, match="a buffer needs 2 blocks"):
        GraphBlocks.open(store, 2 * PAGE - 1, PAGE)


# Failures


@pytest.mark.parametrize("engine", ["pool", "auto"])
def test_a_read_that_fails_is_an_error_of_the_file(path: Path, tmp_path: Path, engine: Any) -> None:
    sampling, some = of([5, 5]), tasks(5, 100, NODES)
    with outcrop.open(path) as store:
        wanted = expected(store, sampling, some)
    for fail_at in (3, 5, 10):
        faults = Faults(fail_read_at=fail_at, fail_count=1, error=errno.EIO)
        with outcrop.open(path, disk=DiskOptions(engine=engine, faults=faults)) as store:
            sample = Sampled(store, sampling, tmp_path, buffer_blocks=8)
            with pytest.raises(ReadError, match=r"blocks\.npy: \d+ B at \d+: ") as caught:
                sample(some)
            assert caught.value.errno == errno.EIO
            assert sample(some) == wanted, "the next one begins anew"


def test_short_late_and_reordered_reads_change_nothing(path: Path, tmp_path: Path) -> None:
    sampling, some = of([5, 5]), tasks(5, 100, NODES)
    faults = Faults(short_every=3, delay_us=100, reorder=True)
    with outcrop.open(path, disk=DiskOptions(faults=faults)) as store:
        sample = Sampled(
            store, sampling, tmp_path, buffer_blocks=8, memory_bytes=least_hyperbatch_bytes(5)
        )
        assert sample(some) == expected(store, sampling, some)
        assert sample.sampler.spilled_bytes > 0


def test_a_full_disk_is_an_error_of_the_scratch_file(path: Path, tmp_path: Path) -> None:
    sampling, some = of([5, 5]), tasks(50, 100, NODES)
    faults = Faults(fail_write_at=2, fail_count=10**6, error=errno.ENOSPC)
    with outcrop.open(path, disk=DiskOptions(faults=faults)) as store:
        sample = Sampled(store, sampling, tmp_path, memory_bytes=least_hyperbatch_bytes(50))
        with pytest.raises(WriteError, match=r"picks\.bin") as caught:
            sample(some)
        assert caught.value.errno == errno.ENOSPC


def test_a_scratch_file_that_changes_is_noticed(store: GraphStore, tmp_path: Path) -> None:
    some = tasks(50, 100, NODES)
    sample = Sampled(store, of([5, 5]), tmp_path, memory_bytes=least_hyperbatch_bytes(50))
    found = sample.sampler.sample_all(some)
    next(found)
    size = sample.scratch.stat().st_size
    overwrite(sample.scratch, 0, b"\xff" * size)
    with pytest.raises(CorruptError, match=r"picks\.bin: \d+ B at \d+: other bytes"):
        list(found)


def _copy(path: Path, tmp_path: Path) -> tuple[Path, Path]:
    """A store of its own -> itself, and the folder of its blocks."""
    with outcrop.open(path, derived=tmp_path / "derived") as store:
        layout = open_blocks(store, PAGE)
        layout.close()
        return tmp_path / "derived", layout.path


def test_a_damaged_block_is_noticed(path: Path, tmp_path: Path) -> None:
    derived, folder = _copy(path, tmp_path)
    file = folder / "blocks.npy"
    good = file.read_bytes()
    for at in (0, 60, 2000):  # of block 3
        overwrite(file, 4 * PAGE + at, bytes([good[4 * PAGE + at] ^ 16]))
        with outcrop.open(path, derived=derived) as store:
            sample = Sampled(store, of([5]), tmp_path)
            with pytest.raises(CorruptError, match=r"blocks\.npy: block 3 differs from its check"):
                sample(tasks(1, NODES, NODES))
        overwrite(file, 4 * PAGE, good[4 * PAGE : 5 * PAGE])


def test_blocks_in_each_others_places_are_noticed(path: Path, tmp_path: Path) -> None:
    derived, folder = _copy(path, tmp_path)
    file = folder / "blocks.npy"
    good = file.read_bytes()
    overwrite(file, 4 * PAGE, good[5 * PAGE : 6 * PAGE] + good[4 * PAGE : 5 * PAGE])
    with (
        outcrop.open(path, derived=derived) as store,
        pytest.raises(CorruptError, match="block 3 differs"),
    ):
        Sampled(store, of([5]), tmp_path)(tasks(1, NODES, NODES))


def test_a_truncated_file_is_an_error(path: Path, tmp_path: Path) -> None:
    derived, folder = _copy(path, tmp_path)
    file = folder / "blocks.npy"
    size = file.stat().st_size
    with outcrop.open(path, derived=derived) as store:
        sample = Sampled(store, of([5]), tmp_path)
        with file.open("r+b") as opened:
            opened.truncate(size // 2)
        with pytest.raises(ReadError, match=r"blocks\.npy: \d+ B at \d+"):
            sample(tasks(1, NODES, NODES))
        with pytest.raises(CorruptError, match=r"blocks\.npy: .*shorter"):
            GraphBlocks.open(store, 4 * PAGE, PAGE)
        file.unlink()
        with pytest.raises(CorruptError, match=r"blocks\.npy: No such file"):
            GraphBlocks.open(store, 4 * PAGE, PAGE)


def test_cancel_ends_a_hyperbatch_that_waits_for_the_drive(path: Path, tmp_path: Path) -> None:
    slow = DiskOptions(engine="pool", workers=1, faults=Faults(delay_us=200_000))
    with outcrop.open(path, disk=slow) as store:
        sample = Sampled(store, of([10, 10, 10]), tmp_path, buffer_blocks=8)
        other = HyperbatchSampler(
            of([10]), sample.blocks.core, 7, memory_bytes=1 << 20, scratch=tmp_path / "other"
        )
        waiting = threading.Thread(target=_cancelled, args=(other,))
        timers = [threading.Timer(0.3, waits.cancel) for waits in (sample.sampler, other)]
        timers.append(threading.Timer(0.1, waiting.start))
        for timer in timers:
            timer.start()
        start = time.perf_counter()
        with pytest.raises(CancelledError):
            sample(tasks(5, NODES, NODES))
        for thread in (*timers, waiting):
            thread.join()
        assert time.perf_counter() - start < 1.3
        with pytest.raises(CancelledError):
            sample(tasks(1, 1, NODES))


def _cancelled(sampler: HyperbatchSampler) -> None:
    with pytest.raises(CancelledError):
        list(sampler.sample_all(tasks(2, 100, NODES)))
