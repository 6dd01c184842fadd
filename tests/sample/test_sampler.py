"""The samplers: equal to the model of docs/format.md, uniform, and the same on any thread."""

from __future__ import annotations

import math
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from itertools import combinations
from pathlib import Path
from statistics import NormalDist
from typing import Any, Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from outcrop import _core
from outcrop.errors import CancelledError, OptionError
from outcrop.sample.sampler import SAMPLING_VERSION, Sampler, Sampling, WaitingBatches
from outcrop.sample.seeds import Stream, Task
from tests.graphs import Graph, expected_csc, graphs, random_graph
from tests.sample import model
from tests.sample.model import golden_table, numbers, sampling_section

Kind = Literal["neighbor", "shadow"]
Arrays = tuple[NDArray[np.int64], NDArray[Any]]

KINDS: tuple[Kind, ...] = ("neighbor", "shadow")
KEY = model.Key()
MODELS = {"neighbor": model.sample_neighbors, "shadow": model.sample_shadow}
KEYS = st.builds(
    model.Key,
    seed=st.integers(0, 2**64 - 1),
    stream=st.sampled_from([int(stream) for stream in Stream]),
    epoch=st.integers(0, 2**32 - 1),
    batch=st.integers(0, 2**32 - 1),
)
FANOUTS = st.lists(st.sampled_from([-1, 0, 1, 2, 3, 5, 60]), min_size=1, max_size=4)


def csc(graph: Graph) -> Arrays:
    indptr, indices, _ = expected_csc(graph)
    return indptr, indices


def regular(nodes: int, degree: int) -> Arrays:
    """As many nodes of one degree; all edges come from node 0."""
    return np.arange(nodes + 1, dtype=np.int64) * degree, np.zeros(nodes * degree, np.int32)


class CoreSampler:
    """A sampler as the tests use it: lists in, lists out."""

    def __init__(
        self,
        arrays: Arrays,
        fanouts: Sequence[int],
        *,
        replace: bool = False,
        kind: Kind = "neighbor",
        threads: int = 1,
    ) -> None:
        self._sampling = Sampling.of(fanouts, replace=replace, kind=kind)
        self._topology = _core.array_topology(*arrays)
        self._threads = threads
        self._samplers: dict[int, Sampler] = {}

    def __call__(self, seeds: Sequence[int] | NDArray[Any], key: model.Key) -> model.Sampled:
        ids = np.asarray(seeds, np.int64)
        task = Task(Stream(key.stream), key.epoch, key.batch, np.arange(len(ids)), ids)
        found = self._of_seed(key.seed).sample(task)
        assert found.edge_ids is not None
        return model.Sampled(
            nodes=found.nodes.tolist(),
            sources=found.sources.tolist(),
            counts=found.counts.tolist(),
            edge_ids=found.edge_ids.tolist(),
            nodes_per_hop=found.nodes_per_hop,
            edges_per_hop=found.edges_per_hop,
            roots=found.roots,
        )

    def _of_seed(self, seed: int) -> Sampler:
        """One sampler for all batches of a seed: what it keeps must not show."""
        if seed not in self._samplers:
            made = Sampler(self._sampling, self._topology, seed, self._threads)
            self._samplers[seed] = made
        return self._samplers[seed]


# The specification


def test_the_document_is_of_this_version() -> None:
    assert f"This is version {SAMPLING_VERSION}\n" in sampling_section()


def test_golden_hop_keys_and_draws() -> None:
    hop_keys = golden_table("seed", "stream", "epoch", "batch", "hop", "K")
    assert len(hop_keys) == 6
    for *inputs, expected in hop_keys:
        *key, hop = map(int, inputs)
        assert f"{model.hop_key(model.Key(*key), hop):016x}" == expected
    draws = golden_table("node", "root", "draw 0", "draw 1", "draw 2")
    assert len(draws) == 4
    for node, root, *words in draws:
        found = [model.draw(0x6BD2FECE1D3872AE, int(node), int(root), i) for i in range(3)]
        assert [f"{word:016x}" for word in found] == words


