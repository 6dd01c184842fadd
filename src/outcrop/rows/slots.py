"""Rows in slots of memory, over a slower source: chosen once, or by a script of each window."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from outcrop import _core
from outcrop.disk import aligned_empty, reading_bytes
from outcrop.layout.savings import KIND as SAVINGS
from outcrop.layout.savings import Savings, savings_inputs
from outcrop.layout.trace import TraceReader
from outcrop.memory.batches import RowRequest, RowShape
from outcrop.memory.charges import PREPARATION, Charge, Phase
from outcrop.memory.context import Context
from outcrop.observe.meter import Meter
from outcrop.rows.drive import DRIVE, DriveRows, DriveSource
from outcrop.rows.policy import (
    Belady,
    BeladyTables,
    Changes,
    Lru,
    Plan,
    Policy,
    Static,
)
from outcrop.rows.source import (
    Resources,
    RowFill,
    RowSource,
    RowsPart,
    RowWorker,
    Script,
    ScriptedRows,
    Stop,
    passed_on,
)
from outcrop.sample.seeds import Ids
from outcrop.store.arrays import WRITE_BUFFER_BYTES
from outcrop.store.degrees import choosing_bytes, most_out_edges, out_degrees
from outcrop.store.store import FeatureRows

TIER = "cache"
PolicyName = Literal["belady", "static", "saved", "lru"]
_POLICIES: dict[PolicyName, type[Policy]] = {
    "belady": Belady, "lru": Lru, "static": Static, "saved": Static,
}  # fmt: skip
_NEVER_CHANGE = ("static", "saved")
# Read at a time while a cache is filled: enough requests to keep the drive's queue full.
_FILL_ROWS = 1 << 16
# Per slot: nodes and slots, sorted, and the reader's copies of both.
_FILL_BYTES = 40
# Of a large graph, windows that touch more than a quarter of it are planned in parts: a byte per
# node is a quarter of a table of all. And those that would take more than such a share of memory.
_TOUCHED_SHARE = 1 / 4
_TABLE_SHARE = 1 / 16
# What an Appender takes, and what reads its file back.
_SPILL_BYTES = 2 * WRITE_BUFFER_BYTES


# Chosen once


@dataclass(frozen=True)
class StaticSlots:
    """The rows of the nodes with the most out-edges (PaGraph)."""

    slots: int
    over: RowsPart = DRIVE
    skipped: int = 0
    """Nodes with still more out-edges, whose rows a tier above has."""

    @classmethod
    def within(cls, context: Context, room: int, over: RowsPart = DRIVE) -> StaticSlots:
        """As many as fit, with the table that finds them."""
        slot, nodes = cls.slot_bytes(context), context.graph.num_nodes
        room -= cls.table_bytes(context, min(max(room, 0) // slot, nodes))
        return cls(min(max(room, 0) // slot, nodes), over)

    @staticmethod
    def slot_bytes(context: Context) -> int:
        """A row, and its node in the list of them."""
        return context.graph.row_bytes + Static.slot_bytes

    @staticmethod
    def table_bytes(context: Context, slots: int) -> int:
        return _core.StaticSlots.bytes(context.graph.num_nodes, slots)

    def shape(self, context: Context) -> RowShape:
        return self.over.shape(context)

    def charges(self, context: Context) -> Sequence[Charge]:
        return [
            Charge("feature cache", self.slots * self.slot_bytes(context)),
            Charge("table of rows", self.table_bytes(context, self.slots)),
            *choosing(context, self.slots),
            *self.over.charges(context),
        ]

    def open(self, on: Resources) -> RowSource:
        return _Static(on, self, self.over.open(on))


class _Static(RowSource):
    def __init__(self, on: Resources, part: StaticSlots, below: RowSource) -> None:
        self.below, self.expects = below, below.expects
        # Now: while nodes are chosen there is memory for a number per node.
        degrees = out_degrees(on.store, on.progress)
        self._nodes = most_out_edges(degrees, part.skipped + part.slots)
        if part.skipped:
            above = most_out_edges(degrees, part.skipped)
            self._nodes = np.setdiff1d(self._nodes, above, assume_unique=True)
        del degrees
        self._store = on.store
        below.beneath(self)

    def load(self) -> None:
        super().load()
        self._policy = Static(self._store.num_nodes, self._nodes)
        self._memory = aligned_empty((max(len(self._nodes), 1), self._store.encoding.row_bytes))
        fill(self._store.features, self._memory, self._nodes)

    def passes_on(self, nodes: Ids) -> Ids:
        return nodes[self._policy.look_up(nodes) < 0]

    def worker(self, copier: _core.Copier, meter: Meter) -> RowWorker:
        assert self.below is not None
        below = self.below.worker(copier, meter)
        return _StaticWorker(self._memory, self._policy, below, copier, meter)

    def close(self) -> None:
        super().close()
        self._memory = np.empty((0, 0), np.uint8)


class _StaticWorker(RowWorker):
    def __init__(
        self,
        memory: NDArray[np.uint8],
        policy: Static,
        below: RowWorker,
        copier: _core.Copier,
        meter: Meter,
    ) -> None:
        self._memory, self._policy, self._below = memory, policy, below
        self._copier, self._meter = copier, meter

    def start(self, request: RowRequest) -> RowFill:
        slots = self._policy.look_up(request.ids)
        return _start(request, slots, self._memory, self._below, self._copier, self._meter)

    def cancel(self) -> None:
        self._below.cancel()


def _start(
    request: RowRequest,
    slots: NDArray[np.int32],
    memory: NDArray[np.uint8],
    below: RowWorker,
    copier: _core.Copier,
    meter: Meter,
) -> RowFill:
    """Rows that are in no slot are on their way while the others are copied."""
    rest = request.without(slots >= 0)
    flying = below.start(rest)
    try:
        copier.gather(memory, slots, request.x, request.x_rows)
    except BaseException:
        flying.finish()  # nothing may arrive in memory that is somebody else's
        raise
    meter.hit(TIER, len(slots) - len(rest.ids))
    return flying


# By a script


@dataclass(frozen=True)
class PlannedSlots:
    """What is in which slot is decided ahead, for a window of batches; other rows are below.

    A batch changes what the next one finds: they are gathered one by one, in their order.
    """

    bytes: int
    """What rows take, and what their policy keeps of each."""
    policy: PolicyName = "belady"
    refilled: bool = False
    """Emptied after each window, for others who use the memory meanwhile."""
    region: str | None = None
    """The name of that memory."""
    over: DriveRows = DRIVE
    """Rows of packs or of an array cannot enter: they are of one batch, or there already."""

    @property
    def making_region(self) -> None:
        """Windows are made in other memory: neighbour lists have its own meanwhile."""

    def slot_bytes(self, context: Context) -> int:
        """A cached row, and what its policy keeps of it."""
        own = _policy_bytes(self.policy, refilled=self.refilled)
        return max(context.graph.row_bytes, 1) + own

    def slots(self, context: Context) -> int:
        return self.bytes // self.slot_bytes(context)

    def memory_bytes(self, context: Context) -> int:
        """What rows alone take: others may use it meanwhile."""
        policy = self.slots(context) * _policy_bytes(self.policy, refilled=self.refilled)
        return max(self.bytes - policy, 1)

    def shape(self, context: Context) -> RowShape:
        return self.over.shape(context)

    def charges(self, context: Context) -> Sequence[Charge]:
        when = Phase.LOOP if self.region else Phase.RUN
        cache = Charge("feature cache", self.bytes, when, self.region)
        return [cache, *self.beside(context)]

    def beside(self, context: Context) -> Sequence[Charge]:
        """All but the slots."""
        nodes, chosen = context.batch.nodes, list[Charge]()
        if self.policy == "static":
            chosen = choosing(context, self.slots(context))
        # Changes that are in use and ahead, and lists of misses.
        return [
            Charge("changes of the cache", (4 * 12 + 3 * 8) * nodes),
            Charge("table of rows", 0 if self.policy == "belady" else self._table_bytes(context)),
            *chosen,
            *self.over.charges(context),
        ]

    def _table_bytes(self, context: Context) -> int:
        num_nodes, slots = context.graph.num_nodes, self.slots(context)
        if self.policy in _NEVER_CHANGE:
            return _core.StaticSlots.bytes(num_nodes, slots)
        return _core.node_table_bytes(num_nodes, min(slots, num_nodes))

    def planning_bytes(self, context: Context, batches: int) -> int:
        """What deciding for a window takes, and gives back; for a longer one than there is room
        for, what deciding for a part of it takes."""
        nodes = context.batch.nodes
        # Up to three spills are written and read; node ids are scanned, beside what is made of
        # them.
        kept = context.epochs is not None and not self.refilled
        scanning = (3 if kept else 2) * _SPILL_BYTES + 3 * 4 * nodes + 5 * 8 * nodes
        if self.policy != "belady":
            return scanning
        num_nodes, slots = context.graph.num_nodes, self.slots(context)
        most = self.most_touched(context)
        return scanning + BeladyTables.of(num_nodes, slots, batches * nodes, most).bytes

    def most_touched(self, context: Context) -> int:
        """Different nodes that are planned together where tables are of those alone.

        Two of the largest batches at least: there is something ahead, then.
        """
        in_memory = context.memory_bytes * _TABLE_SHARE / 4
        most = min(context.graph.num_nodes * _TOUCHED_SHARE, in_memory)
        return max(int(most), 2 * context.batch.nodes)

    def script_bytes(self, context: Context) -> int:
        """What a batch's script takes on disk: next uses, and changes."""
        return 16 * context.batch.nodes

    def open(self, on: Resources) -> RowSource:
        return PlannedRows(self, on)


