"""Rows on the device of batches, over any source: x is put together there.

The host gathers the others, the partial input, which alone is moved. The same code runs on the CPU,
where it saves nothing. torch is imported where there is such a tier.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from outcrop import _core
from outcrop.disk import READ_BLOCK_BYTES
from outcrop.errors import BudgetError, OptionError
from outcrop.layout.pack.reader import Pack
from outcrop.memory.batches import Batch, PartialRows, RowRequest, RowShape
from outcrop.memory.charges import Charge
from outcrop.memory.context import Context
from outcrop.observe.meter import Meter
from outcrop.options import format_size
from outcrop.rows.packed import PackedRows
from outcrop.rows.slots import choosing
from outcrop.rows.source import Resources, RowFill, RowSource, RowsPart, RowWorker
from outcrop.sample.seeds import Ids
from outcrop.store.degrees import most_out_edges, out_degrees
from outcrop.store.store import decode

if TYPE_CHECKING:
    import torch

DEVICE_CACHE = "device cache"
# Rows are taken from the cache in pieces: that is what it takes beside the batch.
ASSEMBLY_PIECE_BYTES = 8 << 20
_ID_BYTES = 8


@dataclass(frozen=True)
class DeviceCache:
    """So many rows, decoded, on the device of batches."""

    rows: int
    over: RowsPart
    chosen: Literal["out-degree", "pack"] = "out-degree"
    """By the edges of their nodes; or by the plan of the pack below."""

    def shape(self, context: Context) -> RowShape:
        return self.over.shape(context).on_device(context.device)

    def charges(self, context: Context) -> Sequence[Charge]:
        chosen = list[Charge]()
        if self.chosen == "out-degree":
            table = _core.StaticSlots.bytes(context.graph.num_nodes, self.rows)
            chosen = [Charge("table of rows", table), *choosing(context, self.rows)]
        own = Charge(DEVICE_CACHE, self.host_bytes(context))
        return [own, *chosen, *self.over.charges(context)]

    def host_bytes(self, context: Context) -> int:
        """Ids of rows on the device, and the rows themselves where that is the CPU."""
        ids = self.rows * (_ID_BYTES + 1)
        if context.device != "cpu":
            return ids
        row_bytes = context.graph.x_row_bytes
        piece = min(ASSEMBLY_PIECE_BYTES, context.batch.nodes * row_bytes)
        return ids + self.rows * row_bytes + piece

    def open(self, on: Resources) -> RowSource:
        return DeviceRows(self, on)


class DeviceRows(RowSource):
    """Memory of the device. Batches that were divided by it are put together before it changes."""

    def __init__(self, part: DeviceCache, on: Resources) -> None:
        self._encoding, self._store = on.store.encoding, on.store
        self._device = on.context.device
        # First: what does not fit there is refused at once.
        self._rows = _room(part.rows, self._encoding.dim, self._device)
        self.transfers = True
        self._stream: Any = None
        self._filled = 0
        self._nodes: Ids = np.empty(0, np.int64)
        self._chosen = part.chosen
        self._table: _core.StaticSlots | None = None
        self.below = part.over.open(on)
        self.expects = self.below.expects
        if part.chosen == "out-degree":
            self._nodes = most_out_edges(out_degrees(on.store, on.progress), part.rows)
        self.below.beneath(self)

    def load(self) -> None:
        super().load()
        if self._chosen == "out-degree":
            self._table = _core.StaticSlots(self._store.num_nodes, self._nodes)
            self._wait()
            step = max(1, READ_BLOCK_BYTES // self._encoding.row_bytes)
            memory = np.empty((step, self._encoding.row_bytes), np.uint8)
            for first in range(0, len(self._nodes), step):
                some = self._nodes[first : first + step]
                self._store.features.start_read(some, memory[: len(some)]).wait()
                self._append(memory[: len(some)])
            self._wait()

    def turn_to(self, pack: Pack | None) -> None:
        """Rows of a pack, in place of those of another; nothing is gathered meanwhile."""
        assert isinstance(self.below, PackedRows)
        self._wait()
        self._filled = 0
        for stored in self.below.turning_to(pack):
            if self._rows is not None:
                self._append(stored)
        self._wait()
        self._nodes = np.empty(0, np.int64) if pack is None else pack.device

    def _wait(self) -> None:
        """Whoever reads rows may do it in another stream than who writes them."""
        if self._rows is not None and self._rows.is_cuda:
            import torch

            torch.cuda.synchronize(self._rows.device)

    def _append(self, stored: NDArray[np.uint8]) -> None:
        """The next rows, as they are stored."""
        import torch

        assert self._rows is not None
        rows = torch.from_numpy(decode(stored, self._encoding))
        self._rows[self._filled : self._filled + len(rows)] = rows
        self._filled += len(rows)

    def passes_on(self, nodes: Ids) -> Ids:
        return np.delete(nodes, self.find(nodes)[0])

    def find(self, nodes: Ids) -> tuple[Ids, Ids]:
        """Which of these are here, and their slots."""
        if self._table is not None:
            found = np.empty(len(nodes), np.int32)
            self._table.find(nodes, found)
            rows = np.flatnonzero(found >= 0)
            return rows, found[rows].astype(np.int64)
        slots = np.searchsorted(self._nodes, nodes)
        slots[slots == len(self._nodes)] = 0
        rows = np.flatnonzero(self._nodes[slots] == nodes) if len(self._nodes) else slots[:0]
        return rows, slots[rows]

    def worker(self, copier: _core.Copier, meter: Meter) -> RowWorker:
        if self._rows is None:
            raise OptionError(f"device {self._device!r} is not there: torch sees no GPU")
        assert self.below is not None
        return _Worker(self, self.below.worker(copier, meter), meter)

    def transfer(self, batch: Batch) -> None:
        rows = batch.rows
        assert isinstance(rows, PartialRows) and self._rows is not None
        if not self._rows.is_cuda:
            rows.put_together(self._assemble(rows))
            return
        import torch

        # In a stream of its own, beside what the loop has queued; done when the loop gets it.
        if self._stream is None:
            self._stream = torch.cuda.Stream(self._rows.device)  # type: ignore[no-untyped-call]
        with torch.cuda.stream(self._stream):
            x = self._assemble(rows)
        self._stream.synchronize()
        rows.put_together(x)

    def _assemble(self, left: PartialRows) -> torch.Tensor:
        """All rows of the batch, on the device."""
        import torch

        assert self._rows is not None
        device = self._rows.device
        host = torch.from_numpy(left.host_rows).to(device, non_blocking=True)
        here = torch.from_numpy(left.rows[len(left.input) :]).to(device, non_blocking=True)
        slots = torch.from_numpy(left.slots).to(device, non_blocking=True)
        moved = torch.from_numpy(left.input).to(device, non_blocking=True)
        if left.whole is None:
            x = torch.empty((len(host) + len(here), self._encoding.dim), device=device)
        else:
            x = torch.from_numpy(left.whole)
        x.index_copy_(0, host, moved)
        step = max(1, ASSEMBLY_PIECE_BYTES // (4 * self._encoding.dim))
        for begin in range(0, len(here), step):
            piece = self._rows.index_select(0, slots[begin : begin + step])
            x.index_copy_(0, here[begin : begin + step], piece)
        return x

    def close(self) -> None:
        super().close()
        self._rows = self._table = None


class _Worker(RowWorker):
    def __init__(self, source: DeviceRows, below: RowWorker, meter: Meter) -> None:
        self._source, self._below, self._meter = source, below, meter

    def start(self, request: RowRequest) -> RowFill:
        rows, record = request.held, request.record
        assert isinstance(rows, PartialRows)
        told = self._below.divide(request)
        here, slots, record = (*self._source.find(request.ids), record) if told is None else told
        rows.divide(here, slots)
        self._meter.hit(DEVICE_CACHE, len(here))
        return self._below.start(rows.request(request.ids[rows.host_rows], record, request.hint))

    def cancel(self) -> None:
        self._below.cancel()


def _room(rows: int, dim: int, device: str) -> torch.Tensor | None:
    """None where the run will be on another machine: what is prepared may be for it."""
    import torch

    where = torch.device(device)
    if where.type == "cuda" and not torch.cuda.is_available():
        return None
    try:
        return torch.empty((rows, dim), device=where)
    except torch.cuda.OutOfMemoryError:
        free, total = torch.cuda.mem_get_info(where)
        raise BudgetError(
            f"device_cache of {rows} rows needs {format_size(4 * dim * rows)} on {where}, where "
            f"{format_size(free)} of {format_size(total)} are free; give less, and leave room for "
            "the model and its batches"
        ) from None
