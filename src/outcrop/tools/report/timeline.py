"""Timeline: the stages of the first batches, a lane each: one sees who waited for whom."""

from __future__ import annotations

from dataclasses import dataclass

from outcrop.tools.report import formats, markup
from outcrop.tools.report.bars import stage_class
from outcrop.tools.report.markup import Html, figure, join, percent, table, tag
from outcrop.tools.report.model import Run
from outcrop.tools.report.summary import Comparison, stage_order

BATCHES = 32
"""Shown at most: enough for the steady state, few enough to tell them apart."""
_HIDDEN = ("source",)  # handing out numbers takes no time


@dataclass(frozen=True)
class _Work:
    stage: str
    batch: int
    begin: float
    end: float


def timeline_figure(comparison: Comparison) -> Html | None:
    runs = comparison.first_runs(lambda run: run.events)
    named = [(name, _first_batches(run)) for name, run in runs]
    if not named:
        return None
    rows = [
        [name, work.stage, markup.number(work.batch), markup.seconds(work.begin),
         markup.seconds(work.end), markup.seconds(work.end - work.begin)]
        for name, works in named for work in works
    ]  # fmt: skip
    zoom = tag("label", "Zoom ", tag("input", type="range", min=1, max=40, value=1, step="any"),
               class_="zoom", hidden="")  # fmt: skip
    text = (
        f"The first {BATCHES} batches of the first epoch at most, each strategy on its own scale. "
        "A box is a batch at work in a stage, with its number; a gap is a stage that waits, for "
        "the one above it or for room below it."
    )
    drawing = join([zoom, *(_panel(name, works) for name, works in named)])
    head = ["", "stage", "batch", "begin", "end", "took"]
    return figure(
        "Who waited for whom",
        text,
        drawing,
        table("Timeline", head, rows, left=2),
        anchor="timeline",
    )


def _first_batches(run: Run) -> list[_Work]:
    found = [_Work(*event) for event in run.events if event[0] not in _HIDDEN]
    first = set(sorted({work.batch for work in found})[:BATCHES])
    return sorted((w for w in found if w.batch in first), key=lambda w: (w.begin, w.batch))


def _panel(name: str, works: list[_Work]) -> Html:
    start = min(work.begin for work in works)
    span = max(max(work.end for work in works) - start, 1e-9)
    stages = sorted({work.stage for work in works}, key=stage_order)
    names, lanes = [], []
    for stage in stages:
        own = [work for work in works if work.stage == stage]
        rows = _rows(own)
        busy = sum(work.end - work.begin for work in own) / span / len(rows)
        label = tag("span", stage, tag("small", f"{formats.share(busy)} busy"))
        names.append(tag("div", label, style=f"--rows:{len(rows)}", class_="name"))
        boxes = [_box(w, i, start, span) for i, row in enumerate(rows) for w in row]
        lanes.append(tag("div", *boxes, class_="lane", style=f"--rows:{len(rows)}"))
    feet = [tag("span", formats.seconds(span * i / 4), style=f"left:{25 * i}%") for i in range(5)]
    inner = tag("div", *lanes, tag("div", *feet, class_="feet"), class_="inner")
    return tag(
        "div",
        tag("h3", name, tag("small", f"{formats.seconds(span)}")),
        tag("div", tag("div", *names, class_="names"), tag("div", inner, class_="lanes"),
            class_="timeline"),
    )  # fmt: skip


def _rows(works: list[_Work]) -> list[list[_Work]]:
    """What several threads do at a time, one below the other."""
    rows: list[list[_Work]] = []
    for work in works:
        for row in rows:
            if row[-1].end <= work.begin:
                row.append(work)
                break
        else:
            rows.append([work])
    return rows


def _box(work: _Work, row: int, start: float, span: float) -> Html:
    left = 100 * (work.begin - start) / span
    width = 100 * (work.end - work.begin) / span
    tip = (
        f"batch {work.batch}, {work.stage}: {formats.seconds(work.end - work.begin)}, "
        f"from {formats.seconds(work.begin)}"
    )
    return tag(
        "i",
        tag("span", work.batch),
        class_=stage_class(work.stage) + (" odd" if work.batch % 2 else ""),
        style=f"left:{percent(left)};width:{percent(width)};--row:{row}",
        data_tip=tip,
    )
