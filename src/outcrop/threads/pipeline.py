"""Pipeline: items of a source -> results, through stages on threads, a bounded number at a time."""

from __future__ import annotations

import atexit
import itertools
import sys
import threading
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from time import perf_counter
from typing import Any, Literal, NamedTuple
from weakref import WeakSet

from outcrop.errors import CancelledError, OptionError
from outcrop.threads.forks import PROCESS, forked

_MAX_EVENTS = 10_000
# A signal that arrives just before the main thread blocks is handled when it wakes up.
_POLL_SECONDS = 0.1


@dataclass(frozen=True)
class Stage:
    """One step: item -> item, on threads of its own."""

    name: str
    work: Callable[[Any], Any]
    """Runs on several items at once, in any order."""
    workers: int = 1
    admit: Callable[[Any, Callable[[], bool]], Any] | None = None
    """admit(item, closed) runs after `work` on the same thread, item by item in the source's order.

    It may wait for memory in short polls. Once `closed()` is True its item is not wanted any more,
    and it gives up by raising CancelledError.
    """
    in_order: bool = False
    """Whether items are taken up in the source's order, though they may be done in any. They always
    are with `admit`."""


@dataclass
class StageTimes:
    """What the threads of a stage did, summed over them."""

    items: int = 0
    busy_seconds: float = 0.0
    """In `work`; of the source: in its iterator."""
    admit_seconds: float = 0.0
    """In `admit`."""
    turn_seconds: float = 0.0
    """Waiting for the turn to admit."""
    wait_seconds: float = 0.0
    """Waiting for input; of the source: for fewer than `depth` items on the way."""

    def add(self, other: StageTimes) -> None:
        for each in fields(self):
            setattr(self, each.name, getattr(self, each.name) + getattr(other, each.name))


class Event(NamedTuple):
    """One call of `work` on one item, in seconds of time.perf_counter()."""

    stage: str
    number: int
    start: float
    end: float


@dataclass
class _Failure:
    error: BaseException


@dataclass
class _Place:
    """The source, a stage or the consumer, and the items that wait there.

    Guarded by the pipeline's lock.
    """

    name: str
    in_order: bool
    changed: threading.Condition
    ready: dict[int, Any] = field(default_factory=dict)
    taken: int = 0
    """The number after that of the item taken last."""
    turn: int = 0
    """The number of the item to be admitted next."""
    times: StageTimes = field(default_factory=StageTimes)

    def next_number(self) -> int | None:
        """The number of the item that can be taken now."""
        if self.in_order:
            return self.taken if self.taken in self.ready else None
        return min(self.ready, default=None)

    def take(self) -> tuple[int, Any] | None:
        number = self.next_number()
        if number is None:
            return None
        self.taken = number + 1
        return number, self.ready.pop(number)

    def wait(self, until: Callable[[], bool], poll_seconds: float | None = None) -> float:
        """Waits -> the seconds it took."""
        # To be added afterwards: `total += place.wait()` reads the total before others add to it.
        start = perf_counter()
        while not self.changed.wait_for(until, poll_seconds):
            pass
        return perf_counter() - start


