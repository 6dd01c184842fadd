"""Runner: a plan at work. One for every plan: sample or replay -> admit -> gather, on threads.

        tasks ─> [window] ─> sample | graph load ─> admit ─> gather ─> the loop

Where there is something ahead of a batch, its window is entered first, in order, and the batch is
loaded from there; else it is sampled as it comes. `admit` gives it memory, in the order of batches:
whoever waits there knows that those before have all they need and will end.
"""

from __future__ import annotations

import queue
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from outcrop import _core
from outcrop.ahead.ahead import Ahead, AheadRun
from outcrop.batch import BatchMaker, Prepared
from outcrop.meter import Meter
from outcrop.pipeline import Pipeline, Stage
from outcrop.plan.plan import Plan
from outcrop.plan.settle import Settled
from outcrop.progress import Progress
from outcrop.rows.source import Admission, Resources, RowSource, RowWorker
from outcrop.rows.verify import verify_rows
from outcrop.run.stages import GATHER, GRAPH_LOAD, SAMPLE, WINDOW
from outcrop.sample.sampler import Sampler, Subgraph, WaitingBatches
from outcrop.sample.seeds import Task
from outcrop.sample.topology import Opening, Topology
from outcrop.store.store import GraphStore


class Runner:
    """Opens the parts of a plan once; each run is a pipeline of its own over them."""

    def __init__(
        self, settled: Settled, store: GraphStore, maker: BatchMaker, progress: Progress
    ) -> None:
        self.plan: Plan = settled.plan
        context, plan = settled.context, settled.plan
        # With no batch in the loop, so many have memory to be gathered into.
        gatherers = min(plan.concurrency.gatherers, settled.depth + 1)
        self.on = Resources(
            store, context, maker, settled.depth, gatherers, settled.prepare_bytes, progress
        )
        self.rows: RowSource | None = None if plan.rows is None else plan.rows.open(self.on)
        shared = None if self.rows is None else self.rows.shared_memory
        self.topology = plan.topology.open(Opening(store, context.keeps_edge_ids, progress, shared))
        self.ahead: Ahead | None = None
        try:
            if plan.ahead is not None:
                lent = plan.lent_bytes(context)
                self.ahead = plan.ahead.open(self.on, self.topology, self.rows, lent)
            if self.rows is not None:
                self.rows.load()
        except BaseException:
            self.close()
            raise

    def run(
        self, tasks: Sequence[Task], meter: Meter, *, whole: bool = False
    ) -> Iterator[Prepared]:
        """The batch of each task. To drop the iterator is to stop the work.

        `whole`: the tasks go to the end of an epoch, and the next epoch will follow.
        """
        ahead = None if self.ahead is None else self.ahead.begin(tasks, whole, meter)
        complete = False
        try:
            # Samplers and gatherers belong to one run: two runs that are open at once cannot wait
            # for each other, and to end one is to cancel what it is doing.
            run = _Run(self, tasks, ahead, meter)
            yield from run.serial() if self.plan.concurrency.serial else run.piped()
            complete = True
        finally:
            if ahead is not None:
                ahead.end(complete=complete)

    @property
    def alterations(self) -> dict[str, Any]:
        """Options that make its batches differ from `memory`'s, in JSON's values."""
        return {} if self.ahead is None else self.ahead.alterations

    @property
    def facts(self) -> dict[str, Any]:
        """What was decided and prepared, in JSON's values, for the record."""
        context, plan = self.on.context, self.plan
        facts = {
            "topology": plan.topology.name,
            "topology_bytes": plan.topology.kept_bytes(context),
            "samplers": plan.concurrency.samplers,
            "waiting": plan.concurrency.waiting,
            "gatherers": self.on.gatherers,
        }
        for part in (self.rows, self.ahead):
            if part is not None:
                facts |= part.facts
        return facts

    def close(self) -> None:
        """Gives up what was opened; closed twice is closed."""
        if self.ahead is not None:
            self.ahead.close()
        if self.rows is not None:
            self.rows.close()
        self.topology.close()


@dataclass
class _Sampled:
    number: int
    task: Task
    subgraph: Subgraph
    sampler: Sampler | None = None
    """Whose memory the subgraph is in; None: it has its own."""
    expected: _core.Expected | None = None
    record: Any = None


