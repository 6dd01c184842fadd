"""agnes: a hyperbatch of batches is sampled at once, from blocks that are read in their order.

The topology lies in blocks; in memory are the last node of each and a buffer of some, but no table
of the nodes. A hyperbatch is sampled hop by hop, each block being read once per hop for all of its
batches. Its rows are those of ginex so far: a cache that knows what the hyperbatch will want, and
the rest from the drive.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from outcrop.ahead.window import FIRST_BATCHES, ByBlocks, Window
from outcrop.errors import OptionError
from outcrop.layout.blocks import DEFAULT_BLOCK_BYTES, blocks_bytes, check_block_bytes
from outcrop.memory.context import Context
from outcrop.plan.plan import Concurrency, Plan, Strategy
from outcrop.plan.tiers import TierOptions
from outcrop.rows.slots import PlannedSlots
from outcrop.rows.source import row_shape
from outcrop.sample.hyperbatch import check_by_blocks, least_hyperbatch_bytes
from outcrop.topology.blocks import Blocks

_USUAL_HYPERBATCH = 100
# Overlap is worth its memory where that is less than one part in so many of what caches may have.
_SMALL_PART = 8
# Under way in the main loop. The reads of one fill the drive: more would take the cache's memory.
_MOST_BATCHES = 2


@dataclass(frozen=True)
class AgnesOptions(TierOptions):
    """How memory and time are divided."""

    hyperbatch: int | None = None
    """Batches that are sampled at once. None: few at first, then up to 100, as fit on disk."""
    block_bytes: int = DEFAULT_BLOCK_BYTES
    """What is read of the topology at a time: a power of two of 4 KiB to 4 MiB."""
    graph_share: float = 0.5
    """The share of memory for blocks and what is drawn from them; the rest has feature rows."""
    overlap: bool | None = None
    """Whether the next hyperbatch is made during the main loop, in memory of its own; else in that
    of the batches, which wait. None: where that memory is a small part."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.hyperbatch is not None and self.hyperbatch < 1:
            raise OptionError(f"agnes: hyperbatch must be at least 1 (got {self.hyperbatch})")
        if not 0 <= self.graph_share <= 1:
            raise OptionError(f"agnes: graph_share must be 0 to 1 (got {self.graph_share})")
        check_block_bytes(self.block_bytes)


def plan(context: Context) -> Plan:
    check_by_blocks(context.sampling)
    shape = row_shape(context, staged=True)
    topology = Blocks(0, context.options.block_bytes)
    # With all memory that there is: for what planning rows takes, at most.
    rows = PlannedSlots(context.room(shape)) if context.graph.has("features") else None
    window = _window(context, topology, rows)
    fixed = [*topology.charges(context), *window.charges(context)]
    if rows is not None:
        fixed += rows.beside(context)
    room = context.room(shape, fixed)
    graph = int(room * (context.options.graph_share if rows is not None else 1))
    topology, window = _with_graph(context, graph, topology, window)
    if rows is not None:
        slot = rows.slot_bytes(context)
        most = (context.graph.num_nodes + 1) * slot
        rows = replace(rows, bytes=max(min(room - graph, most), slot))
    window = replace(window, topology=topology, rows=rows)
    # Batches that are not ahead, of a second loop say, have a sampler that is not charged.
    return Plan(topology, rows, window, Concurrency(samplers=0, batches=_MOST_BATCHES))


def _with_graph(
    context: Context, room: int, topology: Blocks, window: Window
) -> tuple[Blocks, Window]:
    """Half of the room for blocks, if there are as many; half for what waits for its batch."""
    assert window.by_blocks is not None
    buffer = min(room // 2, blocks_bytes(context.graph, topology.block_bytes))
    # Of which each batch has a part beside it, see `hyperbatch_bytes`.
    waiting = (room - room // 2) * 12 // 13
    by_blocks = ByBlocks(window.by_blocks.bytes + waiting)
    whole = topology.least_buffer_bytes + buffer
    return replace(topology, buffer_bytes=whole), replace(window, by_blocks=by_blocks)


def _window(context: Context, topology: Blocks, rows: PlannedSlots | None) -> Window:
    """Hyperbatches as given; else as long as usual, if the disk allows."""
    given = context.options.hyperbatch
    first = given or FIRST_BATCHES
    window = Window(given or 1, "between", topology, rows, first, by_blocks=ByBlocks(0))
    most = window.most_on_disk(context, given, "hyperbatches")
    length = given or min(_USUAL_HYPERBATCH, context.stream_batches, most)
    length = max(length, 1)
    by_blocks = ByBlocks(least_hyperbatch_bytes(length))
    window = replace(window, batches=length, by_blocks=by_blocks)
    return replace(window, when="beside") if _overlaps(context, window) else window


def _overlaps(context: Context, window: Window) -> bool:
    if context.options.overlap is not None:
        return bool(context.options.overlap)
    return window.ahead_bytes(context) * _SMALL_PART < context.room(row_shape(context, staged=True))


AGNES = Strategy("agnes", plan, AgnesOptions())
"""Not among the strategies that can be named yet: its rows are not gathered by blocks."""
