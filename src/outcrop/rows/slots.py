"""Rows in slots of memory, over the drive: chosen once (static), or by a script of each window."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

import numpy as np
from numpy.typing import NDArray

from outcrop import _core
from outcrop.batch import Prepared, RowShape
from outcrop.cache.policy import (
    Belady,
    Changes,
    Lru,
    Plan,
    Policy,
    Static,
    choosing_bytes,
    most_out_edges,
)
from outcrop.disk import aligned_empty
from outcrop.meter import Meter
from outcrop.parallel import cpu_count
from outcrop.plan.charges import Charge, Phase
from outcrop.rows.drive import read_all
from outcrop.rows.source import (
    ENCODINGS,
    Resources,
    RowSource,
    RowWorker,
    Script,
    Stop,
    row_shape,
)
from outcrop.sample.seeds import Ids
from outcrop.sample.topology import PREPARATION
from outcrop.sample.trace import TraceReader
from outcrop.store.arrays import WRITE_BUFFER_BYTES, reading_bytes
from outcrop.store.degrees import out_degrees
from outcrop.store.store import FeatureRows

if TYPE_CHECKING:
    from outcrop.plan.context import Context

PolicyName = Literal["belady", "static", "lru"]
_POLICIES: dict[PolicyName, type[Policy]] = {"belady": Belady, "lru": Lru, "static": Static}
# Read at a time while a cache is filled: enough requests to keep the drive's queue full.
_FILL_ROWS = 1 << 16
# Per slot: nodes and slots, sorted, and the reader's copies of both.
_FILL_BYTES = 40
_USUAL_UNIT = 4096
# What an Appender takes, and what reads its file back.
_SPILL_BYTES = 2 * WRITE_BUFFER_BYTES


# Chosen once


@dataclass(frozen=True)
class StaticSlots:
    """The rows of the nodes with the most out-edges (PaGraph), the others from the drive."""

    slots: int

    @classmethod
    def within(cls, context: Context, room: int) -> StaticSlots:
        """As many as fit, their table aside."""
        return cls(min(room // cls.slot_bytes(context), context.graph.num_nodes))

    @staticmethod
    def slot_bytes(context: Context) -> int:
        """A row, and its node in the list of them."""
        return context.graph.row_bytes + Static.slot_bytes

    @staticmethod
    def table_bytes(context: Context, slots: int) -> int:
        return _core.node_table_bytes(context.graph.num_nodes, slots)

    def shape(self, context: Context) -> RowShape:
        return row_shape(context, staged=True)

    def charges(self, context: Context) -> Sequence[Charge]:
        return [
            Charge("feature cache", self.slots * self.slot_bytes(context)),
            Charge("table of rows", self.table_bytes(context, self.slots)),
            *_choosing(context, self.slots),
        ]

    def open(self, on: Resources) -> RowSource:
        return _Static(on, self.slots)


class _Static(RowSource):
    def __init__(self, on: Resources, slots: int) -> None:
        # First: while nodes are chosen there is memory for a number per node.
        self._nodes = most_out_edges(out_degrees(on.store, on.progress), slots)
        self._store = on.store

    def load(self) -> None:
        self._policy = Static(self._store.num_nodes, self._nodes)
        self._memory = aligned_empty((max(len(self._nodes), 1), self._store.encoding.row_bytes))
        SlotRows(self._store.features, self._memory, 1).fill(self._nodes)

    def worker(self, meter: Meter) -> RowWorker:
        rows = SlotRows(self._store.features, self._memory, cpu_count())
        return _StaticWorker(rows, self._policy, meter)

    def close(self) -> None:
        self._memory = np.empty((0, 0), np.uint8)


class _StaticWorker:
    def __init__(self, rows: SlotRows, policy: Static, meter: Meter) -> None:
        self._rows = rows
        self._policy = policy
        self._meter = meter
        self.cancel = rows.cancel

    def gather(self, batch: Prepared, _: None = None) -> None:
        slots = self._policy.look_up(batch.n_id)
        self._rows.gather(batch, slots)
        _serve(self._meter, slots)
        batch.stored = None  # its memory goes back now


# By a script


@dataclass(frozen=True)
class PlannedSlots:
    """What is in which slot is decided ahead, for a window of batches; other rows are on the drive.

    A batch changes what the next one finds: they are gathered one by one, in their order.
    """

    bytes: int
    """What rows take, and what their policy keeps of each."""
    policy: PolicyName = "belady"
    refilled: bool = False
    """Emptied after each window, for others who use the memory meanwhile."""
    region: str | None = None
    """The name of that memory."""
    unit_bytes: int = _USUAL_UNIT
    """The size of the smallest read of a missing row, and what it is aligned to."""

    @staticmethod
    def slot_bytes(context: Context, policy: PolicyName, *, refilled: bool) -> int:
        """A cached row, and what its policy keeps of it."""
        return max(context.graph.row_bytes, 1) + _policy_bytes(policy, refilled=refilled)

    def _slot_bytes(self, context: Context) -> int:
        return self.slot_bytes(context, self.policy, refilled=self.refilled)

    def slots(self, context: Context) -> int:
        return self.bytes // self._slot_bytes(context)

    def memory_bytes(self, context: Context) -> int:
        """What rows alone take: others may use it meanwhile."""
        policy = self.slots(context) * _policy_bytes(self.policy, refilled=self.refilled)
        return max(self.bytes - policy, 1)

    def shape(self, context: Context) -> RowShape:
        return row_shape(context, staged=True)

    def charges(self, context: Context) -> Sequence[Charge]:
        when = Phase.LOOP if self.region else Phase.RUN
        cache = Charge("feature cache", self.bytes, when, self.region)
        return [cache, *self.beside(context)]

    def beside(self, context: Context) -> Sequence[Charge]:
        """All but the slots."""
        nodes, choosing = context.batch.nodes, list[Charge]()
        if self.policy == "static":
            choosing = _choosing(context, self.slots(context))
        # Changes that are in use and ahead, and lists of misses.
        return [
            Charge("changes of the cache", (4 * 12 + 3 * 8) * nodes),
            Charge("table of rows", 0 if self.policy == "belady" else self._table_bytes(context)),
            Charge("disk engine for rows", self._engine_bytes(context)),
            *choosing,
        ]

    def _engine_bytes(self, context: Context) -> int:
        own = self.unit_bytes != _USUAL_UNIT
        return context.engine.in_units(self.unit_bytes) if own else 0

    def _table_bytes(self, context: Context) -> int:
        slots = min(self.slots(context), context.graph.num_nodes)
        return _core.node_table_bytes(context.graph.num_nodes, slots)

    def planning_bytes(self, context: Context, batches: int) -> int:
        """What deciding for a window takes, and gives back."""
        nodes = context.batch.nodes
        # Up to three spills are written and read; node ids are scanned, beside what is made of
        # them.
        kept = context.epochs is not None and not self.refilled
        scanning = (3 if kept else 2) * _SPILL_BYTES + 3 * 4 * nodes + 5 * 8 * nodes
        if self.policy != "belady":
            return scanning
        slots = min(self.slots(context), context.graph.num_nodes)
        return scanning + Belady.table_bytes(context.graph.num_nodes, slots, batches * nodes)

    def script_bytes(self, context: Context) -> int:
        """What a batch's script takes on disk: next uses, and changes."""
        return 16 * context.batch.nodes

    def open(self, on: Resources) -> RowSource:
        return PlannedRows(self, on)