def test_golden_picks() -> None:
    rows = golden_table("node", "root", "d", "k", "replace", "picks")
    assert len(rows) == 10
    key = model.Key(seed=42, epoch=1, batch=2)
    for *inputs, replace, expected in rows:
        node, root, degree, fanout = map(int, inputs)
        replaced = replace == "yes"
        golden = numbers(expected)
        assert model.picks(model.hop_key(key, 0), node, root, degree, fanout, replaced) == golden
        if root == 0 and node == 3:  # the core, through a graph that has node 3
            indptr, indices = np.array([0, 0, 0, 0, degree]), np.zeros(degree, np.int32)
            found = CoreSampler((indptr, indices), [fanout], replace=replaced)([3], key)
            assert found.edge_ids == golden


def test_golden_batch() -> None:
    rows = {name: cells for name, *cells in golden_table("", "neighbour sampling", "ShaDow")}
    lines = sampling_section().splitlines()
    indptr, indices = (
        np.array(numbers(line.removeprefix(name)))
        for name in ("indptr", "indices")
        for line in lines
        if line.startswith(name)
    )
    key = model.Key(seed=42, epoch=1, batch=2)
    for column, kind in enumerate(KINDS):
        of = {name: numbers(cells[column]) for name, cells in rows.items()}
        seeds, fanouts = of.pop("seeds"), of.pop("fanouts")
        golden = model.Sampled(**of)
        assert CoreSampler((indptr, indices), fanouts, kind=kind)(seeds, key) == golden
        assert MODELS[kind](model.Csc(indptr, indices), seeds, fanouts, key) == golden


# Equal to the model


@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data())
def test_batches_equal_the_model(kind: Kind, data: st.DataObject) -> None:
    """Any graph, any fanouts, one sampler for several batches."""
    graph = data.draw(graphs())
    fanouts = data.draw(FANOUTS)
    replace = data.draw(st.booleans())
    threads = data.draw(st.sampled_from([1, 3]))
    indptr, indices = csc(graph)
    typed = indices.astype(data.draw(st.sampled_from([np.int32, np.int64])))
    sample = CoreSampler((indptr, typed), fanouts, replace=replace, kind=kind, threads=threads)
    key = data.draw(KEYS)
    for batch in range(2):
        seeds = data.draw(st.lists(st.integers(0, graph.num_nodes - 1), max_size=12))
        key = key._replace(batch=batch)
        expected = MODELS[kind](model.Csc(indptr, indices), seeds, fanouts, key, replace=replace)
        assert sample(seeds, key) == expected


@given(st.integers(1, 300), st.integers(-1, 300), st.booleans(), KEYS)
def test_picks_of_long_lists_equal_the_model(
    degree: int, fanout: int, replace: bool, key: model.Key
) -> None:
    found = CoreSampler(regular(3, degree), [fanout], replace=replace)([2], key)
    expected = model.picks(model.hop_key(key, 0), 2, 0, degree, fanout, replace)
    assert [edge - 2 * degree for edge in found.edge_ids] == expected


@pytest.mark.parametrize("fanout", range(46, 53))
def test_both_ways_of_choosing_equal_the_model(fanout: int) -> None:
    """Up to 48 picks are found by looking through them, more in a hash set."""
    for degree in (fanout + 1, 2 * fanout, 10_000):
        found = CoreSampler(regular(2, degree), [fanout])([0, 1], model.Key(9))
        for node in (0, 1):
            picks = model.picks(model.hop_key(model.Key(9), 0), node, 0, degree, fanout, False)
            edges = found.edge_ids[node * fanout : (node + 1) * fanout]
            assert [edge - node * degree for edge in edges] == picks


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("replace", [False, True])
def test_large_batches_equal_the_model_on_any_number_of_threads(kind: Kind, replace: bool) -> None:
    indptr, indices = csc(random_graph(8_000, 60_000, seed=3))
    seeds, fanouts, key = list(range(0, 8_000, 6)), [3, 3], model.Key(1, 0, 2, 3)
    expected = MODELS[kind](model.Csc(indptr, indices), seeds, fanouts, key, replace=replace)
    assert len(expected.nodes) > 4096  # several chunks of everything
    for threads in (1, 2, 8):
        arrays = indptr, indices.astype(np.int32)
        sample = CoreSampler(arrays, fanouts, replace=replace, kind=kind, threads=threads)
        assert sample(seeds, key) == expected


