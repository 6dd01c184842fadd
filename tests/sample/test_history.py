"""History: what is decided equals a plain model, in the order of batches, whoever samples them; and
samplers put off what they are told to, alone and by blocks."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from outcrop import _core
from outcrop.errors import CancelledError, OptionError
from outcrop.loader.history import history_given
from outcrop.sample.history import (
    NEVER,
    Gate,
    HistoryOptions,
    HistoryTable,
    check_history,
    history_named,
)
from outcrop.sample.hyperbatch import HyperbatchSampler, least_hyperbatch_bytes
from outcrop.sample.sampler import FirstHopGate, Reuse, Sampler, Sampling, Subgraph
from outcrop.sample.seeds import Ids, Stream, Task
from outcrop.store.store import GraphStore
from outcrop.topology.blocks import GraphBlocks
from tests.graphs import expected_csc, graphs, random_graph
from tests.layout.test_blocks import with_hubs
from tests.sample import model
from tests.sample.test_sampler import FANOUTS, KEYS
from tests.stores import make_store

NODES = 25
PAGE = 4096
KEY = model.Key()._asdict()


def plain(reuse: Reuse) -> tuple[Any, ...]:
    lists = (reuse.pulled_slots, reuse.pulled_from, reuse.pushed, reuse.pushed_slots)
    assert [each.dtype for each in lists] == [np.int32, np.int32, np.uint32, np.int32]
    return reuse.iteration, *(each.tolist() for each in lists)


# The table


@dataclass
class Model:
    """A table in plain Python: the iteration of each candidate, as decided and as trained."""

    nodes: list[int]
    staleness: int
    decided: dict[int, int] = field(default_factory=dict)
    stored: dict[int, int] = field(default_factory=dict)

    def decide(self, iteration: int, nodes: list[int], seeds: int) -> tuple[list[int], Any]:
        """-> what is put off of the one-hop nodes, and a Reuse as `plain` has it."""
        deferred, pulled, expanded = [], [], list(nodes[:seeds])
        for node in nodes[seeds:]:
            since = self.decided.get(node)
            fresh = since is not None and iteration - since < self.staleness
            deferred.append(int(fresh))
            if fresh:
                pulled.append((self.nodes.index(node), since))
            else:
                expanded.append(node)
        pushed = [
            (place, self.nodes.index(node))
            for place, node in enumerate(expanded)
            if node in self.nodes and expanded.index(node) == place
        ]
        for _, slot in pushed:
            self.decided[self.nodes[slot]] = iteration
        lists = [[pair[i] for pair in pairs] for pairs in (pulled, pushed) for i in (0, 1)]
        return deferred, (iteration, *lists)

    def restart(self, iteration: int) -> None:
        self.stored = {node: at for node, at in self.stored.items() if at < iteration}
        self.decided = dict(self.stored)


@st.composite
def found_nodes(draw: st.DrawFn) -> tuple[list[int], int]:
    """Seeds, some of them twice, and distinct others that a hop found."""
    ids = st.integers(0, NODES - 1)
    seeds = draw(st.lists(ids, max_size=6))
    others = draw(st.lists(ids.filter(lambda node: node not in seeds), max_size=12, unique=True))
    return seeds + others, len(seeds)


class WindowError(Exception):
    """What a window fails with."""


@given(data=st.data())
def test_decisions_equal_the_model(data: st.DataObject) -> None:
    """Batch by batch, in windows that fail at times, and anew from what was trained on."""
    candidates = sorted(data.draw(st.sets(st.integers(0, NODES - 1))))
    staleness = data.draw(st.sampled_from([1, 2, 3, 5, 100, 2**40]))
    table = HistoryTable(NODES, np.array(candidates, np.int64), staleness)
    expected = Model(candidates, staleness)
    iteration = data.draw(st.sampled_from([0, 1, 7, 2**31 - 40]))

    def decide() -> list[tuple[Reuse, list[int]]]:
        nonlocal iteration
        made = []
        for _ in range(data.draw(st.integers(1, 6))):
            nodes, seeds = data.draw(found_nodes())
            deferred, reuse = table.decide(iteration, np.array(nodes, np.int64), seeds)
            assert deferred.dtype == np.uint8
            assert (deferred.tolist(), plain(reuse)) == expected.decide(iteration, nodes, seeds)
            made.append((reuse, nodes))
            iteration += 1
        return made

    for _ in range(data.draw(st.integers(1, 4))):
        what = data.draw(st.sampled_from(["train", "draft", "fail", "leave"]))
        before, at = dict(expected.decided), iteration
        if what == "fail":
            with pytest.raises(WindowError), Gate(table, iteration).drafted():
                decide()
                raise WindowError
            expected.decided, iteration = before, at
            continue
        if what == "draft":
            with table.drafted():
                decide()
            continue
        for number, (reuse, _) in enumerate(decide()):
            if what == "leave" and number == 2:  # the others were sampled, and not trained on
                break
            table.stored[reuse.pushed_slots] = reuse.iteration
            expected.stored |= {candidates[s]: reuse.iteration for s in reuse.pushed_slots}
        if what == "leave":
            iteration = data.draw(st.integers(at, iteration))
            table.restart(iteration)
            expected.restart(iteration)
            stored = [expected.stored.get(node, NEVER) for node in candidates]
            assert table.stored.tolist() == stored


def test_a_candidate_is_pulled_until_it_is_stale() -> None:
    table = HistoryTable(10, np.array([3, 4]), 3)
    nodes = np.array([1, 3])  # a seed, and its neighbour
    pulled = [table.decide(t, nodes, 1)[0].tolist() == [1] for t in range(8)]
    assert pulled == [False, True, True, False, True, True, False, True]


def test_a_restart_goes_on_from_what_is_there() -> None:
    """What was decided and not trained on is void, and so is what is of later iterations."""
    table = HistoryTable(10, np.array([3, 4, 5, 6]), 100)
    for t in range(4):
        table.decide(t, np.array([1, 3 + t]), 1)
    table.stored[:] = [0, 1, 2, NEVER]  # the last one was sampled alone
    table.restart(2)
    assert table.stored.tolist() == [0, 1, NEVER, NEVER]
    deferred, reuse = table.decide(2, np.array([1, 3, 4, 5, 6]), 1)
    assert deferred.tolist() == [1, 1, 0, 0]
    assert plain(reuse) == (2, [0, 1], [0, 1], [1, 2], [2, 3])


def test_a_draft_that_fails_is_taken_back() -> None:
    table = HistoryTable(10, np.array([3, 4]), 100)
    table.decide(0, np.array([1, 3]), 1)
    with pytest.raises(WindowError), table.drafted():
        table.decide(1, np.array([1, 4]), 1)
        raise WindowError
    assert table.decide(1, np.array([1, 3, 4]), 1)[0].tolist() == [1, 0]
    with table.drafted():
        table.decide(2, np.array([1, 4]), 1)
    assert table.decide(3, np.array([1, 3, 4]), 1)[0].tolist() == [1, 1]


def test_a_seed_is_never_pulled_and_always_pushed() -> None:
    table = HistoryTable(10, np.array([3, 4]), 100)
    for t in range(3):
        deferred, reuse = table.decide(t, np.array([3, 4, 3, 9]), 3)
        assert deferred.tolist() == [0]
        assert plain(reuse) == (t, [], [], [0, 1], [0, 1])


def test_a_table_without_candidates_decides_nothing() -> None:
    table = HistoryTable(10, np.empty(0, np.int64), 100)
    deferred, reuse = table.decide(5, np.array([3, 4]), 1)
    assert deferred.tolist() == [0] and plain(reuse) == (5, [], [], [], [])
    assert plain(table.decide(6, np.empty(0, np.int64), 0)[1]) == (6, [], [], [], [])


def test_an_identity_is_of_the_candidates_and_their_staleness() -> None:
    made = [
        HistoryTable(10, np.array(nodes, np.int64), staleness).identity
        for nodes, staleness in [([1, 2], 3), ([1, 2], 4), ([1, 3], 3), ([], 3)]
    ]
    assert len(set(made)) == 4
    assert HistoryTable(99, np.array([1, 2]), 3).identity == made[0]


@pytest.mark.parametrize("nodes", [[-1, 3], [3, 10]])
def test_candidates_that_cannot_be_are_refused(nodes: list[int]) -> None:
    with pytest.raises((OptionError, ValueError)):
        HistoryTable(10, np.array(nodes), 3)


# The gate


def some_batches(count: int, seed: int = 0) -> list[tuple[Ids, int]]:
    rng = np.random.default_rng(seed)
    found = []
    for _ in range(count):
        nodes = rng.permutation(200)[:40]
        found.append((nodes, int(rng.integers(0, 20))))
    return found


@pytest.mark.parametrize("first", [0, 1000])
@pytest.mark.parametrize("seed", range(4))
def test_threads_in_any_order_decide_as_one_does(first: int, seed: int) -> None:
    batches, candidates = some_batches(60, seed), np.arange(0, 200, 2)
    alone = HistoryTable(200, candidates, 5)
    expected = [
        (deferred.tolist(), plain(reuse))
        for t, (nodes, seeds) in enumerate(batches, first)
        for deferred, reuse in [alone.decide(t, nodes, seeds)]
    ]
    table = HistoryTable(200, candidates, 5)
    gate, found = Gate(table, first), {}
    # As samplers take tasks: the next one, whoever is free; then each takes its time.
    rng = np.random.default_rng(seed)
    waits = rng.random(len(batches)) * 0.002
    numbers, lock = iter(range(len(batches))), threading.Lock()

    def work() -> None:
        while True:
            with lock:
                number = next(numbers, None)
            if number is None:
                return
            threading.Event().wait(waits[number])
            nodes, seeds = batches[number]
            deferred, reuse = gate.decide(first + number, nodes, seeds)
            found[number] = (deferred.tolist(), plain(reuse))

    threads = [threading.Thread(target=work) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert [found[number] for number in range(len(batches))] == expected
    assert any(any(deferred) for deferred, _ in expected)


def test_cancel_wakes_all_who_wait_and_refuses_the_others() -> None:
    gate = Gate(HistoryTable(200, np.arange(200), 5), 0)
    nodes, seeds = some_batches(1)[0]
    ended: list[int] = []

    def wait(number: int) -> None:
        with pytest.raises(CancelledError):
            gate.decide(number, nodes, seeds)
        ended.append(number)

    threads = [threading.Thread(target=wait, args=(number,)) for number in (1, 2, 9)]
    for thread in threads:
        thread.start()
    threading.Event().wait(0.05)
    assert not ended
    gate.cancel()
    for thread in threads:
        thread.join(10)
    assert sorted(ended) == [1, 2, 9]
    with pytest.raises(CancelledError):
        gate.decide(0, nodes, seeds)  # whose turn it is
    gate.cancel()


def test_what_is_cancelled_was_not_decided() -> None:
    table = HistoryTable(200, np.arange(200), 5)
    gate = Gate(table, 0)
    gate.cancel()
    nodes, seeds = some_batches(1)[0]
    with pytest.raises(CancelledError):
        gate.decide(0, nodes, seeds)
    assert not table.decide(1, nodes, 0)[0].any()


def test_more_iterations_than_can_be_counted_are_refused() -> None:
    gate = Gate(HistoryTable(10, np.arange(10), 5), 2**31 - 1)
    gate.decide(2**31 - 1, np.array([1, 2]), 1)
    with pytest.raises(OptionError, match="more than 2147483647 iterations"):
        gate.decide(2**31, np.array([1, 2]), 1)


# Options


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        (None, None),
        (256, HistoryOptions(256)),
        ("256", HistoryOptions(256)),
        ("width=256", HistoryOptions(256)),
        ("64:staleness=7", HistoryOptions(64, staleness=7)),
        ("width=64:share=0.25", HistoryOptions(64, share=0.25)),
        ("width=64:share=0", HistoryOptions(64, share=0)),
        ("width=64:nodes=0:metric=degree", HistoryOptions(64, nodes=0, metric="degree")),
        ("staleness=7:width=8:place=device", HistoryOptions(8, staleness=7, place="device")),
        ("8:gradients=none", HistoryOptions(8, gradients="none")),
        (HistoryOptions(3), HistoryOptions(3)),
    ],
)
def test_options_are_given_as_numbers_and_text(given: Any, wanted: HistoryOptions | None) -> None:
    assert history_named(given) == wanted
    found = history_given(given)
    assert (None if found is None else found.options) == wanted


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("", "history is the width of embeddings"),
        (True, r"such as 'width=256:staleness=100' \(got True\)"),
        (1.5, r"got 1\.5"),
        ([8], "history is the width"),
        (0, "width"),
        (-3, r"history: width must be at least 1 \(got -3\)"),
        ("0", "width"),
        ("width=8:staleness=0", r"history: staleness must be at least 1 \(got 0\)"),
        ("8:share=1.5", r"history: share must be 0 to 1 \(got 1\.5\)"),
        ("8:share=-0.1", "share must be 0 to 1"),
        ("8:share=nan", "share must be"),
        ("8:nodes=-1", r"nodes must be at least 0 \(got -1\)"),
        ("8:nodes=5:share=0.5", "a share of memory or a number of nodes, not both"),
        ("8:metric=out", r"history: metric must be .*saved.*degree.* \(got 'out'\)"),
        ("8:place=gpu", r"place must be .*host.*device.* \(got 'gpu'\)"),
        ("8:gradients=now", r"gradients must be .*late.*none.* \(got 'now'\)"),
        ("8:stale=5", r"history: no option 'stale'; it has width, staleness"),
        ("8:staleness=5,nodes=3", "options are separated by colons"),
        ("8:staleness=1.5", "staleness must be"),
    ],
)
def test_options_that_cannot_be_are_refused(given: Any, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        history_named(given)


def test_a_history_without_its_width_is_refused_by_name() -> None:
    with pytest.raises(OptionError, match="width"):
        history_named("staleness=5")


def test_candidates_may_be_given_in_any_order() -> None:
    found = history_given(("8:staleness=5", [5, 1, 5, 3]))
    assert found is not None and found.nodes is not None
    assert found.nodes.tolist() == [1, 3, 5] and found.nodes.dtype == np.int64
    assert found.options == HistoryOptions(8, staleness=5)


def test_what_shares_no_embeddings_is_refused() -> None:
    check_history(Sampling.of([5, 5]), None, 10)
    with pytest.raises(OptionError, match=r"two hops at least \(got num_neighbors=\[5\]\)"):
        check_history(Sampling.of([5]), None, 10)
    with pytest.raises(OptionError, match="ShaDow's seeds share no embeddings"):
        check_history(Sampling.of([5, 5], kind="shadow"), None, 10)
    with pytest.raises(OptionError, match=r"candidates must be 0 to 9 \(got 3 to 10\)"):
        check_history(Sampling.of([5, 5]), np.array([3, 10]), 10)


def test_candidates_are_ids_or_a_mask() -> None:
    found = history_given((8, [False, True, True]))
    assert found is not None and found.nodes is not None and found.nodes.tolist() == [1, 2]
    assert history_given(np.int64(8)) is not None
    for wrong in ([1.5, 2.5], "train", [[1], [2]], [[1], [2, 3]]):
        with pytest.raises(OptionError, match="candidates are node ids or a mask"):
            history_given((8, wrong))


# Samplers that put nodes off


def sample_deferring(
    graph: model.Csc,
    seeds: Sequence[int],
    fanouts: Sequence[int],
    key: model.Key,
    put_off: Callable[[list[int]], list[int]],
    *,
    replace: bool = False,
) -> model.Sampled:
    """The model's batch; of what the first hop finds, `put_off` says whom the second one finds."""
    out = model.sample_neighbors(graph, seeds, fanouts[:1], key, replace=replace)
    first, found = len(seeds), out.nodes[len(seeds) :]
    deferred = put_off(found)
    kept = [node for node, later in zip(found, deferred, strict=True) if not later]
    later = [node for node, later in zip(found, deferred, strict=True) if later]
    before = out.nodes
    out.nodes = [*seeds, *kept, *later]
    local: dict[int, int] = {}
    for place, node in enumerate(out.nodes):
        local.setdefault(node, place)
    out.sources = [local[before[source]] for source in out.sources]
    out.nodes_per_hop = [first, len(kept)]
    begin, end = first, first + len(kept)
    for hop, fanout in enumerate(fanouts[1:], 1):
        edges_before = len(out.edge_ids)
        for node in out.nodes[begin:end]:
            key_of_hop = model.hop_key(key, hop)
            edges = model.picked_edges(graph, key_of_hop, node, 0, fanout, replace)
            out.counts.append(len(edges))
            out.edge_ids += edges
            for edge in edges:
                source = graph.source(edge)
                if source not in local:
                    local[source] = len(out.nodes)
                    out.nodes.append(source)
                out.sources.append(local[source])
        begin, end = end, len(out.nodes)
        out.nodes_per_hop.append(end - begin)
        out.edges_per_hop.append(len(out.edge_ids) - edges_before)
    return out


