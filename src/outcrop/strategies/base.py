"""What a strategy is: tasks -> prepared batches. See docs/adding_a_strategy.md."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any, ClassVar, Literal

from outcrop import _core
from outcrop.batch import BatchMaker, Prepared
from outcrop.cache.neighbor import SHADOW_ENTRIES, scratch_bytes
from outcrop.pipeline import Event, Pipeline, StageTimes
from outcrop.progress import Progress
from outcrop.sample.edge_ids import StoredEdgeIds, edge_id_limit, keeps_edge_ids
from outcrop.sample.sampler import Parking, Sampler, Sampling
from outcrop.sample.seeds import SeedOrder, Task
from outcrop.store.store import GraphStore

# That any memory has room for: one with the user's loop, one on the way to it.
MIN_BATCHES = 2


@dataclass(frozen=True)
class NoOptions:
    """Of strategies that have none of their own."""


@dataclass(frozen=True)
class Sizes:
    """What a batch takes, as seen on the first one, with a margin."""

    nodes: int
    edges: int
    targets: int
    """Of its nodes, those whose neighbours are drawn."""
    batch_bytes: int
    scratch_bytes: int
    """Of the sampler that makes it."""
    mean_nodes: int = 0
    """Of the batches that were seen, without a margin; so are the edges."""
    mean_edges: int = 0


@dataclass(frozen=True)
class Means:
    """What a strategy plans with, before anything is allocated."""

    store: GraphStore
    sampling: Sampling
    seeds: SeedOrder
    """The schedule that the loader was made for; tasks of others may come as well."""
    options: Any
    """An instance of the strategy's `Options`."""
    sizes: Sizes
    spare_bytes: int
    """Memory beside what every strategy needs and the least number of batches: for caches."""
    disk_bytes: int | None
    """What it may write beside the store; None: what it needs."""
    epochs: int | None
    """How many the run will have; None: nobody knows."""
    device: str
    """Where batches go, as torch names it."""

    @property
    def seed(self) -> int:
        return self.seeds.seed

    @property
    def keeps_edge_ids(self) -> bool:
        """Whether batches have ids that the store keeps; else they have places, or nothing."""
        return keeps_edge_ids(self.store, self.sampling)

    @property
    def edge_id_limit(self) -> int:
        """Above every edge id of batches."""
        return edge_id_limit(self.store, kept=self.keeps_edge_ids)


@dataclass(frozen=True)
class Job(Means):
    """The same once the memory is settled."""

    charges: Mapping[str, int]
    """What `Strategy.needs` asked for, by name."""
    maker: BatchMaker
    """Makes batches in memory of the budget."""
    depth: int
    """Batches that may be under way at a time; the budget has room for so many."""
    progress: Progress
    """Of what it prepares."""

    def sampler(self, topology: _core.Topology, threads: int) -> Sampler:
        """Of the batches that are wanted; reads the ids of their edges, if the store keeps them."""
        edge_ids = StoredEdgeIds(self.store) if self.keeps_edge_ids else None
        return Sampler(self.sampling, topology, self.seed, threads, edge_ids)

    @property
    def prepare_bytes(self) -> int:
        """Memory that preparation may use, as long as there are no batches and no caches."""
        return sum(self.charges.values()) + self.maker.pool.limit_bytes


@dataclass
class RunTimes:
    """Who did what while batches were prepared; `Strategy.batches` fills it."""

    stages: dict[str, StageTimes] = field(default_factory=dict)
    consumer_wait_seconds: float = 0.0
    events: list[Event] = field(default_factory=list)
    hits: dict[str, int] = field(default_factory=dict)
    """Rows found in memory, by tier; a strategy with tiers counts them."""
    tier_bytes: dict[str, int] = field(default_factory=dict)
    """Read for rows, by tier; a strategy with tiers on disk counts them."""
    unprepared_batches: int = 0
    """Of a strategy that prepares epochs: batches of its schedule that it had not."""
    padding_bytes: int = 0
    """Of those, bytes of pages that belong to no row that was wanted."""
    _pipeline: Pipeline | None = field(default=None, init=False, repr=False)
    """The one that runs now."""

    def follow(self, pipeline: Pipeline) -> None:
        """From now on its queues are those of this run."""
        self._pipeline = pipeline

    @property
    def queue_lengths(self) -> dict[str, int]:
        """How many items wait before each stage of the pipeline that runs; empty: none does."""
        pipeline = self._pipeline
        return {} if pipeline is None else pipeline.queue_lengths

    def take(self, pipeline: Pipeline) -> None:
        """Adds what an ended pipeline did for the loop."""
        self._pipeline = None
        self.take_stages(pipeline)
        self.consumer_wait_seconds += pipeline.consumer_wait_seconds

    def take_stages(self, pipeline: Pipeline) -> None:
        """The same for a pipeline that the loop does not wait for."""
        for name, times in pipeline.timings.items():
            self.stages.setdefault(name, StageTimes()).add(times)
        self.events += pipeline.events

    @contextmanager
    def measure(self, stage: str, number: int = 0) -> Iterator[None]:
        """Times a block as the work of a stage on one item. One thread per stage."""
        start = perf_counter()
        try:
            yield
        finally:
            end = perf_counter()
            self.stages.setdefault(stage, StageTimes()).add(StageTimes(1, end - start))
            self.events.append(Event(stage, number, start, end))

    def hit(self, tier: str, rows: int) -> None:
        self.hits[tier] = self.hits.get(tier, 0) + rows