@pytest.mark.parametrize("kind", KINDS)
def test_a_batch_does_not_depend_on_those_before_it(kind: Kind) -> None:
    """Large after small and small after large: tables grow and shrink."""
    arrays = csc(random_graph(20_000, 100_000, seed=4))
    used = CoreSampler(arrays, [4, 4], kind=kind, threads=2)
    for batch, count in enumerate([5, 4_000, 1, 0, 700, 4_000, 2]):
        seeds, key = np.arange(count) * 3, model.Key(1, batch=batch)
        assert used(seeds, key) == CoreSampler(arrays, [4, 4], kind=kind)(seeds, key)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("subgraph_bytes", [0, 10**6])
def test_a_parked_subgraph_outlives_the_next_one(kind: Kind, subgraph_bytes: int) -> None:
    sampler = Sampler(
        Sampling.of([3, 3], kind=kind), _core.array_topology(*csc(random_graph(200, 2000))), 5
    )
    parking = WaitingBatches(subgraph_bytes)
    tasks = [Task(Stream.TRAIN, 0, n, np.arange(9), np.arange(n, n + 9)) for n in range(4)]
    parked = [parking.copy(sampler.sample(task)) for task in tasks]
    for task, kept in zip(tasks, parked, strict=True):
        for field, value in vars(sampler.sample(task)).items():
            assert np.array_equal(getattr(kept, field), value), field
    where = [kept.nodes.ctypes.data for kept in parked]
    del kept, parked
    again = parking.copy(sampler.sample(tasks[0]))
    assert again.nodes.ctypes.data in where, "memory is used again"
    needed = sum(getattr(again, name).nbytes for name in ("nodes", "edge_ids", "sources", "counts"))
    assert needed <= WaitingBatches.subgraph_bytes(len(again.nodes), len(again.sources))


def test_int32_and_int64_indices_give_the_same() -> None:
    indptr, indices = csc(random_graph(300, 3_000, seed=5))
    wide = CoreSampler((indptr, indices), [5, 5])(range(100), model.Key(1))
    narrow = CoreSampler((indptr, indices.astype(np.int32)), [5, 5])(range(100), model.Key(1))
    assert wide == narrow


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("word", model.Key._fields)
def test_seed_stream_epoch_and_batch_all_matter(kind: Kind, word: str) -> None:
    sample = CoreSampler(csc(random_graph(100, 2_000, seed=6)), [5, 5], kind=kind)
    one = model.Key(1, 1, 1, 1)
    assert sample([1, 2, 3], one) != sample([1, 2, 3], one._replace(**{word: 2}))


def test_a_node_is_picked_from_alike_whoever_else_is_in_the_batch() -> None:
    arrays = csc(random_graph(100, 2_000, seed=7))
    sample, key = CoreSampler(arrays, [5]), model.Key(3)
    together = sample(range(100), key)
    for node in (0, 50, 99):
        assert sample([node], key).edge_ids == together.edge_ids[5 * node : 5 * node + 5]


# The shape of batches


def test_no_seeds_give_an_empty_batch() -> None:
    arrays = regular(3, 2)
    empty = CoreSampler(arrays, [2, -1])([], model.Key())
    assert empty == model.Sampled(nodes_per_hop=[0, 0, 0], edges_per_hop=[0, 0])
    assert CoreSampler(arrays, [2], kind="shadow")([], model.Key()) == model.Sampled(roots=[0])


