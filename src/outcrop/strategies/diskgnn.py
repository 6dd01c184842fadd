"""diskgnn: batches sampled ahead, the rows of each packed together: sequential reads instead of
random ones.

Before the first batch, all batches of some epochs are sampled into a trace. The rows that most of
them want stay in memory; the others are packed, a chunk per batch, with tables that say where each
row belongs. While training, graphs and chunks are read in sequence. Tasks that were not prepared
(validation, direct calls, later epochs) are sampled and read as they come. Both layouts are found
again by the next run with the same settings.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from outcrop import _core
from outcrop.batch import Prepared
from outcrop.errors import (
    BudgetError,
    CorruptError,
    OptionError,
    StoreError,
    is_refusal_to_write,
)
from outcrop.pack.chunks import Pack
from outcrop.pack.partial import (
    DEVICE_CACHE,
    DeviceSize,
    assembly_bytes,
)
from outcrop.pack.prepare import PackSpec, SamplesSpec, prepare_pack, prepare_trace
from outcrop.pack.refresh import Refresh, discard, left_by_others
from outcrop.pack.rows import TieredRows, verify_rows
from outcrop.pack.segments.sizes import segment_facts
from outcrop.parallel import cpu_count
from outcrop.pipeline import Pipeline, Stage
from outcrop.progress import Progress
from outcrop.sample.imported import find_samples, open_samples
from outcrop.sample.sampler import Sampler, Subgraph
from outcrop.sample.seeds import Task
from outcrop.sample.topology import PAGE_THREADS, paged_topology
from outcrop.sample.trace import Trace
from outcrop.store.derived import Layout
from outcrop.store.store import GraphStore
from outcrop.strategies.base import Job, Means, RunTimes, Strategy
from outcrop.strategies.diskgnn_sizes import CPU_CACHE, Sizes
from outcrop.strategies.offline import offline_sampler

if TYPE_CHECKING:
    from outcrop.pack.device import DeviceRows

GRAPH_LOAD = "graph load"


@dataclass(frozen=True)
class DiskGNNOptions:
    """What is prepared, and which tiers there are."""

    distinct_epochs: int | None = None
    """Epochs that are sampled ahead. None: all of the run where their number is known, else 1."""
    cycle: bool = False
    """Later epochs repeat the prepared batches, in another order, instead of being sampled."""
    refresh: Literal["off", "background"] = "off"
    """background: while the prepared epochs train, the next ones are prepared."""
    cpu_cache: bool = True
    cache_share: float = 1.0
    """Of the memory that is spare; the rest goes to more batches under way."""
    device_cache: str = "0"
    """On the device of batches, for the rows that most of them want: a size, or 100000rows."""
    packing: bool = True
    """Else rows that are not cached are read from the features."""
    raw: bool = False
    """No cache in memory, no packing, and each row by a request of its own: the baseline."""
    topology: Literal["mmap", "cache", "memory"] = "mmap"
    """What batches are sampled from ahead: pages of the page cache, lists of some nodes in memory
    and the others read around the page cache, or all of it in memory. None of it stays."""
    pipeline: Literal["on", "off"] = "on"
    """off: one batch after the other, one stage after the other, to time them."""
    samples: str | None = None
    """Imported samples to train from, by their name; None: Outcrop samples."""
    verify_rows: bool = False
    """Compares every row with the store's."""

    def __post_init__(self) -> None:
        if self.distinct_epochs is not None and self.distinct_epochs < 1:
            raise OptionError(
                f"diskgnn: distinct_epochs must be at least 1 (got {self.distinct_epochs})"
            )
        if self.refresh != "off" and (self.cycle or self.samples is not None):
            raise OptionError("diskgnn: refresh=background never repeats: no cycle, no samples")
        if self.samples is not None and self.distinct_epochs is not None:
            raise OptionError("diskgnn: imported samples have their epochs: no distinct_epochs")
        if self.raw:
            object.__setattr__(self, "cpu_cache", False)
            object.__setattr__(self, "packing", False)
        if not 0 <= self.cache_share <= 1:
            raise OptionError(f"diskgnn: cache_share must be 0 to 1 (got {self.cache_share})")
        DeviceSize.parse(self.device_cache)

    def device_rows(self, store: GraphStore) -> int:
        return DeviceSize.parse(self.device_cache).rows_of(store)


