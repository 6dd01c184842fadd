"""Accuracy on real graphs, over seeds, beside published figures.

Reads npz files from a folder (--data); each becomes a store. Writes
benchmarks/results/accuracy.md.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from machine import add_dirty, check_results, provenance
from outcrop.store.store import GraphStore
from outcrop.train import TrainOptions, fit

RESULTS = Path(__file__).parent / "results" / "accuracy.md"
OUTCROP = str(Path(sys.executable).parent / "outcrop")


@dataclass(frozen=True)
class Graph:
    """A graph, what others report on it (test, per cent), and how it is trained."""

    name: str
    published: dict[str, str]
    options: dict[str, Any] = field(default_factory=dict)


_PLANETOID = {"layers": 2, "num_neighbors": (25, 25), "hidden": 64, "dropout": 0.6, "lr": 0.01,
              "weight_decay": 5e-3, "epochs": 60, "batch_size": 1000}  # fmt: skip
_SMALL = {**_PLANETOID, "weight_decay": 5e-4, "lr": 0.003, "epochs": 80, "evaluate_every": 4,
          "batch_size": 20_000}  # fmt: skip
_LARGE = {"layers": 2, "num_neighbors": (15, 10), "hidden": 128, "dropout": 0.3, "lr": 0.005,
          "epochs": 12, "batch_size": 1000}  # fmt: skip
_TOLOKERS = {"layers": 5, "num_neighbors": (-1,) * 5, "hidden": 256, "dropout": 0.2, "lr": 0.001,
             "epochs": 150, "evaluate_every": 5, "batch_size": 12_000,
             "metric": "roc_auc"}  # fmt: skip

GRAPHS = [
    Graph("cora", {"gcn": "81.5, 81.0", "sage": "80.1"}, _PLANETOID),
    Graph("citeseer", {"gcn": "70.3, 70.7", "sage": "70.1"}, _PLANETOID),
    Graph("pubmed", {"gcn": "79.0, 79.2", "sage": "77.8"}, _PLANETOID),
    Graph("amazon_photo", {"gcn": "89.4", "sage": "90.0"}, _SMALL),
    Graph("coauthor_cs", {"gcn": "91.0", "sage": "92.1"}, _SMALL),
    Graph("wordnet31", {"sage": "78.0"}, _LARGE),
    Graph("tolokers", {"gcn": "83.64", "sage": "82.43"}, _TOLOKERS),
]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="the folder of npz files")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--only", nargs="*", default=[graph.name for graph in GRAPHS])
    add_dirty(parser)
    arguments = parser.parse_args()
    check_results(RESULTS, dirty=arguments.dirty)
    lines = ["# Accuracy on real graphs", ""]
    lines += [f"- {name}: {value}" for name, value in provenance(Path()).items()]
    lines += [
        f"- strategy memory, {arguments.seeds} seeds: mean and standard deviation of the test "
        "score (per cent) at the best validation, on sampled neighbourhoods; tolokers is ROC AUC",
        "",
        "| graph | model | test | lowest to highest | published |",
        "|---|---|--:|--:|---|",
    ]
    with tempfile.TemporaryDirectory() as folder:
        for graph in GRAPHS:
            if graph.name not in arguments.only:
                continue
            path = Path(folder) / f"{graph.name}.outcrop"
            source = arguments.data / f"{graph.name}.npz"
            subprocess.run([OUTCROP, "import", "npz", source, path], check=True)
            for model, published in graph.published.items():
                scores = [100 * score(path, graph, model, s) for s in range(arguments.seeds)]
                lines.append(
                    f"| {graph.name} | {model} | {statistics.mean(scores):.1f} ± "
                    f"{statistics.stdev(scores):.1f} | {min(scores):.1f} to {max(scores):.1f} | "
                    f"{published} |"
                )
                print(lines[-1], flush=True)
    RESULTS.write_text("\n".join(lines) + "\n")


def score(path: Path, graph: Graph, model: str, seed: int) -> float:
    chosen = dict(graph.options)
    if model == "gcn":
        # All neighbours, and one hop more: gcn weights a neighbour by its own degree.
        chosen["num_neighbors"] = (-1,) * (chosen["layers"] + 1)
    options = TrainOptions(model=model, seed=seed, **chosen)
    with GraphStore(path) as store:
        result = fit(store, options)
    assert result.test is not None
    return result.test


if __name__ == "__main__":
    main()
