"""Model: what docs/record.md specifies, as values; for a peer, much of it may be None."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from outcrop.errors import StoreError
from outcrop.observe.record import RECORD_FORMAT, RECORD_VERSION
from outcrop.tools.report.fields import Fields

BENCH_FORMAT = "outcrop-bench"
BENCH_VERSION = 1


@dataclass(frozen=True)
class Stage:
    busy_seconds: float
    wait_seconds: float


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


@dataclass(frozen=True)
class Score:
    """One epoch of training."""

    epoch: int
    loss: float | None
    seconds: float
    val: float | None
    test: float | None


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

    command: list[str]
    created: str
    store: dict[str, Any]
    configuration: dict[str, Any]
    machine: dict[str, Any]
    versions: dict[str, Any]


@dataclass(frozen=True)
class LayoutUse:
    """A derived layout that a run made or found."""

    name: str
    seconds: float | None
    """What making it took; None: not known."""
    made: bool


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
    events: list[tuple[str, int, float, float]]
    history: list[Score]
    series: dict[str, list[float]]
    digest: str | None


@dataclass(frozen=True)
class Row:
    """One line of a benchmark: a strategy, peer or limit."""

    name: str
    kind: str
    """strategy, peer or limit."""
    status: str
    """measured, absent or failed."""
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

    equal: bool
    batches: int | None
    digests: dict[str, Any]


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
        kind=fields.needed("kind", ("train", "bench")),
        name=fields.needed("name"),
        origin=_origin(fields),
        process=fields.counts("process"),
        memory_bytes=loader.count("memory_bytes"),
        charges=loader.counts("charges"),
        prepare_seconds=loader.number("prepare_seconds"),
        layouts=None
        if values.get("layouts") is None
        else [_layout(part) for part in fields.parts("layouts")],
        plan=_plan(loader.part("plan")),
        epochs=[_epoch(part) for part in loader.parts("epochs")],
        events=loader.events("events"),
        history=[_score(part) for part in fields.parts("history")],
        series=fields.columns("series"),
        digest=fields.text("digest"),
    )


def parse_bench(values: Mapping[str, Any], file: str = "bench.json") -> Bench:
    """A benchmark's JSON -> Bench; StoreError names the place that is wrong."""
    _check_format(values, file, BENCH_FORMAT, BENCH_VERSION, "a benchmark")
    fields = Fields(dict(values), file)
    check = fields.part("check")
    return Bench(
        origin=_origin(fields),
        drive=fields.plain("drive"),
        rows=[_row(part) for part in fields.parts("rows")],
        check=None
        if values.get("check") is None
        else Check(check.flag("equal") is True, check.count("batches"), check.plain("digests")),
    )


def _check_format(values: Mapping[str, Any], file: str, name: str, version: int, what: str) -> None:
    if values.get("format") != name:
        raise StoreError(f"{file}: not {what} of Outcrop")
    if values.get("version") != version:
        raise StoreError(
            f"{file}: {what} of version {values.get('version')!r}; this Outcrop reads {version}"
        )


def _origin(fields: Fields) -> Origin:
    return Origin(
        command=fields.texts("command"),
        created=fields.text("created") or "",
        store=fields.plain("store"),
        configuration=fields.plain("configuration"),
        machine=fields.plain("machine"),
        versions=fields.plain("versions"),
    )


def _epoch(fields: Fields) -> Epoch:
    return Epoch(
        stream=fields.text("stream") or "train",
        epoch=fields.count("epoch") or 0,
        seconds=fields.number("seconds") or 0.0,
        stall_seconds=fields.number("stall_seconds"),
        counts={name: fields.count(name) for name in COUNTS},
        read_amplification=fields.number("read_amplification"),
        hits=fields.counts("hits"),
        stages={
            name: Stage(part.number("busy_seconds") or 0.0, part.number("wait_seconds") or 0.0)
            for name, part in fields.members("stages")
        },
    )


def _layout(fields: Fields) -> LayoutUse:
    return LayoutUse(
        fields.text("name") or "", fields.number("seconds"), fields.flag("made") is True
    )


def _plan(fields: Fields) -> Plan:
    written = [fields.count(name) for name in ("trace_bytes", "pack_bytes")]
    known = [value for value in written if value is not None]
    repeats = (
        fields.flag("cycle") is True
        or fields.text("samples") is not None
        or fields.text("refresh") == "background"
    )
    return Plan(fields.count("batches"), repeats, sum(known) if known else None)


def _score(fields: Fields) -> Score:
    return Score(
        epoch=fields.count("epoch") or 0,
        loss=fields.number("loss"),
        seconds=fields.number("seconds") or 0.0,
        val=fields.number("val"),
        test=fields.number("test"),
    )


def _row(fields: Fields) -> Row:
    return Row(
        name=fields.needed("name"),
        kind=fields.needed("kind", ("strategy", "peer", "limit")),
        status=fields.needed("status", ("measured", "absent", "failed")),
        note=fields.text("note") or "",
        seconds=fields.numbers("seconds"),
        measured_batches=fields.count("measured_batches"),
        scaled=fields.flag("scaled") is True,
        records=fields.texts("records"),
        bound_seconds=fields.number("bound_seconds"),
        bound=fields.text("bound") or "",
        cache_bytes=fields.count("cache_bytes"),
    )
