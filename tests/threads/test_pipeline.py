"""The pipeline: order, bounds, errors at their place, and no thread left behind."""

from __future__ import annotations

import gc
import random
import signal
import subprocess
import sys
import threading
import time
import traceback
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outcrop.errors import CancelledError, OptionError
from outcrop.threads.pipeline import Pipeline, Stage
from tests.processes import running

pytestmark = pytest.mark.timeout(60)  # what is not woken hangs

Order = Literal["exact", "completion"]
Closed = Callable[[], bool]
ORDERS: list[Order] = ["exact", "completion"]


class BoomError(Exception):
    """The error that these tests cause."""


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    before = set(threading.enumerate())
    yield
    assert set(threading.enumerate()) <= before


def same(item: Any) -> Any:
    return item


def jitter(item: Any) -> Any:
    time.sleep(random.random() * 0.003)
    return item


def fail_at(number: int) -> Callable[[int], int]:
    def work(item: int) -> int:
        if item == number:
            raise BoomError(number)
        return item

    return work


def wait_until_closed(item: Any, closed: Closed) -> Any:
    while not closed():
        time.sleep(0.001)
    raise CancelledError("closed")


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def read_until_error(pipeline: Iterable[Any]) -> tuple[list[Any], BaseException]:
    """The results before the error, and the error."""
    results = []
    with pytest.raises(BaseException) as caught:
        for result in pipeline:
            results.append(result)
    return results, caught.value


class Log:
    """Items as an `admit` saw them; fails where two calls overlap."""

    def __init__(self) -> None:
        self.items: list[int] = []
        self._busy = threading.Lock()

    def admit(self, item: int, _closed: Closed) -> int:
        assert self._busy.acquire(blocking=False)
        self.items.append(item)
        time.sleep(0.0002)
        self._busy.release()
        return item


class Box:
    """An item that can be watched while it is freed."""


# Order


def test_order_is_kept_with_several_workers_and_random_delays() -> None:
    stages = [
        Stage("double", lambda item: jitter(item) * 2, workers=4),
        Stage("add", lambda item: jitter(item) + 1, workers=3),
    ]
    assert list(Pipeline(range(150), stages, depth=12)) == [2 * i + 1 for i in range(150)]


def test_completion_order_gives_the_same_set() -> None:
    pipeline = Pipeline(range(150), [Stage("jitter", jitter, workers=4)], 12, "completion")
    assert sorted(pipeline) == list(range(150))


def test_completion_order_overtakes_a_slow_item() -> None:
    others_received = threading.Event()

    def work(item: int) -> int:
        assert item > 0 or others_received.wait(20)
        return item

    received = []
    for item in Pipeline(range(20), [Stage("work", work, workers=2)], 4, "completion"):
        received.append(item)
        if len(received) == 19:
            others_received.set()
    assert received == [*range(1, 20), 0]


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("source", [[], [7]])
def test_short_sources(source: list[int], order: Order) -> None:
    assert list(Pipeline(source, [Stage("same", same, workers=3)], 5, order)) == source


def test_without_stages_the_source_is_read_ahead() -> None:
    assert list(Pipeline(iter(range(30)), [], depth=3)) == list(range(30))


def test_items_are_passed_on_and_never_compared() -> None:
    class Tensor:
        def __eq__(self, other: object) -> bool:
            raise BoomError

        def __bool__(self) -> bool:
            raise BoomError

    assert len(list(Pipeline([Tensor(), Tensor()], [Stage("same", same)], 2))) == 2
    assert list(Pipeline([None, False, [], None], [Stage("same", same)], 2)) == [
        None, False, [], None,
    ]  # fmt: skip


