"""Policies: the batches of a window -> who is in which slot of the cache, batch by batch.

Who stays is decided in C++ (cpp/cache), which knows ids and slots; here is what it is told and what
is kept of its answers: a script on disk.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from outcrop import _core
from outcrop.disk import Disk
from outcrop.layout.trace import TraceReader
from outcrop.rows.spill import Spill
from outcrop.sample.seeds import Ids

_CHANGES = (np.int32, np.uint32, np.uint32)
# Graphs whose tables of 4 bytes per node take no more than this have them: they are the fastest.
_SMALL_TABLE_BYTES = _core.small_table_bytes()


def nothing() -> None:
    """What is called between batches where nobody wants to stop."""


class Changes(NamedTuple):
    """What one batch finds in the cache, and what it leaves there."""

    slots: NDArray[np.int32]
    """Where each row of the batch is; -1: nowhere, it has to be read."""
    in_positions: NDArray[np.uint32]
    """Rows of the batch that enter the cache once all of it has been gathered ..."""
    in_slots: NDArray[np.uint32]
    """... and where; some of these slots the batch itself has read before."""


@dataclass
class Plan(AbstractContextManager["Plan"]):
    """The changes of a superbatch from some batch on, on disk."""

    first: int
    """The batch that the plan begins with."""
    fill_nodes: Ids
    """Rows that are read before the first batch, ascending, and their slots."""
    fill_slots: Ids
    changes: Spill
    """Record i is of batch first + i."""
    files: ExitStack
    """Closed with the plan."""
    kept: tuple[int, ...] = ()
    """Batches after which the contents were kept ..."""
    kept_contents: Spill | None = None
    """... and these; None where none were."""
    always: Ids | None = None
    """The contents, where they never change."""

    @property
    def batches(self) -> int:
        """How many are planned."""
        return len(self.changes)

    @property
    def fills(self) -> bool:
        """Whether rows are read before the first batch."""
        return len(self.fill_nodes) > 0

    @property
    def read_bytes(self) -> dict[str, int]:
        """Nothing is read before it is carried out."""
        return {}

    def take_fill(self) -> tuple[Ids, Ids]:
        """fill_nodes and fill_slots, which are empty from then on: they are large."""
        taken = self.fill_nodes, self.fill_slots
        self.fill_nodes = self.fill_slots = np.empty(0, np.int64)
        return taken

    def scan(self, first: int | None = None) -> Iterator[Changes]:
        """The changes of batch `first` and of all that follow; without it, of all."""
        begin = 0 if first is None else self._number(first)
        for arrays in self.changes.scan(range(begin, self.batches)):
            yield Changes(*arrays)
            del arrays

    def contents(self, t: int) -> Ids | None:
        """What is in each slot after batch t, -1 for nothing; None where that was not kept."""
        if self.kept_contents is None or t not in self.kept:
            return self.always
        contents: Ids = self.kept_contents.read(self.kept.index(t))[0]
        return contents

    def _number(self, t: int) -> int:
        """The record of a batch, or the place after the last one."""
        if not 0 <= t - self.first <= self.batches:
            planned = f"[{self.first}, {self.first + self.batches})"
            raise IndexError(f"the batches {planned} are planned (got {t})")
        return t - self.first

    def close(self) -> None:
        self.files.close()

    def __exit__(self, *_: object) -> None:
        self.close()


class _Draft(AbstractContextManager["_Draft"]):
    """A plan in the making. What is not finished is removed."""

    def __init__(
        self, disk: Disk, folder: Path, first: int, last: int, ends: Collection[int]
    ) -> None:
        self.first, self.last = first, last
        self._disk = disk
        self._folder = folder
        self._ends = frozenset(ends)
        self._files = ExitStack()
        self._changes = self._files.enter_context(self.spill("changes", _CHANGES))
        self._contents: Spill | None = None
        self._kept: list[int] = []

    def spill(self, name: str, dtypes: Sequence[Any]) -> Spill:
        return Spill(self._disk, self._folder / name, dtypes)

    def append(self, changes: Changes, contents: Ids | None = None) -> None:
        """`contents`: after these changes; unless they never change."""
        t = self.first + len(self._changes)
        self._changes.append(*changes)
        if contents is not None and t in self._ends:
            self._keep(t, contents)

    def _keep(self, t: int, contents: Ids) -> None:
        if self._contents is None:
            self._contents = self._files.enter_context(self.spill("contents", [np.int64]))
        self._contents.append(contents)
        self._kept.append(t)

    def finish(self, fill_nodes: Ids, fill_slots: Ids, always: Ids | None = None) -> Plan:
        """`always`: the contents that never change."""
        self._changes.seal()
        if self._contents is not None:
            self._contents.seal()
        files = self._files.pop_all()
        return Plan(
            self.first,
            fill_nodes,
            fill_slots,
            self._changes,
            files,
            kept=tuple(self._kept),
            kept_contents=self._contents,
            always=always,
        )

    def __exit__(self, *_: object) -> None:
        self._files.close()


class Policy(ABC):
    """Decides who is in the cache. Not thread-safe."""

    slot_bytes: ClassVar[int]
    """Memory of the policy itself, for each slot."""

    def __init__(self, *, keeps: bool) -> None:
        """`keeps`: whether the slots keep their rows from one superbatch to the next."""
        self._keeps = keeps

    def plan(
        self,
        trace: TraceReader,
        disk: Disk,
        folder: Path,
        *,
        first: int = 0,
        last: int | None = None,
        ends: Collection[int] = (),
        stop: Callable[[], None] = nothing,
    ) -> Plan:
        """Plans the batches [first, last), or all from `first` on, as if there were no others.

        Where the policy has no room for so many, fewer: as many as it has room for, one at least.
        `folder`: for this plan's files. `ends`: batches of the trace; after each of them that is
        planned the contents are kept, and from the first on 2 MiB more are held while planning.
        `stop`: called for every batch of every pass, and may raise. Where planning ends with an
        error, no files are left, and the cache counts as empty until it is restored.
        """
        last = len(trace) if last is None else last
        if not 0 <= first <= last <= len(trace):
            raise IndexError(
                f"a plan is of batches within 0 to {len(trace)} (got {first} to {last})"
            )
        if any(not 0 <= t < len(trace) for t in ends):
            raise IndexError(f"contents are kept after batches below {len(trace)} (got {ends})")
        try:
            with _Draft(disk, folder, first, last, ends) as draft:
                return self._plan(trace, draft, stop)
        except BaseException:  # nobody will carry out what was planned so far
            self.clear()
            raise

    @abstractmethod
    def _plan(self, trace: TraceReader, draft: _Draft, stop: Callable[[], None]) -> Plan: ...

    @abstractmethod
    def clear(self) -> None:
        """The cache is empty."""

    def restore(self, contents: Ids | None) -> None:
        """The cache really holds these, as `Plan.contents` gives them; None: it is empty.

        Where nothing is kept, a superbatch begins with an empty cache all the same.
        """
        if contents is None:
            self.clear()
        else:
            self._restore(contents)

    @abstractmethod
    def _restore(self, contents: Ids) -> None: ...


class BeladyTables(NamedTuple):
    """What Belady plans a superbatch with, beside what it keeps per slot."""

    touched: bool
    """Whether its nodes are marked first, in one more pass, and tables are of those alone."""
    bytes: int
    """What tables take at a time, at most."""

    @staticmethod
    def of(num_nodes: int, slots: int, accesses: int, most_touched: int) -> BeladyTables:
        """The smaller tables, unless the graph is small.

        `accesses`: nodes of all batches together. `most_touched`: different ones that have room
        where they are marked. More of either, or more slots, never take less.
        """
        # Two tables, of next uses and then of slots: for any node, or hashed.
        by_node = max(
            _core.node_table_bytes(num_nodes, min(accesses, num_nodes)),
            _core.node_table_bytes(num_nodes, min(slots, num_nodes)),
        )
        # A bit and a third per node of the graph, and then 4 bytes per touched one, in either pass.
        marked = _core.touched_table_bytes(num_nodes, min(accesses, num_nodes, most_touched))
        touched = 4 * num_nodes > _SMALL_TABLE_BYTES and marked < by_node
        return BeladyTables(touched, marked if touched else by_node)


class Belady(Policy):
    """The rows whose next use is nearest: no policy reads less within a superbatch."""

    slot_bytes = _core.Belady.slot_bytes

    def __init__(
        self, num_nodes: int, slots: int, *, keeps: bool = True, most_touched: int | None = None
    ) -> None:
        """Where it keeps nothing, a superbatch begins with the rows that are used first (Ginex).

        `most_touched`: see `BeladyTables`; a plan ends before the batch that might have more, and
        has one batch in any case. None: all nodes have room.
        """
        super().__init__(keeps=keeps)
        self._num_nodes, self._slots = num_nodes, slots
        self._most_touched = num_nodes if most_touched is None else most_touched
        self._core = _core.Belady(num_nodes, slots, goes_on=keeps)

    def _plan(self, trace: TraceReader, draft: _Draft, stop: Callable[[], None]) -> Plan:
        core = self._core
        if not self._keeps:
            core.clear()
        draft.last = self._mark(trace, draft, stop)
        first, end = draft.first, draft.last
        sizes, last = trace.sizes[0][first:end], end - first - 1
        core.begin(len(sizes), min(int(sizes.sum()), self._num_nodes))
        # Used by one batch after the other: fresh memory costs as much as a lookup.
        room = np.empty(int(sizes.max(initial=0)), np.uint32)
        with draft.spill("next_uses", [np.uint32]) as uses:
            backwards = trace.scan(first, end, what="nodes", backwards=True, ahead_bytes=0)
            for back, nodes in enumerate(backwards):
                stop()
                next_uses = room[: len(nodes)]
                core.look_back(last - back, nodes, next_uses)
                uses.append(next_uses)
            uses.seal()
            core.turn_around()
            fill = self._fill(trace, draft, stop)
            forwards = trace.scan(first, end, what="nodes", ahead_bytes=0)
            with closing(uses.scan(range(last, -1, -1))) as following:
                for t, (nodes, (next_uses,)) in enumerate(zip(forwards, following, strict=True)):
                    stop()
                    slots = room[: len(nodes)].view(np.int32)
                    core.step(t, nodes, next_uses, slots)
                    draft.append(Changes(slots, core.in_positions, core.in_slots), core.nodes)
        core.end()
        return draft.finish(*fill)

    def _mark(self, trace: TraceReader, draft: _Draft, stop: Callable[[], None]) -> int:
        """The batch before which the plan ends; the nodes of all others are marked, if need be."""
        sizes = trace.sizes[0][draft.first : draft.last].tolist()
        most = self._most_touched
        if not BeladyTables.of(self._num_nodes, self._slots, sum(sizes), most).touched:
            return draft.last
        marked = 0
        for t, nodes in enumerate(trace.scan(draft.first, draft.last, what="nodes", ahead_bytes=0)):
            if t > 0 and marked + sizes[t] > most:
                return draft.first + t
            stop()
            marked = self._core.mark(nodes)
        return draft.last

    def _fill(self, trace: TraceReader, draft: _Draft, stop: Callable[[], None]) -> tuple[Ids, Ids]:
        nobody = np.empty(0, np.int64)
        if self._keeps:
            return nobody, nobody
        for t, nodes in enumerate(trace.scan(draft.first, draft.last, what="nodes", ahead_bytes=0)):
            stop()
            if not self._core.fill(t, nodes):
                break
        taken = np.flatnonzero(self._core.nodes >= 0)
        order = np.argsort(self._core.nodes[taken])
        return self._core.nodes[taken][order], taken[order]

    def clear(self) -> None:
        self._core.clear()

    def _restore(self, contents: Ids) -> None:
        self._core.restore(contents)


class Lru(Policy):
    """The rows used last."""

    slot_bytes = _core.Lru.slot_bytes

    def __init__(self, num_nodes: int, slots: int, *, keeps: bool = True) -> None:
        super().__init__(keeps=keeps)
        self._core = _core.Lru(num_nodes, slots)

    def _plan(self, trace: TraceReader, draft: _Draft, stop: Callable[[], None]) -> Plan:
        core = self._core
        if not self._keeps:
            self.clear()
        for nodes in trace.scan(draft.first, draft.last, what="nodes", ahead_bytes=0):
            stop()
            slots = np.empty(len(nodes), np.int32)
            core.step(nodes, slots)
            draft.append(Changes(slots, core.in_positions, core.in_slots), core.nodes)
        return draft.finish(np.empty(0, np.int64), np.empty(0, np.int64))

    def clear(self) -> None:
        self._core.clear()

    def _restore(self, contents: Ids) -> None:
        """Who was used last is not known: the higher its slot, the later."""
        self._core.restore(contents)


class Static(Policy):
    """Always the same rows, say those of the nodes with the most out-edges (PaGraph)."""

    slot_bytes = 8  # its node, in the list of them

    def __init__(self, num_nodes: int, nodes: Ids, *, keeps: bool = True) -> None:
        """`nodes`: ascending; node i of them is in slot i."""
        super().__init__(keeps=keeps)
        self._nodes = nodes
        self._core = _core.StaticSlots(num_nodes, nodes)
        self._filled = False

    def look_up(self, nodes: Ids) -> NDArray[np.int32]:
        """The slot of each node, or -1."""
        slots = np.empty(len(nodes), np.int32)
        self._core.find(nodes, slots)
        return slots

    def _plan(self, trace: TraceReader, draft: _Draft, stop: Callable[[], None]) -> Plan:
        nobody = np.empty(0, np.uint32)
        for nodes in trace.scan(draft.first, draft.last, what="nodes", ahead_bytes=0):
            stop()
            draft.append(Changes(self.look_up(nodes), nobody, nobody))
        fill = np.empty(0, np.int64) if self._filled else self._nodes
        self._filled = self._keeps
        return draft.finish(fill, np.arange(len(fill)), always=self._nodes)

    def clear(self) -> None:
        self._filled = False

    def _restore(self, contents: Ids) -> None:
        self._filled = self._keeps and np.array_equal(contents, self._nodes)