@pytest.mark.parametrize("replace", [False, True])
@pytest.mark.parametrize("fanout", [-1, 0, 1, 10])
def test_a_node_without_neighbours_stays_alone(fanout: int, replace: bool) -> None:
    """Ginex divides by its degree here."""
    arrays = np.array([0, 0, 0]), np.array([], np.int32)
    found = CoreSampler(arrays, [fanout] * 2, replace=replace)([1], model.Key())
    assert found == model.Sampled([1], [], [0], [], [1, 0, 0], [0, 0], [])
    shadow = CoreSampler(arrays, [fanout] * 2, replace=replace, kind="shadow")([1, 1], model.Key())
    assert shadow == model.Sampled([1, 1], [], [0, 0], [], [], [], [0, 1, 2])


def test_the_only_neighbour_is_always_picked() -> None:
    arrays = np.array([0, 1, 1]), np.array([1])
    for epoch in range(20):
        found = CoreSampler(arrays, [1])([0], model.Key(epoch=epoch))
        assert (found.nodes, found.edge_ids) == ([0, 1], [0])
        repeated = CoreSampler(arrays, [3], replace=True)([0], model.Key(epoch=epoch))
        assert (repeated.nodes, repeated.edge_ids) == ([0, 1], [0, 0, 0])


def test_a_seed_that_occurs_twice_is_two_nodes() -> None:
    arrays = csc(random_graph(20, 200, seed=8))
    found = CoreSampler(arrays, [3])([4, 7, 4], model.Key())
    assert found.nodes[:3] == [4, 7, 4]
    assert found.edge_ids[:3] == found.edge_ids[6:]
    assert 2 not in found.sources
    shadow = CoreSampler(arrays, [3], kind="shadow")([4, 4], model.Key())
    one, two = shadow.nodes[: shadow.roots[1]], shadow.nodes[shadow.roots[1] :]
    assert one[0] == two[0] == 4
    assert one != two  # roots draw apart


def test_self_loops_and_parallel_edges_are_edges() -> None:
    arrays = np.array([0, 3, 5]), np.array([0, 1, 1, 0, 0])
    found = CoreSampler(arrays, [-1, -1])([0], model.Key())
    assert found == model.Sampled([0, 1], [0, 1, 1, 0, 0], [3, 2], [0, 1, 2, 3, 4], [1, 1, 0],
                                  [3, 2])  # fmt: skip


@given(graphs(), KEYS, FANOUTS)
def test_shadow_has_all_edges_among_the_nodes_of_a_root(
    graph: Graph, key: model.Key, fanouts: list[int]
) -> None:
    arrays = csc(graph)
    roots = list(range(0, graph.num_nodes, 2))
    found = CoreSampler(arrays, fanouts, kind="shadow")(roots, key)
    targets = np.repeat(np.arange(len(found.nodes)), found.counts)
    for number, root in enumerate(roots):
        begin, end = found.roots[number], found.roots[number + 1]
        members = found.nodes[begin:end]
        assert members[0] == root
        assert len(set(members)) == len(members)
        mine = (targets >= begin) & (targets < end)
        sources = np.array(found.sources, int)[mine]
        assert np.all((sources >= begin) & (sources < end))
        kept = [(s, t) for s, t in graph.edges.T.tolist() if s in members and t in members]
        nodes = np.array(found.nodes)
        assert sorted(zip(nodes[sources], nodes[targets[mine]], strict=True)) == sorted(kept)


# Large degrees and large graphs


@pytest.mark.parametrize("fanout", [1, 10, 48, 49, 2_000])
def test_some_of_a_million_neighbours_equal_the_model(fanout: int) -> None:
    found = CoreSampler(regular(1, 10**6), [fanout])([0], model.Key(2))
    assert found.edge_ids == model.picks(model.hop_key(model.Key(2), 0), 0, 0, 10**6, fanout, False)