def test_the_source_is_read_and_the_stages_run_on_other_threads() -> None:
    def source() -> Iterator[threading.Thread]:
        for _ in range(3):
            yield threading.current_thread()

    pairs = list(Pipeline(source(), [Stage("s", lambda t: (t, threading.current_thread()))], 2))
    feeders = {feeder for feeder, _ in pairs}
    workers = {worker for _, worker in pairs}
    assert len(feeders) == len(workers) == 1
    assert len(feeders | workers | {threading.current_thread()}) == 3
    assert all(thread.daemon for thread in feeders | workers)


def test_work_runs_on_several_items_at_once() -> None:
    barrier = threading.Barrier(3, timeout=20)

    def work(item: int) -> int:
        barrier.wait()
        return item

    assert list(Pipeline(range(6), [Stage("work", work, workers=3)], 3)) == list(range(6))


# Depth


def test_queue_lengths_are_of_the_items_that_wait() -> None:
    gate = threading.Semaphore(0)

    def pass_gate(item: int) -> int:
        gate.acquire()
        return item

    pipeline = Pipeline(range(10), [Stage("first", same), Stage("second", pass_gate)], depth=5)
    assert pipeline.queue_lengths == {"first": 0, "second": 0, "consumer": 0}
    results = iter(pipeline)
    gate.release()
    assert next(results) == 0
    # One of five is at work in the second stage.
    wait_for(lambda: pipeline.queue_lengths == {"first": 0, "second": 4, "consumer": 0})
    for _ in range(3):
        gate.release()
    wait_for(lambda: pipeline.queue_lengths == {"first": 0, "second": 1, "consumer": 3})
    assert next(results) == 1
    wait_for(lambda: pipeline.queue_lengths == {"first": 0, "second": 2, "consumer": 2})
    for _ in range(10):
        gate.release()
    results.close()
    assert set(pipeline.queue_lengths.values()) == {0}


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("depth", [1, 2, 5])
def test_depth_is_reached_and_never_exceeded(depth: int, order: Order) -> None:
    taken = received = most = 0

    def source() -> Iterator[int]:
        nonlocal taken, most
        for item in range(60):
            taken += 1
            most = max(most, taken - received)
            yield item

    stages = [Stage("a", jitter, workers=3), Stage("b", same, workers=3)]
    for _ in Pipeline(source(), stages, depth, order):
        received += 1
        expected = min(60, received + depth)
        wait_for(lambda: taken >= expected)  # noqa: B023
        if received == 10:
            time.sleep(0.02)  # for what may come too much
        assert taken == expected
    # The loop counts an item as received a moment after the pipeline does.
    assert most <= depth + 1


def test_a_depth_below_the_number_of_workers_is_the_bound() -> None:
    lock = threading.Lock()
    now = most = 0

    def work(item: int) -> int:
        nonlocal now, most
        with lock:
            now += 1
            most = max(most, now)
        time.sleep(0.001)
        with lock:
            now -= 1
        return item

    assert len(list(Pipeline(range(40), [Stage("work", work, workers=6)], depth=2))) == 40
    assert most <= 2


# Admission


@pytest.mark.parametrize("order", ORDERS)
def test_items_are_admitted_one_at_a_time_in_order(order: Order) -> None:
    log = Log()
    stages = [Stage("a", jitter, workers=4), Stage("b", jitter, workers=3, admit=log.admit)]
    assert sorted(Pipeline(range(80), stages, 10, order)) == list(range(80))
    assert log.items == list(range(80))


def test_what_admit_returns_is_passed_on() -> None:
    stage = Stage("stage", lambda item: item + 1, admit=lambda item, closed: (item, closed()))
    assert list(Pipeline(range(3), [stage], 2)) == [(1, False), (2, False), (3, False)]


def test_items_before_one_that_failed_in_work_are_still_admitted_in_order() -> None:
    failed = threading.Event()
    log = Log()

    def work(item: int) -> int:
        if item == 3:
            failed.set()
            raise BoomError
        assert failed.wait(20)
        return item

    stage = Stage("stage", work, workers=4, admit=log.admit)
    results, error = read_until_error(Pipeline(range(20), [stage], 8))
    assert isinstance(error, BoomError)
    assert results == log.items == [0, 1, 2]


