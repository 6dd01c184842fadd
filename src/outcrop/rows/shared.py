"""Rows in slots that batches share, with reference counts: found there, on their way for another
batch, or read; copied into x, or left where they are for as long as the batch lives.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from outcrop import _core
from outcrop.disk import Pending
from outcrop.errors import BudgetError, OptionError
from outcrop.memory.batches import (
    Batch,
    BatchMaker,
    RowRequest,
    RowShape,
    SlotView,
)
from outcrop.memory.charges import Charge
from outcrop.memory.context import Context
from outcrop.observe.meter import Meter
from outcrop.rows.buffer import FeatureBuffer
from outcrop.rows.drive import DRIVE, DriveRows, DriveSource
from outcrop.rows.source import (
    DONE,
    Admission,
    Resources,
    RowFill,
    RowSource,
    RowWorker,
    row_shape,
)
from outcrop.sample.seeds import Ids
from outcrop.threads.parallel import ordered_map

# Where a batch goes in parts: while the rows of one are copied, those of the other are on their
# way.
_PARTS_AT_ONCE = 2
# The share of slots that gathering may hold at a time: later batches do not find what it holds.
_PARTS_SHARE = 1 / 4
# Rows of a part, if there are slots: thousands of requests, so that the drive's queue stays full.
_LEAST_PART = 8192
# Per node of a batch: its order and its id, while it is gathered.
_ORDER_BYTES = 16
# Per slot in use: a claim's list of slots.
_CLAIM_BYTES = 8
# Per row of a batch that is being loaded: lists of loads, of rows that ride along (half as many at
# most) and of rows to wait for.
_LOAD_BYTES = 48


@dataclass(frozen=True)
class SharedSlots:
    """A buffer of slots over the drive."""

    slots: int
    gatherers: int
    """How many gather at a time, at most."""
    reuse: Literal["lookahead", "frequency", "lru"] = "lookahead"
    """Whose slots are reused first."""
    prefetch: bool = True
    """Rows that a sampled batch will want are loaded with those whose pages they share."""
    view: bool = False
    """Batches have the slots of their rows in place of x."""
    over: DriveRows = DRIVE

    def with_most_slots(self, context: Context, room: int) -> SharedSlots:
        """As many slots as fit, up to one per node; at least as many as there are."""
        low, high = self.slots, context.graph.num_nodes
        while low < high:
            middle = (low + high + 1) // 2
            if sum(charge.bytes for charge in self._with(middle).charges(context)) <= room:
                low = middle
            else:
                high = middle - 1
        return self._with(low)

    def _with(self, slots: int) -> SharedSlots:
        return replace(self, slots=slots)

    def shape(self, context: Context) -> RowShape:
        shape = row_shape(context)
        rows = context.graph.rows
        if rows is None or not self.view:
            return shape
        if rows.name != "float32":
            raise OptionError(
                f"{context.graph.name}: x=slots needs rows stored as float32 (got {rows.name}); "
                "others are decoded on the way into x"
            )
        return replace(shape, held="slots")

    def charges(self, context: Context) -> Sequence[Charge]:
        graph, wanted = context.graph, self.gatherers * context.batch.nodes
        filled = min(self.slots, wanted)
        # Claims are kept as long as slots are held.
        claimed = self.slots if self.view else filled
        buffer = FeatureBuffer.memory_bytes(
            graph.num_nodes, self.slots, graph.row_bytes, counted=self.reuse != "lru"
        )
        lists = wanted * _ORDER_BYTES + claimed * _CLAIM_BYTES + filled * _LOAD_BYTES
        return [
            Charge("feature buffer", buffer),
            Charge("extraction", lists),
            *self.over.charges(context),
        ]

    def part_rows(self, gatherers: int) -> int:
        """How many slots a part of a batch may hold.

        Together, gatherers never want more slots than there are: no number of slots is too small.
        """
        most = self.slots // (gatherers * _PARTS_AT_ONCE)
        if self.reuse != "lru":  # in the order of use, parts would push out what the next one needs
            most = min(max(int(most * _PARTS_SHARE), _LEAST_PART), most)
        return max(most, 1)

    def open(self, on: Resources) -> RowSource:
        return SharedRows(self, on)


class SharedRows(RowSource):
    """The buffer, and who may wait for its slots."""

    def __init__(self, part: SharedSlots, on: Resources) -> None:
        self.below: DriveSource = part.over.open(on)
        self._part, self._store, self._maker = part, on.store, on.maker
        self.expects, self.reserves = part.reuse == "lookahead", part.view
        self.part_rows = part.part_rows(on.gatherers)
        self.buffer: FeatureBuffer | None = None

    def load(self) -> None:
        part, features = self._part, self.below.features
        self.buffer = FeatureBuffer(
            self._store.num_nodes,
            part.slots,
            features.encoding.row_bytes,
            counted=part.reuse != "lru",
            layout=features.layout if part.prefetch else None,
            shown=part.view,
        )

    def worker(self, copier: _core.Copier, meter: Meter) -> RowWorker:
        assert self.buffer is not None, "closed, or not loaded"
        if self._part.view:
            return _Slots(self.below, self.buffer, meter)
        return _CopyWorker(self.below, self.buffer, self.part_rows, copier, meter)

    def expect(self, nodes: Ids) -> _core.Expected | None:
        buffer = self.buffer
        return None if buffer is None else buffer.expect(nodes)

    def reserve(self, batch: Batch, hint: Any, admission: Admission) -> None:
        """Slots, or rows of its own where all slots are held and the loop waits."""
        if self.buffer is not None and isinstance(batch.rows, SlotView):
            _reserve(self.buffer, self._maker, batch.n_id, batch.rows, hint, admission)

    @property
    def facts(self) -> dict[str, Any]:
        return {
            "slots": self._part.slots,
            "part_rows": None if self._part.view else self.part_rows,
        }

    def close(self) -> None:
        self.buffer = None


def _reserve(
    buffer: FeatureBuffer,
    maker: BatchMaker,
    n_id: Ids,
    rows: SlotView,
    hint: Any,
    admission: Admission,
) -> None:
    order = np.argsort(n_id, kind="stable")
    nodes = n_id[order]
    wanted = int(np.count_nonzero(np.diff(nodes))) + min(len(nodes), 1)
    own_bytes = len(nodes) * buffer.rows.shape[1]
    if wanted > buffer.num_slots:
        if maker.strict:
            raise BudgetError(
                f"a batch of {wanted} nodes needs as many slots, more than the "
                f"{buffer.num_slots} that memory= leaves for rows; give more, or make batches "
                "smaller"
            )
        rows.give_rows(maker.take(own_bytes, admission.closed, admission.awaited))
        return

    def why() -> str:
        held = buffer.num_slots - buffer.num_standby
        return (
            f"the next batch needs {wanted} slots, and {held} of {buffer.num_slots} are held "
            "by batches that are still referenced"
        )

    def claimed(seconds: float) -> bool | None:
        rows.claim = buffer.reserve(nodes, seconds, hint)
        return None if rows.claim is None else True

    def given() -> bool:
        rows.give_rows(maker.overdraft.beyond([own_bytes])[0])
        return True

    maker.overdraft.wait(
        claimed,
        given,
        maker.pool.charged_bytes(own_bytes),
        admission.closed,
        admission.awaited,
        why,
    )
    if rows.claim is not None:
        rows.index[order] = rows.claim.slots


class _Slots(RowWorker):
    """Fills slots. Not thread-safe, apart from `cancel`; all workers share the buffer."""

    def __init__(self, below: DriveSource, buffer: FeatureBuffer, meter: Meter) -> None:
        self._below = below
        self._buffer = buffer
        self._meter = meter
        self._reading: set[Pending] = set()
        self._cancelled = threading.Event()

    def start(self, request: RowRequest) -> RowFill:
        """Fills the slots that a batch has reserved; or rows of its own where it has none."""
        assert isinstance(request.held, SlotView)
        self._fill(request.ids, request.held)
        return DONE

    def _fill(self, n_id: Ids, rows: SlotView) -> None:
        claim, rows.claim = rows.claim, None
        if claim is None:
            assert rows.buffer is not None
            order = np.argsort(n_id, kind="stable")
            self._read(n_id[order], order, rows.buffer.view(np.uint8))
            self._meter.fetch(len(order))
            return
        self._buffer.fill(claim, self._read, self._cancelled.is_set)
        rows.buffer = self._buffer.hold(claim)
        self._count(claim, len(n_id))

    def _count(self, claim: _core.Claim, rows: int) -> None:
        """Rows found there, rows that one read brought for two, and rows that were read."""
        self._meter.hit("buffer", claim.found)
        self._meter.hit("shared", claim.shared)
        self._meter.fetch(rows - claim.found - claim.shared)

    def _read(
        self,
        nodes: NDArray[np.int64],
        slots: NDArray[np.int64],
        rows: NDArray[np.uint8] | None = None,
    ) -> None:
        """Rows -> slots of the buffer, or places in `rows`."""
        reading = self._below.read(nodes, self._buffer.rows if rows is None else rows, slots)
        self._reading.add(reading)
        try:
            if self._cancelled.is_set():  # perhaps before there was anything to cancel
                reading.cancel()
            reading.wait()
        finally:
            self._reading.discard(reading)

    def cancel(self) -> None:
        self._cancelled.set()
        for reading in list(self._reading):
            reading.cancel()


class _CopyWorker(_Slots):
    """The same rows, copied into x."""

    def __init__(
        self,
        below: DriveSource,
        buffer: FeatureBuffer,
        part_rows: int,
        copier: _core.Copier,
        meter: Meter,
    ) -> None:
        super().__init__(below, buffer, meter)
        self._part_rows = part_rows
        self._copier = copier
        self._copying = threading.Lock()

    def start(self, request: RowRequest) -> RowFill:
        # Ascending, so that the drive sees one forward sweep and neighbours are read together;
        # where a request goes in parts, so do they.
        order = np.argsort(request.ids, kind="stable")
        nodes = request.ids[order]
        places = order if request.x_rows is None else request.x_rows[order].astype(np.int64)

        def extract(begin: int) -> None:
            part = slice(begin, begin + self._part_rows)
            self._extract(request, nodes[part], places[part])

        begins = range(0, len(nodes), self._part_rows)
        parts = ordered_map(extract, begins, threads=_PARTS_AT_ONCE)
        for _ in parts if len(begins) > 1 else map(extract, begins):
            pass
        return DONE

    def _extract(self, request: RowRequest, nodes: Ids, places: Ids) -> None:
        claim = self._buffer.claim(nodes, self._read, self._cancelled.is_set, request.hint)
        try:
            with self._copying, self._meter.span("copy", within="gather"):
                self._copier.gather(self._buffer.rows, claim.slots, request.x, places)
        finally:
            claim.release()
        self._count(claim, len(nodes))
