"""gnndrive: asynchronous extraction into a small buffer of shared slots (GNNDrive, ICPP 2024).

Several samplers, then several extractors. An extractor takes slots of the feature buffer for the
rows of its batch, sends the reads of all that are neither there nor on their way, and waits once.
Rows land in their slots, around the page cache, which is left to the topology; where little of that
fits, lists of some nodes are kept, and the others read around the page cache, too. From there they
are copied into the batch, and the slots go on standby, to be found again until they are reused.

Unlike the paper, slots of nodes that were used least often are reused first, and last of all those
of nodes that a sampled batch will want (reuse=lru: the least recently used first, as there). A
batch is a sweep over the ids; where the buffer holds less than a few of them, the order of use
pushes rows out just before they return. And samplers are ahead: what they know is free. Sampled
batches wait outside of their samplers, so that many are known. Pages are read for single rows: rows
of the same page that a sampled batch will want ride along, and are not read again for it.

With x=slots they are not copied: a batch has the slots of its rows, and holds them until it is
dropped. It then gets all of them at once, in the order of batches, so that whoever waits for slots
waits only for batches that have all of theirs; there are slots for two batches at least, the one
with the loop and the next.

Otherwise, and unlike the paper again, the extractors together never want more slots than there are:
where a batch is too large for its share it is extracted in parts. So no number of slots leads to a
deadlock, and memory for less than one batch will do. The shares together are a part of the slots
only, so that the others keep rows for later batches.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from outcrop.errors import OptionError
from outcrop.memory.charges import Phase, total
from outcrop.memory.context import Context
from outcrop.plan.plan import Concurrency, Plan, Strategy, samplers
from outcrop.plan.tiers import TierOptions
from outcrop.rows.buffer import FeatureBuffer
from outcrop.rows.shared import SharedSlots
from outcrop.rows.source import row_shape
from outcrop.store.offsets import offsets_bytes
from outcrop.topology.parts import (
    PAGE_THREADS,
    CachedLists,
    Paged,
    Resident,
    TopologyName,
    TopologyPart,
)

# The share of spare memory for samplers beyond the first: rows gain more from it.
_SAMPLERS_SHARE = 1 / 8
# The share of spare memory for sampled batches outside of samplers. The buffer profits from knowing
# them as long as it holds what they want: quick's small one not at all.
_WAITING_SHARE = 1 / 16
_SAMPLERS = 4
# With 4, standard took 52.0 s in place of 49.5: they compete for cores, and slots are fewer.
_SAMPLERS_BESIDE_WAITING = 2
# The topology's share of what the least buffer leaves: a buffer that pushed its pages out of memory
# would slow sampling more than it speeds up extraction (the paper's section 3).
_TOPOLOGY_SHARE = 1 / 2
# The share of the topology that must have room in the page cache, else lists are cached: with a
# sixth (the quick graph) they are better, with a third (standard) pages are.
_MAPPED_SHARE = 1 / 4
# The share of spare memory for the topology's index, unless topology=cache is asked for.
_INDPTR_SHARE = 1 / 4
# The least number of slots, in batches: parts of them still keep the drive's queue full.
_LEAST_BATCHES = 1 / 4
# With x=slots: one with the loop, one on the way to it.
_LEAST_HELD = 2


@dataclass(frozen=True)
class GnnDriveOptions(TierOptions):
    """As in the paper; all of them shrink with the budget."""

    samplers: int | None = None
    """None: 4, as in the paper; 2 where sampled batches wait outside of their samplers."""
    extractors: int = 4
    order: Literal["exact", "completion"] = "exact"
    """completion: batches reach the loop as they are done; the set of them is the same."""
    topology: TopologyName = "auto"
    """mmap: through the page cache, as in the paper; but read, so that a drive that fails is an
    error. auto: cache where little of it fits beside the slots, and the store may be written to,
    since the choice of lists is kept there; else mmap."""
    buffer: float | None = None
    """Slots, in batches; None: all memory that is spare."""
    reuse: Literal["lookahead", "frequency", "lru"] = "lookahead"
    """Whose slots are reused first: of the nodes that no batch sampled so far will want, the least
    often used ones'; of all nodes, the least often used; or the least recently used, as in the
    paper."""
    prefetch: bool = True
    """Rows that a batch sampled so far will want are loaded with those whose pages they share."""
    x: Literal["copy", "slots"] = "copy"
    """slots: batches have x_buffer, all slots, and x_index, the slots of their rows."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("samplers", "extractors"):
            given = getattr(self, name)
            if given is not None and not 1 <= given <= 64:
                raise OptionError(f"gnndrive: {name} must be 1 to 64 (got {given})")
        if self.buffer is not None and not 0 < self.buffer < float("inf"):
            raise OptionError(f"gnndrive: buffer must be more than 0 (got {self.buffer})")
        if self.x == "slots" and self.buffer is not None and self.buffer < _LEAST_HELD:
            raise OptionError(
                f"gnndrive: with x=slots buffer must be at least {_LEAST_HELD} (got {self.buffer})"
            )