class DiskGNN(Strategy):
    """Offline sampling, packed chunks, a static cache."""

    name = "diskgnn"
    Options = DiskGNNOptions

    @classmethod
    def assembly_bytes(cls, store: GraphStore, options: Any, device: str) -> int:
        return assembly_bytes(store, device) if options.device_rows(store) else 0

    @classmethod
    def largest_batch(cls, store: GraphStore, options: Any) -> tuple[int, int]:
        if options.samples is None:
            return 0, 0
        samples = find_samples(store, options.samples)
        return samples.nodes, samples.edges

    @classmethod
    def needs(cls, means: Means) -> Mapping[str, int]:
        return Sizes(means).needs()

    @classmethod
    def written_bytes(cls, means: Means) -> int:
        return Sizes(means).written_bytes

    def __init__(self, job: Job) -> None:
        self._job = job
        self._options: DiskGNNOptions = job.options
        sizes = Sizes(job)
        self._sizes = sizes
        self._spec = sizes.spec
        self._workers = sizes.workers
        self._topology = paged_topology(job.store)
        self._opened = ExitStack()
        self._layouts: list[Layout] = []
        self._pack: Pack | None = None
        # Before preparation: what does not fit there is refused at once.
        self._device = _device_rows(job, sizes.device_rows)
        self._refresh: Refresh | None = None
        self._runs = 0
        self._used_up = False
        self._announced = False
        self._failed: BaseException | None = None
        if self._options.refresh == "background":
            self._refresh = Refresh(self._prepare_next)
            self._spec = self._left_by_a_killed_run()
        try:
            self._open(rows=bool(sizes.row_bytes))
        except BaseException:
            self._opened.close()
            raise

    def _open(self, *, rows: bool) -> None:
        start = time.perf_counter()
        self._open_trace(self._trace_layout())
        self._sample_seconds = time.perf_counter() - start
        if rows:
            with self._advising():
                self._open_pack()
        self._pack_seconds = time.perf_counter() - start - self._sample_seconds

    def _open_trace(self, layout: Layout) -> None:
        self._layouts.append(self._opened.enter_context(layout))
        with self._advising():
            self._trace = Trace(self._job.store.disk, layout.path)
        self._opened.enter_context(self._trace)

    def _trace_layout(self) -> Layout:
        job = self._job
        if self._options.samples is not None:
            return open_samples(job.store, self._options.samples)
        found = job.store.derived.find("trace", self._spec.trace_inputs)
        if found is not None:
            return found
        source = self._options.topology
        lists_bytes = job.prepare_bytes - self._sizes.sampling_bytes(source)
        with self._two_generations():
            self._sizes.check_disk()
            with offline_sampler(job, source, lists_bytes) as sampler:
                return self._sample(self._spec, sampler, job.progress)

    def _sample(self, spec: PackSpec, sampler: Sampler, progress: Progress) -> Layout:
        sizes = self._sizes
        return prepare_trace(
            self._job.store, spec, sampler, sizes.disk_bytes, progress, sizes.enough_disk
        )

    def _open_pack(self) -> None:
        job = self._job
        with self._two_generations():
            layout = prepare_pack(
                job.store,
                self._spec,
                self._trace,
                job.prepare_bytes,
                self._sizes.disk_bytes,
                job.progress,
            )
        self._load_pack(layout)

    def _load_pack(self, layout: Layout) -> None:
        self._layouts.append(self._opened.enter_context(layout))
        self._pack = self._opened.enter_context(Pack(self._job.store.disk, layout.path))
        if self._device is None:
            self._cache = self._pack.load_cache()
        else:
            self._cache = self._device.load(self._pack)

    # The next epochs

    def _left_by_a_killed_run(self) -> PackSpec:
        """The first generation; or the first of those that are there, to go on with."""
        generation, derived = self._sizes.generation, self._job.store.derived
        left = left_by_others(self._job.store, generation(0))
        begun = [
            epoch
            for epoch, paths in left.items()
            if derived.path("trace", generation(epoch).trace_inputs) in paths
        ]
        start = min(begun, default=0)
        for epoch, paths in left.items():
            if epoch < start:  # its trace was removed, and then the run was killed
                for path in paths:
                    discard(path)
        return generation(start)

    def _prepare_next(self, spec: PackSpec, progress: Progress) -> list[Layout]:
        """A generation, in memory of its own; on the refresh's thread."""
        store, job = self._job.store, self._job
        disk_bytes = self._sizes.disk_bytes
        sampler = job.sampler(self._topology, PAGE_THREADS)
        with ExitStack() as opened, self._two_generations():
            layout = self._sample(spec, sampler, progress)
            layouts = [opened.enter_context(layout)]
            if self._sizes.row_bytes:
                memory = self._sizes.refresh_bytes
                trace = Trace(store.disk, layout.path)
                with trace:
                    layouts.append(prepare_pack(store, spec, trace, memory, disk_bytes, progress))
            opened.pop_all()
            return layouts

    def _renew(self, task: Task, times: RunTimes) -> None:
        """Before a run that begins with this task: its generation, and the next one on its way."""
        if self._refresh is None or not self._is_own(task):
            return
        wanted = self._sizes.generation(task.epoch)
        if not self._covers(task.epoch):
            if self._runs:  # others use what is here: these batches are sampled as they come
                return
            with times.measure("refresh"):
                self._take_next(self._refresh, wanted)
        following = (wanted.first_epoch or 0) + wanted.epochs
        if self._job.epochs is None or following < self._job.epochs:
            self._refresh.start(self._sizes.generation(following))

    def _take_next(self, refresh: Refresh, spec: PackSpec) -> None:
        """Turns to a generation; a drive that is full meanwhile costs speed, not the run."""
        try:
            layouts = refresh.take(spec)
        except (BudgetError, OSError) as error:
            if not is_refusal_to_write(error):
                raise
            self._job.progress.note(
                f"diskgnn: epoch {spec.first_epoch} could not be prepared ({error}); its batches "
                "are sampled and read as they come"
            )
        else:
            self._turn_to(layouts, spec)

    def _turn_to(self, layouts: list[Layout], spec: PackSpec) -> None:
        old = [layout.path for layout in self._layouts]
        try:
            # First: there is memory for one cache.
            self._release()
            self._spec, self._used_up = spec, False
            self._open_trace(layouts[0])
            with self._advising():
                for layout in layouts[1:]:
                    self._load_pack(layout)
        except BaseException as error:
            self._failed = error
            for layout in layouts:
                layout.close()
            raise
        for path in old:
            discard(path)

    def _release(self) -> None:
        """Lets go of the trace, the pack and the cache."""
        self._opened.close()
        self._opened, self._layouts = ExitStack(), []
        self.__dict__.pop("_cache", None)  # not there where loading it failed
        self._pack = None

    @contextmanager
    def _two_generations(self) -> Iterator[None]:
        """Says what a disk budget is for where it is for two of them."""
        try:
            yield
        except BudgetError as error:
            if self._refresh is None:
                raise
            raise BudgetError(
                f"of disk=, refresh=background gives each of two generations one half: {error}"
            ) from error

    @contextmanager
    def _advising(self) -> Iterator[None]:
        """What to do about a damaged layout, which the error names."""
        try:
            yield
        except CorruptError as error:
            for layout in self._layouts:
                if str(layout.path) in str(error):
                    raise CorruptError(
                        f"{error}; remove {layout.path}, and the next run makes it again"
                    ) from error
            raise

    @property
    def alterations(self) -> dict[str, Any]:
        if isinstance(self._spec, SamplesSpec):
            return {"samples": self._spec.digest}
        if self._options.cycle:
            return {"cycle": True, "distinct_epochs": self._spec.epochs}
        return {}

    @property
    def facts(self) -> dict[str, Any]:
        spec, pack = self._spec, self._pack
        cached, packed, shared = (0, 0, 0) if pack is None else (int(c.sum()) for c in pack.counts)
        return {
            "distinct_epochs": spec.epochs,
            "batches": len(self._trace),
            "cycle": self._options.cycle,
            "samples": self._options.samples,
            "refresh": self._options.refresh,
            "sample_seconds": self._sample_seconds,
            "pack_seconds": self._pack_seconds,
            "trace_bytes": self._trace.bytes,
            "pack_bytes": 0 if pack is None else pack.bytes,
            "cache_rows": 0 if pack is None else len(pack.cached),
            "device_rows": 0 if pack is None else len(pack.device),
            "rows_cached": cached,
            "rows_packed": packed if spec.packed else 0,
            "rows_shared": shared,
            **({} if pack is None else segment_facts(pack)),
        }

    # Batches

    def place(self, task: Task) -> int | None:
        """Where the trace has the task's batch; None where it was not prepared."""
        if not self._is_own(task):
            return None
        if self._covers(task.epoch):
            epoch = task.epoch - (self._spec.first_epoch or 0)
            return epoch * len(self._job.seeds) + task.batch
        return self._cycled(task) if self._options.cycle or self._options.samples else None

    def _is_own(self, task: Task) -> bool:
        """Whether it is of the schedule that batches are prepared for, not of a sibling's."""
        seeds = self._job.seeds
        if task.stream != seeds.stream or task.batch >= len(seeds):
            return False
        own = seeds.task(task.epoch, task.batch)
        return np.array_equal(own.seeds, task.seeds) and np.array_equal(
            own.input_ids, task.input_ids
        )

    def _covers(self, epoch: int) -> bool:
        """Whether its batches are prepared."""
        return 0 <= epoch - (self._spec.first_epoch or 0) < self._spec.epochs

    def _cycled(self, task: Task) -> int:
        """Of the epoch that is repeated, the batch that comes at this place of the new order."""
        batches = len(self._job.seeds)
        chosen = np.empty(1, np.int64)
        _core.shuffled_seeds(batches, self._job.seed, task.stream, task.epoch, task.batch, chosen)
        return task.epoch % self._spec.epochs * batches + int(chosen[0])

    def batches(self, tasks: Iterable[Task], times: RunTimes) -> Iterator[Prepared]:
        if self._spec.device_rows and self._device is None:
            raise OptionError(f"device {self._job.device!r} is not there: torch sees no GPU")
        if self._failed is not None:
            raise StoreError(
                "diskgnn: the next epochs could not be opened; make the loader again"
            ) from self._failed
        tasks = iter(tasks)
        for first in tasks:
            self._renew(first, times)
            self._announce(first)
            tasks = chain([first], tasks)
            break
        seen = _Last(tasks)
        run = _Run(self, seen, times)
        results = run.piped() if self._options.pipeline == "on" else run.one_by_one()
        self._runs += 1
        try:
            yield from results
            self._used_up |= self._is_last(seen.task)
        finally:
            self._runs -= 1
            results.close()  # type: ignore[attr-defined]
            if run.hits:
                times.hit(CPU_CACHE, sum(run.hits))
            if run.device_hits:
                times.hit(DEVICE_CACHE, sum(run.device_hits))
            run.count_read_bytes()

    def _announce(self, task: Task) -> None:
        """Says, the first time, that an epoch will be read at random."""
        if self._announced or self._refresh is not None:  # which has a line of its own
            return
        if not self._is_own(task) or self.place(task) is not None:
            return
        self._announced = True
        first = self._spec.first_epoch or 0
        prepared = f"{first} to {first + self._spec.epochs - 1}"
        self._job.progress.note(
            f"diskgnn: epoch {task.epoch} was not prepared ({prepared} were): its batches are "
            "sampled and their rows read as they come, which takes longer. A loop that is given up "
            "in its middle uses up its epoch; give epochs= (got "
            f"{self._job.epochs}) for all of them, or refresh=background"
        )

    def _is_last(self, task: Task | None) -> bool:
        """Whether nothing that was prepared comes after it."""
        last_epoch = (self._spec.first_epoch or 0) + self._spec.epochs - 1
        last = (last_epoch, len(self._job.seeds) - 1)
        return task is not None and self._is_own(task) and (task.epoch, task.batch) == last

    def close(self) -> None:
        layouts = self._layouts
        if self._refresh is not None:
            self._refresh.cancel()
        self._release()
        if self._refresh is not None and self._used_up:
            for layout in layouts:
                discard(layout.path)
        self._device = None
        self.__dict__.pop("_topology", None)  # closed twice is closed


