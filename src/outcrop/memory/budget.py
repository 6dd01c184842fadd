"""Budget: one memory number -> who may use how much of it.

Everything that stays resident is charged by name before it is allocated; what is left belongs to
batches, which live in slabs of one pool and are charged while anyone holds them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from outcrop import _core
from outcrop.errors import BudgetError
from outcrop.options import format_size, parse_size, size_of_at_least


def exact_slabs(size: int) -> list[int]:
    """Sizes of slabs that together are charged these bytes, without what is less than a page."""
    pages = size // 4096
    return [4096 << bit for bit in range(pages.bit_length()) if pages >> bit & 1]


@dataclass(frozen=True)
class Demand:
    """What is in memory at a time: what is resident, by name, and batches beside it."""

    resident: Mapping[str, int]
    batches_bytes: int = 0
    batches: str = ""
    """The same in words."""

    @property
    def bytes(self) -> int:
        return sum(self.resident.values()) + self.batches_bytes

    def __str__(self) -> str:
        parts = [f"{name} {format_size(size)}" for name, size in self.resident.items() if size]
        return ", ".join([*parts, self.batches] if self.batches else parts)


Demands = Callable[[int], Sequence[Demand]]
"""Total bytes -> the demand at each time, that of the main loop first: a pure function. Caches grow
with the total."""

_MB = 10**6
# More than any machine has.
_MOST_MB = 10**12


def lendable(pool_bytes: int) -> int:
    """The largest slab that a pool of so many bytes can give: slab sizes go in steps."""
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

    def settle(self, demands: Demands) -> None:
        """Charges what the main loop needs of the total.

        BudgetError where one of the demands does not fit; given what the message names they all
        do, and with 1 MB less they would not.
        """
        if not _fits(self.total_bytes, demands):
            least = _least(self.total_bytes, demands)
            # What a little less would need shows why it is not enough.
            found = max(demands(max(least - _MB, self.total_bytes)), key=lambda one: one.bytes)
            raise BudgetError(
                f"memory={format_size(self.total_bytes)} is too little: {found}; the smallest that "
                f"would do is {size_of_at_least(least)}"
            )
        resident = demands(self.total_bytes)[0].resident
        self.charges = {name: size for name, size in resident.items() if size}

    def slabs(self) -> _core.SlabPool:
        """A pool of all that is left."""
        return _core.SlabPool(self.left_bytes)


def _fits(total: int, demands: Demands) -> bool:
    return all(demand.bytes <= total for demand in demands(total))


def _least(total: int, demands: Demands) -> int:
    """The least total, in whole MB, that fits; this one does not.

    Where more memory can need more than it adds, there may be several: with 1 MB less, the one
    that is found does not fit.
    """
    refused = total // _MB
    step = 1
    while not _fits((refused + step) * _MB, demands):
        refused += step
        step *= 2
        if refused > _MOST_MB:
            raise BudgetError(f"memory={format_size(total)} is too little, and so is any other")
    accepted = refused + step
    while accepted - refused > 1:
        middle = (refused + accepted) // 2
        if _fits(middle * _MB, demands):
            accepted = middle
        else:
            refused = middle
    return accepted * _MB
