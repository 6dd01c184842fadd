"""Memory of a run: data + model + runtime, as measured on a real step."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_STATUS = Path("/proc/self/status")
_CLEAR = Path("/proc/self/clear_refs")


@dataclass(frozen=True)
class MemoryUse:
    """What to give a container: the three together."""

    data_bytes: int
    """The budget: memory= of the loader."""
    model_bytes: int
    """The peak of a step beyond what there was before it: activations, gradients, optimizer."""
    runtime_bytes: int
    """Python, torch and their libraries, before the loader was made."""

    @property
    def total_bytes(self) -> int:
        return self.data_bytes + self.model_bytes + self.runtime_bytes


class PeakMeter:
    """Made before a step, read after it."""

    def __init__(self) -> None:
        _reset_peak()
        self._before = rss_bytes()

    def grown_bytes(self) -> int:
        """How far the peak since then was above what there was."""
        return max(peak_rss_bytes() - self._before, 0)


def rss_bytes() -> int:
    """What this process has in memory now."""
    return _status("VmRSS")


def peak_rss_bytes() -> int:
    """The most that this process had in memory, since its start or the last meter."""
    return _status("VmHWM")


def drive_read_bytes() -> int:
    """What the drive delivered to this process: direct reads and page faults alike."""
    for line in Path("/proc/self/io").read_text().splitlines():
        name, value = line.split(":")
        if name == "read_bytes":
            return int(value)
    return 0


def _reset_peak() -> None:
    with suppress(OSError):  # where it is denied, peaks are of the whole life
        _CLEAR.write_text("5")


def _status(name: str) -> int:
    for line in _STATUS.read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    return 0
