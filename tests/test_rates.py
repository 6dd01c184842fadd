"""Rates: what a file tells of its drive."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from outcrop.disk import PAGE_BYTES, Disk
from outcrop.options import DiskOptions
from outcrop.rates import BRIEF, LEAST_BYTES, USUAL_RATES, DriveRates, measure_rates


def test_a_slow_drive_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "rows"
    path.write_bytes(np.random.default_rng(0).bytes(LEAST_BYTES))
    with Disk() as disk, disk.open(path) as file:
        usual = measure_rates(file)
    with Disk(DiskOptions(requests_per_second=20_000)) as disk, disk.open(path) as file:
        slow = measure_rates(file)
    assert 0 < slow.requests_per_second < 30_000
    assert usual.bytes_per_second > 0
    assert slow.request_bytes >= PAGE_BYTES


def test_a_small_file_does_not_tell(tmp_path: Path) -> None:
    path = tmp_path / "rows"
    path.write_bytes(bytes(LEAST_BYTES - 1))
    with Disk() as disk, disk.open(path) as file:
        assert measure_rates(file) == USUAL_RATES
    assert BRIEF.within(LEAST_BYTES - 1).memory_bytes == 0
    assert BRIEF.within(LEAST_BYTES).memory_bytes == LEAST_BYTES + 256 * PAGE_BYTES
    assert BRIEF.within(1 << 40) == BRIEF


def test_a_request_is_worth_so_many_bytes() -> None:
    assert DriveRates(100_000, 2e9).request_bytes == 20_000
    assert DriveRates(1e6, 1e9).request_bytes == PAGE_BYTES  # none is shorter
