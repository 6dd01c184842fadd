"""Bars: times, stages, bytes and hits, drawn as HTML so that labels keep their size on a phone."""

from __future__ import annotations

import math
import statistics

from outcrop.tools.report import formats, markup, terminal
from outcrop.tools.report.markup import Html, figure, join, percent, table, tag
from outcrop.tools.report.summary import SIZES, STAGES, Comparison, Line, stage_order

TIERS = 5
"""How many tiers differ in colour; with more, colours repeat."""


def bar(who: object, track: Html, value: object, class_: str = "") -> Html:
    """A line: whose it is, the drawing, and the number."""
    return tag(
        "div",
        tag("span", who, class_="who"),
        tag("div", track, class_="track"),
        tag("span", value, class_="value"),
        class_=f"bar {class_}".strip(),
    )


def part(class_: str, left: float | None, width: float, tip: str, label: str = "") -> Html:
    """A piece of a track, in percent of it."""
    place = "" if left is None else f"left:{percent(left)};"
    return tag("i", label, class_=class_, style=f"{place}width:{percent(width)}", data_tip=tip)


def times_figure(comparison: Comparison) -> Html:
    shown = [line for line in comparison.lines if line.median]
    scale = 100 / max((_length(line) for line in shown), default=1.0)
    best = comparison.contest[0] if comparison.contest else None
    drawing = join(_time_bar(line, scale, line is best) for line in shown)
    absent = [line for line in comparison.lines if line.status != "measured"]
    drawing = join([drawing, *map(_absent_bar, absent)])
    rows = [
        [line.name, line.kind, line.status, line.bound or line.note, markup.seconds(line.median),
         terminal.spread(line), markup.times(comparison.relative(line)),
         markup.seconds(line.bound_seconds), markup.times(line.multiple),
         markup.seconds(line.prepare_seconds), markup.number(len(line.seconds))]
        for line in comparison.lines
    ]  # fmt: skip
    head = ["", "kind", "status", "what bounds it, or why not", "median", "spread",
            comparison.relative_name, "bound", "to bound", "preparation",
            "timed"]  # fmt: skip
    text = "Bars are medians; the thin line is from the fastest to the slowest."
    if any(_preparation(line) for line in shown):
        text += (
            " Hatched, after the bar: preparation, before the first batch, as if nothing had been "
            "found prepared."
        )
    if any(line.bound_seconds for line in shown):
        text += (
            " The mark below a bar is its physical bound: what its bytes must take on this drive."
        )
    return figure(
        "Time",
        text,
        tag("div", drawing, class_="bars"),
        table("Time", head, rows, left=4),
        anchor="time",
    )


def _preparation(line: Line) -> float:
    """Seconds that are drawn."""
    seconds = line.prepare_seconds if line.prepares else None
    return seconds if seconds is not None and math.isfinite(seconds) and seconds > 0 else 0.0


def _length(line: Line) -> float:
    return max(*line.seconds, (line.median or 0.0) + _preparation(line))


def _time_bar(line: Line, scale: float, best: bool) -> Html:
    median = line.median or 0.0
    pieces = [part("fill", 0, median * scale, f"{line.name}: {formats.seconds(median)}")]
    if prepare := _preparation(line):
        tip = f"{line.name}: {formats.seconds(prepare)} of preparation"
        pieces.append(part("prepare", median * scale, prepare * scale, tip))
    if line.spread:
        low, high = line.spread
        pieces.append(part("range", low * scale, (high - low) * scale, terminal.spread(line)))
    if line.bound_seconds and line.bound_seconds * scale <= 100:
        tip = f"bound: {formats.seconds(line.bound_seconds)} {line.bound}"
        pieces.append(part("bound", line.bound_seconds * scale, 0, tip))
    value = [tag("b", terminal.median(line))]
    if line.multiple:
        value.append(tag("small", f"{formats.times(line.multiple)} its bound"))
    if line.scaled:
        value.append(tag("small", f"scaled from {line.measured_batches} batches"))
    if _preparation(line):
        value.append(tag("small", f"+ {formats.seconds(line.prepare_seconds)} to prepare"))
    kind = [] if line.kind == "strategy" else [" ", tag("small", line.kind)]
    class_ = "best" if best else line.kind
    return bar(join([line.name, *kind]), join(pieces), join(value), class_)


