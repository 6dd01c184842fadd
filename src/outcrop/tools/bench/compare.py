"""Compare: strategies x repeats, a process each -> records, and a summary with limits."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from outcrop.errors import CageError, OptionError, OutcropError
from outcrop.observe.record import compact_json, read_record
from outcrop.options import format_size, parse_size
from outcrop.plan.settle import Wanted
from outcrop.rows.source import row_shape
from outcrop.run.order import seed_order
from outcrop.sample.batching import RANDOM, batching_named
from outcrop.sample.history import history_named
from outcrop.sample.sampler import Sampling
from outcrop.store.locks import write_synced
from outcrop.store.store import GraphStore
from outcrop.tools.bench.bound import BOUND, epoch_bound_seconds, sampling_alone_seconds
from outcrop.tools.bench.drive import DriveRates, forget, measure_drive
from outcrop.tools.bench.peers import PEERS, peer_missing
from outcrop.tools.bench.variants import variant_named
from outcrop.tools.bench.worker import Access, Job
from outcrop.tools.cage import run_caged
from outcrop.tools.environment import command_line, machine_facts, now, store_facts, versions
from outcrop.tools.report.model import BENCH_FORMAT, BENCH_VERSION, Row

SUMMARY = "bench.json"
# What every strategy gets beside its cache: a batch with the loop, and one on the way to it.
_BATCHES_IN_FLIGHT = 2
# Python, torch and PyG, with their libraries' pages and slack: what a cage needs beside the budget.
OVERHEAD_BYTES = 450_000_000

_USUAL_CACHE = "10%"  # of the features

# What has all the memory that it wants: references, not competitors.
_UNLIMITED = ("memory", "pyg-memory")

Say = Callable[[str], None]


@dataclass(frozen=True)
class BenchOptions:
    """What is compared, and how."""

    strategies: tuple[str, ...]
    memory: str | None = None
    """For the data path of each, as `memory=` of a loader; None: what `cache` makes it."""
    cache: str | None = None
    """For caches alone: bytes, or a share of the features; batches in flight and tables come on
    top. None: what `memory` leaves, or 10 %."""
    cage: str | None = None
    """The hard limit of each process; None: the memory and the fixed overhead."""
    model: str = "none"
    num_neighbors: tuple[int, ...] = (10, 10, 10)
    batch_size: int = 1000
    batches: int = 40
    warmup: int = 0
    epochs: int = 1
    repeat: int = 3
    seed: int = 0
    batching: str = RANDOM
    """As loaders have it."""
    partition_first: bool = True
    """Partitions are made before anything is measured; else by the first run that needs them, which
    is charged their time, and their tables come out of its caches."""
    check_batches: int = 3
    """How many must have the same digest for all; 0: no check."""
    bytes_per_second: int | None = None
    """As if the drive moved no more. Slows the disk engine alone: no memory maps, no peers."""
    requests_per_second: int | None = None
    """As if the drive served no more; slows the same."""
    history: str = ""
    """Embeddings that are used again, as loaders have it; empty: none. Batches are checked without
    them, and without a model they are copied all the same."""
    access: Access = "auto"
    """Around the page cache or through it, as `DiskOptions` has it."""
    slow: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Strategies timed on fewer batches: (timed, warm-up); their times are scaled."""

    def __post_init__(self) -> None:
        for name in self.strategies:
            if name not in PEERS:
                variant_named(name)
        if batching_named(self.batching) is not None and set(self.strategies) & set(PEERS):
            raise OptionError("peers have batches of their own: batching does not change them")
        if self.history and set(self.strategies) & set(PEERS):
            raise OptionError("peers use no embeddings again: history does not change them")
        if self.history:
            history_named(self.history)
        for name in ("bytes_per_second", "requests_per_second"):
            if getattr(self, name) is not None and set(self.strategies) & set(PEERS):
                raise OptionError(f"peers read by themselves: {name} does not slow them")
        if self.access != "auto" and set(self.strategies) & set(PEERS):
            raise OptionError("peers read by themselves: access does not change how")
        if self.memory is not None and self.cache is not None:
            raise OptionError(
                f"memory or cache, not both (got memory {self.memory}, cache {self.cache})"
            )
        if self.memory is not None and self.memory.endswith("%"):
            raise OptionError(
                f"memory is a size such as 1GB, of the whole data path: caches, batches and "
                f"tables (got {self.memory!r}); for caches beside them, say --cache {self.memory}"
            )
        if self.model not in ("none", "sage", "gcn", "gat", "gin"):
            raise OptionError(f"model must be none, sage, gcn, gat or gin (got {self.model!r})")
        for name in ("batches", "epochs", "repeat"):
            if getattr(self, name) < 1:
                raise OptionError(f"{name} must be at least 1 (got {getattr(self, name)})")