class Strategy(ABC):
    """Prepares batches. Made once per loader; `batches` may be called again and again."""

    name: ClassVar[str]
    Options: ClassVar[type] = NoOptions
    """A frozen dataclass, all of whose fields have defaults: "ginex:superbatch=100" sets one."""
    reads_stored_rows: ClassVar[bool] = False
    """Whether it reads rows as they are stored, so that batches need room for them beside x."""
    loads_edge_ids: ClassVar[bool] = False
    """Whether it has the edge ids that a store keeps in memory; else samplers read them."""
    order: Literal["exact", "completion"] = "exact"
    """Whether batches come in the order of their tasks, or as they are done."""

    @classmethod
    def leaves_rows_in_slots(cls, options: Any) -> bool:
        """Whether its batches have x_buffer and x_index in place of x."""
        return False

    @classmethod
    def assembly_bytes(cls, store: GraphStore, options: Any, device: str) -> int:
        """Per node of a batch, beside x, where x is put together on the device; 0: it is not."""
        return 0

    @classmethod
    def largest_batch(cls, store: GraphStore, options: Any) -> tuple[int, int]:
        """Nodes and edges of the largest batch, where that is known before one is sampled."""
        return 0, 0

    @classmethod
    @abstractmethod
    def needs(cls, means: Means) -> Mapping[str, int]:
        """Bytes that it keeps resident, by name: charged to the budget before it is made.

        What it leaves of `means.spare_bytes` goes to more batches under way.
        """

    @classmethod
    def written_bytes(cls, means: Means) -> int:
        """Disk that it takes beside the store, at most at a time, as far as sizes tell; 0: none."""
        return 0

    @abstractmethod
    def __init__(self, job: Job) -> None:
        """Opens, loads, allocates: all that lasts as long as the loader."""

    @abstractmethod
    def batches(self, tasks: Iterable[Task], times: RunTimes) -> Iterator[Prepared]:
        """The batch of each task. To drop the iterator is to stop the work."""

    @property
    def alterations(self) -> dict[str, Any]:
        """Options by which its batches are others than `memory`'s, in JSON's values: a position
        that was saved among them is one of such batches alone. {}: the batches are the same."""
        return {}

    @property
    def facts(self) -> dict[str, Any]:
        """What it decided and prepared, in JSON's values, for the record."""
        return {}

    @abstractmethod
    def close(self) -> None:
        """Gives up what the constructor opened."""


def preparation_bytes(means: Means, prepare_bytes: int, resident: Mapping[str, int]) -> int:
    """What to charge for a step before the first batch that takes so much.

    It has all memory that is spare, and that of the least number of batches: what is resident is so
    only later. Where that is too little, so much that the budget is refused.
    """
    batches = MIN_BATCHES * means.sizes.batch_bytes
    if prepare_bytes <= means.spare_bytes + batches:
        return 0
    return max(prepare_bytes - batches - sum(resident.values()), 0)


def parked_bytes(means: Means) -> int:
    """Of a sampled batch that waits outside of its sampler."""
    return Parking.subgraph_bytes(means.sizes.nodes, means.sizes.edges)


def sampler_bytes(means: Means) -> int:
    """What a cached topology keeps for each sampler, beside the sampler's own."""
    entries = means.sizes.edges
    repeated = 0
    if means.sampling.kind == "shadow":  # whole lists, many nodes more than once
        entries = max(entries, SHADOW_ENTRIES)
        repeated = 16 * entries
    return scratch_bytes(means.store, means.sizes.targets, entries) + repeated
