"""Profiling: an epoch, sampled and not gathered -> what rows and histories would save (OUTRE).

The first pass samples the epoch into a trace, and counts for each node the batches that have it:
what its row would save. The second one goes through the trace in order, with every node that a
first hop finds as a candidate:

- A candidate is *fresh* if it was pushed less than `staleness` batches ago: then it is pulled, and
  saves something. If not, or if it is a seed, it is pushed. (The paper counts every visit, and so
  too much for nodes that are seldom visited.)
- The edge that found a node first leads to its *parent*; from parent to parent each node comes to
  one candidate. Whoever is pulled is expanded one hop later all the same (sample/history.py), so it
  saves what the last hop did below it: the neighbours that were drawn, and the nodes that were
  found and are in no cache of rows.
- A drawn neighbour counts as beta rows: seconds of sampling per neighbour / seconds per row, as the
  drive reads them at random. No row is read.

All counts are exact, so a ranking depends on nothing that was measured but beta.
"""

from __future__ import annotations

import shutil
import time
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from outcrop.ahead.sampling import SamplingAhead
from outcrop.errors import OptionError
from outcrop.layout.ranking import PIECE, places_of, ranked
from outcrop.layout.savings import KIND, LEVELS, MOST_NODES, RankingsWriter, savings_inputs
from outcrop.layout.trace import AHEAD_BYTES, TraceReader, TraceWriter
from outcrop.memory.context import Context
from outcrop.progress import SILENT, Progress
from outcrop.rates import BRIEF, USUAL_RATES, measure_rates
from outcrop.sample.identity import SamplingIdentity
from outcrop.sample.sampler import Sampler, Sampling, Subgraph
from outcrop.sample.seeds import Ids, SeedOrder, Task
from outcrop.store.derived import Layout
from outcrop.store.store import GraphStore
from outcrop.topology.parts import PAGE_THREADS, paged_topology

_EPOCH = 0
_TRACE = "trace"
# Of what is found for a batch while it is gone through, per edge and per node.
_EDGE_BYTES, _NODE_BYTES = 24, 64 + 8 * len(LEVELS)
_BUFFER_BYTES = 16 << 20  # of writers, and of pieces of rankings

Counts = NDArray[np.uint32]


def open_savings(
    store: GraphStore,
    sampling: Sampling,
    seeds: SeedOrder,
    staleness: int,
    progress: Progress = SILENT,
) -> Layout:
    """The layout, found or made: an epoch is sampled. CorruptError where the store is damaged."""
    if sampling.kind != "neighbor" or len(sampling.num_neighbors) < 2:
        hops = list(sampling.num_neighbors)
        raise OptionError(
            "savings are those of neighbour sampling with two hops at least "
            f"(got {sampling.kind}, {hops})"
        )
    if staleness < 1:
        raise OptionError(f"staleness must be at least 1 (got {staleness})")
    if not len(seeds):
        raise OptionError("a profile needs a batch at least, and there is none in an epoch")
    if store.num_nodes > MOST_NODES:
        raise OptionError(f"{store.path}: a profile is of at most {MOST_NODES} nodes")
    making = _Making(store, sampling, seeds, staleness, progress)
    inputs = savings_inputs(sampling, seeds, staleness)
    return store.derived.get_or_build(KIND, inputs, making.write, progress=progress)


# Sizes


def making_bytes(context: Context) -> int:
    """What making the layout takes, beside the page cache.

    While it samples: 5 bytes per node; then 12 while rows are ranked; 1, and 44 per candidate, for
    the rest. Candidates are no more than the first hops draw.
    """
    nodes, candidates = context.graph.num_nodes, _most_candidates(context)
    batch, record = context.batch, context.record_bytes()
    sampling = 5 * nodes + batch.scratch_bytes + record + record // 4 + 160 * len(context.seeds)
    ranking = 12 * nodes + 4 * candidates
    tables = nodes + (4 + 4 + 4 * len(LEVELS)) * candidates
    # Read ahead, and two batches in use or on the way, with ids in 64 bits.
    reads = max(AHEAD_BYTES, record) + 2 * (record + 8 * batch.nodes)
    pulling = tables + reads + _EDGE_BYTES * batch.edges + _NODE_BYTES * batch.nodes
    measuring = BRIEF.within(context.graph.array_bytes("features")).memory_bytes
    return _BUFFER_BYTES + max(measuring, sampling, ranking, pulling, tables + 8 * candidates)


def _most_candidates(context: Context) -> int:
    """Nodes that the first hops of an epoch can find, at most."""
    fanout, nodes = context.sampling.num_neighbors[0], context.graph.num_nodes
    return nodes if fanout < 0 else min(nodes, fanout * len(context.seeds.nodes))


