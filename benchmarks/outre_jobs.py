"""One measurement of outre.py's tables, in a process of its own: its peak is what the work takes.

    python benchmarks/outre_jobs.py JOB.json OUT.json

A job names one of the functions below and gives it its arguments; what that returns is written.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
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
from outcrop.sample.seeds import seed_nodes
from outcrop.store.locks import replace_synced
from outcrop.store.store import GraphStore

Assignment = NDArray[np.uint32]
MOST_METIS_EDGES = 10_000_000
"""METIS has the graph in memory, both directions of each edge."""
_LAYOUT_BYTES, _INTERPRETER_BYTES = 200_000_000, 80_000_000
_MEMORY, _EVALUATION_BYTES = "8GB", 1_000_000_000
_MIXED_BATCHES = 8


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


def fit(store: str, seed: int, batching: str, training: dict[str, Any]) -> dict[str, Any]:
    """The same by `outcrop train`, whose partitions are its own."""
    from outcrop.train import TrainOptions
    from outcrop.train import fit as fitted

    options = TrainOptions(
        seed=seed, batching=batching, strategy="memory", memory=_MEMORY, evaluate="full", **training
    )
    with GraphStore(store) as graph:
        result = fitted(graph, options)
    return {"test": result.test, "best_epoch": result.best_epoch}


KINDS = {each.__name__: each for each in (partition, layout, redundancy, train, fit)}


def main() -> None:
    from outcrop.tools.environment import versions

    job, out = json.loads(Path(sys.argv[1]).read_text()), Path(sys.argv[2])
    found = KINDS[job.pop("kind")](**job)
    replace_synced(out, compact_json({**found, "versions": versions()}))


if __name__ == "__main__":
    main()
