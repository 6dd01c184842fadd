"""An epoch with everything in memory, beside the model alone: what preparation costs.

The model alone runs over batches that were prepared before. Both take turns, epoch by epoch, on the
same batches. Writes benchmarks/results/epoch.md.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from machine import add_dirty, check_results, provenance, quick_store
from outcrop.loader import NeighborLoader
from outcrop.store.store import GraphStore
from outcrop.train import TrainOptions, make_model
from outcrop.train.models import seed_labels, seed_logits

RESULTS = Path(__file__).parent / "results" / "epoch.md"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--store", type=Path, default=None, help="default: makes the quick graph")
    parser.add_argument("--batches", type=int, default=12)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--models", default="sage,gcn", help="with commas")
    add_dirty(parser)
    arguments = parser.parse_args()
    check_results(RESULTS, dirty=arguments.dirty)
    with quick_store(arguments.store) as path, GraphStore(path) as store:
        text = report(path, store, arguments)
    RESULTS.write_text(text)
    print(text)


def report(path: Path, store: GraphStore, arguments: argparse.Namespace) -> str:
    batches, repeats = arguments.batches, arguments.repeats
    nodes = torch.tensor(store.split("train")[: 1000 * batches])
    loader = NeighborLoader(store, [10, 10, 10], nodes, batch_size=1000, shuffle=True,
                            memory="12GB")  # fmt: skip
    kept = list(loader.epoch(0))
    lines = ["# What preparation costs", ""]
    lines += [f"- {name}: {value}" for name, value in provenance(path).items()]
    lines += [
        f"- {batches} batches of 1000 seeds, fanouts 10,10,10, all in memory; {repeats} rounds, in "
        "which both take turns over the same batches; medians, and in brackets the spread",
        "",
        "| model | model alone, s | epoch with strategy memory, s | ratio | preparation alone, s |",
        "|---|--:|--:|--:|--:|",
    ]
    for name in arguments.models.split(","):
        options = TrainOptions(model=name, hidden=256)
        model = make_model(options, store.encoding.dim, store.num_classes)
        train(model, kept[:2])
        alone, epoch, prepare = [], [], []
        for _ in range(repeats):
            alone.append(train(model, kept))
            epoch.append(train(model, loader.epoch(0)))
            prepare.append(drain(loader.epoch(0)))
        ratios = [b / a for a, b in zip(alone, epoch, strict=True)]
        cells = [spread(values) for values in (alone, epoch, ratios, prepare)]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def spread(values: list[float]) -> str:
    return f"{statistics.median(values):.2f} ({min(values):.2f} to {max(values):.2f})"


def train(model: nn.Module, batches: Iterable[Any]) -> float:
    """Gradient steps over the batches -> seconds."""
    optimizer = torch.optim.Adam(model.parameters(), lr=0.003)
    model.train()
    start = time.perf_counter()
    for batch in batches:
        optimizer.zero_grad()
        loss = cross_entropy(seed_logits(model, batch), seed_labels(batch))
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        del batch
    return time.perf_counter() - start


def drain(batches: Iterable[Any]) -> float:
    start = time.perf_counter()
    for batch in batches:
        del batch
    return time.perf_counter() - start


if __name__ == "__main__":
    main()
