"""Rows that were packed ahead: those that are not cached come in sequence from a batch's chunk.

Three tiers, decided by one plan (pack/plan.py): rows on the device of batches, rows in memory, and
packed ones. Batches without a chunk are looked up in both caches, and the rest read one by one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from outcrop import _core
from outcrop.batch import Prepared, RowShape
from outcrop.cache.tiers import Rows
from outcrop.disk import Pending, aligned_empty
from outcrop.errors import OptionError
from outcrop.meter import Meter
from outcrop.pack.chunks import Pack, block_bytes
from outcrop.pack.partial import (
    ASSEMBLY_PIECE_BYTES,
    DEVICE_CACHE,
    assembly_bytes,
    device_row_bytes,
    split_table,
)
from outcrop.pack.segments.rows import shared_memory_bytes
from outcrop.parallel import cpu_count
from outcrop.plan.charges import Charge
from outcrop.rows.source import ENCODINGS, Resources, RowSource, RowWorker, row_shape
from outcrop.sample.seeds import Ids
from outcrop.store.arrays import READ_BLOCK_BYTES
from outcrop.store.derived import advising
from outcrop.store.store import FeatureRows

if TYPE_CHECKING:
    from outcrop.pack.device import DeviceRows
    from outcrop.plan.context import Context

CPU_CACHE = "cpu cache"
_CACHED_ID_BYTES = 8
# What a batch without a table takes per node while its rows are looked up, in each cache.
_LOOKUP_BYTES = 32
# In flight at a time; store/arrays.py has as many of sequential reads.
_BLOCKS = 4


@dataclass(frozen=True)
class PackedTiers:
    """Caches of rows that most prepared batches want, over chunks of the others."""

    cache_rows: int
    device_rows: int = 0
    gatherers: int = 1
    packed: bool = True
    """Whether rows that are not cached are packed; else they are read from the features."""
    one_by_one: bool = False
    """Whether each of those is read by a request of its own."""
    verified: bool = False
    """Whether every row is compared with the store's."""

    @staticmethod
    def cached_row_bytes(context: Context, device_rows: int) -> int:
        """In memory: a row, its node, and whether that is on the device."""
        return context.graph.row_bytes + _CACHED_ID_BYTES + (1 if device_rows else 0)

    def shape(self, context: Context) -> RowShape:
        shape = row_shape(context)
        if not self.device_rows:
            return shape
        return replace(shape, staged_bytes=assembly_bytes(context.graph, context.device))

    def charges(self, context: Context) -> Sequence[Charge]:
        per_row = self.cached_row_bytes(context, self.device_rows)
        engine = context.engine.memory_bytes if self.one_by_one else 0
        return [
            Charge(CPU_CACHE, self.cache_rows * per_row),
            Charge(DEVICE_CACHE, self._device_bytes(context)),
            Charge("chunks", self.gatherers * self.gatherer_bytes(context)),
            Charge("disk engine for rows", engine),
        ]

    def _device_bytes(self, context: Context) -> int:
        """What the host keeps: ids of rows on the device; the rows, too, where that is the CPU."""
        if not self.device_rows:
            return 0
        ids = self.device_rows * (_CACHED_ID_BYTES + 1)
        if context.device != "cpu":
            return ids
        row_bytes = device_row_bytes(context.graph)
        piece = min(ASSEMBLY_PIECE_BYTES, context.batch.nodes * row_bytes)
        return ids + self.device_rows * row_bytes + piece

    def gatherer_bytes(self, context: Context) -> int:
        """What gathering a batch takes: blocks of its chunk, and its table or what replaces it."""
        nodes, row_bytes = context.batch.nodes, context.graph.row_bytes
        table = 8 * nodes
        lookups = 2 if self.device_rows else 1
        own = block_bytes(nodes * row_bytes) + lookups * _LOOKUP_BYTES * nodes
        if self.device_rows and self.verified:  # x comes back from there
            own += nodes * device_row_bytes(context.graph)
        if context.disk.given_bytes is None:
            return own + table
        return max(own, shared_memory_bytes(nodes, row_bytes)) + table

    def open(self, on: Resources) -> RowSource:
        return PackedRows(self, on)


