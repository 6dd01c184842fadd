"""Runner: a strategy at work, with its memory: tasks -> batches. One for every plan.

        tasks ─> [window] ─> sample | graph load ─> admit ─> gather ─> [transfer] ─> the loop

Where there is something ahead of a batch, its window is entered first, in order, and the batch is
loaded from there; else it is sampled as it comes. `admit` gives it memory, in the order of batches:
whoever waits there knows that those before have all they need and will end. Where the device of
batches has rows, x is put together there last.
"""

from __future__ import annotations

import atexit
import queue
import sys
import threading
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any
from weakref import WeakSet

from outcrop import _core
from outcrop.ahead.ahead import Ahead, AheadRun
from outcrop.errors import (
    BudgetError,
    BudgetWarning,
    OptionError,
    StoreError,
    is_refusal_to_write,
)
from outcrop.memory.batches import Batch, BatchMaker
from outcrop.memory.budget import lendable
from outcrop.memory.context import LENT, MIN_BATCHES
from outcrop.observe.meter import (
    GATHER,
    GRAPH_LOAD,
    SAMPLE,
    TRANSFER,
    WINDOW,
    Meter,
)
from outcrop.observe.record import DriveUse, EpochRecord, LoaderRecord
from outcrop.options import format_size, parse_size, size_of_at_least
from outcrop.plan.plan import Plan, Strategy
from outcrop.plan.settle import Settled, Wanted, probe, settle
from outcrop.progress import SILENT, Progress
from outcrop.rows.copier import copiers
from outcrop.rows.source import Admission, Resources, RowSource, RowWorker
from outcrop.rows.verify import verify_rows
from outcrop.sample.history import Gate, HistoryOptions, HistoryTable
from outcrop.sample.sampler import Sampling, Subgraph, TaskSampler, WaitingBatches
from outcrop.sample.seeds import Ids, SeedOrder, Stream, Task
from outcrop.store.store import GraphStore
from outcrop.strategies import strategy_named
from outcrop.strategies.auto import AUTO, choose, with_advice
from outcrop.threads.forks import PROCESS, forked, kept_from_children
from outcrop.threads.pipeline import Event, Pipeline, Stage
from outcrop.topology.parts import Opening

_MOST_EVENTS = 10_000
# Frames from here to a loop over a loader: the schedule's and the loader's are between.
_CALLER = 4


