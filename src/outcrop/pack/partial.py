"""Partial input: what of a batch the host gathers where the device of batches has the other rows.

The rows of a batch that are not on the device, in the order of the batch and without gaps. It alone
is moved to the device. Which rows those are is known from preparation: tables have their places in
the partial input. No torch here: outcrop/pack/device.py puts batches together.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from outcrop.batch import Prepared
from outcrop.cache.tiers import Rows
from outcrop.errors import OptionError
from outcrop.options import parse_count, parse_size
from outcrop.pack.tables import Table
from outcrop.sample.seeds import Ids
from outcrop.store.facts import GraphFacts

DEVICE_CACHE = "device cache"
# Rows are taken from the cache in pieces: that is what it takes beside the batch.
ASSEMBLY_PIECE_BYTES = 8 << 20
# Per node: its row of the batch (int64, as torch wants it), and its slot on the device (int32).
_ROW_BYTES, _SLOT_BYTES = 8, 4
_MOST_SLOTS = (1 << 31) - 1
_ROWS = re.compile(r"(.*?)\s*rows", re.IGNORECASE)


@dataclass(frozen=True)
class DeviceSize:
    """How large the cache on the device is to be: so many rows, or so many bytes."""

    rows: int | None
    bytes: int

    @classmethod
    def parse(cls, text: str) -> DeviceSize:
        """ "2GB", "1000rows", "1Mrows"; 0: none."""
        try:
            counted = _ROWS.fullmatch(text)
            if counted is not None:
                return cls(parse_count(counted.group(1)), 0)
            return cls(None, parse_size(text))
        except OptionError:
            raise OptionError(
                "diskgnn: device_cache must be a size such as 2GB, or a number of rows such as "
                f"100000rows (got {text!r})"
            ) from None

    def rows_of(self, graph: GraphFacts) -> int:
        """No more than the graph has."""
        if graph.rows is None:
            return 0
        rows = self.bytes // device_row_bytes(graph) if self.rows is None else self.rows
        return min(rows, graph.num_nodes, _MOST_SLOTS)


def device_row_bytes(graph: GraphFacts) -> int:
    """On the device rows are decoded."""
    return 4 * graph.dim


def assembly_bytes(graph: GraphFacts, device: str) -> int:
    """What a batch takes per node: where rows belong; on the CPU also the partial input, beside x.

    Elsewhere x is the device's, and its memory here has the partial input.
    """
    index = _ROW_BYTES + _SLOT_BYTES
    return index + (device_row_bytes(graph) if device == "cpu" else 0)


class DeviceSlots:
    """Slots of all cached nodes, ascending -> slots of the device first, then those of the CPU."""

    def __init__(self, cached: Ids, device: Ids) -> None:
        """`device`: those of the cached nodes that are on the device. Both ascending."""
        self._on_device = len(device)
        chosen = mark(cached, device)
        self._slots = np.empty(len(cached), np.uint32)
        self._slots[chosen] = np.arange(len(device), dtype=np.uint32)
        self._slots[~chosen] = np.arange(len(device), len(cached), dtype=np.uint32)

    def table(self, table: Table) -> Table:
        """The same batch: rows of the device come first; all others are places in its partial
        input."""
        slots = self._slots[table.cached_slots]
        chosen = slots < self._on_device
        on_device = table.cached_rows[chosen]
        nodes = len(table.cached_rows) + len(table.packed_rows) + len(table.copied_rows)
        on_host = np.ones(nodes, bool)
        on_host[on_device] = False
        places = np.cumsum(on_host, dtype=np.uint32) - np.uint32(1)
        return replace(
            table,
            cached_rows=np.concatenate([on_device, places[table.cached_rows[~chosen]]]),
            cached_slots=np.concatenate([slots[chosen], slots[~chosen]]),
            packed_rows=places[table.packed_rows],
            copied_rows=places[table.copied_rows],
            copied_from=places[table.copied_from],
        )


def slots_bytes(cached: int, batch_nodes: int) -> int:
    """Memory of DeviceSlots, at most, and of what it makes of a batch."""
    return 8 * cached + 32 * batch_nodes


def mark(cached: Ids, device: Ids) -> NDArray[np.bool_]:
    """Which of the cached nodes are on the device."""
    chosen = np.zeros(len(cached), bool)
    chosen[np.searchsorted(cached, device)] = True
    return chosen


def split_table(table: Table, device_slots: int) -> tuple[Rows, Rows, Table]:
    """A table of a pack with rows on the device -> those rows, their slots, and all others."""
    count = int(np.count_nonzero(table.cached_slots < device_slots))
    rest = replace(
        table,
        cached_rows=table.cached_rows[count:],
        cached_slots=table.cached_slots[count:] - np.uint32(device_slots),
    )
    return table.cached_rows[:count], table.cached_slots[:count], rest


@dataclass(frozen=True)
class PartialInput:
    """What the host gathers of a batch, and where all rows belong; in the batch's memory."""

    rows: Ids
    """The batch's rows: first those of the partial input, ascending, then those on the device."""
    slots: NDArray[np.int32]
    """The slots of those on the device."""
    x: NDArray[np.float32]
    """[host rows, dim]: to be filled."""
    whole: NDArray[np.float32] | None
    """[nodes, dim]: memory for the batch put together, where that is the CPU's."""

    @property
    def host_rows(self) -> Ids:
        """Those of the partial input."""
        return self.rows[: len(self.x)]

    @classmethod
    def of(cls, batch: Prepared, device_rows: Rows | Ids, slots: Rows | Ids) -> PartialInput:
        """All rows of the batch but those on the device."""
        assert batch.stored is not None and batch.x is not None
        nodes, count = len(batch.n_id), len(batch.n_id) - len(device_rows)
        index, staged = np.split(batch.stored.reshape(-1), [(_ROW_BYTES + _SLOT_BYTES) * nodes])
        rows = index[: _ROW_BYTES * nodes].view(np.int64)
        on_host = np.ones(nodes, bool)
        on_host[device_rows] = False
        rows[:count] = np.flatnonzero(on_host)
        rows[count:] = device_rows
        slots_there = index[_ROW_BYTES * nodes :].view(np.int32)[: len(device_rows)]
        slots_there[:] = slots
        if not len(staged):
            return cls(rows, slots_there, batch.x[:count], None)
        x = staged.view(np.float32).reshape(batch.x.shape)
        return cls(rows, slots_there, x[:count], batch.x)