@dataclass(frozen=True)
class Plan:
    """Memory, the same for all strategies."""

    cache_bytes: int
    base_bytes: int
    """Batches in flight, the topology's index, labels, seeds, sampler, engine."""
    batch_bytes: int
    cage_bytes: int

    @property
    def memory_bytes(self) -> int:
        return self.cache_bytes + self.base_bytes


def plan_memory(store: GraphStore, options: BenchOptions) -> Plan:
    seeds = seed_order(
        store, "train", batch_size=options.batch_size, seed=options.seed,
        batching=options.batching if options.partition_first else RANDOM,
    )  # fmt: skip
    # As large as any strategy's batches are. Where caches are given, and not all memory, there is
    # enough for labels.
    memory = sys.maxsize if options.memory is None else parse_size(options.memory)
    context = Wanted(store, Sampling(options.num_neighbors), seeds, memory).context(None)
    batch_bytes = context.batch_bytes(row_shape(context, staged=True))
    base = batch_bytes * _BATCHES_IN_FLIGHT + context.batch.scratch_bytes
    base += sum(charge.bytes for charge in context.common) + store.array_bytes("indptr")
    cache = _cache_bytes(store, options, base)
    cage = cache + base + OVERHEAD_BYTES if options.cage is None else parse_size(options.cage)
    return Plan(cache, base, batch_bytes, cage)


def _cache_bytes(store: GraphStore, options: BenchOptions, base_bytes: int) -> int:
    """What caches may have."""
    if options.memory is not None:
        left = parse_size(options.memory) - base_bytes
        if left < 0:
            raise OptionError(
                f"memory must be at least {base_bytes:,} B here, for {_BATCHES_IN_FLIGHT} batches "
                f"and tables (got {options.memory})"
            )
        return left
    given = options.cache or _USUAL_CACHE
    if not given.endswith("%"):
        return parse_size(given)
    try:
        return int(store.array_bytes("features") * float(given[:-1]) / 100)
    except ValueError:
        raise OptionError(f"cache must be like 10% or 1GB (got {given!r})") from None


