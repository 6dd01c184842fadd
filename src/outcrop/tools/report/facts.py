"""Facts: tables without a drawing: the results, all epochs, the machine and the configuration."""

from __future__ import annotations

import json
import shlex
from typing import Any

from outcrop.tools.report import formats, markup, terminal
from outcrop.tools.report.markup import Html, join, table, tag
from outcrop.tools.report.model import COUNTS, Origin
from outcrop.tools.report.summary import Comparison, Line, disk_bytes


def results_section(comparison: Comparison) -> Html:
    head = ["", "median", "spread", comparison.relative_name, "to bound", "prepa\u00adration",
            "disk used", "paid after", "rows", "wanted", "read", "ampli\u00adfied", "hits",
            "peak RSS", "cache", "contents"]  # fmt: skip
    rows = [_result(line, comparison) for line in comparison.lines]
    notes = tag("ul", *(tag("li", note) for note in terminal.notes(comparison)), class_="notes")
    return tag("section", tag("h2", "Results"), table("Results", head, rows), notes, id="results")


def _result(line: Line, comparison: Comparison) -> list[object]:
    payoff = comparison.payoff(line)
    name = join([line.name, "" if line.kind == "strategy" else tag("small", f" {line.kind}")])
    if line.status != "measured":
        return [name, tag("em", line.status), *[""] * 14]
    return [
        name, join([markup.seconds(line.median), "*" if line.scaled else ""]),
        terminal.spread(line), markup.times(comparison.relative(line)),
        markup.times(line.multiple), markup.seconds(line.prepare_seconds),
        markup.size(line.disk_bytes),
        "" if payoff is None else f"{payoff.text} against {payoff.against}",
        markup.number(line.mean("rows")),
        markup.size(line.wanted_bytes), markup.size(line.read_bytes),
        markup.times(line.amplification), markup.share(line.hit_share),
        markup.size(line.peak_bytes), markup.size(line.cache_bytes),
        tag("span", line.check or formats.UNKNOWN, class_=f"check {line.check}"),
    ]  # fmt: skip


def epochs_section(comparison: Comparison) -> Html | None:
    rows = [
        [run.file, run.name, epoch.stream, markup.number(epoch.epoch),
         markup.seconds(epoch.seconds), markup.seconds(epoch.stall_seconds),
         *(_counted(name, epoch.counts[name]) for name in COUNTS),
         markup.times(epoch.read_amplification)]
        for run in comparison.runs for epoch in run.epochs
    ]  # fmt: skip
    if not rows:
        return None
    head = ["record", "strategy", "stream", "epoch", "seconds", "stall",
            *map(formats.words, COUNTS), "amplification"]  # fmt: skip
    details = tag(
        "details",
        tag("summary", f"All {len(rows)} passes of {len(comparison.runs)} records"),
        table("Every epoch", head, rows, left=3),
    )
    return tag("section", tag("h2", "Every epoch"), details, id="epochs")


def _counted(name: str, value: int | None) -> Html:
    return markup.size(value) if "bytes" in name else markup.number(value)


def memory_section(comparison: Comparison) -> Html | None:
    rows = [
        [run.file, run.name,
         ", ".join(f"{name} {formats.size(value)}" for name, value in run.charges.items()),
         markup.size(run.memory_bytes), markup.seconds(run.prepare_seconds),
         *(markup.size(run.process.get(name)) for name in _PROCESS),
         markup.size(disk_bytes(run))]
        for run in comparison.runs
    ]  # fmt: skip
    head = ["record", "strategy", "resident", "for data", "to prepare",
            "peak RSS", "cgroup peak", "cgroup limit", "read in all", "disk used"]  # fmt: skip
    if not rows:
        return None
    made = table("Memory", head, rows, left=3)
    return tag("section", tag("h2", "Memory and preparation"), made, id="memory")


_PROCESS = ("peak_rss_bytes", "cgroup_peak_bytes", "cgroup_limit_bytes", "read_bytes")


def origin_section(comparison: Comparison) -> Html:
    origin = comparison.origin
    drive = comparison.bench.drive if comparison.bench else {}
    several = comparison.bench is None and len(comparison.runs) > 1
    return tag(
        "section",
        tag("h2", "Where and how"),
        tag(
            "div",
            _facts("Store", origin.store),
            _facts("Machine", {k: v for k, v in origin.machine.items() if k != "drive"}),
            _facts("Drive", drive or _drive(origin)),
            _facts("Versions", origin.versions),
            _facts("Configuration", {} if several else origin.configuration),
            class_="facts",
        ),
        _settings(comparison) if several else "",
        tag("h3", "Commands" if several else "Command"),
        *(tag("pre", tag("code", command)) for command in _commands(comparison)),
        id="origin",
    )


def _drive(origin: Origin) -> dict[str, Any]:
    drive = origin.machine.get("drive")
    return drive if isinstance(drive, dict) else {}


def _commands(comparison: Comparison) -> list[str]:
    origins = [comparison.bench.origin] if comparison.bench else [r.origin for r in comparison.runs]
    return list(dict.fromkeys(shlex.join(origin.command) for origin in origins))


def _settings(comparison: Comparison) -> Html:
    """Options of several runs side by side, those that differ first."""
    runs = comparison.runs
    names = list(dict.fromkeys(name for run in runs for name in run.origin.configuration))

    def values(name: str) -> list[str]:
        return [_value(name, run.origin.configuration.get(name)) for run in runs]

    names.sort(key=lambda name: len(set(values(name))) == 1)
    rows: list[list[object]] = [[formats.words(name), *values(name)] for name in names]
    return join([
        tag("h3", "Configuration"),
        table("Configuration", ["", *(run.file for run in runs)], rows, left=len(runs) + 1),
    ])  # fmt: skip


def _facts(title: str, values: dict[str, Any]) -> Html:
    if not values:
        return join([])
    items = join(
        join([tag("dt", formats.words(name)), tag("dd", _value(name, value))])
        for name, value in values.items()
    )
    return tag("div", tag("h3", title), tag("dl", items))


def _value(name: str, value: Any) -> str:
    """A value of any kind, by what its name says of its unit."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | float):
        if name.endswith("bytes_per_second"):
            return f"{formats.size(value)}/s"
        return formats.size(value) if name.endswith("_bytes") else formats.number(value)
    if isinstance(value, list | tuple):
        return ", ".join(_value(name, item) for item in value) or "none"
    return value if isinstance(value, str) else json.dumps(value)