def _absent_bar(line: Line) -> Html:
    note = tag("em", line.note or line.status)
    return bar(line.name, note, tag("small", line.status), "absent")


def stages_figure(comparison: Comparison) -> Html | None:
    """Two stacks per strategy: what the loop did, and what was done for it at the same time."""
    lines = [line for line in comparison.lines if any(epoch.stages for epoch in line.epochs)]
    if not lines:
        return None
    split = {line.name: _mean_stages(line) for line in lines}
    totals = [max(sum(loop.values()), sum(beside.values())) for loop, beside in split.values()]
    scale = 100 / (max(totals) or 1.0)
    names = list(dict.fromkeys(n for pair in split.values() for stack in pair for n in stack))
    drawing = []
    for name, (loop, beside) in split.items():
        drawing.append(tag("h3", name))
        drawing.append(_stack("the training loop", loop, scale))
        drawing.append(_stack("beside it, all threads", beside, scale))
    rows = [[name, *(markup.seconds({**beside, **loop}.get(stage)) for stage in names)]
            for name, (loop, beside) in split.items()]  # fmt: skip
    text = (
        "Seconds per epoch, mean of all. The training loop either computes or stalls, waiting for "
        "a batch; the other stages work at the same time on their own threads, so their bar may "
        "be longer than the epoch."
    )
    return figure("Where the time goes", text, join(drawing), table("Stages", ["", *names], rows),
                  anchor="stages")  # fmt: skip


def _mean_stages(line: Line) -> tuple[dict[str, float], dict[str, float]]:
    """(compute and stall, all other stages), in seconds per epoch."""
    epochs = line.epochs
    names = sorted({n for epoch in epochs for n in epoch.stages}, key=stage_order)
    busy = {n: statistics.fmean(e.stages[n].busy_seconds if n in e.stages else 0.0 for e in epochs)
            for n in names}  # fmt: skip
    stalls = [e.stall_seconds for e in epochs if e.stall_seconds is not None]
    loop = {"compute": busy.pop("compute")} if "compute" in busy else {}
    if stalls:
        loop["stall"] = statistics.fmean(stalls)
    return loop, busy


def stage_class(name: str) -> str:
    return "s-" + (name.replace(" ", "-") if name in (*STAGES, "stall") else "other")


def _labels(parts: dict[str, float]) -> Html:
    """Below the bar, for the parts that are too narrow for words."""
    items = (
        tag("li", tag("i", class_=stage_class(name)), name, " ", tag("b", formats.seconds(value)))
        for name, value in parts.items()
    )
    return tag("ul", *items, class_="legend parts")


def _stack(who: str, parts: dict[str, float], scale: float) -> Html:
    pieces = [
        part(stage_class(name), None, value * scale, f"{name}: {formats.seconds(value)}",
             name if value * scale > 14 else "")
        for name, value in parts.items()
    ]  # fmt: skip
    total = sum(parts.values())
    drawn = bar(who, join(pieces), tag("b", formats.seconds(total)), "stack")
    return join([drawn, _labels(parts)])


def traffic_figure(comparison: Comparison) -> Html | None:
    lines = [line for line in comparison.lines if line.mean("rows") is not None]
    if not lines:
        return None
    most = max(max(line.mean(n) or 0 for n in _TRAFFIC) for line in lines) or 1
    drawing = []
    for line in lines:
        note = f"{formats.times(line.amplification)} amplification" if line.amplification else ""
        drawing.append(tag("h3", line.name, tag("small", note)))
        for name, (label, class_) in _TRAFFIC.items():
            value = line.mean(name)
            width = 100 * (value or 0) / most
            piece = part(f"fill {class_}", 0, width, formats.size(value)) if value else join([])
            drawing.append(bar(label, piece, tag("b", formats.size(value)), "thin"))
    rows = [
        [line.name, markup.number(line.mean("rows")), markup.number(line.mean("distinct_rows")),
         *(markup.size(line.mean(n)) for n in _TRAFFIC), markup.number(line.mean("read_requests")),
         markup.times(line.amplification)]
        for line in lines
    ]  # fmt: skip
    head = ["per epoch", "rows", "distinct", *(label for label, _ in _TRAFFIC.values()),
            "requests", "amplification"]  # fmt: skip
    text = (
        "Bytes per epoch. Delivered: the rows of all batches. Wanted and read: by the disk "
        "engine, which does nothing where rows come by page faults. From the drive: all that the "
        "kernel read for the process."
    )
    return figure("Wanted and read", text, tag("div", *drawing, class_="bars"),
                  table("Bytes", head, rows), anchor="bytes")  # fmt: skip


