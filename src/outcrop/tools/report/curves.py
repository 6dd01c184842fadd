"""Curves: loss and accuracy, and what the machine did second by second, as SVG.

The drawing stretches to its box and labels are HTML, so that text keeps its size on a phone.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, replace
from itertools import accumulate

from outcrop.tools.report import formats, markup
from outcrop.tools.report.markup import Html, figure, join, numbers, percent, table, tag
from outcrop.tools.report.model import Run
from outcrop.tools.report.summary import Comparison

COLOURS = 8
"""How many curves differ in colour; with more, colours repeat."""

Points = list[tuple[float, float]]


@dataclass(frozen=True)
class Curve:
    name: str
    colour: int
    points: Points
    dashed: bool = False


@dataclass(frozen=True)
class _Frame:
    """What a drawing shows of the plane."""

    ticks_x: list[float]
    ticks_y: list[float]
    low: tuple[float, float]
    high: tuple[float, float]

    @classmethod
    def around(cls, curves: list[Curve], *, from_zero: bool, wanted: int) -> _Frame:
        xs = [x for curve in curves for x, _ in curve.points]
        ys = [y for curve in curves for _, y in curve.points]
        low_x = 0.0 if from_zero else min(xs)
        high_x = max(xs) if max(xs) > low_x else low_x + 1
        ticks = _ticks(min(0.0, *ys), max(ys), wanted)
        low, high = (low_x, min(ticks[0], *ys)), (high_x, max(ticks[-1], *ys))
        return cls([x for x in _ticks(low_x, high_x) if x <= high_x], ticks, low, high)

    def place(self, point: tuple[float, float]) -> tuple[float, float]:
        """In percent, from the upper left."""
        x, y = ((v - low) / (high - low) for v, low, high
                in zip(point, self.low, self.high, strict=True))  # fmt: skip
        return 100 * x, 100 - 100 * y


def chart(
    title: str,
    curves: list[Curve],
    unit: str,
    x_unit: str,
    *,
    scale: float = 1,
    strips: bool = False,
) -> Html:
    """Curves over axes: all in one plot, or, where they would hide each other, a strip each.

    `scale` multiplies what is drawn (bytes -> MB).
    """
    finite = [
        replace(c, points=[(x, y * scale) for x, y in c.points if math.isfinite(x + y)])
        for c in curves
    ]
    drawn = [curve for curve in finite if curve.points]
    if not drawn:
        return tag("div", tag("h3", title), tag("p", "nothing to draw"), class_="chart")
    frame = _Frame.around(drawn, from_zero=x_unit == "s", wanted=2 if strips else 4)
    feet = join(
        tag("span", formats.short(x), style=f"left:{percent(frame.place((x, frame.low[1]))[0])}")
        for x in frame.ticks_x
    )
    plots = [_plot([curve], frame, unit, x_unit, curve.name) for curve in drawn]
    return tag(
        "div",
        tag("h3", title, tag("small", unit)),
        *(plots if strips else [_plot(drawn, frame, unit, x_unit)]),
        tag("div", feet, tag("span", _AXES[x_unit], class_="axis"), class_="feet"),
        class_="chart",
    )


def _plot(
    curves: list[Curve], frame: _Frame, unit: str, x_unit: str, label: str | None = None
) -> Html:
    lines = join(_path(curve, frame, unit, x_unit) for curve in curves)
    grid = []
    for tick in frame.ticks_y:
        top = percent(frame.place((frame.low[0], tick))[1])
        grid.append(tag("span", formats.short(tick), class_="level", style=f"top:{top}"))
    svg = tag("svg", lines, viewBox="0 0 100 100", preserveAspectRatio="none", aria_hidden="true")
    if label is None:
        return tag("div", *grid, svg, class_="plot")
    name = tag("span", label, class_=f"strip-name n-{curves[0].colour % COLOURS}")
    return join([name, tag("div", *grid, svg, class_="plot strip")])


_AXES = {"s": "seconds", "": "epoch"}


def _path(curve: Curve, frame: _Frame, unit: str, x_unit: str) -> Html:
    points = [frame.place(point) for point in curve.points]
    alone = len(points) == 1
    if alone:  # a line without length is not drawn, whatever its caps
        points = [points[0], (points[0][0] + 0.01, points[0][1])]
    shown = [[round(px, 4), round(py, 6)] for px, py in curve.points]
    return tag(
        "polyline",
        points=" ".join(f"{px:.2f},{py:.2f}" for px, py in points),
        class_=f"c-{curve.colour % COLOURS}"
        + (" dashed" if curve.dashed else "")
        + (" dot" if alone else ""),
        vector_effect="non-scaling-stroke",
        data_name=curve.name,
        data_points=json.dumps(shown, separators=(",", ":")),
        data_unit=f"{unit}|{x_unit}",
    )


def _ticks(low: float, high: float, wanted: int = 4) -> list[float]:
    """Round numbers from about `low` to about `high`."""
    span = high - low
    if span <= 0 or not math.isfinite(span):
        return [low, low + 1]
    step = 10.0 ** math.floor(math.log10(span / wanted))
    step *= next(m for m in (1, 2, 5, 10) if span / (step * m) <= wanted)
    first = math.floor(low / step + 1e-9)
    return [round((first + i) * step, 10) for i in range(math.ceil(high / step - 1e-9) - first + 1)]


def _key(names: list[str]) -> Html:
    items = (tag("li", tag("i", class_=f"k-{i % COLOURS}"), n) for i, n in enumerate(names))
    return tag("ul", *items, class_="legend")


def history_figure(comparison: Comparison) -> Html | None:
    named = comparison.first_runs(lambda run: run.history)
    if not named:
        return None
    rows = [
        [name, markup.number(s.epoch + 1), *map(markup.number, (s.loss, s.val, s.test)),
         markup.seconds(s.seconds)]
        for name, run in named for s in run.history
    ]  # fmt: skip
    made = table("Learning", ["", "epoch", "loss", "val", "test", "seconds"], rows)
    if all(len(run.history) == 1 for _, run in named):
        return numbers("Learning", "One epoch alone: no curves yet.", made, anchor="learning")
    charts = []
    for by_time in (False, True):
        unit = "s" if by_time else ""
        ending = "over time" if by_time else "by epoch"
        scores = [
            *_scores(named, "val", by_time=by_time),
            *_scores(named, "test", by_time=by_time, dashed=True),
        ]
        charts.append(chart(f"Loss {ending}", _scores(named, "loss", by_time=by_time), "", unit))
        if any(curve.points for curve in scores):
            metric = str(comparison.origin.configuration.get("metric") or "score")
            title = f"{formats.words(metric).capitalize()} {ending}"
            charts.append(chart(title, scores, "", unit))
    text = (
        "Scores: validation solid, test dashed. Where one curve is seen, the others lie below it: "
        "the batches are the same. Time counts the epochs' training only."
    )
    drawing = join([_key([name for name, _ in named]), tag("div", *charts, class_="charts")])
    return figure("Learning", text, drawing, made, anchor="learning")


def _scores(
    named: list[tuple[str, Run]], what: str, *, by_time: bool, dashed: bool = False
) -> list[Curve]:
    curves = []
    for colour, (name, run) in enumerate(named):
        ends = accumulate(score.seconds for score in run.history)
        points = [
            (end if by_time else score.epoch + 1, value)
            for end, score in zip(ends, run.history, strict=True)
            if (value := getattr(score, what)) is not None
        ]
        label = name if what == "loss" else f"{name} {what}"
        curves.append(Curve(label, colour, points, dashed))
    return curves


_SERIES = {
    "cpu_share": ("CPU busy", "%", 100.0),
    "iowait_share": ("CPU waiting for I/O", "%", 100.0),
    "gpu_share": ("GPU busy", "%", 100.0),
    "queue_consumer": ("Batches ready for the training loop", "", 1.0),
    "drive_bytes_per_second": ("Drive", "MB/s", 1e-6),
    "drive_reads_per_second": ("Drive", "reads/s", 1.0),
    "faults_per_second": ("Page faults from the drive", "per second", 1.0),
    "refaults_per_second": ("Refaults: pages read again", "per second", 1.0),
}


def series_figure(comparison: Comparison) -> Html | None:
    named = comparison.first_runs(lambda run: run.series.get("seconds"))
    if not named:
        return None
    columns = list(dict.fromkeys(c for _, run in named for c in run.series if c != "seconds"))
    rows = [
        [name, *(markup.number(run.series[c][i]) if c in run.series else "" for c in
                 ("seconds", *columns))]
        for name, run in named for i in range(len(run.series["seconds"]))
    ]  # fmt: skip
    made = table("Series", ["", "seconds", *map(formats.words, columns)], rows)
    if all(len(run.series["seconds"]) == 1 for _, run in named):
        text = "The runs were too short for more than one look at the machine."
        return numbers("Second by second", text, made, anchor="series")
    charts = []
    for column in sorted(columns, key=_series_order):
        title, unit, scale = _SERIES.get(column) or (_title(column), "", 1.0)
        curves = [
            Curve(name, i, list(zip(run.series["seconds"], run.series[column], strict=True)))
            for i, (name, run) in enumerate(named)
            if column in run.series
        ]
        charts.append(chart(title, curves, unit, "s", scale=scale, strips=True))
    drawing = tag("div", *charts, class_="charts")
    text = (
        "What the whole machine did, once a second, from the start of each run, and how many "
        "batches waited before each stage: none ready for the loop means that it waits."
    )
    return figure("Second by second", text, drawing, made, anchor="series")


def _title(column: str) -> str:
    """The title of a column that is not known by name: a queue, or a gauge of the run."""
    if column.startswith("queue_"):
        return f"Batches waiting for {formats.words(column.removeprefix('queue_'))}"
    return formats.words(column).capitalize()


def _series_order(column: str) -> int:
    known = list(_SERIES)
    return known.index(column) if column in known else len(known)
