"""Meter: who did what while the batches of a run were prepared; the record is made from it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter

from outcrop.threads.pipeline import Event, Pipeline, StageTimes

WINDOW = "window"
"""Turns to the next window: what it waits for has stages of its own."""
SAMPLE, GRAPH_LOAD, GATHER, TRANSFER = "sample", "graph load", "gather", "transfer"
"""Names of the runner's stages, as records have them."""
_MOST_EVENTS = 10_000


class Meter:
    """Counts and times one run. Thread-safe, apart from `follow` and `take`."""

    def __init__(self) -> None:
        self.consumer_wait_seconds = 0.0
        self.unprepared_batches = 0
        """Batches of its schedule that a plan that prepares epochs had not prepared."""
        self.padding_bytes = 0
        """Bytes of pages that belong to no row that was wanted."""
        self._pipeline: Pipeline | None = None  # the one that runs now
        self._lock = threading.Lock()
        # Guarded by the lock
        self._stages: dict[str, StageTimes] = {}
        self._within: dict[str, float] = {}
        self._events: list[Event] = []
        self._hits: dict[str, int] = {}
        self._fetched = 0
        self._read_bytes: dict[str, int] = {}

    # What is told

    @contextmanager
    def span(self, stage: str, number: int = 0, within: str | None = None) -> Iterator[None]:
        """Times a block as the work of a stage on one item.

        `within`: the stage in whose time it falls, and whose time is then counted without it.
        """
        start = perf_counter()
        try:
            yield
        finally:
            end = perf_counter()
            with self._lock:
                self._stages.setdefault(stage, StageTimes()).add(StageTimes(1, end - start))
                if len(self._events) < _MOST_EVENTS:
                    self._events.append(Event(stage, number, start, end))
                if within is not None:
                    self._within[within] = self._within.get(within, 0.0) + end - start

    def hit(self, tier: str, rows: int) -> None:
        """So many rows of a batch were there. Tiers and bottom together serve each row once."""
        with self._lock:
            self._hits[tier] = self._hits.get(tier, 0) + rows

    def fetch(self, rows: int) -> None:
        """So many were in no cache."""
        with self._lock:
            self._fetched += rows

    def read(self, tier: str, size: int) -> None:
        """So much was read of what is counted by itself: a tier on disk, blocks."""
        with self._lock:
            self._read_bytes[tier] = self._read_bytes.get(tier, 0) + size

    def pad(self, size: int) -> None:
        """So much of what was read belongs to no row that was wanted."""
        with self._lock:
            self.padding_bytes += size

    def follow(self, pipeline: Pipeline) -> None:
        """From now on its queues are those of this run."""
        self._pipeline = pipeline

    def take(self, pipeline: Pipeline) -> None:
        """Adds what an ended pipeline did for the loop."""
        self._pipeline = None
        self.take_stages(pipeline)
        self.consumer_wait_seconds += pipeline.consumer_wait_seconds

    def take_stages(self, pipeline: Pipeline) -> None:
        """The same for a pipeline that the loop does not wait for."""
        self._add(pipeline.timings, pipeline.events)

    def absorb(self, other: Meter) -> None:
        """Adds what was done for this run ahead of it."""
        with other._lock:
            self._add(other._stages, other._events)
            for tier, size in other._read_bytes.items():
                self.read(tier, size)

    def _add(self, stages: dict[str, StageTimes], events: list[Event]) -> None:
        with self._lock:
            for name, times in stages.items():
                self._stages.setdefault(name, StageTimes()).add(times)
            self._events += events

    # What is known

    @property
    def stages(self) -> dict[str, StageTimes]:
        """By name, without what fell into others."""
        with self._lock:
            stages = {}
            for name, times in self._stages.items():
                stages[name] = StageTimes()
                stages[name].add(times)
                stages[name].busy_seconds -= self._within.get(name, 0.0)
            return stages

    @property
    def events(self) -> list[Event]:
        with self._lock:
            return list(self._events)

    @property
    def hits(self) -> dict[str, int]:
        """Rows that caches had, by tier."""
        with self._lock:
            return dict(self._hits)

    @property
    def fetched(self) -> int:
        """Rows that no cache had."""
        return self._fetched

    @property
    def read_bytes(self) -> dict[str, int]:
        """By what is on disk, where it is counted by itself."""
        with self._lock:
            return dict(self._read_bytes)

    @property
    def queue_lengths(self) -> dict[str, int]:
        """How many items wait before each stage of the pipeline that runs; empty: none does."""
        pipeline = self._pipeline
        return {} if pipeline is None else pipeline.queue_lengths
