"""Policies: their plans are right for any slots, and Belady's are the best there are."""

from __future__ import annotations

import itertools
import os
import subprocess
import textwrap
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from time import monotonic, sleep

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from outcrop.disk import Disk
from outcrop.errors import CancelledError, CorruptError
from outcrop.layout.trace import TraceReader, TraceWriter
from outcrop.rows.policy import (
    Belady,
    BeladyTables,
    Changes,
    Lru,
    Plan,
    Policy,
    Static,
)
from outcrop.sample.sampler import Subgraph
from outcrop.sample.seeds import Stream, Task
from outcrop.store.degrees import choosing_bytes, most_out_edges
from tests.processes import program
from tests.rows.folders import fresh_folder

NODES = 8
Batches = Sequence[Sequence[int]]
POLICIES: dict[str, Callable[[int, bool], Policy]] = {
    "belady": lambda slots, keeps: Belady(NODES, slots, keeps=keeps),
    "lru": lambda slots, keeps: Lru(NODES, slots, keeps=keeps),
    "static": lambda slots, keeps: Static(NODES, np.arange(min(slots, NODES)), keeps=keeps),
}
every_policy = pytest.mark.parametrize("make", POLICIES.values(), ids=POLICIES.keys())


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
        self.fill(plan)
        for batch, changes in zip(batches, plan.scan(), strict=True):
            self.step(batch, changes)

    def fill(self, plan: Plan) -> None:
        assert (np.diff(plan.fill_nodes) > 0).all()
        self.slots[plan.fill_slots] = plan.fill_nodes
        self.reads += len(plan.fill_nodes)

    def step(self, batch: Sequence[int], changes: Changes) -> None:
        nodes = np.array(batch, np.int64)
        hits = changes.slots >= 0
        assert np.array_equal(self.slots[changes.slots[hits]], nodes[hits])
        missed = set(nodes[~hits].tolist())
        self.reads += len(missed)
        entering = nodes[changes.in_positions]
        assert set(entering.tolist()) <= missed
        assert len(set(changes.in_slots.tolist())) == len(changes.in_slots)
        self.slots[changes.in_slots] = entering

    def holds(self, contents: np.ndarray) -> bool:
        """Whatever else it holds."""
        taken = np.flatnonzero(contents >= 0)
        return bool((self.slots[taken] == contents[taken]).all())


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


def fewest_reads(slots: int, batches: Batches, cached_before: Sequence[int] = ()) -> int:
    """By trying everything: after a batch, any of what was cached and of the batch may stay."""
    costs = {frozenset(cached_before): 0}
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
@every_policy
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


def same_changes(found: Changes, expected: Changes) -> bool:
    return all(map(np.array_equal, found, expected))


@given(superbatches=st.lists(batches_of(), min_size=2, max_size=3), slots=st.integers(0, 9))
def test_a_restored_belady_plans_just_as_the_one_that_its_contents_are_from(
    disk: Disk, superbatches: list[list[list[int]]], slots: int
) -> None:
    one, contents = Belady(NODES, slots), None
    cache = Cache(slots)
    for batches in superbatches:
        with fresh_folder() as folder:
            trace = trace_of(disk, folder / "trace", batches)
            other = Belady(NODES, slots)
            other.restore(contents)
            last = len(batches) - 1
            with (
                trace,
                one.plan(trace, disk, folder / "one", ends=[last]) as plan,
                other.plan(trace, disk, folder / "other") as restored,
            ):
                assert all(map(same_changes, restored.scan(), plan.scan()))
                cache.carry_out(restored, batches)
                contents = plan.contents(last)
            assert contents is not None and cache.holds(contents)