def test_a_late_first_item_does_not_block_the_workers_that_admit() -> None:
    late = threading.Event()

    def work(item: int) -> int:
        if item == 0:
            assert late.wait(20)
        elif item == 3:
            late.set()
        return item

    log = Log()
    stages = [Stage("a", work, workers=2), Stage("b", same, workers=2, admit=log.admit)]
    assert list(Pipeline(range(10), stages, 8)) == list(range(10))
    assert log.items == list(range(10))


def test_admit_sees_which_item_the_consumer_waits_for() -> None:
    seen = []

    def admit(item: int, closed: Closed) -> int:
        if item % 3 == 0:  # nothing is ready: the consumer comes to wait for this one
            wait_for(lambda: pipeline.waiting_for == item)
        seen.append(item)
        return item

    pipeline = Pipeline(range(9), [Stage("stage", same, workers=2, admit=admit)], 4)
    assert pipeline.waiting_for is None
    for _ in pipeline:
        assert pipeline.waiting_for is None
    assert pipeline.waiting_for is None
    assert seen == list(range(9))


def test_in_completion_order_the_consumer_waits_for_the_lowest_number() -> None:
    def work(item: int) -> int:
        if item == 1:  # 0, 2 and 3 are delivered meanwhile
            wait_for(lambda: pipeline.waiting_for == 1 and len(received) == 3)
        return item

    received: list[int] = []
    pipeline = Pipeline(range(4), [Stage("work", work, workers=2)], 4, "completion")
    for item in pipeline:
        received.append(item)
    assert sorted(received) == list(range(4))
    assert received[-1] == 1


def test_the_consumer_waits_for_an_item_that_the_source_has_not_given() -> None:
    def source() -> Iterator[int]:
        for item in range(3):
            wait_for(lambda: pipeline.waiting_for == item)  # noqa: B023
            yield item

    pipeline = Pipeline(source(), [Stage("same", same)], 2)
    assert list(pipeline) == [0, 1, 2]


def test_admit_and_those_waiting_for_their_turn_are_woken_at_close() -> None:
    worked = []

    def work(item: int) -> int:
        worked.append(item)
        return item

    pipeline = Pipeline(range(9), [Stage("stage", work, workers=4, admit=wait_until_closed)], 9)
    reader = threading.Thread(target=read_until_error, args=(pipeline,))
    reader.start()
    wait_for(lambda: len(worked) == 4)
    pipeline.close()
    reader.join()
    assert sorted(worked) == [0, 1, 2, 3]


def test_admit_gives_up_on_an_item_after_one_that_failed() -> None:
    waits = threading.Event()
    gave_up = threading.Event()

    def admit(item: int, closed: Closed) -> int:
        if item < 2:
            return item
        waits.set()
        while not closed():
            time.sleep(0.001)
        gave_up.set()
        raise CancelledError("closed")

    def work(item: int) -> int:
        if item == 1:
            assert waits.wait(20)
            raise BoomError
        assert gave_up.wait(20)  # before item 0 is delivered, so before the pipeline closes
        return item

    stages = [Stage("a", same, admit=admit), Stage("b", work, workers=2)]
    results, error = read_until_error(Pipeline(range(9), stages, 9))
    assert results == [0]
    assert isinstance(error, BoomError)


# Errors


def failing_source(number: int) -> Iterator[int]:
    yield from range(number)
    raise BoomError(number)


def failing_admit(number: int) -> Callable[[int, Closed], int]:
    return lambda item, _: fail_at(number)(item)


