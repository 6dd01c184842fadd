"""Variants: strategies as the papers compare them, which nobody would train with.

`ginex:policy=static` and the like: a strategy's own decisions, over another part, or its plan, run
in another way. Benchmarks alone read these options.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Literal

from outcrop.errors import OptionError
from outcrop.memory.context import Context
from outcrop.options import options_from_text
from outcrop.plan.plan import Plan, Strategy
from outcrop.rows.drive import USUAL_UNIT, DriveRows
from outcrop.rows.packed import PackedTiers
from outcrop.rows.slots import PlannedSlots
from outcrop.strategies import diskgnn, ginex, strategy_named


@dataclass(frozen=True)
class GinexVariant:
    """Another cache in the same pipeline."""

    policy: Literal["belady", "static", "lru"] = "belady"
    """Who stays in the feature cache; by a profile: outre:policy=saved."""
    read_unit: int = USUAL_UNIT
    """Bytes of the smallest read of a missing row, and what it is aligned to: 4 KiB to 1 MiB."""

    def __post_init__(self) -> None:
        unit = self.read_unit
        if not USUAL_UNIT <= unit <= 1 << 20 or unit & (unit - 1):
            raise OptionError(
                f"ginex: read_unit must be a power of two, 4096 to 1048576 (got {unit})"
            )

    def of(self, strategy: Strategy) -> Strategy:
        slots = PlannedSlots(0, self.policy, over=DriveRows(self.read_unit))
        return replace(strategy, decide=partial(ginex.plan, slots=slots))


@dataclass(frozen=True)
class DiskGNNVariant:
    """The steps of DiskGNN's Figure 18, and its stages one by one."""

    raw: bool = False
    """No cache in memory, no packing, and each row by a request of its own: the baseline."""
    pipeline: Literal["on", "off"] = "on"
    """off: one batch on the way at a time, one stage after the other, to time them."""

    def of(self, strategy: Strategy) -> Strategy:
        if self.raw:
            options = replace(strategy.options, cpu_cache=False, packing=False)
            rows = PackedTiers(0, otherwise=DriveRows(merged=False))
            strategy = replace(strategy, options=options, decide=partial(diskgnn.plan, rows=rows))
        if self.pipeline == "off":
            strategy = replace(strategy, decide=_then(strategy.decide, serial))
        return strategy


def serial(plan: Plan) -> Plan:
    """The same, with one batch on the way at a time."""
    return replace(plan, concurrency=replace(plan.concurrency, batches=0, gatherers=1))


def _then(
    decide: Callable[[Context], Plan], change: Callable[[Plan], Plan]
) -> Callable[[Context], Plan]:
    return lambda context: change(decide(context))


_VARIANTS: dict[str, type[GinexVariant] | type[DiskGNNVariant]] = {
    "ginex": GinexVariant,
    "diskgnn": DiskGNNVariant,
}


def variant_named(text: str) -> Strategy:
    """As `strategy_named`, with the options of variants as well."""
    name, *given = text.split(":")
    kind = _VARIANTS.get(name)
    if kind is None:
        return strategy_named(text)
    known = {field.name for field in fields(kind)}
    own = [option for option in given if option.partition("=")[0] in known]
    strategy = strategy_named(":".join([name, *(each for each in given if each not in own)]))
    if not own:
        return strategy
    return replace(options_from_text(kind, own, where=name).of(strategy), text=text)
