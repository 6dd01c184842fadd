"""Budget: one memory number -> who may use how much of it.

Everything that stays resident is charged by name before it is allocated; what is left belongs to
batches, which live in slabs of one pool and are charged while anyone holds them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from outcrop import _core
from outcrop.errors import BudgetError
from outcrop.options import format_size, parse_size, size_of_at_least

Needs = Callable[[int], Mapping[str, int]]
"""Total bytes -> what would be resident, by name: a pure function. Caches grow with the total."""

_MB = 10**6
# More than any machine has.
_MOST_MB = 10**12


def lendable(pool_bytes: int) -> int:
    """Of a pool, the largest slab that it can give: its sizes go in steps."""
    step = max((1 << pool_bytes.bit_length() >> 1) // 8, 4096)
    return pool_bytes // step * step


class Budget:
    """The accountant of one loader. Not thread-safe: it is settled before threads start."""

    def __init__(self, memory: str | int) -> None:
        self.total_bytes = parse_size(memory)
        self.charges: dict[str, int] = {}
        """What is resident, by name."""

    @property
    def left_bytes(self) -> int:
        return self.total_bytes - sum(self.charges.values())

    def settle(self, needs: Needs, batch_bytes: int, min_batches: int) -> None:
        """Charges what the total needs.

        BudgetError where `min_batches` batches would not fit beside it; given what the message
        names they do, and with 1 MB less they would not.
        """
        beside = min_batches * batch_bytes
        if not _fits(self.total_bytes, needs, beside):
            least = _least(self.total_bytes, needs, beside)
            # What a little less would need shows why it is not enough.
            found = needs(max(least - _MB, self.total_bytes))
            parts = [f"{name} {format_size(n)}" for name, n in found.items() if n]
            parts.append(f"{min_batches} batches of {format_size(batch_bytes)}")
            raise BudgetError(
                f"memory={format_size(self.total_bytes)} is too little: {', '.join(parts)}; the "
                f"smallest that would do is {size_of_at_least(least)}"
            )
        self.charges = {name: n for name, n in needs(self.total_bytes).items() if n}

    def slabs(self) -> _core.SlabPool:
        """A pool of all that is left."""
        return _core.SlabPool(self.left_bytes)


def _fits(total: int, needs: Needs, beside: int) -> bool:
    return sum(needs(total).values()) + beside <= total


def _least(total: int, needs: Needs, beside: int) -> int:
    """The least total, in whole MB, that fits; this one does not.

    Where more memory can need more than it brings, there may be several: the one that is found
    follows on one that does not fit.
    """
    refused = total // _MB
    step = 1
    while not _fits((refused + step) * _MB, needs, beside):
        refused += step
        step *= 2
        if refused > _MOST_MB:
            raise BudgetError(f"memory={format_size(total)} is too little, and so is any other")
    accepted = refused + step
    while accepted - refused > 1:
        middle = (refused + accepted) // 2
        if _fits(middle * _MB, needs, beside):
            accepted = middle
        else:
            refused = middle
    return accepted * _MB
