"""Pages: figures of a paper -> tables in Markdown of runs that were measured, page by page.

What was measured lies in a work folder, and is not measured again: a call that was interrupted goes
on, figures share runs, and --page makes the pages of what there is.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from machine import add_dirty, provenance
from outcrop.options import format_size
from runs import GRAPHS, Result, Run, Work, spread

Rows = list[tuple[str, Run]]
"""Lines of a table: what they are called, and what is measured for them."""
Found = dict[str, list[Result]]
"""What was measured so far, by line."""


@dataclass(frozen=True)
class Column:
    """A quantity of each run, as a table shows it."""

    head: str
    value: Callable[[Result], float]
    text: str = "{:.2f}"
    scale: float = 1.0


@dataclass(frozen=True)
class Figure:
    """A page: its lines, its columns, and what follows from them."""

    title: str
    paper: str
    """What the paper has there."""
    rows: Callable[[Run, list[str]], Rows]
    """What every run of it has, and the memories that were given -> its lines."""
    columns: tuple[Column, ...]
    notes: Callable[[Found], Iterable[str]] | None = None
    graph: str = "quick"
    rounds: int = 1
    cold: bool = False
    memory: str | None = None
    """Sizes; None: that of the graph."""
    epochs: int | None = None
    """None: those of the graph."""


@dataclass(frozen=True)
class Paper:
    """A paper's figures."""

    name: str
    figures: dict[str, Figure]

    def file(self, name: str, given: argparse.Namespace) -> Path:
        """The page of a figure, or of something else that has no graph of its own."""
        figure = self.figures.get(name)
        usual = figure is None or given.graph in (None, figure.graph)
        word = f"{self.name.lower()}-{name}"
        return Path(given.results) / (f"{word}.md" if usual else f"{word}-{given.graph}.md")

    def make(self, name: str, given: argparse.Namespace) -> None:
        """Measures what is missing, a round after the other; the page grows with each run."""
        figure, work = self.figures[name], Work(given.work)
        graph = GRAPHS[given.graph or figure.graph]
        memories = (given.memory or figure.memory or graph.memory).split(",")
        # With a memory of its own, a run's limit is that and a fixed overhead.
        usual = memories == [graph.memory]
        base = Run(
            given.graph or figure.graph, "", memories[0],
            given.cage or (graph.cage if usual else None),
            given.epochs or figure.epochs or graph.epochs, given.batches, figure.cold,
        )  # fmt: skip
        rows = figure.rows(base, memories)
        file = self.file(name, given)
        for number in range(0 if given.page else given.rounds or figure.rounds):
            first = number % len(rows)
            for label, run in rows[first:] + rows[:first]:
                if label.startswith(tuple((given.lines or "").split("|"))):
                    work.measure(run, number)
                file.write_text(self.page(figure, rows, work))
        text = self.page(figure, rows, work)
        file.write_text(text)
        print(text)

    def page(self, figure: Figure, rows: Rows, work: Work) -> str:
        found = {label: work.results(run) for label, run in rows}
        lines = [f"# {self.name}: {figure.title}", "", *facts(found, rows)]
        lines += [f"- the paper: {figure.paper}", ""]
        lines += [f"| | {' | '.join(column.head for column in figure.columns)} |"]
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


