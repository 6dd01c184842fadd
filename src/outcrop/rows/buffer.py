"""Feature buffer: node ids -> slots, shared by all who need the row, reused when nobody does.

The policy is in C++ (cpp/cache/refcount.h); here is the memory that its slots stand for.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from outcrop import _core
from outcrop.disk import aligned_empty, given
from outcrop.errors import CancelledError

Ids = NDArray[np.int64]
Load = Callable[[Ids, Ids], None]
Cancelled = Callable[[], bool]

_POLL_SECONDS = 0.2


class FeatureBuffer:
    """Rows as they are stored, in slots with reference counts. Thread-safe."""

    def __init__(
        self,
        num_nodes: int,
        num_slots: int,
        row_bytes: int,
        *,
        counted: bool = True,
        layout: _core.RowLayout | None = None,
        shown: bool = False,
    ) -> None:
        """`counted`: slots of nodes that are not expected are reused first, of these the ones that
        were used least often; else those of the least recently used.

        `layout`, where rows are read in pages: rows that are expected are loaded as soon as their
        pages are read for others.

        `shown`: users look at the slots themselves, in forked children as well."""
        self.rows: NDArray[np.uint8] = aligned_empty((num_slots, row_bytes))
        if shown:
            given(self.rows)
        self._slots = _core.SlotBuffer(num_nodes, num_slots, counted=counted, layout=layout)

    @staticmethod
    def memory_bytes(
        num_nodes: int, num_slots: int, row_bytes: int, *, counted: bool = True
    ) -> int:
        """What such a buffer takes: rows, and the tables of nodes and slots."""
        tables = _core.SlotBuffer.table_bytes(num_nodes, num_slots, counted=counted)
        return num_slots * row_bytes + tables

    @staticmethod
    def most_expected() -> int:
        """How many batches can be expected at a time."""
        return _core.SlotBuffer.most_expected()

    @property
    def num_slots(self) -> int:
        return self._slots.num_slots

    @property
    def num_standby(self) -> int:
        """Slots that nobody uses."""
        return self._slots.num_standby

    def expect(self, nodes: Ids) -> _core.Expected | None:
        """A batch will want these nodes, and comes after all that are expected already.

        To drop or `forget` the result is to expect nothing. None where too many are expected, or
        uses are not counted.
        """
        return self._slots.expect(nodes)

    def claim(
        self, nodes: Ids, load: Load, cancelled: Cancelled, expected: _core.Expected | None = None
    ) -> _core.Claim:
        """Slots that hold the rows of `nodes` (ascending) until the claim is released.

        Waits for room. load(nodes, slots) reads rows into their slots: of all nodes that are
        neither here nor on their way, at once, and of those that ride along; then of those that
        others meant to load and gave up.
        `expected`: the batch's; these nodes are not expected for it any more.
        """
        while not cancelled():
            claim = self.reserve(nodes, _POLL_SECONDS, expected)
            if claim is not None:
                self.fill(claim, load, cancelled)
                return claim
        raise CancelledError("cancelled while a batch waited for slots")

    def reserve(
        self, nodes: Ids, seconds: float, expected: _core.Expected | None = None
    ) -> _core.Claim | None:
        """The same before anything is read; None when the time is up.

        Others wait for what it is to read: claims must be filled in the order in which they were
        reserved, several at a time if need be.
        """
        return self._slots.reserve(nodes, seconds, expected)

    def fill(self, claim: _core.Claim, load: Load, cancelled: Cancelled) -> None:
        """Reads what a claim is to read, and waits for what others read; an error releases it."""
        try:
            while True:
                if len(claim.load_nodes):
                    load(claim.load_nodes, claim.load_slots)
                    claim.loaded()
                if claim.collect(_POLL_SECONDS):
                    return
                if cancelled():
                    raise CancelledError("cancelled while another batch read its rows")
        except BaseException:
            claim.release()  # now: the error's traceback would keep it
            raise

    def hold(self, claim: _core.Claim) -> NDArray[np.float32]:
        """All rows, as an array that has the claim: it is released when nobody has the array."""
        return claim.hold(self.rows.view(np.float32))
