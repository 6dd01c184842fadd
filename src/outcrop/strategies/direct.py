"""direct: topology in the page cache, every row read from the drive by the disk engine; no cache.

What is left when a strategy keeps nothing: the drive at full queue depth, for each row of each
batch. The baseline of caches, as `mmap` is the baseline of readers.
"""

from __future__ import annotations

from outcrop.memory.context import Context
from outcrop.plan.plan import Plan, Strategy
from outcrop.rows.drive import DriveRows
from outcrop.topology.parts import Paged


def plan(context: Context) -> Plan:
    return Plan(Paged(), DriveRows() if context.graph.has("features") else None)


DIRECT = Strategy("direct", plan)