def sampled(core: Any) -> model.Sampled:
    """What a core sampler holds."""
    names = ("nodes", "sources", "counts", "edge_ids")
    hops = {name: getattr(core, name) for name in ("nodes_per_hop", "edges_per_hop", "roots")}
    return model.Sampled(**{name: getattr(core, name).tolist() for name in names}, **hops)


PUT_OFF: dict[str, Callable[[int], bool]] = {
    "none": lambda node: node < 0,
    "all": lambda node: node >= 0,
    "some": lambda node: node % 3 == 1,
}


@pytest.mark.parametrize("who", PUT_OFF)
@given(data=st.data())
def test_batches_equal_the_model(who: str, data: st.DataObject) -> None:
    """Any graph, two hops and more, one sampler for several batches."""
    graph = data.draw(graphs())
    fanouts = data.draw(FANOUTS.filter(lambda fanouts: len(fanouts) > 1))
    replace = data.draw(st.booleans())
    indptr, indices, _ = expected_csc(graph)
    typed = indices.astype(data.draw(st.sampled_from([np.int32, np.int64])))
    topology = _core.array_topology(indptr, typed)
    threads = data.draw(st.sampled_from([1, 3]))
    core = _core.NeighborSampler(topology, fanouts, replace=replace, threads=threads)
    key = data.draw(KEYS)
    for batch in range(2):
        seeds = data.draw(st.lists(st.integers(0, graph.num_nodes - 1), max_size=12))
        key = key._replace(batch=batch)
        wanted = sample_deferring(model.Csc(indptr, indices), seeds, fanouts, key,
                                  lambda found: [int(PUT_OFF[who](node)) for node in found],
                                  replace=replace)  # fmt: skip
        core.begin(np.array(seeds, np.int64), **key._asdict())
        nodes = core.nodes.tolist()
        assert nodes[: len(seeds)] == seeds
        later = np.array([PUT_OFF[who](node) for node in nodes[len(seeds) :]], np.uint8)
        core.finish(later)
        assert sampled(core) == wanted
        if who == "none":  # and as it was without
            plain = model.sample_neighbors(model.Csc(indptr, indices), seeds, fanouts, key,
                                           replace=replace)  # fmt: skip
            assert wanted == plain
            core.begin(np.array(seeds, np.int64), **key._asdict())
            core.finish(np.empty(0, np.uint8))
            assert sampled(core) == plain
            core.sample(np.array(seeds, np.int64), **key._asdict())
            assert sampled(core) == plain