class PackedRows(RowSource):
    """Caches and chunks of the pack that is current."""

    def __init__(self, part: PackedTiers, on: Resources) -> None:
        self._part, self._on = part, on
        # Before preparation: what does not fit there is refused at once.
        self._device = _device_rows(on, part.device_rows)
        self._pack: Pack | None = None
        self._cache = np.empty(0, np.uint8)

    def turn_to(self, pack: Pack | None) -> None:
        """Loads the caches of a pack; nothing is gathered meanwhile. None: they are empty."""
        self._pack, self._cache = None, np.empty(0, np.uint8)  # first: there is memory for one
        if pack is None:
            return
        self._cache = pack.load_cache() if self._device is None else self._device.load(pack)
        self._pack = pack

    def worker(self, meter: Meter) -> RowWorker:
        if self._part.device_rows and self._device is None:
            device = self._on.context.device
            raise OptionError(f"device {device!r} is not there: torch sees no GPU")
        assert self._pack is not None, "closed, or not loaded"
        store, threads = self._on.store, -(-cpu_count() // self._on.gatherers)
        features = store.features_one_by_one() if self._part.one_by_one else store.features
        return _Worker(self._pack, self._cache, features, self._device, threads, meter)

    def close(self) -> None:
        self.turn_to(None)
        self._device = None


def _device_rows(on: Resources, rows: int) -> DeviceRows | None:
    """Room for so many rows; None where there are none, or the run will be on another machine."""
    if not rows:
        return None
    from outcrop.pack.device import DeviceRows, is_here  # torch, which preparation does without

    device = on.context.device
    return DeviceRows(rows, on.store.encoding, device) if is_here(device) else None


class _Worker:
    """Gathers batches of one pack."""

    def __init__(
        self,
        pack: Pack,
        cache: NDArray[np.uint8],
        features: FeatureRows,
        device: DeviceRows | None,
        threads: int,
        meter: Meter,
    ) -> None:
        self._pack = pack
        self._cache = cache
        self._features = features
        self._device = device
        self._meter = meter
        encoding = features.encoding
        self._core = _core.RowAssembler(
            row_bytes=encoding.row_bytes,
            dim=encoding.dim,
            encoding=ENCODINGS[encoding.name],
            threads=threads,
        )
        self.cancel = self._core.cancel

    def gather(self, batch: Prepared, record: int | None) -> None:
        """`record`: its number in the pack."""
        with advising(self._pack.folder):
            cached = self._look_up(batch) if record is None else self._gather_packed(batch, record)
        hits = {CPU_CACHE: cached}
        if batch.on_device:
            hits[DEVICE_CACHE] = batch.on_device
        self._meter.serve(len(batch.n_id), **hits)

    def _look_up(self, batch: Prepared) -> int:
        """A batch without a table -> rows that were cached in memory."""
        assert batch.x is not None
        ids, x, cached = batch.n_id, batch.x, self._pack.cached
        if self._device is not None:
            left = self._device.divide(batch, *self._device.find(ids))
            ids, x = ids[left.host_rows], left.x
        order = np.argsort(ids, kind="stable")
        ids, rows = ids[order], order.astype(np.uint32)
        slots = np.searchsorted(cached, ids)
        slots[slots == len(cached)] = 0
        hit = cached[slots] == ids if len(cached) else np.zeros(len(ids), bool)
        self._core.place(self._cache, slots[hit].astype(np.uint32), rows[hit], x)
        self._read(ids[~hit], rows[~hit], x)
        return int(np.count_nonzero(hit))

    def _gather_packed(self, batch: Prepared, t: int) -> int:
        """The same of batch t of the pack.

        Where the pack has no chunks, rows are read one by one.
        """
        assert batch.x is not None
        pack, left, x, table = self._pack, None, batch.x, self._pack.table(t)
        if self._device is not None:
            rows, slots, table = split_table(table, len(pack.device))
            left = self._device.divide(batch, rows, slots)
            x = left.x
        if pack.packed:
            stream = self._core.stream(table.packed_rows, x)
            blocks = pack.blocks(t)
            chunks = segments = 0
            for block in islice(blocks, 1):  # from now on, others are being read
                stream.feed(block)
                chunks += len(block)
            self._core.place(self._cache, table.cached_slots, table.cached_rows, x)
            for block in blocks:
                stream.feed(block)
                chunks += len(block)
            for shared in pack.shared_blocks(t, table):
                self._core.place_at(shared.data, shared.offsets, shared.rows, x)
                segments += shared.read_bytes
            wanted = (len(table.packed_rows) + len(table.shared_rows)) * pack.row_bytes
            self._meter.read("chunks", chunks)
            self._meter.read("segments", segments)
            self._meter.pad(chunks + segments - wanted)
        else:
            self._core.place(self._cache, table.cached_slots, table.cached_rows, x)
            rows = table.packed_rows
            places = rows if left is None else left.host_rows[rows]
            self._read(batch.n_id[places], rows, x)
        self._core.copy(table.copied_from, table.copied_rows, x)
        return len(table.cached_rows)

    def _read(self, ids: Ids, rows: Rows, x: NDArray[np.float32]) -> None:
        """Nodes `ids`, ascending -> x[rows], in blocks, several of them in flight."""
        row_bytes = self._features.encoding.row_bytes
        step = max(1, min(READ_BLOCK_BYTES // row_bytes, len(ids)))
        stream = self._core.stream(rows, x)
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
