"""Feed: a store, a sampler, a strategy and one memory number -> batches of any seeds and epoch.

Loaders are a thin layer over it: they turn its batches into what PyG would give.
"""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from outcrop.batch import BatchMaker, BatchShape, Prepared, RowShape
from outcrop.budget import Budget
from outcrop.errors import OptionError
from outcrop.metrics import DriveUse, EpochRecord, LoaderRecord
from outcrop.options import parse_size
from outcrop.pipeline import Event
from outcrop.progress import SILENT, Progress
from outcrop.sample.sampler import Sampler, Sampling
from outcrop.sample.seeds import Ids, SeedOrder, Stream, Task
from outcrop.store.store import GraphStore
from outcrop.strategies import strategy_named
from outcrop.strategies.base import Job, Means, RunTimes, Sizes
from outcrop.strategies.mmap import mapped_topology

# Batches differ in size: sizes seen on the first one are taken so many times larger.
_MARGIN = 1.15
# One with the user's loop, one on the way to it.
_MIN_BATCHES = 2
# More batches ahead than this hide nothing more.
_MOST_AHEAD = 4
_PROBE_THREADS = 16
_MOST_EVENTS = 10_000


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
    ) -> None:
        """`first`: a schedule whose first batch shows how large batches are.

        `epochs`: that the run will have, if that is known. `progress`: of what is prepared.
        `device`: where batches will go.

        BudgetError where the memory is too little, with the least that would do.
        """
        made, options = strategy_named(strategy)
        self.store = store
        self.sampling = sampling
        self.seed = first.seed
        self.budget = Budget(memory)
        in_slots = made.leaves_rows_in_slots(options)
        rows = row_shape(store, staged=made.reads_stored_rows, in_slots=in_slots)
        assembly = made.assembly_bytes(store, options, device)
        if assembly:
            rows = replace(rows, staged_bytes=assembly)
        self.rows = rows
        sizes = probe(store, sampling, first, rows, made.largest_batch(store, options))
        common = common_needs(store, first)
        least = sum(common.values()) + _MIN_BATCHES * sizes.batch_bytes
        means = Means(
            store=store,
            sampling=sampling,
            seeds=first,
            options=options,
            sizes=sizes,
            spare_bytes=max(self.budget.total_bytes - least, 0),
            disk_bytes=None if disk is None else parse_size(disk),
            epochs=epochs,
            device=device,
        )
        charges = made.needs(means)
        self.budget.charge({**common, **charges}, sizes.batch_bytes, _MIN_BATCHES)
        self._pool = self.budget.slabs()
        self._runs: list[RunTimes] = []  # those that are open; the last one is shown
        depth = min(self._pool.limit_bytes // sizes.batch_bytes - 1, _MOST_AHEAD)
        maker = BatchMaker(self._pool, rows, store.load_labels() if rows.labels else None)
        start = time.perf_counter()
        job = Job(**vars(means), charges=charges, maker=maker, depth=depth, progress=progress)
        self._strategy = made(job)
        self.record = LoaderRecord(
            strategy=strategy,
            memory_bytes=self.budget.total_bytes,
            charges=dict(self.budget.charges),
            batch_memory_bytes=self._pool.limit_bytes,
            depth=depth,
            prepare_seconds=time.perf_counter() - start,
            order=self._strategy.order,
            plan=self._strategy.facts,
        )

    def batches(self, tasks: Iterable[Task], stream: Stream, epoch: int) -> Iterator[Prepared]:
        """The batch of each task, counted in the record as (a part of) an epoch."""
        times = RunTimes()
        entry = EpochRecord(stream=stream.name.lower(), epoch=epoch)
        computed: deque[Event] = deque(maxlen=_MOST_EVENTS)
        before = DriveUse.now(self.store.counters)
        start = time.perf_counter()
        numbers: dict[int, int] = {}
        batches = self._strategy.batches(_numbered(tasks, numbers), times)
        self._runs.append(times)
        try:
            for batch in batches:
                entry.count(batch)
                number = numbers.pop(batch.task.batch)
                begin = time.perf_counter()
                yield batch
                del batch  # not kept here while the next one is awaited
                computed.append(Event("compute", number, begin, time.perf_counter()))
        finally:
            batches.close()  # type: ignore[attr-defined]
            self._runs = [run for run in self._runs if run is not times]
            if not sys.is_finalizing():  # else left open at the end of the program: nobody reads on
                after = DriveUse.now(self.store.counters)
                entry.finish(time.perf_counter() - start, times, before, after)
                times.events += computed
                self._add_to_record(entry, times, start)

    def queue_lengths(self) -> dict[str, int]:
        """How many batches wait before each stage of the current run, and for the loop.

        May be called on any thread; empty between runs.
        """
        runs = self._runs
        return runs[-1].queue_lengths if runs else {}

    def _add_to_record(self, entry: EpochRecord, times: RunTimes, start: float) -> None:
        self.record.peak_batch_bytes = self._pool.peak_bytes
        if not self.record.epochs:
            self.record.events = [
                (event.stage, event.number, event.start - start, event.end - start)
                for event in times.events
            ]
        self.record.epochs.append(entry)

    def close(self) -> None:
        self._strategy.close()


def _numbered(tasks: Iterable[Task], numbers: dict[int, int]) -> Iterator[Task]:
    """The tasks; their numbers among them go to `numbers`, by batch."""
    for number, task in enumerate(tasks):
        numbers[task.batch] = number
        yield task


def probe(
    store: GraphStore,
    sampling: Sampling,
    seeds: SeedOrder,
    rows: RowShape,
    least: tuple[int, int] = (0, 0),
) -> Sizes:
    """Samples the first batch from the memory-mapped topology.

    `least`: nodes and edges that there must be room for in any case.
    """
    sampler = Sampler(sampling, mapped_topology(store), seeds.seed, _PROBE_THREADS)
    nodes = edges = targets = 0
    if len(seeds):
        subgraph = sampler.sample(seeds.task(0, 0))
        nodes, edges = len(subgraph.nodes), len(subgraph.sources)
        targets = len(subgraph.counts)
    shape = BatchShape(
        max(int(nodes * _MARGIN), least[0]), max(int(edges * _MARGIN), least[1]), rows
    )
    return Sizes(
        shape.nodes,
        shape.edges,
        int(targets * _MARGIN),
        max(shape.charged_bytes(), 1),
        int(sampler.memory_bytes * _MARGIN),
    )


def common_needs(store: GraphStore, seeds: SeedOrder) -> dict[str, int]:
    """What every strategy keeps resident."""
    labels = store.num_nodes * store.label_dtype.itemsize if store.has("labels") else 0
    return {
        "labels": labels,
        "seeds": 0 if isinstance(seeds.nodes, range) else seeds.nodes.nbytes,
        "disk engine": store.disk.memory_bytes,
    }


def row_shape(store: GraphStore, *, staged: bool, in_slots: bool = False) -> RowShape:
    """`staged`: rows are read as they are stored; all but float32 then need memory of their own.

    `in_slots`: batches have the slots of their rows in place of x.
    """
    if not store.has("features"):
        return RowShape(None, store.has("labels"))
    encoding = store.encoding
    if in_slots and encoding.name != "float32":
        raise OptionError(
            f"{store.path}: x=slots needs rows stored as float32 (got {encoding.name}); others are "
            "decoded on the way into x"
        )
    staged_bytes = encoding.row_bytes if staged and encoding.name != "float32" else None
    return RowShape(encoding.dim, store.has("labels"), staged_bytes, in_slots)


def seed_nodes(store: GraphStore, input_nodes: Any) -> tuple[Ids | range, Stream]:
    """ "train", "val", "test", ids, a mask or None for all -> node ids, and their stream."""
    if input_nodes is None:
        return range(store.num_nodes), Stream.TRAIN
    if isinstance(input_nodes, str):
        return np.array(store.split(input_nodes)), Stream[input_nodes.upper()]
    nodes = np.asarray(input_nodes)
    if nodes.ndim != 1:
        raise OptionError(f"input_nodes must have one dimension (got {nodes.ndim})")
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
