"""Prepared epochs: all batches of some epochs are sampled, and their rows packed, before they come.

Both are derived layouts, found again by everything that they depend on. With refresh, the next
epochs are prepared in the background while the current ones train: there are two generations at
most, and one that is used up is removed. Tasks that were not prepared (validation, direct calls,
later epochs) are sampled as they come.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from outcrop import _core
from outcrop.ahead.ahead import Ahead, AheadRun, Replayed
from outcrop.ahead.background import Background, Stopper
from outcrop.ahead.prepare import PackSpec, SamplesSpec, prepare_pack, prepare_trace
from outcrop.disk import round_up
from outcrop.errors import BudgetError, CorruptError, StoreError, is_refusal_to_write
from outcrop.layout.pack.device_slots import slots_bytes
from outcrop.layout.pack.reader import ROW, Pack
from outcrop.layout.pack.scatter import PackMemory
from outcrop.layout.pack.segments.sizes import segment_facts, sharing_bytes
from outcrop.layout.pack.tiers import tiers_bytes
from outcrop.layout.samples import open_samples
from outcrop.layout.trace import Trace, trace_bytes
from outcrop.memory.charges import PREPARATION, Charge, Phase
from outcrop.memory.context import Context
from outcrop.observe.meter import Meter
from outcrop.options import format_size, size_of_at_least
from outcrop.progress import Interruptible, Progress
from outcrop.rows.device import DeviceRows
from outcrop.rows.packed import PackedRows, PackedTiers
from outcrop.rows.source import Resources, RowSource
from outcrop.sample.edge_ids import edge_id_limit
from outcrop.sample.sampler import TaskSampler, Topology
from outcrop.sample.seeds import Task
from outcrop.store.arrays import WRITE_BUFFER_BYTES
from outcrop.store.derived import Garbage, Layout, advised, advising, remove
from outcrop.store.offsets import offsets_bytes
from outcrop.store.store import GraphStore
from outcrop.topology.lists import making_bytes
from outcrop.topology.parts import (
    PAGE_THREADS,
    CachedLists,
    Opening,
    Paged,
    Resident,
    TopologyName,
    TopologyPart,
    lists_scratch_bytes,
)

# To be fast, preparing beside training may take one part in so many of the spare memory.
_REFRESH_SHARE = 4
# Where there is memory for them: one computes while the other one's pages are read.
_MOST_SAMPLERS = 2

_Prepare = Callable[[PackSpec, Progress], list[Layout]]


@dataclass(frozen=True)
class PreparedEpochs:
    """What is prepared, and from what."""

    decides_reuse: ClassVar[bool] = False
    epochs: int
    """How many each generation samples ahead."""
    rows: PackedTiers | None
    """The tiers whose pack is made; None: there are no rows."""
    source: TopologyName = "mmap"
    """What batches are sampled from ahead. None of it stays."""
    cycle: bool = False
    """Later epochs repeat the prepared batches, in another order, instead of being sampled."""
    refresh_bytes: int = 0
    """What preparing the next epochs beside the loop takes; 0: they are not prepared there."""

    # Memory

    def charges(self, context: Context) -> Sequence[Charge]:
        generations = 2 if self.refresh_bytes else 1
        index = generations * self._batches(context) * (80 + ROW.itemsize)
        # One record at a time: the thread that loads it copies it into the batch.
        record = self._record_bytes(context) + 8 * self._seeds(context)
        preparing = self.prepare_bytes(context, self.source)
        return [
            Charge("records of batches", record),
            Charge("indexes", index),
            Charge("refresh", self.refresh_bytes),
            Charge("preparing epochs", preparing, Phase.PREPARE, PREPARATION),
        ]

    def with_refresh(self, context: Context, room: int) -> PreparedEpochs:
        """With memory for preparing beside training: for packing in one pass, if that is little
        beside the cache; else the least."""
        least = self.prepare_bytes(context, "mmap")
        if self.rows is not None:
            chunks, nodes = self._batches(context) + 1, context.graph.num_nodes
            wanted = PackMemory.one_pass_bytes(chunks, context.graph.row_bytes, nodes)
            least = max(least, min(wanted, room // _REFRESH_SHARE))
        return replace(self, refresh_bytes=least)

    def prepare_bytes(self, context: Context, source: TopologyName) -> int:
        """The most that any step of preparation takes."""
        sampling = self.sampling_bytes(context, source)
        if self.rows is None:
            return sampling
        graph, nodes, batches = context.graph, context.batch.nodes, self._batches(context)
        cached = self.rows.cache_rows + context.above.device_rows
        segments = 0
        if context.disk.given_bytes is not None:  # then batches may have to share rows
            segments = sharing_bytes(graph, batches, nodes)
        tiers = tiers_bytes(graph.num_nodes, batches, nodes, cached)
        if context.above.device_rows:
            tiers += slots_bytes(cached, nodes)
        planning = tiers + 8 * nodes + 4 * WRITE_BUFFER_BYTES
        packing = PackMemory.least_bytes(graph.row_bytes, graph.num_nodes)
        return max(sampling, planning, packing, segments)

    def sampling_bytes(self, context: Context, source: TopologyName, samplers: int = 1) -> int:
        """The least that sampling ahead takes: samplers, what they draw from, the writer."""
        own = samplers * context.sampler_bytes() + self._record_bytes(context) * 5 // 4
        return own + _source_bytes(context, source, samplers) + 2 * WRITE_BUFFER_BYTES

    def _batches(self, context: Context) -> int:
        return self.epochs * len(context.seeds)

    def _seeds(self, context: Context) -> int:
        """The most seeds of a batch."""
        imported = 0 if context.samples is None else context.samples.seeds
        return max(context.seeds.batch_size, imported)

    def _record_bytes(
        self, context: Context, nodes: int | None = None, edges: int | None = None
    ) -> int:
        """What a batch takes in the trace: the largest, unless its size is given."""
        sizes, seeds, graph = context.batch, self._seeds(context), context.graph
        nodes = sizes.nodes if nodes is None else nodes
        return trace_bytes(
            nodes,
            sizes.edges if edges is None else edges,
            seeds,
            targets=nodes,
            lists=seeds + 2 * len(context.sampling.num_neighbors) + 2,
            num_nodes=graph.num_nodes,
            # Imported samples have ids even where batches are to have none.
            num_edges=edge_id_limit(graph, kept=graph.has("edge_ids")),
        )

    # Disk

    def written_bytes(self, context: Context) -> int:
        """Traces and packs, at most: as if no row were cached, and with what only packing needs."""
        nodes, rows = context.batch.nodes, 0
        if self.rows is not None:
            rows = int(round_up(nodes * context.graph.row_bytes)) + (8 + 8) * nodes
        generations = 2 if self.refresh_bytes else 1
        return generations * self._batches(context) * (self._record_bytes(context) + rows)

    def disk_bytes(self, context: Context) -> int | None:
        """What one generation may take."""
        given = context.disk.given_bytes
        return given // 2 if given is not None and self.refresh_bytes else given

    def enough_disk(self, context: Context) -> str:
        """Disk that will do, as far as the batches that were seen tell."""
        return size_of_at_least(self.written_bytes(context))

    def check_disk(self, context: Context, folder: Path) -> None:
        """BudgetError before anything is sampled, where that would surely be in vain.

        Surely: even half of what batches take, by the mean of those that were seen, is too much.
        """
        sizes, batches = context.batch, self._batches(context)
        record = self._record_bytes(context, sizes.mean_nodes, sizes.mean_edges)
        tables = 0 if self.rows is None else 8 * sizes.mean_nodes
        least, given = batches * (record + tables) // 2, self.disk_bytes(context)
        enough = self.enough_disk(context)
        if given is not None and least > given:
            raise BudgetError(
                f"disk={format_size(given)} is too little: the samples alone of {batches} batches "
                f"need more; what will do in all is {enough}"
            )
        free = shutil.disk_usage(folder).free
        if least > free:
            raise BudgetError(
                f"{folder}: the samples alone of {batches} batches need more than the "
                f"{format_size(free)} that are free there; what will do in all is {enough}"
            )

    # What is made

    def spec(self, context: Context) -> PackSpec:
        """What layouts are found by."""
        rows = self.rows or PackedTiers(0)
        spec = PackSpec(
            context.sampling,
            context.seeds,
            self.epochs,
            rows.cache_rows,
            rows.packed,
            device_rows=context.above.device_rows,
            edge_ids=context.keeps_edge_ids,
        )
        samples = context.samples
        if samples is None:
            return spec
        return SamplesSpec(**vars(spec), name=samples.name, digest=samples.digest)

    def generation(self, context: Context, epoch: int) -> PackSpec:
        """The generation that has this epoch."""
        count, of_run = self.epochs, context.epochs
        first = epoch // count * count
        if of_run is not None and epoch < of_run:
            count = min(count, of_run - first)
        return replace(self.spec(context), first_epoch=first, epochs=count)

    def sampled_from(self, context: Context, prepare_bytes: int) -> tuple[TopologyPart, int]:
        """The topology, in so much memory, and how many samplers draw from it."""
        samplers = _MOST_SAMPLERS
        if self.sampling_bytes(context, self.source, samplers) > prepare_bytes:
            samplers = 1
        if self.source == "memory":
            return Resident(), samplers
        if self.source == "cache":
            room = prepare_bytes - self.sampling_bytes(context, self.source)
            return CachedLists(0).within(context, room), 1
        return Paged(PAGE_THREADS // samplers), samplers

    def open(self, on: Resources, topology: Topology, rows: RowSource | None, _: int) -> Ahead:
        assert rows is None or isinstance(rows, PackedRows | DeviceRows)
        return PreparedAhead(self, on, topology, rows)


def _source_bytes(context: Context, source: TopologyName, samplers: int) -> int:
    """The least that a source takes, beside the samplers' own memory."""
    graph = context.graph
    if source == "memory":
        return graph.topology_bytes
    if source == "cache":
        # Lists are chosen first.
        drawing = offsets_bytes(graph) + samplers * lists_scratch_bytes(context)
        return max(drawing, making_bytes(graph))
    return 0


