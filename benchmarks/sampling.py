"""The sampler in memory: sampled edges per second, beside PyG's own and beside numpy.

Writes benchmarks/results/sampling.md. PyG's sampler needs torch-sparse or pyg-lib; where neither is
installed it is listed as absent (see benchmarks/peers.md).
"""

from __future__ import annotations

import argparse
import importlib.util
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from machine import add_dirty, check_results, provenance, quick_store
from outcrop import _core
from outcrop.sample.sampler import Sampler, Sampling
from outcrop.sample.seeds import SeedOrder, Stream
from outcrop.store.store import GraphStore

RESULTS = Path(__file__).parent / "results" / "sampling.md"
FANOUTS = (10, 10, 10)
BATCH = 1000

Sample = Callable[[int], int]
"""Samples a batch by its number -> how many edges it has."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--store", type=Path, default=None, help="default: makes the quick graph")
    parser.add_argument("--batches", type=int, default=20)
    add_dirty(parser)
    arguments = parser.parse_args()
    check_results(RESULTS, dirty=arguments.dirty)
    with quick_store(arguments.store) as path, GraphStore(path) as store:
        rows, notes = measure(store, arguments.batches)
        lines = ["# Sampling in memory", ""]
        lines += [f"- {name}: {value}" for name, value in provenance(path).items()]
        lines += [
            f"- graph: {store.num_nodes:,} nodes, {store.num_edges:,} edges; {BATCH} seeds, "
            f"fanouts {FANOUTS}, {arguments.batches} batches after 3 of warm-up",
            "",
            "| sampler | ms per batch | edges per batch | million edges/s | against PyG |",
            "|---|--:|--:|--:|--:|",
            *rows,
            "",
            *notes,
        ]
    RESULTS.write_text("\n".join(lines) + "\n")
    print("\n".join(lines))


def measure(store: GraphStore, batches: int) -> tuple[list[str], list[str]]:
    indptr, indices = np.array(store.indptr), np.array(store.indices)
    train = np.array(store.split("train"))
    order = SeedOrder(train, batch_size=BATCH, stream=Stream.TRAIN, seed=0)
    samplers: dict[str, Sample | None] = {
        "outcrop, 1 thread": outcrop_sampler(indptr, indices, order, 1),
        "outcrop, 2 threads": outcrop_sampler(indptr, indices, order, 2),
        "numpy": numpy_sampler(indptr, indices, order),
        "PyG (torch-sparse or pyg-lib)": pyg_sampler(indptr, indices, order),
    }
    times: dict[str, list[float]] = {name: [] for name in samplers}
    edges: dict[str, list[int]] = {name: [] for name in samplers}
    for batch in range(batches + 3):  # all take turns
        for name, sample in samplers.items():
            if sample is None:
                continue
            start = time.perf_counter()
            count = sample(batch % len(order))
            if batch >= 3:
                times[name].append(time.perf_counter() - start)
                edges[name].append(count)
    pyg = times["PyG (torch-sparse or pyg-lib)"]
    rows = []
    for name in samplers:
        if not times[name]:
            rows.append(f"| {name} | absent | | | |")
            continue
        middle = statistics.median(times[name])
        spread = f"{min(times[name]) * 1e3:.0f} to {max(times[name]) * 1e3:.0f}"
        rate = sum(edges[name]) / sum(times[name]) / 1e6
        against = f"{statistics.median(pyg) / middle:.1f}" if pyg else ""
        rows.append(
            f"| {name} | {middle * 1e3:.1f} ({spread}) | {statistics.mean(edges[name]):,.0f} | "
            f"{rate:.2f} | {against} |"
        )
    return rows, ["The last column is the ratio of median times."]


def outcrop_sampler(
    indptr: NDArray[np.int64], indices: NDArray[Any], order: SeedOrder, threads: int
) -> Sample:
    sampler = Sampler(Sampling(FANOUTS), _core.array_topology(indptr, indices), 0, threads)

    def sample(batch: int) -> int:
        return len(sampler.sample(order.task(0, batch)).sources)

    return sample


def numpy_sampler(indptr: NDArray[np.int64], indices: NDArray[Any], order: SeedOrder) -> Sample:
    """Vectorised: random keys over all neighbours of a frontier, the smallest k of each node."""
    rng = np.random.default_rng(0)

    def sample(batch: int) -> int:
        nodes = order.task(0, batch).seeds
        frontier, total = nodes, 0
        for fanout in FANOUTS:
            begins, degrees = indptr[frontier], indptr[frontier + 1] - indptr[frontier]
            owners = np.repeat(np.arange(len(frontier)), degrees)
            first = np.cumsum(degrees) - degrees
            offsets = np.arange(degrees.sum()) - np.repeat(first, degrees)
            ranked = np.lexsort((rng.random(len(owners)), owners))
            kept = ranked[offsets < fanout]
            neighbours = indices[np.repeat(begins, degrees)[kept] + offsets[kept]]
            total += len(neighbours)
            known, nodes = nodes, np.concatenate([nodes, np.unique(neighbours)])
            frontier = np.setdiff1d(nodes, known)
        return total

    return sample


def pyg_sampler(
    indptr: NDArray[np.int64], indices: NDArray[Any], order: SeedOrder
) -> Sample | None:
    if not any(importlib.util.find_spec(name) for name in ("pyg_lib", "torch_sparse")):
        return None
    import torch
    from torch_geometric.data import Data
    from torch_geometric.sampler import NeighborSampler, NodeSamplerInput

    targets = torch.repeat_interleave(torch.from_numpy(np.diff(indptr)))
    edges = torch.stack([torch.from_numpy(indices).long(), targets])
    data = Data(edge_index=edges, num_nodes=len(indptr) - 1)
    sampler = NeighborSampler(data, list(FANOUTS))

    def sample(batch: int) -> int:
        seeds = torch.from_numpy(order.task(0, batch).seeds)
        found = sampler.sample_from_nodes(NodeSamplerInput(input_id=None, node=seeds))
        return int(found.row.numel())

    return sample


if __name__ == "__main__":
    main()
