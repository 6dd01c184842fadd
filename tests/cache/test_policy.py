"""Policies: their plans are right for any slots, and Belady's are the best there are."""

from __future__ import annotations

import itertools
import tracemalloc
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from outcrop.cache.policy import Belady, Lru, Plan, Policy, Static, choosing_bytes, most_out_edges
from outcrop.disk import Disk
from outcrop.errors import CorruptError
from outcrop.sample.sampler import Subgraph
from outcrop.sample.seeds import Stream, Task
from outcrop.sample.trace import TraceReader, TraceWriter
from tests.cache.folders import fresh_folder

NODES = 8
Batches = Sequence[Sequence[int]]


@pytest.fixture(scope="module")
def disk() -> Disk:
    return Disk()


def trace_of(disk: Disk, folder: Path, batches: Batches, num_nodes: int = NODES) -> TraceReader:
    """A trace whose batches have these nodes, and no edges."""
    nothing = np.empty(0, np.uint32)
    with TraceWriter(disk, folder, num_nodes=num_nodes, num_edges=1, identity={}) as writer:
        for t, batch in enumerate(batches):
            nodes = np.array(batch, np.int64)
            task = Task(Stream.TRAIN, 0, t, np.empty(0, np.int64), np.empty(0, np.int64))
            ids = np.empty(0, np.int64)
            writer.append(task, Subgraph(nodes, nothing, nothing, ids, [len(nodes)], [], []))
        return writer.flush()


class Cache:
    """What a plan does to real slots: each holds the node whose row is there."""

    def __init__(self, slots: int) -> None:
        self.slots = np.full(slots, -1)
        self.reads = 0

    def carry_out(self, plan: Plan, batches: Batches) -> None:
        assert (np.diff(plan.fill_nodes) > 0).all()
        self.slots[plan.fill_slots] = plan.fill_nodes
        self.reads += len(plan.fill_nodes)
        for batch, changes in zip(batches, plan.scan(), strict=True):
            nodes = np.array(batch, np.int64)
            hits = changes.slots >= 0
            assert np.array_equal(self.slots[changes.slots[hits]], nodes[hits])
            missed = set(nodes[~hits].tolist())
            self.reads += len(missed)
            entering = nodes[changes.in_positions]
            assert set(entering.tolist()) <= missed
            assert len(set(changes.in_slots.tolist())) == len(changes.in_slots)
            self.slots[changes.in_slots] = entering


def reads(
    disk: Disk, policy: Policy, slots: int, superbatches: Sequence[Batches], num_nodes: int = NODES
) -> int:
    """What a policy reads for superbatches, checked step by step."""
    cache = Cache(slots)
    for batches in superbatches:
        with fresh_folder() as folder:
            trace = trace_of(disk, folder / "trace", batches, num_nodes)
            with policy.plan(trace, disk, folder) as plan:
                cache.carry_out(plan, batches)
            trace.close()
            assert not (folder / "changes").exists()
    return cache.reads


def fewest_reads(slots: int, batches: Batches) -> int:
    """By trying everything: after a batch, any of what was cached and of the batch may stay."""
    costs = {frozenset[int](): 0}
    for batch in batches:
        wanted, following = set(batch), dict[frozenset[int], int]()
        for cached, cost in costs.items():
            cost += len(wanted - cached)
            every = sorted(cached | wanted)
            for kept in itertools.combinations(every, min(slots, len(every))):
                state = frozenset(kept)
                following[state] = min(cost, following.get(state, cost))
        costs = following
    return min(costs.values())


def batches_of(least: int = 1) -> st.SearchStrategy[list[list[int]]]:
    """With nodes that occur twice in a batch, as ShaDow's do, and empty batches."""
    batch = st.lists(st.integers(0, NODES - 1), max_size=6)
    return st.lists(batch, min_size=least, max_size=6)


@given(batches=batches_of(), slots=st.integers(0, 5))
def test_belady_reads_as_little_as_can_be(disk: Disk, batches: list[list[int]], slots: int) -> None:
    assert reads(disk, Belady(NODES, slots), slots, [batches]) == fewest_reads(slots, batches)


@given(superbatches=st.lists(batches_of(), min_size=2, max_size=3), slots=st.integers(1, 5))
def test_belady_goes_on_with_what_is_cached(
    disk: Disk, superbatches: list[list[list[int]]], slots: int
) -> None:
    found = reads(disk, Belady(NODES, slots), slots, superbatches)
    apart = sum(fewest_reads(slots, batches) for batches in superbatches)
    together = fewest_reads(slots, [batch for batches in superbatches for batch in batches])
    assert together <= found <= apart


@given(batches=batches_of(), slots=st.integers(1, 5))
def test_a_filled_cache_reads_its_fill_and_never_beats_the_optimum(
    disk: Disk, batches: list[list[int]], slots: int
) -> None:
    policy = Belady(NODES, slots, keeps=False)
    found = reads(disk, policy, slots, [batches, batches])
    assert found >= 2 * fewest_reads(slots, batches)
    distinct = len({node for batch in batches for node in batch})
    if slots >= distinct:
        assert found == 2 * distinct


