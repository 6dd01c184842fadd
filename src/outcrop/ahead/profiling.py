"""Profiling: epochs, sampled and not gathered -> what rows and embeddings would save (OUTRE).

Of the first epochs only first hops are sampled, which takes little: they tell how often each node
is met while its embedding would be fresh, in the epoch after as well. The last one is sampled into
a trace, and gone through again:

- A row that is always cached saves a read for each batch that has its node. A cache that knows what
  comes keeps a row from one batch that has it to the next, if that is not long: of all such *stays*
  as many as there is room for, the shortest first (Belady's choice, but for where they overlap).
- The edge that found a node first leads to its *parent*; from parent to parent each node comes to
  one of the first hop. Whoever is pulled is expanded one hop later all the same
  (sample/history.py), so a pull saves what the last hop does below it: the neighbours that are
  drawn, and the nodes that are found and whose rows no cache would have.
- A drawn neighbour counts as beta rows: seconds of sampling per neighbour / seconds per row, as the
  drive reads them at random. No row is read.

An embedding saves what is below its node on average, as often as it is met while fresh. (The paper
counts each visit in one epoch: too much where it would not be fresh, and it counts rows twice that
the cache has.) All counts are exact, so a ranking depends on nothing that was measured but beta.
"""

from __future__ import annotations

import shutil
import time
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from outcrop.ahead.sampling import SamplingAhead
from outcrop.errors import OptionError
from outcrop.layout.ranking import PIECE, kept_stays, planned_curve, ranked
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

_FIRST_EPOCHS = 3
"""Epochs of which first hops alone are sampled. In the first of all nobody was met before."""
_TRACE = "trace"
# Of what is found for a batch while it is gone through, per edge and per node.
_EDGE_BYTES, _NODE_BYTES = 24, 72 + 8 * len(LEVELS)
_BUFFER_BYTES = 16 << 20  # of writers, and of pieces of rankings
_LAST_LEVEL = len(LEVELS) - 1
"""At which all rows are cached."""

