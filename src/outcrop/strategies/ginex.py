"""ginex: batches are sampled a superbatch ahead, so the feature cache knows the future (Belady).

A superbatch is sampled into a trace; its plan says for each batch where its rows are and which of
them enter the cache; the main loop reads trace and plan back and does what they say.

handover: one memory for both caches, as in the paper. While superbatches are sampled it holds
neighbour lists (one is planned while the next is sampled), in the main loop feature rows; in
between it is loaded again (switch).
split: neighbour lists and feature rows are both resident. The feature cache goes on from one
superbatch to the next, and the next may be sampled and planned during the main loop.
"""

from __future__ import annotations

import shutil
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count, islice, repeat
from pathlib import Path
from time import perf_counter
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from outcrop import _core
from outcrop.batch import Prepared
from outcrop.cache.neighbor import NeighborCache, making_bytes, neighbor_bytes
from outcrop.cache.neighbor_layout import METRICS, whole_bytes
from outcrop.cache.policy import (
    Belady,
    Changes,
    Lru,
    Plan,
    Policy,
    Static,
    choosing_bytes,
    most_out_edges,
)
from outcrop.disk import aligned_empty
from outcrop.errors import BudgetError, CancelledError, OptionError
from outcrop.gather import CachedRows
from outcrop.options import format_size, size_of_at_least
from outcrop.parallel import cpu_count
from outcrop.pipeline import Pipeline, Stage
from outcrop.sample.ahead import SamplingAhead
from outcrop.sample.sampler import Subgraph
from outcrop.sample.seeds import Ids, Task
from outcrop.sample.topology import PAGE_THREADS, paged_topology
from outcrop.sample.trace import TraceReader, TraceWriter, trace_bytes
from outcrop.store.arrays import reading_bytes
from outcrop.store.degrees import out_degrees
from outcrop.strategies.base import (
    Job,
    Means,
    RunTimes,
    Strategy,
    preparation_bytes,
    sampler_bytes,
)
from outcrop.strategies.direct import Direct
from outcrop.strategies.online import OnlineStrategy

# Longer superbatches hardly read less once the cache goes on between them, and the first batch
# comes later.
_USUAL_SUPERBATCH = 100
# Two, so that one computes while the other one's entries are read.
_SAMPLERS = 2
# Of an Appender.
_WRITER_BYTES = 2 << 20
# Memory to overlap with is worth it where it is less than such a part of what caches may have.
_SMALL_PART = 8
# Under way in the main loop. The reads of one fill the drive: more would take the cache's memory.
_MOST_BATCHES = 2
_PAGE_BYTES = 4096
_USUAL_UNIT = 4096
# Per slot: nodes and slots, sorted, and the reader's copies of both.
_FILL_BYTES = 40
_POLICY_SLOT_BYTES = {
    "belady": Belady.slot_bytes,
    "lru": Lru.slot_bytes,
    "static": Static.slot_bytes,
}


@dataclass(frozen=True)
class GinexOptions:
    """How memory and time are divided."""

    mode: Literal["handover", "split"] = "handover"
    superbatch: int | None = None
    """Batches that are planned together. None: 100, or what fits on disk."""
    policy: Literal["belady", "static", "lru"] = "belady"
    """Who stays in the feature cache; the others are there to be compared with."""
    topology: Literal["cache", "mmap"] = "cache"
    """Neighbour lists from the cache and the drive, or through the page cache."""
    neighbors: float = 0.25
    """Of the memory for caches, the share of neighbour lists (split)."""
    metric: str = "out/in"
    """Which lists are cached: out-edges by in-edges, or "out"."""
    overlap: bool | None = None
    """Whether the next superbatch is sampled and planned during the main loop (split), in memory of
    its own; else in that of the batches, which wait. None: where that memory is a small part."""
    read_unit: int = 4096
    """Bytes of the smallest read of a missing row, and what it is aligned to: 4 KiB to 1 MiB."""

    def __post_init__(self) -> None:
        if not 4096 <= self.read_unit <= 1 << 20 or self.read_unit & (self.read_unit - 1):
            raise OptionError(
                f"ginex: read_unit must be a power of two, 4096 to 1048576 (got {self.read_unit})"
            )
        if self.superbatch is not None and self.superbatch < 1:
            raise OptionError(f"ginex: superbatch must be at least 1 (got {self.superbatch})")
        if not 0 <= self.neighbors <= 1:
            raise OptionError(f"ginex: neighbors must be 0 to 1 (got {self.neighbors})")
        if self.metric not in METRICS:
            raise OptionError(f"ginex: metric is one of {', '.join(METRICS)} (got {self.metric!r})")