def test_all_but_one_of_a_million_neighbours() -> None:
    missing = set()
    for epoch in range(3):
        found = CoreSampler(regular(1, 10**6), [999_999])([0], model.Key(2, epoch=epoch))
        edges = np.array(found.edge_ids)
        assert len(edges) == 999_999
        assert np.all(np.diff(edges) > 0)
        missing.add(10**6 * (10**6 - 1) // 2 - int(edges.sum()))
    assert len(missing) == 3


@pytest.mark.parametrize("fanout", [-1, 10**6, 2**40])
def test_all_of_a_million_neighbours(fanout: int) -> None:
    found = CoreSampler(regular(1, 10**6), [fanout])([0], model.Key(2))
    assert np.array_equal(found.edge_ids, np.arange(10**6))


def sparse(path: Path, size: int, dtype: type[np.integer]) -> NDArray[Any]:
    """A file of zeros that takes no room, mapped."""
    try:
        return np.memmap(path, dtype, "w+", shape=(size,))
    except OSError as error:
        pytest.skip(f"no sparse files of {size} entries here: {error}")


@pytest.mark.parametrize("kind", KINDS)
def test_edges_beyond_two_billion_are_found(tmp_path: Path, kind: Kind) -> None:
    first = 2**31 - 20
    indices = sparse(tmp_path / "indices", first + 100, np.int32)
    indices[first:] = np.arange(100) % 3 + 1  # never node 0, whose list is long
    indptr = np.array([0, first, first + 50, first + 50, first + 100], np.int64)
    seeds, fanouts, key = [1, 3], [5, 5], model.Key(4)
    found = CoreSampler((indptr, indices), fanouts, kind=kind)(seeds, key)
    assert found == MODELS[kind](model.Csc(indptr, indices), seeds, fanouts, key)
    assert min(found.edge_ids) < 2**31 < max(found.edge_ids)


@pytest.mark.parametrize("kind", KINDS)
def test_nodes_beyond_four_billion_are_told_apart(tmp_path: Path, kind: Kind) -> None:
    """Ids that agree in their lower 32 bits."""
    nodes = 2**32 + 8
    indptr = sparse(tmp_path / "indptr", nodes + 1, np.int64)
    indptr[2**32 + 4 :] = [0, 3, 6, 9, 12]
    high = 2**32
    indices = np.array([3, high + 3, 4, 5, high + 5, 5, 6, high + 6, high + 4, 7, high + 7, 7])
    seeds, fanouts, key = [high + 4, high + 5, high + 6, high + 7, 4, 7], [2, -1], model.Key(5)
    found = CoreSampler((indptr, indices), fanouts, kind=kind)(seeds, key)
    assert found == MODELS[kind](model.Csc(indptr, indices), seeds, fanouts, key)
    assert {4, high + 4, 7, high + 7} < set(found.nodes)


# Uniform


def chi_square_limit(dof: int, chance: float = 1e-4) -> float:
    """What a chi-square statistic exceeds with this chance (Wilson and Hilferty, 1931)."""
    spread = 2 / (9 * dof)
    z = NormalDist().inv_cdf(1 - chance)
    return float(dof * (1 - spread + z * math.sqrt(spread)) ** 3)


def assert_even(counts: NDArray[Any], dof: int | None = None, scale: float = 1.0) -> None:
    """Counts of cells that should be equally likely; by default each draw fell into one of them.

    `scale` turns the usual statistic into one of `dof` degrees of freedom where draws depend.
    """
    expected = counts.mean()
    assert expected >= 5, "too few draws for the test"
    statistic = scale * float(np.sum((counts - expected) ** 2) / expected)
    limit = chi_square_limit(counts.size - 1 if dof is None else dof)
    assert statistic < limit, f"not uniform: chi-square {statistic:.1f}, limit {limit:.1f}"


def positions(
    degree: int, fanout: int, nodes: int, *, replace: bool = False, seed: int = 1
) -> NDArray[np.int64]:
    """[nodes, picks]: what as many nodes of one degree pick."""
    key = model.Key(seed)
    found = CoreSampler(regular(nodes, degree), [fanout], replace=replace)(np.arange(nodes), key)
    edges = np.array(found.edge_ids).reshape(nodes, -1)
    return edges - np.arange(nodes)[:, None] * degree


def assert_inclusion_even(picked: NDArray[np.int64], degree: int) -> None:
    """Every position as often: k of d without replacement."""
    counts = np.bincount(picked.ravel(), minlength=degree)
    assert_even(counts, scale=(degree - 1) / (degree - picked.shape[1]))


SHAPES = [
    (2, 1),
    (3, 1),
    (3, 2),
    (10, 1),
    (10, 2),
    (10, 9),
    (33, 1),
    (33, 10),
    (33, 32),
    (100, 1),
    (100, 10),
    (100, 48),
    (100, 49),
    (100, 50),
    (100, 99),
    (60, 59),
    (500, 60),
]


@pytest.mark.parametrize(("degree", "fanout"), SHAPES)
def test_every_position_is_as_likely(degree: int, fanout: int) -> None:
    picked = positions(degree, fanout, 10_000)
    assert picked.shape == (10_000, fanout)
    assert np.all(np.diff(picked, axis=1) > 0)
    assert_inclusion_even(picked, degree)


@pytest.mark.parametrize(
    ("degree", "fanout"), [shape for shape in SHAPES if shape[1] > 1 and shape[0] <= 100]
)
def test_every_pair_of_positions_is_as_likely(degree: int, fanout: int) -> None:
    """Of each node's picks two at random: any of the d (d - 1) / 2 pairs as often."""
    picked = positions(degree, fanout, 30_000, seed=2)
    order = np.random.default_rng(0).permuted(np.tile(np.arange(fanout), (30_000, 1)), axis=1)
    pairs = np.sort(np.take_along_axis(picked, order[:, :2], axis=1), axis=1)
    cells = np.bincount(pairs[:, 0] * degree + pairs[:, 1], minlength=degree * degree)
    assert_even(cells.reshape(degree, degree)[np.triu_indices(degree, 1)])


@pytest.mark.parametrize(
    ("degree", "fanout"), [(4, 2), (5, 3), (7, 5), (10, 2), (10, 3), (10, 9), (12, 6), (50, 49)]
)
def test_every_set_of_positions_is_as_likely(degree: int, fanout: int) -> None:
    picked = positions(degree, fanout, 20_000, seed=3)
    number = {chosen: i for i, chosen in enumerate(combinations(range(degree), fanout))}
    cells = np.bincount([number[tuple(row)] for row in picked.tolist()])
    assert len(cells) == math.comb(degree, fanout)
    assert_even(cells)


@pytest.mark.parametrize("degree", [1, 2, 10, 33, 100])
@pytest.mark.parametrize("fanout", [1, 5, 60])
def test_with_replacement_every_position_is_as_likely(degree: int, fanout: int) -> None:
    picked = positions(degree, fanout, 5_000, replace=True)
    assert picked.shape == (5_000, fanout)
    assert np.all(np.diff(picked, axis=1) >= 0)
    if degree > 1:
        assert_even(np.bincount(picked.ravel(), minlength=degree))


def test_with_replacement_every_pair_is_as_likely() -> None:
    picked = positions(10, 2, 50_000, replace=True)
    pairs = np.random.default_rng(0).permuted(picked, axis=1)  # they come sorted
    assert_even(np.bincount(pairs[:, 0] * 10 + pairs[:, 1], minlength=100))


def test_one_node_picks_evenly_over_the_epochs() -> None:
    sample = CoreSampler(regular(1, 10), [3])
    picked = [sample([0], model.Key(1, epoch=epoch)).edge_ids for epoch in range(5_000)]
    assert_inclusion_even(np.array(picked), 10)


def test_shadow_picks_evenly() -> None:
    """10 neighbours each, all different: the picked ones are the nodes after the root."""
    nodes = 10_000
    indptr = np.concatenate([np.zeros(10, np.int64), np.arange(nodes + 1) * 10])
    indices = np.tile(np.arange(10), nodes)
    roots = np.arange(10, nodes + 10)
    found = CoreSampler((indptr, indices), [3], kind="shadow")(roots, model.Key(4))
    picked = np.array(found.nodes).reshape(nodes, 4)[:, 1:]
    assert_inclusion_even(np.sort(picked, axis=1), 10)


def _pick(key: model.Key = KEY, hop: int = 0, node: int = 0, root: int = 0) -> int:
    return model.picks(model.hop_key(key, hop), node, root, 5, 1, False)[0]


@pytest.mark.parametrize(
    ("one", "two"),
    [
        (lambda i: _pick(model.Key(seed=i)), lambda i: _pick(model.Key(seed=i + 1))),
        (lambda i: _pick(model.Key(i)), lambda i: _pick(model.Key(i, stream=1))),
        (lambda i: _pick(model.Key(epoch=i)), lambda i: _pick(model.Key(epoch=i + 1))),
        (lambda i: _pick(model.Key(batch=i)), lambda i: _pick(model.Key(batch=i + 1))),
        (lambda i: _pick(model.Key(i), hop=0), lambda i: _pick(model.Key(i), hop=1)),
        (lambda i: _pick(node=i), lambda i: _pick(node=i + 1)),
        (lambda i: _pick(node=i), lambda i: _pick(node=i + 2**32)),
        (lambda i: _pick(root=i), lambda i: _pick(root=i + 1)),
    ],
    ids=["seed", "stream", "epoch", "batch", "hop", "node", "high node", "root"],
)
def test_choices_of_different_keys_are_independent(
    one: Callable[[int], int], two: Callable[[int], int]
) -> None:
    cells = [one(i) * 5 + two(i) for i in range(0, 3_000, 2)]
    assert_even(np.bincount(cells, minlength=25))


def test_the_chi_square_test_finds_the_bug_of_ginex() -> None:
    """Floyd's choice with t below j instead of j + 1: the last neighbour comes too seldom."""
    rng = np.random.default_rng(1)
    picked = []
    for _ in range(10_000):
        chosen: set[int] = set()
        for j in range(7, 10):
            t = int(rng.integers(0, j))
            chosen.add(j if t in chosen else t)
        picked.append(sorted(chosen))
    with pytest.raises(AssertionError, match="not uniform"):
        assert_inclusion_even(np.array(picked), 10)


# Bad input


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", [-1, 3, 2**40, -(2**63)])
def test_a_seed_that_is_no_node_is_refused(kind: Kind, seed: int) -> None:
    sample = CoreSampler(regular(3, 2), [2], kind=kind)
    with pytest.raises(ValueError, match=rf"node ids must be 0 to 2 \(got {seed}\)"):
        sample([0, seed], model.Key())
    assert sample([0], model.Key()).nodes == [0]  # and the sampler goes on


@pytest.mark.parametrize(
    ("num_neighbors", "message"),
    [
        ([], r"num_neighbors needs an entry per hop \(got none\)"),
        ([-2], r"num_neighbors takes counts, or -1 for all \(got \[-2\]\)"),
        ([5, -3, 1], r"\(got \[5, -3, 1\]\)"),
    ],
)
def test_bad_fanouts_are_refused(num_neighbors: list[int], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        Sampling.of(num_neighbors)


def test_an_unknown_sampler_is_refused() -> None:
    with pytest.raises(OptionError, match="neighbor or shadow"):
        Sampling.of([2], kind="labor")  # type: ignore[arg-type]


def test_a_stream_beyond_its_byte_is_refused() -> None:
    core = _core.NeighborSampler(
        _core.array_topology(*regular(3, 2)), [1], replace=False, threads=1
    )
    with pytest.raises(ValueError, match="stream must be below 256"):
        core.sample(np.array([0]), seed=0, stream=256, epoch=0, batch=0)


def test_arrays_that_do_not_belong_together_are_refused() -> None:
    with pytest.raises(ValueError, match="indptr does not end at the number of indices"):
        _core.array_topology(np.array([0, 2]), np.array([0], np.int32))
    with pytest.raises(ValueError, match="indptr needs at least one entry"):
        _core.array_topology(np.array([], np.int64), np.array([], np.int32))


def test_a_batch_of_too_many_edges_is_refused() -> None:
    with pytest.raises(ValueError, match=r"2\^32 edges; use smaller batches or fanouts"):
        CoreSampler(regular(3, 2), [2**31], replace=True)([0, 1, 2], model.Key())


def run_alone(script: str) -> subprocess.CompletedProcess[str]:
    """Where a crash does not take the tests with it."""
    return subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60
    )


SCRIPT = """
import numpy as np
from outcrop import _core
topology = _core.array_topology(np.array([0, 2, 4, 6, 8]), np.full(8, {source}, np.int32))
sampler = _core.NeighborSampler(topology, {fanouts}, replace={replace}, threads=1)
try:
    sampler.sample(np.arange(4), seed=0, stream=0, epoch=0, batch=0)
except ValueError as error:
    print("refused:", error)
"""


def test_a_fanout_whose_edges_pass_64_bits_is_refused() -> None:
    ended = run_alone(SCRIPT.format(source=0, fanouts=[2**62], replace=True))
    assert "refused" in ended.stdout, ended.returncode


def test_a_source_that_is_no_node_is_an_error() -> None:
    """One flipped bit of indices.npy, which opening a store does not look at."""
    ended = run_alone(SCRIPT.format(source=10**9, fanouts=[2, 2], replace=False))
    assert ended.returncode >= 0, ended.returncode  # negative: killed by a signal


def test_seeds_that_are_not_integers_are_refused() -> None:
    core = _core.NeighborSampler(
        _core.array_topology(*regular(3, 2)), [1], replace=False, threads=1
    )
    with pytest.raises(TypeError):
        core.sample(np.array([1.7]), seed=0, stream=0, epoch=0, batch=0)


def test_indices_are_not_cut_to_32_bits() -> None:
    indptr, indices = np.array([0, 1], np.int32), np.array([2**32], np.int64)
    with pytest.raises(TypeError):
        _core.array_topology(indptr, indices)  # type: ignore[arg-type]


def test_shadow_needs_no_memory_for_lists_that_roots_share() -> None:
    """A hub with many neighbours is in the subgraph of every root: 3.2 kB of edges a root."""
    hub, roots = 20_000, 400
    indptr = np.concatenate([[0, hub], hub + np.arange(1, roots + 1)])
    indices = np.concatenate([np.arange(hub) % roots, np.zeros(roots)]).astype(np.int32)
    core = _core.ShadowSampler(_core.array_topology(indptr, indices), [1], replace=False, threads=1)
    core.sample(np.arange(1, roots + 1), seed=0, stream=0, epoch=0, batch=0)
    assert core.memory_bytes < 20e6


# Cancel


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("threads", [1, 4])
def test_cancel_stops_a_running_sample_and_all_later_ones(kind: Kind, threads: int) -> None:
    # Many hops on two nodes: seconds of work in no memory.
    make = _core.NeighborSampler if kind == "neighbor" else _core.ShadowSampler
    topology = _core.array_topology(np.array([0, 1, 2]), np.array([1, 0]))
    core = make(topology, [1] * 4_000_000, replace=False, threads=threads)
    seeds = np.array([0])
    timer = threading.Timer(0.05, core.cancel)
    timer.start()
    start = time.perf_counter()
    with pytest.raises(CancelledError, match="cancelled"):
        core.sample(seeds, seed=0, stream=0, epoch=0, batch=0)
    assert time.perf_counter() - start >= 0.04  # it was running
    timer.join()
    with pytest.raises(CancelledError):
        core.sample(seeds, seed=0, stream=0, epoch=0, batch=1)


def test_cancel_stops_one_sampler_only() -> None:
    topology = _core.array_topology(*regular(3, 2))
    one, two = (Sampler(Sampling.of([2]), topology, 0, threads=2) for _ in range(2))
    task = Task(Stream.TRAIN, 0, 0, np.array([0]), np.array([0]))
    one.cancel()
    with pytest.raises(CancelledError):
        one.sample(task)
    assert two.sample(task).edges_per_hop == [2]