class PlannedRows(RowSource):
    """Scripts are made one window after the other, and carried out in the same order."""

    def __init__(self, part: PlannedSlots, on: Resources) -> None:
        self._part, self._store = part, on.store
        self._slots = part.slots(on.context)
        self._hottest: Ids | None = None
        if part.policy == "static":
            # First: while nodes are chosen there is memory for a number per node.
            self._hottest = most_out_edges(out_degrees(on.store, on.progress), self._slots)
        self._memory = aligned_empty(part.memory_bytes(on.context))
        self.shared_memory = self._memory if part.region is not None else None

    @cached_property
    def _policy(self) -> Policy:
        nodes, keeps = self._store.num_nodes, not self._part.refilled
        if self._hottest is not None:
            return Static(nodes, self._hottest, keeps=keeps)
        made = cast(type[Belady] | type[Lru], _POLICIES[self._part.policy])
        return made(nodes, self._slots, keeps=keeps)

    def _rows(self, threads: int) -> SlotRows:
        row_bytes, unit = self._store.encoding.row_bytes, self._part.unit_bytes
        features = self._store.features
        if unit != _USUAL_UNIT:
            features = self._store.features_in_units(unit)
        memory = self._memory[: self._slots * row_bytes].reshape(self._slots, row_bytes)
        return SlotRows(features, memory, threads)

    def worker(self, meter: Meter) -> RowWorker:
        return _PlannedWorker(self._rows(cpu_count()), meter)

    def script(
        self,
        trace: TraceReader,
        folder: Path,
        first: int,
        last: int,
        ends: Collection[int],
        stop: Stop,
    ) -> Script:
        """Decides for batches [first, last) of a window.

        `ends`: batches after which its contents are kept. `stop` may raise.
        """
        disk = self._store.disk
        if self._part.refilled:  # nothing of it is there any more
            ends = ()
        return self._policy.plan(trace, disk, folder, first=first, last=last, ends=ends, stop=stop)

    def switch(self, script: Script) -> None:
        """Its contents become those of a window; nothing is gathered meanwhile."""
        assert isinstance(script, Plan)
        self._rows(1).fill(*script.take_fill())

    def restore(self, contents: Ids | None) -> None:
        """Later scripts go on from these contents; None: from an empty cache."""
        self._policy.restore(contents)

    def close(self) -> None:
        self.__dict__.pop("_policy", None)
        self._memory, self.shared_memory = np.empty(0, np.uint8), None


