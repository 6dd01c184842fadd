"""memory: everything is loaded; the definition of right. Nothing is read while batches are made."""

from __future__ import annotations

from outcrop.memory.context import Context
from outcrop.plan.plan import Plan, Strategy
from outcrop.rows.array import ArrayRows
from outcrop.topology.parts import Resident


def plan(context: Context) -> Plan:
    rows = ArrayRows(loaded=True) if context.graph.has("features") else None
    return Plan(Resident(), rows)


MEMORY = Strategy("memory", plan)
