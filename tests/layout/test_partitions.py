"""Partitions: every node in one part, few edges between parts, all of it found again."""

from __future__ import annotations

import math
import os
import signal
import tempfile
from collections.abc import Iterator
from dataclasses import asdict
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
from outcrop.errors import BudgetError, CorruptError, OptionError
from outcrop.layout import stream
from outcrop.layout.fennel import FennelOptions, assign_parts, most_nodes
from outcrop.layout.partition_writer import PartsWriter
from outcrop.layout.partitions import (
    KIND,
    PARTITIONS_VERSION,
    PartitionOptions,
    Partitions,
    default_parts,
    least_bytes,
    open_partitions,
    partition_sizes,
    partitions_bytes,
    read_header,
)
from outcrop.options import size_of_at_least
from outcrop.progress import Progress
from outcrop.store.derived import find_garbage, remove
from outcrop.store.store import GraphStore
from tests.cage import OUTCROP, run_caged
from tests.damage import damage
from tests.graphs import Graph, files_of, graphs
from tests.processes import program, running
from tests.stores import make_store, rewrite_array

ARRAYS = ["assignment", "cross", "members", "list_offsets", "lists", "list_sums",
          "member_offsets", "entry_offsets", "seeds", "seed_offsets"]  # fmt: skip


def communities(nodes: int, size: int, edges: int, share: float, seed: int = 0) -> Graph:
    """Communities of `size` nodes whose ids are anywhere, with a share of the edges within them."""
    rng = np.random.default_rng(seed)
    targets = rng.integers(0, nodes, edges)
    near = np.minimum(targets // size * size + rng.integers(0, size, edges), nodes - 1)
    sources = np.where(rng.random(edges) < share, near, rng.integers(0, nodes, edges))
    return Graph(nodes, rng.permutation(nodes)[np.stack([sources, targets])])


@pytest.fixture
def store(tmp_path: Path) -> Iterator[GraphStore]:
    with make_store(tmp_path / "s", communities(3000, 100, 30_000, 0.8), dim=2) as made:
        yield made


def opened(store: GraphStore, memory: str | int = "2GB", **options: Any) -> Partitions:
    layout = open_partitions(store, PartitionOptions(**options), memory=memory)
    return Partitions(store.disk, layout)


def assert_whole(
    store: GraphStore, parts: int, memory: str | int = "2GB", **options: Any
) -> NDArray[np.uint32]:
    """The layout is what docs/format.md says, all of it; returns the part of each node."""
    with opened(store, memory, parts=parts, **options) as partitions:
        assignment = partitions.load_assignment()
        assert partitions.parts == parts
        assert assignment.dtype == np.uint32 and assignment.shape == (store.num_nodes,)
        assert assignment.max() < parts
        sizes = np.bincount(assignment, minlength=parts)
        imbalance = options.get("imbalance", 1.1)
        assert sizes.max() <= max(
            math.ceil(store.num_nodes / parts), imbalance * store.num_nodes / parts
        )
        indptr, indices = np.asarray(store.indptr), np.asarray(store.indices)
        train = store.split("train") if store.has("train") else np.empty(0, np.int64)
        for part in range(parts):
            members = partitions.members(part)
            assert np.array_equal(members, np.flatnonzero(assignment == part))
            assert np.array_equal(partitions.seeds(part), train[assignment[train] == part])
            offsets, lists = partitions.list_offsets(part), partitions.lists(part)
            assert np.array_equal(np.diff(offsets), indptr[members + 1] - indptr[members])
            assert (offsets[0], offsets[-1]) == tuple(partitions.entry_offsets[part : part + 2])
            wanted = [indices[indptr[v] : indptr[v + 1]] for v in members]
            assert np.array_equal(lists, np.concatenate([indices[:0], *wanted]))
            offset, length = partitions.list_extent(part)
            on_disk = partitions.lists_file.read_bytes()[offset : offset + length]
            assert on_disk == lists.tobytes()
        targets = np.repeat(np.arange(store.num_nodes), np.diff(indptr))
        crossing = assignment[indices] != assignment[targets]
        counts = np.bincount(indices[crossing], minlength=store.num_nodes)
        assert np.array_equal(partitions.load_cross(), counts)
        file = partitions.file
        assert (file.cut, file.edges) == (crossing.sum(), store.num_edges)
        assert file.cut_share == pytest.approx(crossing.mean() if len(crossing) else 0)
        assert file.balance == pytest.approx(sizes.max() * parts / store.num_nodes)
        seeds = np.bincount(assignment[train], minlength=parts)
        expected = seeds.max() * parts / len(train) if len(train) else 1
        assert file.seed_balance == pytest.approx(expected)
        assert partitions.digest == xxhash.xxh3_128(assignment.tobytes()).hexdigest()
        ids = np.random.default_rng(0).integers(0, store.num_nodes, 50)
        assert np.array_equal(partitions.assignment_of(ids), assignment[ids])
        assert len(partitions.assignment_of(ids[:0])) == 0
        assert sum(partition_sizes(partitions.path).values()) <= partitions_bytes(
            store.facts, parts
        )
        members = np.concatenate(list(partitions.all_members()))
        assert np.array_equal(members, np.argsort(assignment, kind="stable"))
        return assignment


@pytest.mark.parametrize("parts", [1, 7, 60])
@pytest.mark.parametrize("levels", [1, 2])
def test_every_part_has_its_nodes_lists_and_seeds(
    store: GraphStore, parts: int, levels: int
) -> None:
    assert_whole(store, parts, levels=levels)


@given(data=st.data())
def test_any_graph(data: st.DataObject) -> None:
    """Without edges, with one node, isolated nodes, loops, more parts than nodes, no seeds."""
    graph = data.draw(graphs())
    bloom = data.draw(st.booleans())
    options: dict[str, Any] = {
        "levels": data.draw(st.sampled_from([1, 2])),
        "passes": 1 if bloom else data.draw(st.integers(1, 3)),
        "counting": "bloom" if bloom else "exact",
        "gamma": data.draw(st.sampled_from([1.0, 1.5, 2.0])),
        "imbalance": data.draw(st.sampled_from([1.0, 1.1, 2.0])),
        "seed": data.draw(st.integers(0, 3)),
    }
    train = data.draw(st.integers(0, graph.num_nodes))
    with (
        tempfile.TemporaryDirectory() as folder,
        make_store(Path(folder) / "s", graph, dim=None, train=train) as store,
    ):
        assert_whole(store, data.draw(st.integers(1, 40)), **options)


def test_a_store_without_a_training_set(tmp_path: Path) -> None:
    (tmp_path / "g.txt").write_text("\n".join(f"{v} {v + 1}" for v in range(50)))
    imported = outcrop_command("import", "edgelist", tmp_path / "g.txt", tmp_path / "s")
    assert imported == 0
    with outcrop.open(tmp_path / "s") as store:
        assert not store.has("train")
        assert_whole(store, 5)
        with opened(store, parts=5) as partitions:
            assert partitions.file.seed_balance == 1
            assert len(partitions.seeds(3)) == 0


def outcrop_command(*arguments: str | Path) -> int:
    import subprocess

    return subprocess.run([*OUTCROP, *map(str, arguments)], capture_output=True).returncode


# What it is for


@pytest.mark.parametrize("levels", [1, 2])
def test_communities_are_found(tmp_path: Path, levels: int) -> None:
    graph = communities(20_000, 200, 300_000, 0.9)
    with (
        make_store(tmp_path / "s", graph, dim=None, train=2000) as store,
        opened(store, parts=50, levels=levels) as partitions,
    ):
        file = partitions.file
        assert file.cut_share < 0.35  # 0.1 is the least, and 0.98 what parts at random have
        assert file.balance <= 1.1 and file.seed_balance < 1.2


def test_each_pass_cuts_less(tmp_path: Path) -> None:
    graph = communities(20_000, 200, 300_000, 0.9)
    with make_store(tmp_path / "s", graph, dim=None, train=2000) as store:
        cuts = []
        for passes in (1, 2, 4):
            with opened(store, parts=50, passes=passes) as partitions:
                cuts.append(partitions.file.cut_share)
    assert cuts[0] > cuts[1] > cuts[2]


def test_training_nodes_are_balanced_though_they_are_all_in_one_community(tmp_path: Path) -> None:
    graph = communities(4000, 1000, 40_000, 0.9)
    with make_store(tmp_path / "s", graph, dim=None) as store:
        rewrite_array(store.path, "train", lambda ids: ids.__setitem__(slice(None), _first(ids)))
    with outcrop.open(tmp_path / "s") as store, opened(store, parts=8) as partitions:
        assert partitions.file.balance <= 1.1
        assert partitions.file.seed_balance <= 1.25


def _first(ids: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.arange(len(ids))


def test_not_far_from_metis(tmp_path: Path) -> None:
    pymetis = pytest.importorskip("pymetis", reason="METIS to compare with: pip install pymetis")
    graph = communities(10_000, 250, 100_000, 0.85)
    both = Graph(graph.num_nodes, np.concatenate([graph.edges, graph.edges[::-1]], axis=1))
    with make_store(tmp_path / "s", both, dim=None, train=1000) as store:
        indptr, indices = np.asarray(store.indptr), np.asarray(store.indices)
        adjacency = pymetis.CSRAdjacency(indptr, indices.astype(np.int64))
        _, found = pymetis.part_graph(20, adjacency)
        theirs = np.asarray(found)
        targets = np.repeat(np.arange(store.num_nodes), np.diff(indptr))
        metis_cut = (theirs[indices] != theirs[targets]).mean()
        with opened(store, parts=20) as partitions:
            assert partitions.file.cut_share < 1.5 * metis_cut + 0.02


# The same again


def test_the_same_whatever_the_memory_and_the_sizes_of_reads(
    store: GraphStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = 30
    with opened(store, parts=parts) as partitions:
        path, expected = partitions.path, files_of(partitions.path)
    small = least_bytes(store.facts, parts)
    cases: list[tuple[int, int | None, int | None]] = [
        (2 << 30, 777, None), (small, None, None), (small, 101, 0), (small, None, 4000),
    ]  # fmt: skip
    for memory, cut_at, room in cases:
        forget(store, path)
        with monkeypatch.context() as patch:
            if cut_at is not None:
                cut_reads(patch, cut_at)
            if room is not None:  # less than a part, or than most of them
                write = PartsWriter.write_lists
                patch.setattr(
                    PartsWriter,
                    "write_lists",
                    lambda self, counts, _, *rest, write=write, room=room: write(
                        self, counts, room, *rest
                    ),
                )
            assert_whole(store, parts, memory)
        assert files_of(path) == expected


def cut_reads(patch: pytest.MonkeyPatch, at: int) -> None:
    """Offsets and entries come in other pieces."""
    offset_parts, entry_parts = stream.offset_parts, stream.entry_parts

    def offsets(store: GraphStore) -> Iterator[NDArray[np.int64]]:
        whole = np.concatenate(list(offset_parts(store)))
        for first in range(0, len(whole) - 1, at):
            yield whole[first : first + at + 1]

    def entries(store: GraphStore) -> Iterator[NDArray[Any]]:
        for part in entry_parts(store):
            for first in range(0, len(part), at):
                yield part[first : first + at].copy()
        yield part[:0]

    patch.setattr(stream, "offset_parts", offsets)
    patch.setattr(stream, "entry_parts", entries)


def forget(store: GraphStore, path: Path) -> None:
    [garbage] = [g for g in find_garbage(store.path, everything=True) if g.path == path]
    assert remove(garbage)


def test_every_option_has_a_layout_of_its_own(store: GraphStore) -> None:
    given: list[dict[str, Any]] = [
        {}, {"seed": 1}, {"gamma": 1.5}, {"imbalance": 1.01}, {"levels": 2}, {"passes": 2},
        {"parts": 9}, {"passes": 1, "counting": "bloom"},
    ]  # fmt: skip
    paths, digests = set(), set()
    for options in given:
        with opened(store, **{"parts": 10, **options}) as partitions:
            paths.add(partitions.path)
            digests.add(partitions.digest)
    assert len(paths) == len(digests) == len(given)
    with opened(store, parts=10) as again:
        assert again.path in paths
    assert len(store.derived.records(KIND)) == len(given)


def test_progress_tells_of_every_stage(store: GraphStore) -> None:
    class Told(Progress):
        def __init__(self) -> None:
            self.stages: list[list[Any]] = []

        def stage(self, name: str, total: int | None = None, unit: str = "B") -> None:
            self.stages.append([name, total, 0])

        def advance(self, amount: int) -> None:
            self.stages[-1][2] += amount

    told = Told()
    open_partitions(store, PartitionOptions(parts=9, passes=2, levels=2), told).close()
    names = [name for name, _, _ in told.stages]
    assert names == ["groups 1/2", "groups 2/2", "within groups", "parts 1/2", "parts 2/2", "cut",
                     "lists", "training nodes"]  # fmt: skip
    assert all(total == done for _, total, done in told.stages)


# Options


@pytest.mark.parametrize(
    "options,message",
    [
        ({"parts": 0}, "parts must be 1 to"),
        ({"gamma": 0.5}, "gamma must be a number of at least 1"),
        ({"gamma": math.nan}, "gamma must be a number of at least 1"),
        ({"imbalance": 0.9}, "imbalance must be a number of at least 1"),
        ({"seed": -1}, "seed must be 0 to"),
        ({"levels": 3}, "levels must be 1 or 2"),
        ({"passes": 0}, "passes must be at least 1"),
        ({"counting": "guess"}, "counting must be exact or bloom"),
        ({"counting": "bloom", "passes": 2}, "counting=bloom needs passes=1"),
    ],
)
def test_options_that_cannot_be(store: GraphStore, options: Any, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        open_partitions(store, PartitionOptions(**options))


def test_too_little_memory_is_refused_with_what_is_needed(store: GraphStore) -> None:
    needed = least_bytes(store.facts, 10)
    with pytest.raises(
        BudgetError,
        match=f"into 10 parts; the smallest that would do is {size_of_at_least(needed)}",
    ):
        open_partitions(store, PartitionOptions(parts=10), memory=needed - 1)
    assert not store.derived.records(KIND)
    open_partitions(store, PartitionOptions(parts=10), memory=needed).close()


def test_default_parts() -> None:
    assert default_parts(1, 0) == 1
    assert default_parts(4999, 4000) == 40  # 4 batches, 2 of them a macro batch
    assert default_parts(4_000_000, 400_000) == 2000
    assert default_parts(111_059_956, 1_207_179) == 3020  # 8 batches, a hundredth would be 12
    assert default_parts(100_000_000, 60_000_000) == 10_000
    assert default_parts(10_000_000, 6_000_000) == 10_000
    assert default_parts(4_000_000, 1000) == 10  # a single batch
    assert default_parts(4_000_000, 400_000, 10_000) == 400
    assert default_parts(3000, 3_000_000) == 30  # 100 nodes each
    for seeds in (8_000, 100_000, 900_000):
        batches = 20 * seeds / default_parts(10**9, seeds) / 1000
        assert 2 <= batches <= 9


def test_the_default_is_what_default_parts_says(store: GraphStore) -> None:
    with opened(store) as partitions:
        assert partitions.parts == default_parts(store.num_nodes, len(store.split("train")))


def test_parts_and_nodes_that_there_are_not_are_refused(store: GraphStore) -> None:
    with opened(store, parts=5) as partitions:
        for part in (-1, 5):
            for ask in (partitions.members, partitions.seeds, partitions.lists,
                        partitions.list_offsets):  # fmt: skip
                with pytest.raises(OptionError, match="parts are 0 to 4"):
                    ask(part)
        for node in (-1, 3000):
            with pytest.raises(OptionError, match=f"0 to 2999 \\(got {node}"):
                partitions.assignment_of(np.array([4, node]))


def test_a_part_of_no_room_is_refused_by_the_core() -> None:
    with pytest.raises(ValueError, match="too little room"):
        _core.Fennel32(
            np.full(9, 1 << 31, np.uint32), np.array([0, 2], np.uint32), np.ones(1), np.ones(2),
            np.full(2, 4, np.uint64), np.ones(2), np.full(2, 4, np.uint64), 2.0, 0, False,
        )  # fmt: skip


# Damage


@pytest.mark.parametrize("name", ["indptr", "indices", "train"])
def test_none_is_made_of_a_damaged_store(store: GraphStore, name: str) -> None:
    good = store.file(name).read_bytes()
    if name == "train":
        values = bytearray(good)
        values[-8] ^= 1
        store.file(name).write_bytes(values)
    else:
        damage(store, name)
    with pytest.raises(CorruptError, match=rf"{name}\.npy: piece 0"):
        open_partitions(store, PartitionOptions(parts=10))
    assert not store.derived.records(KIND)
    assert not list(find_garbage(store.path))
    store.file(name).write_bytes(good)
    assert_whole(store, 10)


def _descends(offsets: NDArray[np.int64]) -> None:
    offsets[5] = offsets[6] + 1


def _ends_early(offsets: NDArray[np.int64]) -> None:
    offsets[-1] -= 7


def _no_node(entries: NDArray[Any]) -> None:
    entries[100] = 3000


@pytest.mark.parametrize(
    "name,change,message",
    [
        ("indptr", _descends, "node 5: its list begins at edge"),
        ("indptr", _ends_early, "ends at edge"),
        ("indices", _no_node, "comes from 3000, which is no node"),
        ("train", _no_node, "entry 100 is 3000, but there are 3000 nodes"),
    ],
)
def test_none_is_made_of_a_store_that_was_written_wrong(
    store: GraphStore, name: str, change: Any, message: str
) -> None:
    rewrite_array(store.path, name, change)
    with outcrop.open(store.path) as wrong, pytest.raises(CorruptError, match=message):
        open_partitions(wrong, PartitionOptions(parts=10))


def test_verify_finds_a_damaged_byte_and_so_does_a_reader(store: GraphStore) -> None:
    with opened(store, parts=10) as partitions:
        path = partitions.path
    assert outcrop.verify(store.path).ok
    for name in ["partitions.json", *(f"{array}.npy" for array in ARRAYS)]:
        good = (path / name).read_bytes()
        bad = bytearray(good)
        bad[-3] ^= 4
        (path / name).write_bytes(bad)
        [problem] = outcrop.verify(store.path).problems
        assert problem.file == str(path / name)
        with pytest.raises(CorruptError, match=f"{name}.*remove {path}"):
            read_all(store)
        (path / name).write_bytes(good)
    assert outcrop.verify(store.path).ok
    (path / "lists.npy").unlink()
    with pytest.raises(CorruptError, match=r"lists\.npy: No such file"):
        read_all(store)


def read_all(store: GraphStore) -> None:
    with opened(store, parts=10) as partitions:
        partitions.load_assignment()
        partitions.load_cross()
        for part in range(10):
            partitions.members(part)
            partitions.seeds(part)
            partitions.list_offsets(part)
            partitions.lists(part)


def test_a_header_that_does_not_fit_its_arrays_is_refused(store: GraphStore) -> None:
    from outcrop.store.format import seal, unseal

    with opened(store, parts=10) as partitions:
        path = partitions.path / "partitions.json"
    values = unseal(path.read_bytes(), "")
    path.write_bytes(seal({**values, "parts": 11}))
    with pytest.raises(CorruptError, match="must have 11 entries"):
        read_header(path.parent)


# Killed

_KILLED = """
import os, signal, sys
from outcrop.layout.partitions import PartitionOptions, open_partitions
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
open_partitions(GraphStore(sys.argv[1]), PartitionOptions(parts=10))
"""


@pytest.mark.parametrize("appends", [0, 3, 8, 10])
def test_what_is_killed_is_made_anew(store: GraphStore, appends: int) -> None:
    with opened(store, parts=10) as partitions:
        path, expected = partitions.path, files_of(partitions.path)
    forget(store, path)
    with running(program(_KILLED, str(store.path), str(appends))) as process:
        assert process.wait() == -signal.SIGKILL
    inputs = {**asdict(PartitionOptions(parts=10)), "version": PARTITIONS_VERSION}
    assert store.derived.begun(KIND, inputs)
    assert not path.exists()
    assert_whole(store, 10)
    assert files_of(path) == expected
    assert not list(find_garbage(store.path))
    assert os.listdir(path.parent) == [path.name]


# Parts of it


def test_levels_keep_to_one_bound(store: GraphStore) -> None:
    for parts in (4, 50, 333, 2999):
        for levels in (1, 2):
            assignment = assign_parts(store, parts, FennelOptions(levels=levels, imbalance=1.05))
            most = most_nodes(store.num_nodes, parts, 1.05)
            assert np.bincount(assignment, minlength=parts).max() <= most


def test_it_keeps_to_its_memory(tmp_path: Path) -> None:
    """500,000 nodes and 5M edges, 26 MB of lists, in 32 MB beside Python."""
    path = tmp_path / "s"
    made = outcrop_command("synth", path, "--nodes", "500K", "--edges", "5M", "--dim", "0")
    assert made == 0
    command = [*OUTCROP, "partition", str(path), "--parts", "500", "--memory", "32MB"]
    caged = run_caged(command, 125_000_000)
    assert caged.returncode == 0, caged.output
