"""Progress of long work: what a library function reports, and what the command line draws."""

from __future__ import annotations


class Progress:
    """Takes reports and does nothing with them. Subclasses draw."""

    def stage(self, name: str, total: int | None = None, unit: str = "B") -> None:
        """A new stage begins; `total` units of work, None where that is not known."""

    def advance(self, amount: int) -> None:
        """`amount` more units of the current stage are done."""


SILENT = Progress()