Counts = NDArray[np.uint32]
Levels = NDArray[np.uint8]


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

    While it samples: four numbers per node; then eight bytes and two of these, while rows are
    ranked; one of them, and 48 bytes per candidate, for the rest. Candidates are no more than the
    first hops draw.
    """
    nodes, candidates = context.graph.num_nodes, _most_candidates(context)
    number = _number(len(context.seeds)).itemsize
    batch, record = context.batch, context.record_bytes()
    sampling = 4 * number * nodes + batch.scratch_bytes + record + record // 4
    sampling += 160 * len(context.seeds)
    choosing = 3 * number * nodes + 12 * candidates
    ranking = (8 + 2 * number) * nodes + 8 * candidates
    tables = number * nodes + (16 + 4 * _LAST_LEVEL) * candidates
    # Read ahead, and two batches in use or on the way, with ids in 64 bits.
    reads = max(AHEAD_BYTES, record) + 2 * (record + 8 * batch.nodes)
    pulling = tables + reads + _EDGE_BYTES * batch.edges + _NODE_BYTES * batch.nodes
    measuring = BRIEF.within(context.graph.array_bytes("features")).memory_bytes
    steps = measuring, sampling, choosing, ranking, pulling, tables + 8 * candidates
    return _BUFFER_BYTES + max(steps)


def _number(batches: int) -> np.dtype[Any]:
    """Of iterations, from 1 on, and of what is counted once in each."""
    return np.dtype(np.uint16 if (1 + _FIRST_EPOCHS) * batches < 1 << 16 else np.uint32)


def _most_candidates(context: Context) -> int:
    """Nodes that first hops can find, at most."""
    fanout, nodes = context.sampling.num_neighbors[0], context.graph.num_nodes
    drawn = (1 + _FIRST_EPOCHS) * fanout * len(context.seeds.nodes)
    return nodes if fanout < 0 else min(nodes, drawn)


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
        visits = _Visits(self.store.num_nodes, len(self.seeds), self.staleness)
        self._meet(visits)
        writer = RankingsWriter(self.store.disk, folder)
        levels = [int(part * self.store.num_nodes) for part in LEVELS]
        with self._sampled(beside, visits) as trace:
            candidates, fresh = visits.candidates()
            writer.features(ranked(visits.batches_of, self.store.num_nodes))
            below = _Below(candidates, fresh, visits.reused(), visits.cached(levels))
            self._go_through(trace, below)
        shutil.rmtree(beside)
        beta = visits.seconds * requests / max(visits.neighbours, 1)
        below.write(writer, beta)
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
        writer.finish(levels, planned_curve(visits.stays), values)

    def _requests_per_second(self) -> float:
        if not self.store.has("features"):
            return USUAL_RATES.requests_per_second
        return measure_rates(self.store.features.file).requests_per_second

    def _meet(self, visits: _Visits) -> None:
        """Epochs of first hops."""
        fanouts = self.sampling.num_neighbors[:1]
        first = replace(self.sampling, num_neighbors=fanouts, edge_ids=False)
        sampler = Sampler(first, paged_topology(self.store), self.seeds.seed, PAGE_THREADS)
        self.progress.stage("first hops", _FIRST_EPOCHS * len(self.seeds), "batches")
        for epoch in range(_FIRST_EPOCHS):
            for task in self.seeds.tasks(epoch):
                visits.meet(sampler.sample(task), counted=epoch > 0)
                self.progress.advance(1)

    def _sampled(self, folder: Path, visits: _Visits) -> TraceReader:
        """The epoch that is sampled whole. One sampler, as what it takes is measured."""
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
            ahead = SamplingAhead(seeds.tasks(_FIRST_EPOCHS), [sampler], writer, keep=visits.add)
            with closing(ahead.run()) as steps:
                for _ in steps:
                    self.progress.advance(1)
            return writer.seal()

    def _go_through(self, trace: TraceReader, below: _Below) -> None:
        self.progress.stage("savings", len(trace), "batches")
        for _, subgraph in trace.scan():
            below.add(subgraph)
            self.progress.advance(1)


class _Visits:
    """Who is met when, batch after batch. Not thread-safe."""

    def __init__(self, num_nodes: int, batches: int, staleness: int) -> None:
        """`batches`: of an epoch."""
        number = _number(batches)
        self._staleness = staleness
        self._iteration = 0
        # By node: the iteration of its embedding, from 1 on, 0 for none; how often it was fresh
        # when a first hop met it. And of the whole epoch the batches that have it, and the last.
        self._pushed = np.zeros(num_nodes, number)
        self._fresh = np.zeros(num_nodes, number)
        self._batches = np.zeros(num_nodes, number)
        self._last = LastVisits(num_nodes, number)
        self.stays = np.zeros(batches, np.int64)
        """How many rows are wanted again after so many batches; after 0: that were not wanted
        before."""
        self.rows = self.neighbours = 0
        self.seconds = 0.0
        """Those of sampling."""

    def meet(self, subgraph: Subgraph, *, counted: bool) -> None:
        """What the first hop found."""
        self._iteration += 1
        seeds, near = subgraph.nodes_per_hop[:2]
        nodes = subgraph.nodes[seeds : seeds + near]
        pushed = self._pushed[nodes].astype(np.int64)
        fresh = (pushed > 0) & (self._iteration - pushed < self._staleness)
        self._fresh[nodes[fresh]] += self._fresh.dtype.type(counted)
        self._pushed[nodes[~fresh]] = self._iteration
        self._pushed[subgraph.nodes[:seeds]] = self._iteration

    def add(self, subgraph: Subgraph) -> Subgraph:
        """A batch of the epoch that is sampled whole."""
        self.meet(subgraph, counted=True)
        nodes = subgraph.nodes
        self._batches[nodes] += self._batches.dtype.type(1)  # once, of a twin seed as well
        self.stays += np.bincount(self._last.stays(nodes), minlength=len(self.stays))
        self.rows += len(nodes)
        self.neighbours += len(subgraph.sources)
        return subgraph

    def candidates(self) -> tuple[Counts, Counts]:
        """Nodes whose embedding was ever fresh, ascending, and how often; can be asked for once."""
        self._pushed = np.empty(0, self._pushed.dtype)
        found = [
            (np.flatnonzero(self._fresh[first : first + PIECE]) + first).astype(np.uint32)
            for first in range(0, len(self._fresh), PIECE)
        ]
        nodes = np.concatenate([np.empty(0, np.uint32), *found])
        fresh = self._fresh[nodes].astype(np.uint32)
        self._fresh = np.empty(0, self._fresh.dtype)
        return nodes, fresh

    def batches_of(self, piece: slice) -> Counts:
        """How many batches have each of these nodes."""
        return self._batches[piece].astype(np.uint32)

    def reused(self) -> LastVisits:
        """Its table, for another pass; `batches_of` has ended."""
        self._batches = np.empty(0, self._batches.dtype)
        self._last.restart()
        return self._last

    def cached(self, levels: list[int]) -> Levels:
        """For each length of a stay the first level that has room for it; 0: no stay."""
        longest = kept_stays(self.stays, levels[:_LAST_LEVEL])
        found = np.searchsorted(longest, np.arange(len(self.stays))).astype(np.uint8)
        found[0] = _LAST_LEVEL
        return found


class LastVisits:
    """When each node was in a batch last. Not thread-safe."""

    def __init__(self, num_nodes: int, number: np.dtype[Any]) -> None:
        self._last = np.zeros(num_nodes, number)  # from 1 on
        self._batch = 0

    def restart(self) -> None:
        self._last[:] = 0
        self._batch = 0

    def stays(self, nodes: Ids) -> Ids:
        """Of the next batch's nodes: how many batches ago each was in one; 0: in none before."""
        self._batch += 1
        last = self._last[nodes].astype(np.int64)
        self._last[nodes] = self._batch
        return np.where(last > 0, self._batch - last, 0)


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


