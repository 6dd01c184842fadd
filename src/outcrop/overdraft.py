"""Overdraft: a batch that the loop itself waits for gets memory, beyond the budget if need be.

Only the user's code can then free any: it keeps batches, or one is larger than was foreseen.
"""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from outcrop import _core
from outcrop.errors import BudgetError, CancelledError
from outcrop.options import format_size

T = TypeVar("T")
Slabs = list[NDArray[np.uint8]]
Asked = Callable[[], bool]

_POLL_SECONDS = 0.05
# Where memory was exceeded before, the loop should not wait for polls.
_SHORT_POLL_SECONDS = 0.001
# How long a batch waits, the first time, for memory that only the user's own code can free.
_GRACE_SECONDS = 1.0


class Overdraft:
    """Who goes beyond the limit of a pool, and by how much. Thread-safe."""

    def __init__(self, pool: _core.SlabPool, *, strict: bool = False) -> None:
        """`strict`: nobody does; BudgetError instead."""
        self._pool = pool
        self._strict = strict
        self._lock = threading.Lock()
        # Guarded by _lock
        self._granted = False
        self._granted_bytes = 0
        self._excuse: str | None = None

    @property
    def peak_bytes(self) -> int:
        """The most that was beyond the limit."""
        return max(self._pool.peak_bytes - self._pool.limit_bytes, 0)

    def take_excuse(self) -> str | None:
        """Why the limit was exceeded, the first time that it was; None from then on."""
        with self._lock:
            excuse, self._excuse = self._excuse, None
            return excuse

    def slabs(
        self, sizes: list[int], closed: Asked, awaited: Asked, why: Callable[[], str]
    ) -> Slabs:
        """Memory of these sizes; waits for it as `wait` does."""
        return self.wait(
            lambda seconds: self._pool.take(sizes, seconds),
            lambda: self.beyond(sizes),
            sum(map(self._pool.charged_bytes, sizes)),
            closed,
            awaited,
            why,
        )

    def beyond(self, sizes: list[int]) -> Slabs:
        """Memory of these sizes at once, whatever the limit."""
        slabs = self._pool.take(sizes, 0.0, beyond_limit=True)
        assert slabs is not None
        return slabs

    def wait(
        self,
        take: Callable[[float], T | None],
        beyond: Callable[[], T],
        size: int,
        closed: Asked,
        awaited: Asked,
        why: Callable[[], str],
    ) -> T:
        """What take(seconds) gives, once it gives something.

        Where the loop waits for this very batch (`awaited`), all that is held is held by the
        user's code: then what beyond() gives, which takes `size` bytes of the pool. BudgetError,
        with `why`, if strict.
        """
        deadline = 0.0
        while not closed():
            taken = take(_SHORT_POLL_SECONDS if self._granted else _POLL_SECONDS)
            if taken is not None:
                return taken
            if not awaited():
                continue
            if not deadline:
                if self._is_granted(size):
                    return beyond()
                gc.collect()  # batches in cycles of references are nobody's
                deadline = time.monotonic() + self._grace_seconds(size)
            elif time.monotonic() >= deadline:
                self._grant(size, why)
                return beyond()
        raise CancelledError("closed while a batch waited for memory")

    def _missing_bytes(self, size: int) -> int:
        return self._pool.held_bytes + size - self._pool.limit_bytes

    def _is_granted(self, size: int) -> bool:
        return self._granted and self._missing_bytes(size) <= self._granted_bytes

    def _grace_seconds(self, size: int) -> float:
        hopeless = size > self._pool.limit_bytes
        return 0.0 if self._granted or hopeless else _GRACE_SECONDS

    def _grant(self, size: int, why: Callable[[], str]) -> None:
        if self._strict:
            raise BudgetError(
                f"{why()}; drop them (copy what you keep, as in batch.y.clone()), or give more "
                "memory"
            )
        missing = self._missing_bytes(size)
        with self._lock:
            self._granted = True
            if missing > 0 and not self._granted_bytes:
                self._excuse = (
                    f"batches take {format_size(missing)} more than memory= allows: {why()}. "
                    "They are served all the same; to stay within it drop what you keep (copy "
                    "what you need, as in batch.y.clone()), or give more memory. "
                    "strict_memory=True raises instead"
                )
            # Twice as much: a loop that keeps every batch should not search for garbage each time.
            self._granted_bytes = max(self._granted_bytes, 2 * missing)