class Ginex(Strategy):
    """Belady's cache over superbatches."""

    name = "ginex"
    Options = GinexOptions
    reads_stored_rows = True

    @classmethod
    def needs(cls, means: Means) -> Mapping[str, int]:
        options, store = means.options, means.store
        needs = {"superbatch": _loop_bytes(means), "planning": _planning_bytes(means)}
        if options.topology == "cache":
            needs["index"] = store.array_bytes("indptr")
        if options.read_unit != _USUAL_UNIT and store.has("features"):
            needs["disk engine for rows"] = store.disk.memory_bytes_in_units(options.read_unit)
        spare = max(means.spare_bytes - sum(needs.values()), 0)
        if options.topology == "cache" and not _hands_over(means):
            share = options.neighbors if store.has("features") else 1.0
            needs["neighbour cache"] = neighbor_bytes(store, int(spare * share))
            spare -= needs["neighbour cache"]
        if store.has("features"):
            most = (store.num_nodes + 1) * _slot_bytes(means)
            if _hands_over(means):
                most = max(most, whole_bytes(store))
            needs["feature cache"] = max(min(spare, most), _slot_bytes(means))
        needs["preparation"] = preparation_bytes(means, _prepare_bytes(means, needs), needs)
        return needs

    @classmethod
    def written_bytes(cls, means: Means) -> int:
        lists = 0
        if means.options.topology == "cache":
            needs = cls.needs(means)
            lists = needs["feature cache" if _hands_over(means) else "neighbour cache"]
        superbatches = 2 * superbatch_length(means) * _batch_disk_bytes(means)
        return superbatches + min(lists, whole_bytes(means.store))

    def __init__(self, job: Job) -> None:
        self.job = job
        # Settled here: the space on disk that they depend on changes.
        self.superbatch = superbatch_length(job)
        self.hands_over = _hands_over(job)
        self.overlaps = _overlaps(job)
        self.lent_bytes = _lent_bytes(job)
        self.neighbors: NeighborCache | None = None
        # First: while nodes are chosen there is memory for a number per node.
        hottest = self._hottest() if job.options.policy == "static" else None
        self.memory = self._cache_memory()
        self.topology = self._open_topology()
        self.threads = PAGE_THREADS if self.neighbors is None else cpu_count()
        self.policy: Policy | None = None
        self.rows: CachedRows | None = None
        if job.store.has("features"):
            self._make_cache(hottest)
        self._uncached = _Uncached(job, self.topology, self.threads)
        self._folder = job.store.derived.scratch()
        # Where nobody closes it; at the end of the program the feed does.
        weakref.finalize(self, self._folder.abandon).atexit = False
        self._folders = count()
        # The cache belongs to one run at a time; others that are open meanwhile go without.
        self._cache_lock = threading.Lock()

    def _cache_memory(self) -> NDArray[np.uint8]:
        """For rows, and in handover for lists; the policy has its own beside it."""
        charged = self.job.charges.get("feature cache", 0)
        policy = _slots(self.job, self.job.charges) * _policy_slot_bytes(self.job)
        return aligned_empty(max(charged - policy, 1))

    def _open_topology(self) -> _core.Topology:
        job, store = self.job, self.job.store
        if job.options.topology == "mmap":
            return paged_topology(store)
        if self.hands_over:
            memory = self.memory
            size = neighbor_bytes(store, len(memory))
            self.neighbors = NeighborCache.open(
                store, size, job.options.metric, job.progress, memory
            )
        else:
            size = job.charges["neighbour cache"]
            self.neighbors = NeighborCache.open(store, size, job.options.metric, job.progress)
        return self.neighbors.topology(store.load("indptr"))

    def _hottest(self) -> Ids | None:
        """The nodes that a static cache keeps."""
        store = self.job.store
        if not store.has("features"):
            return None
        degrees = out_degrees(store, self.job.progress)
        return most_out_edges(degrees, _slots(self.job, self.job.charges))

    def _make_cache(self, hottest: Ids | None) -> None:
        job, store = self.job, self.job.store
        slots = _slots(job, job.charges)
        row_bytes = store.encoding.row_bytes
        memory = self.memory[: slots * row_bytes].reshape(slots, row_bytes)
        unit = job.options.read_unit
        rows = store.features if unit == _USUAL_UNIT else store.features_in_units(unit)
        self.rows = CachedRows(rows, memory, cpu_count())
        keeps = not self.hands_over
        if hottest is not None:
            self.policy = Static(store.num_nodes, hottest, keeps=keeps)
        elif job.options.policy == "lru":
            self.policy = Lru(store.num_nodes, slots, keeps=keeps)
        else:
            self.policy = Belady(store.num_nodes, slots, keeps=keeps)

    def new_folder(self) -> Path:
        """For the files of a run."""
        return self._folder.path / str(next(self._folders))

    def batches(self, tasks: Iterable[Task], times: RunTimes) -> Iterator[Prepared]:
        if not self._cache_lock.acquire(blocking=False):
            yield from self._uncached.batches(tasks, times)
            return
        try:
            run = _Run(self, times)
            ended = False
            try:
                yield from run.batches(chunks(tasks, self.superbatch))
                ended = True
            finally:
                run.close()
                if not ended and self.policy is not None:
                    self.policy.clear()  # plans were made that nobody carried out
        finally:
            self._cache_lock.release()

    def close(self) -> None:
        self._uncached.close()
        self.__dict__.pop("topology", None)
        if self.neighbors is not None:
            self.neighbors.close()
        self._folder.abandon()
        self.rows = self.policy = None
        self.memory = np.empty(0, np.uint8)


