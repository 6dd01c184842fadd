"""Sweeps: one quantity varied, all else as on the quick graph; the papers' figures.

    PYTHONPATH=src python benchmarks/sweep.py figures
    python benchmarks/sweep.py memory --strategies mmap,direct
    python benchmarks/sweep.py dim --values 64,128,256
    python benchmarks/sweep.py rate --strategies ginex,gnndrive:topology=cache,diskgnn

figures: the four sweeps of Ginex's figures, dim, memory, batch_size and neighbors, one run of each
point: about 15 minutes on 2 cores and a drive of 200,000 reads/s, with 7 GB of disk for graphs. It
needs an idle machine, outcrop on PYTHONPATH, and root for a memory cage; without one it goes on,
and the tables say so.

memory (for caches, as a share of the features), dim (a graph each), batch_size, fanout (the same at
each hop), rate (what the drive moves in a second at most: DiskGNN's Figure 15; memory maps are not
slowed, so leave them out); and options of strategies, given to those that have them: superbatch,
neighbors, threads, read_unit ...

Each point is a run of `outcrop bench`, with its records, in bench-data/sweeps/NAME/VALUE/; the
table of medians, spreads and hits is in benchmarks/results/sweep-NAME.md.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
from dataclasses import replace
from pathlib import Path
from typing import Any

from machine import add_dirty, check_results, provenance, rmat_store
from outcrop.errors import OptionError
from outcrop.observe.record import read_record
from outcrop.options import parse_size
from outcrop.tools.bench.compare import BenchOptions, run_bench
from outcrop.tools.bench.variants import variant_named

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


# Of Ginex's figures: how each is varied, and who takes part.
_GINEX = "mmap,pagraph,ginex:policy=static,ginex"
FIGURES = {
    "dim": (["64", "128", "256"], _GINEX),
    "memory": (["4%", "8%", "16%", "32%"], _GINEX),
    "batch_size": (["500", "1000", "2000"], _GINEX),
    "neighbors": (["0", "0.25", "0.5", "0.75", "1"], "pagraph"),
}
_FIGURES_SETTING = {"batches": 16, "warmup": 1, "repeat": 1, "slow": "mmap"}
_SLOW = (5, 1)
"""Batches that slow strategies are timed on, and warm-up before them."""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("name", help=f"figures, {', '.join(VALUES)}, or an option of a strategy")
    parser.add_argument("--values", default=None, help="with commas")
    parser.add_argument("--strategies", default="mmap,direct")
    parser.add_argument("--batches", type=int, default=None, help="10; of figures: 16")
    parser.add_argument("--warmup", type=int, default=None, help="2; of figures: 1")
    parser.add_argument("--repeat", type=int, default=None, help="3; of figures: 1")
    parser.add_argument("--nodes", type=int, default=4_000_000)
    parser.add_argument("--memory", default="8%", help="for caches, as outcrop bench --cache")
    parser.add_argument("--cage", default=None)
    parser.add_argument(
        "--slow", default=None, help="strategies timed on 5 batches after 1, scaled"
    )
    parser.add_argument("--suffix", default="", help="of the results' name")
    parser.add_argument("--results", type=Path, default=RESULTS, help="where tables go")
    parser.add_argument("--commit", default=None, help="where there is no git to ask")
    add_dirty(parser)
    arguments = parser.parse_args()
    usual = {"batches": 10, "warmup": 2, "repeat": 3, "slow": ""}
    for name, value in (_FIGURES_SETTING if arguments.name == "figures" else usual).items():
        if getattr(arguments, name) is None:
            setattr(arguments, name, value)
    arguments.results.mkdir(parents=True, exist_ok=True)
    names = list(FIGURES) if arguments.name == "figures" else [arguments.name]
    check_results(*(results_file(name, arguments) for name in names), dirty=arguments.dirty)
    if arguments.name == "figures":
        for name, (values, strategies) in FIGURES.items():
            sweep(name, values, strategies, arguments)
        return
    given = arguments.values.split(",") if arguments.values else VALUES[arguments.name]
    sweep(arguments.name, given, arguments.strategies, arguments)


def sweep(name: str, values: list[str], strategies: str, arguments: argparse.Namespace) -> None:
    """A point after the other; the table is written after each, so that it stays if cut short."""
    names = tuple(strategies.split(","))
    slow = [strategy for strategy in arguments.slow.split(",") if strategy in names]
    base = BenchOptions(
        strategies=names,
        batches=arguments.batches,
        warmup=arguments.warmup,
        repeat=arguments.repeat,
        cache=arguments.memory,
        cage=arguments.cage,
        slow=dict.fromkeys(slow, _SLOW),
    )
    head = [f"{n} (timed on {_SLOW[0]} batches)" if n in slow else n for n in names]
    rows: list[str] = []
    for value in values:
        store = graph(arguments.nodes, int(value) if name == "dim" else 128)
        out = Path("bench-data") / "sweeps" / f"{name}{arguments.suffix}" / value.strip("%")
        shutil.rmtree(out, ignore_errors=True)
        options = varied(base, name, value)
        summary = run_bench(store, options, out, print)
        found = {row["name"]: row for row in summary["rows"]}
        cells = [cell(found[strategy], out, arguments.batches) for strategy in options.strategies]
        rows.append(f"| {value} | {' | '.join(cells)} |")
        lines = [
            f"# Sweep of {name}", "", *facts(summary, arguments), "",
            f"| {name} | {' | '.join(head)} |", f"|---|{'--:|' * len(head)}", *rows,
        ]  # fmt: skip
        results_file(name, arguments).write_text("\n".join(lines) + "\n")
    print("\n".join(lines))


def results_file(name: str, arguments: argparse.Namespace) -> Path:
    return Path(arguments.results) / f"sweep-{name}{arguments.suffix}.md"


def facts(summary: dict[str, Any], arguments: argparse.Namespace) -> list[str]:
    """Where and how, as a list in Markdown."""
    found = provenance(Path())
    if arguments.commit is not None:
        found["outcrop"] = f"commit {arguments.commit}"
    caged = summary["configuration"]["cage"] == "cgroup"
    found["cage"] = (
        "a control group's limit on each process, page cache included"
        if caged
        else "NONE could be made here: memory by accounting alone, so mmap has the whole page cache"
    )
    scaled = [row["name"] for row in summary["rows"] if row["scaled"]]
    timed = f"{arguments.batches} batches after {arguments.warmup}"
    if scaled:
        timed += f" ({', '.join(scaled)}: {_SLOW[0]} after {_SLOW[1]})"
    found["setting"] = (
        f"{arguments.nodes:,} nodes, {timed}, {arguments.repeat} run(s) each; seconds per batch, "
        "data preparation alone: median, and spread of several; and the share of rows found in a "
        "cache; what was made before the first batch is not in it"
    )
    return [f"- {name}: {text}" for name, text in found.items()]


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
    try:
        variant_named(f"{strategy}:{option}=")
    except OptionError as error:
        return "no option" not in str(error)
    return True


def cell(row: dict[str, Any], out: Path, batches: int) -> str:
    if not row["seconds"]:
        return f"failed: {row['note']}"
    each = [value / batches for value in row["seconds"]]
    text = f"{statistics.median(each):.3f}"
    if len(each) > 1:
        text += f" ({min(each):.3f} to {max(each):.3f})"
    epoch = read_record(out / row["records"][0])["loader"]["epochs"][0]
    hits = sum(epoch["hits"].values()) / max(epoch["rows"], 1)
    return f"{text}, {hits:.0%}" if epoch["hits"] else text


if __name__ == "__main__":
    main()
