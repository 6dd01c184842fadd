"""Settings of the graphs whose published scores need them, chosen by validation alone.

Trains each setting of a grid with seeds that benchmarks/accuracy.py does not use, and lists them by
their validation; test scores are not looked at. Writes benchmarks/results/choose-settings.md.

    python benchmarks/choose_settings.py --data ../shared/data --jobs 10
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import tempfile
import time
from collections.abc import Iterator
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch

from accuracy import import_npz
from machine import add_dirty, check_results, provenance
from outcrop.store.store import GraphStore
from outcrop.train import TrainOptions, fit

RESULTS = Path(__file__).parent / "results" / "choose-settings.md"
SEEDS = (10, 11)

_COMMON: dict[str, dict[str, Any]] = {
    "tolokers": {"metric": "roc_auc", "batch_size": 12_000, "residual": True, "dropout": 0.2,
                 "evaluate_every": 10},
    "coauthor_cs": {"batch_size": 20_000, "normalize_rows": True, "layers": 2, "epochs": 200,
                    "evaluate_every": 5},
}  # fmt: skip
_GRIDS: dict[str, list[dict[str, tuple[Any, ...]]]] = {
    "tolokers": [
        {"model": ("gcn", "sage"), "layers": (3, 5), "hidden": (256,), "lr": (1e-3, 3e-4),
         "epochs": (400,)},
    ],
    "coauthor_cs": [
        {"model": ("gcn", "sage"), "hidden": (64, 256), "dropout": (0.5, 0.8), "lr": (0.01, 0.003),
         "weight_decay": (5e-4, 5e-3)},
    ],
}  # fmt: skip


def settings() -> Iterator[tuple[str, dict[str, Any]]]:
    for graph, grids in _GRIDS.items():
        for grid in grids:
            for values in itertools.product(*grid.values()):
                yield graph, dict(zip(grid, values, strict=True))


def validate(job: tuple[str, str, dict[str, Any], int]) -> tuple[str, dict[str, Any], float, int]:
    path, graph, chosen, seed = job
    torch.set_num_threads(1)
    options = {**_COMMON[graph], **chosen, "seed": seed, "strategy": "memory"}
    options["num_neighbors"] = (-1,) * options["layers"]
    with GraphStore(path) as store:
        result = fit(store, TrainOptions(**options))
    assert result.val is not None and result.best_epoch is not None
    return graph, chosen, result.val, result.best_epoch


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="the folder of npz files")
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time")
    parser.add_argument("--seconds", type=float, default=1e9, help="ends after these")
    parser.add_argument("--out", type=Path, default=RESULTS)
    add_dirty(parser)
    given = parser.parse_args()
    check_results(given.out, dirty=given.dirty)
    found: dict[tuple[str, str], list[tuple[float, int]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        stores = {graph: import_npz(given.data, graph, Path(folder)) for graph in _GRIDS}
        jobs = [(str(stores[graph]), graph, chosen, seed)
                for graph, chosen in settings() for seed in SEEDS]  # fmt: skip
        start = time.monotonic()
        with get_context("spawn").Pool(given.jobs) as pool:
            for graph, chosen, val, epoch in pool.imap_unordered(validate, jobs):
                name = ", ".join(f"{key} {value}" for key, value in chosen.items())
                found.setdefault((graph, name), []).append((100 * val, epoch))
                print(graph, name, f"{100 * val:.2f}", epoch, flush=True)
                if time.monotonic() - start > given.seconds:
                    print("ended early", flush=True)
                    pool.terminate()
                    break
    given.out.write_text(report(found))


def report(found: dict[tuple[str, str], list[tuple[float, int]]]) -> str:
    lines = ["# Settings, by validation", ""]
    lines += [f"- {name}: {value}" for name, value in provenance(Path()).items()]
    lines += [
        f"- means over {len(SEEDS)} seeds of the best validation, per cent; full neighbourhoods",
        *(f"- {graph}: {common}" for graph, common in _COMMON.items()),
        "",
        "| graph | setting | validation | best epochs |",
        "|---|---|--:|--:|",
    ]
    means = {key: statistics.mean(val for val, _ in runs) for key, runs in found.items()}
    for key in sorted(found, key=lambda key: (key[0], -means[key])):
        epochs = ", ".join(str(epoch) for _, epoch in found[key])
        lines.append(f"| {key[0]} | {key[1]} | {means[key]:.2f} | {epochs} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
