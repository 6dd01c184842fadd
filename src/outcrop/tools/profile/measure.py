"""Measure: a store and what is sampled from it, or a trace -> a profile."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from contextlib import closing
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from outcrop.ahead.sampling import SamplingAhead
from outcrop.errors import OptionError, StoreError
from outcrop.layout.trace import Trace, TraceReader, TraceWriter
from outcrop.options import DiskOptions
from outcrop.progress import SILENT, Progress
from outcrop.run.order import seed_order
from outcrop.sample.batching import RANDOM, batching_named
from outcrop.sample.identity import SamplingIdentity
from outcrop.sample.sampler import Sampler, Sampling
from outcrop.sample.seeds import ALL_NODES, SeedOrder
from outcrop.store.degrees import out_degrees
from outcrop.store.format import SPLITS
from outcrop.store.store import GraphStore
from outcrop.tools.environment import store_facts
from outcrop.tools.profile.accesses import Accesses, Bin, powers_of_two
from outcrop.tools.profile.policies import POLICIES, Policy
from outcrop.tools.profile.reads import ReadPlan, RowPlace, plan_reads
from outcrop.topology.parts import PAGE_THREADS, paged_topology

PROFILE_FORMAT, PROFILE_VERSION = "outcrop-profile", 1
TOP_PERCENTS = (1, 5, 10, 20)
CACHE_PERCENTS = (1, 2, 5, 10, 20, 50)
GAPS = (0, DiskOptions().gap_bytes)
_CURVE_PERCENTS = tuple(10 ** (i / 10 - 2) for i in range(41))  # 0.01 to 100


@dataclass(frozen=True)
class ProfileOptions:
    """What is sampled for a profile."""

    sampling: Sampling = field(default_factory=lambda: Sampling((10, 10, 10)))
    batch_size: int = 1000
    batches: int = 40
    """How many are sampled, over as many epochs as that takes."""
    input_nodes: str = "train"
    """train, val, test or all."""
    seed: int = 0
    batching: str = RANDOM
    """As loaders have it."""

    def __post_init__(self) -> None:
        batching_named(self.batching)
        if self.batches < 1:
            raise OptionError(f"batches must be at least 1 (got {self.batches})")
        if self.input_nodes not in (*SPLITS, ALL_NODES):
            names = ", ".join((*SPLITS, ALL_NODES))
            raise OptionError(f"input_nodes must be one of {names} (got {self.input_nodes!r})")


@dataclass(frozen=True)
class Share:
    """What part of all accesses goes to the rows with the most of them."""

    percent: float
    """How many rows these are, in percent of the graph's."""
    rows: int
    accesses: int
    share: float


@dataclass(frozen=True)
class PolicyMisses:
    """A policy's outcomes, one per cache size."""

    name: str
    misses: list[int]
    filled: list[int]
    miss_ratio: list[float]


@dataclass(frozen=True)
class CacheSize:
    percent: float
    """How many rows it holds, in percent of the graph's."""
    rows: int


@dataclass(frozen=True)
class Profile:
    """How a trace accesses rows; docs/profile.md says what each figure means."""

    store: dict[str, Any]
    trace: dict[str, Any]
    """The identity of the samples, as the trace has it."""
    batches: int
    seeds: int
    rows_wanted: int
    accesses: int
    distinct_rows: int
    redundancy_ratio: float | None
    random_redundancy_ratio: float | None
    """Of as many batches of seeds by chance, beside batches of partitions; None: not sampled."""
    top: list[Share]
    cumulative: list[Share]
    reuse_batches: list[Bin]
    reuse_rows: list[Bin]
    reads: list[ReadPlan]
    """Per gap; none where the store has no features."""
    cache_sizes: list[CacheSize]
    policies: list[PolicyMisses]

    def as_dict(self) -> dict[str, Any]:
        """In JSON's values."""
        return {"format": PROFILE_FORMAT, "version": PROFILE_VERSION, **asdict(self)}


def profile_store(
    store: GraphStore, options: ProfileOptions | None = None, progress: Progress = SILENT
) -> Profile:
    """Samples batches into a temporary trace (in TMPDIR) and profiles it."""
    options = options or ProfileOptions()
    with tempfile.TemporaryDirectory(prefix="outcrop-profile-") as folder:
        sample_trace(store, options, Path(folder), progress)
        with Trace(store.disk, Path(folder)) as trace:
            found = profile_trace(store, trace, progress=progress)
    if batching_named(options.batching) is None:
        return found
    random = redundancy_ratio(store, replace(options, batching=RANDOM), progress)
    return replace(found, random_redundancy_ratio=random)