@contextmanager
def touched_tables() -> Iterator[None]:
    """Of small graphs as well, tables are of the touched nodes alone, where those are smaller."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("outcrop.rows.policy._SMALL_TABLE_BYTES", 0)
        yield


MANY = 1000


@st.composite
def far_batches(draw: st.DrawFn) -> list[list[int]]:
    """Of a graph of MANY nodes, a few of which are touched: tables of those are the smaller."""
    nodes = draw(st.lists(st.integers(0, MANY - 1), min_size=NODES, max_size=NODES))
    return [[nodes[k] for k in batch] for batch in draw(batches_of())]


def same_plan(found: Plan, expected: Plan) -> bool:
    alike = found.first == expected.first and found.batches == expected.batches
    for one, other in [
        (found.fill_nodes, expected.fill_nodes),
        (found.fill_slots, expected.fill_slots),
    ]:
        alike = alike and np.array_equal(one, other)
    return alike and all(map(same_changes, found.scan(), expected.scan()))


@given(
    superbatches=st.lists(far_batches(), min_size=1, max_size=3),
    slots=st.integers(0, 9),
    keeps=st.booleans(),
)
def test_plans_over_touched_nodes_are_those_over_all(
    disk: Disk, superbatches: list[list[list[int]]], slots: int, keeps: bool
) -> None:
    assert not BeladyTables.of(MANY, 9, 36, MANY).touched
    one, other = Belady(MANY, slots, keeps=keeps), Belady(MANY, slots, keeps=keeps)
    for batches in superbatches:
        with fresh_folder() as folder, trace_of(disk, folder / "trace", batches, MANY) as trace:
            with touched_tables():
                assert BeladyTables.of(MANY, slots, 36, MANY).touched
                marked = other.plan(trace, disk, folder / "marked")
            with marked, one.plan(trace, disk, folder / "plan") as plan:
                assert same_plan(marked, plan)


@given(batches=far_batches(), slots=st.integers(0, 9), keeps=st.booleans(), most=st.integers(0, 20))
def test_where_few_nodes_have_room_a_superbatch_is_planned_in_parts(
    disk: Disk, batches: list[list[int]], slots: int, keeps: bool, most: int
) -> None:
    policy = Belady(MANY, slots, keeps=keeps, most_touched=most)
    whole, cache, first = Belady(MANY, slots, keeps=keeps), Cache(slots), 0
    with fresh_folder() as folder, trace_of(disk, folder / "trace", batches, MANY) as trace:
        while first < len(batches):
            with touched_tables():
                part = policy.plan(trace, disk, folder / "part", first=first)
            planned = batches[first : first + part.batches]
            assert len(planned) == 1 or len(set(itertools.chain(*planned))) <= most
            last = first + len(planned)
            with part, whole.plan(trace, disk, folder / "plan", first=first, last=last) as plan:
                assert same_plan(part, plan)
                cache.carry_out(part, planned)
            first = last


@given(batches=far_batches(), data=st.data())
def test_a_plan_that_is_stopped_while_nodes_are_marked_forgets_them(
    disk: Disk, batches: list[list[int]], data: st.DataObject
) -> None:
    calls = data.draw(st.integers(0, 3 * len(batches) - 1))

    def stop() -> None:
        nonlocal calls
        calls -= 1
        if calls < 0:
            raise CancelledError("enough")

    policy = Belady(MANY, 3)
    with fresh_folder() as folder, trace_of(disk, folder / "trace", batches, MANY) as trace:
        with touched_tables():
            with pytest.raises(CancelledError, match="enough"):
                policy.plan(trace, disk, folder / "stopped", stop=stop)
            again = policy.plan(trace, disk, folder / "again")
        with again, Belady(MANY, 3).plan(trace, disk, folder / "plan") as plan:
            assert same_plan(again, plan)


def test_tables_are_of_touched_nodes_where_a_table_of_all_is_large() -> None:
    million = 10**6
    assert BeladyTables.of(16 * million, 10**5, 10**9, million) == (False, 64 * million)
    assert BeladyTables.of(100 * million, 10**5, 10**9, 8 * million) == (True, 48_666_688)
    assert BeladyTables.of(100 * million, 10**5, 10**9, 10**9) == (False, 400 * million)
    assert not BeladyTables.of(100 * million, 10, 1000, 8 * million).touched, "a hash table is less"


counts = st.integers(0, 10**9)


@given(st.integers(0, 10**9), st.lists(counts, min_size=3, max_size=3), counts, st.integers(0, 2))
def test_tables_for_more_never_take_less(
    num_nodes: int, given: list[int], more: int, which: int
) -> None:
    """So that what is charged for the longest window is enough for all."""
    larger = given.copy()
    larger[which] += more
    assert BeladyTables.of(num_nodes, *given).bytes <= BeladyTables.of(num_nodes, *larger).bytes


PLANS = """
    import sys
    from pathlib import Path
    import numpy as np
    from outcrop.disk import Disk
    from outcrop.observe.record import peak_rss_bytes, rss_bytes
    from outcrop.rows.policy import Belady, BeladyTables
    from tests.rows.test_policy import trace_of

    NODES, TOUCHED, SLOTS = 100_000_000, 2_000_000, 100_000
    folder, disk, rng = Path(sys.argv[1]), Disk(), np.random.default_rng(1)
    batches = [rng.integers(0, NODES, 100_000) for _ in range(30)]
    batches[0][:] = 7  # planned alone, so that what any plan takes is there before
    policy = Belady(NODES, SLOTS, most_touched=TOUCHED)
    with trace_of(disk, folder, batches, NODES) as trace:
        policy.plan(trace, disk, folder / "first", first=0, last=1).close()
        open("/proc/self/clear_refs", "w").write("5")  # the peak is counted from now
        before = rss_bytes()
        with policy.plan(trace, disk, folder / "plan", first=1) as plan:
            assert plan.batches == 20
    tables = BeladyTables.of(NODES, SLOTS, 29 * 100_000, TOUCHED)
    assert tables.touched and tables.bytes < 25_000_000
    # Beside it what is scanned and written, as PlannedSlots.planning_bytes has it.
    most = tables.bytes + 3 * 4 * 100_000 + 5 * 8 * 100_000 + (4 << 20)
    assert peak_rss_bytes() - before < most, (peak_rss_bytes() - before, most)
