"""agnes: a hyperbatch of batches is sampled and gathered at once, from blocks read in their order.

The topology lies in blocks; in memory are the last node of each and a buffer of some, but no table
of the nodes. A hyperbatch is sampled hop by hop, each block being read once per hop for all of its
batches. Then one ascending sweep over the features brings its rows: those that most of its batches
want stay in memory, the others go to a chunk per batch, in scratch, which is read when it comes.

Where memory for it is a small part, and the disk has room for them, the next hyperbatch is made
beside the main loop; else between loops, in the memory that rows give up meanwhile.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from outcrop.ahead.window import ByBlocks, Window
from outcrop.errors import OptionError
from outcrop.layout.blocks import DEFAULT_BLOCK_BYTES, blocks_bytes, check_block_bytes
from outcrop.layout.pack.scatter import (
    MOST_PARTITION_BYTES,
    least_scatter_bytes,
    scatter_bytes,
)
from outcrop.memory.context import Context
from outcrop.plan.plan import Concurrency, Plan, Strategy
from outcrop.plan.tiers import TierOptions
from outcrop.rows.packed_window import PackedWindow
from outcrop.rows.source import row_shape
from outcrop.sample.hyperbatch import least_hyperbatch_bytes
from outcrop.topology.blocks import Blocks
from outcrop.topology.parts import Paged, TopologyPart

# More share no more work: what a sweep reads is little then beside what batches write and read.
_MOST_BATCHES_AT_ONCE = 1024
# The first hyperbatch has so many at least: a shorter one is swept for as long.
_FIRST_BATCHES = 32
# Overlap is worth its memory where that is less than one part in so many of what rows may have.
_SMALL_PART = 6
# Beside the main loop, making may take one part in so many of it.
_MAKING_SHARE = 5
# Under way in the main loop: more would take the memory of rows.
_MOST_BATCHES = 2
# The memory of rows and, in between, of making hyperbatches.
_REGION = "rows and hyperbatches"


@dataclass(frozen=True)
class AgnesOptions(TierOptions):
    """How memory and time are divided."""

    hyperbatch: int | None = None
    """Batches that are sampled and gathered at once. None: as many as memory and disk allow."""
    block_bytes: int = DEFAULT_BLOCK_BYTES
    """What is read of topology and features at a time: a power of two of 4 KiB to 4 MiB."""
    graph_share: float = 0.0
    """The share of memory for a buffer of graph blocks beside those that are in use; the rest has
    feature rows, which gain more from it. (The paper: 0.5.)"""
    overlap: bool | None = None
    """Whether the next hyperbatch is made during the main loop, in memory of its own; else in that
    of the rows, while the loop waits. None: where that memory is a small part, and the disk has
    room for as many hyperbatches as there are then."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.hyperbatch is not None and self.hyperbatch < 1:
            raise OptionError(f"agnes: hyperbatch must be at least 1 (got {self.hyperbatch})")
        if not 0 <= self.graph_share <= 1:
            raise OptionError(f"agnes: graph_share must be 0 to 1 (got {self.graph_share})")
        check_block_bytes(self.block_bytes)


def plan(context: Context) -> Plan:
    topology, rows = _topology(context), None
    if context.graph.has("features"):
        rows = PackedWindow(0, 0, context.options.block_bytes)
    window = Window(1, "between", topology, rows)
    fixed = [*topology.charges(context), *window.beside(context)]
    fixed += [] if rows is None else rows.charges(context)
    room = context.room(row_shape(context), fixed)
    if isinstance(topology, Blocks):
        topology = _with_buffer(context, topology, room)
        room -= max(topology.buffer_bytes - topology.least_buffer_bytes, 0)
    window = _sized(context, replace(window, topology=topology), room)
    # Batches that are not ahead, of a second loop say, have a sampler that is not charged.
    return Plan(topology, window.rows, window, Concurrency(samplers=0, batches=_MOST_BATCHES))


def _topology(context: Context) -> TopologyPart:
    """ShaDow also needs the whole lists of all nodes that it found: from the page cache."""
    if context.sampling.kind != "neighbor":
        return Paged()
    return Blocks(0, context.options.block_bytes)


def _with_buffer(context: Context, topology: Blocks, room: int) -> Blocks:
    """What every sweep needs, and a share of the room, if there are as many blocks."""
    share = context.options.graph_share if context.graph.has("features") else 0.5
    more = min(int(room * share), blocks_bytes(context.graph, topology.block_bytes))
    return replace(topology, buffer_bytes=topology.least_buffer_bytes + more)