class _Run:
    """The stages of one iteration."""

    def __init__(
        self, runner: Runner, tasks: Sequence[Task], ahead: AheadRun | None, meter: Meter
    ) -> None:
        on, plan = runner.on, runner.plan
        self._on, self._plan, self._rows = on, plan, runner.rows
        self._tasks, self._ahead, self._meter = tasks, ahead, meter
        self._topology: Topology = runner.topology
        self._workers: list[RowWorker] = []
        if runner.rows is not None:
            self._workers = [runner.rows.worker(meter) for _ in range(on.gatherers)]
        self._free: queue.SimpleQueue[Sampler] = queue.SimpleQueue()
        self._idle: queue.SimpleQueue[RowWorker] = queue.SimpleQueue()
        self._samplers: list[Sampler] = []
        if plan.ahead is None:
            for _ in range(plan.concurrency.samplers):
                self._add_sampler()
        for worker in self._workers:
            self._idle.put(worker)
        self._waiting: WaitingBatches | None = None
        if plan.concurrency.waiting:
            self._waiting = WaitingBatches(on.context.waiting_bytes)

    def _add_sampler(self) -> None:
        context = self._on.context
        sampler = self._topology.sampler(context.sampling, context.seeds.seed)
        self._samplers.append(sampler)
        self._free.put(sampler)

    def piped(self) -> Iterator[Prepared]:
        on, concurrency = self._on, self._plan.concurrency
        # What is only sampled needs no batch's memory yet; what is ahead is loaded one by one.
        sampled = 0
        stages = []
        if self._plan.ahead is None:
            sampled = max(len(self._samplers), concurrency.waiting)
        if self._ahead is not None and self._ahead.enters:
            stages.append(Stage(WINDOW, _same, admit=self._enter))
        name = SAMPLE if self._plan.ahead is None else GRAPH_LOAD
        stages += [
            Stage(name, self._sample, max(sampled, 1), self._admit),
            # In order: a batch may wait for rows that one before it has promised to read.
            Stage(GATHER, self._gather, on.gatherers, in_order=True),
        ]
        # One more than there is memory for: while the loop has none, there is memory for it.
        depth = on.depth + 1 + sampled
        tasks = enumerate(self._tasks)
        pipeline = Pipeline(tasks, stages, depth, concurrency.order, self._cancel)
        self._pipeline = pipeline
        results = iter(pipeline)
        self._meter.follow(pipeline)
        try:
            for batch, _ in results:
                yield batch
                del batch
        finally:
            results.close()
            self._meter.take(pipeline)
            # They refer to each other: threads and memory would wait for garbage collection.
            del self._pipeline

    def serial(self) -> Iterator[Prepared]:
        """One stage after the other, on the loop's own thread."""
        now = Admission(closed=lambda: False, awaited=lambda: True)
        load = SAMPLE if self._plan.ahead is None else GRAPH_LOAD
        for item in enumerate(self._tasks):
            start = time.perf_counter()
            if self._ahead is not None and self._ahead.enters:
                self._ahead.enter(item[0], now)
            with self._meter.span(load, item[0]):
                admitted = self._admitted(self._sample(item), now)
            with self._meter.span(GATHER, item[0]):
                batch, _ = self._gather(admitted)
                del admitted
            self._meter.consumer_wait_seconds += time.perf_counter() - start
            yield batch
            del batch

    # Stages

    def _enter(self, item: tuple[int, Task], closed: Callable[[], bool]) -> tuple[int, Task]:
        assert self._ahead is not None
        self._ahead.enter(item[0], self._admission(item[0], closed))
        return item

    def _sample(self, item: tuple[int, Task]) -> _Sampled:
        number, task = item
        if self._ahead is not None:
            found = self._ahead.replay(number, task)
            if found is not None:
                return _Sampled(number, found.task, found.subgraph, record=found.record)
        if not self._samplers:  # of a plan with something ahead: one is enough for what is not
            self._add_sampler()
        sampler = self._free.get()
        try:
            subgraph = sampler.sample(task)
            expected = None if self._rows is None else self._rows.expect(subgraph.nodes)
            if self._waiting is None:
                return _Sampled(number, task, subgraph, sampler, expected)
            subgraph = self._waiting.copy(subgraph)
        except BaseException:
            self._free.put(sampler)
            raise
        self._free.put(sampler)
        return _Sampled(number, task, subgraph, None, expected)

    def _admit(self, item: _Sampled, closed: Callable[[], bool]) -> tuple[Prepared, Any]:
        return self._admitted(item, self._admission(item.number, closed))

    def _admitted(self, item: _Sampled, admission: Admission) -> tuple[Prepared, Any]:
        maker = self._on.maker
        try:
            batch = maker.make(item.task, item.subgraph, admission.closed, admission.awaited)
        finally:  # only now: the subgraph lives until its sampler's next call
            if item.sampler is not None:
                self._free.put(item.sampler)
        batch.expected = item.expected
        if self._rows is not None:
            self._rows.reserve(batch, admission)
        return batch, item.record

    def _gather(self, item: tuple[Prepared, Any]) -> tuple[Prepared, Any]:
        batch, record = item
        if self._rows is None:
            return item
        worker = self._idle.get()
        try:
            worker.gather(batch, record)
        finally:
            self._idle.put(worker)
        if self._plan.verify_rows:
            verify_rows(batch, self._on.store.features)
        return batch, None

    def _admission(self, number: int, closed: Callable[[], bool]) -> Admission:
        pipeline = self._pipeline
        return Admission(
            closed, lambda: pipeline.waiting_for == number, partial(pipeline.drain, number)
        )

    def _cancel(self) -> None:
        for sampler in self._samplers:
            sampler.cancel()
        for worker in self._workers:
            worker.cancel()
        if self._ahead is not None:
            self._ahead.cancel()


def _same(item: tuple[int, Task]) -> tuple[int, Task]:
    return item
