"""Memory of a run: data + model + runtime, as measured on a real step."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from outcrop.observe.record import peak_rss_bytes, rss_bytes

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


def _reset_peak() -> None:
    with suppress(OSError):  # where it is denied, peaks are of the whole life
        _CLEAR.write_text("5")