@pytest.mark.parametrize(
    "place, source, stage",
    [
        ("source", failing_source(7), Stage("stage", jitter, workers=3)),
        ("stage", range(30), Stage("stage", lambda i: fail_at(7)(jitter(i)), workers=3)),
        ("stage", range(30), Stage("stage", jitter, workers=3, admit=failing_admit(7))),
    ],
    ids=["source", "work", "admit"],
)
def test_an_error_is_raised_at_its_position_after_earlier_results(
    place: str, source: Iterable[int], stage: Stage
) -> None:
    pipeline = Pipeline(source, [Stage("before", jitter, workers=2), stage], 6)
    results, error = read_until_error(pipeline)
    assert results == list(range(7))
    assert isinstance(error, BoomError) and error.args == (7,)
    frames = [frame.name for frame in traceback.extract_tb(error.__traceback__)]
    assert frames[0] == "read_until_error"
    assert frames[-1] in ("failing_source", "work")
    if sys.version_info >= (3, 11):
        assert error.__notes__ == [f"in stage {place!r} of the pipeline, at item 7"]


def test_a_source_that_fails_in_iter_fails_on_its_own_thread() -> None:
    class Source:
        def __iter__(self) -> Iterator[int]:
            raise BoomError(threading.current_thread().name)

    results, error = read_until_error(Pipeline(Source(), [Stage("same", same)], 2))
    assert results == []
    assert isinstance(error, BoomError) and error.args == ("outcrop-source",)


def test_of_several_errors_the_one_of_the_first_item_is_raised() -> None:
    second_failed = threading.Event()

    def work(item: int) -> int:
        if item == 4:
            second_failed.set()
            raise BoomError(4)
        if item == 2:
            assert second_failed.wait(20)
            raise BoomError(2)
        return item

    results, error = read_until_error(Pipeline(range(9), [Stage("work", work, workers=4)], 9))
    assert results == [0, 1]
    assert error.args == (2,)


def test_an_error_ends_a_pipeline_in_completion_order() -> None:
    stage = Stage("work", lambda item: fail_at(7)(jitter(item)), workers=3)
    results, error = read_until_error(Pipeline(range(1000), [stage], 6, "completion"))
    assert isinstance(error, BoomError)
    assert len(results) == len(set(results)) < 20


def test_after_an_error_the_source_is_not_read_on() -> None:
    read = []

    def source() -> Iterator[int]:
        for item in range(1000):
            read.append(item)
            yield item

    read_until_error(Pipeline(source(), [Stage("work", fail_at(3))], 4))
    assert len(read) <= 3 + 4


def test_a_cancelled_error_of_the_work_itself_is_an_error() -> None:
    def admit(item: int, closed: Closed) -> int:
        raise CancelledError("the disk was closed")

    _, error = read_until_error(Pipeline(range(3), [Stage("stage", same, admit=admit)], 2))
    assert isinstance(error, CancelledError) and error.args == ("the disk was closed",)


def test_stop_iteration_in_work_does_not_pass_for_the_end() -> None:
    def work(item: int) -> int:
        raise StopIteration

    _, error = read_until_error(Pipeline(range(3), [Stage("work", work)], 2))
    assert isinstance(error, RuntimeError)
    assert isinstance(error.__cause__, StopIteration)


def test_a_caught_error_is_freed_at_once() -> None:
    class WatchedError(Exception):
        pass

    def work(item: int) -> int:
        raise WatchedError

    def run() -> weakref.ref[WatchedError] | None:
        try:
            list(Pipeline(range(3), [Stage("work", work)], 2))
        except WatchedError as error:
            return weakref.ref(error)
        return None

    gc.disable()
    try:
        watched = run()
        assert watched is not None and watched() is None
    finally:
        gc.enable()


# The end


def endless(stage: Stage | None = None) -> Pipeline:
    return Pipeline(iter(int, 1), [stage or Stage("jitter", jitter, workers=3)], 6)


def own_threads() -> list[str]:
    return [t.name for t in threading.enumerate() if t.name.startswith("outcrop-")]


def test_threads_start_at_the_first_item() -> None:
    iterator = iter(endless())
    assert own_threads() == []
    next(iterator)
    assert sorted(own_threads()) == 3 * ["outcrop-jitter"] + ["outcrop-source"]
    iterator.close()


