"""One measurement of outre.py's tables, in a process of its own: its peak is what the work takes.

    python benchmarks/outre_jobs.py JOB.json OUT.json

A job names one of the functions below and gives it its arguments; what that returns is written.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from outcrop.layout.fennel import FennelOptions, assign_parts, count_parts
from outcrop.layout.partition_writer import passing_bytes
from outcrop.layout.partitions import (
    PARTS_PER_MACRO_BATCH,
    PartitionOptions,
    default_parts,
    open_partitions,
    read_header,
)
from outcrop.observe.record import compact_json, peak_rss_bytes, rss_bytes
from outcrop.progress import SILENT
from outcrop.run.order import seed_order
from outcrop.sample.history import Gate, HistoryTable
from outcrop.sample.sampler import Sampler, Sampling, Subgraph
from outcrop.sample.seeds import Ids, seed_nodes
from outcrop.store.degrees import most_out_edges, out_degrees
from outcrop.store.locks import replace_synced
from outcrop.store.store import GraphStore
from outcrop.topology.parts import PAGE_THREADS, paged_topology
from outre_scores import compare

Assignment = NDArray[np.uint32]
Visits = list[NDArray[np.uint16]]
MOST_METIS_EDGES = 10_000_000
"""METIS has the graph in memory, both directions of each edge."""
THREADS = "OMP_NUM_THREADS"
"""A variable of the environment: threads of a job; not given: as many as there are CPUs."""
_LAYOUT_BYTES, _INTERPRETER_BYTES = 200_000_000, 80_000_000
_MEMORY, _EVALUATION_BYTES = "8GB", 1_000_000_000
_MIXED_BATCHES = 8
_NEIGHBORS = (10, 10, 10)
_REUSE_EPOCHS = 3
_NO_CANDIDATE = 1 << 40


def partition(
    store: str, method: str, parts: int | str, file: str | None, seeds: str = "train",
    batch_size: int = 1000, options: dict[str, Any] | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Divides the nodes. `method`: fennel, metis or random; `file`: gets the part of each node.

    `parts`: how many; usual: as a loader of these seeds has them; mixed: such that macro batches
    have eight batches.
    """
    with GraphStore(store) as graph:
        parts = parts if isinstance(parts, int) else number(graph, parts, seeds, batch_size)
        before, start = rss_bytes(), time.perf_counter()
        if method == "fennel":
            assignment = assign_parts(graph, parts, FennelOptions(**(options or {})))
        elif method == "metis":
            assignment = metis_parts(graph, parts)
        else:
            assignment = np.random.default_rng(0).integers(parts, size=graph.num_nodes, dtype="u4")
        seconds, peak = time.perf_counter() - start, peak_rss_bytes()
        counts = count_parts(graph, assignment, parts, "cut", SILENT)
        if file is not None:
            np.save(file, assignment)
        return {
            "parts": parts,
            "seconds": seconds,
            "before_bytes": before,
            "peak_bytes": peak,
            "cut": float(1 - counts.inside.sum() / graph.num_edges),
            "balance": float(counts.nodes.max() * parts / graph.num_nodes),
        }


