"""Windows: batches sampled some at a time, into scratch, and what is decided for their rows.

They are cut from a line of tasks. Where a run has all of an epoch and the number of epochs is
known, that is the stream of all epochs: windows cross their ends, and outlive runs. Other runs
(validation, a part of an epoch) have lines of their own.

The trace of a window depends on its tasks alone, and stays good whatever comes in between. A script
depends on what the cache holds when it begins: where another run comes between, or a loop is left,
the rest of the window gets a new one, from what is really there.
"""

from __future__ import annotations

import shutil
import threading
import weakref
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, nullcontext, suppress
from dataclasses import dataclass
from itertools import count, repeat
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np

from outcrop.ahead.ahead import Ahead, AheadRun, Replayed
from outcrop.ahead.background import Background, Stopper
from outcrop.ahead.sampling import SamplingAhead, SamplingByBlocks, WindowSampling
from outcrop.disk import PAGE_BYTES
from outcrop.errors import BudgetError
from outcrop.layout.trace import TraceReader, TraceWriter
from outcrop.memory.charges import Charge, Phase
from outcrop.memory.context import Context
from outcrop.observe.meter import Meter
from outcrop.options import format_size, size_of_at_least
from outcrop.rows.packed_window import PackedWindow
from outcrop.rows.slots import PlannedRows
from outcrop.rows.source import (
    Admission,
    Resources,
    RowSource,
    Script,
    ScriptedPart,
    ScriptedRows,
    row_shape,
)
from outcrop.sample.history import Gate
from outcrop.sample.sampler import Subgraph, Topology
from outcrop.sample.seeds import SeedOrder, Task
from outcrop.store.arrays import WRITE_BUFFER_BYTES
from outcrop.store.derived import tree_bytes
from outcrop.topology.blocks import BlockTopology, hyperbatch_bytes
from outcrop.topology.parts import CachedLists, CachedTopology, TopologyPart, lists_scratch_bytes

# The first batch should not wait for many; the following windows grow.
FIRST_BATCHES = 8
_GROWTH = 4
# The share of the drive's free space to use where disk= says nothing: others live there, too.
_DISK_SHARE = 1 / 4
GRAPH_BLOCKS = "graph blocks"
# Of the room on disk, for windows whose batches may take more than those before.
_SAFE_SHARE = 7 / 8
# What waits while a window is sampled by blocks, and has no room in memory.
_PICKS = "picks.bin"


@dataclass(frozen=True)
class ByBlocks:
    """All batches of a window are sampled at once, from a topology of blocks."""

    bytes: int
    """For what was drawn for them, and waits; the rest of it is in scratch meanwhile."""

    def ahead_bytes(self, context: Context, batches: int) -> int:
        """What sampling so many takes, and gives back."""
        return hyperbatch_bytes(context, batches, self.bytes)

    def written_bytes(self, context: Context) -> int:
        """What waits of each batch, at most: picks with the positions of their edges, and nodes."""
        return 16 * (context.batch.edges + context.batch.nodes)


