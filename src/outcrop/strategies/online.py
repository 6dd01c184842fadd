"""Online: sample -> gather, a few batches ahead of the loop: strategies without a plan."""

from __future__ import annotations

import queue
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

from outcrop import _core
from outcrop.batch import Prepared
from outcrop.pipeline import Pipeline, Stage
from outcrop.sample.sampler import Sampler, Subgraph
from outcrop.sample.seeds import Task
from outcrop.strategies.base import Job, RunTimes, Strategy


class Gatherer(Protocol):
    """Fills a batch's x."""

    def gather(self, batch: Prepared) -> None: ...

    def cancel(self) -> None:
        """A gather under way may raise CancelledError."""


@dataclass
class _Sampled:
    number: int
    task: Task
    sampler: Sampler
    subgraph: Subgraph


class OnlineStrategy(Strategy):
    """Samples from a topology that threads may share, and gathers as its child decides."""

    def __init__(self, job: Job, topology: _core.Topology, threads: int) -> None:
        """A batch is sampled by `threads` threads."""
        self._job = job
        self._topology = topology
        self._threads = threads

    @abstractmethod
    def _gatherer(self) -> Gatherer:
        """A gatherer for one run."""

    def batches(self, tasks: Iterable[Task], times: RunTimes) -> Iterator[Prepared]:
        # Samplers and gatherers belong to one run: two runs that are open at once cannot wait for
        # each other, and to end one is to cancel what it is doing.
        samplers = [Sampler(self._job.sampling, self._topology, self._job.seed, self._threads)]
        run = _Run(self._job, samplers, self._gatherer(), tasks)
        results = iter(run.pipeline)
        times.follow(run.pipeline)
        try:
            yield from results
        finally:
            run.cancel()
            results.close()
            times.take(run.pipeline)

    def close(self) -> None:
        del self._topology


class _Run:
    """The stages of one iteration."""

    def __init__(
        self, job: Job, samplers: list[Sampler], gatherer: Gatherer, tasks: Iterable[Task]
    ) -> None:
        self._maker = job.maker
        self._samplers = samplers
        self._gatherer = gatherer
        self._free: queue.SimpleQueue[Sampler] = queue.SimpleQueue()
        for sampler in samplers:
            self._free.put(sampler)
        stages = [
            Stage("sample", self._sample, len(samplers), self._admit),
            Stage("gather", self._gather),
        ]
        self.pipeline = Pipeline(enumerate(tasks), stages, job.depth)

    def _sample(self, item: tuple[int, Task]) -> _Sampled:
        sampler = self._free.get()
        try:
            return _Sampled(*item, sampler, sampler.sample(item[1]))
        except BaseException:
            self._free.put(sampler)
            raise

    def _admit(self, item: _Sampled, closed: Callable[[], bool]) -> Prepared:
        try:
            return self._maker.make(
                item.task, item.subgraph, closed, lambda: self.pipeline.waiting_for == item.number
            )
        finally:  # only now: the subgraph lives until its sampler's next call
            self._free.put(item.sampler)

    def _gather(self, batch: Prepared) -> Prepared:
        if batch.x is not None:
            self._gatherer.gather(batch)
        return batch

    def cancel(self) -> None:
        for sampler in self._samplers:
            sampler.cancel()
        self._gatherer.cancel()