class Runner:
    """Settles a plan, opens its parts, and makes batches. Any number of schedules share it."""

    def __init__(
        self,
        store: GraphStore,
        sampling: Sampling,
        first: SeedOrder,
        *,
        strategy: str | Strategy,
        memory: str | int,
        disk: str | int | None = None,
        epochs: int | None = None,
        progress: Progress = SILENT,
        device: str = "cpu",
        strict_memory: bool = False,
        others: Sequence[SeedOrder] = (),
        check: bool = False,
        lent_bytes: int = 0,
        history: HistoryOptions | None = None,
        candidates: Ids | None = None,
    ) -> None:
        """`first`: the schedule that is prepared for; its batches show how large batches are, and
        so do those of `others`.

        `epochs`: how many the run will have, if known. `progress`: is told how preparation goes.
        `device`: where batches will go. `strategy`: by name, with options; or auto; or one's own.
        `strict_memory`: BudgetError where a batch that the loop waits for would need more memory
        than is left; else it is served, with a BudgetWarning.
        `check`: whether all that is read is compared with its checksums.
        `lent_bytes`: what `lend` must be able to lend.
        `history`: which embeddings are used again; `candidates`: of these nodes, ascending.

        BudgetError where the memory is too little, with the least that would do.
        """
        if check:
            store.check_reads(progress)
        wanted = Wanted(
            store,
            sampling,
            first,
            parse_size(memory),
            None if disk is None else parse_size(disk),
            epochs,
            device,
            tuple(others),
            lent_bytes,
            history,
            candidates,
            progress,
        )
        self.store = store
        self.sampling = sampling
        self.seed = first.seed
        self._strict_memory = strict_memory
        self._largest = max(seeds.batch_size for seeds in (first, *others))
        self._counted = threading.Lock()  # held by the run in which embeddings are used again
        self._runs: list[Meter] = []  # those that are open; the last one is shown
        self._loops: WeakSet[Iterator[Batch]] = WeakSet()
        self._closed = False
        self._process = PROCESS.id
        kept_from_children.add(self)
        if strategy == AUTO:
            self._open_best(wanted, progress)
        else:
            self._open(_settled(wanted, strategy), progress)
        _open_runners.add(self)

    def _open_best(self, wanted: Wanted, progress: Progress) -> None:
        """Opens what auto chooses; where that cannot be written, what auto chooses next."""
        failed: dict[str, str] = {}
        while True:
            choice = choose(wanted, failed)
            before = self.store.derived.disk_bytes()
            try:
                self._open(choice.settled, progress)
                break
            except (BudgetError, OSError) as error:
                if not is_refusal_to_write(error):
                    raise
                failed[choice.strategy] = str(error)
        self.record.passed_over = dict(choice.passed_over)
        written = self.store.derived.disk_bytes() - before
        if choice.passed_over:
            progress.note(choice.sentence(max(written, 0)))

    def _open(self, settled: Settled, progress: Progress) -> None:
        self._settled = settled
        self.rows = settled.plan.shape(settled.context)
        self.budget = settled.budget
        self._pool = self.budget.slabs()
        kept = self.rows.labels and not settled.context.reads_labels
        maker = BatchMaker(
            self._pool,
            self.rows,
            self.store.manifest.targets,
            self.store.load_labels() if kept else None,
            edge_ids=self.sampling.edge_ids,
            strict=self._strict_memory,
        )
        self._overdraft = maker.overdraft
        start = time.perf_counter()
        self.parts = Parts(settled, self.store, maker, progress)
        self.record = LoaderRecord(
            strategy=str(settled.strategy),
            memory_bytes=self.budget.total_bytes,
            charges=dict(self.budget.charges),
            batch_memory_bytes=self._pool.limit_bytes,
            depth=settled.depth,
            prepare_seconds=time.perf_counter() - start,
            order=settled.plan.concurrency.order,
            plan=self.parts.facts,
        )

    def run(
        self, tasks: Sequence[Task], stream: Stream, epoch: int, *, whole: bool = False
    ) -> Iterator[Batch]:
        """The batch of each task, counted in the record as (a part of) an epoch.

        `whole`: they go to its end, and the next epoch will follow. To drop the iterator is to stop
        the work.
        """
        self.check_open()
        meter = Meter()
        entry = EpochRecord(stream=stream.name.lower(), epoch=epoch)
        computed: deque[Event] = deque(maxlen=_MOST_EVENTS)
        before = DriveUse.now(self.store)
        start = time.perf_counter()
        first = tasks[0].batch if len(tasks) else 0
        counted = len(tasks) > 0 and tasks[0].iteration is not None
        if counted:
            self.check_alone()
            self._counted.acquire()
        batches = self.parts.run(tasks, meter, whole=whole)
        self._loops.add(batches)
        kept_from_children.add(batches)
        self._runs.append(meter)
        try:
            for batch in batches:
                if excuse := self._overdraft.take_excuse():
                    warnings.warn(excuse, BudgetWarning, stacklevel=_CALLER)
                edges = batch.edge_index.shape[1]
                entry.count(len(batch.task.seeds), edges, len(batch.n_id), batch.row_bytes)
                if batch.reuse is not None:
                    entry.count_reuse(len(batch.reuse.pulled_slots), len(batch.reuse.pushed))
                number = batch.task.batch - first
                begin = time.perf_counter()
                batch.give_to_children()
                yield batch
                del batch  # not kept here while the next one is awaited
                if PROCESS.id != self._process:
                    raise forked("loader", self._process)
                computed.append(Event("compute", number, begin, time.perf_counter()))
        finally:
            if PROCESS.id == self._process:  # else all but this generator is the parent's
                batches.close()  # type: ignore[attr-defined]
                if counted:
                    self._counted.release()
                self._runs = [run for run in self._runs if run is not meter]
                if not sys.is_finalizing():  # else open at the end of the program: nobody reads on
                    after = DriveUse.now(self.store)
                    entry.finish(time.perf_counter() - start, meter, before, after)
                    self._add_to_record(entry, [*meter.events, *computed], start)

    @property
    def alterations(self) -> dict[str, Any]:
        """Options of the strategy that make batches differ from what is sampled, by full names."""
        name, ahead = self._settled.strategy.name, self.parts.ahead
        altered = {} if ahead is None else ahead.alterations
        return {f"{name}:{option}": value for option, value in altered.items()}

    @property
    def history(self) -> HistoryTable | None:
        """Whose embeddings are used again; None: nobody's."""
        return self.parts.on.history

    def check_alone(self) -> None:
        """OptionError where a loop is open in which embeddings are used again."""
        if self._counted.locked():
            raise OptionError(
                "history: another loop over this loader is open; embeddings are pushed and pulled "
                "in the order of one. End it first: drop its iterator, or what still holds it"
            )

    def foresee(self, seeds: SeedOrder) -> None:
        """Says at once where batches of another schedule will need more memory than there is."""
        if seeds.batch_size <= self._largest:
            return
        self._largest = seeds.batch_size
        sizes = probe(self.store, self.sampling, seeds)
        needed = replace(self._settled.context, batch=sizes).batch_bytes(self.rows)
        missing = MIN_BATCHES * needed - self._pool.limit_bytes
        if missing <= 0:
            return
        said = (
            f"batches of {seeds.batch_size} seeds take up to {format_size(needed)}, and memory= "
            f"leaves {format_size(self._pool.limit_bytes)} for two; make the loader with siblings= "
            f"that say so, or with {size_of_at_least(missing)} more"
        )
        if self._strict_memory:
            raise BudgetError(said)
        warnings.warn(said, BudgetWarning, stacklevel=3)

    @contextmanager
    def lend(self) -> Iterator[int]:
        """Gives up the memory of batches, for other work while none is under way: its bytes."""
        size = lendable(max(self._pool.limit_bytes - self._pool.held_bytes, 0))
        lent = self._pool.take([size], 0.0) if size else []
        try:
            yield size + self.budget.charges.get(LENT, 0)
        finally:
            del lent

    def queue_lengths(self) -> dict[str, int]:
        """How many batches wait before each stage of the current run, and for the loop.

        May be called on any thread; empty between runs.
        """
        runs = self._runs
        return runs[-1].queue_lengths if runs else {}

    def _add_to_record(self, entry: EpochRecord, events: list[Event], start: float) -> None:
        self.record.peak_batch_bytes = self._pool.peak_bytes
        self.record.over_budget_bytes = self._overdraft.peak_bytes
        if not self.record.epochs:
            self.record.events = [
                (e.stage, e.number, round(e.start - start, 6), round(e.end - start, 6))
                for e in events
            ]
        self.record.epochs.append(entry)

    def check_open(self) -> None:
        """StoreError where it or its store was closed, ForkedError in a forked child."""
        if PROCESS.id != self._process:
            raise forked("loader", self._process)
        if self._closed:
            raise StoreError("this loader is closed: make another")
        if self.store.closed:
            raise self.store.closed_error()

    def close(self) -> None:
        """Ends loops that are open, and gives up what the strategy opened; closed twice is closed.

        Does nothing in a forked child: what it has a copy of is the parent's.
        """
        if self._closed or PROCESS.id != self._process:
            return
        self._closed = True
        for batches in list(self._loops):
            with suppress(ValueError):  # another thread is in it, and will end it
                batches.close()  # type: ignore[attr-defined]
        self.parts.close()
        _open_runners.discard(self)


