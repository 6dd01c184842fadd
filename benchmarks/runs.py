"""Runs: a strategy on a graph with so much memory -> its record, kept in a work folder.

A run is `outcrop bench` of one strategy: a process of its own in a memory cage, the store out of
the page cache, fio before it. What was measured once is not measured again; what failed is.
"""

from __future__ import annotations

import os
import shutil
import statistics
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from machine import rmat_store
from outcrop.disk import SIZE_BOUNDS
from outcrop.errors import OutcropError
from outcrop.ingest.reorder import reorder
from outcrop.ingest.synthetic import SynthOptions, synthesise
from outcrop.layout.partitions import KIND as PARTITIONS
from outcrop.layout.partitions import community_order
from outcrop.layout.savings import KIND as SAVINGS
from outcrop.observe.record import compact_json, read_json, read_record
from outcrop.sample.batching import RANDOM
from outcrop.store.derived import ELSEWHERE
from outcrop.store.store import GraphStore
from outcrop.tools.bench.compare import SUMMARY, BenchOptions, run_bench
from outcrop.tools.bench.drive import DriveRates, forget, measure_drive
from outcrop.tools.bench.worker import Access

_MAKING_BYTES = 1_500_000_000  # memory that making a graph takes
_BATCH_SIZE = 1000
_CHECKED_BATCHES = 3
_NOTE_CHARACTERS = 60  # of the beginning and of the end of a longer one


@dataclass(frozen=True)
class Graph:
    """A benchmark graph, and what its runs have unless a figure says otherwise."""

    nodes: int
    edges: int
    dim: int = 128
    train_fraction: float = 0.01
    memory: str = "10%"
    """As of a run."""
    cage: str | None = None
    epochs: int = 1
    communities: bool = False
    """Made of communities; else R-MAT."""
    order: str | None = None
    """How the nodes of the graph `of` are ordered anew."""
    of: str = ""


_TWO = (2_000_000, 30_000_000)
_TINY = Graph(200_000, 3_000_000, 128, 0.05, memory="250MB", epochs=3)
_QUICK = Graph(4_000_000, 60_000_000, memory="600MB", cage="1GB", epochs=3)
_STANDARD = Graph(20_000_000, 300_000_000, memory="10%", cage="2.5GB")
_PLAIN = {
    "tiny": _TINY,
    "quick": _QUICK,
    "standard": _STANDARD,
    # An epoch of 100 batches.
    "huge": Graph(100_000_000, 1_000_000_000, 32, 0.001, memory="2GB", cage="2.5GB"),
    **{f"quick-2000k-{dim}": Graph(*_TWO, dim) for dim in (64, 128, 256, 512)},
    "community-tiny": replace(_TINY, memory="400MB", communities=True),
    # Its batches have more nodes: two of them and tables take 0.8 GB.
    "community-quick": replace(_QUICK, memory="1GB", cage="1.5GB", communities=True),
    "community-standard": replace(_STANDARD, communities=True),
    # An epoch of 40 batches: what lies ahead is thrown away where epochs are cut short.
    "community-standard-40": replace(_STANDARD, communities=True, train_fraction=0.002),
    # And of 10, for training: with messages of gat, their gradients and torch's own in the cage,
    # which has half of the graph.
    "community-standard-10": replace(
        _STANDARD, communities=True, train_fraction=0.0005, cage="6GB"
    ),
    "community-2000k": Graph(*_TWO, communities=True),
    # Many nodes to train on: the same nodes are met again before long.
    "community-dense": Graph(
        400_000, 6_000_000, 128, 0.15, memory="460MB", cage="1GB", epochs=3, communities=True
    ),
    # Rows of a page each, and larger than embeddings: as those of IGB.
    "community-wide": Graph(400_000, 6_000_000, 1024, 0.15, epochs=2, communities=True),
    "community-100k": Graph(100_000, 1_500_000, 64, 0.1, memory="250MB", communities=True),
}
GRAPHS = {
    **_PLAIN,
    **{
        f"{name}-{order}": replace(_PLAIN[name], order=order, of=name)
        for name in ("tiny", "community-tiny", "quick-2000k-128", "community-2000k")
        for order in ("degree", "bfs", "community")
    },
}


def graph_store(name: str) -> Path:
    """The graph's store in bench-data, made where it is missing."""
    graph, path = GRAPHS[name], Path("bench-data") / f"{name}.outcrop"
    if graph.order is not None and not path.exists():
        order = community_order() if graph.order == "community" else graph.order
        with GraphStore(graph_store(graph.of)) as source:
            reorder(source, path, order, _MAKING_BYTES, edge_ids=False)
    elif graph.communities and not path.exists():
        path.parent.mkdir(exist_ok=True)
        options = SynthOptions(
            graph.nodes, graph.edges, graph.dim, train_fraction=graph.train_fraction
        )
        synthesise(path, options, _MAKING_BYTES)
    elif not path.exists():
        rmat_store(name, graph.nodes, graph.edges, graph.dim, graph.train_fraction)
    return path


