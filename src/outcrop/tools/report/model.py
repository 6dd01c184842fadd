"""Model: what docs/record.md specifies, as values; for a peer, much of it may be None."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from outcrop.errors import StoreError
from outcrop.observe.record import RECORD_FORMAT, RECORD_VERSION
from outcrop.tools.report.fields import Event, Fields

BENCH_FORMAT = "outcrop-bench"
BENCH_VERSION = 1


@dataclass(frozen=True)
class Stage:
    busy_seconds: float = 0.0
    wait_seconds: float = 0.0


@dataclass(frozen=True)
class Epoch:
    """One pass of one run."""

    stream: str
    epoch: int
    seconds: float
    stall_seconds: float | None
    counts: dict[str, int | None]
    """By the record's names: batches, seeds, sampled_edges, rows ... drive_bytes."""
    read_amplification: float | None
    hits: dict[str, int | None]
    stages: dict[str, Stage]
    read_sizes: list[int]
    """Reads by size; empty where the record does not say."""


@dataclass(frozen=True)
class Score:
    """One epoch of training."""

    epoch: int = 0
    loss: float | None = None
    seconds: float = 0.0
    val: float | None = None
    test: float | None = None


@dataclass(frozen=True)
class Plan:
    """What a strategy says that it prepared, as far as a report counts with it."""

    batches: int | None
    """How many were prepared; None: not known, or it prepares something else."""
    repeats: bool
    """Whether more batches than those come from the same preparation."""
    disk_bytes: int | None
    """What traces and packs take."""


@dataclass(frozen=True)
class Origin:
    """Where numbers come from: the part that records and benchmarks share."""

    command: list[str] = field(default_factory=list)
    created: str = ""
    store: dict[str, Any] = field(default_factory=dict)
    configuration: dict[str, Any] = field(default_factory=dict)
    machine: dict[str, Any] = field(default_factory=dict)
    versions: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class LayoutUse:
    """A derived layout that a run made or found."""

    name: str = ""
    seconds: float | None = None
    """What making it took; None: not known."""
    made: bool = False


@dataclass(frozen=True)
class Run:
    """One record."""

    file: str
    kind: str
    name: str
    origin: Origin
    process: dict[str, int | None]
    memory_bytes: int | None
    charges: dict[str, int | None]
    prepare_seconds: float | None
    """In this run; what it found prepared is not in it."""
    layouts: list[LayoutUse] | None
    """None: the record does not say."""
    plan: Plan
    epochs: list[Epoch]
    events: list[Event]
    history: list[Score]
    series: dict[str, list[float]]
    digest: str | None


@dataclass(frozen=True)
class Row:
    """One line of a benchmark: a strategy, peer or limit."""

    name: str
    kind: Literal["strategy", "peer", "limit"]
    status: Literal["measured", "absent", "failed"]
    note: str = ""
    seconds: list[float] = field(default_factory=list)
    """One per repeat; for training, one per epoch."""
    measured_batches: int | None = None
    scaled: bool = False
    records: list[str] = field(default_factory=list)
    bound_seconds: float | None = None
    bound: str = ""
    cache_bytes: int | None = None


@dataclass(frozen=True)
class Check:
    """Whether all strategies delivered the same batches."""

    equal: bool = False
    batches: int | None = None
    digests: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Bench:
    origin: Origin
    drive: dict[str, Any]
    rows: list[Row]
    check: Check | None

    def setting(self, name: str) -> Any:
        return self.origin.configuration.get(name)


COUNTS = (
    "batches", "seeds", "sampled_edges", "rows", "row_bytes", "distinct_rows", "read_requests",
    "bytes_wanted", "bytes_read", "drive_bytes",
)  # fmt: skip


def parse_run(values: Mapping[str, Any], file: str) -> Run:
    """A record's JSON -> Run; StoreError names the place that is wrong."""
    _check_format(values, file, RECORD_FORMAT, RECORD_VERSION, "a record")
    fields = Fields(dict(values), file)
    loader = fields.part("loader")
    return Run(
        file=file,
        kind=fields.get("kind", Literal["train", "bench"]),
        name=fields.get("name", str, needed=True),
        origin=fields.read(Origin),
        process=fields.counts("process"),
        memory_bytes=loader.get("memory_bytes", int),
        charges=loader.counts("charges"),
        prepare_seconds=loader.get("prepare_seconds", float),
        layouts=None
        if values.get("layouts") is None
        else [part.read(LayoutUse) for part in fields.parts("layouts")],
        plan=_plan(loader.part("plan")),
        epochs=[_epoch(part) for part in loader.parts("epochs")],
        events=loader.get("events", list[Event]),
        history=[part.read(Score) for part in fields.parts("history")],
        series=fields.columns("series"),
        digest=fields.get("digest", str),
    )


def parse_bench(values: Mapping[str, Any], file: str = "bench.json") -> Bench:
    """A benchmark's JSON -> Bench; StoreError names the place that is wrong."""
    _check_format(values, file, BENCH_FORMAT, BENCH_VERSION, "a benchmark")
    fields = Fields(dict(values), file)
    return Bench(
        origin=fields.read(Origin),
        drive=fields.get("drive", dict[str, Any]) or {},
        rows=[part.read(Row) for part in fields.parts("rows")],
        check=None if values.get("check") is None else fields.part("check").read(Check),
    )


def _check_format(values: Mapping[str, Any], file: str, name: str, version: int, what: str) -> None:
    if values.get("format") != name:
        raise StoreError(f"{file}: not {what} of Outcrop")
    if values.get("version") != version:
        raise StoreError(
            f"{file}: {what} of version {values.get('version')!r}; this Outcrop reads {version}"
        )


def _epoch(fields: Fields) -> Epoch:
    return Epoch(
        stream=fields.get("stream", str) or "train",
        epoch=fields.get("epoch", int) or 0,
        seconds=fields.get("seconds", float) or 0.0,
        stall_seconds=fields.get("stall_seconds", float),
        counts={name: fields.get(name, int) for name in COUNTS},
        read_amplification=fields.get("read_amplification", float),
        hits=fields.counts("hits"),
        stages={name: part.read(Stage) for name, part in fields.members("stages")},
        read_sizes=fields.get("read_sizes", list[int]),
    )


def _plan(fields: Fields) -> Plan:
    written = [fields.get(name, int) for name in ("trace_bytes", "pack_bytes")]
    known = [value for value in written if value is not None]
    repeats = (
        fields.get("cycle", bool) is True
        or fields.get("samples", str) is not None
        or fields.get("refresh", str) == "background"
    )
    return Plan(fields.get("batches", int), repeats, sum(known) if known else None)
