"""Pictures: a profile -> SVG files that need nothing else, in light and in dark."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from xml.sax.saxutils import escape

from outcrop.tools.profile.accesses import Bin
from outcrop.tools.profile.measure import Profile

_WIDTH, _HEIGHT = 720, 400
_LEFT, _TOP, _BOTTOM = 64, 44, 64
_LEGEND = 180
_TOPS = (0.1, 0.2, 0.5, 1.0)
# Okabe and Ito's colours: told apart by the colour-blind too.
_COLOURS = ("#0072b2", "#e69f00", "#009e73", "#d55e00", "#cc79a7", "#56b4e9")
_STYLE = """
text { font: 13px system-ui, sans-serif; fill: #222 }
.title { font-size: 16px; font-weight: 600 }
.grid { stroke: #ddd } .axis { stroke: #222 }
.line { fill: none; stroke-width: 2 }
rect.page { fill: #fff }
@media (prefers-color-scheme: dark) {
  text { fill: #ddd } .grid { stroke: #3a3a3a } .axis { stroke: #ddd } rect.page { fill: #161616 }
}
"""

Point = tuple[float, float]
Tick = tuple[float, str]


def pictures(profile: Profile) -> dict[str, str]:
    """File names and SVG texts."""
    return {
        "misses.svg": _misses(profile),
        "cumulative.svg": _cumulative(profile),
        "reuse_batches.svg": _reuse(
            "Batches since a row's last use", profile, profile.reuse_batches
        ),
        "reuse_rows.svg": _reuse(
            "Other rows used since a row's last use", profile, profile.reuse_rows
        ),
    }


def _misses(profile: Profile) -> str:
    percents = [size.percent for size in profile.cache_sizes]
    chart = _Chart("Misses by cache size", "cache, % of all rows", "misses, % of accesses", _LEGEND)
    chart.x_axis(_log(percents[0], percents[-1]), [(p, f"{p:g}") for p in percents])
    for number, policy in enumerate(profile.policies):
        points = zip(percents, policy.miss_ratio, strict=True)
        chart.line(number, policy.name.replace("_", " "), list(points))
    return chart.svg()


def _cumulative(profile: Profile) -> str:
    chart = _Chart("Accesses by share of rows", "rows with the most accesses, % of all rows",
                   "their accesses, % of all")  # fmt: skip
    points = [(share.percent, share.share) for share in profile.cumulative if share.rows]
    low = min(points[0][0], 10)
    chart.x_axis(_log(low, 100), [(p, f"{p:g}") for p in (0.01, 0.1, 1, 10, 100) if p >= low])
    chart.line(0, None, points)
    return chart.svg()


def _reuse(title: str, profile: Profile, bins: Sequence[Bin]) -> str:
    """Bars, the last one for first uses, which have no distance."""
    shown = [(_short(b), b.count / profile.accesses) for b in bins]
    shown.append(("first use", profile.distinct_rows / profile.accesses))
    most = next(top for top in _TOPS if max(share for _, share in shown) <= top)
    chart = _Chart(title, "at least (up to twice as much)", "% of accesses", most=most)
    chart.bars(shown)
    return chart.svg()


def _short(b: Bin) -> str:
    for unit, name in ((1 << 30, "Gi"), (1 << 20, "Mi"), (1 << 10, "Ki")):
        if b.first >= unit:
            return f"{b.first // unit}{name}"
    return str(b.first)


def _log(low: float, high: float) -> Callable[[float], float]:
    """Values from low to high -> 0 to 1."""
    return lambda value: math.log(value / low) / math.log(high / low)


@dataclass
class _Chart:
    """Axes and what is drawn between them; y is a share."""

    title: str
    x_label: str
    y_label: str
    margin: int = 24
    """At the right."""
    most: float = 1.0
    """The share at the top."""
    _parts: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._scale: Callable[[float], float] = float
        self._labels: list[str] = []
        for fifth in range(6):
            y = self._y(fifth / 5 * self.most)
            kind = "grid" if fifth else "axis"
            self._parts.append(_line(kind, _LEFT, y, self._right, y))
            self._text(_LEFT - 8, y + 4, f"{20 * fifth * self.most:g}", "end")

    @property
    def _right(self) -> int:
        return _WIDTH - self.margin

    def _x(self, value: float) -> float:
        return _LEFT + self._scale(value) * (self._right - _LEFT)

    def _y(self, share: float) -> float:
        return _HEIGHT - _BOTTOM - share / self.most * (_HEIGHT - _BOTTOM - _TOP)

    def _text(self, x: float, y: float, text: str, anchor: str = "middle", more: str = "") -> None:
        self._parts.append(
            f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{more}>{escape(text)}</text>'
        )

    def x_axis(self, scale: Callable[[float], float], ticks: Sequence[Tick]) -> None:
        """`scale`: values -> 0 to 1."""
        self._scale = scale
        for value, name in ticks:
            self._parts.append(_line("grid", self._x(value), self._y(0), self._x(value), _TOP))
            self._text(self._x(value), self._y(0) + 20, name)

    def line(self, number: int, name: str | None, points: Sequence[Point]) -> None:
        """A line with dots; a name goes to the right of the axes."""
        colour = _COLOURS[number % len(_COLOURS)]
        places = [(self._x(x), self._y(y)) for x, y in points]
        joined = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        self._parts.append(f'<polyline class="line" stroke="{colour}" points="{joined}"/>')
        for x, y in places:
            self._parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>')
        if name is not None:
            x, y = self._right + 16, _TOP + 8 + 22 * number
            self._parts.append(f'<circle cx="{x}" cy="{y}" r="5" fill="{colour}"/>')
            self._text(x + 12, y + 4, name, "start")

    def bars(self, bars: Sequence[tuple[str, float]]) -> None:
        """Names and heights."""
        step = (self._right - _LEFT) / len(bars)
        every = math.ceil(44 / step)  # labels need so many pixels; the last has room of its own
        for number, (name, share) in enumerate(bars):
            last = number == len(bars) - 1
            x, y = _LEFT + (number + 0.1) * step, self._y(share)
            self._parts.append(
                f'<rect x="{x:.1f}" y="{y:.1f}" width="{0.8 * step:.1f}" '
                f'height="{self._y(0) - y:.1f}" fill="{_COLOURS[3 if last else 0]}">'
                f"<title>{escape(name)}: {100 * share:.1f} %</title></rect>"
            )
            if last or (number % every == 0 and number + every < len(bars)):
                self._text(x + 0.4 * step, self._y(0) + 20, name)

    def svg(self) -> str:
        middle = (_LEFT + self._right) / 2
        self._text(_LEFT, 24, self.title, "start", ' class="title"')
        self._text(middle, _HEIGHT - 16, self.x_label)
        y = self._y(self.most / 2)
        self._text(18, y, self.y_label, more=f' transform="rotate(-90 18 {y:.1f})"')
        body = "\n".join(self._parts)
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" '
            f'width="{_WIDTH}" height="{_HEIGHT}" role="img">\n'
            f"<title>{escape(self.title)}</title>\n<style>{_STYLE}</style>\n"
            f'<rect class="page" width="100%" height="100%"/>\n{body}\n</svg>\n'
        )


def _line(kind: str, x1: float, y1: float, x2: float, y2: float) -> str:
    return f'<line class="{kind}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'
