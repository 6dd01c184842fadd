"""mmap: what people do today (PyG+): everything memory-mapped, the page cache decides.

As fast as memory maps can be made: no readahead, and page faults of many threads at once. A failing
drive shows as SIGBUS, which no program can turn into an error; the other strategies read properly.
"""

from __future__ import annotations

from dataclasses import dataclass

from outcrop.errors import OptionError
from outcrop.memory.context import Context
from outcrop.plan.plan import Plan, Strategy
from outcrop.plan.tiers import TierOptions
from outcrop.rows.array import ArrayRows
from outcrop.topology.parts import PAGE_THREADS, Mapped


@dataclass(frozen=True)
class MmapOptions(TierOptions):
    """How faults are met."""

    threads: int = PAGE_THREADS
    """How many fault at once, per batch."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 1 <= self.threads <= 1024:
            raise OptionError(f"mmap: threads must be 1 to 1024 (got {self.threads})")


def plan(context: Context) -> Plan:
    threads = context.options.threads
    has_rows = context.graph.has("features")
    return Plan(Mapped(threads), ArrayRows(loaded=False, threads=threads) if has_rows else None)


MMAP = Strategy("mmap", plan, MmapOptions())
