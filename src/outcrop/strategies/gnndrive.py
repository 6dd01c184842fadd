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

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from outcrop import _core
from outcrop.batch import Prepared
from outcrop.cache.neighbor import NeighborCache, making_bytes, neighbor_bytes
from outcrop.cache.refcount import FeatureBuffer
from outcrop.errors import BudgetError, OptionError
from outcrop.gather import PARTS_AT_ONCE, BufferedRows, HeldRows, NoRows
from outcrop.parallel import cpu_count
from outcrop.pipeline import StageTimes
from outcrop.sample.sampler import Subgraph
from outcrop.sample.topology import PAGE_THREADS, paged_topology
from outcrop.strategies.base import (
    Job,
    Means,
    RunTimes,
    parked_bytes,
    preparation_bytes,
    sampler_bytes,
)
from outcrop.strategies.online import Gatherer, OnlineStrategy

# Of the spare memory, what samplers beyond the first may take: rows gain more from it.
_SAMPLERS_SHARE = 1 / 8
# Of the spare memory, what sampled batches outside of samplers may take. The buffer profits from
# knowing them as long as it holds what they want: quick's small one not at all.
_PARKED_SHARE = 1 / 16
_SAMPLERS = 4
# With 4, standard took 52.0 s in place of 49.5: they compete for cores, and slots are fewer.
_SAMPLERS_BESIDE_PARKED = 2
# Of what the least buffer leaves, what the topology may take: a buffer that pushed its pages out
# of memory would slow sampling more than it speeds up extraction (the paper's section 3).
_TOPOLOGY_SHARE = 1 / 2
# Of the topology, what must have room in the page cache, else lists are cached: with a sixth (the
# quick graph) they are better, with a third (standard) pages are.
_MAPPED_SHARE = 1 / 4
# Of the spare memory, what the topology's index may take, unless topology=cache is asked for.
_INDPTR_SHARE = 1 / 4
# The least number of slots, in batches: parts of them still keep the drive's queue full.
_LEAST_BATCHES = 1 / 4
# Of the slots, what extraction may hold at a time: what it holds is not there for later batches.
_PARTS_SHARE = 1 / 4
# Rows of a part, if there are slots: thousands of requests, so that the drive's queue stays full.
_LEAST_PART = 8192
# With x=slots: one with the loop, one on the way to it.
_LEAST_HELD = 2
# Per node of a batch: its order and its id, while it is extracted.
_ORDER_BYTES = 16
# Per slot in use: a claim's list of slots.
_CLAIM_BYTES = 8
# Per row of a batch that is being loaded: lists of loads, of rows that ride along (half as many at
# most) and of rows to wait for.
_LOAD_BYTES = 48


@dataclass(frozen=True)
class GnnDriveOptions:
    """As in the paper; all of them shrink with the budget."""

    samplers: int | None = None
    """None: 4, as in the paper; 2 where sampled batches wait outside of their samplers."""
    extractors: int = 4
    order: Literal["exact", "completion"] = "exact"
    """completion: batches reach the loop as they are done; the set of them is the same."""
    topology: Literal["auto", "mmap", "cache"] = "auto"
    """mmap: through the page cache, as in the paper; but read, so that a drive that fails is an
    error. cache: lists of some nodes in memory, the others read around the page cache. auto: cache
    where little of it fits beside the slots, and the store may be written to, since the choice of
    lists is kept there."""
    buffer: float | None = None
    """Slots, in batches; None: all memory that is spare."""
    reuse: Literal["lookahead", "frequency", "lru"] = "lookahead"
    """Whose slots are reused first: of the nodes that no batch sampled so far will want, the least
    often used ones'; of all nodes, the least often used; or the least recently used, as in the
    paper."""
    riders: bool = True
    """Rows that a batch sampled so far will want are loaded with those whose pages they share."""
    x: Literal["copy", "slots"] = "copy"
    """slots: batches have x_buffer, all slots, and x_index, the slots of their rows."""

    def __post_init__(self) -> None:
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


