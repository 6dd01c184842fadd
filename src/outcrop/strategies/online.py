"""Online: sample -> gather, a few batches ahead of the loop: strategies without a plan."""

from __future__ import annotations

import queue
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from outcrop import _core
from outcrop.batch import Prepared
from outcrop.pipeline import Pipeline, Stage
from outcrop.sample.sampler import Parking, Sampler, Subgraph
from outcrop.sample.seeds import Task
from outcrop.strategies.base import Job, RunTimes, Strategy, parked_bytes


class Gatherer(Protocol):
    """Fills a batch's x, or the slots that it has in place of it."""

    def gather(self, batch: Prepared) -> None: ...

    def cancel(self) -> None:
        """A gather under way may raise CancelledError."""


@dataclass
class _Sampled:
    number: int
    task: Task
    sampler: Sampler | None
    """Whose memory the subgraph is in; None: it has its own."""
    subgraph: Subgraph
    expected: _core.Expected | None


class OnlineStrategy(Strategy):
    """Samples from a topology that threads may share, and gathers as its child decides."""

    def __init__(
        self,
        job: Job,
        topology: _core.Topology,
        threads: int,
        *,
        samplers: int = 1,
        parked: int = 0,
        gatherers: int = 1,
        order: Literal["exact", "completion"] = "exact",
    ) -> None:
        """A batch is sampled by `threads` threads; so many are sampled and gathered at a time.

        `parked`: so many wait for memory outside of their samplers; 0: inside."""
        self._job = job
        self._topology = topology
        self._threads = threads
        self._num_samplers = samplers
        self._num_parked = parked
        self._num_gatherers = gatherers
        self.order = order

    @abstractmethod
    def _gatherer(self) -> Gatherer:
        """A gatherer for one run, used by one thread at a time."""

    def _sampler(self) -> Sampler:
        """A sampler for one run, used by one thread at a time."""
        return self._job.sampler(self._topology, self._threads)

    def _expect(self, subgraph: Subgraph) -> _core.Expected | None:
        """Told of a batch as soon as it is sampled, long before it is gathered."""

    def _reserve(
        self, batch: Prepared, closed: Callable[[], bool], awaited: Callable[[], bool]
    ) -> None:
        """Takes what a batch needs beside its own memory; called and waiting as BatchMaker.make."""

    def _count(self, gatherers: Sequence[Gatherer], times: RunTimes) -> None:
        """Adds what the gatherers of a run counted."""

    def batches(self, tasks: Iterable[Task], times: RunTimes) -> Iterator[Prepared]:
        # Samplers and gatherers belong to one run: two runs that are open at once cannot wait for
        # each other, and to end one is to cancel what it is doing.
        samplers = [self._sampler() for _ in range(self._num_samplers)]
        gatherers = [self._gatherer() for _ in range(self._num_gatherers)]
        run = _Run(self, samplers, gatherers, tasks)
        results = iter(run.pipeline)
        times.follow(run.pipeline)
        try:
            yield from results
        finally:
            results.close()
            times.take(run.pipeline)
            self._count(gatherers, times)
            # They refer to each other: the samplers' threads would wait for garbage collection.
            del run.pipeline

    def close(self) -> None:
        self.__dict__.pop("_topology", None)  # closed twice is closed


class _Run:
    """The stages of one iteration."""

    def __init__(
        self,
        strategy: OnlineStrategy,
        samplers: list[Sampler],
        gatherers: list[Gatherer],
        tasks: Iterable[Task],
    ) -> None:
        job = strategy._job
        self._maker = job.maker
        self._expect = strategy._expect
        self._reserve = strategy._reserve
        self._samplers = samplers
        self._gatherers = gatherers
        self._parking: Parking | None = None
        if strategy._num_parked:
            self._parking = Parking(parked_bytes(job))
        self._free: queue.SimpleQueue[Sampler] = queue.SimpleQueue()
        self._idle: queue.SimpleQueue[Gatherer] = queue.SimpleQueue()
        for sampler in samplers:
            self._free.put(sampler)
        for gatherer in gatherers:
            self._idle.put(gatherer)
        ahead = max(len(samplers), strategy._num_parked)
        stages = [
            Stage("sample", self._sample, ahead, self._admit),
            # In order: a batch may wait for rows that one before it has promised to read.
            Stage("gather", self._gather, len(gatherers), in_order=True),
        ]
        # What is only sampled needs no batch's memory yet; and while the loop has none, there is
        # memory for one more.
        depth = job.depth + 1 + ahead
        self.pipeline = Pipeline(enumerate(tasks), stages, depth, strategy.order, self._cancel)

    def _sample(self, item: tuple[int, Task]) -> _Sampled:
        sampler = self._free.get()
        try:
            subgraph = sampler.sample(item[1])
            expected = self._expect(subgraph)
            if self._parking is None:
                return _Sampled(*item, sampler, subgraph, expected)
            subgraph = self._parking.park(subgraph)
        except BaseException:
            self._free.put(sampler)
            raise
        self._free.put(sampler)
        return _Sampled(*item, None, subgraph, expected)

    def _admit(self, item: _Sampled, closed: Callable[[], bool]) -> Prepared:
        def awaited() -> bool:
            return self.pipeline.waiting_for == item.number

        try:
            batch = self._maker.make(item.task, item.subgraph, closed, awaited)
        finally:  # only now: the subgraph lives until its sampler's next call
            if item.sampler is not None:
                self._free.put(item.sampler)
        batch.expected = item.expected
        self._reserve(batch, closed, awaited)
        return batch

    def _gather(self, batch: Prepared) -> Prepared:
        if batch.x is not None or batch.x_index is not None:
            gatherer = self._idle.get()
            try:
                gatherer.gather(batch)
            finally:
                self._idle.put(gatherer)
        return batch

    def _cancel(self) -> None:
        for sampler in self._samplers:
            sampler.cancel()
        for gatherer in self._gatherers:
            gatherer.cancel()
