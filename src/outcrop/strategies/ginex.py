"""ginex: batches are sampled a superbatch ahead, so the feature cache knows the future (Belady).

A superbatch is sampled into a trace; a script says for each batch where its rows are and which of
them enter the cache; the main loop reads trace and script back and does what they say. The first
superbatch is short, so that its first batch comes soon; then they grow to what the disk allows.

handover: one memory for both caches, as in the paper. While superbatches are sampled it holds
neighbour lists (one is planned while the next is sampled), in the main loop feature rows; in
between it is loaded again (switch).
split: neighbour lists and feature rows are both resident. The feature cache goes on from one
superbatch to the next, and the next may be sampled and planned during the main loop.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from outcrop.ahead.window import FIRST_BATCHES, Window
from outcrop.errors import OptionError
from outcrop.layout.neighbors import METRICS, whole_bytes
from outcrop.memory.context import Context
from outcrop.plan.plan import Concurrency, Plan, Strategy
from outcrop.plan.tiers import TierOptions
from outcrop.rows.slots import PlannedSlots
from outcrop.rows.source import row_shape
from outcrop.topology.partition import PartitionLists
from outcrop.topology.parts import (
    CachedLists,
    Paged,
    Resident,
    TopologyPart,
)

# Long superbatches may have larger tables than usual ones: by such a share of memory.
_USUAL_SUPERBATCH = 100
_TABLES_SHARE = 1 / 16
# Overlap is worth its memory where that is less than one part in so many of what caches may have.
_SMALL_PART = 8
# Under way in the main loop. The reads of one fill the drive: more would take the cache's memory.
_MOST_BATCHES = 2
_SLOTS = PlannedSlots(0)
# Has neighbour lists and feature rows, in turn.
_REGION = "caches"


@dataclass(frozen=True)
class GinexOptions(TierOptions):
    """How memory and time are divided."""

    mode: Literal["handover", "split"] = "handover"
    superbatch: int | None = None
    """Batches that are planned together. None: few at first, then as many as fit on disk."""
    topology: Literal["auto", "mmap", "cache", "memory", "partition"] = "cache"
    """Where neighbour lists are; auto: cache. partition: also those of the macro batch, beside
    those that other partitions want most, for batching="partition"."""
    neighbors: float = 0.25
    """The share of the caches' memory for neighbour lists (split)."""
    metric: str = "out/in"
    """Which lists are cached: out-edges by in-edges, or "out"."""
    overlap: bool | None = None
    """Whether the next superbatch is sampled and planned during the main loop (split), in memory of
    its own; else in that of the batches, which wait. None: where that memory is a small part."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.superbatch is not None and self.superbatch < 1:
            raise OptionError(f"ginex: superbatch must be at least 1 (got {self.superbatch})")
        if not 0 <= self.neighbors <= 1:
            raise OptionError(f"ginex: neighbors must be 0 to 1 (got {self.neighbors})")
        if self.metric not in METRICS:
            raise OptionError(f"ginex: metric is one of {', '.join(METRICS)} (got {self.metric!r})")


def plan(context: Context, slots: PlannedSlots = _SLOTS) -> Plan:
    """`slots`: without a size yet."""
    topology, rows = _topology(context), _rows(context, slots)
    window = _window(context, topology, rows)
    room = _room(context, topology, rows, window)
    if isinstance(topology, CachedLists) and not _hands_over(context):
        share = context.options.neighbors if rows is not None else 1.0
        topology = topology.within(context, int(room * share))
        room -= topology.kept_bytes(context)
    if rows is not None:
        rows = replace(rows, bytes=_cache_bytes(context, rows, room))
        if isinstance(topology, CachedLists) and _hands_over(context):
            topology = topology.within(context, rows.memory_bytes(context))
            topology = replace(topology, region=_REGION)
    window = replace(window, topology=topology, rows=rows)
    # Batches that are not ahead, of a second loop say, have a sampler that is not charged.
    return Plan(topology, rows, window, Concurrency(samplers=0, batches=_MOST_BATCHES))


def room_for_caches(context: Context, slots: PlannedSlots = _SLOTS) -> tuple[int, int]:
    """What lists and rows may have together, however many there are of them; and what a row takes,
    0 where there are none."""
    topology, rows = _topology(context), _rows(context, slots)
    room = _room(context, topology, rows, _window(context, topology, rows))
    return room, 0 if rows is None else rows.slot_bytes(context)


def _room(
    context: Context, topology: TopologyPart, rows: PlannedSlots | None, window: Window
) -> int:
    fixed = [*topology.charges(context), *window.charges(context)]
    if rows is not None:
        fixed += rows.beside(context)
    return context.room(row_shape(context, staged=True), fixed)


def _topology(context: Context) -> TopologyPart:
    """Without lists yet."""
    name = context.options.topology
    if name == "memory":
        return Resident()
    if name == "partition":
        return PartitionLists.of(context)
    return Paged() if name == "mmap" else CachedLists(0, context.options.metric)


def _rows(context: Context, slots: PlannedSlots) -> PlannedSlots | None:
    """With all memory that there is: for what planning them takes, at most."""
    if not context.graph.has("features"):
        return None
    hands_over, most = _hands_over(context), context.room(row_shape(context, staged=True))
    region = _REGION if hands_over else None
    return replace(slots, bytes=most, refilled=hands_over, region=region)


def _cache_bytes(context: Context, rows: PlannedSlots, room: int) -> int:
    """No more than there are rows, or lists that it is handed over to; a slot at least."""
    slot = rows.slot_bytes(context)
    most = (context.graph.num_nodes + 1) * slot
    if rows.refilled:
        most = max(most, whole_bytes(context.graph))
    return max(min(room, most), slot)


def _hands_over(context: Context) -> bool:
    """Without rows there is nobody to hand the memory over to."""
    options = context.options
    cached = options.topology in ("auto", "cache", "partition")
    return bool(options.mode == "handover" and cached and context.graph.has("features"))


def _window(context: Context, topology: TopologyPart, rows: PlannedSlots | None) -> Window:
    """Superbatches as given; else as long as disk and memory allow."""
    given = context.options.superbatch
    window = Window(given or 1, "between", topology, rows, first_batches=given or FIRST_BATCHES)
    most = window.most_on_disk(context, given, "superbatches")
    if given is None:
        usual = min(_USUAL_SUPERBATCH, len(context.seeds), most)
        most = min(most, context.stream_batches)
        if rows is not None:
            room = context.room(row_shape(context, staged=True)) * _TABLES_SHARE
            more = rows.planning_bytes(context, most) - rows.planning_bytes(context, usual)
            most = most if more <= room else usual
        window = replace(window, batches=max(most, 1))
    return replace(window, when="beside") if _overlaps(context, window) else window


def _overlaps(context: Context, window: Window) -> bool:
    options = context.options
    if _hands_over(context):
        return False
    if options.overlap is not None:
        return bool(options.overlap)
    return window.ahead_bytes(context) * _SMALL_PART < context.room(row_shape(context, staged=True))


GINEX = Strategy("ginex", plan, GinexOptions())
