"""Progress of long work: what a library function reports, and what the command line draws."""

from __future__ import annotations

import logging
from collections.abc import Callable

_LOG = logging.getLogger("outcrop")


class Progress:
    """Takes reports: amounts of work are for subclasses to draw, notes go to the log."""

    def stage(self, name: str, total: int | None = None, unit: str = "B") -> None:
        """A new stage begins; `total` units of work, None where that is not known."""

    def advance(self, amount: int) -> None:
        """`amount` more units of the current stage are done."""

    def note(self, text: str) -> None:
        """A sentence that a person should see: what was chosen, what is waited for."""
        _LOG.warning(text)


class Interruptible(Progress):
    """Each report is a chance to end."""

    def __init__(self, stop: Callable[[], None]) -> None:
        """`stop`: raises where the work is not wanted any more."""
        self._stop = stop

    def stage(self, *_: object) -> None:
        self._stop()

    def advance(self, _: int) -> None:
        self._stop()


SILENT = Progress()
