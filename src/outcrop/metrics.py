"""Metrics: what every run counts, in one record that tables, reports and benchmarks read."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from outcrop.batch import Prepared
from outcrop.disk import DiskCounters
from outcrop.strategies.base import RunTimes


@dataclass
class StageRecord:
    """One stage of the pipeline, summed over its threads."""

    busy_seconds: float
    wait_seconds: float
    """Waiting for input, for its turn, or for memory."""


@dataclass
class EpochRecord:
    """One pass over the seeds, or what was taken of it."""

    stream: str
    """train, val, test or direct."""
    epoch: int
    seconds: float = 0.0
    consumer_wait_seconds: float = 0.0
    """How long the training loop waited for batches."""
    batches: int = 0
    seeds: int = 0
    sampled_edges: int = 0
    rows: int = 0
    """Feature rows delivered."""
    row_bytes: int = 0
    """The same in bytes, as float32."""
    read_requests: int = 0
    bytes_wanted: int = 0
    bytes_read: int = 0
    stages: dict[str, StageRecord] = field(default_factory=dict)

    def count(self, batch: Prepared) -> None:
        self.batches += 1
        self.seeds += len(batch.task.seeds)
        self.sampled_edges += len(batch.e_id)
        self.rows += len(batch.n_id)
        self.row_bytes += 0 if batch.x is None else batch.x.nbytes

    def finish(
        self, seconds: float, times: RunTimes, before: DiskCounters, after: DiskCounters
    ) -> None:
        self.seconds = seconds
        self.consumer_wait_seconds = times.consumer_wait_seconds
        self.read_requests = after.read_requests - before.read_requests
        self.bytes_wanted = after.bytes_wanted - before.bytes_wanted
        self.bytes_read = after.bytes_read - before.bytes_read
        for name, stage in times.stages.items():
            waited = stage.wait_seconds + stage.turn_seconds + stage.admit_seconds
            self.stages[name] = StageRecord(stage.busy_seconds, waited)


@dataclass
class Record:
    """A loader's life: how its memory is divided, and its epochs."""

    strategy: str
    memory_bytes: int
    charges: dict[str, int]
    """Resident memory, by name."""
    batch_memory_bytes: int
    """What is left for batches."""
    depth: int
    """Batches under way at a time."""
    prepare_seconds: float
    peak_batch_bytes: int = 0
    epochs: list[EpochRecord] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return asdict(self)
