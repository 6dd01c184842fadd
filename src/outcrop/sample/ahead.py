"""Sampling ahead: tasks -> a trace, by several samplers at a time."""

from __future__ import annotations

import queue
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from outcrop.pipeline import Pipeline, Stage
from outcrop.sample.sampler import Sampler, Subgraph
from outcrop.sample.seeds import Task
from outcrop.sample.trace import TraceWriter


class _Sampled(NamedTuple):
    task: Task
    sampler: Sampler
    subgraph: Subgraph


class SamplingAhead:
    """Tasks -> batches of a trace, in their order. Can be run once."""

    def __init__(
        self, tasks: Iterable[Task], samplers: Iterable[Sampler], writer: TraceWriter
    ) -> None:
        self._samplers = list(samplers)
        self._free: queue.SimpleQueue[Sampler] = queue.SimpleQueue()
        for sampler in self._samplers:
            self._free.put(sampler)
        self._writer = writer
        count = len(self._samplers)
        # One more than samplers: the next task is there when one of them is free.
        stage = Stage("sample", self._sample, count, self._append)
        self.pipeline = Pipeline(tasks, [stage], count + 1)

    def _sample(self, task: Task) -> _Sampled:
        sampler = self._free.get()
        try:
            return _Sampled(task, sampler, sampler.sample(task))
        except BaseException:
            self._free.put(sampler)
            raise

    def _append(self, item: _Sampled, _: Callable[[], bool]) -> None:
        try:
            self._writer.append(item.task, item.subgraph)
        finally:  # only now: the subgraph lives until its sampler's next call
            self._free.put(item.sampler)

    def run(self) -> Iterator[None]:
        """One item per batch that is in the trace: for progress."""
        return iter(self.pipeline)

    def close(self) -> None:
        """After the run. They refer to each other: threads would wait for garbage collection."""
        del self.pipeline

    def cancel(self) -> None:
        """From any thread: `run` raises CancelledError."""
        for sampler in self._samplers:
            sampler.cancel()