"""


def test_planning_for_a_large_graph_takes_what_its_tables_say(tmp_path: Path) -> None:
    code = textwrap.dedent(PLANS)
    done = subprocess.run(program(code, str(tmp_path)), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@st.composite
def contents_of(draw: st.DrawFn, most: int = 5) -> np.ndarray:
    """Any nodes in any slots, some of these empty."""
    some = draw(st.lists(st.integers(0, NODES - 1), unique=True, max_size=most))
    empty = [-1] * draw(st.integers(0, most - len(some)))
    return np.array(draw(st.permutations(some + empty)), np.int64)


@given(batches=batches_of(), contents=contents_of())
def test_from_any_contents_belady_reads_as_little_as_can_be(
    disk: Disk, batches: list[list[int]], contents: np.ndarray
) -> None:
    policy, cache = Belady(NODES, len(contents)), Cache(len(contents))
    policy.restore(contents)
    cache.slots[:] = contents
    with (
        fresh_folder() as folder,
        trace_of(disk, folder / "trace", batches) as trace,
        policy.plan(trace, disk, folder) as plan,
    ):
        cache.carry_out(plan, batches)
    before = contents[contents >= 0].tolist()
    assert cache.reads == fewest_reads(len(contents), batches, before)


@given(batches=batches_of(2), slots=st.integers(0, 9), data=st.data())
@pytest.mark.parametrize("keeps", [False, True])
@every_policy
def test_a_superbatch_is_entered_in_its_middle(
    disk: Disk,
    make: Callable[[int, bool], Policy],
    keeps: bool,
    batches: list[list[int]],
    slots: int,
    data: st.DataObject,
) -> None:
    cut = data.draw(st.integers(1, len(batches)))
    cache, policy, other = Cache(slots), make(slots, keeps), make(slots, keeps)
    with fresh_folder() as folder, trace_of(disk, folder / "trace", batches) as trace:
        with policy.plan(trace, disk, folder / "whole", first=0, ends={cut - 1}) as whole:
            with make(slots, keeps).plan(trace, disk, folder / "same") as same:
                assert all(map(same_changes, whole.scan(), same.scan()))
            contents = whole.contents(cut - 1)
            cache.fill(whole)
            for batch, changes in zip(batches[:cut], whole.scan(), strict=False):
                cache.step(batch, changes)
            before = cache.reads
            entered = Cache(slots)
            entered.slots[:] = cache.slots
            for batch, changes in zip(batches[cut:], whole.scan(cut), strict=True):
                cache.step(batch, changes)
        assert contents is not None and entered.holds(contents)
        other.restore(contents)
        with other.plan(
            trace, disk, folder / "rest", first=cut, ends={0, len(batches) - 1}
        ) as rest:
            assert (rest.first, rest.batches) == (cut, len(batches) - cut)
            entered.carry_out(rest, batches[cut:])
            left = rest.contents(len(batches) - 1)
            assert cut == len(batches) or (left is not None and entered.holds(left))
        if keeps and not isinstance(policy, Lru):  # which forgets who was used last
            assert entered.reads == cache.reads - before


@given(batches=batches_of(2), slots=st.integers(0, 5), data=st.data())
@every_policy
def test_a_stopped_plan_leaves_nothing_behind(
    disk: Disk,
    make: Callable[[int, bool], Policy],
    batches: list[list[int]],
    slots: int,
    data: st.DataObject,
) -> None:
    policy, cache = make(slots, True), Cache(slots)
    calls = 0

    def stop() -> None:
        nonlocal calls
        if calls == 0:
            raise CancelledError("enough")
        calls -= 1

    with fresh_folder() as folder, trace_of(disk, folder / "trace", batches) as trace:
        with policy.plan(trace, disk, folder) as plan:
            cache.carry_out(plan, batches)
        before = cache.reads
        passes = 2 if isinstance(policy, Belady) else 1
        calls = data.draw(st.integers(0, passes * len(batches) - 1))
        with pytest.raises(CancelledError, match="enough") as _held:
            policy.plan(trace, disk, folder, ends=range(len(batches)), stop=stop)
        assert os.listdir(folder) == ["trace"]
        assert all_are_closed(folder)
        calls = passes * len(batches)
        with policy.plan(trace, disk, folder, stop=stop) as plan:  # as with an empty cache
            assert calls == 0
            cache.carry_out(plan, batches)
        assert cache.reads == 2 * before


def open_files() -> list[str]:
    """Also those that were removed."""
    found = []
    for number in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):
            found.append(os.readlink(f"/proc/self/fd/{number}"))
    return found


def all_are_closed(folder: Path) -> bool:
    """The plan's files; threads of the engine drop one a moment after its last transfer."""
    names = tuple(f"{folder}/{name}" for name in ("changes", "contents", "next_uses"))
    deadline = monotonic() + 5
    while any(path.startswith(names) for path in open_files()):
        if monotonic() > deadline:
            return False
        sleep(0.001)
    return True