@dataclass
class _Superbatch:
    """Sampled; and once it is planned, ready for the main loop."""

    number: int
    folder: Path
    trace: TraceReader
    plan: Plan | None = None
    """None where the store has no features."""

    def batches(self) -> Iterator[tuple[Task, Subgraph, Changes | None]]:
        changes: Iterator[Changes | None] = repeat(None) if self.plan is None else self.plan.scan()
        for task, subgraph in self.trace.scan(ahead_bytes=0, what="narrow"):
            yield task, subgraph, next(changes)
            del task, subgraph

    def remove(self) -> None:
        if self.plan is not None:
            self.plan.close()
        self.trace.close()
        shutil.rmtree(self.folder, ignore_errors=True)


class _Item(NamedTuple):
    number: int
    task: Task
    subgraph: Subgraph
    changes: Changes | None


class _Uncached(Direct):
    """Every row from the drive, with the topology that there is."""

    def __init__(self, job: Job, topology: _core.Topology, threads: int) -> None:
        OnlineStrategy.__init__(self, job, topology, threads)


class _Run:
    """One iteration: superbatches of tasks -> batches."""

    def __init__(self, ginex: Ginex, times: RunTimes) -> None:
        self._ginex = ginex
        self._job = ginex.job
        self._rows = ginex.rows
        self._policy = ginex.policy
        self._times = times
        self._numbers = count()
        self._folder = ginex.new_folder()
        # Of what is under way
        self._sampling: SamplingAhead | None = None
        self._ahead: Pipeline | None = None
        self._cancelled = False

    def batches(self, superbatches: Iterator[list[Task]]) -> Iterator[Prepared]:
        if self._ginex.hands_over:
            return self._handover(superbatches)
        if self._ginex.overlaps:
            self._ahead = Pipeline(superbatches, [Stage("prepare", self._prepare)], depth=1)
            return self._main_loop(iter(self._ahead))
        return self._alternating(superbatches)

    def _alternating(self, superbatches: Iterator[list[Task]]) -> Iterator[Prepared]:
        for tasks in superbatches:
            with self._stalled():
                prepared = self._prepare(tasks)
            yield from self._main_loop(iter([prepared]))

    def _handover(self, superbatches: Iterator[list[Task]]) -> Iterator[Prepared]:
        neighbors = self._ginex.neighbors
        assert neighbors is not None
        tasks = next(superbatches, None)
        sampled: _Superbatch | None = None
        with ThreadPoolExecutor(1, "outcrop-inspect") as planner:
            while tasks or sampled:
                with self._stalled():
                    if tasks and not neighbors.loaded:
                        with self._times.measure("switch"):
                            neighbors.reload(self._ginex.memory)
                    planning = planner.submit(self._inspect, sampled) if sampled else None
                    following = self._sample(tasks) if tasks else None
                    planned = planning.result() if planning else None
                    if planned is not None:
                        neighbors.unload()
                if planned is not None:
                    yield from self._main_loop(iter([planned]))
                sampled, tasks = following, next(superbatches, None)

    @contextmanager
    def _stalled(self) -> Iterator[None]:
        """Between main loops: the training loop waits, and lends the memory of its next batch."""
        start = perf_counter()
        lent = self._job.maker.reserve(self._ginex.lent_bytes)
        try:
            yield
        finally:
            del lent
            self._times.consumer_wait_seconds += perf_counter() - start

    # Ahead of the main loop

    def _prepare(self, tasks: list[Task]) -> _Superbatch:
        return self._inspect(self._sample(tasks))

    def _sample(self, tasks: list[Task]) -> _Superbatch:
        ginex, job, store = self._ginex, self._job, self._job.store
        number = next(self._numbers)
        folder = self._folder / str(number)
        samplers = [job.sampler(ginex.topology, ginex.threads) for _ in range(_SAMPLERS)]
        with TraceWriter(
            store.disk,
            folder,
            num_nodes=store.num_nodes,
            num_edges=job.edge_id_limit,
            identity={},
            edge_ids=job.sampling.edge_ids,
        ) as writer:
            sampling = self._sampling = SamplingAhead(tasks, samplers, writer)
            try:
                self._check()
                for _ in sampling.run():
                    pass
            finally:
                self._times.take_stages(sampling.pipeline)
                self._sampling = None
                sampling.close()
            return _Superbatch(number, folder, writer.seal())

    def _inspect(self, superbatch: _Superbatch) -> _Superbatch:
        self._check()
        if self._policy is not None:
            with self._times.measure("inspect", superbatch.number):
                superbatch.plan = self._policy.plan(
                    superbatch.trace, self._job.store.disk, superbatch.folder
                )
        return superbatch

    def _check(self) -> None:
        if self._cancelled:
            raise CancelledError("the run ended before this superbatch was prepared")

    # The main loop

    def _main_loop(self, superbatches: Iterator[_Superbatch]) -> Iterator[Prepared]:
        stages = [Stage("load", _same, admit=self._admit), Stage("gather", self._gather)]
        # One more than batches: the next record is there when memory for it is.
        depth = min(self._job.depth, _MOST_BATCHES) + 1
        self._loop = Pipeline(self._items(superbatches), stages, depth, cancel=self._cancel)
        results = iter(self._loop)
        self._times.follow(self._loop)
        try:
            yield from results
        finally:
            results.close()
            self._times.take(self._loop)
            del self._loop  # they refer to each other: files would wait for garbage collection

    def _items(self, superbatches: Iterator[_Superbatch]) -> Iterator[_Item]:
        numbers = count()
        for superbatch in superbatches:
            if superbatch.plan is not None and len(superbatch.plan.fill_nodes):
                with self._times.measure("switch", superbatch.number):
                    assert self._rows is not None
                    self._rows.fill(*superbatch.plan.take_fill())
            for task, subgraph, changes in superbatch.batches():
                yield _Item(next(numbers), task, subgraph, changes)
                del task, subgraph, changes
            superbatch.remove()

    def _admit(self, item: _Item, closed: Callable[[], bool]) -> tuple[Prepared, Changes | None]:
        batch = self._job.maker.make(
            item.task, item.subgraph, closed, lambda: self._loop.waiting_for == item.number
        )
        return batch, item.changes

    def _gather(self, item: tuple[Prepared, Changes | None]) -> Prepared:
        batch, changes = item
        if batch.x is not None:
            assert self._rows is not None and changes is not None
            self._rows.gather(batch, changes.slots)
            self._times.hit("cache", int(np.count_nonzero(changes.slots >= 0)))
            with self._times.measure("cache update", batch.task.batch):
                self._rows.update(batch, changes.in_positions, changes.in_slots)
            batch.stored = None  # its memory goes back now
        return batch

    # The end

    def _cancel(self) -> None:
        """Nobody waits for another superbatch. Called while the main loop's threads still run."""
        if self._ahead is not None:
            self._cancelled = True
            if (sampling := self._sampling) is not None:
                sampling.cancel()
            self._ahead.close()

    def close(self) -> None:
        self._cancel()
        self._ahead = None
        shutil.rmtree(self._folder, ignore_errors=True)


