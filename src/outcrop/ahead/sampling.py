"""Sampling ahead: tasks -> a trace, by several samplers, or all of them at once by blocks."""

from __future__ import annotations

import queue
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import nullcontext
from typing import NamedTuple, Protocol

from outcrop.errors import CancelledError
from outcrop.layout.trace import TraceWriter
from outcrop.observe.meter import SAMPLE, Meter
from outcrop.sample.hyperbatch import HyperbatchSampler
from outcrop.sample.sampler import Subgraph, TaskSampler
from outcrop.sample.seeds import Task
from outcrop.threads.pipeline import Pipeline, Stage


class WindowSampling(Protocol):
    """Tasks -> batches of a trace, in their order. Can be run once."""

    def run(self, meter: Meter | None = None) -> Generator[None, None, None]:
        """One item per batch that is in the trace: for progress, and for a chance to stop."""

    def cancel(self) -> None:
        """From any thread: `run` raises CancelledError."""


class _Sampled(NamedTuple):
    task: Task
    sampler: TaskSampler
    subgraph: Subgraph


class SamplingAhead:
    """Tasks -> batches of a trace, in their order. Can be run once, and so can its samplers."""

    def __init__(
        self,
        tasks: Iterable[Task],
        samplers: Sequence[TaskSampler],
        writer: TraceWriter,
        keep: Callable[[Subgraph], Subgraph] | None = None,
    ) -> None:
        """`keep`: what of a batch goes into the trace; None: all."""
        self._samplers = samplers
        self._free: queue.SimpleQueue[TaskSampler] = queue.SimpleQueue()
        for sampler in samplers:
            self._free.put(sampler)
        self._writer = writer
        self._keep = keep
        self._cancelled = False
        # One more than samplers: the next task is there when one of them is free.
        stage = Stage("sample", self._sample, len(samplers), self._append)
        self._pipeline = Pipeline(tasks, [stage], len(samplers) + 1, cancel=self.cancel)

    def _sample(self, task: Task) -> _Sampled:
        sampler = self._free.get()
        try:
            return _Sampled(task, sampler, sampler.sample(task))
        except BaseException:
            self._free.put(sampler)
            raise

    def _append(self, item: _Sampled, _: Callable[[], bool]) -> None:
        try:
            subgraph = item.subgraph if self._keep is None else self._keep(item.subgraph)
            self._writer.append(item.task, subgraph)
        finally:  # only now: the subgraph lives until its sampler's next call
            self._free.put(item.sampler)

    def run(self, meter: Meter | None = None) -> Generator[None, None, None]:
        """One item per batch that is in the trace: for progress, and for a chance to stop."""
        results = iter(self._pipeline)
        try:
            if self._cancelled:
                raise CancelledError("sampling was cancelled before it began")
            yield from results
        finally:
            results.close()
            if meter is not None:
                meter.take_stages(self._pipeline)
            # They refer to each other: threads would wait for garbage collection.
            del self._pipeline

    def cancel(self) -> None:
        """From any thread: `run` raises CancelledError."""
        self._cancelled = True
        for sampler in self._samplers:
            sampler.cancel()


class SamplingByBlocks:
    """The same by one sampler of all tasks, which reads a block once per hop for all of them."""

    def __init__(
        self, tasks: Sequence[Task], sampler: HyperbatchSampler, writer: TraceWriter
    ) -> None:
        self._tasks = tasks
        self._sampler = sampler
        self._writer = writer

    def run(self, meter: Meter | None = None) -> Generator[None, None, None]:
        """As in SamplingAhead; the first batch comes when all are drawn."""
        subgraphs = self._sampler.sample_all(self._tasks)
        for number, task in enumerate(self._tasks):
            with nullcontext() if meter is None else meter.span(SAMPLE, number):
                subgraph = next(subgraphs)
            self._writer.append(task, subgraph)
            yield

    def cancel(self) -> None:
        self._sampler.cancel()