def plan(context: Context) -> Plan:
    name: TopologyName = context.options.topology
    if name == "memory":
        return _plan(context, Resident())
    if name == "cache":
        return _plan(context, CachedLists(0))
    paged = _plan(context, Paged())
    assert isinstance(paged.topology, Paged)
    enough = context.graph.topology_bytes * _MAPPED_SHARE
    if name == "mmap" or paged.topology.page_cache_bytes >= enough:
        return paged
    # Pages that come and go cost more than lists that are read around the page cache: samplers
    # wait for each of them, and what extraction allocates waits for them to be given up.
    cached = _plan(context, CachedLists(0))
    most = context.room(cached.shape(context)) * _INDPTR_SHARE
    fits = offsets_bytes(context.graph) <= most and cached.fits(context)
    written = cached.topology.written_bytes(context)
    return cached if fits and context.disk.allows(written) else paged


def _plan(context: Context, topology: TopologyPart) -> Plan:
    """`topology`: without a share of the memory yet."""
    options: GnnDriveOptions = context.options
    rows = _least_rows(context)
    spare = context.room(row_shape(context) if rows is None else rows.shape(context))
    least = 0 if rows is None else total(rows.charges(context), Phase.LOOP)
    kept = total(topology.charges(context), Phase.LOOP)
    sampler = max(topology.sampler_bytes(context), 1)
    room = min(int(spare * _SAMPLERS_SHARE), spare - kept - least - sampler)
    count = _sampled_ahead(context, rows, max(room, 0), spare, sampler)
    left = spare - total(samplers(context, topology, count), Phase.LOOP) - kept
    share = int(max(left - least, 0) * _TOPOLOGY_SHARE)
    if isinstance(topology, CachedLists):
        topology = topology.within(context, share)
        left -= topology.bytes
    elif isinstance(topology, Paged):
        share = min(share, context.graph.topology_bytes)
        topology = Paged(max(PAGE_THREADS // count.samplers, 1), share)
        left -= share
    if rows is not None and options.buffer is None:
        rows = rows.with_most_slots(context, left)
    return Plan(topology, rows, concurrency=count)


def _least_rows(context: Context) -> SharedSlots | None:
    """With the slots that the options say, or the least that works well."""
    options: GnnDriveOptions = context.options
    if not context.graph.has("features"):
        return None
    held = options.x == "slots"
    batches = options.buffer or (_LEAST_HELD if held else _LEAST_BATCHES)
    slots = min(max(int(batches * context.batch.nodes), 1), context.graph.num_nodes)
    rows = SharedSlots(slots, 1, options.reuse, options.prefetch, view=held)
    return replace(rows, gatherers=_extractors(context, rows))


def _extractors(context: Context, rows: SharedSlots) -> int:
    # Two batches have memory in any case. More get what slots leave: with 42 % of the quick graph's
    # rows, 170,000 slots in place of 840,000 gave a third extractor, and 46 % more bytes to read.
    shape = rows.shape(context)
    spare = context.room(shape) // context.batch_bytes(shape)
    return int(min(context.options.extractors, 2 + spare))


def _sampled_ahead(
    context: Context, rows: SharedSlots | None, room: int, spare: int, sampler: int
) -> Concurrency:
    """Samplers, and sampled batches that wait, in so much memory beside the first sampler."""
    options: GnnDriveOptions = context.options
    gatherers = options.extractors if rows is None else rows.gatherers
    count = min(options.samplers or _SAMPLERS, 1 + room // sampler)
    waiting = 0
    if rows is not None and options.reuse == "lookahead":
        each = max(context.waiting_bytes, 1)
        # Those that are extracted are expected, too, until they have their slots.
        most = FeatureBuffer.most_expected() - (0 if rows.view else gatherers)
        waiting = min(most, int(spare * _WAITING_SHARE) // each, room // each)
        if waiting < max(count, 2):
            waiting = 0
        else:
            room -= waiting * each
            count = min(options.samplers or _SAMPLERS_BESIDE_WAITING, 1 + room // sampler)
    return Concurrency(count, waiting, gatherers, order=options.order)


GNNDRIVE = Strategy("gnndrive", plan, GnnDriveOptions())
