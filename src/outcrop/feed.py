"""Feed: a store, a sampler, a strategy and one memory number -> batches of any seeds and epoch.

Loaders are a thin layer over it: they turn its batches into what PyG would give.
"""

from __future__ import annotations

import atexit
import sys
import time
import warnings
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any
from weakref import WeakSet

import numpy as np
from numpy.typing import NDArray

from outcrop.auto import AUTO, choose, with_advice
from outcrop.batch import BatchMaker, Prepared
from outcrop.budget import lendable
from outcrop.errors import (
    BudgetError,
    BudgetWarning,
    OptionError,
    StoreError,
    is_refusal_to_write,
)
from outcrop.forks import Origin, keep_from_children
from outcrop.meter import Meter
from outcrop.metrics import DriveUse, EpochRecord, LoaderRecord
from outcrop.options import format_size, parse_size, size_of_at_least
from outcrop.pipeline import Event
from outcrop.plan.context import LENT, MIN_BATCHES
from outcrop.plan.settle import Settled, Wanted, probe, settle
from outcrop.progress import SILENT, Progress
from outcrop.run.runner import Runner
from outcrop.sample.sampler import Sampling
from outcrop.sample.seeds import Ids, SeedOrder, Stream, Task
from outcrop.store.format import SPLITS
from outcrop.store.store import GraphStore

ALL_NODES = "all"
"""Names every node, wherever "train", "val" or "test" would name some."""

_MOST_EVENTS = 10_000
# Frames from here to a loop over a loader: the schedule's and the loader's are between.
_CALLER = 4