@given(superbatches=st.lists(batches_of(), min_size=1, max_size=3), slots=st.integers(0, 9))
@pytest.mark.parametrize("keeps", [False, True])
@pytest.mark.parametrize(
    "make",
    [
        lambda slots, keeps: Belady(NODES, slots, keeps=keeps),
        lambda slots, keeps: Lru(NODES, slots, keeps=keeps),
        lambda slots, keeps: Static(NODES, np.arange(min(slots, NODES)), keeps=keeps),
    ],
    ids=["belady", "lru", "static"],
)
def test_every_plan_finds_the_right_rows(
    disk: Disk,
    make: Callable[[int, bool], Policy],
    keeps: bool,
    superbatches: list[list[list[int]]],
    slots: int,
) -> None:
    policy = make(slots, keeps)
    found = reads(disk, policy, slots, superbatches)
    policy.clear()
    assert reads(disk, policy, slots, superbatches) == found


def test_belady_is_never_above_the_other_policies(disk: Disk) -> None:
    rng = np.random.default_rng(5)
    for _ in range(20):
        # Skewed, as sampled neighbourhoods are.
        batches = [np.unique((rng.random(40) ** 3 * 200).astype(int)).tolist() for _ in range(30)]
        for slots in (5, 40, 100):
            best = reads(disk, Belady(200, slots), slots, [batches], 200)
            for other in (Lru(200, slots), Static(200, np.arange(slots))):
                assert best <= reads(disk, other, slots, [batches], 200)
            assert best <= reads(disk, Belady(200, slots, keeps=False), slots, [batches], 200)


def test_lru_keeps_what_was_used_last(disk: Disk) -> None:
    # With two slots: 0 and 1 enter, 0 is used again, so 2 takes the place of 1.
    assert reads(disk, Lru(NODES, 2), 2, [[[0], [1], [0], [2], [0], [1]]]) == 4
    # A batch larger than the cache: its first rows stay.
    assert reads(disk, Lru(NODES, 2), 2, [[[0, 1, 2], [0, 1], [2]]]) == 4


def test_a_graph_of_many_nodes_needs_no_table_of_all(disk: Disk) -> None:
    far = 1 << 40
    batches = [[0, far - 1, far // 2], [far // 2, 7], [far - 1, 0]]
    assert reads(disk, Belady(far, 4), 4, [batches], far) == 4


def test_changed_bytes_of_a_plan_are_found(disk: Disk, tmp_path: Path) -> None:
    trace = trace_of(disk, tmp_path / "trace", [[1, 2, 3], [3, 4]])
    plan = Belady(NODES, 2).plan(trace, disk, tmp_path)
    with open(tmp_path / "changes", "r+b") as file:
        file.seek(4)
        file.write(b"\x07")
    with pytest.raises(CorruptError, match=r"changes: .* differ from their checksum"):
        list(plan.scan())


@given(st.lists(st.integers(0, 2**32 - 1) | st.integers(0, 3), max_size=60), st.integers(0, 60))
def test_of_equal_degrees_the_lower_ids_are_chosen(degrees: list[int], count: int) -> None:
    found = most_out_edges(np.array(degrees, np.uint32), count).tolist()
    best = sorted(range(len(degrees)), key=lambda node: (-degrees[node], node))
    assert found == sorted(best[:count])


def test_choosing_nodes_takes_little_beside_their_degrees() -> None:
    degrees = (np.arange(3_000_000, dtype=np.uint32) * 7919) % 1000
    count = 1_000_000
    tracemalloc.start()
    nodes = most_out_edges(degrees, count)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(nodes) == count
    assert peak <= choosing_bytes(len(degrees), count) - degrees.nbytes


def test_the_nodes_with_most_out_edges() -> None:
    degrees = np.array([3, 9, 3, 0, 9, 3], np.uint32)
    assert most_out_edges(degrees, 0).tolist() == []
    assert most_out_edges(degrees, 2).tolist() == [1, 4]
    assert most_out_edges(degrees, 4).tolist() == [0, 1, 2, 4]
    assert most_out_edges(degrees, 99).tolist() == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    ("misuse", "message"),
    [
        (lambda core: core.look_back(0, ids(1), uses(1)), "from the last batch to the first"),
        (lambda core: core.turn_around(), "all batches must have been looked at"),
        (lambda core: core.look_back(1, ids(99), uses(1)), "node ids must be 0 to 7"),
        (lambda core: core.look_back(1, ids(1), uses(1, 2)), "as long as nodes"),
    ],
)
def test_passes_out_of_order_are_refused(misuse: Callable[[object], None], message: str) -> None:
    from outcrop import _core

    core = _core.Belady(NODES, 2, goes_on=True)
    core.begin(2, NODES)
    with pytest.raises(ValueError, match=message):
        misuse(core)


def ids(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


def uses(*values: int) -> np.ndarray:
    return np.array(values, np.uint32)