class _PlannedWorker:
    def __init__(self, rows: SlotRows, meter: Meter) -> None:
        self._rows = rows
        self._meter = meter
        self.cancel = rows.cancel

    def gather(self, batch: Prepared, record: Changes | None) -> None:
        if record is None:
            read_all(self._rows.features, batch)
            self._meter.serve(len(batch.n_id))
            return
        self._rows.gather(batch, record.slots)
        _serve(self._meter, record.slots)
        with self._meter.span("cache update", batch.task.batch, within="gather"):
            self._rows.update(batch, record.in_positions, record.in_slots)
        batch.stored = None  # its memory goes back now


# Both


class SlotRows:
    """Rows from slots, and from the drive those that are in none."""

    def __init__(self, features: FeatureRows, memory: NDArray[np.uint8], threads: int) -> None:
        """`memory`: [slots, row bytes], for rows as they are stored."""
        encoding = features.encoding
        self.features = features
        self._memory = memory
        self._core = _core.SlotRows(
            memory, dim=encoding.dim, encoding=ENCODINGS[encoding.name], threads=threads
        )

    def fill(self, nodes: NDArray[np.int64], slots: NDArray[np.int64] | None = None) -> None:
        """Reads rows of `nodes` (ascending) into slots; None: one after the other."""
        for first in range(0, len(nodes), _FILL_ROWS):  # each read has copies of ids and slots
            some = nodes[first : first + _FILL_ROWS]
            last = first + len(some)
            places = np.arange(first, last) if slots is None else slots[first:last]
            self.features.start_read(some, self._memory, places).wait()

    def gather(self, batch: Prepared, slots: NDArray[np.int32]) -> None:
        """`slots`: where each row is; below 0: it is read."""
        assert batch.x is not None
        missing = np.flatnonzero(slots < 0)
        places = missing[np.argsort(batch.n_id[missing])]
        stored = batch.x if batch.stored is None else batch.stored
        pending = self.features.start_read(batch.n_id[places], stored, places)
        try:
            self._core.gather(slots, batch.x)  # while the others are on their way
        finally:
            pending.wait()
        if batch.stored is not None:
            self._core.decode_misses(batch.stored, slots, batch.x)

    def update(
        self, batch: Prepared, positions: NDArray[np.uint32], slots: NDArray[np.uint32]
    ) -> None:
        """Rows of a gathered batch -> slots. They must have been read: not hits."""
        assert batch.x is not None
        source = batch.x.view(np.uint8) if batch.stored is None else batch.stored
        self._core.update(source, positions, slots)

    def cancel(self) -> None:
        """A read under way is waited for: it takes as long as a batch."""
        self._core.cancel()


def _serve(meter: Meter, slots: NDArray[Any]) -> None:
    meter.serve(len(slots), cache=int(np.count_nonzero(slots >= 0)))


def _choosing(context: Context, slots: int) -> list[Charge]:
    """What choosing rows takes; the list of them is there while others prepare, too."""
    graph = context.graph
    reading = reading_bytes(graph.array_bytes("indices"))
    choosing = reading + choosing_bytes(graph.num_nodes, 0)
    return [
        Charge("choosing rows", choosing, Phase.PREPARE, PREPARATION),
        Charge("chosen rows", Static.slot_bytes * min(slots, graph.num_nodes), Phase.PREPARE),
    ]


def _policy_bytes(policy: PolicyName, *, refilled: bool) -> int:
    """What it keeps per slot; where slots are filled before a window, also what goes where."""
    filled = refilled or policy == "static"
    return _POLICIES[policy].slot_bytes + filled * _FILL_BYTES
