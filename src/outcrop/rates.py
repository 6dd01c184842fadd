"""Rates: a file -> how fast its drive reads, at random and in sequence."""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass

import numpy as np

from outcrop.disk import PAGE_BYTES, File, aligned_empty

_TURNS = 3
# Reads that are near each other are merged.
_PAGES_APART = 16
# A smaller file does not tell.
LEAST_BYTES = 16 << 20


@dataclass(frozen=True)
class DriveRates:
    """How fast a drive reads."""

    requests_per_second: float
    """Requests of 4 KiB, at random places."""
    bytes_per_second: float
    """In sequence."""

    @property
    def request_bytes(self) -> int:
        """What it reads in sequence in the time of one random request."""
        return max(int(self.bytes_per_second / self.requests_per_second), PAGE_BYTES)


USUAL_RATES = DriveRates(150_000.0, 2.3e9)
"""Those of an NVMe drive, for files that are too small to tell."""


@dataclass(frozen=True)
class Measuring:
    """How much is read of a file to tell, if it has as much; memory for it is needed."""

    random_reads: int
    sequential_bytes: int

    def within(self, file_bytes: int) -> Measuring:
        """What is read of a file of this size; nothing, where it would not tell."""
        if file_bytes < LEAST_BYTES:
            return Measuring(0, 0)
        reads = min(self.random_reads, file_bytes // PAGE_BYTES // _PAGES_APART)
        return Measuring(reads, min(self.sequential_bytes, file_bytes))

    @property
    def memory_bytes(self) -> int:
        return self.random_reads * PAGE_BYTES + self.sequential_bytes


BRIEF = Measuring(2048, 32 << 20)
"""Short enough to be done whenever a loader is made."""


def measure_rates(file: File, measuring: Measuring = BRIEF) -> DriveRates:
    """The median of several short turns; usual rates where the file does not tell."""
    measuring = measuring.within(file.size)
    reads, pages = measuring.random_reads, file.size // PAGE_BYTES
    if not reads:
        return USUAL_RATES
    rows, window = aligned_empty((reads, PAGE_BYTES)), aligned_empty(measuring.sequential_bytes)
    random, sequential = [], []
    for turn in range(_TURNS):
        # One in the first half of each stretch of pages.
        step = pages // reads
        picks = np.arange(reads) * step
        picks += np.random.default_rng(turn).integers(0, step // 2, reads, endpoint=True)
        first = (file.size - len(window)) * turn // _TURNS // PAGE_BYTES * PAGE_BYTES
        start = time.perf_counter()
        file.read_rows(picks, rows)
        middle = time.perf_counter()
        file.read_extents([first], [len(window)], window)
        end = time.perf_counter()
        random.append(reads / (middle - start))
        sequential.append(len(window) / (end - middle))
    return DriveRates(statistics.median(random), statistics.median(sequential))