@pytest.mark.parametrize("fanouts", [[-1, -1], [3, 0], [0, 3], [2, 3, 4], [3, -1, 0, 2]])
@pytest.mark.parametrize("replace", [False, True])
def test_large_batches_equal_the_model_on_any_number_of_threads(
    fanouts: list[int], replace: bool
) -> None:
    indptr, indices, _ = expected_csc(random_graph(6000, 20_000, seed=3))
    seeds, key = np.arange(0, 6000, 6), model.Key(1, 0, 2, 3)
    seeds[-5:] = seeds[:5]
    wanted = sample_deferring(model.Csc(indptr, indices), seeds.tolist(), fanouts, key,
                              lambda found: [int(node % 3 == 1) for node in found],
                              replace=replace)  # fmt: skip
    for threads in (1, 4):
        topology = _core.array_topology(indptr, indices.astype(np.int32))
        core = _core.NeighborSampler(topology, fanouts, replace=replace, threads=threads)
        core.begin(seeds, **key._asdict())
        core.finish((core.nodes[len(seeds) :] % 3 == 1).astype(np.uint8))
        assert sampled(core) == wanted


def test_what_is_put_off_needs_an_entry_per_node_and_a_first_hop() -> None:
    indptr, indices, _ = expected_csc(random_graph(20, 100))
    core = _core.NeighborSampler(
        _core.array_topology(indptr, indices), [3, 3], replace=False, threads=1
    )
    none = np.empty(0, np.uint8)
    with pytest.raises(ValueError, match="the first hop was not sampled"):
        core.finish(none)
    core.begin(np.array([1, 2]), **KEY)
    with pytest.raises(ValueError, match="an entry per node that the first hop found"):
        core.finish(np.zeros(core.nodes_per_hop[1] + 1, np.uint8))
    core.finish(none)
    with pytest.raises(ValueError, match="or others were as well"):
        core.finish(none)
    with pytest.raises(ValueError, match="20"):
        core.begin(np.array([20]), **KEY)