class PlannedRows(ScriptedRows):
    """Slots whose rows change from batch to batch."""

    def __init__(self, part: PlannedSlots, on: Resources) -> None:
        self.below: DriveSource = part.over.open(on)
        self._part, self._store = part, on.store
        self._slots, self._most_touched = part.slots(on.context), part.most_touched(on.context)
        self._above: list[RowSource] = []
        self._hottest: Ids | None = None
        if part.policy == "static":
            # Now: while nodes are chosen there is memory for a number per node.
            self._hottest = most_out_edges(out_degrees(on.store, on.progress), self._slots)
        elif part.policy == "saved":
            self._hottest = _most_saved(on, self._slots)
        self._memory = aligned_empty(part.memory_bytes(on.context))

    @property
    def shared_memory(self) -> NDArray[np.uint8] | None:
        return self._memory if self._part.region is not None else None

    def beneath(self, above: RowSource) -> None:
        self._above.append(above)

    @cached_property
    def _policy(self) -> Policy:
        nodes, keeps = self._store.num_nodes, not self._part.refilled
        if self._hottest is not None:
            return Static(nodes, self._hottest, keeps=keeps)
        if self._part.policy == "lru":
            return Lru(nodes, self._slots, keeps=keeps)
        return Belady(nodes, self._slots, keeps=keeps, most_touched=self._most_touched)

    @property
    def _rows(self) -> NDArray[np.uint8]:
        """The memory as rows, [slots, row bytes]."""
        row_bytes = self._store.encoding.row_bytes
        return self._memory[: self._slots * row_bytes].reshape(self._slots, row_bytes)

    def worker(self, copier: _core.Copier, meter: Meter) -> RowWorker:
        return _PlannedWorker(self._rows, self.below.worker(copier, meter), copier, meter)

    def script(
        self,
        trace: TraceReader,
        folder: Path,
        first: int,
        last: int,
        ends: Collection[int],
        stop: Stop,
    ) -> Script:
        if self._part.refilled:  # nothing of it is there any more
            ends = ()
        nodes, disk = passed_on(trace, self._above), self._store.disk
        return self._policy.plan(nodes, disk, folder, first=first, last=last, ends=ends, stop=stop)

    def switch(self, script: Script) -> None:
        assert isinstance(script, Plan)
        fill(self.below.features, self._rows, *script.take_fill())

    def restore(self, contents: Ids | None) -> None:
        self._policy.restore(contents)

    def close(self) -> None:
        self.__dict__.pop("_policy", None)
        self._memory = np.empty(0, np.uint8)


