"""Formats: numbers -> the few digits that people read."""

from __future__ import annotations

import math

from outcrop.options import format_size

UNKNOWN = "\N{EN DASH}"
TIMES = "\N{MULTIPLICATION SIGN}"


def number(value: float | None) -> str:
    """1234567 -> 1,234,567; 0.01234 -> 0.0123; 12.34 -> 12.3."""
    if value is None:
        return UNKNOWN
    if not math.isfinite(value):
        return "not finite"
    if float(value).is_integer() or abs(value) >= 1000:
        return f"{value:,.0f}"
    digits = max(0, 2 - math.floor(math.log10(abs(value))))
    return f"{value:.{min(digits, 6)}f}"


def seconds(value: float | None) -> str:
    """With a unit that keeps it above one."""
    if value is None or not math.isfinite(value):
        return number(value)
    if value and abs(value) < 0.001:
        return f"{number(value * 1e6)} µs"
    if value and abs(value) < 1:
        return f"{number(value * 1e3)} ms"
    return f"{number(value)} s"


def size(value: float | None) -> str:
    return UNKNOWN if value is None else format_size(int(value)) if math.isfinite(value) else "?"


def times(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value:,.{0 if value >= 100 else 2}f}{TIMES}"


def share(value: float | None) -> str:
    return UNKNOWN if value is None else f"{100 * value:.1f} %"


def short(value: float) -> str:
    """For axes: 12000 -> 12k."""
    for limit, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= limit:
            return f"{value / limit:g}{letter}"
    return f"{value:g}"


def words(name: str) -> str:
    """A key of the record, as people write it."""
    return name.replace("_", " ").replace("-", " ")
