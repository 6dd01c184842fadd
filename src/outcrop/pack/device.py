"""Device tier: the rows that most batches want, on the device of batches; x is put together there.

The host gathers the partial input, which alone is moved. The same code runs on the CPU, where it
saves nothing.
"""

from __future__ import annotations

from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray

from outcrop.batch import Prepared
from outcrop.cache.tiers import Rows
from outcrop.errors import BudgetError
from outcrop.options import format_size
from outcrop.pack.chunks import Pack
from outcrop.pack.partial import ASSEMBLY_PIECE_BYTES, PartialInput
from outcrop.sample.seeds import Ids
from outcrop.store.format import RowEncoding
from outcrop.store.store import decode


class DeviceRows:
    """A cache on the device. Thread-safe, apart from `load`."""

    def __init__(self, rows: int, encoding: RowEncoding, device: str) -> None:
        """Room for so many rows. BudgetError where the device has none."""
        self._encoding = encoding
        self._nodes: Ids = np.empty(0, np.int64)
        self._rows = _room(rows, encoding.dim, torch.device(device))
        self._filled = 0

    def load(self, pack: Pack) -> NDArray[np.uint8]:
        """The pack's rows for the device -> those for memory, as they are stored.

        Replaces those of another pack, all of whose batches must have been put together.
        """
        self._wait()
        self._filled = 0
        cache = pack.load_cache(self._append)
        self._wait()
        self._nodes = pack.device
        return cache

    def _wait(self) -> None:
        """Rows may be read in another stream than the one that writes them."""
        if self._rows.is_cuda:
            torch.cuda.synchronize(self._rows.device)

    def _append(self, stored: NDArray[np.uint8]) -> None:
        """The next rows, as they are stored."""
        rows = torch.from_numpy(decode(stored, self._encoding))
        self._rows[self._filled : self._filled + len(rows)] = rows
        self._filled += len(rows)

    def find(self, nodes: Ids) -> tuple[Ids, Ids]:
        """Which of a batch's rows are here, and their slots; for batches without a table."""
        slots = np.searchsorted(self._nodes, nodes)
        slots[slots == len(self._nodes)] = 0
        rows = np.flatnonzero(self._nodes[slots] == nodes) if len(self._nodes) else slots[:0]
        return rows, slots[rows]

    def divide(self, batch: Prepared, rows: Rows | Ids, slots: Rows | Ids) -> PartialInput:
        """What the host has to gather, when these rows are here; then the batch can assemble."""
        left = PartialInput.of(batch, rows, slots)
        batch.assemble = partial(self._assemble, left)
        batch.on_device = len(rows)
        return left

    def _assemble(self, left: PartialInput) -> torch.Tensor:
        """All rows of the batch, on the device."""
        device = self._rows.device
        rows = torch.from_numpy(left.rows).to(device, non_blocking=True)
        slots = torch.from_numpy(left.slots).to(device, non_blocking=True)
        moved = torch.from_numpy(left.x).to(device, non_blocking=True)
        if left.whole is None:
            x = torch.empty((len(rows), self._encoding.dim), device=device)
        else:
            x = torch.from_numpy(left.whole)
        x.index_copy_(0, rows[: len(moved)], moved)
        here = rows[len(moved) :]
        step = max(1, ASSEMBLY_PIECE_BYTES // (4 * self._encoding.dim))
        for begin in range(0, len(here), step):
            piece = self._rows.index_select(0, slots[begin : begin + step])
            x.index_copy_(0, here[begin : begin + step], piece)
        return x


def is_here(device: str) -> bool:
    """Whether this machine has it: what is prepared may be for another one."""
    return torch.device(device).type != "cuda" or torch.cuda.is_available()


def _room(rows: int, dim: int, device: torch.device) -> torch.Tensor:
    try:
        return torch.empty((rows, dim), device=device)
    except torch.cuda.OutOfMemoryError:
        free, total = torch.cuda.mem_get_info(device)
        raise BudgetError(
            f"device_cache of {rows} rows needs {format_size(4 * dim * rows)} on {device}, where "
            f"{format_size(free)} of {format_size(total)} are free; give less, and leave room for "
            "the model and its batches"
        ) from None