def _same(item: _Item) -> _Item:
    return item


def chunks(tasks: Iterable[Task], length: int) -> Iterator[list[Task]]:
    """Tasks -> lists of `length`; the last may be shorter."""
    tasks = iter(tasks)
    while chunk := list(islice(tasks, length)):
        yield chunk


# Memory and disk


def superbatch_length(means: Means) -> int:
    """As given; else the usual one, or what fits on disk twice: one is made while one is used."""
    given = means.options.superbatch
    each = 2 * _batch_disk_bytes(means)
    room = means.disk_bytes
    if room is not None and room < each * (given or 1):
        raise BudgetError(
            f"disk={format_size(room)} is too little: two superbatches of {given or 1} "
            f"{'batches' if given else 'batch'} need {size_of_at_least(each * (given or 1))}"
        )
    if given is not None:
        return int(given)
    if room is None:
        room = shutil.disk_usage(means.store.path).free // 2
    return max(min(_USUAL_SUPERBATCH, len(means.seeds), room // each), 1)


def _batch_disk_bytes(means: Means) -> int:
    """A record of the trace, next uses, and changes."""
    return _record_bytes(means) + 16 * means.sizes.nodes + 2 * _PAGE_BYTES


def _record_bytes(means: Means) -> int:
    nodes, edges = means.sizes.nodes, means.sizes.edges
    return trace_bytes(
        nodes,
        edges,
        means.seeds.batch_size,
        targets=means.sizes.targets,
        lists=means.seeds.batch_size + 2 * len(means.sampling.num_neighbors) + 2,
        num_nodes=means.store.num_nodes,
        num_edges=means.edge_id_limit,
        edge_ids=means.sampling.edge_ids,
    )


def _hands_over(means: Means) -> bool:
    """Without rows there is nobody to hand the memory over to."""
    options = means.options
    cached = options.topology == "cache" and means.store.has("features")
    return bool(options.mode == "handover" and cached)


def _overlaps(means: Means) -> bool:
    if _hands_over(means):
        return False
    if means.options.overlap is None:
        return _ahead_bytes(means) * _SMALL_PART < means.spare_bytes
    return bool(means.options.overlap)


def _topology_bytes(means: Means) -> int:
    """What the cached topology keeps for its samplers, from one superbatch to the next."""
    return _SAMPLERS * sampler_bytes(means) if means.options.topology == "cache" else 0


def _table_bytes(means: Means) -> int:
    """From nodes to slots, and to next uses."""
    store, nodes = means.store, means.sizes.nodes
    if not store.has("features"):
        return 0
    slots = min(means.spare_bytes // _slot_bytes(means), store.num_nodes)
    if means.options.policy != "belady":
        return _core.node_table_bytes(store.num_nodes, slots)
    return Belady.table_bytes(store.num_nodes, slots, superbatch_length(means) * nodes)


def _ahead_bytes(means: Means) -> int:
    """What sampling and planning a superbatch takes, and gives back: samplers, writers, tables."""
    nodes = means.sizes.nodes
    writing = _WRITER_BYTES + _record_bytes(means) * 5 // 4
    # Two spills are written and read; node ids are scanned, beside what is made of them.
    planning = 2 * _WRITER_BYTES + 3 * 4 * nodes + 5 * 8 * nodes
    tables = _table_bytes(means) if means.options.policy == "belady" else 0
    return _SAMPLERS * means.sizes.scratch_bytes + writing + planning + tables


def _lent_bytes(means: Means) -> int:
    """Of that, what is taken from the memory of batches if they wait: safely less than one."""
    return 0 if _overlaps(means) else min(_ahead_bytes(means), means.sizes.batch_bytes * 3 // 4)


def _planning_bytes(means: Means) -> int:
    """Beside what is lent. A policy that does not plan keeps its table."""
    kept = 0 if means.options.policy == "belady" else _table_bytes(means)
    return _ahead_bytes(means) - _lent_bytes(means) + _topology_bytes(means) + kept


def _loop_bytes(means: Means) -> int:
    """What the main loop takes: records and changes in use and ahead, and lists of misses."""
    nodes = means.sizes.nodes
    records, changes, misses = 3 * _record_bytes(means), 4 * 12 * nodes, 3 * 8 * nodes
    return records + changes + misses


def _prepare_bytes(means: Means, needs: Mapping[str, int]) -> int:
    """The most of choosing rows and choosing lists, one after the other."""
    store, rows, lists = means.store, 0, 0
    if means.options.policy == "static" and store.has("features"):
        slots = _slots(means, needs)
        reading = reading_bytes(store.array_bytes("indices"))
        rows = reading + choosing_bytes(store.num_nodes, slots)
        lists = slots * Static.slot_bytes
    if means.options.topology == "cache":
        lists += making_bytes(store)
    return max(rows, lists)


def _slots(means: Means, charges: Mapping[str, int]) -> int:
    return charges.get("feature cache", 0) // _slot_bytes(means)


def _slot_bytes(means: Means) -> int:
    """A cached row, and what its policy keeps of it."""
    row_bytes = means.store.encoding.row_bytes if means.store.has("features") else 1
    return row_bytes + _policy_slot_bytes(means)


def _policy_slot_bytes(means: Means) -> int:
    """Where slots are filled before a superbatch, also the lists of what goes where."""
    filled = _hands_over(means) or means.options.policy == "static"
    return _POLICY_SLOT_BYTES[means.options.policy] + filled * _FILL_BYTES