class PreparedAhead(Ahead):
    """A trace, a pack, and the next ones on their way."""

    def __init__(
        self,
        part: PreparedEpochs,
        on: Resources,
        topology: Topology,
        rows: PackedRows | DeviceRows | None,
    ) -> None:
        self._part, self._on, self._topology, self._rows = part, on, topology, rows
        self._store, self._context = on.store, on.context
        self._spec = part.spec(on.context)
        self._opened = ExitStack()
        self._layouts: list[Layout] = []
        self._pack: Pack | None = None
        self._refresh = _Refresh(self._prepare_next) if part.refresh_bytes else None
        self._runs = 0
        self._used_up = False
        self._announced = False
        self._failed: BaseException | None = None
        if self._refresh is not None:
            self._spec = self._left_by_a_killed_run()
        try:
            self._open()
        except BaseException:
            self._opened.close()
            raise

    def _open(self) -> None:
        start = time.perf_counter()
        self._open_trace(self._trace_layout())
        self._sample_seconds = time.perf_counter() - start
        if self._rows is not None:
            self._open_pack()
        self._pack_seconds = time.perf_counter() - start - self._sample_seconds

    def _open_trace(self, layout: Layout) -> None:
        self._layouts.append(self._opened.enter_context(layout))
        with advising(layout.path):
            self._trace = Trace(self._store.disk, layout.path)
        self._opened.enter_context(self._trace)

    def _trace_layout(self) -> Layout:
        if self._context.samples is not None:
            return open_samples(self._store, self._context.samples.name)
        found = self._store.derived.find("trace", self._spec.trace_inputs)
        if found is not None:
            return found
        on, context = self._on, self._context
        with self._two_generations():
            self._part.check_disk(context, self._store.path)
            source, count = self._part.sampled_from(context, on.prepare_bytes)
            topology = source.open(Opening(self._store, context.keeps_edge_ids, on.progress))
            try:
                return self._sample(self._spec, topology, count, on.progress)
            finally:
                topology.close()

    def _sample(self, spec: PackSpec, topology: Topology, count: int, progress: Progress) -> Layout:
        context = self._context
        samplers: list[TaskSampler] = [
            topology.sampler(context.sampling, context.seeds.seed) for _ in range(count)
        ]
        return prepare_trace(
            self._store,
            spec,
            samplers,
            self._part.disk_bytes(context),
            progress,
            self._part.enough_disk(context),
        )

    def _open_pack(self) -> None:
        with self._two_generations(), self._advising():
            layout = prepare_pack(
                self._store,
                self._spec,
                self._trace,
                self._on.prepare_bytes,
                self._part.disk_bytes(self._context),
                self._on.progress,
            )
        self._load_pack(layout)

    def _load_pack(self, layout: Layout) -> None:
        assert self._rows is not None
        self._layouts.append(self._opened.enter_context(layout))
        with advising(layout.path):
            self._pack = self._opened.enter_context(Pack(self._store.disk, layout.path))
            self._rows.turn_to(self._pack)

    # The next epochs

    def _left_by_a_killed_run(self) -> PackSpec:
        """The first generation; or, where a killed run left some, the first of those."""
        derived = self._store.derived
        left = left_by_others(self._store, self._generation(0))
        begun = [
            epoch
            for epoch, paths in left.items()
            if derived.path("trace", self._generation(epoch).trace_inputs) in paths
        ]
        start = min(begun, default=0)
        for epoch, paths in left.items():
            if epoch < start:  # its trace was removed, and then the run was killed
                for path in paths:
                    discard(path)
        return self._generation(start)

    def _generation(self, epoch: int) -> PackSpec:
        return self._part.generation(self._context, epoch)

    def _prepare_next(self, spec: PackSpec, progress: Progress) -> list[Layout]:
        """A generation, in memory of its own; on the refresh's thread."""
        with ExitStack() as opened, self._two_generations():
            layout = self._sample(spec, self._topology, 1, progress)
            layouts = [opened.enter_context(layout)]
            if self._rows is not None:
                memory, disk = self._part.refresh_bytes, self._part.disk_bytes(self._context)
                trace = Trace(self._store.disk, layout.path)
                with trace:
                    pack = prepare_pack(self._store, spec, trace, memory, disk, progress)
                    layouts.append(pack)
            opened.pop_all()
            return layouts

    def _renew(self, task: Task, meter: Meter) -> None:
        """Before a run that begins with this task: its generation, and the next one on its way."""
        if self._refresh is None or not self.is_own(task):
            return
        wanted = self._generation(task.epoch)
        if not self._covers(task.epoch):
            if self._runs:  # others use what is here: these batches are sampled as they come
                return
            with meter.span("refresh"):
                self._take_next(self._refresh, wanted)
        following = (wanted.first_epoch or 0) + wanted.epochs
        if self._context.epochs is None or following < self._context.epochs:
            self._refresh.start(self._generation(following))

    def _take_next(self, refresh: _Refresh, spec: PackSpec) -> None:
        """Turns to a generation; a drive that is full meanwhile costs speed, not the run."""
        try:
            layouts = refresh.take(spec)
        except (BudgetError, OSError) as error:
            if not is_refusal_to_write(error):
                raise
            self._on.progress.note(
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
        """Lets go of the trace, the pack and the caches."""
        if self._rows is not None:
            self._rows.turn_to(None)
        self._opened.close()
        self._opened, self._layouts = ExitStack(), []
        self._pack = None

    @contextmanager
    def _two_generations(self) -> Iterator[None]:
        """Errors about a disk budget say where it is for two generations."""
        try:
            yield
        except BudgetError as error:
            if self._refresh is None:
                raise
            raise BudgetError(
                f"of disk=, refresh=background gives each of two generations one half: {error}"
            ) from error

    def _advising(self) -> AbstractContextManager[None]:
        return advising(*(layout.path for layout in self._layouts))

    @property
    def alterations(self) -> dict[str, Any]:
        if isinstance(self._spec, SamplesSpec):
            return {"samples": self._spec.digest}
        if self._part.cycle:
            return {"cycle": True, "distinct_epochs": self._spec.epochs}
        return {}

    @property
    def facts(self) -> dict[str, Any]:
        spec, pack, samples = self._spec, self._pack, self._context.samples
        cached, packed, shared = (0, 0, 0) if pack is None else (int(c.sum()) for c in pack.counts)
        return {
            "distinct_epochs": spec.epochs,
            "batches": len(self._trace),
            "cycle": self._part.cycle,
            "samples": None if samples is None else samples.name,
            "refresh": "background" if self._refresh is not None else "off",
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

    def begin(self, tasks: Sequence[Task], _: bool, meter: Meter) -> AheadRun | None:
        if self._failed is not None:
            raise StoreError(
                "diskgnn: the next epochs could not be opened; make the loader again"
            ) from self._failed
        for first in tasks[:1]:
            self._renew(first, meter)
            self._announce(first)
        self._runs += 1
        return _PreparedRun(self, tasks, meter)

    def replay(self, task: Task) -> Replayed | None:
        t = self.position(task)
        if t is None:
            return None
        try:
            found, subgraph = next(self._trace.scan(t, t + 1, what="narrow"))
        except CorruptError as error:
            raise advised(error, *(layout.path for layout in self._layouts)) from error
        imported = self._context.samples is not None
        if imported or (task.epoch, task.batch) != (found.epoch, found.batch):
            # Repeated or imported: the batch that was asked for, around other seeds.
            # Copies: the task stays with the batch, and the record must not.
            task = replace(task, input_ids=found.input_ids.copy(), seeds=found.seeds.copy())
        return Replayed(task, subgraph, t)

    def end(self, last: Task | None) -> None:
        """A run is over; it came to the end of its tasks where there is a last one."""
        self._runs -= 1
        self._used_up |= self._is_last(last)

    def position(self, task: Task) -> int | None:
        """Where the trace has the task's batch; None where it was not prepared."""
        if not self.is_own(task):
            return None
        if self._covers(task.epoch):
            epoch = task.epoch - (self._spec.first_epoch or 0)
            return epoch * len(self._context.seeds) + task.batch
        repeats = self._part.cycle or self._context.samples is not None
        return self._cycled(task) if repeats else None

    def is_own(self, task: Task) -> bool:
        """Whether it is of the schedule that batches are prepared for, not of a sibling's."""
        seeds = self._context.seeds
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
        """The batch of the repeated epoch that comes at this place of the new order."""
        seeds, chosen = self._context.seeds, np.empty(1, np.int64)
        _core.shuffled_seeds(len(seeds), seeds.seed, task.stream, task.epoch, task.batch, chosen)
        return task.epoch % self._spec.epochs * len(seeds) + int(chosen[0])

    def _announce(self, task: Task) -> None:
        """Says, the first time, that an epoch will be read at random."""
        if self._announced or self._refresh is not None:  # which has a line of its own
            return
        if not self.is_own(task) or self.position(task) is not None:
            return
        self._announced = True
        first = self._spec.first_epoch or 0
        prepared = f"{first} to {first + self._spec.epochs - 1}"
        self._on.progress.note(
            f"diskgnn: epoch {task.epoch} was not prepared ({prepared} were): its batches are "
            "sampled and their rows read as they come, which takes longer. A loop that is given up "
            "in its middle uses up its epoch; give epochs= (got "
            f"{self._context.epochs}) for all of them, or refresh=background"
        )

    def _is_last(self, task: Task | None) -> bool:
        """Whether nothing that was prepared comes after it."""
        last_epoch = (self._spec.first_epoch or 0) + self._spec.epochs - 1
        last = (last_epoch, len(self._context.seeds) - 1)
        return task is not None and self.is_own(task) and (task.epoch, task.batch) == last

    def close(self) -> None:
        layouts = self._layouts
        if self._refresh is not None:
            self._refresh.cancel()
        self._release()
        if self._refresh is not None and self._used_up:
            for layout in layouts:
                discard(layout.path)


class _PreparedRun(AheadRun):
    def __init__(self, ahead: PreparedAhead, tasks: Sequence[Task], meter: Meter) -> None:
        self._ahead = ahead
        self._tasks = tasks
        self._meter = meter

    def replay(self, _: int, task: Task) -> Replayed | None:
        found = self._ahead.replay(task)
        if found is None and self._ahead.is_own(task):
            self._meter.unprepared_batches += 1
        return found

    def end(self, *, complete: bool) -> None:
        last = self._tasks[-1] if complete and len(self._tasks) else None
        self._ahead.end(last)

    def cancel(self) -> None:
        """A batch is read in milliseconds."""


class _Refresh:
    """Prepares one generation at a time. Not thread-safe: one thread asks."""

    def __init__(self, prepare: _Prepare) -> None:
        """`prepare` gives open layouts. It is called on a thread, and tells its progress."""
        self._prepare = prepare
        self._spec: PackSpec | None = None
        self._work: Background[list[Layout]] | None = None

    def start(self, spec: PackSpec) -> None:
        """Returns at once. What is under way for other epochs, or done, is given up."""
        if self._work is not None and self._spec == spec:
            return
        for path in self.cancel():  # there is disk for one beside the one that is used
            discard(path)
        self._spec = spec
        self._work = Background(
            lambda stopper: self._prepare(spec, Interruptible(_check_of(stopper))), "refresh"
        )

    def take(self, spec: PackSpec) -> list[Layout]:
        """Waits for the layouts, which are the caller's then; raises what making them raised."""
        self.start(spec)
        assert self._work is not None
        try:
            return self._work.wait()
        finally:
            self._work = None

    def cancel(self) -> list[Path]:
        """Ends what is under way; packing goes on where it was when it is asked for again.

        Gives the layouts that were done, and that stay.
        """
        work, self._work = self._work, None
        layouts = [layout for made in ([] if work is None else work.cancel()) for layout in made]
        for layout in layouts:
            layout.close()
        return [layout.path for layout in layouts]


class _StoppedError(BaseException):
    """Like an interrupt, and unlike an error, it leaves work that can be resumed."""


def _check_of(stopper: Stopper) -> Callable[[], None]:
    def check() -> None:
        if stopper.stopped:
            raise _StoppedError

    return check


def discard(path: Path) -> None:
    """Removes a layout that is used up, unless others use it or have removed it."""
    if path.exists():
        remove(Garbage(path, "used up", 0))


def left_by_others(store: GraphStore, spec: PackSpec) -> dict[int, list[Path]]:
    """Generations of the same run that are on disk, by their first epoch: traces, then packs."""
    found: dict[int, list[Path]] = {}
    for kind in ("trace", "pack"):
        for path, inputs in store.derived.records(kind):
            trace = inputs if kind == "trace" else inputs.get("trace", {})
            if trace.get("first_epoch") is not None and _any_epochs(trace) == _any_epochs(
                spec.trace_inputs
            ):
                found.setdefault(trace["first_epoch"], []).append(path)
    return found


def _any_epochs(inputs: dict[str, object]) -> dict[str, object]:
    return {name: value for name, value in inputs.items() if name not in ("first_epoch", "epochs")}