@dataclass(frozen=True)
class _Plan:
    """How the spare memory is divided."""

    samplers: int
    parked: int
    """Sampled batches that wait outside of their samplers; 0: inside."""
    extractors: int
    slots: int
    cached: bool
    """Whether there is a neighbour cache."""
    topology_bytes: int
    """Of the neighbour cache; or left to the page cache, which a hard limit counts as ours."""


class GnnDrive(OnlineStrategy):
    """Rows in slots with reference counts, read by several extractors at once."""

    name = "gnndrive"
    Options = GnnDriveOptions

    @classmethod
    def leaves_rows_in_slots(cls, options: Any) -> bool:
        return bool(options.x == "slots")

    @classmethod
    def needs(cls, means: Means) -> Mapping[str, int]:
        return _needs(means, _plan(means))

    @classmethod
    def written_bytes(cls, means: Means) -> int:
        plan = _plan(means)
        return plan.topology_bytes if plan.cached else 0

    def __init__(self, job: Job) -> None:
        options: GnnDriveOptions = job.options
        plan = _plan(job)
        self._neighbors: NeighborCache | None = None
        if plan.cached:
            self._neighbors = NeighborCache.open(
                job.store, plan.topology_bytes, progress=job.progress
            )
            topology = self._neighbors.topology(job.store.load("indptr"))
            threads = cpu_count()
        else:
            topology = paged_topology(job.store)
            threads = max(PAGE_THREADS // plan.samplers, 1)
        # With no batch in the loop, so many have memory to be extracted into.
        extractors = min(plan.extractors, job.depth + 1)
        super().__init__(
            job,
            topology,
            threads,
            samplers=plan.samplers,
            parked=plan.parked,
            gatherers=extractors,
            order=options.order,
        )
        self._held = self.leaves_rows_in_slots(options)
        self._buffer: FeatureBuffer | None = None
        if plan.slots:
            features = job.store.features
            self._buffer = FeatureBuffer(
                job.store.num_nodes,
                plan.slots,
                features.encoding.row_bytes,
                counted=options.reuse != "lru",
                layout=features.layout if options.riders else None,
                shown=self._held,
            )
        self._part_nodes = _part_nodes(plan.slots, extractors, options.reuse)
        self._topology_bytes = plan.topology_bytes

    def _gatherer(self) -> Gatherer:
        if self._buffer is None:
            return NoRows()
        features = self._job.store.features
        if self._held:
            return HeldRows(features, self._buffer)
        return BufferedRows(features, self._buffer, self._part_nodes, cpu_count())

    def _expect(self, subgraph: Subgraph) -> _core.Expected | None:
        if self._buffer is None or self._job.options.reuse != "lookahead":
            return None
        return self._buffer.expect(subgraph.nodes)

    def _reserve(
        self, batch: Prepared, closed: Callable[[], bool], awaited: Callable[[], bool]
    ) -> None:
        """Slots, or rows of its own where all slots are held and the loop waits."""
        buffer = self._buffer
        if buffer is None or batch.x_index is None:
            return
        order = np.argsort(batch.n_id, kind="stable")
        nodes = batch.n_id[order]
        wanted = int(np.count_nonzero(np.diff(nodes))) + min(len(nodes), 1)
        maker, own_bytes = self._job.maker, len(nodes) * buffer.rows.shape[1]
        if wanted > buffer.num_slots:
            if maker.strict:
                raise BudgetError(
                    f"a batch of {wanted} nodes needs as many slots, more than the "
                    f"{buffer.num_slots} that memory= leaves for rows; give more, or make batches "
                    "smaller"
                )
            batch.expected = None
            _give_rows(batch, maker.take(own_bytes, closed, awaited))
            return

        def why() -> str:
            held = buffer.num_slots - buffer.num_standby
            return (
                f"the next batch needs {wanted} slots, and {held} of {buffer.num_slots} are held "
                "by batches that are still referenced"
            )

        def claimed(seconds: float) -> bool | None:
            batch.claim = buffer.reserve(nodes, seconds, batch.expected)
            return None if batch.claim is None else True

        def given() -> bool:
            _give_rows(batch, maker.overdraft.beyond([own_bytes])[0])
            return True

        maker.overdraft.wait(
            claimed,
            given,
            maker.pool.charged_bytes(own_bytes),
            closed,
            awaited,
            why,
        )
        batch.expected = None
        if batch.claim is not None:
            batch.x_index[order] = batch.claim.slots

    def _count(self, gatherers: Sequence[Gatherer], times: RunTimes) -> None:
        seconds = 0.0
        for gatherer in gatherers:
            if isinstance(gatherer, BufferedRows):
                seconds += gatherer.copy_seconds
            if isinstance(gatherer, HeldRows):
                for tier, rows in gatherer.hits.items():
                    times.hits[tier] = times.hits.get(tier, 0) + rows
        if not self._held:
            gather = times.stages["gather"]
            gather.busy_seconds -= seconds
            times.stages["copy"] = StageTimes(items=gather.items, busy_seconds=seconds)

    @property
    def facts(self) -> dict[str, Any]:
        return {
            "samplers": self._num_samplers,
            "parked": self._num_parked,
            "extractors": self._num_gatherers,
            "slots": 0 if self._buffer is None else self._buffer.num_slots,
            "part_rows": None if self._held else self._part_nodes,
            "topology": "mmap" if self._neighbors is None else "cache",
            "topology_bytes": self._topology_bytes,
        }

    def close(self) -> None:
        super().close()
        self._buffer = None
        if self._neighbors is not None:
            self._neighbors.close()
            self._neighbors = None


def _give_rows(batch: Prepared, memory: NDArray[np.uint8]) -> None:
    """Rows of its own in place of slots."""
    assert batch.x_index is not None
    batch.x_index[:] = np.arange(len(batch.n_id))
    batch.x_buffer = memory.view(np.float32).reshape(len(batch.n_id), -1)


def _plan(means: Means) -> _Plan:
    topology: str = means.options.topology
    if topology == "cache":
        return _plan_with(means, cached=True)
    plan = _plan_with(means, cached=False)
    if topology == "mmap" or plan.topology_bytes >= _topology_bytes(means) * _MAPPED_SHARE:
        return plan
    # Pages that come and go cost more than lists that are read around the page cache: samplers
    # wait for each of them, and what extraction allocates waits for them to be given up.
    cached = _plan_with(means, cached=True)
    index_fits = _indptr_bytes(means, cached=True) <= means.spare_bytes * _INDPTR_SHARE
    fits = index_fits and _sum(_needs(means, cached)) <= means.spare_bytes
    return cached if fits and _may_write(means, cached.topology_bytes) else plan


def _may_write(means: Means, size: int) -> bool:
    """Whether so much may be kept with the store."""
    allowed = means.disk_bytes is None or size <= means.disk_bytes
    return allowed and means.store.derived.writable


def _plan_with(means: Means, *, cached: bool) -> _Plan:
    options: GnnDriveOptions = means.options
    indptr = _indptr_bytes(means, cached=cached)
    # Two batches have memory in any case. More get what slots leave: with 42 % of the quick graph's
    # rows, 170,000 slots in place of 840,000 gave a third extractor, and 46 % more bytes to read.
    extractors = min(options.extractors, 2 + means.spare_bytes // means.sizes.batch_bytes)
    slots = _least_slots(means)
    least = _sum(_buffer_bytes(means, slots, extractors))
    sampler = max(_sampler_bytes(means, cached=cached), 1)
    room = min(
        int(means.spare_bytes * _SAMPLERS_SHARE), means.spare_bytes - indptr - least - sampler
    )
    samplers, parked = _sampled_ahead(means, max(room, 0), sampler, extractors)
    left = means.spare_bytes - samplers * sampler - parked * parked_bytes(means) - indptr
    topology = int(max(left - least, 0) * _TOPOLOGY_SHARE)
    if cached:
        topology = neighbor_bytes(means.store, topology)
    else:
        topology = min(topology, _topology_bytes(means))
    if slots and options.buffer is None:
        slots = _most_slots(means, slots, extractors, left - topology)
    return _Plan(samplers, parked, extractors, slots, cached, topology)


def _sampled_ahead(means: Means, room: int, sampler: int, extractors: int) -> tuple[int, int]:
    """-> samplers, and parked batches, in so much memory beside the first sampler."""
    options: GnnDriveOptions = means.options
    samplers = min(options.samplers or _SAMPLERS, 1 + room // sampler)
    if options.reuse != "lookahead" or not means.store.has("features"):
        return samplers, 0
    each = max(parked_bytes(means), 1)
    # Those that are extracted are expected, too, until they have their slots.
    most = FeatureBuffer.most_expected() - (0 if options.x == "slots" else extractors)
    parked = min(most, int(means.spare_bytes * _PARKED_SHARE) // each, room // each)
    if parked < max(samplers, 2):
        return samplers, 0
    room -= parked * each
    return min(options.samplers or _SAMPLERS_BESIDE_PARKED, 1 + room // sampler), parked


def _needs(means: Means, plan: _Plan) -> dict[str, int]:
    kept = "neighbour cache" if plan.cached else "topology in the page cache"
    needs = {
        "samplers": plan.samplers * _sampler_bytes(means, cached=plan.cached),
        "sampled batches": plan.parked * parked_bytes(means),
        "indptr": _indptr_bytes(means, cached=plan.cached),
        kept: plan.topology_bytes,
        **_buffer_bytes(means, plan.slots, plan.extractors),
    }
    if plan.cached:
        needs["preparation"] = preparation_bytes(means, making_bytes(means.store), needs)
    return needs


def _topology_bytes(means: Means) -> int:
    return means.store.array_bytes("indptr") + means.store.array_bytes("indices")


def _part_nodes(slots: int, extractors: int, reuse: str) -> int:
    """How many slots a part of a batch may hold."""
    most = slots // (extractors * PARTS_AT_ONCE)
    if reuse != "lru":  # in the order of use, parts would push out what the next batch needs
        most = min(max(int(most * _PARTS_SHARE), _LEAST_PART), most)
    return max(most, 1)


def _sampler_bytes(means: Means, *, cached: bool) -> int:
    return means.sizes.scratch_bytes + (sampler_bytes(means) if cached else 0)


def _indptr_bytes(means: Means, *, cached: bool) -> int:
    """Where it is resident."""
    return means.store.array_bytes("indptr") if cached else 0


def _least_slots(means: Means) -> int:
    """What the options say, or the least that works well."""
    if not means.store.has("features"):
        return 0
    least = _LEAST_HELD if means.options.x == "slots" else _LEAST_BATCHES
    batches = means.options.buffer or least
    return min(max(int(batches * means.sizes.nodes), 1), means.store.num_nodes)


def _most_slots(means: Means, least: int, extractors: int, memory_bytes: int) -> int:
    """As many slots as the memory has room for, up to one per node; the least even where not."""
    low, high = least, means.store.num_nodes
    while low < high:
        middle = (low + high + 1) // 2
        if _sum(_buffer_bytes(means, middle, extractors)) <= memory_bytes:
            low = middle
        else:
            high = middle - 1
    return low


def _buffer_bytes(means: Means, slots: int, extractors: int) -> dict[str, int]:
    if not slots:
        return {}
    store, wanted = means.store, extractors * means.sizes.nodes
    filled = min(slots, wanted)
    # Claims are kept as long as slots are held.
    claimed = slots if means.options.x == "slots" else filled
    return {
        "feature buffer": FeatureBuffer.memory_bytes(
            store.num_nodes,
            slots,
            store.encoding.row_bytes,
            counted=means.options.reuse != "lru",
        ),
        "extraction": wanted * _ORDER_BYTES + claimed * _CLAIM_BYTES + filled * _LOAD_BYTES,
    }


def _sum(needs: Mapping[str, int]) -> int:
    return sum(needs.values())
