"""Sums over neighbours: ways that torch and PyG have, on the layers of a batch of the quick graph.

    python benchmarks/neighbor_sums.py --device cuda

For each layer of three, forward alone, and (but for the first, whose rows need no gradient) forward
and backward. Appends to benchmarks/results/neighbor-sums.md.
"""

from __future__ import annotations

import argparse
import statistics
import time
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.nn.functional import embedding_bag
from torch_geometric import EdgeIndex
from torch_geometric.utils import scatter

from machine import provenance, quick_store
from outcrop.loader import NeighborLoader
from outcrop.train.layers import Layer, layers_of

RESULTS = Path(__file__).parent / "results" / "neighbor-sums.md"
_HIDDEN = 256


def ways(layer: Layer, x: torch.Tensor) -> dict[str, Callable[[], torch.Tensor]]:
    sources, targets = layer.edge_index.contiguous()
    shape = (layer.targets, layer.sources)
    ones = torch.ones(len(sources), device=x.device)
    csr = torch.sparse_csr_tensor(layer.offsets, sources, ones, shape)
    edges = EdgeIndex(layer.edge_index.contiguous(), sparse_size=shape[::-1], sort_order="col")
    edges.fill_cache_()

    def messages() -> torch.Tensor:
        return x.index_select(0, sources)

    return {
        "messages, scatter (PyG's convolutions)": lambda: scatter(
            messages(), targets, dim_size=layer.targets, reduce="sum"
        ),
        "messages, segment_reduce": lambda: torch.segment_reduce(
            messages(), "sum", offsets=layer.offsets, initial=0
        ),
        "torch.sparse.mm (CSR)": lambda: torch.sparse.mm(csr, x),
        "torch.sparse.mm (CSR, reduce)": lambda: torch.sparse.mm(csr, x, "sum"),
        "PyG's EdgeIndex.matmul": lambda: edges.matmul(x, transpose=True),
        "embedding_bag": lambda: embedding_bag(
            sources, x, layer.offsets, mode="sum", include_last_offset=True
        ),
        "Layer.sum": lambda: layer.sum(x),
    }


def backward(run: Callable[[], torch.Tensor]) -> None:
    run().sum().backward()  # type: ignore[no-untyped-call]


def measure(run: Callable[[], Any], device: torch.device, repeats: int) -> float:
    """Milliseconds, the median."""
    wait: Callable[[], object] = torch.cuda.synchronize if device.type == "cuda" else (lambda: None)
    run()
    took = []
    for _ in range(repeats):
        wait()
        start = time.perf_counter()
        run()
        wait()
        took.append(time.perf_counter() - start)
    return statistics.median(took) * 1e3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--store", type=Path, default=None, help="default: makes the quick graph")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--out", type=Path, default=RESULTS)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    warnings.simplefilter("ignore")  # sparse tensors are a beta feature
    device = torch.device(given.device)
    with quick_store(given.store) as path:
        loader = NeighborLoader(path, [10, 10, 10], "train", batch_size=1000, memory="8GB",
                                edge_ids=False)  # fmt: skip
        batch = next(iter(loader)).to(device)
        text = report(batch, path, device, given)
        loader.close()
    with given.out.open("a") as file:
        file.write(text)
    print(text)


def report(batch: Any, path: Path, device: torch.device, given: argparse.Namespace) -> str:
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
    lines = [f"## {name}", ""]
    lines += [f"- {name}: {value}" for name, value in provenance(path).items()]
    lines += [f"- {torch.__version__}, {given.threads} threads; ms, medians of {given.repeats}", ""]
    layers = layers_of(batch)
    heads = [f"{layer.sources:,} -> {layer.targets:,}" for layer in layers]
    table: dict[str, list[str]] = {}
    for index, layer in enumerate(layers):
        x = batch.x if index == 0 else torch.randn(layer.sources, _HIDDEN, device=device)
        x.requires_grad_(index > 0)
        for way, run in ways(layer, x).items():
            try:
                cell = f"{measure(run, device, given.repeats):.2f}"
                if index:
                    both = measure(partial(backward, run), device, given.repeats)
                    cell += f" / {both:.2f}"
            except (RuntimeError, NotImplementedError):
                cell = "not there"
            table.setdefault(way, []).append(cell)
    lines += [f"| forward / and backward | {' | '.join(heads)} |", "|---|--:|--:|--:|"]
    lines += [f"| {way} | {' | '.join(cells)} |" for way, cells in table.items()]
    return "\n".join(lines) + "\n\n"


if __name__ == "__main__":
    main()
