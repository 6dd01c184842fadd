"""Slots of rows on the device: tables of a pack whose hottest rows are there.

The rows of a batch that are not on the device, in the order of the batch and without gaps, are its
partial input: what the host gathers, and what alone is moved. Which rows those are is known from
preparation: tables have their places in the partial input.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from outcrop.layout.pack.reader import Table, mark
from outcrop.sample.seeds import Ids


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