def figure_parser(description: str | None, paper: Paper, *others: str) -> argparse.ArgumentParser:
    """The command line of a paper's program: `others` are pages that are not figures of runs."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = [*paper.figures, *others]
    parser.add_argument("figures", nargs="+", choices=names, metavar="FIGURE",
                        help=", ".join(names))  # fmt: skip
    parser.add_argument("--graph", choices=GRAPHS, default=None, metavar="GRAPH",
                        help=f"default: as the figure; {', '.join(GRAPHS)}")  # fmt: skip
    for name in ("rounds", "batches", "epochs"):
        parser.add_argument(f"--{name}", type=int, default=None, help="default: as the figure")
    parser.add_argument("--memory", default=None, help="sizes or shares, with commas")
    parser.add_argument("--lines", default=None, metavar="NAME|NAME",
                        help="measure those alone whose names begin so")  # fmt: skip
    parser.add_argument("--cage", default=None, help="the hard limit of each process")
    parser.add_argument("--page", action="store_true", help="measure nothing")
    parser.add_argument("--data", type=Path, default=Path("../shared/data"), help="real graphs")
    parser.add_argument("--work", type=Path, default=Path("bench-data") / paper.name.lower())
    parser.add_argument("--results", type=Path, default=Path("benchmarks/results"),
                        help="where pages go")  # fmt: skip
    add_dirty(parser)
    return parser


# What is said above a table


def facts(found: Found, rows: Rows) -> list[str]:
    """Where, from what and how, as a list in Markdown."""
    results = [result for some in found.values() for result in some]
    known = origin(result.record["versions"] for result in results)
    limits = {result.record["process"]["cgroup_limit_bytes"] for result in results}
    memories = {result.record["loader"]["memory_bytes"] for result in results}
    known["memory"] = f"{sizes(memories)} of a data path; limit of its process {sizes(limits)}"
    graphs = ", ".join(_graph(name) for name in dict.fromkeys(run.graph for _, run in rows))
    batches = sorted({int(result.total("batches")) for result in results})
    rounds = max((len(some) for some in found.values()), default=0)
    models = ", ".join(dict.fromkeys(run.model for _, run in rows)).replace("none", "no model")
    known["setting"] = (
        f"{graphs}; batches of 1000 in a run: {', '.join(map(str, batches))}; {rounds} round(s) in "
        f"turn, {models}; median (least to most); {_prepared(rows)}; {_same_batches(rows, found)}"
    )
    return [f"- {name}: {text}" for name, text in known.items()]


def origin(versions: Iterable[dict[str, str]]) -> dict[str, str]:
    """Machine and command, and of what commits runs and page are, by the versions of the runs."""
    known = provenance(Path())
    commits = sorted({each.get("commit", "unknown") for each in versions})
    known["outcrop"] = f"runs of commit {', '.join(commits)}; page of {known['outcrop']}"
    return known


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


def sizes(values: set[int | None]) -> str:
    told = [format_size(each) if each else "NONE" for each in sorted(values, key=lambda v: v or 0)]
    return ", ".join(dict.fromkeys(told)) or "-"


def _same_batches(rows: Rows, found: Found) -> str:
    """Whether all runs that should deliver the same batches did, as far as checked."""
    digests: dict[tuple[str, int, int, str], set[str]] = {}
    for label, run in rows:
        told = {result.record["digest"] for result in found[label]} - {None}
        key = run.graph, run.fanout, run.hops, run.batching
        digests.setdefault(key, set()).update(told)
    same = all(len(some) <= 1 for some in digests.values())
    each = " of a batching" if len({run.batching for _, run in rows}) > 1 else ""
    return f"the first three batches were the same for all{each}" if same else "BATCHES DIFFERED"


# Columns

WHOLE = Column("s in all", lambda r: r.whole("seconds"))
PARTITIONING = Column("of them partitioning", lambda r: r.partition_seconds)
FIRST = Column("s before the first batch", lambda r: r.whole("first_batch_seconds"))
BATCH = Column("s/batch in epochs", lambda r: r.per_batch("seconds"), "{:.3f}")
READ = Column("GB read", lambda r: r.whole("drive_bytes"), scale=1e-9)
WRITTEN = Column("GB written", lambda r: r.whole("drive_written_bytes"), scale=1e-9)
BESIDE = Column("GB beside the store, at most", lambda r: r.disk_used_bytes, scale=1e-9)
REQUESTS = Column("thousand reads", lambda r: r.whole("read_requests"), "{:,.1f}", 1e-3)
READ_SIZE = Column("kB per read", lambda r: r.read_bytes_each, "{:.1f}", 1e-3)
SHARE = Column("of the drive in sequence", lambda r: r.sequential_share, "{:.0%}")
HITS = Column("rows found in caches", lambda r: r.hits, "{:.2%}")
ROWS = Column("rows/batch", lambda r: r.per_batch("rows"), "{:,.0f}")
MB_PER_BATCH = Column("MB read/batch", lambda r: r.per_batch("bytes_read"), "{:,.1f}", 1e-6)
READS_PER_BATCH = Column("reads/batch", lambda r: r.per_batch("read_requests"), "{:,.0f}")
GRAPH_BLOCKS = Column(
    "MB of graph blocks per hyperbatch", lambda r: r.tier_bytes("graph blocks") / r.windows,
    scale=1e-6,
)  # fmt: skip
FEATURE_BLOCKS = Column(
    "MB of feature blocks per hyperbatch", lambda r: r.tier_bytes("feature blocks") / r.windows,
    scale=1e-6,
)  # fmt: skip
EPOCHS = (BATCH, MB_PER_BATCH, READS_PER_BATCH, READ_SIZE)
WHOLE_RUN = (WHOLE, FIRST, BATCH, READ, WRITTEN, REQUESTS, READ_SIZE, SHARE, BESIDE)


# Lines, and what follows


def of(*strategies: str) -> Callable[[Run, list[str]], Rows]:
    return lambda base, _: [(name, replace(base, strategy=name)) for name in strategies]


def median(results: list[Result], value: Callable[[Result], float]) -> float | None:
    return statistics.median(map(value, results)) if results else None
