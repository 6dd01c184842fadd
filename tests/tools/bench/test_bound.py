"""The bound of a run: its reads at the drive's rates, and what they did not hide."""

from __future__ import annotations

from typing import Any

import pytest

from outcrop.tools.bench.bound import epoch_bound_seconds, sampling_alone_seconds, wall_seconds
from outcrop.tools.bench.drive import DriveRates

DRIVE = DriveRates("fio", random_reads_per_second=1000, sequential_bytes_per_second=1e7)


def epoch(**values: Any) -> dict[str, Any]:
    return {"read_requests": 0, "bytes_read": 0, "drive_bytes": 0, **values}


def test_samplers_that_work_at_once_count_once_and_not_while_rows_are_read() -> None:
    events = [
        ("sample", 0, 0.0, 2.0),
        ("sample", 1, 1.0, 4.0),
        ("gather", 0, 3.0, 6.0),
        ("gather", 1, 4.0, 5.0),
        ("sample", 2, 5.5, 8.0),
        ("compute", 0, 6.0, 20.0),
    ]
    assert wall_seconds(events, ["gather"]) == pytest.approx(3)
    assert wall_seconds(events, ["sample"]) == pytest.approx(4 + 2.5)
    assert sampling_alone_seconds(events) == pytest.approx(3 + 2)
    assert sampling_alone_seconds([]) == 0


def test_small_reads_are_bound_by_their_number_and_large_ones_by_their_bytes() -> None:
    small = epoch(read_requests=5000, bytes_read=5_000_000, drive_bytes=5_000_000)
    assert epoch_bound_seconds(small, 0.5, DRIVE) == pytest.approx(5.5)
    large = epoch(read_requests=100, bytes_read=90_000_000, drive_bytes=90_000_000)
    assert epoch_bound_seconds(large, 0.0, DRIVE) == pytest.approx(9)


def test_page_faults_are_reads_too() -> None:
    mapped = epoch(drive_bytes=3000 * 4096)
    assert epoch_bound_seconds(mapped, 0.0, DRIVE) == pytest.approx(3)
    both = epoch(read_requests=1000, bytes_read=4_096_000, drive_bytes=4_096_000 + 2000 * 4096)
    assert epoch_bound_seconds(both, 0.0, DRIVE) == pytest.approx(3)