@dataclass(frozen=True)
class Run:
    """What is measured, and under what."""

    graph: str
    strategy: str
    memory: str
    """Of the data path; with a %: for caches alone, of the features."""
    cage: str | None = None
    """The hard limit of the process; None: the memory and a fixed overhead."""
    epochs: int = 1
    batches: int | None = None
    """Of each epoch; None: all."""
    cold: bool = False
    """Nothing is prepared: every layout is made, and counted."""
    fanout: int = 10
    rate: float = 1.0
    """The drive's rates, bytes and requests, as a share of its own."""
    cpus: int | None = None
    batching: str = RANDOM
    """As loaders have it."""
    model: str = "none"
    hops: int = 3
    history: str = ""
    """As loaders have it; empty: no embedding is used again."""
    access: Access = "auto"
    """As `DiskOptions` has it."""

    @property
    def name(self) -> str:
        """Of its folder: what tells it from others."""
        given = {key: value for key, value in asdict(self).items() if value != _USUAL.get(key)}
        words = [str(given.pop("strategy")), *(f"{key}={value}" for key, value in given.items())]
        return "_".join(words).replace("/", "-")


_USUAL = {each.name: each.default for each in fields(Run)}


@dataclass(frozen=True)
class Result:
    """A run's record, and the drive's rates just before it."""

    record: dict[str, Any]
    drive: dict[str, Any]

    @property
    def epochs(self) -> list[dict[str, Any]]:
        return list(self.record["loader"]["epochs"])

    def whole(self, name: str) -> float:
        """Of the whole run, preparation included: see `run` in docs/record.md; 0: not known."""
        return float(self.record["loader"].get("run", {}).get(name) or 0)

    def total(self, name: str) -> float:
        """A count of epochs, added up."""
        return float(sum(epoch.get(name) or 0 for epoch in self.epochs))

    def tier_bytes(self, prefix: str) -> float:
        """What was read of tiers on disk whose names begin so."""
        tiers = [tier for epoch in self.epochs for tier in epoch.get("tier_bytes", {}).items()]
        return float(sum(size for name, size in tiers if name.startswith(prefix)))

    @property
    def block_bytes(self) -> float:
        """Read of blocks, of graph and features; of who has none, whatever was read."""
        blocks = self.tier_bytes("graph blocks") + self.tier_bytes("feature blocks")
        return blocks or self.total("bytes_read")

    def per_batch(self, name: str) -> float:
        """A count of epochs, by batch: without what was prepared before them."""
        return self.total(name) / max(self.total("batches"), 1)

    def later(self, name: str) -> float:
        """The same beyond the first epoch, if there are more: embeddings are there from then on."""
        epochs = self.epochs[1:] or self.epochs
        batches = max(sum(e["batches"] for e in epochs), 1)
        return float(sum(e.get(name) or 0 for e in epochs) / batches)

    def planned(self, name: str) -> float:
        """A number that was decided; 0: not by this strategy."""
        return float(self.record["loader"]["plan"].get(name) or 0)

    @property
    def read_bytes_each(self) -> float:
        """The mean of the engine's reads in epochs."""
        return self.total("bytes_read") / max(self.total("read_requests"), 1)

    @property
    def disk_used_bytes(self) -> int:
        """The most that lay beside the store at a time: layouts, traces, spills."""
        return self.record["process"]["disk_used_bytes"] or 0

    @property
    def hits(self) -> float:
        """The share of rows that caches had."""
        found = sum(sum(epoch["hits"].values()) for epoch in self.epochs)
        return found / max(self.total("rows"), 1)

    @property
    def sequential_share(self) -> float:
        """What was read in the whole run, of what the drive could have read in sequence."""
        return self.whole("drive_bytes") / max(self.whole("seconds"), 1e-9) / self.fio

    @property
    def fio(self) -> float:
        """Bytes per second that the drive reads in sequence."""
        return float(self.drive["sequential_bytes_per_second"] or "inf")

    @property
    def bandwidths(self) -> list[float]:
        """What the drive read, in each second of the epochs."""
        return list(self.record["series"].get("drive_bytes_per_second", [])) or [0.0]

    @property
    def windows(self) -> float:
        """Hyperbatches or superbatches of the run."""
        length = self.record["loader"]["plan"].get("window_batches") or 1
        return max(self.total("batches") / length, 1)

    @property
    def layout_seconds(self) -> float:
        return sum(layout["seconds"] or 0.0 for layout in self.record["layouts"])

    @property
    def partition_seconds(self) -> float:
        """That dividing the graph took, if the run did that."""
        return self._making_seconds(PARTITIONS)

    @property
    def profile_seconds(self) -> float:
        """That profiling an epoch took, if the run did that."""
        return self._making_seconds(SAVINGS)

    def _making_seconds(self, kind: str) -> float:
        return sum(
            layout["seconds"] or 0.0
            for layout in self.record["layouts"]
            if layout["made"] and layout["name"].startswith(f"{kind}-")
        )

    def stage_seconds(self, name: str) -> float:
        """That a stage was busy in epochs, added up."""
        return float(sum(e["stages"].get(name, {}).get("busy_seconds", 0) for e in self.epochs))

    @property
    def layout_bytes(self) -> int:
        return sum(layout["bytes"] for layout in self.record["layouts"])

    def size_share(self, low: int, high: int) -> float:
        """Read requests of epochs of more than `low` and up to `high` bytes, of all."""
        bounds = [*SIZE_BOUNDS, 1 << 62]
        counts = [sum(found) for found in zip(*(e["read_sizes"] for e in self.epochs), strict=True)]
        within = sum(n for n, size in zip(counts, bounds, strict=True) if low < size <= high)
        return float(within / max(sum(counts), 1))


