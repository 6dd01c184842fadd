"""Rows of a batch from a cache and from packed chunks, or one by one where there are none."""

from __future__ import annotations

import queue
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from outcrop import _core
from outcrop.batch import Prepared
from outcrop.cache.tiers import Rows
from outcrop.disk import Pending, aligned_empty
from outcrop.errors import CorruptError
from outcrop.gather import ENCODINGS
from outcrop.pack.chunks import Pack
from outcrop.pack.partial import split_table
from outcrop.sample.seeds import Ids
from outcrop.store.arrays import READ_BLOCK_BYTES
from outcrop.store.store import FeatureRows

if TYPE_CHECKING:
    from outcrop.pack.device import DeviceRows

# In flight at a time; store/arrays.py has as many of sequential reads.
_BLOCKS = 4


@dataclass
class TierBytes:
    """Of the rows of some batches that were packed."""

    wanted: int = 0
    chunks: int = 0
    """Read for them, by whole pages; and the same of segments."""
    segments: int = 0


class TieredRows:
    """Rows that a cache has, from there; the others from chunks and segments, or one by one.

    Belongs to one run. `workers` threads may gather at a time, each with `threads` of its own.
    """

    def __init__(
        self,
        cached: Ids,
        cache: NDArray[np.uint8],
        features: FeatureRows,
        *,
        workers: int,
        threads: int,
        device: DeviceRows | None = None,
    ) -> None:
        """`cached`: nodes, ascending; `cache`: their rows, as they are stored.

        `device` has rows that are not gathered here: only the partial input is.
        """
        self._device = device
        self._cached = cached
        self._cache = cache
        self._features = features
        encoding = features.encoding
        self._assemblers = [
            _core.RowAssembler(
                row_bytes=encoding.row_bytes,
                dim=encoding.dim,
                encoding=ENCODINGS[encoding.name],
                threads=threads,
            )
            for _ in range(workers)
        ]
        self._free: queue.SimpleQueue[_core.RowAssembler] = queue.SimpleQueue()
        for assembler in self._assemblers:
            self._free.put(assembler)
        self._read_bytes: queue.SimpleQueue[TierBytes] = queue.SimpleQueue()

    def gather(self, batch: Prepared) -> int:
        """A batch without a table -> rows that were cached in memory."""
        assert batch.x is not None
        ids, x = batch.n_id, batch.x
        if self._device is not None:
            left = self._device.divide(batch, *self._device.find(ids))
            ids, x = ids[left.host_rows], left.x
        order = np.argsort(ids, kind="stable")
        ids, rows = ids[order], order.astype(np.uint32)
        slots = np.searchsorted(self._cached, ids)
        slots[slots == len(self._cached)] = 0
        hit = self._cached[slots] == ids if len(self._cached) else np.zeros(len(ids), bool)
        with self._assembler() as assembler:
            assembler.place(self._cache, slots[hit].astype(np.uint32), rows[hit], x)
            self._read(assembler, ids[~hit], rows[~hit], x)
        return int(np.count_nonzero(hit))

    def gather_packed(self, batch: Prepared, pack: Pack, t: int) -> int:
        """Batch t of a pack -> rows that were cached in memory.

        Where the pack has no chunks, rows are read one by one.
        """
        assert batch.x is not None
        left, x, table = None, batch.x, pack.table(t)
        if self._device is not None:
            rows, slots, table = split_table(table, len(pack.device))
            left = self._device.divide(batch, rows, slots)
            x = left.x
        read = TierBytes((len(table.packed_rows) + len(table.shared_rows)) * pack.row_bytes)
        with self._assembler() as assembler:
            if pack.packed:
                stream = assembler.stream(table.packed_rows, x)
                blocks = pack.blocks(t)
                for block in islice(blocks, 1):  # from now on, others are being read
                    stream.feed(block)
                    read.chunks += len(block)
                assembler.place(self._cache, table.cached_slots, table.cached_rows, x)
                for block in blocks:
                    stream.feed(block)
                    read.chunks += len(block)
                for shared in pack.shared_blocks(t, table):
                    assembler.place_at(shared.data, shared.offsets, shared.rows, x)
                    read.segments += shared.read_bytes
                self._read_bytes.put(read)
            else:
                assembler.place(self._cache, table.cached_slots, table.cached_rows, x)
                rows = table.packed_rows
                places = rows if left is None else left.host_rows[rows]
                self._read(assembler, batch.n_id[places], rows, x)
            assembler.copy(table.copied_from, table.copied_rows, x)
        return len(table.cached_rows)

    def take_read_bytes(self) -> TierBytes:
        """Of all batches since the last call."""
        total = TierBytes()
        while not self._read_bytes.empty():
            read = self._read_bytes.get()
            total.wanted += read.wanted
            total.chunks += read.chunks
            total.segments += read.segments
        return total

    def _read(
        self, assembler: _core.RowAssembler, ids: Ids, rows: Rows, x: NDArray[np.float32]
    ) -> None:
        """Nodes `ids`, ascending -> x[rows], in blocks, several of them in flight."""
        row_bytes = self._features.encoding.row_bytes
        step = max(1, min(READ_BLOCK_BYTES // row_bytes, len(ids)))
        stream = assembler.stream(rows, x)
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

    @contextmanager
    def _assembler(self) -> Iterator[_core.RowAssembler]:
        assembler = self._free.get()
        try:
            yield assembler
        finally:
            self._free.put(assembler)

    def cancel(self) -> None:
        for assembler in self._assemblers:
            assembler.cancel()


def _feed_first(
    flying: deque[tuple[Pending, NDArray[np.uint8], int]], stream: _core.RowStream
) -> NDArray[np.uint8]:
    pending, memory, count = flying.popleft()
    pending.wait()
    stream.feed(memory[:count].reshape(-1))
    return memory


def verify_rows(batch: Prepared, features: FeatureRows) -> None:
    """CorruptError where a row is not, bit by bit, the one of its node."""
    x = batch.x if batch.assemble is None else batch.assemble().cpu().numpy()
    assert x is not None
    step = max(1, READ_BLOCK_BYTES // max(1, features.encoding.row_bytes))
    for begin in range(0, len(batch.n_id), step):
        ids = batch.n_id[begin : begin + step]
        expected, found = features.gather(ids), x[begin : begin + step]
        wrong = (expected.view(np.uint32) != found.view(np.uint32)).any(axis=1)
        if wrong.any():
            node = int(ids[np.argmax(wrong)])
            raise CorruptError(
                f"batch {batch.task.batch} of epoch {batch.task.epoch}: the row of node {node} is "
                "not the store's"
            )
