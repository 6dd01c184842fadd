"""Forks: what a process made is not its forked child's, neither to use nor to end.

Threads do not cross a fork, locks may be held by threads that are gone, and files on disk have one
owner. A child that uses such a thing is told so; one that drops it leaves it as it is.
"""

from __future__ import annotations

import os
from weakref import WeakSet

from outcrop import _core
from outcrop.errors import ForkedError

kept_from_children: WeakSet[object] = WeakSet()
"""A forked child never frees its copies of these: that would wait for threads, or remove files."""


class _Process:
    """This one; a forked child is another."""

    id = os.getpid()


PROCESS = _Process()


def forked(what: str, process: int) -> ForkedError:
    """What a forked child is told of a thing that another process made."""
    return ForkedError(
        f"this {what} belongs to process {process}, and threads do not cross a fork: make one in "
        f"this process ({PROCESS.id}), or start workers by spawn"
    )


def _leave_to_parent() -> None:
    PROCESS.id = os.getpid()
    for thing in list(kept_from_children):
        _core.never_free(thing)
    kept_from_children.clear()


os.register_at_fork(after_in_child=_leave_to_parent)
