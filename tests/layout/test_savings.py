"""Savings: a profile counts what a model in plain Python counts, and is found again, or damaged."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import outcrop
from outcrop import _core
from outcrop.ahead.profiling import LastVisits, last_hop, making_bytes, open_savings
from outcrop.disk import EngineFacts
from outcrop.errors import CorruptError, OptionError
from outcrop.layout.ranking import (
    Curve,
    curve_of,
    higher,
    kept_stays,
    places_of,
    planned_curve,
    ranked,
    scores_of,
)
from outcrop.layout.savings import (
    KIND,
    LEVELS,
    Savings,
    SavingsFacts,
    read_facts,
    savings_inputs,
    savings_sizes,
)
from outcrop.memory.context import BatchSizes, Context, DiskFacts
from outcrop.progress import Progress
from outcrop.sample.sampler import Sampler, Sampling, Subgraph, WaitingBatches
from outcrop.sample.seeds import SeedOrder, Stream, Task
from outcrop.store.store import GraphStore
from tests.damage import damage, overwrite
from tests.graphs import Graph, expected_csc, graphs, random_graph
from tests.stores import make_store

TWO, THREE = Sampling((4, 3)), Sampling((3, 2, 2))
SAMPLINGS = [TWO, THREE, Sampling((3, 3), replace=True), Sampling((2, 3, 4), replace=True),
             Sampling((-1, 2)), Sampling((2, -1, 1, 2))]  # fmt: skip


@pytest.fixture
def store(tmp_path: Path) -> Iterator[GraphStore]:
    with make_store(tmp_path / "s", random_graph(300, 1500), train=120) as made:
        yield made


def order(store: GraphStore, batch_size: int = 7, **more: Any) -> SeedOrder:
    nodes = np.array(store.split("train"))
    return SeedOrder(nodes, batch_size=batch_size, stream=Stream.TRAIN, seed=3, **more)


# The model


FIRST_EPOCHS = 3


@dataclass
class Model:
    """What docs/format.md says, node by node."""

    levels: list[int]
    features: list[tuple[int, int]]
    """Nodes and what they save, best first."""
    stays: Counter[int] = field(default_factory=Counter)
    """By length."""
    fresh: Counter[int] = field(default_factory=Counter)
    visits: Counter[int] = field(default_factory=Counter)
    drawn: Counter[int] = field(default_factory=Counter)
    found: list[Counter[int]] = field(default_factory=list)
    batches: int = 0
    rows: int = 0
    neighbours: int = 0

    def histories(self, level: int, beta: float) -> list[tuple[int, float]]:
        return best({v: score for v in self.fresh if (score := self._saved(v, level, beta)) > 0})

    def _saved(self, node: int, level: int, beta: float) -> float:
        drawn, found, visits = self.drawn, self.found[level], self.visits
        of = [node] if node in visits else [*visits]
        each = beta * sum(drawn[v] for v in of) + sum(found[v] for v in of)
        each /= max(sum(visits[v] for v in of), 1)
        return float(np.float32(self.fresh[node] / FIRST_EPOCHS * each))

    def longest(self, rows: int) -> int:
        """The longest stay that so many rows have room for."""
        taken, length = 0, 0
        while length + 1 < self.batches:
            taken += (length + 1) * self.stays[length + 1]
            if taken > rows * self.batches:
                break
            length += 1
        return length


def best(scores: dict[int, Any]) -> list[tuple[int, Any]]:
    return sorted(scores.items(), key=lambda item: (-item[1], item[0]))


def below(subgraph: Subgraph) -> dict[int, int]:
    """Local ids beyond the seeds -> the one of the first hop that they come to."""
    seeds = subgraph.nodes_per_hop[0]
    parents: dict[int, int] = {}
    sources = iter(subgraph.sources.tolist())
    for target, count in enumerate(subgraph.counts.tolist()):
        for _ in range(count):
            source = next(sources)
            if source >= seeds:
                parents.setdefault(source, target)
    first = range(seeds, seeds + subgraph.nodes_per_hop[1])
    found = {}
    for node in range(seeds, len(subgraph.nodes)):
        at = node
        while at not in first:
            at = parents[at]
        found[node] = at
    return found


def below_last_hop(subgraph: Subgraph, cached: set[int]) -> tuple[Counter[int], Counter[int]]:
    """Local ids of the first hop -> what the last one drew and found below them.

    `cached`: local ids.
    """
    comes_to, end = below(subgraph), len(subgraph.nodes)
    begin = end - subgraph.nodes_per_hop[-1]
    drawn: Counter[int] = Counter()
    found: Counter[int] = Counter()
    for node in range(begin - subgraph.nodes_per_hop[-2], begin):
        drawn[comes_to[node]] += int(subgraph.counts[node])
    for node in range(begin, end):
        found[comes_to[node]] += node not in cached
    return drawn, found


def model_of(store: GraphStore, sampling: Sampling, seeds: SeedOrder, staleness: int) -> Model:
    sampler = Sampler(
        sampling, _core.array_topology(store.load("indptr"), store.load("indices")), seeds.seed
    )
    batches_of: Counter[int] = Counter()
    for task in seeds.tasks(FIRST_EPOCHS):
        batches_of.update(set(sampler.sample(task).nodes.tolist()))
    levels = [int(part * store.num_nodes) for part in LEVELS]
    made = Model(levels, best(batches_of), found=[Counter() for _ in levels], batches=len(seeds))
    pushed: dict[int, int] = {}
    for epoch in range(FIRST_EPOCHS + 1):
        for task in seeds.tasks(epoch):
            t = epoch * len(seeds) + task.batch
            subgraph = sampler.sample(task)
            number, near = subgraph.nodes_per_hop[:2]
            for local, node in enumerate(subgraph.nodes[: number + near].tolist()):
                if local < number or t - pushed.get(node, -staleness) >= staleness:
                    pushed[node] = t
                elif epoch > 0:
                    made.fresh[node] += 1
    batches = [sampled(sampler, task) for task in seeds.tasks(FIRST_EPOCHS)]
    last: dict[int, int] = {}
    gaps = []
    for t, subgraph in enumerate(batches):
        nodes = subgraph.nodes.tolist()
        gaps.append([t - last[node] if node in last else 0 for node in nodes])
        made.stays.update(gap for gap in gaps[-1] if gap)
        last.update(dict.fromkeys(nodes, t))
        made.rows += len(nodes)
        made.neighbours += len(subgraph.sources)
    for subgraph, gap in zip(batches, gaps, strict=True):
        number, near = subgraph.nodes_per_hop[:2]
        first = range(number, number + near)
        for level, rows in enumerate(levels):
            longest = made.longest(rows)
            cached = {local for local, one in enumerate(gap) if 0 < one <= longest}
            if level == len(levels) - 1:
                cached = set(range(len(gap)))
            drawn, found = below_last_hop(subgraph, cached)
            for local in first:
                node = int(subgraph.nodes[local])
                made.visits[node] += level == 0
                made.drawn[node] += drawn[local] if level == 0 else 0
                made.found[level][node] += found[local]
    return made


def sampled(sampler: Sampler, task: Task) -> Subgraph:
    """Its own copy."""
    return WaitingBatches(1 << 20).copy(sampler.sample(task))


def assert_prefix_sums(curve: Curve, scores: Sequence[float]) -> None:
    sums = np.concatenate([[0.0], np.cumsum(scores, dtype=np.float64)])
    assert curve.counts[0] == 0 and curve.counts[-1] == curve.length == len(scores)
    assert curve.sums == pytest.approx(sums[list(curve.counts)].tolist())


def assert_planned(planned: Curve, model: Model) -> None:
    """Each point has all stays up to some length, in rows that are enough for them."""
    for rows, saved in zip(planned.counts, planned.sums, strict=True):
        assert saved == sum(model.stays[n] for n in range(1, model.longest(rows) + 1))
    assert planned.sums[-1] == sum(model.stays.values())


def assert_as_modelled(
    store: GraphStore, sampling: Sampling, seeds: SeedOrder, staleness: int
) -> Model:
    model = model_of(store, sampling, seeds, staleness)
    layout = open_savings(store, sampling, seeds, staleness)
    with Savings(store.disk, layout) as savings:
        facts = savings.facts
        assert facts.levels == tuple(model.levels)
        assert (facts.rows, facts.neighbours) == (model.rows, model.neighbours)
        assert (facts.batches, facts.staleness) == (len(seeds), staleness)
        assert facts.hops == len(sampling.num_neighbors)
        measured = facts.sampling_seconds * facts.requests_per_second / max(facts.neighbours, 1)
        assert facts.beta == pytest.approx(measured)
        assert_prefix_sums(facts.features, [score for _, score in model.features])
        assert_planned(facts.planned, model)
        for count in (0, 1, 7, len(model.features), store.num_nodes + 5):
            wanted = sorted(v for v, _ in model.features[:count])
            assert savings.feature_nodes(count).tolist() == wanted
        for level, rows in enumerate(model.levels):
            found = np.load(layout.path / f"histories{level}.npy").tolist()
            wanted_pairs = model.histories(level, facts.beta)
            assert found == [v for v, _ in wanted_pairs]
            assert_prefix_sums(facts.histories[level], [score for _, score in wanted_pairs])
            if rows not in model.levels[:level]:
                assert savings.history_nodes(5, rows).tolist() == sorted(found[:5])
    return model


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=str)
@pytest.mark.parametrize("staleness", [1, 3, 100])
def test_a_profile_counts_what_the_model_counts(
    store: GraphStore, sampling: Sampling, staleness: int
) -> None:
    model = assert_as_modelled(store, sampling, order(store), staleness)
    if staleness == 1:
        assert not model.histories(0, 1.0)
    else:
        assert len(model.histories(0, 1.0)) > 10
    assert len(model.stays) > 5
    # Nodes that the last epoch does not meet have embeddings as well.
    if sampling.num_neighbors[0] > 0:
        assert (staleness == 1) == all(v in model.visits for v in model.fresh)


def test_seeds_that_occur_twice_and_short_epochs(store: GraphStore) -> None:
    twice = SeedOrder(
        np.array([5, 5, 9, 2, 9, 5, 17]), batch_size=3, stream=Stream.TRAIN, seed=0, shuffle=False
    )
    assert_as_modelled(store, TWO, twice, 2)
    assert_as_modelled(store, TWO, order(store, 1000), 2)
    assert_as_modelled(store, THREE, order(store, 50, drop_last=True), 2)


def test_graphs_without_edges_or_features(tmp_path: Path) -> None:
    none = Graph(20, np.empty((2, 0), np.int64))
    with make_store(tmp_path / "s", none, dim=None, train=9) as store:
        model = assert_as_modelled(store, TWO, order(store, 2), 9)
        assert not model.neighbours and not model.drawn


@given(graph=graphs(), sampling=st.sampled_from(SAMPLINGS), data=st.data())
def test_any_subgraph_has_its_last_hop_counted(
    graph: Graph, sampling: Sampling, data: st.DataObject
) -> None:
    indptr, indices, _ = expected_csc(graph)
    topology = _core.array_topology(indptr, indices.astype(np.int32))
    count = data.draw(st.integers(1, graph.num_nodes))
    order = SeedOrder(range(graph.num_nodes), batch_size=count, stream=Stream.TRAIN, seed=1)
    subgraph = Sampler(sampling, topology, 1).sample(order.task(0, 0))
    count_nodes = len(subgraph.nodes)
    cached = data.draw(
        st.lists(st.integers(0, len(LEVELS) - 1), min_size=count_nodes, max_size=count_nodes)
    )
    drawn, found = last_hop(subgraph, np.array(cached, np.uint8))
    first = range(count, count + subgraph.nodes_per_hop[1])
    for level in range(len(LEVELS) - 1):
        there = {local for local, since in enumerate(cached) if since <= level}
        drawn_there, found_there = below_last_hop(subgraph, there)
        assert drawn.tolist() == [drawn_there[v] for v in first]
        assert found[:, level].tolist() == [found_there[v] for v in first]


# Stays


def test_stays_of_a_few_batches() -> None:
    last = LastVisits(9, np.dtype(np.uint16))
    found = [last.stays(np.array(nodes)).tolist() for nodes in ([1, 2], [3], [2, 3, 4], [1, 4])]
    assert found == [[0, 0], [0], [2, 1, 0], [3, 1]]
    last.restart()
    assert last.stays(np.array([1, 2])).tolist() == [0, 0]


def test_the_shortest_stays_have_room_first() -> None:
    """Ten rows that each batch wants, and 20 that every second one does, in ten batches."""
    stays = np.zeros(10, np.int64)
    stays[:3] = 30, 90, 80
    planned = planned_curve(stays)
    assert (planned.counts, planned.sums) == ((0, 9, 25), (0.0, 90.0, 170.0))
    assert kept_stays(stays, [0, 8, 9, 24, 25, 100]).tolist() == [0, 0, 1, 1, 9, 9]
    assert planned_curve(np.array([5])) == Curve((0,), (0.0,))
    assert kept_stays(np.array([5]), [0, 3]).tolist() == [0, 0]


def test_the_better_of_two_curves() -> None:
    one, other = Curve((0, 2, 10), (0.0, 8.0, 10.0)), Curve((0, 4), (0.0, 12.0))
    better = higher(one, other)
    assert (better.counts, better.sums) == ((0, 2, 4, 10), (0.0, 8.0, 12.0, 12.0))


def test_a_long_curve_has_its_ends() -> None:
    planned = planned_curve(np.random.default_rng(0).integers(1000, 9000, 5000))
    assert 150 < len(planned.counts) <= 200
    assert (np.diff(planned.counts) > 0).all() and (np.diff(planned.sums) > 0).all()


# Rankings


@given(st.lists(st.integers(0, 9), max_size=60))
def test_equal_scores_rank_by_place(scores: list[int]) -> None:
    array = np.array(scores, np.uint32)
    keys = ranked(lambda piece: array[piece], len(array))
    wanted = best({v: score for v, score in enumerate(scores) if score})
    assert [v for _, part in places_of(keys) for v in part.tolist()] == [v for v, _ in wanted]
    assert_prefix_sums(curve_of(scores_of(keys), len(keys)), [score for _, score in wanted])


def test_long_rankings_are_made_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("outcrop.layout.ranking.PIECE", 1000)
    values = np.random.default_rng(0).exponential(size=25_500).astype(np.float32)
    values[::3] = 0
    keys = ranked(lambda piece: values[piece].view(np.uint32), len(values))
    places = np.concatenate([part for _, part in places_of(keys)])
    wanted = np.argsort(-values, kind="stable")[: np.count_nonzero(values)]
    assert np.array_equal(places, wanted)
    scores = ((first, bits.view(np.float32)) for first, bits in scores_of(keys))
    curve = curve_of(scores, len(keys))
    assert 150 < len(curve.counts) <= 200
    assert_prefix_sums(curve, values[wanted].tolist())


# The layout


class Stages(Progress):
    def __init__(self, fail_at: str = "") -> None:
        self.names: list[str] = []
        self.done: Counter[str] = Counter()
        self.fail_at = fail_at

    def stage(self, name: str, total: int | None = None, unit: str = "B") -> None:
        self.names.append(name)

    def advance(self, amount: int) -> None:
        self.done[self.names[-1]] += amount
        if self.names[-1] == self.fail_at:
            raise InterruptedError


def found(
    store: GraphStore, sampling: Sampling, seeds: SeedOrder, staleness: int
) -> SavingsFacts | None:
    """The facts of a profile that was made; None where there is none."""
    layout = store.derived.find(KIND, savings_inputs(sampling, seeds, staleness))
    if layout is None:
        return None
    with layout:
        return read_facts(layout.path)


def test_it_is_found_again_by_all_that_it_depends_on(store: GraphStore) -> None:
    seeds, stages = order(store), Stages()
    assert found(store, TWO, seeds, 3) is None
    with Savings(store.disk, open_savings(store, TWO, seeds, 3, stages)) as made:
        assert stages.names[-3:] == ["first hops", "profile", "savings"]
        assert stages.done["profile"] == stages.done["savings"] == len(seeds)
        assert stages.done["first hops"] == FIRST_EPOCHS * len(seeds)
        again = Stages()
        with open_savings(store, TWO, seeds, 3, again) as layout:
            assert not again.names and str(layout.path) == made.facts.path
            names = {path.name for path in layout.path.iterdir()}
            assert names == {*savings_sizes(layout.path), "savings.json", "layout.json", ".lock"}
        assert found(store, TWO, seeds, 3) == made.facts == read_facts(layout.path)
    others = [(TWO, seeds, 4), (THREE, seeds, 3), (TWO, order(store, 8), 3)]
    assert [found(store, *other) for other in others] == [None] * 3


@pytest.mark.parametrize("stage", ["first hops", "profile", "savings"])
def test_what_was_interrupted_leaves_nothing(store: GraphStore, stage: str) -> None:
    with pytest.raises(InterruptedError):
        open_savings(store, TWO, order(store), 3, Stages(stage))
    assert not list(store.derived.root.iterdir())
    assert_as_modelled(store, TWO, order(store), 3)


def test_a_damaged_topology_leaves_nothing(store: GraphStore) -> None:
    damage(store, "indices")
    with pytest.raises(CorruptError, match=r"indices\.npy: piece 0"):
        open_savings(store, TWO, order(store), 3)
    assert not list(store.derived.root.iterdir())


def test_any_damaged_byte_is_found(store: GraphStore) -> None:
    with open_savings(store, TWO, order(store), 5) as layout:
        path = layout.path
    report = outcrop.verify(store.path)
    assert report.ok and report.layouts == 1
    rng = np.random.default_rng(0)
    for name in [*savings_sizes(path), "savings.json"]:
        file = path / name
        good = file.read_bytes()
        for at in {0, len(good) - 1, *rng.integers(0, len(good), 3).tolist()}:
            overwrite(file, at, bytes([good[at] ^ 1]))
            [problem] = outcrop.verify(store.path).problems
            assert problem.file == str(file) and f"remove {path}" in problem.what
            overwrite(file, at, good[at : at + 1])
    with Savings(store.disk, open_savings(store, TWO, order(store), 5)) as savings:
        overwrite(path / "features.npy", 4096, b"\xff")
        with pytest.raises(CorruptError, match=r"features\.npy: piece 0 .*remove .*savings-"):
            savings.feature_nodes(3)
        assert len(savings.history_nodes(3, 0)) == 3
        (path / "histories0.npy").unlink()
        with pytest.raises(CorruptError, match=r"histories0\.npy: No such file"):
            savings.history_nodes(3, 0)
        overwrite(path / "savings.json", 9, b"?")
        with pytest.raises(CorruptError, match=r"savings\.json: .*remove"):
            found(store, TWO, order(store), 5)


def test_what_cannot_be_profiled_is_refused(store: GraphStore) -> None:
    seeds = order(store)
    none = SeedOrder(np.empty(0, np.int64), batch_size=5, stream=Stream.TRAIN, seed=0)
    for sampling, of, staleness, message in [
        (Sampling((4,)), seeds, 3, "two hops"),
        (Sampling((4, 4), kind="shadow"), seeds, 3, "neighbour sampling"),
        (TWO, seeds, 0, r"staleness must be at least 1 \(got 0\)"),
        (TWO, none, 3, "a batch at least"),
    ]:
        with pytest.raises(OptionError, match=message):
            open_savings(store, sampling, of, staleness)
    with (
        Savings(store.disk, open_savings(store, TWO, seeds, 3)) as savings,
        pytest.raises(OptionError, match="at least 0"),
    ):
        savings.feature_nodes(-1)


def test_its_memory_is_bounded_by_what_first_hops_can_find(store: GraphStore) -> None:
    def of(fanout: int) -> Context:
        return Context(
            graph=replace(store.facts, num_nodes=10_000),
            sampling=Sampling((fanout, 3)),
            seeds=order(store),
            epochs=1,
            batch=BatchSizes(2_000_000, 4_000_000, 100_000, 3 << 20),
            options=None,
            memory_bytes=1 << 30,
            disk=DiskFacts(None, 10**12, writable=True),
            engine=EngineFacts("uring", {"uring": 2, "pool": 64}, 4096),
        )

    found = [making_bytes(of(fanout)) for fanout in (1, 2, 3, 30, -1)]
    assert found[0] < found[1] < found[2] < found[3] == found[4]