_open_runners: WeakSet[Runner] = WeakSet()


@atexit.register
def _close_all() -> None:
    # A loop that was left by an error lives until here: its strategy may have files to remove.
    for runner in list(_open_runners):
        runner.close()


def _settled(wanted: Wanted, strategy: str | Strategy) -> Settled:
    """As `settle`; the refusal of `memory`, which is the first that people try, names another."""
    named = strategy_named(strategy) if isinstance(strategy, str) else strategy
    try:
        return settle(wanted, named)
    except BudgetError as error:
        raise with_advice(wanted, error) if strategy == "memory" else error from None


class Parts:
    """The parts of a plan, opened once; each run is a pipeline of its own over them."""

    def __init__(
        self, settled: Settled, store: GraphStore, maker: BatchMaker, progress: Progress
    ) -> None:
        self.plan: Plan = settled.plan
        context, plan = settled.context, settled.plan
        # With no batch in the loop, so many have memory to be gathered into.
        gatherers = min(plan.concurrency.gatherers, settled.depth + 1)
        history = None
        if plan.history is not None:
            history = plan.history.open(store, context, progress)
        self.on = Resources(
            store,
            context,
            maker,
            settled.depth,
            gatherers,
            settled.prepare_bytes,
            progress,
            history,
        )
        self.labels = store.stored_labels() if context.reads_labels else None
        """None: batches have theirs when they are made."""
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
                self.copier = copiers(store.encoding, self.rows.threads)
        except BaseException:
            self.close()
            raise

    def run(self, tasks: Sequence[Task], meter: Meter, *, whole: bool = False) -> Iterator[Batch]:
        """As the runner's."""
        ahead = None if self.ahead is None else self.ahead.begin(tasks, whole, meter)
        complete = False
        try:
            # Samplers and gatherers belong to one run: two runs that are open at once cannot wait
            # for each other, and to end one is to cancel what it is doing.
            run = _Run(self, tasks, ahead, meter)
            yield from run.batches()
            complete = True
        finally:
            if ahead is not None:
                ahead.end(complete=complete)

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
        if plan.history is not None:
            facts |= plan.history.facts(context)
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
    sampler: TaskSampler | None = None
    """Whose memory the subgraph is in; None: it has its own."""
    hint: _core.Expected | None = None
    record: Any = None


