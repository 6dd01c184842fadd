"""diskgnn: batches sampled ahead, the rows of each packed together: sequential reads instead of
random ones.

Before the first batch, all batches of some epochs are sampled into a trace. The rows that most of
them want stay in memory; the others are packed, a chunk per batch, with tables that say where each
row belongs. While training, graphs and chunks are read in sequence. Tasks that were not prepared
(validation, direct calls, later epochs) are sampled and read as they come. Both layouts are found
again by the next run with the same settings.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from outcrop import _core
from outcrop.ahead.prepared import PreparedEpochs
from outcrop.errors import OptionError
from outcrop.memory.context import MIN_BATCHES, Context
from outcrop.plan.plan import Concurrency, Plan, Strategy, samplers
from outcrop.plan.tiers import TierOptions
from outcrop.rows.packed import PackedTiers
from outcrop.rows.source import row_shape
from outcrop.topology.parts import Paged, TopologyName

_ROWS = PackedTiers(0)
# Chunks that are read at a time, where there is memory for their batches: while one is at its end,
# the next keeps the drive busy.
_MOST_GATHERERS = 2


@dataclass(frozen=True)
class DiskGNNOptions(TierOptions):
    """What is prepared, and which tiers there are."""

    distinct_epochs: int | None = None
    """Epochs that are sampled ahead. None: all of the run where their number is known, else 1."""
    cycle: bool = False
    """Later epochs repeat the prepared batches, in another order, instead of being sampled."""
    refresh: Literal["off", "background"] = "off"
    """background: while the prepared epochs train, the next ones are prepared."""
    cpu_cache: bool = True
    cache_share: float = 1.0
    """The cache's share of the spare memory; the rest goes to more batches under way."""
    packing: bool = True
    """Whether rows that are not cached are packed; else they are read from the features."""
    topology: TopologyName = "mmap"
    """What batches are sampled from ahead; none of it stays. auto: mmap."""
    samples: str | None = None
    """Imported samples to train from, by their name; None: Outcrop samples."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.distinct_epochs is not None and self.distinct_epochs < 1:
            raise OptionError(
                f"diskgnn: distinct_epochs must be at least 1 (got {self.distinct_epochs})"
            )
        if self.refresh != "off" and (self.cycle or self.samples is not None):
            raise OptionError("diskgnn: refresh=background never repeats: no cycle, no samples")
        if self.samples is not None and self.distinct_epochs is not None:
            raise OptionError("diskgnn: imported samples have their epochs: no distinct_epochs")
        if not 0 <= self.cache_share <= 1:
            raise OptionError(f"diskgnn: cache_share must be 0 to 1 (got {self.cache_share})")


def plan(context: Context, rows: PackedTiers = _ROWS) -> Plan:
    """`rows`: without a size yet."""
    options: DiskGNNOptions = context.options
    ahead, concurrency = _ahead(context), Concurrency()
    if not context.graph.row_bytes:
        if options.refresh == "background":
            ahead = ahead.with_refresh(context, context.room(row_shape(context)))
        return Plan(Paged(), None, ahead, concurrency)
    rows = replace(rows, packed=options.packing)
    shape = rows.shape(context)
    spare, per_row = context.room(shape), rows.cached_row_bytes(context)
    most = min(context.graph.num_nodes, spare // per_row)
    ahead = replace(ahead, rows=replace(rows, cache_rows=most))
    if options.refresh == "background":
        ahead = ahead.with_refresh(context, spare)
    sampler = samplers(context, Paged(), concurrency)
    room = context.room(shape, [*sampler, *ahead.charges(context), *rows.charges(context)])
    rows = replace(rows, cache_rows=_cache_rows(context, rows, room) if options.cpu_cache else 0)
    # What is left goes to more batches under way.
    left = room - rows.cache_rows * per_row
    if left >= context.batch_bytes(shape) + rows.gatherer_bytes(context):
        rows = replace(rows, gatherers=_MOST_GATHERERS)
    return Plan(
        Paged(),
        rows,
        replace(ahead, rows=rows),
        replace(concurrency, gatherers=rows.gatherers),
    )


def _ahead(context: Context) -> PreparedEpochs:
    options: DiskGNNOptions = context.options
    # With the next ones on their way, one is enough.
    known = 1 if options.refresh == "background" else context.epochs
    epochs = options.distinct_epochs or max(1, known or 1)
    if context.samples is not None:
        _check_samples(context)
        epochs = context.samples.epochs
    source: TopologyName = "mmap" if options.topology == "auto" else options.topology
    return PreparedEpochs(epochs, None, source, cycle=options.cycle)


def _check_samples(context: Context) -> None:
    """OptionError where the loader's epochs are not those of the imported samples."""
    samples = context.samples
    assert samples is not None
    if context.sampling.kind != "neighbor":
        raise OptionError("diskgnn: imported samples are for a NeighborLoader")
    if samples.batches != len(context.seeds):
        raise OptionError(
            f"diskgnn: samples {samples.name!r} have {samples.batches} batches per epoch, and the "
            f"loader {len(context.seeds)}: give it the input_nodes and the batch_size that they "
            "were sampled with"
        )


def _cache_rows(context: Context, rows: PackedTiers, room: int) -> int:
    # Packs depend on the cache: its size must not depend on which engine there is, nor on whether
    # batches have edge ids.
    alike = room + context.engine.memory_bytes - context.engine.most_memory_bytes
    if not context.sampling.edge_ids:
        alike -= MIN_BATCHES * _core.SlabPool.charged_bytes(8 * context.batch.edges)
    per_row = rows.cached_row_bytes(context)
    count = int(context.options.cache_share * max(0, alike)) // per_row
    most = context.graph.num_nodes - context.above.device_rows
    return in_steps(count) if count < most else most


def in_steps(count: int) -> int:
    """Less by at most 1/32, so that a few bytes of memory more or less change nothing."""
    step = 1 << max(0, count.bit_length() - 6)
    return count // step * step


DISKGNN = Strategy("diskgnn", plan, DiskGNNOptions())
