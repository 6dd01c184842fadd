"""The block layout: every list in it as docs/format.md says, whatever is interrupted or damaged."""

from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

import outcrop
from outcrop import _core
from outcrop.errors import CorruptError, OptionError
from outcrop.layout import blocks as module
from outcrop.layout.blocks import (
    BLOCKS_VERSION,
    KIND,
    blocks_bytes,
    index_bytes,
    load_index,
    open_blocks,
    read_header,
)
from outcrop.store.derived import find_garbage, remove
from outcrop.store.store import GraphStore
from tests.damage import damage
from tests.graphs import Graph, files_of, graphs, random_graph
from tests.processes import program, running
from tests.stores import make_store, rewrite_array

PAGE = 4096
HEADER = np.dtype(
    [("checksum", "<u8"), ("first_node", "<i8"), ("first_edge", "<i8"), ("before", "<i8"),
     ("last_degree", "<i8"), ("nodes", "<u4"), ("entries", "<u4")]
)  # fmt: skip


def with_hubs(graph: Graph, hubs: dict[int, int], seed: int = 0) -> Graph:
    """The graph, with so many more edges to some of its nodes."""
    rng = np.random.default_rng(seed)
    more = [
        np.stack([rng.integers(0, graph.num_nodes, count), np.full(count, node)])
        for node, count in hubs.items()
    ]
    return Graph(graph.num_nodes, np.concatenate([graph.edges, *more], axis=1))


@pytest.fixture
def store(tmp_path: Path) -> Iterator[GraphStore]:
    graph = with_hubs(random_graph(3000, 20_000), {0: 5000, 700: 1010, 701: 1011, 2999: 30_000})
    with make_store(tmp_path / "s", graph, dim=2) as made:
        yield made