def run_bench(path: Path, options: BenchOptions, out: Path, say: Say) -> dict[str, Any]:
    """Runs everything -> the summary, which is also in out/bench.json."""
    if (out / SUMMARY).exists():
        raise OptionError(f"{out} has a benchmark already: give another folder")
    with GraphStore(path) as store:
        if options.batches + options.warmup > len(store.split("train")) // options.batch_size:
            raise OptionError(
                f"{store.path} has {len(store.split('train')):,} training nodes: too few for "
                f"{options.batches + options.warmup} batches of {options.batch_size}"
            )
        epoch_batches = -(-len(store.split("train")) // options.batch_size)
        plan = plan_memory(store, options)
        facts, machine = store_facts(store), machine_facts(path)
        drive = measure_drive(store.file("features"))
    say(
        f"drive: {drive.random_reads_per_second:,.0f} random 4 KiB reads/s, "
        f"{format_size(int(drive.sequential_bytes_per_second))}/s in sequence ({drive.source})"
    )
    say(
        f"memory: {format_size(plan.memory_bytes)}: {format_size(plan.cache_bytes)} for caches "
        f"({plan.cache_bytes / max(facts['feature_bytes'], 1):.0%} of the features) + "
        f"{format_size(plan.base_bytes)} for {_BATCHES_IN_FLIGHT} batches and tables; "
        f"limit of each process {format_size(plan.cage_bytes)}"
    )
    out.mkdir(parents=True, exist_ok=True)
    runs = _Runs(path, options, plan, out, say)
    measured = [n for n in options.strategies if n not in PEERS or peer_missing(n) is None]
    for repeat in range(options.repeat):
        for strategy in measured:
            runs.measure(strategy, repeat)
    rows = [runs.row(strategy) for strategy in measured]
    records = [record for found in runs.records.values() for record in found]
    rows += absent_peers()
    if drive.sequential_bytes_per_second:
        rows += limits(records, drive, facts, options)
        _add_bounds(rows, runs.records, drive, options)
    summary = {
        "format": BENCH_FORMAT,
        "version": BENCH_VERSION,
        "command": command_line(),
        "created": now(),
        "store": facts,
        "machine": {**machine, "drive": asdict(drive)},
        "versions": versions(),
        "configuration": {
            **asdict(options),
            "memory_bytes": plan.memory_bytes,
            "cache_bytes": plan.cache_bytes,
            "cage_bytes": plan.cage_bytes,
            "cage": runs.enforced,
            "epoch_batches": epoch_batches,
        },
        "drive": asdict(drive),
        "rows": rows,
        "check": check_digests(records, options.check_batches),
    }
    write_synced(out / SUMMARY, compact_json(summary))
    return summary


class _Runs:
    """Runs workers, and keeps their records by strategy."""

    def __init__(self, path: Path, options: BenchOptions, plan: Plan, out: Path, say: Say) -> None:
        self._path = path
        self._options = options
        self._plan = plan
        self._out = out
        self._say = say
        self.records: dict[str, list[dict[str, Any]]] = {}
        self._files: dict[str, list[str]] = {}
        self._failures: dict[str, str] = {}
        self.enforced = "cgroup"

    def measure(self, strategy: str, repeat: int) -> None:
        options = self._options
        batches, warmup = options.slow.get(strategy, (options.batches, options.warmup))
        name = f"{strategy.replace(':', '-')}-{repeat + 1}"
        job = Job(
            store=str(self._path),
            strategy=strategy,
            memory_bytes=self._memory_bytes(strategy),
            num_neighbors=list(options.num_neighbors),
            batch_size=options.batch_size,
            batches=batches,
            warmup=warmup,
            epochs=options.epochs,
            model=options.model,
            seed=options.seed,
            batching=options.batching,
            check_batches=options.check_batches if repeat == 0 else 0,
            out=str(self._out / f"{name}.json"),
            bytes_per_second=options.bytes_per_second,
            requests_per_second=options.requests_per_second,
            history=options.history,
            access=options.access,
        )
        file = self._out / f".{name}.job"
        file.write_text(json.dumps(asdict(job)))
        forget(self._path)
        try:
            self._run(strategy, [sys.executable, "-m", "outcrop.tools.bench.worker", str(file)])
        except OutcropError as error:
            self._failures[strategy] = str(error)
            self._say(f"{name}: {error}")
            return
        finally:
            file.unlink()
        record = read_record(Path(job.out))
        self.records.setdefault(strategy, []).append(record)
        self._files.setdefault(strategy, []).append(f"{name}.json")
        self._say(f"{name}: {epoch_seconds(record):.2f} s for {batches} batches")

    def _memory_bytes(self, strategy: str) -> int:
        if strategy in _UNLIMITED:
            with GraphStore(self._path) as store:
                whole = sum(store.array_bytes(n) for n in ("features", "indptr", "indices"))
            return 2 * whole + self._plan.base_bytes + self._plan.cache_bytes
        return self._plan.memory_bytes

    def _run(self, strategy: str, command: list[str]) -> None:
        limit = self._plan.cage_bytes
        if strategy in _UNLIMITED:
            limit = self._memory_bytes(strategy) + OVERHEAD_BYTES
        try:
            caged = run_caged(command, limit)
            code, output = caged.returncode, caged.output
        except CageError:
            self.enforced = "accounting"
            done = subprocess.run(command, capture_output=True, text=True)
            code, output = done.returncode, done.stdout + done.stderr
        if code in (137, -9):
            raise OutcropError(f"killed: more than the limit of {format_size(limit)}")
        if code:
            raise OutcropError(f"status {code}: {output.strip().splitlines()[-1:]}")

    def row(self, strategy: str) -> dict[str, Any]:
        options = self._options
        records = self.records.get(strategy, [])
        batches, warmup = options.slow.get(strategy, (options.batches, options.warmup))
        scale = options.batches / batches
        note = ""
        if strategy in _UNLIMITED:
            note = "outside of the limit: everything in memory"
        if scale != 1:
            note = f"timed on {batches} batches after {warmup} of warm-up, scaled"
        return _row(
            strategy,
            "peer" if strategy in PEERS else "strategy",
            "measured" if records else "failed",
            note=self._failures.get(strategy, note),
            seconds=[epoch_seconds(record) * scale for record in records],
            measured_batches=batches,
            scaled=scale != 1,
            records=self._files.get(strategy, []),
            cache_bytes=self._plan.cache_bytes,
        )


def _row(name: str, kind: Any, status: Any, **values: Any) -> dict[str, Any]:
    return asdict(Row(name, kind, status, **values))


def epoch_seconds(record: dict[str, Any]) -> float:
    """The median of its epochs."""
    times: list[float] = [epoch["timed_seconds"] for epoch in record["loader"]["epochs"]]
    return statistics.median(times)


def check_digests(records: Sequence[dict[str, Any]], batches: int) -> dict[str, Any] | None:
    """Whether all strategies delivered the same batches."""
    digests = {r["name"]: r["digest"] for r in records if r["digest"] is not None}
    if not digests:
        return None
    return {"equal": len(set(digests.values())) == 1, "batches": batches, "digests": digests}


def absent_peers() -> list[dict[str, Any]]:
    """Systems of others that could be measured beside, were they installed."""
    missing = {name: peer_missing(name) for name in PEERS}
    return [_row(name, "peer", "absent", note=note) for name, note in missing.items() if note]


def limits(
    records: Sequence[dict[str, Any]],
    drive: DriveRates,
    store: dict[str, Any],
    options: BenchOptions,
) -> list[dict[str, Any]]:
    """What the wanted bytes would take if they lay in sequence, and scanning everything."""
    known = [record for record in records if record["name"] not in PEERS]
    if not known:
        return []
    epoch = known[0]["loader"]["epochs"][0]
    per_batch = epoch["rows"] / max(epoch["batches"], 1) * store["row_bytes"]
    distinct_rows = epoch["distinct_rows"] or 0
    rate = drive.sequential_bytes_per_second
    found = {
        "wanted bytes in sequence": per_batch * options.batches / rate,
        "distinct rows once, in sequence": distinct_rows * store["row_bytes"] / rate,
        "scan of all features per batch": store["feature_bytes"] * options.batches / rate,
    }
    rows = [
        _row(name, "limit", "measured", seconds=[value], note="at the drive's sequential speed")
        for name, value in found.items()
    ]
    compute = [
        epoch["stages"]["compute"]["busy_seconds"] / max(epoch["batches"], 1) * options.batches
        for record in records
        if record["name"] == "memory"
        for epoch in record["loader"]["epochs"]
    ]
    if compute and options.model != "none":
        rows.append(_row("compute alone", "limit", "measured", seconds=compute,
                         note="as the loop of strategy memory spent it"))  # fmt: skip
    return rows


def _add_bounds(
    rows: list[dict[str, Any]],
    records: dict[str, list[dict[str, Any]]],
    drive: DriveRates,
    options: BenchOptions,
) -> None:
    """Each strategy's own physical limit, if it reads: not for the reference in memory."""
    for row in rows:
        found = records.get(row["name"], [])
        # Of a peer's reads and sampling nothing is known.
        if not found or row["kind"] != "strategy" or row["name"] in _UNLIMITED:
            continue
        bounds = []
        for loader in (record["loader"] for record in found):
            # Events are those of the first epoch; the others are alike.
            first_batches = max(loader["epochs"][0]["batches"], 1)
            alone = sampling_alone_seconds(loader["events"]) / first_batches
            for epoch in loader["epochs"]:
                bound = epoch_bound_seconds(epoch, alone * epoch["batches"], drive)
                bounds.append(bound * options.batches / max(epoch["batches"], 1))
        row["bound_seconds"] = statistics.median(bounds)
        row["bound"] = BOUND
