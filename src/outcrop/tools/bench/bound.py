"""Bound: a run's own record, the drive's rates -> the least that its reads and sampling take."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

from outcrop.tools.bench.drive import DriveRates

_PAGE_BYTES = 4096
BOUND = "its reads at the drive's rates, and sampling that none of them hid"

Events = Iterable[tuple[str, int, float, float]]
"""As in a record: stage, batch, begin and end."""


def epoch_bound_seconds(
    epoch: dict[str, Any], sampling_alone_seconds: float, drive: DriveRates
) -> float:
    """Reads at fio's rates, page faults among them, and the time in which only sampling ran.

    The sum of the samplers' seconds would be too much: several of them wait at once, and while rows
    are read.
    """
    read = max(epoch["bytes_read"], epoch["drive_bytes"])
    faults = (read - epoch["bytes_read"]) / _PAGE_BYTES
    reading: float = max(
        (epoch["read_requests"] + faults) / drive.random_reads_per_second,
        read / drive.sequential_bytes_per_second,
    )
    return reading + sampling_alone_seconds


def sampling_alone_seconds(events: Events) -> float:
    """How long batches were sampled while none was gathered."""
    events = list(events)
    return wall_seconds(events, ("sample", "gather")) - wall_seconds(events, ("gather",))


def wall_seconds(events: Events, stages: Collection[str]) -> float:
    """How long at least one batch was in one of the stages."""
    total, until = 0.0, float("-inf")
    for begin, end in sorted((event[2], event[3]) for event in events if event[0] in stages):
        total += max(end - max(begin, until), 0.0)
        until = max(until, end)
    return total