def _most_saved(on: Resources, slots: int) -> Ids:
    """Those that are in most batches of a profile, which was made for the plan (OUTRE)."""
    context = on.context
    inputs = savings_inputs(context.sampling, context.seeds, context.staleness)
    layout = on.store.derived.find(SAVINGS, inputs)
    assert layout is not None, "planned without a profile"
    with Savings(on.store.disk, layout) as savings:
        return savings.feature_nodes(slots)


class _PlannedWorker(RowWorker):
    def __init__(
        self, rows: NDArray[np.uint8], below: RowWorker, copier: _core.Copier, meter: Meter
    ) -> None:
        self._rows, self._below, self._copier, self._meter = rows, below, copier, meter

    def start(self, request: RowRequest) -> RowFill:
        changes: Changes | None = request.record
        if changes is None:
            return self._below.start(request)
        flying = _start(request, changes.slots, self._rows, self._below, self._copier, self._meter)
        return _Entering(flying, request, changes, self)

    def enter(self, request: RowRequest, changes: Changes) -> None:
        """Rows of a request that were read -> slots."""
        positions = changes.in_positions
        if request.x_rows is not None:
            positions = request.x_rows[positions].astype(np.uint32)
        with self._meter.span("cache update", within="gather"):
            self._copier.update(request.stored, positions, self._rows, changes.in_slots)

    def cancel(self) -> None:
        self._below.cancel()