def _device_rows(job: Job, rows: int) -> DeviceRows | None:
    """Room for so many rows; None where there are none, or the run will be on another machine."""
    if not rows:
        return None
    from outcrop.pack.device import DeviceRows, is_here  # torch, which preparation does without

    return DeviceRows(rows, job.store.encoding, job.device) if is_here(job.device) else None


@dataclass
class _Loaded:
    number: int
    task: Task
    subgraph: Subgraph
    t: int | None
    """Its place in the trace."""


class _Last:
    """Tasks; knows the last one that was taken."""

    def __init__(self, tasks: Iterator[Task]) -> None:
        self._tasks = tasks
        self.task: Task | None = None

    def __iter__(self) -> Iterator[Task]:
        for task in self._tasks:
            self.task = task
            yield task


class _Run:
    """The stages of one iteration."""

    def __init__(self, strategy: DiskGNN, tasks: Iterable[Task], times: RunTimes) -> None:
        job = strategy._job
        self._strategy = strategy
        self._trace, self._pack = strategy._trace, strategy._pack
        self._store = job.store
        self._maker = job.maker
        self._tasks = enumerate(tasks)
        self._times = times
        self._verify = job.options.verify_rows
        self._sampler = job.sampler(strategy._topology, PAGE_THREADS)
        self._depth = job.depth
        self._workers = min(strategy._workers, job.depth)
        self._rows: TieredRows | None = None
        if self._pack is not None:
            self._rows = TieredRows(
                self._pack.cached,
                strategy._cache,
                job.store.features_one_by_one() if job.options.raw else job.store.features,
                workers=self._workers,
                threads=-(-cpu_count() // self._workers),
                device=strategy._device,
            )
        self.hits: list[int] = []
        """Rows that were cached in memory, per batch; and the same of the device."""
        self.device_hits: list[int] = []

    def piped(self) -> Iterator[Prepared]:
        stages = [
            Stage(GRAPH_LOAD, self._load, 1, self._admit),
            Stage("gather", self._gather, self._workers),
        ]
        # One more than there is memory for: its graph is loaded while it waits.
        depth = self._depth + 1
        self._pipeline = Pipeline(self._tasks, stages, depth, cancel=self._cancel)
        results = iter(self._pipeline)
        self._times.follow(self._pipeline)
        try:
            for batch, _ in results:
                yield batch
                del batch
        finally:
            results.close()
            self._times.take(self._pipeline)
            # They refer to each other: threads and cache would wait for garbage collection.
            del self._pipeline

    def one_by_one(self) -> Iterator[Prepared]:
        for number, task in self._tasks:
            start = time.perf_counter()
            with self._times.measure(GRAPH_LOAD, number):
                loaded = self._load((number, task))
                t = loaded.t
                batch = self._maker.make(loaded.task, loaded.subgraph, lambda: False, lambda: True)
                del loaded
            with self._times.measure("gather", number):
                self._gather((batch, t))
            self._times.consumer_wait_seconds += time.perf_counter() - start
            yield batch
            del batch

    def _load(self, item: tuple[int, Task]) -> _Loaded:
        number, task = item
        t = self._strategy.place(task)
        if t is None:
            if self._strategy._is_own(task):
                self._times.unprepared_batches += 1
            return _Loaded(number, task, self._sampler.sample(task), None)
        with self._strategy._advising():
            found, subgraph = next(self._trace.scan(t, t + 1, what="narrow"))
        imported = self._strategy._options.samples is not None
        if imported or (task.epoch, task.batch) != (found.epoch, found.batch):
            # Of a repeated epoch or of others: the batch that was asked for, around other seeds.
            # Copies: the task stays with the batch, and the record must not.
            task = replace(task, input_ids=found.input_ids.copy(), seeds=found.seeds.copy())
        return _Loaded(number, task, subgraph, t)

    def _admit(self, item: _Loaded, closed: Callable[[], bool]) -> tuple[Prepared, int | None]:
        batch = self._maker.make(
            item.task,
            item.subgraph,
            closed,
            lambda: self._pipeline.waiting_for == item.number,
        )
        return batch, item.t

    def _gather(self, item: tuple[Prepared, int | None]) -> tuple[Prepared, int | None]:
        batch, t = item
        if self._rows is None or self._pack is None:
            return item
        if t is None:
            self.hits.append(self._rows.gather(batch))
        else:
            with self._strategy._advising():
                self.hits.append(self._rows.gather_packed(batch, self._pack, t))
        if batch.on_device:
            self.device_hits.append(batch.on_device)
        if self._verify:
            verify_rows(batch, self._store.features)
        return item

    def count_read_bytes(self) -> None:
        if self._rows is None:
            return
        read = self._rows.take_read_bytes()
        if read.chunks or read.segments:
            self._times.tier_bytes = {"chunks": read.chunks, "segments": read.segments}
            self._times.padding_bytes = read.chunks + read.segments - read.wanted

    def _cancel(self) -> None:
        self._sampler.cancel()
        if self._rows is not None:
            self._rows.cancel()
