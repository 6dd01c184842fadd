"""Traces: batches come back as they were sampled, or an error says which one does not."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from outcrop import _core
from outcrop.disk import Disk
from outcrop.errors import CorruptError, OptionError, ReadError, StoreError, WriteError
from outcrop.layout.trace import (
    Batch,
    Trace,
    TraceReader,
    TraceWriter,
    trace_bytes,
)
from outcrop.options import DiskOptions, Faults
from outcrop.sample.sampler import Sampler, Sampling, Subgraph
from outcrop.sample.seeds import SeedOrder, Stream, Task
from outcrop.store.derived import DerivedLayouts
from outcrop.store.format import HEADER_BYTES, seal, unseal
from outcrop.store.workdir import leftovers
from tests.conftest import ENGINES
from tests.graphs import expected_csc, random_graph

GRAPH: dict[str, Any] = {"num_nodes": 5000, "num_edges": 40_000}
WIDE = 1 << 40
INDEX_ROW_BYTES = 80


@pytest.fixture(scope="module")
def quick_disk() -> Iterator[Disk]:
    """For tests of what either engine is blind to."""
    with Disk(DiskOptions(workers=2)) as made:
        yield made


# Batches


def make_batch(
    t: int, nodes: int, edges: int, seeds: int = 3, *, shadow: bool = False, wide: bool = False
) -> Batch:
    """Any numbers of the right types and ranges; a trace does not look at their meaning."""
    rng = np.random.default_rng([t, nodes, edges])
    num_nodes, num_edges = (WIDE, WIDE) if wide else (GRAPH["num_nodes"], GRAPH["num_edges"])
    subgraph = Subgraph(
        nodes=rng.integers(0, num_nodes, nodes),
        sources=rng.integers(0, 1 << 32, edges, dtype=np.uint32),
        counts=rng.integers(0, 1 << 32, nodes // 2, dtype=np.uint32),
        edge_ids=rng.integers(0, num_edges, edges),
        nodes_per_hop=[] if shadow else [seeds, nodes],
        edges_per_hop=[] if shadow else [edges],
        roots=list(range(seeds + 1)) if shadow else [],
    )
    ids = rng.integers(0, 1 << 50, seeds)
    return Task(Stream.VAL, t // 5, t % 5, ids, rng.integers(0, num_nodes, seeds)), subgraph


def copied(batch: Batch) -> Batch:
    """Free of the sampler's memory."""
    task, s = batch
    assert s.edge_ids is not None
    arrays = s.nodes.copy(), s.sources.copy(), s.counts.copy(), s.edge_ids.copy()
    return task, Subgraph(*arrays, s.nodes_per_hop, s.edges_per_hop, s.roots)


def assert_same(found: Batch, expected: Batch, *, edge_ids: bool = True) -> None:
    for one, other in zip(found, expected, strict=True):
        for name, value in vars(other).items():
            if name == "edge_ids" and not edge_ids:
                continue
            got = getattr(one, name)
            if isinstance(value, np.ndarray):
                assert got.dtype == value.dtype, name
                assert np.array_equal(got, value), name
            else:
                assert type(got) is type(value) and got == value, name


def write(disk: Disk, folder: Path, batches: list[Batch], **options: Any) -> Path:
    with TraceWriter(disk, folder, **{**GRAPH, "identity": {"seed": 1}, **options}) as writer:
        for batch in batches:
            writer.append(*batch)
        writer.finish()
    return folder


def predicted(batch: Batch, **graph: Any) -> int:
    task, s = batch
    lists = len(s.nodes_per_hop) + len(s.edges_per_hop) + len(s.roots)
    sizes = len(s.nodes), len(s.sources), len(task.seeds)
    return trace_bytes(*sizes, targets=len(s.counts), lists=lists, **graph)


def disk_bytes(folder: Path) -> int:
    index = (folder / "index.npy").stat().st_size - HEADER_BYTES
    return (folder / "batches.bin").stat().st_size + index


def mixed(count: int = 12) -> list[Batch]:
    """Batches from nothing to two pages' worth, and one of many pages."""
    sizes = [(0, 0), (1, 0), (700, 900), (1024, 1024), (3, 5), (150_000, 250_000), (40, 0)]
    return [make_batch(t, *sizes[t % 7], shadow=t % 3 == 2) for t in range(count)]


# What is read


