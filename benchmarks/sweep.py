"""Sweeps: one quantity varied, all else as on the quick graph; the papers' figures.

    python benchmarks/sweep.py memory --strategies mmap,direct
    python benchmarks/sweep.py dim --values 64,128,256
    python benchmarks/sweep.py rate --strategies ginex,gnndrive:topology=cache,diskgnn

memory (share of the features), dim (a graph each), batch_size, fanout (the same at each hop), rate
(what the drive moves in a second at most: DiskGNN's Figure 15; memory maps are not slowed, so leave
them out); and options of strategies, given to those that have them: superbatch, neighbors, threads,
read_unit ...

Each point is a run of `outcrop bench`, with its records, in bench-data/sweeps/NAME/VALUE/; the
table of medians, spreads and hits is in benchmarks/results/sweep-NAME.md.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from machine import provenance, rmat_store
from outcrop.bench.compare import BenchOptions, run_bench
from outcrop.metrics import read_record
from outcrop.options import parse_size
from outcrop.strategies import strategy_named

RESULTS = Path("benchmarks/results")
VALUES = {
    "memory": ["2%", "5%", "10%", "20%", "50%"],
    "dim": ["64", "128", "256", "512", "768"],
    "batch_size": ["250", "500", "1000", "2000", "4000"],
    "fanout": ["5", "10", "15"],
    "rate": ["0.25GB", "0.5GB", "1GB", "2GB"],
    "superbatch": ["5", "10", "20", "40"],
    "neighbors": ["0", "0.25", "0.5", "0.75", "1"],
    "threads": ["16", "32", "64", "128"],
}
_OWN = ("memory", "dim", "batch_size", "fanout", "rate")
"""Of a benchmark; the others are options of strategies."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", help=f"{', '.join(VALUES)}, or another option of a strategy")
    parser.add_argument("--values", default=None, help="with commas")
    parser.add_argument("--strategies", default="mmap,direct")
    parser.add_argument("--batches", type=int, default=10)
    parser.add_argument("--warmup", type=int, default=2)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--nodes", type=int, default=4_000_000)
    parser.add_argument("--memory", default="8%")
    parser.add_argument("--cage", default=None)
    parser.add_argument("--slow", default="", help="strategies timed on 5 batches after 1, scaled")
    parser.add_argument("--suffix", default="", help="of the results' name")
    arguments = parser.parse_args()
    values = arguments.values.split(",") if arguments.values else VALUES[arguments.name]
    base = BenchOptions(
        strategies=tuple(arguments.strategies.split(",")),
        batches=arguments.batches,
        warmup=arguments.warmup,
        repeat=arguments.repeat,
        cache=arguments.memory,
        cage=arguments.cage,
        slow=dict.fromkeys(filter(None, arguments.slow.split(",")), (5, 1)),
    )
    facts = provenance(Path())
    facts["setting"] = (
        f"{arguments.nodes:,} nodes, {arguments.batches} batches after {arguments.warmup}, "
        f"{arguments.repeat} runs each; seconds per batch, data preparation alone: median and "
        "spread; and the share of rows found in a cache"
    )
    lines = [
        f"# Sweep of {arguments.name}",
        "",
        *(f"- {name}: {text}" for name, text in facts.items()),
    ]
    lines += ["", f"| {arguments.name} | {' | '.join(base.strategies)} |"]
    lines.append(f"|---|{'--:|' * len(base.strategies)}")
    sweep = f"{arguments.name}{arguments.suffix}"
    for value in values:
        store = graph(arguments.nodes, int(value) if arguments.name == "dim" else 128)
        out = Path("bench-data") / "sweeps" / sweep / value.strip("%")
        shutil.rmtree(out, ignore_errors=True)
        options = varied(base, arguments.name, value)
        rows = {row["name"]: row for row in run_bench(store, options, out, print)["rows"]}
        cells = [cell(rows[name], out, arguments.batches) for name in options.strategies]
        lines.append(f"| {value} | {' | '.join(cells)} |")
        (RESULTS / f"sweep-{sweep}.md").write_text("\n".join(lines) + "\n")  # kept if cut short
    print("\n".join(lines))


def graph(nodes: int, dim: int) -> Path:
    name = f"quick-{nodes // 1000}k-{dim}" if (nodes, dim) != (4_000_000, 128) else "quick"
    return rmat_store(name, nodes, nodes * 15, dim)


def varied(base: BenchOptions, name: str, value: str) -> BenchOptions:
    if name == "memory":
        return replace(base, cache=value)
    if name == "batch_size":
        return replace(base, batch_size=int(value))
    if name == "fanout":
        return replace(base, num_neighbors=(int(value),) * 3)
    if name == "rate":
        return replace(base, bytes_per_second=parse_size(value))
    if name in _OWN:
        return base
    given = [f"{strategy}:{name}={value}" if has(strategy, name) else strategy
             for strategy in base.strategies]  # fmt: skip
    return replace(base, strategies=tuple(given))


def has(strategy: str, option: str) -> bool:
    return option in {field.name for field in fields(strategy_named(strategy)[0].Options)}


def cell(row: dict[str, Any], out: Path, batches: int) -> str:
    if not row["seconds"]:
        return "failed"
    each = [value / batches for value in row["seconds"]]
    text = f"{statistics.median(each):.3f} ({min(each):.3f} to {max(each):.3f})"
    epoch = read_record(out / row["records"][0])["loader"]["epochs"][0]
    hits = sum(epoch["hits"].values()) / max(epoch["rows"], 1)
    return f"{text}, {hits:.0%}" if epoch["hits"] else text


if __name__ == "__main__":
    main()