class _Below:
    """What a pull of each candidate would save: what the last hop does below it, on average. Not
    thread-safe."""

    def __init__(self, candidates: Counts, fresh: Counts, last: LastVisits, cached: Levels) -> None:
        """`fresh`: how often the embedding of each was fresh when it was met.

        `cached`: for each length of a stay the first level whose cache of rows has it.
        """
        self._candidates, self._fresh, self._last, self._cached = candidates, fresh, last, cached
        count = len(candidates)
        # Of candidates, as often as the epoch meets them, and of all nodes of first hops together.
        self._visits, self._drawn = np.zeros((2, count), np.uint32)
        self._found: Counts = np.zeros((_LAST_LEVEL, count), np.uint32)
        self._all_visits = self._all_drawn = 0
        self._all_found = np.zeros(_LAST_LEVEL, np.int64)

    def add(self, subgraph: Subgraph) -> None:
        """The next batch."""
        seeds, near = subgraph.nodes_per_hop[:2]
        levels = self._cached[self._last.stays(subgraph.nodes)]
        drawn, found = last_hop(subgraph, levels)
        self._all_visits += near
        self._all_drawn += int(drawn.sum())
        self._all_found += found.sum(axis=0, dtype=np.int64)
        nodes = subgraph.nodes[seeds : seeds + near].astype(np.uint32)
        places = np.searchsorted(self._candidates, nodes)
        known = np.flatnonzero(places < len(self._candidates))
        known = known[self._candidates[places[known]] == nodes[known]]
        places = places[known]
        self._visits[places] += np.uint32(1)
        self._drawn[places] += drawn[known]
        for level, counts in enumerate(self._found):
            counts[places] += found[known, level]

    def write(self, writer: RankingsWriter, beta: float) -> None:
        """Ranks histories at each level."""
        for level in range(len(LEVELS)):
            keys = ranked(partial(self._scores, level, beta), len(self._candidates))
            writer.history(level, keys, self._candidates)

    def _scores(self, level: int, beta: float, piece: slice) -> Counts:
        """Of a candidate that the epoch did not meet, a pull saves what it does of all."""
        visits = self._visits[piece]
        saved, usual = beta * self._drawn[piece], beta * self._all_drawn
        if level < _LAST_LEVEL:
            saved += self._found[level, piece]
            usual += int(self._all_found[level])
        each = np.full(len(visits), usual / max(self._all_visits, 1))
        np.divide(saved, visits, out=each, where=visits > 0)
        # In an epoch: the first of all was not counted.
        scores: Counts = (self._fresh[piece] / _FIRST_EPOCHS * each).astype(np.float32)
        return scores.view(np.uint32)


def last_hop(subgraph: Subgraph, cached: Levels) -> tuple[Counts, Counts]:
    """What the last hop did below each node of the first hop: edges, and nodes by level.

    `cached`: for each node of the batch the first level that has its row; the nodes [near, levels]
    are those found that the cache of a level has not, but for the last level.
    """
    bounds = np.cumsum(subgraph.nodes_per_hop)
    near, before, last = subgraph.nodes_per_hop[1], slice(*bounds[-3:-1]), slice(*bounds[-2:])
    below = _below(subgraph, bounds)
    drawn = np.bincount(below[before], subgraph.counts[before], near).astype(np.uint32)
    levels = len(LEVELS)
    keys = below[last] * levels + cached[last]
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
