"""Terminal: the report as tables that fit into 80 columns: time, preparation and data."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from outcrop.tools.report import formats, headline
from outcrop.tools.report.summary import Comparison, Line


def print_report(comparison: Comparison, console: Console) -> None:
    """Who won, who was how fast after what preparation, and what each read."""
    console.print(Text(headline.headline(comparison)))
    console.print()
    console.print(_time_table(comparison))
    console.print()
    if any(line.prepares for line in comparison.lines):
        console.print(_preparation_table(comparison))
        console.print()
    console.print(_data_table(comparison))
    for note in notes(comparison):
        console.print(Text(note), soft_wrap=True)


def _time_table(comparison: Comparison) -> Table:
    table = _table("", "median", "spread", comparison.relative_name, "to bound")
    table.add_column("bound", overflow="fold", style="dim")
    for line in comparison.lines:
        if line.status != "measured":
            table.add_row(Text(line.name), Text(line.status, style="yellow"), "", "", "", "")
            continue
        table.add_row(
            Text(line.name + (" (limit)" if line.kind == "limit" else "")),
            median(line),
            spread(line),
            formats.times(comparison.relative(line)),
            formats.times(line.multiple),
            Text(line.bound),
        )
    return table


def _preparation_table(comparison: Comparison) -> Table:
    table = _table("", "preparation", "disk used", "has paid after")
    for line in comparison.lines:
        if line.runs:
            payoff = comparison.payoff(line)
            table.add_row(
                Text(line.name),
                formats.seconds(line.prepare_seconds),
                formats.size(line.disk_bytes),
                Text("" if payoff is None else f"{payoff.text} against {payoff.against}"),
            )
    return table


def _data_table(comparison: Comparison) -> Table:
    table = _table("per epoch", "rows", "wanted", "read", "amplif.", "hits", "peak RSS", "contents")
    for line in comparison.lines:
        if line.runs:
            table.add_row(
                Text(line.name),
                formats.number(line.mean("rows")),
                formats.size(line.wanted_bytes),
                formats.size(line.read_bytes),
                formats.times(line.amplification),
                formats.share(line.hit_share),
                formats.size(line.peak_bytes),
                Text(line.check or formats.UNKNOWN, style=_CHECK_STYLES.get(line.check, "")),
            )
    return table


_CHECK_STYLES = {"same": "green", "differs": "bold red"}


def _table(first: str, *columns: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column(first, overflow="fold")
    for name in columns:
        table.add_column(Text(name), justify="right")
    return table


def median(line: Line) -> str:
    """With a mark where it was scaled up from fewer batches."""
    return formats.seconds(line.median) + ("*" if line.scaled else "")


def spread(line: Line) -> str:
    if line.spread is None:
        return formats.UNKNOWN
    low, high = line.spread
    return f"{formats.number(low)} to {formats.seconds(high)}"


def notes(comparison: Comparison) -> list[str]:
    """What a reader of the numbers must know."""
    found = []
    for line in comparison.lines:
        if line.scaled:
            found.append(f"* {line.name}: scaled up from {line.measured_batches} batches.")
        if line.status != "measured" or line.note:
            state = "" if line.status == "measured" else f"{line.status}. "
            found.append(f"{line.name}: {state}{line.note}".rstrip(" :"))
    check = comparison.bench.check if comparison.bench else None
    if check is not None:
        verdict = "the same" if check.equal else "NOT the same"
        found.append(f"Checked over {check.batches} batches: the contents are {verdict}.")
    return found
