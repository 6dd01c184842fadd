"""Monitor: what the machine and the drive do -> a time series, and peaks, for the record."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

Gauge = Callable[[], Mapping[str, float]]
"""Values of this moment, by name; called on the monitor's thread."""

_SECTOR_BYTES = 512  # of /proc/diskstats, whatever the drive's own


class _Watch:
    """Looks every now and then, on a thread of its own, while it is open."""

    def __init__(self, name: str, every: float, run: Callable[[], None]) -> None:
        self._every = every
        self._stop = threading.Event()
        self._thread = threading.Thread(target=run, name=name, daemon=True)

    def __enter__(self: Watch) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()


Watch = TypeVar("Watch", bound=_Watch)


class Peak(_Watch):
    """The most that a value was while this is open: asked for now and then, and at the end."""

    def __init__(self, value: Callable[[], int], every: float = 0.1) -> None:
        """`value` is called on a thread of its own."""
        super().__init__("outcrop-peak", every, self._run)
        self._ask = value
        self.value = 0

    def now(self) -> int:
        """The most so far, this moment included."""
        self.value = max(self.value, self._ask())
        return self.value

    def _run(self) -> None:
        while not self._stop.wait(self._every):
            self.now()

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)
        self.now()


class Monitor(_Watch):
    """Samples while it is open. Columns: seconds, cpu_share, iowait_share, drive_bytes_per_second,
    drive_reads_per_second, faults_per_second, refaults_per_second, and whatever gauges tell."""

    def __init__(self, path: Path, every: float = 1.0) -> None:
        """`path`: a file on the drive that is watched."""
        super().__init__("outcrop-monitor", every, self._run)
        self._device = _block_device(path)
        self._gauges: list[tuple[str, Gauge]] = []
        self.series: dict[str, list[float]] = {}

    def add(self, gauge: Gauge, prefix: str = "") -> None:
        """Asks it too from now on, open or not; its columns are called `prefix` + name.

        What a gauge does not tell, before its first value or later, is 0.
        """
        self._gauges.append((prefix, gauge))

    def _run(self) -> None:
        start = last = time.perf_counter()
        before = self._counters()
        while not self._stop.wait(self._every):
            now, after = time.perf_counter(), self._counters()
            passed = now - last
            changed = {name: after[name] - before[name] for name in after}
            total = max(changed["cpu_total"], 1)
            row = {
                "seconds": now - start,
                "cpu_share": changed["cpu_busy"] / total,
                "iowait_share": changed["cpu_iowait"] / total,
                "drive_bytes_per_second": changed["drive_bytes"] / passed,
                "drive_reads_per_second": changed["drive_reads"] / passed,
                "faults_per_second": changed["faults"] / passed,
                "refaults_per_second": changed["refaults"] / passed,
                **self._gauged(),
            }
            self._append(row)
            last, before = now, after

    def _gauged(self) -> dict[str, float]:
        return {
            f"{prefix}{name}".replace(" ", "_"): value
            for prefix, gauge in self._gauges
            for name, value in gauge().items()
        }

    def _append(self, row: dict[str, float]) -> None:
        """Columns stay as long as each other, whichever the row has."""
        length = len(self.series.get("seconds", ()))
        for name in row:
            if name not in self.series:
                self.series[name] = [0.0] * length
        for name, column in self.series.items():
            column.append(round(row.get(name, 0.0), 4))

    def _counters(self) -> dict[str, int]:
        user, nice, system, idle, iowait, irq, softirq, *_ = (
            int(word) for word in _first_line("/proc/stat").split()[1:]
        )
        busy = user + nice + system + irq + softirq
        reads, sectors = _drive_counters(self._device)
        vmstat = dict(line.split() for line in Path("/proc/vmstat").read_text().splitlines())
        return {
            "cpu_busy": busy,
            "cpu_iowait": iowait,
            "cpu_total": busy + idle + iowait,
            "drive_reads": reads,
            "drive_bytes": sectors * _SECTOR_BYTES,
            "faults": int(vmstat.get("pgmajfault", 0)),
            "refaults": int(vmstat.get("workingset_refault_file", 0)),
        }


def _first_line(path: str) -> str:
    with open(path) as file:
        return file.readline()


def _block_device(path: Path) -> tuple[int, int]:
    device = os.stat(path).st_dev
    return os.major(device), os.minor(device)


def _drive_counters(device: tuple[int, int]) -> tuple[int, int]:
    """Reads completed and sectors read of a drive; zeros where it is none (tmpfs, network)."""
    for line in Path("/proc/diskstats").read_text().splitlines():
        major, minor, _, reads, _, sectors, *_ = line.split()
        if (int(major), int(minor)) == device:
            return int(reads), int(sectors)
    return 0, 0
