"""The monitor: columns of equal length, and it ends with its block."""

from __future__ import annotations

import threading
import time
from pathlib import Path

from outcrop.monitor import Monitor


def test_columns_grow_together_and_gauges_are_asked(tmp_path: Path) -> None:
    values = iter(range(1000))
    with Monitor(tmp_path, {"queue": lambda: float(next(values))}, every=0.02) as monitor:
        end = time.perf_counter() + 0.3
        while time.perf_counter() < end:
            sum(range(1000))
    lengths = {len(column) for column in monitor.series.values()}
    assert len(lengths) == 1 and lengths.pop() >= 3
    assert monitor.series["queue"][:3] == [0.0, 1.0, 2.0]
    assert all(0 <= share <= 1 for share in monitor.series["cpu_share"])
    assert max(monitor.series["cpu_share"]) > 0
    assert not [t for t in threading.enumerate() if t.name == "outcrop-monitor"]
