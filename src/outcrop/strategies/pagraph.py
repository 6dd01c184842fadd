"""pagraph: static caches, chosen by degree and never changed; what the papers call Ali+PG.

The rows of the nodes with the most out-edges (PaGraph), and the neighbour lists with the most
out-edges per in-edge (AliGraph). Nothing is planned.
"""

from __future__ import annotations

from dataclasses import dataclass

from outcrop.errors import OptionError
from outcrop.memory.context import Context
from outcrop.plan.plan import Concurrency, Plan, Strategy, samplers
from outcrop.plan.tiers import TierOptions
from outcrop.rows.slots import StaticSlots
from outcrop.rows.source import row_shape
from outcrop.topology.parts import CachedLists


@dataclass(frozen=True)
class PaGraphOptions(TierOptions):
    """How memory is divided."""

    neighbors: float = 0.5
    """The share of the caches' memory for neighbour lists; the rest has feature rows."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.neighbors <= 1:
            raise OptionError(f"pagraph: neighbors must be 0 to 1 (got {self.neighbors})")


def plan(context: Context) -> Plan:
    no_lists, sampler = CachedLists(0), Concurrency()
    shape = row_shape(context, staged=True)
    fixed = [*no_lists.charges(context), *samplers(context, no_lists, sampler)]
    if not context.graph.has("features"):
        return Plan(no_lists.within(context, context.room(shape, fixed)), None)
    # The table of rows lies beside both: for as many rows as memory could ever hold.
    most = context.room(shape) // StaticSlots.slot_bytes(context)
    room = context.room(shape, fixed) - StaticSlots.table_bytes(context, most)
    lists = no_lists.within(context, int(max(room, 0) * context.options.neighbors))
    slots = int(max(room, 0) * (1 - context.options.neighbors)) // StaticSlots.slot_bytes(context)
    return Plan(lists, StaticSlots(min(slots, context.graph.num_nodes)))


PAGRAPH = Strategy("pagraph", plan, PaGraphOptions())