@dataclass
class _Admitted:
    batch: Batch
    record: Any
    hint: Any


class _Run:
    """The stages of one iteration."""

    def __init__(
        self, parts: Parts, tasks: Sequence[Task], ahead: AheadRun | None, meter: Meter
    ) -> None:
        on, plan = parts.on, parts.plan
        self._on, self._plan, self._rows = on, plan, parts.rows
        self._tasks, self._ahead, self._meter = tasks, ahead, meter
        self._topology = parts.topology
        self._labels = None if parts.labels is None else parts.labels.reader()
        self._workers: list[RowWorker] = []
        self._copiers: list[_core.Copier] = []
        if parts.rows is not None:
            self._copiers = [parts.copier() for _ in range(on.gatherers)]
            self._workers = [parts.rows.worker(each, meter) for each in self._copiers]
        self._transfers = parts.rows is not None and parts.rows.transfers
        self._free: queue.SimpleQueue[TaskSampler] = queue.SimpleQueue()
        self._idle: queue.SimpleQueue[RowWorker] = queue.SimpleQueue()
        self._samplers: list[TaskSampler] = []
        self._gate = self._make_gate()
        if plan.ahead is None:
            for _ in range(plan.concurrency.samplers):
                self._add_sampler()
        for worker in self._workers:
            self._idle.put(worker)
        self._waiting: WaitingBatches | None = None
        if plan.concurrency.waiting:
            self._waiting = WaitingBatches(on.context.waiting_bytes)

    def _make_gate(self) -> Gate | None:
        """What batches that are sampled as they come use again goes on from what is there."""
        first = self._tasks[0].iteration if len(self._tasks) else None
        if first is None or self._ahead is not None:
            return None
        assert self._on.history is not None
        self._on.history.restart(first)
        return Gate(self._on.history, first)

    def _add_sampler(self) -> None:
        context = self._on.context
        sampler = self._topology.sampler(context.sampling, context.seeds.seed, self._gate)
        self._samplers.append(sampler)
        self._free.put(sampler)

    def batches(self) -> Iterator[Batch]:
        on, concurrency = self._on, self._plan.concurrency
        # What is only sampled needs no batch's memory yet; what is ahead is loaded one by one.
        sampled = 0
        stages = []
        if self._plan.ahead is None:
            sampled = max(len(self._samplers), concurrency.waiting)
        workers = sampled
        if self._gate is not None:  # who waits there for those before has a sampler
            workers = len(self._samplers)
        if self._ahead is not None and self._ahead.enters:
            stages.append(Stage(WINDOW, _same, admit=self._enter))
        name = SAMPLE if self._plan.ahead is None else GRAPH_LOAD
        stages += [
            Stage(name, self._sample, max(workers, 1), self._admit),
            # In order: a batch may wait for rows that one before it has promised to read.
            Stage(GATHER, self._gather, on.gatherers, in_order=True),
        ]
        if self._transfers:
            stages.append(Stage(TRANSFER, self._transfer))
        # One more than there is memory for: while the loop has none, there is memory for it.
        depth = on.depth + 1 + sampled
        tasks = enumerate(self._tasks)
        pipeline = Pipeline(tasks, stages, depth, concurrency.order, self._cancel)
        self._pipeline = pipeline
        results = iter(pipeline)
        self._meter.follow(pipeline)
        try:
            for admitted in results:
                yield admitted.batch
                del admitted
        finally:
            results.close()
            self._meter.take(pipeline)
            # They refer to each other: threads and memory would wait for garbage collection.
            del self._pipeline

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
            rows, hint = self._rows, None
            if rows is not None and rows.expects:
                hint = rows.expect(subgraph.nodes)
            if self._waiting is None:
                return _Sampled(number, task, subgraph, sampler, hint)
            subgraph = self._waiting.copy(subgraph)
        except BaseException:
            self._free.put(sampler)
            raise
        self._free.put(sampler)
        return _Sampled(number, task, subgraph, None, hint)

    def _admit(self, item: _Sampled, closed: Callable[[], bool]) -> _Admitted:
        maker, admission = self._on.maker, self._admission(item.number, closed)
        try:
            batch = maker.make(item.task, item.subgraph, admission.closed, admission.awaited)
        finally:  # only now: the subgraph lives until its sampler's next call
            if item.sampler is not None:
                self._free.put(item.sampler)
        if self._rows is not None and self._rows.reserves:
            self._rows.reserve(batch, item.hint, admission)
        return _Admitted(batch, item.record, item.hint)

    def _gather(self, item: _Admitted) -> _Admitted:
        batch = item.batch
        if self._labels is not None and batch.y is not None:
            self._labels.read(batch.n_id, batch.y)
        if batch.rows is None:
            return item
        worker = self._idle.get()
        try:
            worker.start(batch.rows.request(batch.n_id, item.record, item.hint)).finish()
        finally:
            self._idle.put(worker)
        batch.rows.filled()
        item.record = item.hint = None
        if not self._transfers:
            self._verify(batch)
        return item

    def _transfer(self, item: _Admitted) -> _Admitted:
        assert self._rows is not None
        self._rows.transfer(item.batch)
        self._verify(item.batch)
        return item

    def _verify(self, batch: Batch) -> None:
        if self._plan.verify_rows:
            verify_rows(batch, self._on.store.features)

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
        for each in self._copiers:
            each.cancel()
        if self._labels is not None:
            self._labels.cancel()
        if self._ahead is not None:
            self._ahead.cancel()


def _same(item: tuple[int, Task]) -> tuple[int, Task]:
    return item