def test_exhaustion_leaves_no_thread() -> None:
    list(Pipeline(range(5), [Stage("jitter", jitter, workers=3)], 3))
    assert own_threads() == []


def test_break_leaves_no_thread() -> None:
    for _ in endless():
        break
    assert own_threads() == []


def test_an_exception_in_the_loop_leaves_no_thread() -> None:
    with pytest.raises(BoomError):
        for _ in endless():
            raise BoomError
    assert own_threads() == []


def test_an_error_in_the_pipeline_leaves_no_thread() -> None:
    _, error = read_until_error(Pipeline(range(9), [Stage("work", fail_at(2), workers=3)], 6))
    assert isinstance(error, BoomError)
    assert own_threads() == []


def test_dropping_the_generator_leaves_no_thread() -> None:
    pipeline = endless()
    iterator = iter(pipeline)
    next(iterator)
    del iterator
    assert own_threads() == []


def test_garbage_collection_of_the_generator_leaves_no_thread() -> None:
    cycle: list[Any] = [iter(endless())]
    cycle.append(cycle)
    next(cycle[0])
    gc.collect()
    assert own_threads() != []
    del cycle
    gc.collect()
    assert own_threads() == []


def test_garbage_collection_on_a_thread_that_holds_the_lock_leaves_no_thread() -> None:
    pipeline = endless()
    iterator = iter(pipeline)
    next(iterator)
    with pipeline._lock:
        del iterator
        assert own_threads() == []


def test_dropping_the_generator_on_a_thread_of_the_pipeline_does_not_block_it() -> None:
    holder: list[Any] = []

    def work(item: int) -> int:
        if item == 2:
            assert only_here.wait(20)
            holder.clear()
        return item

    only_here = threading.Event()
    holder.append(iter(Pipeline(range(9), [Stage("work", work, workers=2)], 4)))
    next(holder[0])
    only_here.set()
    wait_for(lambda: own_threads() == [])
    assert holder == []


def test_close_from_another_thread_leaves_no_thread_and_tells_the_consumer() -> None:
    pipeline = endless(Stage("stage", same, workers=3, admit=wait_until_closed))
    caught: list[BaseException] = []
    reader = threading.Thread(target=lambda: caught.append(read_until_error(pipeline)[1]))
    reader.start()
    wait_for(lambda: pipeline.waiting_for == 0)
    closers = [threading.Thread(target=pipeline.close) for _ in range(4)]
    for closer in closers:
        closer.start()
    for closer in closers:
        closer.join()
    assert own_threads() == []
    reader.join()
    assert isinstance(caught[0], CancelledError)


def test_close_waits_for_the_work_under_way() -> None:
    began, ended = threading.Event(), threading.Event()

    def work(item: int) -> int:
        began.set()
        time.sleep(0.05)
        ended.set()
        return item

    pipeline = endless(Stage("work", work))
    reader = threading.Thread(target=read_until_error, args=(pipeline,))
    reader.start()
    assert began.wait(20)
    pipeline.close()
    assert ended.is_set()
    reader.join()


def test_close_is_idempotent_and_ends_the_iteration() -> None:
    pipeline = endless()
    iterator = iter(pipeline)
    next(iterator)
    pipeline.close()
    pipeline.close()
    assert own_threads() == []
    with pytest.raises(CancelledError):
        next(iterator)


def test_a_pipeline_closed_before_its_start_reads_nothing() -> None:
    source = iter(range(3))
    pipeline = Pipeline(source, [Stage("same", same)], 2)
    pipeline.close()
    with pytest.raises(CancelledError):
        list(pipeline)
    assert list(source) == [0, 1, 2]


def test_a_thread_that_cannot_start_leaves_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    start = threading.Thread.start

    def limited(thread: threading.Thread) -> None:
        if len(own_threads()) == 2:
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", limited)
    with pytest.raises(RuntimeError, match="can't start"):
        list(endless())
    assert own_threads() == []