class Work:
    """The folder of what was measured."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def results(self, run: Run) -> list[Result]:
        """Those that were measured, a round each."""
        found = []
        for summary in sorted((self.folder / run.name).glob(f"*/{SUMMARY}")):
            values = read_json(summary)
            for row in values["rows"]:
                found += [
                    Result(read_record(summary.parent / file), values["drive"])
                    for file in row["records"]
                ]
        return found

    def failure(self, run: Run) -> str:
        """Why the last round has no record; nothing where it has, or was not tried."""
        notes = [path.read_text() for path in sorted((self.folder / run.name).glob("*/failed"))]
        note = notes[-1] if notes else ""
        short = len(note) <= 2 * _NOTE_CHARACTERS
        return note if short else f"{note[:_NOTE_CHARACTERS]} ... {note[-_NOTE_CHARACTERS:]}"

    def measure(self, run: Run, number: int) -> None:
        """Measures a round, unless it was."""
        out = self.folder / run.name / str(number)
        if (out / SUMMARY).exists() and not (out / "failed").exists():
            return
        shutil.rmtree(out, ignore_errors=True)
        print(f"{run.name}, round {number}", flush=True)
        try:
            with self._layouts(run), _cpus(run.cpus):
                summary = run_bench(graph_store(run.graph), self._options(run, number), out, print)
            failure = next(row["note"] for row in summary["rows"] if row["name"] == run.strategy)
            failure = "" if list(out.glob("*-1.json")) else failure
        except OutcropError as error:
            failure = str(error)
        if failure:
            out.mkdir(parents=True, exist_ok=True)
            (out / "failed").write_text(failure)

    def _options(self, run: Run, number: int) -> BenchOptions:
        with GraphStore(graph_store(run.graph)) as store:
            whole = len(store.split("train")) // _BATCH_SIZE
        share = run.memory.endswith("%")
        options = BenchOptions(
            (run.strategy,), memory=None if share else run.memory,
            cache=run.memory if share else None, cage=run.cage, epochs=run.epochs,
            num_neighbors=(run.fanout,) * run.hops, batch_size=_BATCH_SIZE, repeat=1,
            batches=min(run.batches or whole, whole),
            check_batches=_CHECKED_BATCHES if number == 0 else 0,
            model=run.model, batching=run.batching, partition_first=not run.cold,
            history=run.history, access=run.access,
        )  # fmt: skip
        if run.rate == 1:
            return options
        drive = self._drive(run.graph)
        return replace(
            options,
            bytes_per_second=int(drive.sequential_bytes_per_second * run.rate),
            requests_per_second=int(drive.random_reads_per_second * run.rate),
        )

    def _drive(self, graph: str) -> DriveRates:
        """Measured once: slower drives are shares of the same one."""
        file = self.folder / f"drive-{graph}.json"
        if not file.exists():
            with GraphStore(graph_store(graph)) as store:
                file.write_bytes(compact_json(asdict(measure_drive(store.file("features")))))
        return DriveRates(**read_json(file))

    @contextmanager
    def _layouts(self, run: Run) -> Iterator[None]:
        """Layouts beside the results: none that is there before or after a cold run."""
        folder = (self.folder / ("cold" if run.cold else f"layouts-{run.graph}")).absolute()
        if run.cold:
            shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True, exist_ok=True)
        forget(folder)
        try:
            with _derived(folder):
                yield
        finally:
            if run.cold:
                shutil.rmtree(folder)


@contextmanager
def _derived(folder: Path) -> Iterator[None]:
    """Layouts go to this folder, those of processes that are started as well."""
    before = os.environ.get(ELSEWHERE)
    os.environ[ELSEWHERE] = str(folder)
    try:
        yield
    finally:
        if before is None:
            del os.environ[ELSEWHERE]
        else:
            os.environ[ELSEWHERE] = before


@contextmanager
def _cpus(count: int | None) -> Iterator[None]:
    """This process, and those that it starts, on so many of its CPUs."""
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, sorted(allowed)[:count])
    try:
        yield
    finally:
        os.sched_setaffinity(0, allowed)


def spread(values: list[float], text: str = "{:.3g}", scale: float = 1.0) -> str:
    """The median, and the least and the most where they differ."""
    scaled = [value * scale for value in values]
    told = [text.format(each) for each in (statistics.median(scaled), min(scaled), max(scaled))]
    return told[0] if told[1] == told[2] else f"{told[0]} ({told[1]} to {told[2]})"