# Making


@dataclass(frozen=True)
class _Making:
    """What a layout is made from."""

    store: GraphStore
    sampling: Sampling
    seeds: SeedOrder
    staleness: int
    progress: Progress

    def write(self, folder: Path) -> None:
        start = time.perf_counter()
        self.store.check_topology(self.progress)
        requests = self._requests_per_second()
        beside = folder / _TRACE
        beside.mkdir()
        visits = _Visits(self.store.num_nodes)
        writer = RankingsWriter(self.store.disk, folder)
        levels = [int(part * self.store.num_nodes) for part in LEVELS]
        with self._sampled(beside, visits) as trace:
            pulls = self._none_pulled(writer, visits, levels)
            self._pull(trace, pulls)
        shutil.rmtree(beside)
        beta = visits.seconds * requests / max(visits.neighbours, 1)
        pulls.write(writer, beta)
        values = {
            "hops": len(self.sampling.num_neighbors),
            "staleness": self.staleness,
            "batches": len(self.seeds),
            "rows": visits.rows,
            "neighbours": visits.neighbours,
            "sampling_seconds": visits.seconds,
            "requests_per_second": requests,
            "beta": beta,
            "seconds": time.perf_counter() - start,
        }
        writer.finish(levels, values)

    def _requests_per_second(self) -> float:
        if not self.store.has("features"):
            return USUAL_RATES.requests_per_second
        return measure_rates(self.store.features.file).requests_per_second

    def _sampled(self, folder: Path, visits: _Visits) -> TraceReader:
        """The first pass. One sampler, as what it takes is measured."""
        store, seeds = self.store, self.seeds
        sampler = _Timed(
            Sampler(self.sampling, paged_topology(store), seeds.seed, PAGE_THREADS), visits
        )
        self.progress.stage("profile", len(seeds), "batches")
        with TraceWriter(
            store.disk,
            folder,
            num_nodes=store.num_nodes,
            num_edges=store.num_edges,
            identity=SamplingIdentity.of(self.sampling, seeds, store.content).values(),
            edge_ids=False,
        ) as writer:
            ahead = SamplingAhead(seeds.tasks(_EPOCH), [sampler], writer, keep=visits.add)
            with closing(ahead.run()) as steps:
                for _ in steps:
                    self.progress.advance(1)
            return writer.seal()

    def _none_pulled(self, writer: RankingsWriter, visits: _Visits, levels: list[int]) -> _Pulls:
        """Ranks rows, and writes that -> nobody was pulled yet; frees what `visits` counted."""
        candidates = visits.candidates()
        keys = ranked(lambda piece: visits.batches[piece], self.store.num_nodes)
        visits.batches = np.empty(0, np.uint32)
        writer.features(keys)
        cached = np.zeros(self.store.num_nodes, np.uint8)
        for first, nodes in places_of(keys):
            ranks = np.arange(first, first + len(nodes))
            cached[nodes] = np.searchsorted(levels, ranks, side="right")
        return _Pulls(candidates, cached, min(self.staleness, len(self.seeds)))

    def _pull(self, trace: TraceReader, pulls: _Pulls) -> None:
        """The second pass."""
        self.progress.stage("savings", len(trace), "batches")
        for _, subgraph in trace.scan():
            pulls.add(subgraph)
            self.progress.advance(1)


class _Visits:
    """The first pass: which nodes are in how many batches. Not thread-safe."""

    def __init__(self, num_nodes: int) -> None:
        self.batches: Counts = np.zeros(num_nodes, np.uint32)
        """How many have each node."""
        self.rows = self.neighbours = 0
        self.seconds = 0.0
        """Those of sampling."""
        self._near = np.zeros(num_nodes, bool)

    def add(self, subgraph: Subgraph) -> Subgraph:
        nodes, (seeds, near) = subgraph.nodes, subgraph.nodes_per_hop[:2]
        self.batches[nodes] += np.uint32(1)  # once, of a seed that occurs twice as well
        self._near[nodes[seeds : seeds + near]] = True
        self.rows += len(nodes)
        self.neighbours += len(subgraph.sources)
        return subgraph

    def candidates(self) -> Counts:
        """Nodes that first hops found, ascending; can be asked for once."""
        found = [
            (np.flatnonzero(self._near[first : first + PIECE]) + first).astype(np.uint32)
            for first in range(0, len(self._near), PIECE)
        ]
        self._near = np.empty(0, bool)
        return np.concatenate(found)