def test_a_plan_is_read_from_any_of_its_batches_on(disk: Disk, tmp_path: Path) -> None:
    batches = [[1, 2], [3], [1, 4], [2]]
    with (
        trace_of(disk, tmp_path / "trace", batches) as trace,
        Belady(NODES, 2).plan(trace, disk, tmp_path, first=1, last=3) as plan,
    ):
        expected = list(plan.scan())
        assert len(expected) == 2 and same_changes(next(plan.scan(2)), expected[1])
        assert list(plan.scan(3)) == []
        for t in (0, 4):
            with pytest.raises(IndexError, match=rf"\[1, 3\) are planned \(got {t}\)"):
                list(plan.scan(t))


def test_contents_are_kept_where_they_are_asked_for(disk: Disk, tmp_path: Path) -> None:
    with trace_of(disk, tmp_path / "trace", [[1, 2], [3], [1, 2]]) as trace:
        with Lru(NODES, 2).plan(trace, disk, tmp_path / "lru", ends=[1, 0, 1]) as plan:
            found = [plan.contents(t) for t in range(3)]
            assert [None if c is None else c.tolist() for c in found] == [[1, 2], [3, 2], None]
        with Belady(NODES, 2).plan(trace, disk, tmp_path / "belady") as plan:
            assert plan.contents(1) is None
            assert not (tmp_path / "belady" / "contents").exists()
        static = Static(NODES, ids(4, 5))
        with static.plan(trace, disk, tmp_path / "static", ends=[1]) as plan:
            static.restore(plan.contents(1))
            assert not (tmp_path / "static" / "contents").exists()
        for contents, fills in [(ids(4, 5), 0), (ids(4, 6), 2), (None, 2)]:
            static.restore(contents)
            with static.plan(trace, disk, tmp_path / "again") as plan:
                assert len(plan.fill_nodes) == fills
        with pytest.raises(IndexError, match=r"below 3 \(got \[3\]\)"):
            static.plan(trace, disk, tmp_path, ends=[3])
        with pytest.raises(IndexError, match=r"within 0 to 3 \(got 4 to 3\)"):
            static.plan(trace, disk, tmp_path, first=4)


@pytest.mark.parametrize("kind", [Belady, Lru])
@pytest.mark.parametrize(
    ("contents", "message"),
    [
        ([1, 2], r"each of the 3 slots \(got 2\)"),
        ([1, 2, 3, 4], r"each of the 3 slots \(got 4\)"),
        ([1, 2, 8], r"up to 7, or -1 \(got 8\)"),
        ([1, -2, 3], r"up to 7, or -1 \(got -2\)"),
        ([1, -1, 1], r"got node 1 twice"),
    ],
)
def test_contents_that_cannot_be_are_refused(
    kind: type[Belady | Lru], contents: list[int], message: str
) -> None:
    policy = kind(NODES, 3)
    with pytest.raises(ValueError, match=message):
        policy.restore(ids(*contents))


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
        (lambda core: core.mark(ids(1)), "mark before a superbatch begins"),
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
