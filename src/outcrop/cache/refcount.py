"""Feature buffer: node ids -> slots, shared by all who need the row, reused when nobody does.

The policy is in C++ (cpp/cache/refcount.h); here is the memory that its slots stand for.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from outcrop import _core
from outcrop.disk import aligned_empty
from outcrop.errors import CancelledError

Ids = NDArray[np.int64]
Load = Callable[[Ids, Ids], None]
Cancelled = Callable[[], bool]

_POLL_SECONDS = 0.2


class FeatureBuffer:
    """Rows as they are stored, in slots with reference counts. Thread-safe."""

    def __init__(self, num_nodes: int, num_slots: int, row_bytes: int) -> None:
        self.rows: NDArray[np.uint8] = aligned_empty((num_slots, row_bytes))
        self._slots = _core.SlotBuffer(num_nodes, num_slots)

    @staticmethod
    def memory_bytes(num_nodes: int, num_slots: int, row_bytes: int) -> int:
        """What such a buffer takes: rows, and the tables of nodes and slots."""
        return num_slots * row_bytes + _core.SlotBuffer.table_bytes(num_nodes, num_slots)

    @property
    def num_slots(self) -> int:
        return self._slots.num_slots

    @property
    def num_standby(self) -> int:
        """Slots that nobody uses."""
        return self._slots.num_standby

    def claim(self, nodes: Ids, load: Load, cancelled: Cancelled) -> _core.Claim:
        """Slots that hold the rows of `nodes` (ascending) until the claim is released.

        Waits for room. load(nodes, slots) reads rows into their slots: of all nodes that are
        neither here nor on their way, at once; then of those that others meant to load and gave up.
        """
        claim = self._reserve(nodes, cancelled)
        try:
            self._fill(claim, load, cancelled)
        except BaseException:
            claim.release()  # now: the error's traceback would keep it
            raise
        return claim

    def _reserve(self, nodes: Ids, cancelled: Cancelled) -> _core.Claim:
        while not cancelled():
            claim = self._slots.reserve(nodes, _POLL_SECONDS)
            if claim is not None:
                return claim
        raise CancelledError("cancelled while a batch waited for slots")

    def _fill(self, claim: _core.Claim, load: Load, cancelled: Cancelled) -> None:
        while True:
            if len(claim.load_nodes):
                load(claim.load_nodes, claim.load_slots)
                claim.loaded()
            if claim.collect(_POLL_SECONDS):
                return
            if cancelled():
                raise CancelledError("cancelled while another batch read its rows")
