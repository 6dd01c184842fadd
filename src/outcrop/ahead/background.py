"""Background: work of a thread of its own, that can be stopped, and whose result is waited for."""

from __future__ import annotations

import atexit
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Generic, TypeVar
from weakref import WeakSet

from outcrop.errors import CancelledError

T = TypeVar("T")

# How often a thread that waits looks for Ctrl-C.
_POLL_SECONDS = 0.1


class Stopper:
    """Tells long work that it is not wanted any more. Thread-safe."""

    def __init__(self) -> None:
        self.stopped = False
        self._lock = threading.Lock()
        self._cancels: list[Callable[[], None]] = []

    def __call__(self) -> None:
        """Between steps of the work: CancelledError once it is stopped."""
        if self.stopped:
            raise CancelledError("what was made ahead is not wanted any more")

    @contextmanager
    def calling(self, cancel: Callable[[], None]) -> Iterator[None]:
        """Within, `stop` also calls this."""
        with self._lock:
            self._cancels.append(cancel)
            stopped = self.stopped
        if stopped:
            cancel()
        try:
            yield
        finally:
            with self._lock:
                self._cancels.remove(cancel)

    def stop(self) -> None:
        with self._lock:
            self.stopped = True
            cancels = list(self._cancels)
        for cancel in cancels:
            cancel()


class Background(Generic[T]):
    """One piece of work. Begins at once; belongs to the thread that made it."""

    def __init__(self, make: Callable[[Stopper], T], name: str) -> None:
        self.stopper = Stopper()
        self._make = make
        self._done = threading.Event()
        self._result: list[T] = []
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=f"outcrop-{name}", daemon=True)
        _open_backgrounds.add(self)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._result.append(self._make(self.stopper))
        except BaseException as error:  # raised where the result is needed
            self._error = error
        del self._make
        self._done.set()

    def wait(self, closed: Callable[[], bool] = lambda: False) -> T:
        """The result; raises what making it raised. CancelledError once `closed` says so."""
        while not self._done.wait(_POLL_SECONDS):
            if closed():
                raise CancelledError("closed while what is made ahead was waited for")
        self._thread.join()
        if self._error is not None:
            raise self._error
        return self._result.pop()

    def cancel(self) -> list[T]:
        """Stops it -> the result, if there is one already."""
        self.stopper.stop()
        self._thread.join()
        return self._result


_open_backgrounds: WeakSet[Background[Any]] = WeakSet()


@atexit.register
def _cancel_all() -> None:
    # A daemon thread that wakes up while the interpreter is torn down may crash it.
    for background in list(_open_backgrounds):
        background.cancel()
