"""Refresh: the next epochs are prepared by a thread of its own while the current ones train.

A generation is some epochs with a trace and a pack of their own. There are two at most: the one
that is used, and the next.
"""

from __future__ import annotations

import atexit
import threading
from collections.abc import Callable
from pathlib import Path
from weakref import WeakSet

from outcrop.errors import CancelledError
from outcrop.pack.prepare import PackSpec
from outcrop.progress import Progress
from outcrop.store.derived import Garbage, Layout, remove
from outcrop.store.store import GraphStore

# How often whoever waits looks for Ctrl-C.
_POLL_SECONDS = 0.1

Prepare = Callable[[PackSpec, Progress], list[Layout]]


class Refresh:
    """Prepares one generation at a time. Not thread-safe: one thread asks."""

    def __init__(self, prepare: Prepare) -> None:
        """`prepare` gives open layouts. It is called on the thread, and tells its progress."""
        self._prepare = prepare
        self._work: _Work | None = None
        _open_refreshes.add(self)

    def start(self, spec: PackSpec) -> None:
        """Returns at once. What is under way for other epochs, or done, is given up."""
        if self._work is None or self._work.spec != spec:
            for path in self.cancel():  # there is disk for one beside the one that is used
                discard(path)
            self._work = _Work(self._prepare, spec)

    def take(self, spec: PackSpec) -> list[Layout]:
        """Waits for the layouts, which are the caller's then; raises what their making met."""
        self.start(spec)
        assert self._work is not None
        while not self._work.done.wait(_POLL_SECONDS):
            pass
        work, self._work = self._work, None
        return work.result()

    def cancel(self) -> list[Path]:
        """Ends what is under way; packing goes on where it was when it is asked for again.

        Gives the layouts that were done, and that stay.
        """
        work, self._work = self._work, None
        return [] if work is None else work.cancel()


class _Work(Progress):
    """One generation in the making."""

    def __init__(self, prepare: Prepare, spec: PackSpec) -> None:
        self.spec = spec
        self.done = threading.Event()
        self._prepare = prepare
        self._stopped = False
        self._layouts: list[Layout] = []
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="outcrop-refresh", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._layouts = self._prepare(self.spec, self)
        except _Stopped:
            self._error = CancelledError("the preparation of the next epochs was given up")
        except BaseException as error:  # raised where its result is needed
            self._error = error
        self.done.set()

    # Each report is a chance to end.

    def stage(self, *_: object) -> None:
        self._check()

    def advance(self, _: int) -> None:
        self._check()

    def _check(self) -> None:
        if self._stopped:
            raise _Stopped

    def result(self) -> list[Layout]:
        self._thread.join()
        if self._error is not None:
            raise self._error
        return self._layouts

    def cancel(self) -> list[Path]:
        self._stopped = True
        self._thread.join()
        for layout in self._layouts:
            layout.close()
        return [layout.path for layout in self._layouts]


class _Stopped(BaseException):
    """As an interrupt, and unlike an error, it leaves work that can be gone on with."""


_open_refreshes: WeakSet[Refresh] = WeakSet()


@atexit.register
def _cancel_all() -> None:
    # A daemon thread that wakes up while the interpreter is torn down may crash it.
    for refresh in list(_open_refreshes):
        refresh.cancel()


def discard(path: Path) -> None:
    """Removes a layout that is used up, unless others use it or have removed it."""
    if path.exists():
        remove(Garbage(path, "used up", 0))


def left_by_others(store: GraphStore, spec: PackSpec) -> dict[int, list[Path]]:
    """Generations of the same run that are on disk, by their first epoch: traces, then packs."""
    found: dict[int, list[Path]] = {}
    for kind in ("trace", "pack"):
        for path, inputs in store.derived.records(kind):
            trace = inputs if kind == "trace" else inputs.get("trace", {})
            if trace.get("first_epoch") is not None and _any_epochs(trace) == _any_epochs(
                spec.trace_inputs
            ):
                found.setdefault(trace["first_epoch"], []).append(path)
    return found


def _any_epochs(inputs: dict[str, object]) -> dict[str, object]:
    return {name: value for name, value in inputs.items() if name not in ("first_epoch", "epochs")}
