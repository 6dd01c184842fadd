"""Metrics: what every run counts, in one record that tables, reports and benchmarks read.

docs/record.md has the JSON. A loader keeps a `LoaderRecord`; a command wraps it, with where and how
it ran, into a `RunRecord`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from outcrop.disk import DiskCounters
from outcrop.errors import StoreError
from outcrop.observe.meter import WINDOW, Meter
from outcrop.store.locks import replace_synced
from outcrop.store.store import GraphStore

RECORD_FORMAT = "outcrop-record"
RECORD_VERSION = 1


@dataclass
class StageRecord:
    """One stage, summed over its threads."""

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
    stall_seconds: float = 0.0
    """How long the training loop waited for batches."""
    batches: int = 0
    seeds: int = 0
    sampled_edges: int = 0
    rows: int = 0
    """Feature rows wanted."""
    row_bytes: int = 0
    """The same in bytes, as float32."""
    hits: dict[str, int] = field(default_factory=dict)
    """Rows that were found in memory, by tier."""
    fetched_rows: int = 0
    """Rows that no cache had. Where batches are dropped on the way, hits and these are more than
    `rows`."""
    tier_bytes: dict[str, int] = field(default_factory=dict)
    """Read for rows that are not in memory, by where they are on disk."""
    read_requests: int = 0
    """Counted by the disk engine, as are the next two."""
    bytes_wanted: int = 0
    bytes_read: int = 0
    read_sizes: list[int] = field(default_factory=list)
    """Reads of the disk engine by size: of up to 4 KiB, up to 8, ... up to 4 MiB, more."""
    write_sizes: list[int] = field(default_factory=list)
    """Writes of the disk engine, by the same sizes."""
    drive_bytes: int = 0
    """What the kernel read from the drive for this process, page faults included."""
    unprepared_batches: int = 0
    """Batches that a strategy that prepares epochs had not prepared: read as they came."""
    pulled: int = 0
    """Embeddings that were used again."""
    pushed: int = 0
    """Embeddings that were kept for others."""
    stages: dict[str, StageRecord] = field(default_factory=dict)
    """By the papers' names: sample, inspect, switch, graph load, gather, copy, cache update,
    transfer, compute."""

    def count(self, seeds: int, edges: int, rows: int, row_bytes: int) -> None:
        """One batch more."""
        self.batches += 1
        self.seeds += seeds
        self.sampled_edges += edges
        self.rows += rows
        self.row_bytes += row_bytes

    def count_reuse(self, pulled: int, pushed: int) -> None:
        """Of one batch."""
        self.pulled += pulled
        self.pushed += pushed

    def finish(self, seconds: float, meter: Meter, before: DriveUse, after: DriveUse) -> None:
        self.seconds = seconds
        self.stall_seconds = meter.consumer_wait_seconds
        self.hits = meter.hits
        self.fetched_rows = meter.fetched
        self.read_requests = after.counters.read_requests - before.counters.read_requests
        self.tier_bytes = meter.read_bytes if any(meter.read_bytes.values()) else {}
        self.unprepared_batches = meter.unprepared_batches
        asked = after.counters.bytes_wanted - before.counters.bytes_wanted
        self.bytes_wanted = asked - meter.padding_bytes
        self.bytes_read = after.counters.bytes_read - before.counters.bytes_read
        self.read_sizes = _between(before.counters.read_sizes, after.counters.read_sizes)
        self.write_sizes = _between(before.counters.write_sizes, after.counters.write_sizes)
        self.drive_bytes = after.drive_bytes - before.drive_bytes
        for name, stage in meter.stages.items():
            if name not in ("source", WINDOW, "consumer"):
                waited = stage.wait_seconds + stage.turn_seconds + stage.admit_seconds
                self.stages[name] = StageRecord(stage.busy_seconds, waited)
        compute = max(seconds - self.stall_seconds, 0.0)
        self.stages["compute"] = StageRecord(compute, self.stall_seconds)

    @property
    def read_amplification(self) -> float | None:
        """Bytes read per byte wanted; None where the engine read nothing."""
        return self.bytes_read / self.bytes_wanted if self.bytes_wanted else None


def _between(before: tuple[int, ...], after: tuple[int, ...]) -> list[int]:
    return [b - a for a, b in zip(before, after, strict=True)]


@dataclass(frozen=True)
class DriveUse:
    """Counters at one instant."""

    counters: DiskCounters
    drive_bytes: int

    @classmethod
    def now(cls, store: GraphStore) -> DriveUse:
        return cls(store.counters, drive_read_bytes())


@dataclass
class LoaderRecord:
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
    events: list[tuple[str, int, float, float]] = field(default_factory=list)
    """The first epoch of training: stage, batch, begin and end in seconds since its start, to the
    microsecond."""
    order: str = "exact"
    """The order in which batches came: exact, or completion, as they were done."""
    plan: dict[str, Any] = field(default_factory=dict)
    """What was decided and prepared: what every strategy tells, then what its parts tell."""
    passed_over: dict[str, str] = field(default_factory=dict)
    """Where auto chose the strategy: those that it would have preferred, and what kept them out."""
    over_budget_bytes: int = 0
    """The most that batches held beyond what is left for them."""

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        values = asdict(self)
        for entry, epoch in zip(values["epochs"], self.epochs, strict=True):
            entry["read_amplification"] = epoch.read_amplification
        return values


@dataclass
class RunRecord:
    """A run of a command: what, where, with what, and what came of it."""

    kind: str
    """train or bench."""
    name: str
    """The strategy's or the peer's."""
    command: list[str]
    created: str
    """ISO 8601, UTC."""
    store: dict[str, Any]
    configuration: dict[str, Any]
    machine: dict[str, Any]
    versions: dict[str, str]
    process: dict[str, int | None]
    """peak_rss_bytes, cgroup_peak_bytes, cgroup_limit_bytes, read_bytes, disk_used_bytes."""
    loader: dict[str, Any]
    """A LoaderRecord; for a peer, as much of it as can be known."""
    layouts: list[dict[str, Any]] = field(default_factory=list)
    """Derived layouts that it made or found: name, bytes, seconds (to make it), made."""
    history: list[dict[str, Any]] = field(default_factory=list)
    """Training, one entry per epoch: epoch, loss, seconds, val, test."""
    series: dict[str, list[float]] = field(default_factory=dict)
    """One entry a second; see observe/monitor.py."""
    digest: str | None = None
    """The digest of batches, where they were checked."""

    def as_dict(self) -> dict[str, Any]:
        return {"format": RECORD_FORMAT, "version": RECORD_VERSION, **asdict(self)}

    def write(self, path: Path) -> None:
        """Whole, or not at all."""
        replace_synced(path.resolve(), compact_json(self.as_dict()))


def compact_json(values: Mapping[str, Any]) -> bytes:
    """An object -> its JSON, a line for each member: short, and a change is seen where it is."""
    members = (
        f"{json.dumps(name)}:{json.dumps(value, separators=(',', ':'))}"
        for name, value in values.items()
    )
    return ("{" + ",\n".join(members) + "}\n").encode()


def read_json(path: Path) -> Any:
    """A file that may be a record -> its values; StoreError where it is no JSON."""
    try:
        return json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise StoreError(f"{path}: not a record: {error}") from error


def read_record(path: Path) -> dict[str, Any]:
    """A record file -> its values; StoreError where it is none of a known version."""
    values = read_json(path)
    if not isinstance(values, Mapping) or values.get("format") != RECORD_FORMAT:
        raise StoreError(f"{path}: not a record of Outcrop")
    if values.get("version") != RECORD_VERSION:
        raise StoreError(f"{path}: a record of version {values.get('version')}")
    return dict(values)


def drive_read_bytes() -> int:
    """What the drive delivered to this process so far: direct reads and page faults alike."""
    return _proc_value(Path("/proc/self/io"), "read_bytes")


def drive_written_bytes() -> int:
    """What this process had written to the drive so far, directly or through the page cache."""
    return _proc_value(Path("/proc/self/io"), "write_bytes")


def peak_rss_bytes() -> int:
    """The most that this process had in memory, since its start or the last reset."""
    return _proc_value(Path("/proc/self/status"), "VmHWM") * 1024


def rss_bytes() -> int:
    """What this process has in memory now."""
    return _proc_value(Path("/proc/self/status"), "VmRSS") * 1024


def _proc_value(path: Path, name: str) -> int:
    """The number after `name:` in a file of the kernel; 0 where it cannot be read."""
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return 0
    for line in lines:
        if line.startswith(f"{name}:"):
            return int(line.split()[1])
    return 0