class Pipeline:
    """source -> stages -> the loop over it, with at most `depth` items on the way.

    order "exact" gives results in the source's order; "completion" gives whichever is done, of
    several the lowest number. The source is read on a thread as well. An exception anywhere is
    raised in the loop, after the results before it; the items after it are dropped. The end of the
    loop, however it comes, ends all threads.

    Thread-safe, apart from the iteration itself. Can be iterated once. Belongs to the process that
    made it.
    """

    def __init__(
        self,
        source: Iterable[Any],
        stages: Sequence[Stage],
        depth: int,
        order: Literal["exact", "completion"] = "exact",
        cancel: Callable[[], None] | None = None,
    ) -> None:
        """`cancel`: called when it closes, to shorten what `work` and the source are doing."""
        _check(stages, depth, order)
        # Constant after construction. The lock is reentrant because garbage collection may close
        # the pipeline on a thread that holds it.
        self._lock = threading.RLock()
        self._ended = threading.Condition(self._lock)
        self._arrived = threading.Condition(self._lock)
        self._feeder = self._place("source", in_order=True)
        # Items are taken in order where they are admitted in order: else all workers could wait
        # for the turn of an item that none of them has.
        self._stages = [
            (s, self._place(s.name, in_order=s.in_order or s.admit is not None)) for s in stages
        ]
        self._consumer = self._place("consumer", in_order=order == "exact")
        self._places = [self._feeder, *(place for _, place in self._stages), self._consumer]
        self._depth = depth
        self._cancel = cancel
        self._process = PROCESS.id
        # Guarded by _lock
        self._source: Iterable[Any] = source
        self._iterated = False
        self._threads: list[threading.Thread] = []
        self._running: set[threading.Thread] = set()
        self._on_the_way: set[int] = set()
        self._exhausted = False
        self._events: list[Event] = []
        # Written under _lock, read without it: admit may ask while it holds locks of its own
        self._closed = False
        self._failed = sys.maxsize
        self._waiting_for: int | None = None

    def _place(self, name: str, *, in_order: bool) -> _Place:
        return _Place(name, in_order, threading.Condition(self._lock))

    @property
    def waiting_for(self) -> int | None:
        """The lowest number that the consumer has not received, while it waits; else None."""
        return self._waiting_for

    def drain(self, number: int) -> None:
        """Waits until all items before this one have passed every stage.

        For `admit` of the first stage; returns as well once the item is not wanted any more.
        """
        with self._lock:
            self._arrived.wait_for(lambda: self._dropped(number) or self._passed(number))

    def _passed(self, number: int) -> bool:
        return all(n in self._consumer.ready for n in self._on_the_way if n < number)

    @property
    def timings(self) -> dict[str, StageTimes]:
        """By stage, so far; "source" and "consumer" are the two ends."""
        with self._lock:
            return {place.name: replace(place.times) for place in self._places}

    @property
    def queue_lengths(self) -> dict[str, int]:
        """How many items wait now before each stage, and for the loop: "consumer"."""
        with self._lock:
            return {place.name: len(place.ready) for place in self._places[1:]}

    @property
    def consumer_wait_seconds(self) -> float:
        """How long the loop waited for results."""
        return self._consumer.times.wait_seconds

    @property
    def events(self) -> list[Event]:
        """The first 10,000 items of any stage and of the source, for a timeline."""
        with self._lock:
            return list(self._events)

    # On the consumer's thread

    def __iter__(self) -> Generator[Any, None, None]:
        if PROCESS.id != self._process:
            raise forked("iterator", self._process)
        with self._lock:
            if self._iterated:
                raise RuntimeError("a pipeline can be iterated once: make another")
            self._iterated = True
        return self._results()

    def _results(self) -> Generator[Any, None, None]:
        # No thread refers to this generator: to drop it is to close the pipeline.
        try:
            self._start()
            while box := self._receive():
                yield box.pop()  # not kept here while the loop has it
        finally:
            self.close()

    def _start(self) -> None:
        with self._lock:
            _open_pipelines.add(self)
            # chain calls iter() with the first next(): a source may fail there too.
            source, self._source = itertools.chain(self._source), ()
            self._start_thread("source", partial(self._feed, source))
            for (stage, place), following in zip(self._stages, self._places[2:], strict=True):
                for _ in range(stage.workers):
                    self._start_thread(stage.name, partial(self._step, stage, place, following))

    def _start_thread(self, name: str, step: Callable[[], bool]) -> None:
        name = f"outcrop-{name}"
        thread = threading.Thread(target=self._repeat, args=(step,), name=name, daemon=True)
        thread.start()  # where a Ctrl-C may come between its start and the next line
        self._threads.append(thread)

    def _receive(self) -> list[Any]:
        """The next result, in a list of one; an empty list at the end."""
        if PROCESS.id != self._process:  # first: who had the lock may be gone
            raise forked("iterator", self._process)
        with self._lock:
            self._await_result()
            if self._closed:
                raise CancelledError("the pipeline was closed before its end")
            taken = self._consumer.take()
            if taken is None:
                return []
            number, result = taken
            self._consumer.times.items += 1
            self._on_the_way.remove(number)
            self._feeder.changed.notify_all()
        if isinstance(result, _Failure):
            try:
                raise result.error
            finally:
                del taken, result  # the error's traceback has this frame: a cycle
        return [result]

    def _await_result(self) -> None:
        if self._has_result_or_end():
            return
        self._waiting_for = min(self._on_the_way, default=self._feeder.taken)
        try:
            seconds = self._consumer.wait(self._has_result_or_end, _POLL_SECONDS)
            self._consumer.times.wait_seconds += seconds
        finally:
            self._waiting_for = None

    def _has_result_or_end(self) -> bool:
        done = self._closed or (self._exhausted and not self._on_the_way)
        return done or self._consumer.next_number() is not None

    def close(self) -> None:
        """Drops all items and ends all threads, after the calls of `work` that are under way.

        On one of these threads it does not wait for them.
        """
        if PROCESS.id != self._process:
            return
        with self._lock:
            self._closed = True
            for place in self._places:
                place.ready.clear()
                place.changed.notify_all()
            self._arrived.notify_all()
            if threading.current_thread() in self._running:
                return
        if self._cancel is not None:
            self._cancel()
        with self._lock:
            # Unlike join, this lets go of the lock where garbage collection closes under it.
            while not self._ended.wait_for(lambda: not self._running, _POLL_SECONDS):
                pass
        for thread in self._threads:
            thread.join()

    # On the pipeline's threads

    def _repeat(self, step: Callable[[], bool]) -> None:
        # Threads report themselves: whoever starts one may be interrupted before it is noted.
        with self._lock:
            if self._closed:
                return
            self._running.add(threading.current_thread())
        # Each step is a call, so that no variable keeps an item while the next is awaited.
        try:
            while step():
                pass
        finally:
            with self._lock:
                self._running.remove(threading.current_thread())
                self._ended.notify_all()

    def _feed(self, source: Iterator[Any]) -> bool:
        """One item of the source -> the first stage; False where no more will come."""
        number = self._reserve()
        if number is None:
            return False
        try:
            self._put(self._places[1], number, self._work(self._feeder, next, number, source))
            return True
        except StopIteration:
            self._end(number)
        except BaseException as error:
            self._fail(self._feeder, number, error)
        return False

    def _reserve(self) -> int | None:
        """Waits until another item may be on the way -> its number; None where it is dropped."""
        feeder = self._feeder
        with self._lock:
            number = feeder.taken
            seconds = feeder.wait(
                lambda: len(self._on_the_way) < self._depth or self._dropped(number)
            )
            feeder.times.wait_seconds += seconds
            if self._dropped(number):
                return None
            feeder.taken += 1
            self._on_the_way.add(number)
            return number

    def _end(self, number: int) -> None:
        with self._lock:
            self._on_the_way.remove(number)
            self._exhausted = True
            self._consumer.changed.notify_all()

    def _step(self, stage: Stage, place: _Place, following: _Place) -> bool:
        """One item through a stage; False where the pipeline is closed."""
        taken = self._take(place)
        if taken is None:
            return False
        number, item = taken
        del taken  # it would keep the input beside the output
        try:
            item = self._work(place, stage.work, number, item)
            if stage.admit is not None:
                item = self._admit(place, stage.admit, number, item)
            self._put(following, number, item)
        except BaseException as error:
            self._fail(place, number, error)
        return True

    def _take(self, place: _Place) -> tuple[int, Any] | None:
        with self._lock:
            seconds = place.wait(lambda: self._closed or place.next_number() is not None)
            place.times.wait_seconds += seconds
            return place.take()

    def _work(self, place: _Place, work: Callable[[Any], Any], number: int, item: Any) -> Any:
        start = perf_counter()
        item = work(item)
        end = perf_counter()
        with self._lock:
            place.times.items += 1
            place.times.busy_seconds += end - start
            if len(self._events) < _MAX_EVENTS:
                self._events.append(Event(place.name, number, start, end))
        return item

    def _admit(self, place: _Place, admit: Callable[..., Any], number: int, item: Any) -> Any:
        with self._lock:
            seconds = place.wait(lambda: place.turn == number or self._dropped(number))
            place.times.turn_seconds += seconds
            if self._dropped(number):
                raise CancelledError("the pipeline was closed, or an earlier item failed")
        start = perf_counter()
        item = admit(item, lambda: self._dropped(number))
        with self._lock:
            place.times.admit_seconds += perf_counter() - start
            place.turn += 1
            place.changed.notify_all()
        return item

    def _put(self, place: _Place, number: int, item: Any) -> None:
        with self._lock:
            if not self._dropped(number):
                place.ready[number] = item
                place.changed.notify_all()
                if place is self._consumer:
                    self._arrived.notify_all()

    def _fail(self, place: _Place, number: int, error: BaseException) -> None:
        """The error takes the item's place among the results; the items after it are dropped."""
        with self._lock:
            if self._dropped(number):
                return
            if sys.version_info >= (3, 11):
                error.add_note(f"in stage {place.name!r} of the pipeline, at item {number}")
            self._failed = number
            for each in self._places:
                for later in [late for late in each.ready if late > number]:
                    del each.ready[later]
                each.changed.notify_all()
            self._consumer.ready[number] = _Failure(error)
            self._arrived.notify_all()

    def _dropped(self, number: int) -> bool:
        return self._closed or number > self._failed


_open_pipelines: WeakSet[Pipeline] = WeakSet()


@atexit.register
def _close_all() -> None:
    # A daemon thread that wakes up while the interpreter is torn down may crash it.
    for pipeline in list(_open_pipelines):
        pipeline.close()


def _check(stages: Sequence[Stage], depth: int, order: str) -> None:
    if depth < 1:
        raise OptionError(f"depth must be at least 1 (got {depth})")
    if order not in ("exact", "completion"):
        raise OptionError(f"order must be exact or completion (got {order!r})")
    names = ["source", *(stage.name for stage in stages), "consumer"]
    if len(set(names)) < len(names):
        raise OptionError(f"each stage needs a name of its own (got {names[1:-1]})")
    for stage in stages:
        if stage.workers < 1:
            raise OptionError(f"workers of {stage.name} must be at least 1 (got {stage.workers})")