class _Timed:
    """A sampler whose seconds are counted."""

    def __init__(self, sampler: Sampler, visits: _Visits) -> None:
        self._sampler, self._visits = sampler, visits

    def sample(self, task: Task) -> Subgraph:
        start = time.perf_counter()
        subgraph = self._sampler.sample(task)
        self._visits.seconds += time.perf_counter() - start
        return subgraph

    @property
    def memory_bytes(self) -> int:
        return self._sampler.memory_bytes

    def cancel(self) -> None:
        self._sampler.cancel()


class _Pulls:
    """The second pass: what each candidate saves where it is pulled. Not thread-safe."""

    def __init__(self, candidates: Counts, cached: NDArray[np.uint8], staleness: int) -> None:
        """`cached`: for each node the first level whose cache of rows has it.

        `staleness`: no more than there are batches.
        """
        self._candidates, self._cached, self._staleness = candidates, cached, staleness
        self._batch = 0
        # None was pushed: as if it had been so long ago.
        self._pushed = np.full(len(candidates), -staleness, np.int32)
        self._drawn: Counts = np.zeros(len(candidates), np.uint32)
        # At the last level all rows are cached.
        self._found: Counts = np.zeros((len(LEVELS) - 1, len(candidates)), np.uint32)

    def add(self, subgraph: Subgraph) -> None:
        """The next batch."""
        seeds, near = subgraph.nodes_per_hop[:2]
        places = self._places(subgraph.nodes[seeds : seeds + near])
        pulled = self._batch - self._pushed[places] < self._staleness
        self._pushed[places[~pulled]] = self._batch
        self._push_seeds(subgraph.nodes[:seeds])
        if pulled.any():
            drawn, found = last_hop(subgraph, self._cached)
            self._drawn[places[pulled]] += drawn[pulled]
            for level, counts in enumerate(self._found):
                counts[places[pulled]] += found[pulled, level]
        self._batch += 1

    def _push_seeds(self, seeds: Ids) -> None:
        places = self._places(seeds)
        places = places[places < len(self._candidates)]
        there = np.isin(self._candidates[places], seeds)
        self._pushed[places[there]] = self._batch

    def _places(self, nodes: Ids) -> Ids:
        """Where they are among the candidates, or would be."""
        return np.searchsorted(self._candidates, nodes.astype(np.uint32))

    def write(self, writer: RankingsWriter, beta: float) -> None:
        """Ranks histories at each level."""
        self._pushed, self._cached = np.empty(0, np.int32), np.empty(0, np.uint8)
        for level in range(len(LEVELS)):
            keys = ranked(partial(self._scores, level, beta), len(self._candidates))
            writer.history(level, keys, self._candidates)

    def _scores(self, level: int, beta: float, piece: slice) -> Counts:
        saved = beta * self._drawn[piece]
        if level < len(self._found):
            saved += self._found[level, piece]
        return saved.astype(np.float32).view(np.uint32)


def last_hop(subgraph: Subgraph, cached: NDArray[np.uint8]) -> tuple[Counts, Counts]:
    """What the last hop did below each node of the first hop: edges, and nodes by level.

    `cached`: for each node of the graph the first level that has it; the nodes [near, levels] are
    those found that the cache of a level has not, but for the last level.
    """
    bounds = np.cumsum(subgraph.nodes_per_hop)
    near, before, last = subgraph.nodes_per_hop[1], slice(*bounds[-3:-1]), slice(*bounds[-2:])
    below = _below(subgraph, bounds)
    drawn = np.bincount(below[before], subgraph.counts[before], near).astype(np.uint32)
    levels = len(LEVELS)
    keys = below[last] * levels + cached[subgraph.nodes[last]]
    found = np.bincount(keys, minlength=near * levels).reshape(near, levels)
    not_cached = found[:, ::-1].cumsum(axis=1)[:, -2::-1]
    return drawn, not_cached.astype(np.uint32)


def _below(subgraph: Subgraph, bounds: Ids) -> Ids:
    """For each node, which of the first hop it is below or is; of seeds, nothing that is meant."""
    seeds = int(bounds[0])
    highest = np.maximum.accumulate(subgraph.sources)
    np.maximum(highest, np.uint32(seeds - 1), out=highest)
    # Local ids come in order of discovery: a source above all before it is new.
    edges = np.flatnonzero(np.diff(highest, prepend=np.uint32(seeds - 1)))
    targets = np.repeat(np.arange(len(subgraph.counts), dtype=np.uint32), subgraph.counts)
    parents = targets[edges]
    below = np.arange(-seeds, len(subgraph.nodes) - seeds)
    for first, last in zip(bounds[1:-1].tolist(), bounds[2:].tolist(), strict=True):
        below[first:last] = below[parents[first - seeds : last - seeds]]
    return below