def test_a_second_iteration_is_refused_and_harmless() -> None:
    pipeline = Pipeline(range(5), [Stage("same", same)], 2)
    iterator = iter(pipeline)
    next(iterator)
    with pytest.raises(RuntimeError, match="once"):
        iter(pipeline)
    assert list(iterator) == [1, 2, 3, 4]


def test_a_pipeline_can_be_the_source_of_another() -> None:
    def chained() -> Pipeline:
        inner = Pipeline(range(1000), [Stage("inner", jitter, workers=2)], 3)
        return Pipeline(inner, [Stage("outer", jitter, workers=2)], 3)

    pipeline = chained()
    for item in pipeline:
        if item == 5:
            break
    assert own_threads() == []


# Memory


def test_an_item_is_not_kept_after_the_loop_has_dropped_it() -> None:
    stages = [Stage("a", same, workers=2), Stage("b", same, admit=lambda item, _: item)]
    pipeline = Pipeline((Box() for _ in range(3)), stages, 1)
    for box in pipeline:
        watched = weakref.ref(box)
        del box
        wait_for(lambda: watched() is None)  # noqa: B023


def test_close_drops_the_items_on_the_way() -> None:
    made: weakref.WeakSet[Box] = weakref.WeakSet()

    def source() -> Iterator[Box]:
        while True:
            box = Box()
            made.add(box)
            yield box

    pipeline = Pipeline(source(), [Stage("same", same)], 5)
    iterator = iter(pipeline)
    next(iterator)
    wait_for(lambda: len(made) == 5)
    pipeline.close()
    assert len(made) == 0


# What it tells


def test_timings_add_up() -> None:
    def work(item: int) -> int:
        wait_for(lambda: item > 0 or pipeline.waiting_for == 0)
        time.sleep(0.005)
        return item

    def admit(item: int, closed: Closed) -> int:
        time.sleep(0.002)
        return item

    pipeline = Pipeline(range(20), [Stage("stage", work, workers=2, admit=admit)], 4)
    start = time.perf_counter()
    assert len(list(pipeline)) == 20
    seconds = time.perf_counter() - start
    times = pipeline.timings
    assert list(times) == ["source", "stage", "consumer"]
    assert [each.items for each in times.values()] == [20, 20, 20]
    stage = times["stage"]
    assert stage.busy_seconds >= 20 * 0.005
    assert stage.admit_seconds >= 20 * 0.002
    assert stage.wait_seconds > 0
    spent = stage.busy_seconds + stage.admit_seconds + stage.turn_seconds + stage.wait_seconds
    assert spent <= 2 * seconds
    assert 0.005 <= pipeline.consumer_wait_seconds <= seconds
    assert times["consumer"].wait_seconds == pipeline.consumer_wait_seconds
    assert times["source"].wait_seconds > 0


def test_waiting_for_the_turn_to_admit_is_counted() -> None:
    barrier = threading.Barrier(4, timeout=20)

    def work(item: int) -> int:
        barrier.wait()
        return item

    def admit(item: int, closed: Closed) -> int:
        time.sleep(0.02)
        return item

    pipeline = Pipeline(range(4), [Stage("stage", work, workers=4, admit=admit)], 4)
    list(pipeline)
    assert pipeline.timings["stage"].turn_seconds > 0.02  # 0.02 + 0.04 + 0.06, if all begin at once


def test_waiting_for_input_is_summed_over_workers() -> None:
    def source() -> Iterator[int]:
        time.sleep(0.1)
        yield 0

    pipeline = Pipeline(source(), [Stage("stage", same, workers=4)], 4)
    list(pipeline)
    assert pipeline.timings["stage"].wait_seconds > 0.2  # 0.4, if all begin at once


