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

from agnes_figures import FIGURES, Figure, Found, Rows
from agnes_runs import GRAPHS, Run, Work, spread
from machine import add_dirty, check_results, provenance
from outcrop.observe.record import read_record
from outcrop.options import format_size

RESULTS = Path("benchmarks/results")


def make(name: str, given: argparse.Namespace, work: Work) -> None:
    """Measures what is missing, a round after the other; the page grows with each run."""
    figure, graph = FIGURES[name], GRAPHS[given.graph or FIGURES[name].graph]
    memories = (given.memory or figure.memory or graph.memory).split(",")
    # With a memory of its own, a run's limit is that and a fixed overhead.
    usual = memories == [graph.memory]
    base = Run(
        given.graph or figure.graph, "", memories[0], given.cage or (graph.cage if usual else None),
        given.epochs or graph.epochs, given.batches, figure.cold,
    )  # fmt: skip
    rows = figure.rows(base, memories)
    file = page_file(name, given)
    for number in range(0 if given.page else given.rounds or figure.rounds):
        first = number % len(rows)
        for _, run in rows[first:] + rows[:first]:
            work.measure(run, number)
            file.write_text(page(figure, rows, work))
    text = page(figure, rows, work)
    file.write_text(text)
    print(text)


def page_file(name: str, given: argparse.Namespace) -> Path:
    usual = name == "accuracy" or given.graph in (None, FIGURES[name].graph)
    return Path(given.results) / (f"agnes-{name}.md" if usual else f"agnes-{name}-{given.graph}.md")


def page(figure: Figure, rows: Rows, work: Work) -> str:
    found = {label: work.results(run) for label, run in rows}
    lines = [f"# AGNES: {figure.title}", "", *facts(found, rows), f"- the paper: {figure.paper}"]
    lines += ["", f"| | {' | '.join(column.head for column in figure.columns)} |"]
    lines += [f"|---|{'--:|' * len(figure.columns)}"]
    for label, run in rows:
        cells = [spread(list(map(column.value, found[label])), column.text, column.scale)
                 for column in figure.columns if found[label]]  # fmt: skip
        told = " | ".join(cells) or work.failure(run) or "not measured yet"
        lines.append(f"| {label} | {told} |")
    notes = [f"- {note}" for note in figure.notes(found)] if figure.notes else []
    notes += [f"- {label}: a round failed: {work.failure(run)}"
              for label, run in rows if found[label] and work.failure(run)]  # fmt: skip
    return "\n".join([*lines, *([""] if notes else []), *notes, ""])


def facts(found: Found, rows: Rows) -> list[str]:
    """Where, from what and how, as a list in Markdown."""
    results = [result for some in found.values() for result in some]
    known = provenance(Path())
    commits = sorted({result.record["versions"].get("commit", "unknown") for result in results})
    known["outcrop"] = f"runs of commit {', '.join(commits)}; page of {known['outcrop']}"
    limits = {result.record["process"]["cgroup_limit_bytes"] for result in results}
    memories = {result.record["loader"]["memory_bytes"] for result in results}
    known["memory"] = f"{_sizes(memories)} of a data path; limit of its process {_sizes(limits)}"
    graphs = ", ".join(_graph(name) for name in dict.fromkeys(run.graph for _, run in rows))
    batches = sorted({int(result.total("batches")) for result in results})
    rounds = max((len(some) for some in found.values()), default=0)
    known["setting"] = (
        f"{graphs}; batches of 1000 in a run: {', '.join(map(str, batches))}; {rounds} round(s) in "
        f"turn, no model; median (least to most); {_prepared(rows)}; {_same_batches(rows, found)}"
    )
    return [f"- {name}: {text}" for name, text in known.items()]


def _graph(name: str) -> str:
    graph = GRAPHS[name]
    return f"{name} ({graph.nodes:,} nodes, {graph.edges:,} edges, {graph.dim} float32)"


def _prepared(rows: Rows) -> str:
    if rows[0][1].cold:
        cut = (
            "; epochs are cut short, and diskgnn prepares whole ones" if rows[0][1].batches else ""
        )
        return f"nothing prepared before a run, and what it prepares is in `s in all`{cut}"
    return "layouts may have been made by a run before, and are in no column"


def _sizes(values: set[int | None]) -> str:
    told = [format_size(each) if each else "NONE" for each in sorted(values, key=lambda v: v or 0)]
    return ", ".join(dict.fromkeys(told)) or "-"


def _same_batches(rows: Rows, found: Found) -> str:
    """Whether all runs of a graph and a fanout delivered the same batches, as far as checked."""
    digests: dict[tuple[str, int], set[str]] = {}
    for label, run in rows:
        told = {result.record["digest"] for result in found[label]} - {None}
        digests.setdefault((run.graph, run.fanout), set()).update(told)
    same = all(len(some) <= 1 for some in digests.values())
    return "the first three batches were the same for all" if same else "BATCHES DIFFERED"


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
    page_file("accuracy", given).write_text(text)
    print(text)


def accuracy_page(found: dict[str, list[dict[str, Any]]]) -> str:
    """Records of agnes and ginex, by model -> the page."""
    records = [record for pair in found.values() for record in pair]
    known = provenance(Path())
    commits = sorted({record["versions"].get("commit", "unknown") for record in records})
    known["outcrop"] = f"runs of commit {', '.join(commits)}; page of {known['outcrop']}"
    memories = _sizes({record["loader"]["memory_bytes"] for record in records})
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
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("figures", nargs="+", choices=[*FIGURES, "accuracy"], metavar="FIGURE",
                        help=f"{', '.join(FIGURES)}, accuracy")  # fmt: skip
    parser.add_argument("--graph", choices=GRAPHS, default=None, metavar="GRAPH",
                        help="quick, standard, huge, tiny; default: as the figure")  # fmt: skip
    for name in ("rounds", "batches", "epochs"):
        parser.add_argument(f"--{name}", type=int, default=None, help="default: as the figure")
    parser.add_argument("--memory", default=None, help="sizes or shares, with commas")
    parser.add_argument("--cage", default=None, help="the hard limit of each process")
    parser.add_argument("--page", action="store_true", help="measure nothing")
    parser.add_argument("--data", type=Path, default=Path("../shared/data"), help="of accuracy")
    parser.add_argument("--work", type=Path, default=Path("bench-data/agnes"))
    parser.add_argument("--results", type=Path, default=RESULTS, help="where pages go")
    add_dirty(parser)
    given = parser.parse_args()
    check_results(*(page_file(name, given) for name in given.figures), dirty=given.dirty)
    for folder in (given.work, given.results):
        folder.mkdir(parents=True, exist_ok=True)
    for name in given.figures:
        if name == "accuracy":
            accuracy(given)
        else:
            make(name, given, Work(given.work))


if __name__ == "__main__":
    main()
