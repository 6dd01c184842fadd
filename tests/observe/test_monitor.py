"""The monitor: columns of equal length, and it ends with its block."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

from outcrop.observe.monitor import Monitor, Peak


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def rows(monitor: Monitor) -> int:
    return len(monitor.series.get("seconds", ()))


def test_columns_grow_together_and_gauges_are_asked(tmp_path: Path) -> None:
    values = iter(range(1000))
    monitor = Monitor(tmp_path, every=0.02)
    monitor.add(lambda: {"queue": next(values)})
    with monitor:
        end = time.perf_counter() + 0.3
        while time.perf_counter() < end:
            sum(range(1000))
    lengths = {len(column) for column in monitor.series.values()}
    assert len(lengths) == 1 and lengths.pop() >= 3
    assert monitor.series["queue"][:3] == [0.0, 1.0, 2.0]
    assert all(0 <= share <= 1 for share in monitor.series["cpu_share"])
    assert max(monitor.series["cpu_share"]) > 0
    assert not [t for t in threading.enumerate() if t.name == "outcrop-monitor"]


def test_what_a_gauge_does_not_tell_is_zero(tmp_path: Path) -> None:
    told: dict[str, float] = {}
    with Monitor(tmp_path, every=0.005) as monitor:
        wait_for(lambda: rows(monitor) >= 2)
        monitor.add(lambda: dict(told), prefix="queue_")
        before = rows(monitor)
        told["cache update"] = 7
        wait_for(lambda: "queue_cache_update" in monitor.series)
        told.clear()
        after = rows(monitor) + 1  # one that was under way may still have it
        wait_for(lambda: rows(monitor) > after + 1)
    column = monitor.series["queue_cache_update"]
    assert len(column) == rows(monitor)
    assert set(column[:before]) == {0.0} and set(column[after:]) == {0.0}
    assert 7.0 in column


def test_a_peak_is_the_most_that_was_told() -> None:
    told: list[int] = []

    def rise_and_fall() -> int:
        told.append([1, 7, 3, 2][min(len(told), 3)])
        return told[-1]

    with Peak(rise_and_fall, every=0.001) as peak:
        wait_for(lambda: len(told) > 3)
    assert peak.value == 7


def test_a_peak_sees_what_is_there_when_it_ends() -> None:
    value = 0
    with Peak(lambda: value, every=60) as peak:
        value = 5
    assert peak.value == 5
