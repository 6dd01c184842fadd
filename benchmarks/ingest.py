"""Making stores: how long it takes, and how much memory, inside a cage.

Writes benchmarks/results/ingest.md. Needs the right to make memory control groups, and about 20 GB
of disk space.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from machine import add_dirty, check_results, provenance
from outcrop.options import format_size, parse_size
from outcrop.tools.cage import run_caged

RESULTS = Path(__file__).parent / "results" / "ingest.md"
OUTCROP = str(Path(sys.executable).parent / "outcrop")


@dataclass(frozen=True)
class Case:
    """One command that makes a store."""

    name: str
    arguments: list[str]
    cage: str
    repeats: int = 1


def cases(folder: Path) -> list[Case]:
    quick = ["synth", "STORE", "--nodes", "4M", "--edges", "60M", "--dim", "128"]
    standard = ["synth", "STORE", "--nodes", "20M", "--edges", "300M", "--dim", "128"]
    dense, sparse = str(folder / "dense.txt"), str(folder / "sparse.txt")
    return [
        Case("R-MAT, 4M nodes, 60M edges", [*quick, "--kind", "rmat"], "8GiB", 3),
        Case("communities, 4M nodes, 60M edges", quick, "8GiB", 3),
        Case("R-MAT, 20M nodes, 300M edges",
             [*standard, "--kind", "rmat", "--memory", "1.5GB"], "2GiB"),
        Case("edge list of 60M, ids below 4M",
             ["import", "edgelist", dense, "STORE", "--memory", "64MB"], "299MiB"),
        Case("edge list of 60M, ids below 10^12",
             ["import", "edgelist", sparse, "STORE", "--memory", "64MB"], "299MiB"),
    ]  # fmt: skip


def make_edge_list(path: Path, edges: int, ids: int) -> None:
    """Random edges as text, as SNAP writes them."""
    rng = np.random.default_rng(0)
    with open(path, "wb") as file:
        file.write(b"# FromNodeId\tToNodeId\n")
        for first in range(0, edges, 1_000_000):
            pairs = rng.integers(0, ids, (min(1_000_000, edges - first), 2))
            file.write("".join(f"{s}\t{t}\n" for s, t in pairs.tolist()).encode())


def run(case: Case, store: Path) -> tuple[list[float], int]:
    """Seconds of each repeat, and the largest peak."""
    seconds, peaks = [], []
    for _ in range(case.repeats):
        shutil.rmtree(store, ignore_errors=True)
        command = [OUTCROP, *(str(store) if a == "STORE" else a for a in case.arguments)]
        start = time.perf_counter()
        done = run_caged(command, parse_size(case.cage))
        seconds.append(time.perf_counter() - start)
        if done.returncode != 0:
            sys.exit(f"{case.name}: exit status {done.returncode}\n{done.output}")
        peaks.append(done.peak_bytes)
    shutil.rmtree(store)
    return seconds, max(peaks)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=Path("bench-data"))
    add_dirty(parser)
    arguments = parser.parse_args()
    check_results(RESULTS, dirty=arguments.dirty)
    folder = arguments.folder
    folder.mkdir(exist_ok=True)
    make_edge_list(folder / "dense.txt", 60_000_000, 4_000_000)
    make_edge_list(folder / "sparse.txt", 60_000_000, 10**12)
    lines = ["# Making stores", ""]
    lines += [f"- {name}: {value}" for name, value in provenance(folder).items()]
    lines += [
        "",
        "| store | command | seconds | cage | peak, page cache included |",
        "|---|---|--:|--:|--:|",
    ]
    for case in cases(folder):
        seconds, peak = run(case, folder / "store.outcrop")
        shown = f"{statistics.median(seconds):.1f}"
        if len(seconds) > 1:
            shown += f" ({min(seconds):.1f} to {max(seconds):.1f})"
        lines.append(
            f"| {case.name} | `outcrop {' '.join(case.arguments)}` | {shown} | {case.cage} "
            f"| {format_size(peak)} |"
        )
        print(lines[-1], file=sys.stderr)
    for name in ("dense.txt", "sparse.txt"):
        (folder / name).unlink()
    text = "\n".join(lines) + "\n"
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(text)
    print(text)


if __name__ == "__main__":
    main()