class _Entering:
    """First all rows are there, then some enter: a slot may be one that this batch still reads."""

    def __init__(
        self, flying: RowFill, request: RowRequest, changes: Changes, worker: _PlannedWorker
    ) -> None:
        self._flying, self._request = flying, request
        self._changes, self._worker = changes, worker

    def finish(self) -> None:
        self._flying.finish()
        self._worker.enter(self._request, self._changes)


# Both


def fill(
    features: FeatureRows,
    memory: NDArray[np.uint8],
    nodes: NDArray[np.int64],
    slots: NDArray[np.int64] | None = None,
) -> None:
    """Reads rows of `nodes` (ascending) into slots; None: one after the other."""
    for first in range(0, len(nodes), _FILL_ROWS):  # each read has copies of ids and slots
        some = nodes[first : first + _FILL_ROWS]
        last = first + len(some)
        places = np.arange(first, last) if slots is None else slots[first:last]
        features.start_read(some, memory, places).wait()


def choosing(context: Context, slots: int) -> list[Charge]:
    """What choosing rows takes; the list of them is there while others prepare, too."""
    graph = context.graph
    reading = reading_bytes(graph.array_bytes("indices"))
    steps = reading + choosing_bytes(graph.num_nodes, 0)
    return [
        Charge("choosing rows", steps, Phase.PREPARE, PREPARATION),
        Charge("chosen rows", Static.slot_bytes * min(slots, graph.num_nodes), Phase.PREPARE),
    ]


def _policy_bytes(policy: PolicyName, *, refilled: bool) -> int:
    """What it keeps per slot; where slots are filled before a window, also what goes where."""
    filled = refilled or policy in _NEVER_CHANGE
    return _POLICIES[policy].slot_bytes + filled * _FILL_BYTES