@given(
    shapes=st.lists(
        st.tuples(st.integers(0, 3000), st.integers(0, 3000), st.integers(0, 40), st.booleans()),
        max_size=5,
    ),
    wide=st.booleans(),
    edge_ids=st.booleans(),
    engine=st.sampled_from(ENGINES),
    access=st.sampled_from(["auto", "buffered"]),
    short=st.sampled_from([0, 2]),
)
def test_what_is_appended_is_read_back_and_takes_the_bytes_foretold(
    tmp_path_factory: pytest.TempPathFactory,
    shapes: list[tuple[int, int, int, bool]],
    wide: bool,
    edge_ids: bool,
    engine: Any,
    access: Any,
    short: int,
) -> None:
    folder = tmp_path_factory.mktemp("trace") / "t"
    batches = [
        make_batch(t, nodes, edges, seeds, shadow=shadow, wide=wide)
        for t, (nodes, edges, seeds, shadow) in enumerate(shapes)
    ]
    graph = {"num_nodes": WIDE, "num_edges": WIDE} if wide else GRAPH
    faults = Faults(short_every=short, reorder=bool(short))
    with Disk(DiskOptions(engine=engine, access=access, workers=2, faults=faults)) as disk:
        write(disk, folder, batches, edge_ids=edge_ids, **graph)
        with Trace(disk, folder) as trace:
            assert len(trace) == len(batches)
            assert trace.identity == {"seed": 1}
            nodes, edges = trace.sizes
            assert nodes.tolist() == [shape[0] for shape in shapes]
            assert edges.tolist() == [shape[1] for shape in shapes]
            for t, batch in enumerate(batches):
                assert_same(trace.read(t), batch, edge_ids=edge_ids)
                assert np.array_equal(trace.nodes(t), batch[1].nodes)
            for found, batch in zip(trace.scan(), batches, strict=True):
                assert_same(found, batch, edge_ids=edge_ids)
    assert disk_bytes(folder) == sum(
        predicted(batch, edge_ids=edge_ids, **graph) for batch in batches
    )


@pytest.mark.parametrize("num_nodes", [1 << 31, (1 << 31) + 1])
def test_ids_are_narrow_exactly_where_they_fit(
    tmp_path: Path, quick_disk: Disk, num_nodes: int
) -> None:
    task, subgraph = make_batch(0, 4096, 0)
    subgraph.nodes[-1] = num_nodes - 1
    folder = write(quick_disk, tmp_path / "t", [(task, subgraph)], num_nodes=num_nodes)
    assert_same(Trace(quick_disk, folder).read(0), (task, subgraph))
    header = unseal((folder / "trace.json").read_bytes(), "")
    assert header["node_dtype"] == ("<i4" if num_nodes == 1 << 31 else "<i8")
    assert header["edge_dtype"] == "<i4"


@pytest.mark.parametrize("kind", ["neighbor", "shadow"])
@pytest.mark.parametrize("replace", [True, False])
def test_samples_are_read_back_as_they_were_sampled(
    tmp_path: Path, disk: Disk, kind: Literal["neighbor", "shadow"], replace: bool
) -> None:
    graph = random_graph(2000, 12_000)
    indptr, indices, _ = expected_csc(graph)
    topology = _core.array_topology(indptr, indices.astype(np.int32))
    sampler = Sampler(Sampling.of([5, 4], replace=replace, kind=kind), topology, seed=3)
    order = SeedOrder(range(100, 1000), batch_size=128, stream=Stream.TRAIN, seed=3)
    sampled = []
    with TraceWriter(disk, tmp_path / "t", num_nodes=2000, num_edges=12_000, identity={}) as writer:
        for epoch in range(2):
            for task in order.tasks(epoch):
                subgraph = sampler.sample(task)
                writer.append(task, subgraph)
                sampled.append(copied((task, subgraph)))
        writer.finish()
    with Trace(disk, tmp_path / "t") as trace:
        for t, (found, expected) in enumerate(zip(trace.scan(), sampled, strict=True)):
            assert_same(found, expected)
            assert divmod(t, len(order)) == (found[0].epoch, found[0].batch)
    assert sum(len(subgraph.sources) for _, subgraph in sampled) > 5000