def _sized(context: Context, window: Window, room: int) -> Window:
    """Rows, and hyperbatches that can be made in what they leave, or in their memory in turn."""
    rows, given = window.rows, context.options.hyperbatch
    most = 0
    if isinstance(rows, PackedWindow):  # with as many rows as may be, for what deciding takes
        most = _most_rows(context, window, rows, room)
        window = replace(window, rows=replace(rows, cache_rows=most))
    least = _of(context, window, given or 1, one_pass=False).ahead_bytes(context)
    useful = _useful_bytes(context, window)
    if _overlaps(context, window, room):
        window = replace(window, when="beside")
        making = max(least, min(room // _MAKING_SHARE, useful))
        if isinstance(rows, PackedWindow):
            most = min(max(room - making, 0) // rows.cached_row_bytes(context), most)
    else:
        making = max(least, min(room, useful))
    if isinstance(rows, PackedWindow):
        region = _REGION if window.when == "between" else None
        rows = replace(rows, cache_rows=most, making_bytes=making, making_region=region)
    window = replace(window, rows=rows)
    window = _of(context, window, given or 1, one_pass=False)
    sure = window.most_on_disk(context, given, "hyperbatches")
    if given is None:
        room_on_disk = window.room_on_disk(context)
        if window.when == "between":  # until another run comes, there is one at a time
            sure *= window.at_a_time
        window = _of(context, window, _most_batches(context, window, making), one_pass=False)
        window = replace(window, sure_batches=sure, disk_bytes=room_on_disk)
    return replace(window, by_blocks=_with_picks(context, window, making), rows=rows)


def _most_rows(context: Context, window: Window, rows: PackedWindow, room: int) -> int:
    """The largest cache: of rows that are small, deciding which they are takes more memory than
    they do, and a usual hyperbatch has to be decided on."""

    def fits(cache_rows: int, batches: int) -> bool:
        tried = replace(window, rows=replace(rows, cache_rows=cache_rows))
        return _of(context, tried, batches, one_pass=False).ahead_bytes(context) <= room

    usual = _usual_batches(context)
    batches = usual if fits(0, usual) else context.options.hyperbatch or 1
    low, high = 0, min(room // rows.cached_row_bytes(context), context.graph.num_nodes)
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle, batches) else (low, middle - 1)
    return low


def _of(context: Context, window: Window, batches: int, *, one_pass: bool) -> Window:
    """Hyperbatches of so many, in as little memory as may be; `one_pass`: over the features."""
    rows, graph = window.rows, context.graph
    if isinstance(rows, PackedWindow):
        size = least_scatter_bytes(graph.row_bytes, graph.num_nodes)
        if one_pass:
            size = scatter_bytes(batches + 1, graph.row_bytes, graph.num_nodes)
        rows = replace(rows, making_bytes=size)
    by_blocks = None
    if isinstance(window.topology, Blocks):
        by_blocks = ByBlocks(least_hyperbatch_bytes(batches))
    first = context.options.hyperbatch or _first_batches(context)
    return replace(window, batches=batches, first_batches=first, by_blocks=by_blocks, rows=rows)


def _useful_bytes(context: Context, window: Window) -> int:
    """What making can use: for the longest hyperbatch in one pass, all that waits in memory, and
    the largest partitions."""
    batches = context.options.hyperbatch or min(context.stream_batches, _MOST_BATCHES_AT_ONCE)
    longest = _of(context, window, max(batches, 1), one_pass=True)
    waiting = 0 if longest.by_blocks is None else longest.by_blocks.written_bytes(context)
    features = context.graph.array_bytes("features") if context.graph.has("features") else 0
    partitions = 2 * min(MOST_PARTITION_BYTES, features)
    return longest.ahead_bytes(context) + longest.batches * waiting * 13 // 12 + partitions


def _first_batches(context: Context) -> int:
    """As many as take no longer than the sweeps: so the first batch comes at most twice as late as
    it has to, and no sweep is spent on a few batches."""
    graph, hops = context.graph, len(context.sampling.num_neighbors)
    swept = graph.array_bytes("features") if graph.has("features") else 0
    swept += hops * graph.array_bytes("indices")
    # Rows are written and read, and so is the record.
    own = 2 * (context.batch.nodes * graph.row_bytes + context.record_bytes())
    return max(_FIRST_BATCHES, swept // max(own, 1))


def _usual_batches(context: Context) -> int:
    """Of a hyperbatch that is as long as it should be at first."""
    return max(
        min(context.options.hyperbatch or _first_batches(context), context.stream_batches), 1
    )


def _most_batches(context: Context, window: Window, making: int) -> int:
    """The longest hyperbatch that memory has room for."""
    low, high = 1, max(min(context.stream_batches, _MOST_BATCHES_AT_ONCE), 1)
    while low < high:
        middle = (low + high + 1) // 2
        fits = _of(context, window, middle, one_pass=True).ahead_bytes(context) <= making
        low, high = (middle, high) if fits else (low, middle - 1)
    return low


def _with_picks(context: Context, window: Window, making: int) -> ByBlocks | None:
    """What is left of the memory for what was drawn, and waits; no more than there will be."""
    if window.by_blocks is None:
        return None
    least = window.by_blocks.bytes
    spare = making - replace(window, rows=None).ahead_bytes(context)
    # Of which each batch has a part beside it, see `hyperbatch_bytes`.
    more = min(spare * 12 // 13, window.batches * window.by_blocks.written_bytes(context))
    return ByBlocks(least + max(more, 0))


def _overlaps(context: Context, window: Window, room: int) -> bool:
    if context.options.overlap is not None:
        return bool(context.options.overlap)
    usual = _of(context, replace(window, when="beside"), _usual_batches(context), one_pass=True)
    # More of them are on disk at a time then: shorter ones would cost more sweeps than that saves.
    on_disk = usual.batches * usual.at_a_time * usual.batch_disk_bytes(context)
    small = usual.ahead_bytes(context) * _SMALL_PART < room
    return small and on_disk <= usual.room_on_disk(context)


AGNES = Strategy("agnes", plan, AgnesOptions())
