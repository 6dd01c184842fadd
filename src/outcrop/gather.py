"""Gather: a batch's node ids -> its rows x, from memory or from disk."""

from __future__ import annotations

import threading
import time
from typing import Any

import numpy as np
from numpy.typing import NDArray

from outcrop import _core
from outcrop.batch import Prepared
from outcrop.cache.refcount import FeatureBuffer
from outcrop.disk import Pending
from outcrop.parallel import ordered_map
from outcrop.store.format import RowEncoding
from outcrop.store.store import FeatureRows, decode_into

ENCODINGS = {
    "float32": _core.Encoding.FLOAT32,
    "float16": _core.Encoding.FLOAT16,
    "bfloat16": _core.Encoding.BFLOAT16,
    "int8": _core.Encoding.INT8,
}


# Of a batch that is extracted in parts.
PARTS_AT_ONCE = 2
# Of a cache that is filled, at a time: enough requests to keep the drive's queue full.
_FILL_ROWS = 1 << 16


class ArrayRows:
    """Rows of an array that can be addressed: in memory, or memory-mapped."""

    def __init__(self, rows: NDArray[Any], encoding: RowEncoding, threads: int) -> None:
        """`rows` as they are stored."""
        self._core = _core.RowGatherer(
            rows.reshape(-1).view(np.uint8),
            row_bytes=encoding.row_bytes,
            dim=encoding.dim,
            encoding=ENCODINGS[encoding.name],
            threads=threads,
        )

    def gather(self, batch: Prepared) -> None:
        assert batch.x is not None
        self._core.gather(batch.n_id, batch.x)

    def copy(
        self, ids: NDArray[np.int64], out: NDArray[np.float32], places: NDArray[np.int64]
    ) -> None:
        """Row ids[i] -> out[places[i]]."""
        self._core.gather(ids, out, places)

    def cancel(self) -> None:
        self._core.cancel()


class NoRows:
    """For a store without features."""

    def gather(self, batch: Prepared) -> None:
        pass

    def cancel(self) -> None:
        pass


class CachedRows:
    """Rows from the slots of a cache, and from the drive those that are in none."""

    def __init__(self, rows: FeatureRows, memory: NDArray[np.uint8], threads: int) -> None:
        """`memory`: [slots, row bytes], for rows as they are stored."""
        encoding = rows.encoding
        self._rows = rows
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
            self._rows.start_read(some, self._memory, places).wait()

    def gather(self, batch: Prepared, slots: NDArray[np.int32]) -> None:
        """`slots`: where each row is; below 0: it is read."""
        assert batch.x is not None
        missing = np.flatnonzero(slots < 0)
        places = missing[np.argsort(batch.n_id[missing])]
        stored = batch.x if batch.stored is None else batch.stored
        pending = self._rows.start_read(batch.n_id[places], stored, places)
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


class DiskRows:
    """Rows read from the drive, every one of them, by one batched call."""

    def __init__(self, rows: FeatureRows) -> None:
        self._rows = rows

    def gather(self, batch: Prepared) -> None:
        assert batch.x is not None
        # Ascending, so that the drive sees one forward sweep and neighbours are read together.
        order = np.argsort(batch.n_id, kind="stable")
        stored = batch.x if batch.stored is None else batch.stored
        self._rows.start_read(batch.n_id[order], stored, order).wait()
        if batch.stored is not None:
            decode_into(batch.stored, self._rows.encoding, batch.x)
            batch.stored = None  # its memory goes back now

    def cancel(self) -> None:
        """A read under way is waited for: it takes as long as a batch."""


class HeldRows:
    """Rows in a feature buffer, where they stay: found there, on their way for another, or read.

    Not thread-safe, apart from `cancel`: one per extractor; they share the buffer.
    """

    def __init__(self, rows: FeatureRows, buffer: FeatureBuffer) -> None:
        self._rows = rows
        self._buffer = buffer
        self._reading: set[Pending] = set()
        self._cancelled = threading.Event()
        self.hits = {"buffer": 0, "shared": 0}
        """Rows found there, and rows that one read brought for two."""

    def gather(self, batch: Prepared) -> None:
        """Fills the slots that the batch has reserved; or rows of its own where it has none."""
        claim, batch.claim = batch.claim, None
        if claim is None:
            assert batch.x_buffer is not None
            order = np.argsort(batch.n_id, kind="stable")
            self._read(batch.n_id[order], order, batch.x_buffer)
            return
        self._buffer.fill(claim, self._read, self._cancelled.is_set)
        batch.x_buffer = self._buffer.hold(claim)
        self._count(claim)

    def _count(self, claim: _core.Claim) -> None:
        self.hits["buffer"] += claim.found
        self.hits["shared"] += claim.shared

    def _read(
        self,
        nodes: NDArray[np.int64],
        slots: NDArray[np.int64],
        rows: NDArray[np.float32] | NDArray[np.uint8] | None = None,
    ) -> None:
        """Rows -> slots of the buffer, or places in `rows`."""
        reading = self._rows.start_read(nodes, self._buffer.rows if rows is None else rows, slots)
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


class BufferedRows(HeldRows):
    """The same rows, copied into x."""

    def __init__(
        self, rows: FeatureRows, buffer: FeatureBuffer, part_nodes: int, threads: int
    ) -> None:
        """`part_nodes`: how many slots a part of a batch may hold; so many parts are under way as
        PARTS_AT_ONCE says."""
        super().__init__(rows, buffer)
        self._part_nodes = part_nodes
        self._slots = ArrayRows(buffer.rows, rows.encoding, threads)
        self._copying = threading.Lock()
        self.copy_seconds = 0.0
        """Spent on the way from slots to x."""

    def gather(self, batch: Prepared) -> None:
        assert batch.x is not None
        # Ascending, so that the drive sees one forward sweep and neighbours are read together;
        # where a batch goes in parts, so do they.
        order = np.argsort(batch.n_id, kind="stable")
        nodes = batch.n_id[order]

        def extract(begin: int) -> tuple[_core.Claim, float]:
            part = slice(begin, begin + self._part_nodes)
            return self._extract(batch, nodes[part], order[part])

        begins = range(0, len(nodes), self._part_nodes)
        # Two at a time: while the rows of one are copied, those of the other are on their way.
        parts = ordered_map(extract, begins, threads=PARTS_AT_ONCE)
        for claim, seconds in parts if len(begins) > 1 else map(extract, begins):
            self._count(claim)
            self.copy_seconds += seconds
        batch.expected = None

    def _extract(
        self, batch: Prepared, nodes: NDArray[np.int64], places: NDArray[np.int64]
    ) -> tuple[_core.Claim, float]:
        """-> the claim, released, and the seconds that copying took."""
        assert batch.x is not None
        claim = self._buffer.claim(nodes, self._read, self._cancelled.is_set, batch.expected)
        try:
            with self._copying:
                start = time.perf_counter()
                self._slots.copy(claim.slots, batch.x, places)
                return claim, time.perf_counter() - start
        finally:
            claim.release()

    def cancel(self) -> None:
        super().cancel()
        self._slots.cancel()