def redundancy_ratio(
    store: GraphStore,
    options: ProfileOptions,
    progress: Progress = SILENT,
    *,
    order: SeedOrder | None = None,
) -> float:
    """Nodes of batches per seed (OUTRE's measure of what is asked for); nothing is kept.

    `order`: of seeds; None: as the options have it.
    """
    sampler = Sampler(options.sampling, paged_topology(store), options.seed, PAGE_THREADS)
    order = order or _seeds(store, options, progress)
    nodes = seeds = 0
    progress.stage("sample", options.batches, "batches")
    for number in range(options.batches):
        task = order.task(*divmod(number, len(order)))
        nodes += len(sampler.sample(task).nodes)
        seeds += len(task.seeds)
        progress.advance(1)
    return nodes / seeds


def profile_trace(
    store: GraphStore,
    trace: TraceReader,
    *,
    batches: int | None = None,
    policies: Mapping[str, Policy] = POLICIES,
    progress: Progress = SILENT,
) -> Profile:
    """The first `batches` of a trace, or all of them -> their profile."""
    made_of = trace.identity.get("store", store.content)
    if made_of != store.content:
        raise StoreError(f"{store.path}: the trace is of another store ({made_of})")
    accesses = Accesses(
        trace,
        store.num_nodes,
        lambda: out_degrees(store, progress),
        batches=batches,
        progress=progress,
    )
    sizes = [CacheSize(p, rows_of(p, store.num_nodes)) for p in CACHE_PERCENTS]
    return Profile(
        store=store_facts(store),
        trace=trace.identity,
        batches=accesses.num_batches,
        seeds=accesses.seeds,
        rows_wanted=accesses.rows_wanted,
        accesses=accesses.total,
        distinct_rows=accesses.distinct_rows,
        redundancy_ratio=accesses.redundancy_ratio,
        random_redundancy_ratio=None,
        top=[_share(accesses, p) for p in TOP_PERCENTS],
        cumulative=[_share(accesses, p) for p in _CURVE_PERCENTS],
        reuse_batches=powers_of_two(accesses.reuse_batches())[1:],
        reuse_rows=powers_of_two(accesses.reuse_rows),
        reads=_reads(store, accesses),
        cache_sizes=sizes,
        policies=[_misses(accesses, n, p, sizes) for n, p in policies.items()],
    )


def rows_of(percent: float, num_rows: int) -> int:
    """A percentage of all rows, rounded down."""
    return int(num_rows * percent // 100)


def _share(accesses: Accesses, percent: float) -> Share:
    rows = rows_of(percent, accesses.num_rows)
    top = accesses.top_accesses(rows)
    return Share(percent, rows, top, top / accesses.total)


def _reads(store: GraphStore, accesses: Accesses) -> list[ReadPlan]:
    if not store.has("features") or not store.encoding.row_bytes:
        return []
    entry = store.manifest.arrays["features"]
    place = RowPlace(entry.data_offset, store.encoding.row_bytes)
    return plan_reads(accesses.batches("reads"), place, GAPS)


def _misses(accesses: Accesses, name: str, policy: Policy, sizes: list[CacheSize]) -> PolicyMisses:
    outcomes = policy(accesses, [size.rows for size in sizes])
    misses = [outcome.misses for outcome in outcomes]
    ratios = [count / accesses.total for count in misses]
    return PolicyMisses(name, misses, [outcome.filled for outcome in outcomes], ratios)


def sample_trace(
    store: GraphStore, options: ProfileOptions, folder: Path, progress: Progress = SILENT
) -> None:
    """Samples batches -> a trace of their nodes and seeds, without edges; one batch at a time."""
    sampler = Sampler(options.sampling, paged_topology(store), options.seed, PAGE_THREADS)
    seeds = _seeds(store, options, progress)
    none = np.empty(0, np.uint32)
    progress.stage("sample", options.batches, "batches")
    with TraceWriter(
        store.disk,
        folder,
        num_nodes=store.num_nodes,
        num_edges=store.num_edges,
        identity={
            **SamplingIdentity.of(options.sampling, seeds, store.content).values(),
            "input_nodes": options.input_nodes,
        },
        edge_ids=False,
    ) as writer:
        tasks = (seeds.task(*divmod(t, len(seeds))) for t in range(options.batches))
        sampling = SamplingAhead(
            tasks, [sampler], writer, keep=lambda s: replace(s, sources=none, counts=none)
        )
        with closing(sampling.run()) as steps:
            for _ in steps:
                progress.advance(1)
        writer.finish()


def _seeds(store: GraphStore, options: ProfileOptions, progress: Progress) -> SeedOrder:
    """As training has them: shuffled, epoch after epoch."""
    seeds = seed_order(
        store,
        options.input_nodes,
        batch_size=options.batch_size,
        seed=options.seed,
        batching=options.batching,
        progress=progress,
    )
    if not len(seeds):
        raise StoreError(f"{store.path}: there are no {options.input_nodes} nodes to sample around")
    return seeds
