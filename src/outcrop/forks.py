"""Forks: what a process made is not its forked child's, neither to use nor to end.

Threads do not cross a fork, locks may be held by threads that are gone, and files on disk have one
owner. A child that uses such a thing is told so; one that drops it leaves it as it is.
"""

from __future__ import annotations

import os
from weakref import WeakSet

from outcrop import _core
from outcrop.errors import ForkedError

_owned: WeakSet[object] = WeakSet()


class Origin:
    """The process that made a thing."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._process = os.getpid()

    @property
    def here(self) -> bool:
        return os.getpid() == self._process

    def check(self) -> None:
        """ForkedError in a forked child."""
        if not self.here:
            raise ForkedError(
                f"this {self._what} belongs to process {self._process}, and threads do not cross a "
                f"fork: make one in this process ({os.getpid()}), or start workers by spawn"
            )


def keep_from_children(thing: object) -> None:
    """A forked child never frees its copy: that would wait for threads, or remove files."""
    _owned.add(thing)


def _leave_to_parent() -> None:
    for thing in list(_owned):
        _core.never_free(thing)
    _owned.clear()


os.register_at_fork(after_in_child=_leave_to_parent)