@dataclass(frozen=True)
class Window:
    """How far ahead, and when that is made."""

    decides_reuse: ClassVar[bool] = True
    batches: int
    """Length of the longest window."""
    when: Literal["beside", "between"]
    """While the window before is used, in memory of its own; or while the loop waits, in memory
    that it gives up meanwhile."""
    topology: TopologyPart
    """What samplers draw from."""
    rows: ScriptedPart | None
    """What is decided for a window; None: there are no rows."""
    first_batches: int = FIRST_BATCHES
    """Length of the first window; the others grow up to the longest."""
    samplers: int = 2
    """So that one computes while the other one's entries are read."""
    by_blocks: ByBlocks | None = None
    """How its batches are sampled together; None: one after the other, by `samplers`."""
    disk_bytes: int | None = None
    """What windows may take on disk, where that bounds them: to `sure_batches` at first, and then
    to as many as those that were made show."""
    sure_batches: int = 0
    """Between main loops: of one that has all of the disk."""

    @property
    def hands_over(self) -> bool:
        """Whether neighbour lists and rows are in the same memory, in turn."""
        return isinstance(self.topology, CachedLists) and self.topology.region is not None

    @property
    def _making_region(self) -> str | None:
        """The name of memory that has rows in the main loop; None: windows have other memory."""
        return None if self.rows is None else self.rows.making_region

    def charges(self, context: Context) -> Sequence[Charge]:
        ahead, lent = self.ahead_bytes(context), self._lent_bytes(context)
        region = self._making_region
        when = Phase.RUN if region is None else Phase.AHEAD
        return [
            Charge("sampling ahead", ahead - lent, when, region),
            Charge("sampling ahead, in memory of batches", lent, Phase.AHEAD),
            *self.beside(context),
        ]

    def beside(self, context: Context) -> Sequence[Charge]:
        """What is there whatever making a window takes."""
        kept = lists_scratch_bytes(context) if isinstance(self.topology, CachedLists) else 0
        return [
            Charge("scratch of neighbour lists", self.samplers * kept),
            # In use, and ahead. Not there while a window is made between loops; the caches could
            # have that memory, which was not measured yet.
            Charge("records of batches", 3 * context.record_bytes()),
        ]

    def ahead_bytes(self, context: Context) -> int:
        """What sampling and planning a window takes, and gives back."""
        writing = 2 * WRITE_BUFFER_BYTES + context.record_bytes() * 5 // 4
        planning = 0
        if self.rows is not None:
            planning = self.rows.planning_bytes(context, self.batches)
        sampling = self._sampling_bytes(context) + writing
        # One may be decided for while the next is sampled; by blocks, and with rows in it, a window
        # is first sampled.
        in_turn = self.by_blocks is not None or isinstance(self.rows, PackedWindow)
        return max(sampling, planning) if in_turn else sampling + planning

    def _sampling_bytes(self, context: Context) -> int:
        if self.by_blocks is not None:
            return self.by_blocks.ahead_bytes(context, self.batches)
        kept = lists_scratch_bytes(context) if isinstance(self.topology, CachedLists) else 0
        return self.samplers * (self.topology.sampler_bytes(context) - kept)

    def _lent_bytes(self, context: Context) -> int:
        """What part of `ahead_bytes` waiting batches lend: safely less than one of them has."""
        if self.when == "beside" or self._making_region is not None:
            return 0
        shape = row_shape(context) if self.rows is None else self.rows.shape(context)
        return min(self.ahead_bytes(context), context.batch_bytes(shape) * 3 // 4)

    def batch_disk_bytes(self, context: Context) -> int:
        """A record of the trace, and of the script, and what waits while it is sampled."""
        script = 0 if self.rows is None else self.rows.script_bytes(context)
        waiting = 0 if self.by_blocks is None else self.by_blocks.written_bytes(context)
        return context.record_bytes() + script + waiting + 2 * PAGE_BYTES

    def most_on_disk(self, context: Context, given: int | None, name: str) -> int:
        """Batches of the longest window that fits there as often as there are some at a time,
        beside what the topology keeps.

        BudgetError where that is less than what is `given`; `name`: of windows, for its message.
        """
        each, room = self.at_a_time * self.batch_disk_bytes(context), context.disk.given_bytes
        least = self._kept_on_disk(context) + each * (given or 1)
        if room is not None and room < least:
            count = {2: "two", 3: "three"}[self.at_a_time]
            raise BudgetError(
                f"disk={format_size(room)} is too little: {count} {name} of {given or 1} "
                f"{'batches' if given else 'batch'} need {size_of_at_least(least)}"
            )
        return max(self.room_on_disk(context) // each, 1)

    def room_on_disk(self, context: Context) -> int:
        """What windows may take there."""
        room = context.disk.given_bytes
        if room is None:
            room = int(context.disk.free_bytes * _DISK_SHARE)
        return max(room - self._kept_on_disk(context), 0)

    def _kept_on_disk(self, context: Context) -> int:
        return self.topology.written_bytes(context) if self.by_blocks is not None else 0

    @property
    def at_a_time(self) -> int:
        """Windows on disk: one is made while one is used, or another run comes between; where rows
        are in them, both."""
        return 3 if self.when == "beside" and isinstance(self.rows, PackedWindow) else 2

    def written_bytes(self, context: Context) -> int:
        """As many windows as there are at a time."""
        each = self.at_a_time * self.batch_disk_bytes(context)
        most = min(self.batches, context.stream_batches) * each
        return most if self.disk_bytes is None else max(min(most, self.disk_bytes), each)

    def open(
        self, on: Resources, topology: Topology, rows: RowSource | None, lent_bytes: int
    ) -> Ahead:
        scripted: RowSource | None = rows
        while scripted is not None and not isinstance(scripted, ScriptedRows):
            scripted = scripted.below
        return Windows(self, on, topology, scripted, lent_bytes)


@dataclass
class _Cut:
    """A window: batches [first, last) of its line, sampled, and scripted once it is to be used."""

    number: int
    first: int
    last: int
    folder: Path
    trace: TraceReader
    script: Script | None = None
    scripted: int = 0
    """Up to which batch of the line it has a script."""
    in_parts: bool = False
    """Whether its script ends where there was no room to decide for more."""

    def void(self) -> None:
        if self.script is not None:
            self.script.close()
            self.script = None
        self.scripted, self.in_parts = 0, False

    def remove(self) -> None:
        self.void()
        self.trace.close()
        shutil.rmtree(self.folder, ignore_errors=True)


class _Epochs(Sequence[Task]):
    """The tasks of all epochs, one after the other."""

    def __init__(self, seeds: SeedOrder, epochs: int, *, counted: bool) -> None:
        """`counted`: as SeedOrder.task has it."""
        self._seeds = seeds
        self._epochs = epochs
        self._counted = counted

    def __len__(self) -> int:
        return self._epochs * len(self._seeds)

    def __getitem__(self, t: Any) -> Any:
        return self._seeds.task(*divmod(t, len(self._seeds)), counted=self._counted)

    def position(self, task: Task) -> int | None:
        """Where it is; None: it is of other seeds."""
        seeds = self._seeds
        if task.stream != seeds.stream or task.epoch >= self._epochs or task.batch >= len(seeds):
            return None
        if (task.iteration is not None) != self._counted:
            return None
        own = seeds.task(task.epoch, task.batch)
        alike = np.array_equal(own.seeds, task.seeds)
        if not alike or not np.array_equal(own.input_ids, task.input_ids):
            return None
        return task.epoch * len(seeds) + task.batch


class Windows(Ahead):
    """Makes windows and keeps those of the stream. One run has them at a time."""

    def __init__(
        self,
        part: Window,
        on: Resources,
        topology: Topology,
        rows: ScriptedRows | None,
        lent_bytes: int,
    ) -> None:
        self.part, self.on, self.topology, self.rows = part, on, topology, rows
        self.lent_bytes = lent_bytes
        self.batches_on_disk = part.batches if part.disk_bytes is None else part.sure_batches
        """How many may be in a window, for what they take there."""
        self._beside_others = part.when == "beside"
        """Whether windows leave room there for those of other lines."""
        counted = on.history is not None
        self._epochs = _Epochs(on.context.seeds, on.context.epochs or 0, counted=counted)
        self._numbers = count()
        self._scratch = on.store.derived.scratch()
        # Where nobody closes it; at the end of the program the runner does.
        weakref.finalize(self, self._scratch.abandon).atexit = False
        # One run has the windows; others that are open meanwhile go without.
        self._lease = threading.Lock()
        # For the run that has the lease
        self._stream: _Supply | None = None
        self.visited = False
        """Whether other runs come between epochs: then nothing is decided beyond the end of an
        epoch, since it would be in vain."""
        self._at: int | None = None
        """Where in the stream a run ended: the cache holds what the script says for there."""
        self._trained: tuple[int, int] | None = None
        """The same, whatever came between, and of which embeddings."""

    def begin(self, tasks: Sequence[Task], whole: bool, meter: Meter) -> AheadRun | None:
        if not len(tasks) or not self._lease.acquire(blocking=False):
            return None
        try:
            first = self._epochs.position(tasks[0]) if whole else None
            if self._at is not None and self._at != first:
                self._leave_stream()
            if first is None:
                self._leave_disk()
                self._restart(tasks[0])
                return _WindowRun(self, _Supply(self, tasks), 0, len(tasks), meter)
            if self._stream is None or not self._stream.covers(first) or self._is_astray(first):
                self._drop_stream()
                self._restart(tasks[0])
                self._stream = _Supply(self, self._epochs, first, len(self.on.context.seeds))
            return _WindowRun(self, self._stream, first, first + len(tasks), meter)
        except BaseException:
            self._lease.release()
            raise

    def _restart(self, task: Task) -> None:
        """A line begins: what it uses again depends on what is there."""
        if task.iteration is not None:
            assert self.on.history is not None
            self.on.history.restart(task.iteration)

    def _is_astray(self, first: int) -> bool:
        """Whether the stream counts on other embeddings than are there before batch `first`."""
        history = self.on.history
        return history is not None and self._trained != (first, history.restored)

    @property
    def lasting(self) -> bool:
        """Whether scripts stay good whatever comes between."""
        return self.rows is None or self.rows.lasting

    def _leave_stream(self) -> None:
        """Another run comes between: the cache holds what the script says for there."""
        assert self._stream is not None and self._at is not None
        if self.lasting:
            with suppress(Exception):  # else it is made again, and what is wrong said then
                self._stream.finish_making()  # it will be wanted, and there is memory for one
            self._at = None
            return
        contents = self._stream.contents(self._at)
        self._stream.void()
        self._at, self.visited = None, True
        if self.rows is not None:
            self.rows.restore(contents)

    def _leave_disk(self) -> None:
        """A run of another line comes between: the window that has all of the disk goes, and from
        now on there is room for both."""
        if self.part.disk_bytes is None or self._beside_others or self._stream is None:
            return
        self._drop_stream()
        self._beside_others = True
        self.batches_on_disk = self._sure_batches

    @property
    def _sure_batches(self) -> int:
        part = self.part
        halved = part.when == "between" and self._beside_others
        return max(part.sure_batches // (part.at_a_time if halved else 1), 1)

    def learn_from(self, cut: _Cut) -> None:
        """A window shows what the next ones will take on disk."""
        part = self.part
        if part.disk_bytes is not None:
            at_a_time = part.at_a_time if self._beside_others else 1
            each = tree_bytes(cut.folder) * at_a_time / (cut.last - cut.first)
            fitting = int(part.disk_bytes * _SAFE_SHARE / max(each, 1))
            self.batches_on_disk = max(fitting, self._sure_batches)

    def may_make_next(self, supply: _Supply) -> bool:
        """Beside the windows of the stream there is disk for one of another line."""
        return not self.lasting or supply is self._stream or self._stream is None

    def _drop_stream(self) -> None:
        if self._stream is not None:
            self._stream.close()
        self._stream, self._at = None, None

    def end(self, supply: _Supply, t: int, *, complete: bool) -> None:
        """A run that had the lease came to batch t of its line."""
        history = self.on.history
        try:
            if supply is self._stream and history is not None:
                self._trained = (t, history.restored)
            if not complete and self.lasting:
                supply.stop_making()
            elif not complete:
                supply.void()
                if self.rows is not None:
                    self.rows.restore(None)  # changes were planned that nobody carried out
            if supply is not self._stream:
                supply.close()
            elif t == len(supply.line) if complete else history is not None:
                # In the middle: what was sampled counts on batches that nobody trained on.
                self._drop_stream()
            else:
                self._at = t if complete else None
        finally:
            self._lease.release()

    # What windows are made of

    def sample(
        self, line: Sequence[Task], first: int, last: int, meter: Meter, stop: Stopper
    ) -> _Cut:
        """A window, without a script."""
        store, context = self.on.store, self.on.context
        number = next(self._numbers)
        folder = self._scratch.path / str(number)
        gate = self._gate(line[first])
        try:
            with (
                nullcontext() if gate is None else gate.drafted(),
                TraceWriter(
                    store.disk,
                    folder,
                    num_nodes=store.num_nodes,
                    num_edges=context.edge_id_limit,
                    identity={},
                    edge_ids=context.sampling.edge_ids,
                    reuse=gate is not None,
                ) as writer,
            ):
                sampling = self._sampling(line, range(first, last), writer, folder, gate)
                before = self._graph_bytes
                with stop.calling(sampling.cancel), closing(sampling.run(meter)) as steps:
                    for _ in steps:
                        stop()
                meter.read(GRAPH_BLOCKS, self._graph_bytes - before)
                return _Cut(number, first, last, folder, writer.seal())
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise

    @property
    def _graph_bytes(self) -> int:
        """What was read of blocks so far."""
        return self.topology.read_bytes if isinstance(self.topology, BlockTopology) else 0

    def _gate(self, task: Task) -> Gate | None:
        """Of a window that begins with this task."""
        if task.iteration is None:
            return None
        assert self.on.history is not None
        return Gate(self.on.history, task.iteration)

    def _sampling(
        self,
        line: Sequence[Task],
        numbers: range,
        writer: TraceWriter,
        folder: Path,
        gate: Gate | None,
    ) -> WindowSampling:
        sampling, seed = self.on.context.sampling, self.on.context.seeds.seed
        by_blocks = self.part.by_blocks
        if by_blocks is not None:
            assert isinstance(self.topology, BlockTopology)
            sampler = self.topology.hyperbatch_sampler(
                sampling, seed, by_blocks.bytes, folder / _PICKS, gate
            )
            return SamplingByBlocks([line[t] for t in numbers], sampler, writer)
        samplers = [self.topology.sampler(sampling, seed, gate) for _ in range(self.part.samplers)]
        return SamplingAhead((line[t] for t in numbers), samplers, writer)

    def write_script(
        self,
        cut: _Cut,
        first: int,
        last: int,
        ends: Collection[int],
        meter: Meter,
        stop: Stopper,
    ) -> None:
        """Writes what is decided for batches [first, last) of its line, or for some of them."""
        cut.void()
        cut.scripted = last
        if self.rows is not None:
            with meter.span("inspect", cut.number):
                cut.script = self.rows.script(
                    cut.trace,
                    cut.folder,
                    first - cut.first,
                    last - cut.first,
                    [end - cut.first for end in ends],
                    stop,
                )
            for tier, size in cut.script.read_bytes.items():
                meter.read(tier, size)
            cut.scripted = first + cut.script.batches
            cut.in_parts = cut.scripted < last

    @property
    def facts(self) -> dict[str, Any]:
        part = self.part
        return {
            "window_batches": part.batches,
            "first_window_batches": min(part.first_batches, part.batches),
            "made": "handover" if part.hands_over else part.when,
        }

    def close(self) -> None:
        self._drop_stream()
        self._scratch.abandon()


class _Supply:
    """The windows of one line of tasks, in their order; the first of them is in use."""

    def __init__(
        self, windows: Windows, line: Sequence[Task], first: int = 0, epoch_batches: int = 0
    ) -> None:
        """`epoch_batches`: batches of each epoch, where the line goes on after one."""
        self.line = line
        self._windows = windows
        self._epoch_batches = epoch_batches
        self._cuts: deque[_Cut] = deque()
        self._next = first
        self._length = min(windows.part.first_batches, windows.part.batches)
        self._most = windows.part.batches
        """Batches for which there is room to decide, as far as is known."""
        self._making: Background[_Cut] | None = None
        self._meter = Meter()  # of what is being made

    @property
    def at_the_first(self) -> bool:
        """Whether nothing was sampled yet, and later windows will be longer."""
        return not self._cuts and self._length < self._windows.part.batches

    def covers(self, t: int) -> bool:
        """Whether batch t is in a window that exists, or begins the next one."""
        first = self._cuts[0].first if self._cuts else self._next
        return first <= t <= self._next

    def in_use(self, t: int) -> _Cut | None:
        """The first window, where it has batch t and a script for it."""
        cut = self._cuts[0] if self._cuts else None
        return cut if cut is not None and cut.first <= t < cut.scripted else None

    def find(self, t: int) -> _Cut | None:
        return next((cut for cut in self._cuts if cut.first <= t < cut.last), None)

    def ends_with(self, cut: _Cut) -> bool:
        """Whether the window after it is yet to be sampled."""
        return cut.last == self._next < len(self.line)

    def retire(self, t: int) -> None:
        """Removes the windows before batch t."""
        while self._cuts and self._cuts[0].last <= t:
            self._cuts.popleft().remove()

    def contents(self, t: int) -> Any:
        """Who is in the cache before batch t, the first of an epoch; None: nobody knows."""
        cut = self.find(t - 1)
        if cut is None or cut.script is None:
            return None
        return cut.script.contents(t - 1 - cut.first)

    def sample(self, meter: Meter, stop: Stopper) -> _Cut | None:
        """The next window; None: the line ends."""
        length = min(self._length, self._most, self._windows.batches_on_disk)
        last = min(self._next + length, len(self.line))
        if last == self._next:
            return None
        cut = self._windows.sample(self.line, self._next, last, meter, stop)
        self._cuts.append(cut)
        self._next = last
        self._length = min(self._length * _GROWTH, self._windows.part.batches)
        return cut

    def script(self, cut: _Cut, t: int, meter: Meter, stop: Stopper) -> None:
        """From batch t on; the contents are kept at ends of epochs, if the line goes on there."""
        last, ends = cut.last, range(0)
        if self._epoch_batches:
            end = t + -(t + 1) % self._epoch_batches
            last = min(last, end + 1) if self._windows.visited else last
            ends = range(end, last, self._epoch_batches)
        self._windows.write_script(cut, t, last, ends, meter, stop)

    def learn_from(self, cut: _Cut) -> None:
        """Where there was no room to decide for all of a window, those to come are shorter.

        By an eighth more than that: their nodes are others.
        """
        self._windows.learn_from(cut)
        if cut.in_parts and cut.script is not None:
            decided = cut.script.batches
            self._most = min(self._most, max(decided - decided // 8, 1))

    def prepared(self, t: int, meter: Meter, stop: Stopper) -> _Cut:
        """The window of batch t, with a script from there on."""
        cut = self.find(t) or self.sample(meter, stop)
        assert cut is not None, "the line ends before this batch"
        if not t < cut.scripted:
            self.script(cut, t, meter, stop)
        return cut

    # Beside the loop

    def make_next(self) -> None:
        """Begins the window after the one in use, once that is all decided, if there is one."""
        t = self._cuts[0].last
        decided = self._cuts[0].scripted == t
        if self._making is None and decided and t < len(self.line):
            self._making = Background(lambda stop: self.prepared(t, self._meter, stop), "window")

    def finish_making(
        self, closed: Callable[[], bool] = lambda: False, meter: Meter | None = None
    ) -> None:
        """Waits for what is being made. `meter`: of the run that wants it; None: the next one."""
        making, self._making = self._making, None
        try:
            if making is not None:
                making.wait(closed)
        except BaseException:
            if making is not None:
                making.cancel()
            raise
        finally:
            if meter is not None:
                meter.absorb(self._meter)
                self._meter = Meter()

    def stop_making(self) -> None:
        """What is being made is not wanted any more."""
        if self._making is not None:
            self._making.cancel()
            self._making = None

    def void(self) -> None:
        """Traces stay; scripts, and what is being made, do not."""
        self.stop_making()
        for cut in self._cuts:
            cut.void()

    def close(self) -> None:
        self.void()
        while self._cuts:
            self._cuts.pop().remove()


def _replay(cut: _Cut, first: int) -> Iterator[tuple[Subgraph, Any]]:
    """Batches of a window from one on, in memory that is used again: fresh pages cost as much as
    reading a batch into them."""
    records: Iterator[Any] = repeat(None) if cut.script is None else cut.script.scan(first)
    for _, subgraph in cut.trace.scan(first, ahead_bytes=0, what="narrow"):
        yield subgraph, next(records)
        del subgraph


class _WindowRun(AheadRun):
    """A run over a part of a line."""

    enters = True

    def __init__(
        self, windows: Windows, supply: _Supply, first: int, last: int, meter: Meter
    ) -> None:
        self._windows = windows
        self._supply = supply
        self._first, self._last = first, last
        self._meter = meter
        self._stop = Stopper()
        self._current: _Cut | None = None
        # For the thread that replays, one batch after the other
        self._replaying: Iterator[tuple[Subgraph, Any]] | None = None
        self._replayed = 0

    def enter(self, number: int, admission: Admission) -> None:
        t = self._first + number
        if self._current is not None and t < self._current.scripted:
            return
        admission.drain()
        self._stop()
        self._replaying = None
        self._current = self._supply.in_use(t)
        if self._current is None:
            made = self._beside if self._is_beside else self._between
            self._current = made(t, admission)
            self._supply.learn_from(self._current)
        self._switch(self._current)
        if self._is_beside and self._windows.may_make_next(self._supply):
            self._supply.make_next()

    @property
    def _is_beside(self) -> bool:
        return self._windows.part.when == "beside"

    def _beside(self, t: int, admission: Admission) -> _Cut:
        self._supply.finish_making(admission.closed, self._meter)
        self._supply.retire(t)
        return self._supply.prepared(t, self._meter, self._stop)

    def _between(self, t: int, admission: Admission) -> _Cut:
        """In memory that batches give up meanwhile."""
        self._supply.retire(t)
        maker, size = self._windows.on.maker, self._windows.lent_bytes
        lent = maker.lend(size, admission.closed, admission.awaited) if size else None
        try:
            if self._windows.part.hands_over:
                return self._handed_over(t)
            if self._windows.rows is not None:
                self._windows.rows.make_room()
            return self._supply.prepared(t, self._meter, self._stop)
        finally:
            del lent

    def _handed_over(self, t: int) -> _Cut:
        """Scripted while the next one is sampled; then the memory is free for rows."""
        windows, supply, meter, stop = self._windows, self._supply, self._meter, self._stop
        assert isinstance(windows.topology, CachedTopology)
        assert isinstance(windows.rows, PlannedRows)
        topology, rows = windows.topology, windows.rows
        alone, cut = supply.at_the_first, supply.find(t)
        if not topology.lists.loaded and (cut is None or supply.ends_with(cut)):
            with meter.span("switch"):
                topology.load(rows.shared_memory)
        if cut is None:
            cut = supply.sample(meter, stop)
            assert cut is not None, "the line ends before this batch"
        with ThreadPoolExecutor(1, "outcrop-inspect") as planner:
            planning = planner.submit(supply.script, cut, t, meter, stop)
            if not alone and supply.ends_with(cut):
                supply.sample(meter, stop)
            planning.result()
        topology.unload()
        return cut

    def _switch(self, cut: _Cut) -> None:
        if self._windows.rows is not None and cut.script is not None and cut.script.fills:
            with self._meter.span("switch", cut.number):
                self._windows.rows.switch(cut.script)

    def replay(self, number: int, task: Task) -> Replayed | None:
        cut = self._current  # no other comes while batches of this one are under way
        assert cut is not None
        t = self._first + number - cut.first
        if self._replaying is None or self._replayed != t:
            self._replaying, self._replayed = _replay(cut, t), t
        self._replayed += 1
        return Replayed(task, *next(self._replaying))

    def end(self, *, complete: bool) -> None:
        self._replaying = None
        self._stop.stop()
        self._windows.end(self._supply, self._last, complete=complete)

    def cancel(self) -> None:
        self._stop.stop()