class Feed:
    """A strategy with its memory: tasks -> batches. Any number of schedules share it."""

    def __init__(
        self,
        store: GraphStore,
        sampling: Sampling,
        first: SeedOrder,
        *,
        strategy: str,
        memory: str | int,
        disk: str | int | None = None,
        epochs: int | None = None,
        progress: Progress = SILENT,
        device: str = "cpu",
        strict_memory: bool = False,
        others: Sequence[SeedOrder] = (),
        check: bool = False,
        lent_bytes: int = 0,
    ) -> None:
        """`first`: the schedule that is prepared for; its batches show how large batches are, and
        so do those of `others`.

        `epochs`: how many the run will have, if known. `progress`: is told how preparation goes.
        `device`: where batches will go. `strategy`: by name, with options; or auto.
        `strict_memory`: BudgetError where a batch that the loop waits for would need more memory
        than is left; else it is served, with a BudgetWarning.
        `check`: whether all that is read is compared with its checksums.
        `lent_bytes`: what `lend` must be able to lend.

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
        )
        self.store = store
        self.sampling = sampling
        self.seed = first.seed
        self._strict_memory = strict_memory
        self._largest = max(seeds.batch_size for seeds in (first, *others))
        self._runs: list[Meter] = []  # those that are open; the last one is shown
        self._loops: WeakSet[Iterator[Prepared]] = WeakSet()
        self._closed = False
        self._origin = Origin("loader")
        keep_from_children(self)
        if strategy == AUTO:
            self._open_best(wanted, progress)
        else:
            self._open(_settled(wanted, strategy), progress)
        _open_feeds.add(self)

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
        labels = self.store.load_labels() if self.rows.labels else None
        maker = BatchMaker(
            self._pool,
            self.rows,
            labels,
            edge_ids=self.sampling.edge_ids,
            strict=self._strict_memory,
        )
        self._overdraft = maker.overdraft
        start = time.perf_counter()
        self._runner = Runner(settled, self.store, maker, progress)
        self.record = LoaderRecord(
            strategy=settled.strategy,
            memory_bytes=self.budget.total_bytes,
            charges=dict(self.budget.charges),
            batch_memory_bytes=self._pool.limit_bytes,
            depth=settled.depth,
            prepare_seconds=time.perf_counter() - start,
            order=settled.plan.concurrency.order,
            plan=self._runner.facts,
        )

    def batches(
        self, tasks: Sequence[Task], stream: Stream, epoch: int, *, whole: bool = False
    ) -> Iterator[Prepared]:
        """The batch of each task, counted in the record as (a part of) an epoch.

        `whole`: they go to its end, and the next epoch will follow.
        """
        self.check_open()
        meter = Meter()
        entry = EpochRecord(stream=stream.name.lower(), epoch=epoch)
        computed: deque[Event] = deque(maxlen=_MOST_EVENTS)
        before = DriveUse.now(self.store.counters)
        start = time.perf_counter()
        first = tasks[0].batch if len(tasks) else 0
        batches = self._runner.run(tasks, meter, whole=whole)
        self._loops.add(batches)
        keep_from_children(batches)
        self._runs.append(meter)
        try:
            for batch in batches:
                if excuse := self._overdraft.take_excuse():
                    warnings.warn(excuse, BudgetWarning, stacklevel=_CALLER)
                entry.count(batch)
                number = batch.task.batch - first
                begin = time.perf_counter()
                batch.give_to_children()
                yield batch
                del batch  # not kept here while the next one is awaited
                self._origin.check()
                computed.append(Event("compute", number, begin, time.perf_counter()))
        finally:
            if self._origin.here:  # else a child's copy, whose files and threads are the parent's
                batches.close()  # type: ignore[attr-defined]
                self._runs = [run for run in self._runs if run is not meter]
                if not sys.is_finalizing():  # else open at the end of the program: nobody reads on
                    after = DriveUse.now(self.store.counters)
                    entry.finish(time.perf_counter() - start, meter, before, after)
                    self._add_to_record(entry, [*meter.events, *computed], start)

    @property
    def alterations(self) -> dict[str, Any]:
        """Options of the strategy that make batches differ from what is sampled, by full names."""
        name = self._settled.name
        return {f"{name}:{option}": v for option, v in self._runner.alterations.items()}

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
        """StoreError after `close`, ForkedError in a forked child."""
        self._origin.check()
        if self._closed:
            raise StoreError("this loader is closed: make another")

    def close(self) -> None:
        """Ends loops that are open, and gives up what the strategy opened; closed twice is closed.

        Does nothing in a forked child: what it has a copy of is the parent's.
        """
        if self._closed or not self._origin.here:
            return
        self._closed = True
        for batches in list(self._loops):
            with suppress(ValueError):  # another thread is in it, and will end it
                batches.close()  # type: ignore[attr-defined]
        self._runner.close()
        _open_feeds.discard(self)


_open_feeds: WeakSet[Feed] = WeakSet()


@atexit.register
def _close_all() -> None:
    # A loop that was left by an error lives until here: its strategy may have files to remove.
    for feed in list(_open_feeds):
        feed.close()


def _settled(wanted: Wanted, strategy: str) -> Settled:
    """As `settle`; the refusal of `memory`, which is the first that people try, names another."""
    try:
        return settle(wanted, strategy)
    except BudgetError as error:
        raise with_advice(wanted, error) if strategy == "memory" else error from None


def seed_nodes(store: GraphStore, input_nodes: Any) -> tuple[Ids | range, Stream]:
    """ "train", "val", "test", ids, a mask, "all" or None -> node ids, and their stream.

    Wherever nodes are named, this decides what the names mean.
    """
    if input_nodes is None or (isinstance(input_nodes, str) and input_nodes == ALL_NODES):
        return range(store.num_nodes), Stream.TRAIN
    if isinstance(input_nodes, str) and input_nodes in SPLITS:
        return np.array(store.split(input_nodes)), Stream[input_nodes.upper()]
    nodes = _as_array(input_nodes)
    if nodes.dtype == bool:
        if len(nodes) != store.num_nodes:
            raise OptionError(
                f"a mask needs an entry per node: {store.num_nodes} (got {len(nodes)})"
            )
        return np.flatnonzero(nodes), Stream.TRAIN
    if nodes.size and not np.issubdtype(nodes.dtype, np.integer):
        raise OptionError(f"input_nodes must be node ids or a mask (got {nodes.dtype})")
    nodes = np.array(nodes, dtype=np.int64)
    if nodes.size and not 0 <= nodes.min() <= nodes.max() < store.num_nodes:
        raise OptionError(
            f"input_nodes must be 0 to {store.num_nodes - 1} (got {nodes.min()} to {nodes.max()})"
        )
    return nodes, Stream.TRAIN


def _as_array(input_nodes: Any) -> NDArray[Any]:
    """Ids or a mask, of Python, numpy or torch."""
    kinds = f"{', '.join(SPLITS)} or {ALL_NODES}, node ids or a mask"
    if isinstance(input_nodes, str):
        raise OptionError(f"input_nodes must be {kinds} (got {input_nodes!r})")
    if isinstance(input_nodes, tuple) and isinstance(next(iter(input_nodes), 0), str | None):
        raise OptionError(
            "a store has one type of nodes: give their mask or ids alone, input_nodes=mask "
            f"(got a tuple that begins with {input_nodes[0]!r})"
        )
    if hasattr(input_nodes, "detach"):  # a tensor, wherever it is
        input_nodes = input_nodes.detach().cpu()
    try:
        nodes = np.asarray(input_nodes)
    except ValueError:  # lists of several lengths
        nodes = np.empty(())
    if nodes.ndim == 0:
        raise OptionError(f"input_nodes must be {kinds} (got {type(input_nodes).__name__})")
    if nodes.ndim != 1:
        raise OptionError(
            f"input_nodes must have one dimension, such as mask[:, 0] (got {list(nodes.shape)})"
        )
    return nodes