_TRAFFIC = {
    "row_bytes": ("delivered", "t-rows"),
    "bytes_wanted": ("wanted", "t-wanted"),
    "bytes_read": ("read", "t-read"),
    "drive_bytes": ("from the drive", "t-drive"),
}


def sizes_figure(comparison: Comparison) -> Html | None:
    lines = [line for line in comparison.lines if line.read_sizes]
    if not lines:
        return None
    legend = tag(
        "ul",
        *(tag("li", tag("i", class_=f"h-{i}"), size) for i, size in enumerate(SIZES)),
        class_="legend",
    )
    drawing = [legend, *map(_size_bar, lines)]
    rows = [[line.name, *map(markup.number, line.read_sizes), markup.size(_mean_read(line))]
            for line in lines]  # fmt: skip
    return figure(
        "Sizes of reads", "Of all requests that the disk engine made, those of each size.",
        tag("div", *drawing, class_="bars"),
        table("Sizes", ["requests", *SIZES, "on average"], rows), anchor="sizes",
    )  # fmt: skip


def _size_bar(line: Line) -> Html:
    requests = sum(line.read_sizes)
    pieces = [
        part(f"h-{i}", None, 100 * count / requests, f"{size}: {formats.number(count)}", size)
        for i, (size, count) in enumerate(zip(SIZES, line.read_sizes, strict=True)) if count
    ]  # fmt: skip
    return bar(line.name, join(pieces), tag("b", formats.size(_mean_read(line))), "stack")


def _mean_read(line: Line) -> int | None:
    size, requests = line.mean("bytes_read"), line.mean("read_requests")
    return size // requests if size is not None and requests else None


def hits_figure(comparison: Comparison) -> Html | None:
    lines = [line for line in comparison.lines if line.hits and line.mean("rows")]
    if not lines:
        return None
    tiers = list(dict.fromkeys(tier for line in lines for tier in line.hits))
    legend = tag(
        "ul",
        *(tag("li", tag("i", class_=f"h-{i % TIERS}"), tier) for i, tier in enumerate(tiers)),
        tag("li", tag("i", class_="s-stall"), "not in memory"),
        class_="legend",
    )
    drawing = [legend, *(_hit_bar(line, tiers) for line in lines)]
    rows = [[line.name, markup.number(line.mean("rows")),
             *(markup.number(line.hits.get(tier)) for tier in tiers),
             markup.share(line.hit_share)] for line in lines]  # fmt: skip
    return figure(
        "Hits by tier", "Of the rows that an epoch wants, those that were found in memory.",
        tag("div", *drawing, class_="bars"),
        table("Hits", ["per epoch", "rows", *tiers, "share"], rows), anchor="hits",
    )  # fmt: skip


def _hit_bar(line: Line, tiers: list[str]) -> Html:
    rows = line.mean("rows") or 1
    pieces = [
        part(f"h-{i % TIERS}", None, 100 * line.hits[tier] / rows,
             f"{tier}: {formats.number(line.hits[tier])} rows", tier)
        for i, tier in enumerate(tiers) if line.hits.get(tier)
    ]  # fmt: skip
    missed = max(rows - sum(line.hits.values()), 0)
    pieces.append(part("s-stall", None, 100 * missed / rows, f"missed: {formats.number(missed)}"))
    return bar(line.name, join(pieces), tag("b", formats.share(line.hit_share)), "stack")