def test_the_bytes_are_those_of_the_documentation(tmp_path: Path, quick_disk: Disk) -> None:
    """Read without any of Outcrop."""
    batches = [make_batch(t, 901 - 100 * t, 4001 - 99 * t, shadow=t == 2) for t in range(3)]
    folder = write(quick_disk, tmp_path / "t", batches)
    header = json.loads((folder / "trace.json").read_text())
    assert list(header) == [
        "format", "version", "node_dtype", "edge_dtype", "edge_ids", "data_bytes", "index",
        "identity", "digest",
    ]  # fmt: skip
    data, index = (folder / "batches.bin").read_bytes(), np.load(folder / "index.npy")
    assert index.dtype.itemsize == INDEX_ROW_BYTES
    for t, (row, (task, s)) in enumerate(zip(index, batches, strict=True)):
        record = data[row["offset"] : row["offset"] + row["bytes"]]
        assert row["offset"] % 4096 == row["bytes"] % 4096 == 0
        lists = [*s.nodes_per_hop, *s.edges_per_hop, *s.roots]
        key = [1, 0, t, len(s.nodes_per_hop), len(s.edges_per_hop)]
        at = 0
        sections: list[tuple[str, int, Any]] = [
            ("<i4", row["nodes"], s.nodes),
            ("<i8", row["seeds"], task.input_ids),
            ("<i4", row["seeds"], task.seeds),
            ("<i8", row["numbers"], [*key, *lists]),
            ("<i4", row["edges"], s.edge_ids),
            ("<u4", row["targets"], s.counts),
            ("<u4", row["edges"], s.sources),
        ]
        for dtype, count, expected in sections:
            assert np.array_equal(np.frombuffer(record, dtype, count, at), expected)
            at += -(-count * np.dtype(dtype).itemsize // 8) * 8
        assert record[at:] == bytes(len(record) - at) and len(record) - at < 4096
        nodes_bytes = 4 * len(s.nodes)
        assert row["nodes_checksum"] == xxhash.xxh3_64_intdigest(record[:nodes_bytes])
        assert row["rest_checksum"] == xxhash.xxh3_64_intdigest(record[nodes_bytes:])
        assert row["row_checksum"] == xxhash.xxh3_64_intdigest(row.tobytes()[:-8], seed=t)


def test_the_same_batches_give_the_same_bytes(tmp_path: Path, disk: Disk) -> None:
    one = write(disk, tmp_path / "one", mixed())
    with TraceWriter(disk, tmp_path / "two", **GRAPH, identity={"seed": 1}) as writer:
        for batch in mixed():
            writer.append(*batch)
            writer.flush()
        writer.finish()
    for name in ("batches.bin", "index.npy", "trace.json"):
        assert (one / name).read_bytes() == (tmp_path / "two" / name).read_bytes()


def test_node_ids_are_read_without_the_rest(tmp_path: Path, quick_disk: Disk) -> None:
    batches = [make_batch(t, 2000, 100_000) for t in range(4)]
    trace = Trace(quick_disk, write(quick_disk, tmp_path / "t", batches))
    before = quick_disk.counters
    ids = list(trace.scan(1, what="nodes"))
    after = quick_disk.counters
    for found, (_, subgraph) in zip(ids, batches[1:], strict=True):
        assert found.dtype == np.int64 and np.array_equal(found, subgraph.nodes)
    assert after.bytes_read - before.bytes_read == 3 * 8192  # 8000 bytes of ids, in whole pages
    assert after.read_requests - before.read_requests == 3


def test_edge_ids_that_were_not_kept_are_none(tmp_path: Path, quick_disk: Disk) -> None:
    batch = make_batch(0, 100, 5000)
    trace = Trace(quick_disk, write(quick_disk, tmp_path / "t", [batch], edge_ids=False))
    assert not trace.has_edge_ids
    task, subgraph = trace.read(0)
    assert_same((task, subgraph), batch, edge_ids=False)
    assert subgraph.edge_ids is None
    with (
        TraceWriter(quick_disk, tmp_path / "v", **GRAPH, identity={}) as writer,
        pytest.raises(ValueError, match="a batch has none"),
    ):
        writer.append(task, subgraph)
    assert Trace(quick_disk, write(quick_disk, tmp_path / "u", [batch])).has_edge_ids


@pytest.mark.parametrize("ahead_bytes", [0, 5000, 2 << 20, 1 << 40])
def test_a_scan_of_any_range_with_any_memory(tmp_path: Path, disk: Disk, ahead_bytes: int) -> None:
    batches = mixed()
    trace = Trace(disk, write(disk, tmp_path / "t", batches))
    for first, last in [(0, None), (3, 9), (11, 12), (5, 5), (12, 12), (0, 0)]:
        expected = batches[first:last]
        found = trace.scan(first, last, ahead_bytes=ahead_bytes)
        for one, other in zip(found, expected, strict=True):
            assert_same(one, other)
        ids = trace.scan(first, last, ahead_bytes=ahead_bytes, what="nodes")
        for nodes, (_, subgraph) in zip(ids, expected, strict=True):
            assert np.array_equal(nodes, subgraph.nodes)


def test_a_narrow_scan_gives_the_same_numbers(tmp_path: Path, quick_disk: Disk) -> None:
    batches = [make_batch(t, 10 + t, 20) for t in range(6)]
    trace = Trace(quick_disk, write(quick_disk, tmp_path / "t", batches))
    for (task, narrow), (same, wide) in zip(trace.scan(what="narrow"), batches, strict=True):
        assert narrow.edge_ids is not None and wide.edge_ids is not None
        assert narrow.nodes.dtype == narrow.edge_ids.dtype == np.int32
        assert np.array_equal(narrow.nodes, wide.nodes)
        assert np.array_equal(narrow.edge_ids, wide.edge_ids)
        assert np.array_equal(narrow.sources, wide.sources)
        assert np.array_equal(task.seeds, same.seeds)
        assert task.seeds.dtype == np.int64


def test_a_scan_can_go_backwards(tmp_path: Path, quick_disk: Disk) -> None:
    batches = [make_batch(t, 10 + t, 20) for t in range(6)]
    trace = Trace(quick_disk, write(quick_disk, tmp_path / "t", batches))
    found = trace.scan(1, 5, what="nodes", backwards=True)
    for nodes, (_, subgraph) in zip(found, batches[4:0:-1], strict=True):
        assert np.array_equal(nodes, subgraph.nodes)
    sizes = [len(subgraph.nodes) for _, subgraph in trace.scan(backwards=True)]
    assert sizes == [15, 14, 13, 12, 11, 10]
    assert list(trace.scan(3, 3, backwards=True)) == []


@pytest.mark.parametrize("what", ["all", "nodes"])
@pytest.mark.parametrize("ahead_bytes", [0, 1 << 20])
def test_a_scan_holds_no_more_memory_than_it_says(
    tmp_path: Path,
    quick_disk: Disk,
    monkeypatch: pytest.MonkeyPatch,
    ahead_bytes: int,
    what: Any,
) -> None:
    batches = [make_batch(t, 9000 + 50 * t, 20_000 + 70 * t) for t in range(40)]
    trace = Trace(quick_disk, write(quick_disk, tmp_path / "t", batches))
    task, last = batches[-1]
    assert last.edge_ids is not None
    record = predicted(batches[-1], **GRAPH) - INDEX_ROW_BYTES
    record = record if what == "all" else 4 * len(last.nodes) + 4096
    ids = [last.nodes] if what == "nodes" else [last.nodes, task.seeds, last.edge_ids]
    limit = max(ahead_bytes, record) + record + sum(8 * len(part) + 4096 for part in ids)
    pools = []
    make_pool = _core.SlabPool

    def pool(limit_bytes: int) -> _core.SlabPool:
        pools.append(make_pool(limit_bytes))
        return pools[-1]

    monkeypatch.setattr(_core, "SlabPool", pool)
    for item in trace.scan(ahead_bytes=ahead_bytes, what=what):
        assert len(item)
        del item
    # A slab's size is rounded up by an eighth at most, of which nothing is touched.
    assert limit / 2 < sum(pool.peak_bytes for pool in pools) <= limit * 9 / 8
    assert sum(pool.held_bytes for pool in pools) == 0


def test_batches_outlive_the_scan_and_the_trace(tmp_path: Path, quick_disk: Disk) -> None:
    batches = mixed()
    with Trace(quick_disk, write(quick_disk, tmp_path / "t", batches)) as trace:
        kept = list(trace.scan(ahead_bytes=0))
        ids = list(trace.scan(what="nodes"))
        parts = [subgraph.sources[1:] for _, subgraph in trace.scan(ahead_bytes=0)]
    for t, (task, subgraph) in enumerate(batches):
        assert_same(kept[t], (task, subgraph))
        assert np.array_equal(ids[t], subgraph.nodes)
        assert np.array_equal(parts[t], subgraph.sources[1:])
    with pytest.raises(ValueError, match="closed"):
        trace.read(0)


def test_a_dropped_scan_reads_no_further(tmp_path: Path, quick_disk: Disk) -> None:
    batches = [make_batch(t, 2000, 2000) for t in range(50)]
    trace = Trace(quick_disk, write(quick_disk, tmp_path / "t", batches))
    before = quick_disk.counters.bytes_read
    scan = trace.scan(ahead_bytes=100_000)
    next(scan)
    del scan
    assert quick_disk.counters.bytes_read - before < 200_000


def test_readers_at_once_do_not_disturb_each_other(tmp_path: Path, engine: Any) -> None:
    batches = mixed()
    failures: list[BaseException] = []

    def read(trace: Trace, reader: int) -> None:
        try:
            for _ in range(2):
                first = reader % 5
                scan = trace.scan(first, ahead_bytes=reader << 18)
                for t, found in enumerate(scan, first):
                    assert_same(found, batches[t])
                    assert np.array_equal(trace.nodes(t), batches[t][1].nodes)
        except BaseException as error:
            failures.append(error)

    faults = Faults(short_every=3, reorder=True)
    with Disk(DiskOptions(engine=engine, faults=faults)) as disk:
        trace = Trace(disk, write(disk, tmp_path / "t", batches))
        threads = [threading.Thread(target=read, args=(trace, i)) for i in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert failures == []


# While it is being written


def test_a_reader_follows_a_writer(tmp_path: Path, disk: Disk) -> None:
    """Superbatches: one is read while the next is appended, across the writer's buffers."""
    batches = [make_batch(t, 9000 + t, 30_000 - t) for t in range(80)]
    failures: list[BaseException] = []

    def read(reader: TraceReader, first: int) -> None:
        try:
            for t, found in enumerate(reader.scan(first, ahead_bytes=1 << 20), first):
                assert_same(found, batches[t])
        except BaseException as error:
            failures.append(error)

    threads, readers = [], []
    with TraceWriter(disk, tmp_path / "t", **GRAPH, identity={}) as writer:
        assert len(writer.flush()) == 0
        for t, batch in enumerate(batches):
            writer.append(*batch)
            if t % 8 == 7:
                readers.append(writer.flush())
                threads.append(threading.Thread(target=read, args=(readers[-1], t - 7)))
                threads[-1].start()
        with pytest.raises(StoreError, match="never finished"):
            Trace(disk, tmp_path / "t")
        writer.finish()
    for thread in threads:
        thread.join()
    assert failures == []
    assert [len(reader) for reader in readers] == list(range(8, 81, 8))
    with pytest.raises(IndexError):
        readers[0].read(8)  # flushed since, but not when this one was made
    assert_same(readers[0].read(7), batches[7])
    for found, expected in zip(Trace(disk, tmp_path / "t").scan(), batches, strict=True):
        assert_same(found, expected)


def test_what_is_flushed_is_in_the_file(tmp_path: Path, engine: Any) -> None:
    batches = [make_batch(t, 90_000, 90_000 * (t % 2)) for t in range(6)]
    with Disk(DiskOptions(engine=engine, workers=1)) as disk:
        data = (write(disk, tmp_path / "t", batches) / "batches.bin").read_bytes()
    faults = Faults(delay_us=10_000)
    end = 0
    with (
        Disk(DiskOptions(engine=engine, workers=1, faults=faults)) as disk,
        TraceWriter(disk, tmp_path / "u", **GRAPH, identity={}) as writer,
    ):
        for batch in batches:
            writer.append(*batch)
            writer.flush()
            end += predicted(batch, **GRAPH) - INDEX_ROW_BYTES
            assert (tmp_path / "u" / "batches.bin").read_bytes()[:end] == data[:end]


def test_a_trace_lives_in_a_derived_layout(tmp_path: Path, quick_disk: Disk) -> None:
    layouts = DerivedLayouts(tmp_path, "content")
    inputs = {"seed": 7, "num_neighbors": [5, 4], "replace": False}

    def build(folder: Path) -> None:
        write(quick_disk, folder, mixed(), identity=inputs)

    with layouts.get_or_build("trace", inputs, build) as layout:
        trace = Trace(quick_disk, layout.path)
        assert trace.identity == inputs
        assert_same(trace.read(3), mixed()[3])

    def fail(folder: Path) -> None:
        with TraceWriter(quick_disk, folder, **GRAPH, identity={}) as writer:
            writer.append(*make_batch(0, 5, 5))
            raise RuntimeError

    with pytest.raises(RuntimeError):
        layouts.get_or_build("trace", {}, fail)
    assert layouts.find("trace", {}) is None


KILLED = """
import os, signal, sys
from pathlib import Path
from outcrop.disk import Disk
from outcrop.layout.trace import TraceWriter
from outcrop.store.workdir import WorkDirectory
from tests.layout.test_trace import GRAPH, make_batch
work = WorkDirectory(Path(sys.argv[1]))
writer = TraceWriter(Disk(), work.path, **GRAPH, identity={})
for t in range(30):
    writer.append(*make_batch(t, 9000, 9000))
assert len(writer.flush()) == 30
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_killed_writer_leaves_what_is_refused_and_can_be_removed(
    tmp_path: Path, quick_disk: Disk
) -> None:
    command = [sys.executable, "-c", KILLED, str(tmp_path / "t")]
    done = subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr.decode()
    [left] = leftovers(tmp_path)
    assert (left / "batches.bin").stat().st_size > 30 * 9000 * 12
    with pytest.raises(StoreError, match="never finished"):
        Trace(quick_disk, left)


# Damage


def flips(path: Path, at: range | list[int]) -> Iterator[int]:
    """Each byte of a file changed in turn, and changed back."""
    with path.open("r+b", buffering=0) as file:
        for position in at:
            [byte] = os.pread(file.fileno(), 1, position)
            os.pwrite(file.fileno(), bytes([byte ^ (1 << position % 8)]), position)
            yield position
            os.pwrite(file.fileno(), bytes([byte]), position)


def test_a_flipped_byte_of_a_batch_is_found_and_named(tmp_path: Path, engine: Any) -> None:
    sizes = [(1, 1), (700, 900), (0, 0), (1500, 300)]
    batches = [make_batch(t, *size) for t, size in enumerate(sizes)]
    with Disk(DiskOptions(engine=engine, access="buffered", workers=2)) as disk:
        folder = write(disk, tmp_path / "t", batches)
        trace, path = Trace(disk, folder), folder / "batches.bin"
        ends = np.cumsum([predicted(batch, **GRAPH) - INDEX_ROW_BYTES for batch in batches])
        assert path.stat().st_size == ends[-1]
        edges = [at for end in ends.tolist() for at in (end - 4096, end - 1)]
        for at in flips(path, [*range(0, ends[-1], 53), *edges]):
            t = int(np.searchsorted(ends, at, side="right"))
            begin = int(ends[t - 1]) if t else 0
            in_nodes = at - begin < 4 * sizes[t][0]
            with pytest.raises(CorruptError, match=rf"batches\.bin: batch {t}: \d+ B at \d+ ") as e:
                trace.read(t)
            length, offset = (int(word) for word in str(e.value).split() if word.isdigit())
            assert offset <= at < offset + length
            if in_nodes:
                with pytest.raises(CorruptError, match=f"batch {t}: "):
                    trace.nodes(t)
            else:
                assert np.array_equal(trace.nodes(t), batches[t][1].nodes)
            with pytest.raises(CorruptError, match=f"batch {t}: "):
                for number, found in enumerate(trace.scan()):
                    assert_same(found, batches[number])
        for found, batch in zip(trace.scan(), batches, strict=True):
            assert_same(found, batch)


def test_a_flipped_byte_of_the_index_is_found_and_named(tmp_path: Path, quick_disk: Disk) -> None:
    batches = [make_batch(t, 3, 3) for t in range(4)]
    folder = write(quick_disk, tmp_path / "t", batches)
    for _ in flips(folder / "index.npy", range(0, HEADER_BYTES, 31)):
        with pytest.raises(CorruptError, match=r"index\.npy: .*header"):
            Trace(quick_disk, folder)
    end = HEADER_BYTES + 4 * INDEX_ROW_BYTES
    assert (folder / "index.npy").stat().st_size == end
    for at in flips(folder / "index.npy", range(HEADER_BYTES, end)):
        t, begin = divmod(at - HEADER_BYTES, INDEX_ROW_BYTES)
        with pytest.raises(CorruptError, match=rf"index\.npy: batch {t}: 80 B at {at - begin}: "):
            Trace(quick_disk, folder)
    assert len(Trace(quick_disk, folder)) == 4


def test_rows_of_the_index_that_changed_places_are_found(tmp_path: Path, quick_disk: Disk) -> None:
    folder = write(quick_disk, tmp_path / "t", [make_batch(t, 3, 3) for t in range(4)])
    data = bytearray((folder / "index.npy").read_bytes())
    first, second = slice(4096 + 80, 4096 + 160), slice(4096 + 160, 4096 + 240)
    data[first], data[second] = data[second], data[first]
    (folder / "index.npy").write_bytes(data)
    with pytest.raises(CorruptError, match="batch 1: "):
        Trace(quick_disk, folder)


def test_a_flipped_byte_of_the_header_is_found(tmp_path: Path, quick_disk: Disk) -> None:
    folder = write(quick_disk, tmp_path / "t", [make_batch(0, 3, 3)])
    header = folder / "trace.json"
    for _ in flips(header, range(0, header.stat().st_size, 3)):
        with pytest.raises(CorruptError, match=r"trace\.json: "):
            Trace(quick_disk, folder)


@pytest.mark.parametrize("format_, version", [("outcrop-trace", 2), ("outcrop-store", 1)])
def test_another_version_or_format_is_refused(
    tmp_path: Path, quick_disk: Disk, format_: str, version: int
) -> None:
    path = write(quick_disk, tmp_path / "t", []) / "trace.json"
    values = {**unseal(path.read_bytes(), ""), "format": format_, "version": version}
    path.write_bytes(seal(values))
    with pytest.raises(StoreError, match=f"got {format_} version {version}"):
        Trace(quick_disk, tmp_path / "t")


@pytest.mark.parametrize("batch", range(4))
def test_a_cut_off_data_file_is_refused_by_batch(
    tmp_path: Path, quick_disk: Disk, batch: int
) -> None:
    batches = [make_batch(t, 1000, 1000) for t in range(4)]
    folder = write(quick_disk, tmp_path / "t", batches)
    record = predicted(batches[0], **GRAPH) - INDEX_ROW_BYTES
    trace = Trace(quick_disk, folder)
    os.truncate(folder / "batches.bin", (batch + 1) * record - 1)
    with pytest.raises(CorruptError, match=rf"batches\.bin: \d+ B, .* those from {batch} on"):
        Trace(quick_disk, folder)
    # cut off while it is open: what is left is still good
    for t in range(batch):
        assert_same(trace.read(t), batches[t])
    with pytest.raises(ReadError, match=rf"batches\.bin: .*\(batch {batch} of the trace\)"):
        trace.read(batch)


@pytest.mark.parametrize("size", [0, 100, 4096, 4096 + 79, 4096 + 80, 4096 + 4 * 80 - 1])
def test_a_cut_off_index_is_refused(tmp_path: Path, quick_disk: Disk, size: int) -> None:
    folder = write(quick_disk, tmp_path / "t", [make_batch(t, 3, 3) for t in range(4)])
    os.truncate(folder / "index.npy", size)
    batch = max(0, size - 4096) // 80
    with pytest.raises(CorruptError, match=rf"index\.npy: batch {batch}: "):
        Trace(quick_disk, folder)


@pytest.mark.parametrize("name", ["index.npy", "batches.bin"])
def test_bytes_at_the_end_that_do_not_belong_there_are_refused(
    tmp_path: Path, quick_disk: Disk, name: str
) -> None:
    folder = write(quick_disk, tmp_path / "t", mixed())
    with (folder / name).open("ab") as file:
        file.write(b"x")
    with pytest.raises(CorruptError, match=name):
        Trace(quick_disk, folder)


def test_what_is_no_trace_is_refused(tmp_path: Path, quick_disk: Disk) -> None:
    (tmp_path / "file").touch()
    for path in (tmp_path, tmp_path / "nothing", tmp_path / "file"):
        with pytest.raises(StoreError, match="not a trace"):
            Trace(quick_disk, path)


# Failures


def test_a_failed_read_names_the_batch(tmp_path: Path, engine: Any) -> None:
    batches = [make_batch(t, 1000, 1000) for t in range(4)]
    with Disk(DiskOptions(workers=1)) as disk:
        folder = write(disk, tmp_path / "t", batches)
    # The index is the first request; then a request per batch.
    faults = Faults(fail_read_at=4)
    with Disk(DiskOptions(engine=engine, workers=1, faults=faults)) as disk:
        trace = Trace(disk, folder)
        scan = trace.scan(ahead_bytes=0)
        for t in range(2):
            assert_same(next(scan), batches[t])
        message = r"batches\.bin: \d+ B at \d+: Input/output error \(batch 2 of the trace\)"
        with pytest.raises(ReadError, match=message) as caught:
            next(scan)
        assert caught.value.errno == errno.EIO
        assert caught.value.filename == str(folder / "batches.bin")
        record = predicted(batches[0], **GRAPH) - INDEX_ROW_BYTES
        assert (caught.value.offset, caught.value.length) == (2 * record, record)
        assert_same(trace.read(2), batches[2])  # the trace lives on


def test_an_index_that_cannot_be_read_is_a_read_error(tmp_path: Path, engine: Any) -> None:
    with Disk(DiskOptions(workers=1)) as disk:
        folder = write(disk, tmp_path / "t", mixed(2))
    with (
        Disk(DiskOptions(engine=engine, faults=Faults(fail_read_at=1))) as disk,
        pytest.raises(ReadError, match=r"index\.npy: .*Input/output error"),
    ):
        Trace(disk, folder)


@pytest.mark.parametrize("fail_at", [1, 3, 6])  # 6: the index, where nothing was flushed
@pytest.mark.parametrize("flushing", [True, False])
def test_a_full_disk_is_reported_and_leaves_no_trace(
    tmp_path: Path, engine: Any, fail_at: int, flushing: bool
) -> None:
    faults = Faults(fail_write_at=fail_at, error=errno.ENOSPC)
    batches = [make_batch(t, 90_000, 90_000) for t in range(4)]  # 1.1 MB each
    folder = tmp_path / "t"
    with Disk(DiskOptions(engine=engine, workers=1, faults=faults)) as disk:
        writer = TraceWriter(disk, folder, **GRAPH, identity={})
        with pytest.raises(WriteError, match="No space left on device") as caught:
            for batch in batches:
                writer.append(*batch)
                if flushing:
                    writer.flush()
            writer.finish()
        assert caught.value.errno == errno.ENOSPC
        for call in (lambda: writer.append(*batches[0]), writer.flush, writer.finish):
            with pytest.raises(ValueError, match="closed"):
                call()
        with pytest.raises(StoreError, match="never finished"):
            Trace(disk, folder)
        shutil.rmtree(folder)
        write(disk, folder, batches)  # there is room again
        assert_same(Trace(disk, folder).read(3), batches[3])


def test_bad_arguments_are_refused_and_nothing_is_appended(
    tmp_path: Path, quick_disk: Disk
) -> None:
    good = make_batch(0, 10, 10)
    task, s = good
    with TraceWriter(quick_disk, tmp_path / "t", **GRAPH, identity={}) as writer:
        writer.append(*good)
        for name, values, match in [
            ("nodes", np.array([5000]), r"a node is 0 to 4999 \(got 5000 to 5000\)"),
            ("nodes", np.array([7, -1]), r"got -1 to 7"),
            ("edge_ids", np.array([40_000] * 10), "an edge id is 0 to 39999"),
            ("edge_ids", np.array([1]), r"shape \(10,\) was expected \(got \(1,\)\)"),
        ]:
            with pytest.raises(ValueError, match=match):
                writer.append(task, Subgraph(**{**vars(s), name: values}))
        with pytest.raises(ValueError, match="a seed is"):
            writer.append(Task(task.stream, 0, 0, task.input_ids, task.seeds + 5000), s)
        with pytest.raises(TypeError, match="int64"):
            writer.append(task, Subgraph(**{**vars(s), "sources": np.arange(10)}))
        with pytest.raises(FileExistsError):
            TraceWriter(quick_disk, tmp_path / "t", **GRAPH, identity={})
        writer.finish()
    trace = Trace(quick_disk, tmp_path / "t")
    assert len(trace) == 1
    assert_same(trace.read(0), good)
    for first, last in [(1, 2), (-1, 0), (1, 0)]:
        with pytest.raises(IndexError, match=r"of 1$"):
            trace.scan(first, last)
    with pytest.raises(IndexError):
        trace.nodes(1)
    with pytest.raises(OptionError, match="all, narrow or nodes"):
        trace.scan(what="edges")  # type: ignore[call-overload]
    with pytest.raises(OptionError, match="plain values"):
        TraceWriter(quick_disk, tmp_path / "u", **GRAPH, identity={"a": {1, 2}})
    assert not (tmp_path / "u").exists()
