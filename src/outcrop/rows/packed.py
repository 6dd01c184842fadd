"""Rows that were packed ahead: those that are not cached come in sequence from a batch's chunk.

A bottom with a cache of its own, since one plan (layout/pack/plan.py) decides who is cached, on the
device of batches and in memory, and who is packed; its tables say where each row of a batch is.
Batches without one are looked up in the cache, and the rest of their rows read one by one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from outcrop import _core
from outcrop.disk import READ_BLOCK_BYTES, Pending, aligned_empty
from outcrop.errors import CorruptError
from outcrop.layout.pack.reader import (
    Pack,
    Rows,
    Table,
    block_bytes,
    shared_memory_bytes,
)
from outcrop.memory.batches import RowIndex, RowRequest, RowShape
from outcrop.memory.charges import Charge
from outcrop.memory.context import Context
from outcrop.observe.meter import Meter
from outcrop.rows.drive import DRIVE, DriveRows
from outcrop.rows.source import (
    DONE,
    Resources,
    RowFill,
    RowSource,
    RowWorker,
    row_shape,
)
from outcrop.sample.seeds import Ids
from outcrop.store.derived import advised
from outcrop.store.store import FeatureRows
from outcrop.threads.parallel import cpu_count

CPU_CACHE = "cpu cache"
StoredRows = NDArray[np.uint8]
_CACHED_ID_BYTES = 8
# What a batch without a table takes per node while its rows are looked up, in each cache.
_LOOKUP_BYTES = 32
# In flight at a time; store/arrays.py has as many of sequential reads.
_BLOCKS = 4


@dataclass(frozen=True)
class PackedTiers:
    """A cache of rows that most prepared batches want, over chunks of the others."""

    cache_rows: int
    gatherers: int = 1
    packed: bool = True
    """Whether rows that are not cached are packed; else they are read from the features."""
    otherwise: DriveRows = DRIVE
    """What reads rows that are neither cached nor packed."""

    @staticmethod
    def cached_row_bytes(context: Context) -> int:
        """In memory: a row, its node, and whether that is on the device."""
        return context.graph.row_bytes + _CACHED_ID_BYTES + bool(context.above.device_rows)

    def shape(self, context: Context) -> RowShape:
        return row_shape(context)

    def charges(self, context: Context) -> Sequence[Charge]:
        return [
            Charge(CPU_CACHE, self.cache_rows * self.cached_row_bytes(context)),
            Charge("chunks", self.gatherers * self.gatherer_bytes(context)),
            *self.otherwise.charges(context),
        ]

    def gatherer_bytes(self, context: Context) -> int:
        """What gathering a batch takes: blocks of its chunk, and its table or what replaces it."""
        nodes, row_bytes = context.batch.nodes, context.graph.row_bytes
        table = 8 * nodes
        on_device = bool(context.above.device_rows)
        own = block_bytes(nodes * row_bytes) + (1 + on_device) * _LOOKUP_BYTES * nodes
        if on_device and context.above.verify_rows:  # x comes back from there
            own += nodes * context.graph.x_row_bytes
        if context.disk.given_bytes is None:
            return own + table
        return max(own, shared_memory_bytes(nodes, row_bytes)) + table

    def open(self, on: Resources) -> RowSource:
        return PackedRows(self, on)


class PackedRows(RowSource):
    """Cache and chunks of the pack that is current."""

    def __init__(self, part: PackedTiers, on: Resources) -> None:
        self._part, self._on = part, on
        self._features = part.otherwise.open(on).features
        self._pack: Pack | None = None
        self._cache = np.empty(0, np.uint8)

    def turn_to(self, pack: Pack | None) -> None:
        """Loads the cache of a pack; nothing is gathered meanwhile. None: it is empty."""
        for _ in self.turning_to(pack):
            pass

    def turning_to(self, pack: Pack | None) -> Iterator[StoredRows]:
        """The same, step by step: the rows that belong onto the device, some at a time."""
        self._pack, self._cache = None, np.empty(0, np.uint8)  # first: there is memory for one
        if pack is None:
            return
        cache, done = aligned_empty(len(pack.cached) * pack.row_bytes), 0
        for kept, on_device in pack.cache_blocks():
            cache[done : done + kept.size] = kept.reshape(-1)
            done += kept.size
            yield on_device
        self._pack, self._cache = pack, cache

    def is_at(self, pack: Pack) -> bool:
        return self._pack is pack

    @property
    def threads(self) -> int:
        return -(-cpu_count() // self._on.gatherers)

    @property
    def found_by_node(self) -> Ids:
        """Nodes whose rows batches without a table find in the cache: those of its slots."""
        return np.empty(0, np.int64) if self._pack is None else self._pack.cached

    @property
    def current(self) -> tuple[Pack, NDArray[np.uint8]]:
        """The pack, and its cache."""
        assert self._pack is not None, "closed, or not loaded"
        return self._pack, self._cache

    def worker(self, copier: _core.Copier, meter: Meter) -> RowWorker:
        return PackWorker(self, self._features, copier, meter)

    def close(self) -> None:
        self.turn_to(None)


@dataclass(frozen=True)
class _Told:
    """Batch t of the pack, and where its rows are that no tier above has."""

    t: int
    table: Table


class PackWorker(RowWorker):
    """Gathers batches of the pack that is current."""

    def __init__(
        self, source: PackedRows, features: FeatureRows, copier: _core.Copier, meter: Meter
    ) -> None:
        self._source = source
        self._features = features
        self._copier = copier
        self._meter = meter

    def divide(self, request: RowRequest) -> tuple[RowIndex, RowIndex, Any] | None:
        if request.record is None:
            return None
        pack, _ = self._source.current
        try:
            table = pack.table(request.record)
        except CorruptError as error:
            raise advised(error, pack.folder) from error
        rows, slots, rest = table.split(len(pack.device))
        return rows, slots, _Told(request.record, rest)

    def start(self, request: RowRequest) -> RowFill:
        """`request.record`: the batch's number in the pack."""
        assert request.x_rows is None, "only a device's tier is above, which has its own input"
        cached = self._look_up(request) if request.record is None else self._gather(request)
        self._meter.hit(CPU_CACHE, cached)
        self._meter.fetch(len(request.ids) - cached)
        return DONE

    def cancel(self) -> None:
        """Copying is cancelled with the copier, and a chunk is read in blocks."""

    def _look_up(self, request: RowRequest) -> int:
        """A batch without a table -> rows that were cached."""
        ids, x, cached = request.ids, request.x, self._source.found_by_node
        order = np.argsort(ids, kind="stable")
        ids, rows = ids[order], order.astype(np.uint32)
        hit = np.zeros(len(ids), bool)
        if len(cached):
            slots = np.searchsorted(cached, ids)
            slots[slots == len(cached)] = 0
            hit = cached[slots] == ids
            self._copier.gather(self._source.current[1], slots[hit], x, rows[hit])
        self._read(ids[~hit], rows[~hit], x)
        return int(np.count_nonzero(hit))

    def _gather(self, request: RowRequest) -> int:
        """The same of a batch of the pack."""
        pack, cache = self._source.current
        try:
            told = request.record
            if not isinstance(told, _Told):
                told = _Told(told, pack.table(told))
            return self._gather_told(request, told, pack, cache)
        except CorruptError as error:
            raise advised(error, pack.folder) from error

    def _gather_told(
        self, request: RowRequest, told: _Told, pack: Pack, cache: NDArray[np.uint8]
    ) -> int:
        """Where the pack has no chunks, rows are read one by one."""
        copier, x, t, table = self._copier, request.x, told.t, told.table
        if pack.packed:
            stream = copier.stream(table.packed_rows, x)
            blocks = pack.blocks(t)
            chunks = segments = 0
            for block in islice(blocks, 1):  # from now on, others are being read
                stream.feed(block)
                chunks += len(block)
            copier.gather(cache, table.cached_slots, x, table.cached_rows)
            for block in blocks:
                stream.feed(block)
                chunks += len(block)
            for shared in pack.shared_blocks(t, table):
                copier.gather_at(shared.data, shared.offsets, shared.rows, x)
                segments += shared.read_bytes
            wanted = (len(table.packed_rows) + len(table.shared_rows)) * pack.row_bytes
            self._meter.read("chunks", chunks)
            self._meter.read("segments", segments)
            self._meter.pad(chunks + segments - wanted)
        else:
            copier.gather(cache, table.cached_slots, x, table.cached_rows)
            self._read(request.ids[table.packed_rows], table.packed_rows, x)
        copier.copy(table.copied_from, table.copied_rows, x)
        return len(table.cached_rows)

    def _read(self, ids: Ids, rows: Rows, x: NDArray[np.float32]) -> None:
        """Nodes `ids`, ascending -> x[rows], in blocks, several of them in flight."""
        row_bytes = self._features.encoding.row_bytes
        step = max(1, min(READ_BLOCK_BYTES // row_bytes, len(ids)))
        stream = self._copier.stream(rows, x)
        free = [aligned_empty((step, row_bytes)) for _ in range(_BLOCKS)]
        flying: deque[tuple[Pending, NDArray[np.uint8], int]] = deque()
        for begin in range(0, len(ids), step):
            wanted = ids[begin : begin + step]
            memory = free.pop()
            pending = self._features.start_read(wanted, memory[: len(wanted)])
            flying.append((pending, memory, len(wanted)))
            if not free:
                free.append(_feed_first(flying, stream))
        while flying:
            _feed_first(flying, stream)


def _feed_first(
    flying: deque[tuple[Pending, NDArray[np.uint8], int]], stream: _core.RowStream
) -> NDArray[np.uint8]:
    pending, memory, count = flying.popleft()
    pending.wait()
    stream.feed(memory[:count].reshape(-1))
    return memory
