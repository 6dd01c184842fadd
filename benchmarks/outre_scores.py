"""What an embedding is worth, as OUTRE's paper has it and as Outcrop's profile has it: a count.

The paper scores each node that a first hop finds by all that was sampled below it, whenever it is
found, and adds that to what a cache of rows saves, though that cache may have the same rows.
`ahead/profiling.py` says what Outcrop counts. Both divide the same memory; then an epoch is decided
with the embeddings and the cached rows that each chooses, and what it would read is counted.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from outcrop.ahead.profiling import open_savings
from outcrop.layout.ranking import Curve, curve_of
from outcrop.layout.savings import Savings, SavingsFacts
from outcrop.memory.split import split
from outcrop.sample.history import Gate, HistoryTable
from outcrop.sample.sampler import Sampler, Sampling, Subgraph
from outcrop.sample.seeds import Ids, SeedOrder
from outcrop.store.store import GraphStore
from outcrop.topology.parts import PAGE_THREADS, paged_topology

_STEPS = 10  # of the sweep that the chosen division is compared with
Worth = NDArray[np.float64]


@dataclass(frozen=True)
class Scores:
    """What nodes are worth, as far as dividing memory asks, and whose embeddings are the best."""

    facts: SavingsFacts
    best: Callable[[int, int], Ids]
    """So many embeddings, beside so many cached rows -> their nodes, ascending."""


@dataclass(frozen=True)
class Memory:
    """What is divided, and by whom it is used."""

    room: int
    row_bytes: int
    width: int
    num_nodes: int

    def embeddings_bytes(self, count: int) -> int:
        """As a plan has it: embeddings, their gradients and degrees, and tables."""
        table = HistoryTable.table_bytes(self.num_nodes, count)
        return (4 * self.width + 4) * count + table if count else 0

    def divided(self, scores: Scores, alpha: float | None) -> tuple[float, int, int]:
        """The share of embeddings, rows and embeddings; `alpha`: None: as the scores say."""
        facts = scores.facts
        found = split(
            facts, facts.features, self.room, lambda rows: rows * self.row_bytes,
            self.embeddings_bytes, alpha,
        )  # fmt: skip
        return found.alpha, found.rows, found.embeddings


def compare(
    graph: GraphStore,
    order: SeedOrder,
    sampling: Sampling,
    share: float,
    width: int,
    staleness: int,
) -> dict[str, Any]:
    """Both scores, dividing memory of a share of the features."""
    layout = open_savings(graph, sampling, order, staleness)
    with Savings(graph.disk, layout) as savings:
        ours = Scores(savings.facts, savings.history_nodes)
        paper = _papers(savings.facts, paper_worth(graph, order, sampling, savings.facts.beta))
        features = graph.facts.array_bytes("features")
        memory = Memory(int(share * features), graph.facts.row_bytes, width, graph.num_nodes)
        epoch = _Epoch(graph, order, sampling, staleness, savings)
        found: dict[str, Any] = {"batches": len(order), "beta": savings.facts.beta}
        for name, scores in (("paper", paper), ("ours", ours)):
            chosen = epoch.cost(scores, *memory.divided(scores, None))
            sweep = [epoch.cost(scores, *memory.divided(scores, step / _STEPS))
                     for step in range(_STEPS + 1)]  # fmt: skip
            best = min(sweep, key=lambda one: one["cost"])
            found[name] = {**chosen, "best_alpha": best["alpha"], "best_cost": best["cost"]}
        return found


def paper_worth(graph: GraphStore, order: SeedOrder, sampling: Sampling, beta: float) -> Worth:
    """For each node, beta times the edges below it and the nodes that were found there, in all
    batches of an epoch whose first hop finds it."""
    sampler = Sampler(sampling, paged_topology(graph), order.seed, PAGE_THREADS)
    worth = np.zeros(graph.num_nodes)
    for task in order.tasks(0):
        subgraph = sampler.sample(task)
        near = slice(*np.cumsum(subgraph.nodes_per_hop[:2]))
        worth[subgraph.nodes[near]] += beta * below(subgraph, found=False)[near]
        worth[subgraph.nodes[near]] += below(subgraph, found=True)[near]
    return worth


def below(subgraph: Subgraph, *, found: bool) -> Worth:
    """What is below each node of a batch, from its hop to the last: edges; or, `found`, those that
    found a node. By backward products of the sampled adjacencies, from the last hop to the second.
    """
    bounds = np.cumsum([0, *subgraph.nodes_per_hop])
    targets = np.repeat(np.arange(len(subgraph.counts)), subgraph.counts)
    ends = np.cumsum([0, *subgraph.edges_per_hop])
    weights = np.zeros(len(subgraph.nodes))
    for hop in range(len(subgraph.edges_per_hop) - 1, 0, -1):
        edges = slice(ends[hop], ends[hop + 1])
        sources, into = subgraph.sources[edges], targets[edges]
        if found:
            new, first = np.unique(sources, return_index=True)
            first = first[new >= bounds[hop + 1]]
            sources, into = sources[first], into[first]
        weights += np.bincount(into, 1 + weights[sources], len(weights))
    return weights


def _papers(facts: SavingsFacts, worth: Worth) -> Scores:
    """One ranking, whatever rows are cached."""
    ranking = np.argsort(-worth, kind="stable")[: np.count_nonzero(worth)]
    curve: Curve = curve_of(iter([(0, worth[ranking])]), len(ranking))
    return Scores(
        replace(facts, levels=(0,), histories=(curve,)),
        lambda count, _: np.sort(ranking[:count]),
    )


@dataclass
class _Epoch:
    """The second epoch of training, as it would be decided."""

    graph: GraphStore
    order: SeedOrder
    sampling: Sampling
    staleness: int
    savings: Savings

    def cost(self, scores: Scores, alpha: float, rows: int, embeddings: int) -> dict[str, Any]:
        """What a batch reads: rows that are not cached, and drawn neighbours as beta rows each."""
        cached = np.zeros(self.graph.num_nodes, bool)
        cached[self.savings.feature_nodes(rows)] = True
        table = HistoryTable(self.graph.num_nodes, scores.best(embeddings, rows), self.staleness)
        sampler = Sampler(
            self.sampling, paged_topology(self.graph), self.order.seed, PAGE_THREADS,
            gate=Gate(table, 0),
        )  # fmt: skip
        read = drawn = pulled = 0
        for epoch in range(2):
            for batch in range(len(self.order)):
                subgraph = sampler.sample(self.order.task(epoch, batch, counted=True))
                assert subgraph.reuse is not None
                read += epoch * int(np.count_nonzero(~cached[subgraph.nodes]))
                drawn += epoch * len(subgraph.sources)
                pulled += epoch * len(subgraph.reuse.pulled_slots)
        cost = read + self.savings.facts.beta * drawn
        found = {"read": read, "drawn": drawn, "pulled": pulled, "cost": cost}
        return {
            "alpha": alpha, "rows": rows, "embeddings": embeddings,
            **{name: value / len(self.order) for name, value in found.items()},
        }  # fmt: skip