def test_events_are_the_busy_periods() -> None:
    before = time.perf_counter()
    pipeline = Pipeline(range(5), [Stage("stage", jitter, workers=2)], 3)
    list(pipeline)
    after = time.perf_counter()
    events = pipeline.events
    expected = {(name, number) for name in ("source", "stage") for number in range(5)}
    assert {(event.stage, event.number) for event in events} == expected
    assert all(before <= event.start <= event.end <= after for event in events)
    busy = sum(event.end - event.start for event in events if event.stage == "stage")
    assert busy == pytest.approx(pipeline.timings["stage"].busy_seconds)


def test_events_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("outcrop.threads.pipeline._MAX_EVENTS", 15)
    pipeline = Pipeline(range(50), [Stage("same", same)], 2)
    list(pipeline)
    assert len(pipeline.events) == 15
    assert pipeline.timings["same"].items == 50


@pytest.mark.parametrize(
    "stages, depth, order, message",
    [
        ([Stage("a", same)], 0, "exact", r"depth .* \(got 0\)"),
        ([Stage("a", same, workers=0)], 1, "exact", r"workers of a .* \(got 0\)"),
        ([Stage("a", same), Stage("a", same)], 1, "exact", "name of its own"),
        ([Stage("source", same)], 1, "exact", "name of its own"),
        ([Stage("a", same)], 1, "random", r"order .* \(got 'random'\)"),
    ],
)
def test_arguments_are_checked_at_the_door(
    stages: list[Stage], depth: int, order: Order, message: str
) -> None:
    with pytest.raises(OptionError, match=message):
        Pipeline([], stages, depth, order)


# The process

PREAMBLE = """
import os, sys, threading, time, warnings
from outcrop.threads.pipeline import Pipeline, Stage
from outcrop.errors import CancelledError

def same(item):
    return item

def jitter(item):
    time.sleep(0.001)
    return item

def admit(item, closed):
    while item == 3:
        if closed():
            raise CancelledError("closed")
        if pipeline.waiting_for == 3:
            print("waits", flush=True)
        time.sleep(0.001)
    return item
"""


def script(code: str) -> AbstractContextManager[subprocess.Popen[str]]:
    return running([sys.executable, "-W", "error", "-c", PREAMBLE + code])


def test_a_pipeline_left_open_at_exit_ends_with_the_process() -> None:
    code = """
iterator = iter(Pipeline(iter(int, 1), [Stage("jitter", jitter, workers=8)], 20))
next(iterator)
pipeline = Pipeline(range(9), [Stage("admit", same, workers=3, admit=admit)], 9)
waiting = iter(pipeline)
next(waiting)
"""
    with script(code) as process:
        _, errors = process.communicate(timeout=30)
    assert (process.returncode, errors) == (0, "")


def test_a_forked_child_is_not_held_up_by_a_pipeline() -> None:
    code = """
iterator = iter(Pipeline(iter(int, 1), [Stage("jitter", jitter, workers=3)], 9))
next(iterator)
warnings.simplefilter("ignore")  # newer Pythons warn of a fork beside threads
child = os.fork()
if child == 0:
    iterator = None
    sys.exit(5)
_, status = os.waitpid(child, 0)
iterator.close()
sys.exit(os.waitstatus_to_exitcode(status))
"""
    with script(code) as process:
        _, errors = process.communicate(timeout=30)
    assert (process.returncode, errors) == (5, "")


def test_ctrl_c_ends_a_consumer_that_waits() -> None:
    code = """
pipeline = Pipeline(range(9), [Stage("same", same), Stage("admit", same, 2, admit)], 9)
try:
    for item in pipeline:
        pass
finally:
    print("last", item, "threads", threading.active_count(), flush=True)
"""
    with script(code) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "waits\n"
        process.send_signal(signal.SIGINT)
        out, errors = process.communicate(timeout=30)
    assert process.returncode == -signal.SIGINT
    assert errors.rstrip().endswith("KeyboardInterrupt")
    assert out.splitlines()[-1] == "last 2 threads 1"


