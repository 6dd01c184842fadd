"""The figures of AGNES (KDD 2026), of agnes and those that it is compared with.

    python benchmarks/agnes.py prepare --graph standard
    python benchmarks/agnes.py blocks length --rounds 1
    python benchmarks/agnes.py memory --memory 1GB,2GB,3GB,4GB --batches 100
    python benchmarks/agnes.py accuracy --data ../shared/data
    python benchmarks/agnes.py prepare --page

Each figure is a page, benchmarks/results/agnes-FIGURE[-GRAPH].md, written after each run. What was
measured lies in bench-data/agnes (--work), a folder per run, and is not measured again: a call that
was interrupted goes on, figures share runs, and --page makes the pages of what there is. Remove a
folder to measure it anew. It needs an idle machine, and root for memory cages.

--memory takes a size of the data path, or a share of the features for caches (10%); of the figures
`overall` and `memory` several, with commas. --batches cuts epochs short: hyperbatches are then no
longer than that, and diskgnn still prepares whole epochs. --graph tiny tries the program itself.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from agnes_figures import AGNES
from machine import check_results
from outcrop.observe.record import read_record
from pages import figure_parser, origin, sizes

# Figure 12


def accuracy(given: argparse.Namespace) -> None:
    """Trains on a real graph with either strategy; scores must be the same at every epoch."""
    store, folder = Path("bench-data/wordnet31.outcrop"), given.work / "accuracy"
    folder.mkdir(parents=True, exist_ok=True)
    if not given.page and not store.exists():
        store.parent.mkdir(exist_ok=True)
        outcrop("import", "npz", str(given.data / "wordnet31.npz"), str(store))
    epochs, memory = str(given.epochs or 10), given.memory or "80MB"
    found: dict[str, list[dict[str, Any]]] = {}
    for model in ("gcn", "sage", "gat"):
        for strategy in ("agnes", "ginex"):
            file = folder / f"{model}-{strategy}-{memory}-{epochs}.json"
            if not given.page and not file.exists():
                outcrop("train", str(store), "--model", model, "--hidden", "64", "--strategy",
                        strategy, "--deterministic", "--epochs", epochs, "--memory", memory,
                        "--record", str(file))  # fmt: skip
            if file.exists():
                found.setdefault(model, []).append(read_record(file))
    text = accuracy_page({model: pair for model, pair in found.items() if len(pair) == 2})
    AGNES.file("accuracy", given).write_text(text)
    print(text)


def accuracy_page(found: dict[str, list[dict[str, Any]]]) -> str:
    """Records of agnes and ginex, by model -> the page."""
    records = [record for pair in found.values() for record in pair]
    known = origin(record["versions"] for record in records)
    memories = sizes({record["loader"]["memory_bytes"] for record in records})
    widths = {record["configuration"]["hidden"] for record in records}
    known["setting"] = (
        f"WordNet 3.1 (117,791 nodes), 3 layers of {', '.join(map(str, widths))}, fanouts "
        f"10,10,10, memory {memories}, no cage; one run each; seconds of "
        "epochs as in the history of records, without what was prepared before them"
    )
    known["the paper"] = "Figure 12: the same accuracy as ginex at every epoch, sooner"
    lines = ["# AGNES: accuracy over time", "", *(f"- {k}: {v}" for k, v in known.items()), ""]
    lines += ["| model | epoch | validation, agnes | ginex | same | s so far, agnes | ginex |",
              "|---|--:|--:|--:|---|--:|--:|"]  # fmt: skip
    for model, (agnes, ginex) in found.items():
        lines += accuracy_lines(model, agnes["history"], ginex["history"])
    return "\n".join([*lines, ""])


def outcrop(*arguments: str) -> None:
    subprocess.run([sys.executable, "-m", "outcrop", *arguments], check=True)


def accuracy_lines(
    model: str, agnes: list[dict[str, Any]], ginex: list[dict[str, Any]]
) -> Iterable[str]:
    own = theirs = 0.0
    for a, b in zip(agnes, ginex, strict=True):
        own, theirs = own + a["seconds"], theirs + b["seconds"]
        same = "yes" if all(a[key] == b[key] for key in ("loss", "val", "test")) else "NO"
        yield (f"| {model} | {a['epoch']} | {a['val']:.4f} | {b['val']:.4f} | {same} | {own:.1f} | "
               f"{theirs:.1f} |")  # fmt: skip


def main() -> None:
    given = figure_parser(__doc__, AGNES, "accuracy").parse_args()
    check_results(*(AGNES.file(name, given) for name in given.figures), dirty=given.dirty)
    for folder in (given.work, given.results):
        folder.mkdir(parents=True, exist_ok=True)
    for name in given.figures:
        if name == "accuracy":
            accuracy(given)
        else:
            AGNES.make(name, given)


if __name__ == "__main__":
    main()
