"""Sweeps: one quantity varied, all else as on the quick graph; the papers' figures.

    python benchmarks/sweep.py memory --strategies mmap,direct
    python benchmarks/sweep.py dim --values 64,128,256

memory (share of the features), dim (a graph each), batch_size, fanout (the same at each hop). Each
point is a run of `outcrop bench`, with its records, in benchmarks/results/sweep-NAME/VALUE/; the
table of medians and spreads is in benchmarks/results/sweep-NAME.md.
"""

from __future__ import annotations

import argparse
import statistics
from dataclasses import replace
from pathlib import Path

from machine import provenance, rmat_store
from outcrop.bench.compare import BenchOptions, run_bench

RESULTS = Path("benchmarks/results")
VALUES = {
    "memory": ["2%", "5%", "10%", "20%", "50%"],
    "dim": ["64", "128", "256", "512", "768"],
    "batch_size": ["250", "500", "1000", "2000", "4000"],
    "fanout": ["5", "10", "15"],
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", choices=VALUES)
    parser.add_argument("--values", default=None, help="with commas")
    parser.add_argument("--strategies", default="mmap,direct")
    parser.add_argument("--batches", type=int, default=10)
    parser.add_argument("--warmup", type=int, default=2)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--nodes", type=int, default=4_000_000)
    arguments = parser.parse_args()
    values = arguments.values.split(",") if arguments.values else VALUES[arguments.name]
    base = BenchOptions(
        strategies=tuple(arguments.strategies.split(",")),
        batches=arguments.batches,
        warmup=arguments.warmup,
        repeat=arguments.repeat,
    )
    strategies = base.strategies
    table = [
        f"| {arguments.name} | {' | '.join(strategies)} |",
        f"|---|{'--:|' * len(strategies)}",
    ]
    for value in values:
        store = graph(arguments.nodes, int(value) if arguments.name == "dim" else 128)
        out = RESULTS / f"sweep-{arguments.name}" / value.replace("%", "")
        summary = run_bench(store, varied(base, arguments.name, value), out, print)
        rows = {row["name"]: row for row in summary["rows"]}
        cells = [cell(rows[name]["seconds"], arguments.batches) for name in strategies]
        table.append(f"| {value} | {' | '.join(cells)} |")
    lines = [f"# Sweep of {arguments.name}", ""]
    lines += [f"- {name}: {text}" for name, text in provenance(Path()).items()]
    lines += ["- seconds per batch, data preparation alone: median and spread", "", *table]
    (RESULTS / f"sweep-{arguments.name}.md").write_text("\n".join(lines) + "\n")
    print("\n".join(lines))


def graph(nodes: int, dim: int) -> Path:
    name = f"quick-{nodes // 1000}k-{dim}" if (nodes, dim) != (4_000_000, 128) else "quick"
    return rmat_store(name, nodes, nodes * 15, dim)


def varied(base: BenchOptions, name: str, value: str) -> BenchOptions:
    if name == "memory":
        return replace(base, memory=value)
    if name == "batch_size":
        return replace(base, batch_size=int(value))
    if name == "fanout":
        return replace(base, num_neighbors=(int(value),) * 3)
    return base


def cell(seconds: list[float], batches: int) -> str:
    if not seconds:
        return "failed"
    each = [value / batches for value in seconds]
    return f"{statistics.median(each):.3f} ({min(each):.3f} to {max(each):.3f})"


if __name__ == "__main__":
    main()