def parsed(
    store: GraphStore, path: Path, block_bytes: int
) -> tuple[NDArray[np.int64], NDArray[Any], list[int]]:
    """indptr and indices as the blocks have them, and the last node of each, read as documented."""
    dtype = store.manifest.arrays["indices"].dtype
    data = np.fromfile(path / "blocks.npy", np.uint8, offset=PAGE)
    begins: dict[int, int] = {}
    degrees: dict[int, int] = {}
    entries, last_nodes, edges = [], [], 0
    for number, block in enumerate(data.reshape(-1, block_bytes)):
        header = block[:48].view(HEADER)[0]
        clear = block.copy()
        clear[:8] = 0
        assert header["checksum"] == xxhash.xxh64_intdigest(clear.data, seed=number)
        nodes, count = int(header["nodes"]), int(header["entries"])
        assert nodes > 0
        assert header["first_edge"] == edges
        ends = block[48 : 48 + 4 * nodes].view("<u4").tolist()
        begin = -(-(48 + 4 * nodes) // 8) * 8
        own = block[begin : begin + count * dtype.itemsize].view(dtype)
        assert not block[begin + own.nbytes :].any()
        entries.append(own)
        first = int(header["first_node"])
        for i, (start, end) in enumerate(zip([0, *ends], ends, strict=False)):
            before = int(header["before"]) if i == 0 else 0
            node = first + i
            assert begins.setdefault(node, edges + start - before) == edges + start - before
            if before:
                assert before == degrees[node]
                assert before % ((block_bytes - 56) // dtype.itemsize) == 0
            degrees[node] = before + end - start
            if i + 1 < nodes:
                assert degrees[node] == before + end - start
        assert (
            header["last_degree"] == store.indptr[first + nodes] - store.indptr[first + nodes - 1]
        )
        last_nodes.append(first + nodes - 1)
        edges += count
    assert list(begins) == list(range(store.num_nodes))
    indptr = np.array([*begins.values(), edges])
    return indptr, np.concatenate(entries), last_nodes


def assert_whole(store: GraphStore, block_bytes: int) -> None:
    with open_blocks(store, block_bytes) as layout:
        header = read_header(layout.path)
        assert header.block_bytes == block_bytes
        indptr, indices, last_nodes = parsed(store, layout.path, block_bytes)
        assert np.array_equal(indptr, store.indptr)
        assert np.array_equal(indices, store.indices)
        index = load_index(store.disk, layout.path, header)
        assert index.tolist() == last_nodes
        assert index.nbytes <= index_bytes(store.facts, block_bytes)
        assert sum(module.block_sizes(layout.path).values()) <= blocks_bytes(
            store.facts, block_bytes
        )


@pytest.mark.parametrize("block_bytes", [4 << 10, 16 << 10, 1 << 20, 4 << 20])
def test_every_list_is_in_its_blocks(store: GraphStore, block_bytes: int) -> None:
    assert_whole(store, block_bytes)


@pytest.mark.parametrize("degree", [1009, 1010, 1011, 2020, 2021])
def test_lists_about_as_large_as_a_block(tmp_path: Path, degree: int) -> None:
    """A block of 4 KiB takes 1010 entries of one node."""
    none = Graph(5, np.empty((2, 0), np.int64))
    graph = with_hubs(none, {1: degree, 2: 3, 3: degree})
    with make_store(tmp_path / "s", graph, dim=None) as store:
        assert_whole(store, PAGE)


@given(data=st.data())
def test_any_graph(data: st.DataObject) -> None:
    graph = data.draw(graphs())
    node = st.integers(0, graph.num_nodes - 1)
    hubs = data.draw(st.dictionaries(node, st.integers(900, 4000), max_size=3))
    with (
        tempfile.TemporaryDirectory() as folder,
        make_store(Path(folder) / "s", with_hubs(graph, hubs), dim=None) as store,
    ):
        assert_whole(store, data.draw(st.sampled_from([4 << 10, 8 << 10, 4 << 20])))


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_pieces_of_any_size_make_the_same_blocks(dtype: Any) -> None:
    """Offsets, entries and room for blocks may each end anywhere."""
    rng = np.random.default_rng(1)
    degrees = rng.choice([0, 0, 1, 5, 300, 1500], 200)
    indptr = np.concatenate([[0], np.cumsum(degrees)])
    indices = rng.integers(0, 200, indptr[-1]).astype(dtype)
    expected = None
    for pieces in [(1000, 100_000, 1000), (1, 1, 1), (7, 13, 1), (3, 1000, 2), (1000, 50, 1)]:
        made = b"".join(feed(indptr, indices, *pieces))
        expected = expected or made
        assert made == expected


def feed(
    indptr: NDArray[np.int64], indices: NDArray[Any], nodes: int, entries: int, blocks: int
) -> Iterator[bytes]:
    make = _core.BlockWriter32 if indices.dtype == np.int32 else _core.BlockWriter64
    writer = make(PAGE, len(indptr) - 1)
    out, last_nodes = np.empty(blocks * PAGE, np.uint8), np.empty(blocks, np.int64)
    node = edge = 0
    while node < len(indptr) - 1:
        taken, used, made = writer.add(
            indptr[node : node + nodes + 1], indices[edge : edge + entries], out, last_nodes
        )
        assert taken or used or made
        node, edge = node + taken, edge + used
        yield out[: made * PAGE].tobytes()
    assert writer.num_edges == edge == len(indices)
    if writer.finish(out, last_nodes):
        yield out[:PAGE].tobytes()
    assert not writer.finish(out, last_nodes)


def test_a_node_without_neighbours_takes_four_bytes(tmp_path: Path) -> None:
    graph = Graph(100_000, np.array([[1], [2]]))
    with make_store(tmp_path / "s", graph, dim=None) as store, open_blocks(store, PAGE) as layout:
        assert read_header(layout.path).count == -(-100_000 * 4 // (PAGE - 48))


def test_blocks_of_a_size_that_cannot_be_are_refused(store: GraphStore) -> None:
    for size in (0, 2048, 5000, 8 << 20):
        with pytest.raises(OptionError, match="power of two of 4 KiB to 4 MiB"):
            open_blocks(store, size)


# Damage


@pytest.mark.parametrize("name", ["indptr", "indices"])
def test_none_is_made_of_a_damaged_topology(store: GraphStore, name: str) -> None:
    good = store.file(name).read_bytes()
    damage(store, name)
    with pytest.raises(CorruptError, match=rf"{name}\.npy: piece 0"):
        open_blocks(store)
    assert not store.derived.records(KIND)
    store.file(name).write_bytes(good)
    assert_whole(store, 1 << 20)


def _descends(offsets: NDArray[np.int64]) -> None:
    offsets[5] = offsets[6] + 1


def _no_node(entries: NDArray[Any]) -> None:
    entries[100] = 3000


def _ends_early(offsets: NDArray[np.int64]) -> None:
    offsets[-1] -= 7


@pytest.mark.parametrize(
    "name,change,message",
    [
        ("indptr", _descends, "node 5: its list begins at edge"),
        ("indices", _no_node, "comes from 3000, which is no node"),
        ("indptr", _ends_early, "ends at edge"),
    ],
)
def test_none_is_made_of_a_topology_that_was_written_wrong(
    store: GraphStore, name: str, change: Any, message: str
) -> None:
    rewrite_array(store.path, name, change)
    with outcrop.open(store.path) as wrong, pytest.raises(CorruptError, match=message):
        open_blocks(wrong)


def test_verify_finds_a_damaged_block(store: GraphStore) -> None:
    with open_blocks(store, PAGE) as layout:
        path = layout.path
    assert outcrop.verify(store.path).ok
    for name in ("blocks.npy", "index.npy", "blocks.json"):
        good = (path / name).read_bytes()
        for at in (0, len(good) // 2, len(good) - 1):
            bad = bytearray(good)
            bad[at] ^= 4
            (path / name).write_bytes(bad)
            [problem] = outcrop.verify(store.path).problems
            assert problem.file == str(path / name)
        (path / name).write_bytes(good)
    assert outcrop.verify(store.path).ok


# Killed

_KILLED = """
import os, signal, sys
from outcrop.layout.blocks import open_blocks
from outcrop.store import arrays
from outcrop.store.store import GraphStore

left, append = int(sys.argv[2]), arrays.ArrayWriter.append

def killed(self, chunk):
    global left
    left -= 1
    if left < 0:
        os.kill(os.getpid(), signal.SIGKILL)
    append(self, chunk)

arrays.ArrayWriter.append = killed
open_blocks(GraphStore(sys.argv[1]), 4096)
"""


@pytest.mark.parametrize("appends", [0, 1, 2])
def test_what_is_killed_is_made_anew(store: GraphStore, appends: int) -> None:
    with open_blocks(store, PAGE) as layout:
        expected = files_of(layout.path)
        path = layout.path
    [garbage] = [g for g in find_garbage(store.path, everything=True) if g.path == path]
    assert remove(garbage)
    with running(program(_KILLED, str(store.path), str(appends))) as process:
        assert process.wait() == -signal.SIGKILL
    assert store.derived.begun(KIND, {"block_bytes": PAGE, "version": BLOCKS_VERSION})
    assert not path.exists()
    [left] = find_garbage(store.path)
    assert left.why == "left by an interrupted preparation"
    assert_whole(store, PAGE)
    assert files_of(path) == expected
    assert not list(find_garbage(store.path))
    assert os.listdir(path.parent) == [path.name]
