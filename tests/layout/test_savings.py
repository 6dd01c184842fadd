"""Savings: a profile counts what a model in plain Python counts, and is found again, or damaged."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import outcrop
from outcrop import _core
from outcrop.ahead.profiling import last_hop, making_bytes, open_savings
from outcrop.disk import EngineFacts
from outcrop.errors import CorruptError, OptionError
from outcrop.layout.ranking import Curve, curve_of, places_of, ranked, scores_of
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
from outcrop.sample.sampler import Sampler, Sampling, Subgraph
from outcrop.sample.seeds import SeedOrder, Stream
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


@dataclass
class Model:
    """What docs/format.md says, node by node."""

    levels: list[int]
    features: list[tuple[int, int]]
    """Nodes and what they save, best first."""
    drawn: Counter[int] = field(default_factory=Counter)
    found: list[Counter[int]] = field(default_factory=list)
    rows: int = 0
    neighbours: int = 0

    def histories(self, level: int, beta: float) -> list[tuple[int, float]]:
        saved = {
            v: float(np.float32(beta * self.drawn[v] + self.found[level][v]))
            for v in {*self.drawn, *self.found[level]}
        }
        return best({v: score for v, score in saved.items() if score > 0})


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
    """Local ids of the first hop -> what the last one drew and found below them."""
    comes_to, end = below(subgraph), len(subgraph.nodes)
    begin = end - subgraph.nodes_per_hop[-1]
    drawn: Counter[int] = Counter()
    found: Counter[int] = Counter()
    for node in range(begin - subgraph.nodes_per_hop[-2], begin):
        drawn[comes_to[node]] += int(subgraph.counts[node])
    for node in range(begin, end):
        found[comes_to[node]] += int(subgraph.nodes[node]) not in cached
    return drawn, found


def model_of(store: GraphStore, sampling: Sampling, seeds: SeedOrder, staleness: int) -> Model:
    sampler = Sampler(
        sampling, _core.array_topology(store.load("indptr"), store.load("indices")), seeds.seed
    )
    batches_of: Counter[int] = Counter()
    for task in seeds.tasks(0):
        batches_of.update(set(sampler.sample(task).nodes.tolist()))
    levels = [int(part * store.num_nodes) for part in LEVELS]
    made = Model(levels, best(batches_of), found=[Counter() for _ in levels])
    cached = [{v for v, _ in made.features[:count]} for count in levels]
    pushed: dict[int, int] = {}
    for t, task in enumerate(seeds.tasks(0)):
        subgraph = sampler.sample(task)
        made.rows += len(subgraph.nodes)
        made.neighbours += len(subgraph.sources)
        number, near = subgraph.nodes_per_hop[:2]
        pulled = []
        for local in range(number + near):
            node = int(subgraph.nodes[local])
            if local >= number and node in pushed and t - pushed[node] < staleness:
                pulled.append((local, node))
            else:
                pushed[node] = t
        for level, rows in enumerate(cached):
            drawn, found = below_last_hop(subgraph, rows)
            for local, node in pulled:
                made.drawn[node] += drawn[local] if level == 0 else 0
                made.found[level][node] += found[local]
    return made


def assert_prefix_sums(curve: Curve, scores: Sequence[float]) -> None:
    sums = np.concatenate([[0.0], np.cumsum(scores, dtype=np.float64)])
    assert curve.counts[0] == 0 and curve.counts[-1] == curve.length == len(scores)
    assert curve.sums == pytest.approx(sums[list(curve.counts)].tolist())


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
    cached = data.draw(
        st.lists(
            st.integers(0, len(LEVELS) - 1), min_size=graph.num_nodes, max_size=graph.num_nodes
        )
    )
    drawn, found = last_hop(subgraph, np.array(cached, np.uint8))
    first = range(count, count + subgraph.nodes_per_hop[1])
    for level in range(len(LEVELS) - 1):
        there = {v for v, since in enumerate(cached) if since <= level}
        drawn_there, found_there = below_last_hop(subgraph, there)
        assert drawn.tolist() == [drawn_there[v] for v in first]
        assert found[:, level].tolist() == [found_there[v] for v in first]


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
        assert stages.names[-2:] == ["profile", "savings"]
        assert stages.done["profile"] == stages.done["savings"] == len(seeds)
        again = Stages()
        with open_savings(store, TWO, seeds, 3, again) as layout:
            assert not again.names and str(layout.path) == made.facts.path
            names = {path.name for path in layout.path.iterdir()}
            assert names == {*savings_sizes(layout.path), "savings.json", "layout.json", ".lock"}
        assert found(store, TWO, seeds, 3) == made.facts == read_facts(layout.path)
    others = [(TWO, seeds, 4), (THREE, seeds, 3), (TWO, order(store, 8), 3)]
    assert [found(store, *other) for other in others] == [None] * 3


@pytest.mark.parametrize("stage", ["profile", "savings"])
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
            graph=store.facts,
            sampling=Sampling((fanout, 3)),
            seeds=order(store),
            epochs=1,
            batch=BatchSizes(2_000_000, 4_000_000, 100_000, 3 << 20),
            options=None,
            memory_bytes=1 << 30,
            disk=DiskFacts(None, 10**12, writable=True),
            engine=EngineFacts("uring", {"uring": 2, "pool": 64}, 4096),
        )

    assert making_bytes(of(1)) < making_bytes(of(2)) < making_bytes(of(3)) == making_bytes(of(-1))
