"""Tiers that any strategy can have: rows on the device of batches, and rows in memory.

Who is in them is fixed: the nodes with the most out-edges, on the device first; or, over a pack,
those that its own plan chose. What is below plans over the rest.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any

from outcrop.errors import OptionError
from outcrop.memory.context import Context, TiersAbove
from outcrop.options import parse_count, parse_size
from outcrop.rows.array import ArrayRows
from outcrop.rows.device import DeviceCache
from outcrop.rows.drive import DriveRows
from outcrop.rows.packed import PackedTiers
from outcrop.rows.packed_window import PackedWindow
from outcrop.rows.shared import SharedSlots
from outcrop.rows.slots import PlannedSlots, StaticSlots
from outcrop.rows.source import RowsPart
from outcrop.store.facts import GraphFacts

_ROWS = re.compile(r"(.*?)\s*rows", re.IGNORECASE)
_MOST_SLOTS = (1 << 31) - 1


@dataclass(frozen=True)
class TierOptions:
    """What every strategy has beside its own options."""

    device_cache: str = "0"
    """On the device of batches, for the rows that are wanted most: a size, or 100000rows."""
    cache: str = "0"
    """The same in memory, above what the strategy keeps itself."""
    verify_rows: bool = False
    """Compares every row with the store's."""

    def __post_init__(self) -> None:
        for name in ("device_cache", "cache"):
            CacheSize.parse(name, getattr(self, name))


@dataclass(frozen=True)
class CacheSize:
    """How large a cache is to be: so many rows, or so many bytes."""

    rows: int | None
    bytes: int

    @classmethod
    def parse(cls, name: str, text: str) -> CacheSize:
        """ "2GB", "1000rows", "1Mrows"; 0: none."""
        try:
            counted = _ROWS.fullmatch(text)
            if counted is not None:
                return cls(parse_count(counted.group(1)), 0)
            return cls(None, parse_size(text))
        except OptionError:
            raise OptionError(
                f"{name} must be a size such as 2GB, or a number of rows such as 100000rows "
                f"(got {text!r})"
            ) from None

    def rows_of(self, graph: GraphFacts, row_bytes: int) -> int:
        """No more than the graph has."""
        if graph.rows is None:
            return 0
        rows = self.bytes // row_bytes if self.rows is None else self.rows
        return min(rows, graph.num_nodes, _MOST_SLOTS)


def with_tiers(context: Context) -> Context:
    """The facts, with what the options ask for above a strategy's own rows."""
    options, graph = context.options, context.graph
    if not isinstance(options, TierOptions):
        return context
    on_device = CacheSize.parse("device_cache", options.device_cache)
    in_memory = CacheSize.parse("cache", options.cache)
    above = TiersAbove(
        on_device.rows_of(graph, max(graph.x_row_bytes, 1)),
        in_memory.rows_of(graph, max(graph.row_bytes, 1)),
        options.verify_rows,
    )
    nothing = DriveRows()
    tiers = _over(above, nothing)
    charges = () if tiers is nothing else tuple(tiers.charges(context))
    return replace(context, above=replace(above, charges=charges))


def stacked(above: TiersAbove, rows: RowsPart | None) -> RowsPart | None:
    """These tiers over a strategy's own rows."""
    if rows is None:
        return None
    if above.cache_rows:
        _refuse_cache(rows)
    if isinstance(rows, SharedSlots) and rows.view and (above.device_rows or above.cache_rows):
        raise OptionError("x=slots leaves rows in its slots: no device_cache and no cache")
    return _over(above, rows)


def _over(above: TiersAbove, rows: RowsPart) -> RowsPart:
    packed = isinstance(rows, PackedTiers)
    if above.cache_rows:
        rows = StaticSlots(above.cache_rows, rows, skipped=above.device_rows)
    if above.device_rows:
        rows = DeviceCache(above.device_rows, rows, "pack" if packed else "out-degree")
    return rows


def _refuse_cache(rows: RowsPart) -> None:
    if isinstance(rows, ArrayRows):
        raise OptionError("cache: all rows are at an address already")
    if isinstance(rows, StaticSlots):
        raise OptionError("cache: this strategy has one of the same kind; give it more memory")
    if isinstance(rows, PackedWindow):
        raise OptionError("cache: each window chooses what is in memory itself")
    if isinstance(rows, PackedTiers):
        raise OptionError("cache: packs choose what is in memory themselves (cache_share)")


def stack(rows: RowsPart) -> list[Any]:
    """Its parts, from the top down."""
    parts: list[Any] = [rows]
    while getattr(parts[-1], "over", None) is not None:
        parts.append(parts[-1].over)
    return parts


def has_part(rows: RowsPart, kind: type) -> bool:
    return any(isinstance(part, kind) for part in stack(rows))


def check_stack(rows: RowsPart) -> None:
    """OptionError where the order of tiers makes no sense.

    Static tiers first, then at most one that changes, then a bottom.
    """
    parts = stack(rows)
    kinds = [next(kind for made, kind in _KINDS if isinstance(part, made)) for part in parts]
    if sorted(kinds) != kinds or kinds.count(_CHANGES) > 1 or kinds.count(_BOTTOM) != 1:
        names = " over ".join(type(part).__name__ for part in parts)
        raise OptionError(f"rows cannot stack so: {names}")


_STATIC, _CHANGES, _BOTTOM = range(3)
_KINDS: list[tuple[type, int]] = [
    (DeviceCache, _STATIC),
    (StaticSlots, _STATIC),
    (PlannedSlots, _CHANGES),
    (SharedSlots, _CHANGES),
    (ArrayRows, _BOTTOM),
    (DriveRows, _BOTTOM),
    (PackedTiers, _BOTTOM),
    (PackedWindow, _BOTTOM),
]