def number(store: GraphStore, rule: str, seeds: str, batch_size: int) -> int:
    count = len(seed_nodes(store, input_nodes(store, seeds))[0])
    if rule == "usual":
        return default_parts(store.num_nodes, count, batch_size)
    return max(1, PARTS_PER_MACRO_BATCH * -(-count // batch_size) // _MIXED_BATCHES)


def metis_parts(store: GraphStore, parts: int) -> Assignment:
    """By METIS, of the graph whose edges have no direction and are there once."""
    import pymetis

    nodes = store.num_nodes
    to = np.repeat(np.arange(nodes), np.diff(store.indptr))
    pairs = np.concatenate(
        [to * nodes + store.indices, store.indices.astype(np.int64) * nodes + to]
    )
    pairs = np.unique(pairs)
    ends = np.stack(np.divmod(pairs, nodes))
    ends = ends[:, ends[0] != ends[1]]
    offsets = np.searchsorted(ends[0], np.arange(nodes + 1))
    _, found = pymetis.part_graph(parts, pymetis.CSRAdjacency(offsets, ends[1]))
    return np.array(found, np.uint32)


def layout_limit(parts: int, store: Path) -> int:
    """What a process may have that makes the layout: the buffers come on top."""
    with GraphStore(store) as graph:
        return _LAYOUT_BYTES + passing_bytes(graph.facts, parts)


def layout(store: str, parts: int, limit: int) -> dict[str, Any]:
    """Makes and removes the whole layout, in a process of so much memory."""
    with tempfile.TemporaryDirectory(dir=Path(store).absolute().parent) as folder:
        before, start = rss_bytes(), time.perf_counter()
        with (
            GraphStore(store, derived=folder) as graph,
            open_partitions(
                graph, PartitionOptions(parts=parts), memory=limit - _INTERPRETER_BYTES
            ) as made,
        ):
            seconds, file = time.perf_counter() - start, read_header(made.path)
            return {
                "limit": limit, "seconds": seconds, "before_bytes": before,
                "peak_bytes": peak_rss_bytes(), "cut": file.cut_share, "balance": file.balance,
            }  # fmt: skip


def redundancy(store: str, seeds: str, batch_size: int, file: str | None) -> dict[str, Any]:
    """Nodes of batches per seed; `file`: the part of each node, None: batches by chance."""
    from outcrop.tools.profile.measure import ProfileOptions, redundancy_ratio

    with GraphStore(store) as graph:
        order = seed_order(
            graph, input_nodes(graph, seeds), batch_size=batch_size, seed=0, batching=batching(file)
        )
        options = ProfileOptions(batches=len(order))
        return {"ratio": redundancy_ratio(graph, options, order=order), "batches": len(order)}


def input_nodes(store: GraphStore, seeds: str) -> Any:
    """train, all, or a share such as 10%, by chance."""
    if not seeds.endswith("%"):
        return seeds
    count = int(store.num_nodes * float(seeds[:-1]) / 100)
    return np.random.default_rng(0).choice(store.num_nodes, count, replace=False)


def batching(file: str | None) -> Any:
    return "random" if file is None else np.load(file)


def train(store: str, seed: int, file: str | None, training: dict[str, Any]) -> dict[str, Any]:
    """The test score at the best validation, trained on partitions that are given."""
    import torch

    from outcrop.loader import NeighborLoader
    from outcrop.train.evaluate import evaluate_full
    from outcrop.train.models import make_model, seed_labels, seed_logits
    from outcrop.train.optimizer import make_optimizer
    from outcrop.train.options import TrainOptions
    from outcrop.train.targets import Targets

    options = TrainOptions(seed=seed, **training)
    torch.manual_seed(seed)
    best, seconds = {"val": -1.0, "test": -1.0}, 0.0
    with GraphStore(store) as graph:
        targets = Targets.of(graph, options)
        model = make_model(options, graph.encoding.dim, targets.out_channels)
        optimizer = make_optimizer(model, options)
        loader = NeighborLoader(
            graph, options.num_neighbors, "train", batch_size=options.batch_size, shuffle=True,
            seed=seed, strategy="memory", memory=_MEMORY, edge_ids=False, batching=batching(file),
        )  # fmt: skip
        for _ in range(options.epochs):
            start = time.perf_counter()
            model.train()
            for batch in loader:
                optimizer.zero_grad()
                loss = targets.loss(seed_logits(model, batch), seed_labels(batch))
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
            seconds += time.perf_counter() - start
            scores = evaluate_full(model, graph, ["val", "test"], targets, _EVALUATION_BYTES)
            best = max(best, scores, key=lambda found: found["val"])
        loader.close()
    return {"test": best["test"], "epoch_seconds": seconds / options.epochs}


def fit(
    store: str, seed: int, batching: str, training: dict[str, Any], history: str = "none",
    candidates: float | None = None,
) -> dict[str, Any]:  # fmt: skip
    """The same by `outcrop train`, whose partitions are its own.

    `history`: as options of training have it; `candidates`: of so many of all nodes.
    """
    from outcrop.train import TrainOptions
    from outcrop.train import fit as fitted

    # Where there is a GPU, sums would come in any order.
    options = TrainOptions(
        seed=seed, batching=batching, strategy="memory", memory=_MEMORY, evaluate="full",
        device="cpu", history=history, **training,
    )  # fmt: skip
    with GraphStore(store) as graph:
        if candidates is not None:
            nodes = int(graph.num_nodes * candidates)
            options = replace(options, history=f"{history}:nodes={nodes}")
        result = fitted(graph, options)
    # Beyond the first epoch, if there are more: embeddings are there from then on.
    epochs = [epoch for epoch in result.record.epochs if epoch.stream == "train"]
    later = epochs[1:] or epochs
    return {
        "test": result.test, "best_epoch": result.best_epoch,
        "batches": epochs[0].batches, "rows": sum(e.rows for e in later) / len(later),
        "pulled": sum(e.pulled for e in later) / len(later),
    }  # fmt: skip


def curve(
    store: str, seed: int, strategy: str, memory: str, training: dict[str, Any], limit: int
) -> dict[str, Any]:  # fmt: skip
    """`outcrop train` by a strategy, nothing prepared before -> scores after seconds.

    In a process of `limit` bytes, with a drive's cache of this graph that is empty. Seconds of
    evaluation are left out, those of preparation are not.
    """
    from outcrop.tools.bench.drive import forget
    from outcrop.train import TrainOptions
    from outcrop.train import fit as fitted
    from outcrop.train.reporter import EpochResult, TrainReporter

    start = time.perf_counter()

    class Clock(TrainReporter):
        """When training began, and what came of each epoch."""

        prepared = 0.0

        def begin(self, *_: Any) -> None:
            self.prepared = time.perf_counter() - start

    forget(Path(store))
    clock = Clock()
    with tempfile.TemporaryDirectory(dir=Path(store).absolute().parent) as folder:
        options = TrainOptions(seed=seed, strategy=strategy, memory=memory, **training)
        with GraphStore(store, derived=folder) as graph:
            start = time.perf_counter()
            result = fitted(graph, options, reporter=clock)
    told: list[EpochResult] = result.history
    return {"limit": limit, "peak_bytes": peak_rss_bytes(), "prepared": clock.prepared,
            "seconds": [one.seconds for one in told], "val": [one.val for one in told],
            "test": [one.test for one in told]}  # fmt: skip


def reuse(store: str, seeds: str, batch_size: int, share: float, staleness: int) -> dict[str, Any]:
    """Nodes of batches by chance per seed, with embeddings of so many nodes: decided, not trained.

    `share`: of all nodes, those with most out-edges; 0: no embedding is used again.
    """
    with GraphStore(store) as graph:
        order = seed_order(graph, input_nodes(graph, seeds), batch_size=batch_size, seed=0)
        count = int(graph.num_nodes * share)
        table = HistoryTable(graph.num_nodes, most_out_edges(out_degrees(graph), count), staleness)
        sampler = Sampler(
            Sampling(_NEIGHBORS), paged_topology(graph), 0, PAGE_THREADS, gate=Gate(table, 0)
        )
        nodes = taken = pulled = 0
        for epoch in range(_REUSE_EPOCHS):
            nodes = taken = pulled = 0  # the last one counts
            for number in range(len(order)):
                task = order.task(epoch, number, counted=True)
                found = sampler.sample(task)
                nodes, taken = nodes + len(found.nodes), taken + len(task.seeds)
                pulled += 0 if found.reuse is None else len(found.reuse.pulled_slots)
        return {"ratio": nodes / taken, "pulled": pulled / len(order), "batches": len(order),
                "candidates": count}  # fmt: skip


def levels(
    store: str, seeds: str, batch_size: int, layers: int, share: float, staleness: int
) -> dict[str, Any]:
    """Rows that batches of partitions need, by which layers' embeddings are used again.

    All hops are sampled; then it is followed from the seeds down what has to be computed. As many
    embeddings are kept for each choice, of the nodes that are needed in most batches; `all` divides
    them evenly between layers. The epoch after the first is counted.
    """
    with GraphStore(store) as graph:
        order = seed_order(
            graph, input_nodes(graph, seeds), batch_size=batch_size, seed=0, batching="partition"
        )
        sampler = Sampler(Sampling(_NEIGHBORS[:1] * layers), paged_topology(graph), 0, PAGE_THREADS)
        visits = [np.zeros(graph.num_nodes, np.uint16) for _ in range(layers)]
        whole = LayerCaches(visits, [], 0, staleness)
        for number in range(len(order)):
            whole.rows(sampler.sample(order.task(0, number)), number, visits)
        kept = int(graph.num_nodes * share)
        choices: dict[str, list[int]] = {
            "none": [],
            "first": [0],
            "second": [1],
            "all": list(range(layers)),
        }
        caches = {
            name: LayerCaches(visits, chosen, kept // max(len(chosen), 1), staleness)
            for name, chosen in choices.items()
        }
        rows = dict.fromkeys(choices, 0)
        for epoch in range(2):
            for number in range(len(order)):
                subgraph = sampler.sample(order.task(epoch, number))
                for name, cache in caches.items():
                    rows[name] += cache.rows(subgraph, epoch * len(order) + number) * epoch
        return {"batches": len(order), "candidates": kept, **{
            name: count / len(order) for name, count in rows.items()
        }}  # fmt: skip


def _needed_below(subgraph: Subgraph, active: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Whose input those that are computed need: their own, and their neighbours'."""
    below = active.copy()
    below[subgraph.sources[np.repeat(active[: len(subgraph.counts)], subgraph.counts)]] = True
    return below


class LayerCaches:
    """Embeddings of some layers, each with candidates of its own; layer 0 is the model's output."""

    def __init__(self, visits: Visits, chosen: list[int], count: int, staleness: int) -> None:
        """`visits`: by layer, how many batches compute each node."""
        self._layers, self._staleness = len(visits), staleness
        self._pushed: dict[int, Ids] = {}
        for layer in chosen:
            best = np.argsort(visits[layer], kind="stable")[::-1][:count]
            # An iteration that never comes: who is no candidate is not kept.
            self._pushed[layer] = np.full(len(visits[layer]), _NO_CANDIDATE)
            self._pushed[layer][best] = -staleness

    def rows(self, subgraph: Subgraph, iteration: int, visits: Visits | None = None) -> int:
        """Those that a batch needs, in its turn. `visits`: are added to."""
        needed = np.zeros(len(subgraph.nodes), bool)
        needed[: subgraph.nodes_per_hop[0]] = True
        above = np.zeros_like(needed)
        for layer in range(self._layers):
            active = needed
            if layer in self._pushed:
                pushed = self._pushed[layer]
                since = pushed[subgraph.nodes]
                kept = since != _NO_CANDIDATE
                # Who is computed one layer above needs its own, with its gradient.
                fresh = kept & (iteration - since < self._staleness) & ~above
                active = needed & ~fresh
                pushed[subgraph.nodes[active & kept]] = iteration
            if visits is not None:
                visits[layer][subgraph.nodes[active]] += 1
            above, needed = active, _needed_below(subgraph, active)
        return int(np.count_nonzero(needed))


def scores(
    store: str, seeds: str, batch_size: int, share: float, width: int, staleness: int
) -> dict[str, Any]:
    """What the paper's scores and ours choose, and what batches of partitions then read."""
    with GraphStore(store) as graph:
        order = seed_order(
            graph, input_nodes(graph, seeds), batch_size=batch_size, seed=0, batching="partition"
        )
        return compare(graph, order, Sampling(_NEIGHBORS), share, width, staleness)


KINDS = {
    each.__name__: each
    for each in (partition, layout, redundancy, train, fit, curve, reuse, levels, scores)
}


def main() -> None:
    from outcrop.tools.environment import versions

    job, out = json.loads(Path(sys.argv[1]).read_text()), Path(sys.argv[2])
    found = KINDS[job.pop("kind")](**job)
    known = {"threads": os.environ.get(THREADS), "versions": versions()}
    replace_synced(out, compact_json({**found, **known}))


if __name__ == "__main__":
    main()
