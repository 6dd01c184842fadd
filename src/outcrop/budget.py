"""Budget: one memory number -> who may use how much of it.

Everything that stays resident is charged by name before it is allocated; what is left belongs to
batches, which live in slabs of one pool and are charged while anyone holds them.
"""

from __future__ import annotations

from collections.abc import Mapping

from outcrop import _core
from outcrop.errors import BudgetError
from outcrop.options import format_size, parse_size, size_of_at_least


class Budget:
    """The accountant of one loader. Not thread-safe: it is settled before threads start."""

    def __init__(self, memory: str | int) -> None:
        self.total_bytes = parse_size(memory)
        self.charges: dict[str, int] = {}
        """What is resident, by name."""

    @property
    def left_bytes(self) -> int:
        return self.total_bytes - sum(self.charges.values())

    def charge(self, needs: Mapping[str, int], batch_bytes: int, min_batches: int) -> None:
        """Charges `needs`; BudgetError where `min_batches` batches would not fit beside them."""
        needs = {name: amount for name, amount in needs.items() if amount}
        least = sum(needs.values()) + min_batches * batch_bytes
        taken = sum(self.charges.values())
        if taken + least > self.total_bytes:
            parts = [
                f"{name} {format_size(n)}" for name, n in (*self.charges.items(), *needs.items())
            ]
            parts.append(f"{min_batches} batches of {format_size(batch_bytes)}")
            raise BudgetError(
                f"memory={format_size(self.total_bytes)} is too little: "
                f"{', '.join(parts)}; the smallest that would do is "
                f"{size_of_at_least(taken + least)}"
            )
        for name, amount in needs.items():
            self.charges[name] = self.charges.get(name, 0) + amount

    def slabs(self) -> _core.SlabPool:
        """A pool of all that is left."""
        return _core.SlabPool(max(self.left_bytes, 0))