class ByHash:
    """A gate that puts off whom it likes, and says what a batch had."""

    def __init__(self, share: float) -> None:
        self._limit = int(share * 1000)

    def decide(self, iteration: int, nodes: Ids, seeds: int) -> tuple[NDArray[np.uint8], Reuse]:
        later = (nodes[seeds:] * 7919 + iteration * 104729) % 1000 < self._limit
        none = np.empty(0, np.int32)
        return later.astype(np.uint8), Reuse(
            iteration, nodes[seeds:][later].astype(np.int32), none, none.astype(np.uint32), none
        )

    def cancel(self) -> None: ...


def tasks(count: int, seeds: int, num_nodes: int, first: int | None = 0) -> list[Task]:
    """Some batches of random seeds, some of them twice in a batch."""
    rng = np.random.default_rng(0)
    made = []
    for batch in range(count):
        ids = rng.integers(0, num_nodes, seeds)
        ids[: seeds // 4] = ids[-(seeds // 4) :] if seeds >= 4 else ids[:0]
        iteration = None if first is None else first + batch
        made.append(Task(Stream.TRAIN, 1, batch, np.arange(seeds), ids, iteration=iteration))
    return made


def contents(found: Subgraph) -> list[Any]:
    arrays = (found.nodes, found.sources, found.counts, found.edge_ids)
    lists = [None if array is None else array.tolist() for array in arrays]
    reuse = None if found.reuse is None else plain(found.reuse)
    return [*lists, found.nodes_per_hop, found.edges_per_hop, found.roots, reuse]


def test_a_sampler_asks_the_gate_of_tasks_that_have_an_iteration() -> None:
    indptr, indices, _ = expected_csc(random_graph(300, 3000))
    topology = _core.array_topology(indptr, indices)
    sampling = Sampling.of([4, 3], edge_ids=True)
    gated, free = Sampler(sampling, topology, 7, gate=ByHash(0.5)), Sampler(sampling, topology, 7)
    for task, without in zip(tasks(5, 10, 300), tasks(5, 10, 300, None), strict=True):
        found = gated.sample(task)
        assert found.reuse is not None
        later = found.reuse.pulled_slots.tolist()
        end = sum(found.nodes_per_hop[:2])
        assert later and found.nodes[end : end + len(later)].tolist() == later
        expected = contents(free.sample(without))
        assert contents(gated.sample(without)) == expected and expected[-1] is None
        assert contents(free.sample(task)) == expected, "nobody asks"


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A graph with lists of many blocks, with self loops, multi-edges and nodes without edges."""
    path = tmp_path_factory.mktemp("history") / "s"
    graph = with_hubs(random_graph(3000, 12_000), {0: 5000, 700: 1010, 701: 1011, 2999: 9000})
    make_store(path, graph, dim=2).close()
    return path


@pytest.fixture
def store(path: Path) -> Iterator[GraphStore]:
    with GraphStore(path) as opened:
        yield opened


GATES: dict[str, Callable[[], FirstHopGate]] = {
    "none": lambda: ByHash(0),
    "some": lambda: ByHash(0.4),
    "all": lambda: ByHash(1),
    "table": lambda: Gate(HistoryTable(3000, np.arange(0, 3000, 2), 3), 0),
}


@pytest.mark.parametrize("who", GATES)
@pytest.mark.parametrize("fanouts", [[5, 4], [3, 0, 2], [0, 5], [2, 3, 3], [4, -1], [2, 2, 2, 2]])
@pytest.mark.parametrize("replace", [False, True])
@pytest.mark.parametrize("batches", [1, 7])
def test_hyperbatches_put_off_the_same(
    store: GraphStore, tmp_path: Path, who: str, fanouts: list[int], replace: bool, batches: int
) -> None:
    sampling = Sampling.of(fanouts, replace=replace, edge_ids=True)
    seeds = 60 if batches == 1 else 400
    wanted = tasks(batches, seeds, store.num_nodes)
    whole = _core.array_topology(store.load("indptr"), store.load("indices"))
    alone = Sampler(sampling, whole, 7, gate=GATES[who]())
    expected = [contents(alone.sample(task)) for task in wanted]
    with GraphBlocks.open(store, 2 * PAGE, PAGE) as blocks:
        sampler = HyperbatchSampler(
            sampling,
            blocks.core,
            7,
            memory_bytes=least_hyperbatch_bytes(batches),
            scratch=tmp_path / "picks.bin",
            gate=GATES[who](),
        )
        assert [contents(found) for found in sampler.sample_all(wanted)] == expected
        if batches > 1 and fanouts[0]:
            assert sampler.spilled_bytes > 0
        # And what has no iteration, afterwards, as if nobody could be asked.
        free = Sampler(sampling, whole, 7)
        others = tasks(batches, seeds, store.num_nodes, None)
        found = [contents(found) for found in sampler.sample_all(others)]
        assert found == [contents(free.sample(task)) for task in others]
    puts_off = any(batch[-1][1] for batch in expected)
    assert puts_off == (who != "none" and fanouts[0] != 0 and (who != "table" or batches > 1))


def test_what_a_hyperbatch_puts_off_is_checked(store: GraphStore, tmp_path: Path) -> None:
    class Short(ByHash):
        def decide(self, iteration: int, nodes: Ids, seeds: int) -> tuple[NDArray[np.uint8], Reuse]:
            deferred, reuse = super().decide(iteration, nodes, seeds)
            return deferred[:-1], reuse

    with GraphBlocks.open(store, 2 * PAGE, PAGE) as blocks:
        sampler = HyperbatchSampler(
            Sampling.of([5, 4]), blocks.core, 7, memory_bytes=1 << 20,
            scratch=tmp_path / "picks.bin", gate=Short(1),
        )  # fmt: skip
        with pytest.raises(ValueError, match="an entry per node that the first hop found"):
            list(sampler.sample_all(tasks(3, 10, store.num_nodes)))


def test_a_hyperbatch_that_waits_for_its_turn_is_cancelled(
    store: GraphStore, tmp_path: Path
) -> None:
    gate = Gate(HistoryTable(3000, np.arange(3000), 3), 0)
    with GraphBlocks.open(store, 2 * PAGE, PAGE) as blocks:
        sampler = HyperbatchSampler(
            Sampling.of([5, 4]), blocks.core, 7, memory_bytes=1 << 20,
            scratch=tmp_path / "picks.bin", gate=gate,
        )  # fmt: skip
        ended = threading.Event()

        def sample() -> None:
            with pytest.raises(CancelledError):
                list(sampler.sample_all(tasks(2, 10, store.num_nodes, first=5)))
            ended.set()

        thread = threading.Thread(target=sample)
        thread.start()
        assert not ended.wait(0.1)
        sampler.cancel()
        assert ended.wait(10)
        thread.join()