@pytest.mark.parametrize("interrupted", range(1, 6))
@pytest.mark.parametrize("delay", [0, 0.1])
def test_ctrl_c_while_threads_start(
    monkeypatch: pytest.MonkeyPatch, interrupted: int, delay: float
) -> None:
    started = []
    start = threading.Thread.start

    def starts(thread: threading.Thread) -> None:
        start(thread)
        started.append(thread)
        if len(started) == interrupted:
            time.sleep(delay)
            raise KeyboardInterrupt

    monkeypatch.setattr(threading.Thread, "start", starts)
    pipeline = Pipeline(range(9), [Stage("a", same, 2), Stage("b", same, 2)], 9)
    with pytest.raises(KeyboardInterrupt):
        list(pipeline)
    for thread in started:
        thread.join(10)
        assert not thread.is_alive()


# Everything at once

stage_lists = st.lists(st.tuples(st.integers(1, 4), st.booleans()), max_size=4)
failures = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 25), st.booleans()), max_size=3)


@given(
    shape=stage_lists,
    failures=failures,
    count=st.integers(0, 25),
    depth=st.integers(1, 10),
    order=st.sampled_from(ORDERS),
    seed=st.integers(0, 1000),
)
def test_any_pipeline_gives_what_a_loop_would(
    shape: list[tuple[int, bool]],
    failures: list[tuple[int, int, bool]],
    count: int,
    depth: int,
    order: Order,
    seed: int,
) -> None:
    """A failure is (place, item, in admit): place 0 is the source."""
    logs = [Log() for _ in shape]
    delays = random.Random(seed)

    def source() -> Iterator[int]:
        for item in range(count):
            if (0, item) in {(place, number) for place, number, _ in failures}:
                raise BoomError(item)
            yield item

    def stage(index: int, workers: int, admits: bool) -> Stage:
        def work(item: int) -> int:
            time.sleep(delays.choice([0, 0, 0.0005, 0.001]))
            if (index, item, False) in failures:
                raise BoomError(item)
            return item

        def admit(item: int, closed: Closed) -> int:
            if (index, item, True) in failures:
                raise BoomError(item)
            return logs[index - 1].admit(item, closed)

        return Stage(f"stage {index}", work, workers, admit if admits else None)

    stages = [stage(i, workers, admits) for i, (workers, admits) in enumerate(shape, start=1)]
    failing = [
        number
        for place, number, in_admit in failures
        if number < count and place <= len(shape)
        and (place == 0 or not in_admit or shape[place - 1][1])
    ]  # fmt: skip
    first = min(failing, default=count)

    pipeline = Pipeline(source(), stages, depth, order)
    if failing:
        results, error = read_until_error(pipeline)
        assert isinstance(error, BoomError) and error.args[0] in failing
    else:
        results, error = list(pipeline), None

    if order == "exact":
        assert results == list(range(first))
        assert error is None or error.args == (first,)
    else:
        assert len(set(results)) == len(results)
        assert set(results) <= set(range(count)) - set(failing)
        assert failing or len(results) == count
    for log in logs:
        assert log.items == list(range(len(log.items)))
    assert own_threads() == []


@pytest.mark.parametrize("in_order", [False, True])
def test_a_stage_may_take_items_in_order_and_finish_them_in_any(in_order: bool) -> None:
    taken = []

    def first(item: int) -> int:
        if item == 0:
            time.sleep(0.3)  # the others are done before it
        return item

    def second(item: int) -> int:
        taken.append(item)
        if item == 0:
            time.sleep(0.1)
        return item

    stages = [Stage("a", first, 3), Stage("b", second, 3, in_order=in_order)]
    results = list(Pipeline(range(3), stages, depth=3, order="completion"))
    assert sorted(results) == [0, 1, 2] and results[-1] == 0
    assert (taken == [0, 1, 2]) == in_order
