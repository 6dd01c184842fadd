"""Does training on repeated samples cost accuracy? DiskGNN's Tables 5 and 6, on real graphs.

    python benchmarks/diskgnn_accuracy.py --data FOLDER --only pubmed --seeds 3

`diskgnn` with K distinct epochs that are repeated in another order (cycle=true), against all epochs
distinct, which is what every exact strategy trains on. SAGE, GAT (4 heads of 32), GCN and SAGE on
ShaDow's subgraphs. Reads npz files from a folder; writes benchmarks/results/diskgnn-accuracy.md.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from machine import add_dirty, check_results, provenance
from outcrop.store.store import GraphStore
from outcrop.train import TrainOptions, fit

RESULTS = Path(__file__).parent / "results" / "diskgnn-accuracy.md"

# hidden is of all heads together.
MODELS: dict[str, dict[str, Any]] = {
    "sage": {"model": "sage", "evaluate": "full"},
    "gat": {"model": "gat", "hidden": 128, "heads": 4, "evaluate": "full"},
    # One hop more: gcn weights a neighbour by its own degree.
    "gcn": {"model": "gcn", "more_hops": 1, "evaluate": "full"},
    # Evaluated on samples, which takes longer.
    "shadow": {"model": "sage", "sampler": "shadow", "evaluate_every": 5},
}


@dataclass(frozen=True)
class Graph:
    """How a graph is trained."""

    options: dict[str, Any]
    fanout: int = 10


_PLANETOID = {"layers": 2, "hidden": 64, "dropout": 0.6, "lr": 0.01, "weight_decay": 5e-3,
              "epochs": 20, "evaluate_every": 2, "batch_size": 20}  # fmt: skip
GRAPHS = {
    # Small batches: else an epoch is one of them.
    "cora": Graph(_PLANETOID),
    "citeseer": Graph(_PLANETOID),
    "pubmed": Graph(_PLANETOID),
    "wordnet31": Graph(
        {"layers": 2, "hidden": 128, "dropout": 0.3, "lr": 0.005, "epochs": 10,
         "evaluate_every": 1, "batch_size": 1000}
    ),
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="the folder of npz files")
    parser.add_argument("--only", nargs="*", default=list(GRAPHS), choices=list(GRAPHS))
    parser.add_argument("--models", nargs="*", default=list(MODELS), choices=list(MODELS))
    parser.add_argument("--distinct", default="1,2,5,all", help="values of K, with commas")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--memory", default="1GB")
    parser.add_argument("--out", type=Path, default=RESULTS)
    add_dirty(parser)
    arguments = parser.parse_args()
    check_results(arguments.out, dirty=arguments.dirty)
    lines = ["# Accuracy with repeated samples", ""]
    lines += [f"- {name}: {value}" for name, value in provenance(Path()).items()]
    lines += [
        f"- `diskgnn:distinct_epochs=K:cycle=true` in {arguments.memory}, {arguments.seeds} "
        "seeds: mean and standard deviation of the test accuracy (per cent) at the best "
        "validation epoch, on full neighbourhoods (shadow: on sampled ones); K = all is what "
        "`memory` trains on, bit by bit",
        "",
        "| graph | model | epochs | "
        + " | ".join(f"K = {count}" for count in arguments.distinct.split(","))
        + " |",
        "|---|---|--:|" + "--:|" * len(arguments.distinct.split(",")),
    ]
    with tempfile.TemporaryDirectory(dir=Path()) as folder:
        for name in arguments.only:
            path = Path(folder) / f"{name}.outcrop"
            source = arguments.data / f"{name}.npz"
            command = [sys.executable, "-m", "outcrop", "import", "npz", source, path]
            subprocess.run(command, check=True)
            for row in rows(path, name, arguments):
                lines.append(row)
                print(row, flush=True)
                arguments.out.write_text("\n".join(lines) + "\n")


def rows(path: Path, name: str, arguments: argparse.Namespace) -> Iterator[str]:
    graph = GRAPHS[name]
    for model in arguments.models:
        cells = []
        start = time.perf_counter()
        for distinct in arguments.distinct.split(","):
            count = graph.options["epochs"] if distinct == "all" else int(distinct)
            strategy = f"diskgnn:distinct_epochs={count}:cycle=true"
            scores = []
            for seed in range(arguments.seeds):
                options = training(graph, model, seed, strategy, arguments.memory)
                with GraphStore(path) as store:
                    result = fit(store, options)
                assert result.test is not None
                scores.append(100 * result.test)
            spread = statistics.stdev(scores) if len(scores) > 1 else 0.0
            cells.append(f"{statistics.mean(scores):.1f} ± {spread:.1f}")
        print(f"{name} {model}: {time.perf_counter() - start:.0f} s", file=sys.stderr, flush=True)
        yield f"| {name} | {model} | {graph.options['epochs']} | {' | '.join(cells)} |"


def training(graph: Graph, model: str, seed: int, strategy: str, memory: str) -> TrainOptions:
    chosen = {**graph.options, **MODELS[model]}
    hops = chosen["layers"] + chosen.pop("more_hops", 0)
    return TrainOptions(
        seed=seed, strategy=strategy, memory=memory, num_neighbors=(graph.fanout,) * hops, **chosen
    )


if __name__ == "__main__":
    main()
