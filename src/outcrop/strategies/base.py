"""What a strategy is: tasks -> prepared batches. See docs/adding_a_strategy.md."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from outcrop.batch import BatchMaker, Prepared
from outcrop.pipeline import Event, Pipeline, StageTimes
from outcrop.sample.sampler import Sampling
from outcrop.sample.seeds import Task
from outcrop.store.store import GraphStore


@dataclass(frozen=True)
class Job:
    """What is to be delivered, with what means. The memory is settled: see `Strategy.needs`."""

    store: GraphStore
    sampling: Sampling
    seed: int
    maker: BatchMaker
    """Makes batches in memory of the budget."""
    depth: int
    """Batches that may be under way at a time; the budget has room for so many."""


@dataclass
class RunTimes:
    """Who did what while batches were prepared; `Strategy.batches` fills it."""

    stages: dict[str, StageTimes] = field(default_factory=dict)
    consumer_wait_seconds: float = 0.0
    events: list[Event] = field(default_factory=list)
    hits: dict[str, int] = field(default_factory=dict)
    """Rows found in memory, by tier; a strategy with tiers counts them."""

    def take(self, pipeline: Pipeline) -> None:
        self.stages = pipeline.timings
        self.consumer_wait_seconds = pipeline.consumer_wait_seconds
        self.events = pipeline.events


class Strategy(ABC):
    """Prepares batches. Made once per loader; `batches` may be called again and again."""

    name: ClassVar[str]
    reads_stored_rows: ClassVar[bool] = False
    """Whether it reads rows as they are stored, so that batches need room for them beside x."""

    @classmethod
    @abstractmethod
    def needs(cls, store: GraphStore, scratch_bytes: int) -> Mapping[str, int]:
        """Bytes that it keeps resident, by name: charged to the budget before it is made.

        `scratch_bytes` is what one sampler needs, as measured on a first batch.
        """

    @abstractmethod
    def __init__(self, job: Job) -> None:
        """Opens, loads, allocates: all that lasts as long as the loader."""

    @abstractmethod
    def batches(self, tasks: Iterable[Task], times: RunTimes) -> Iterator[Prepared]:
        """The batch of each task. To drop the iterator is to stop the work."""

    @abstractmethod
    def close(self) -> None:
        """Gives up what the constructor opened."""
