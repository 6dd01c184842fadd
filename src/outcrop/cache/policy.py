"""Policies: the batches of a superbatch -> who is in which slot of the cache, batch by batch."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from outcrop import _core
from outcrop.cache.spill import Spill
from outcrop.disk import Disk
from outcrop.sample.seeds import Ids
from outcrop.sample.trace import TraceReader

_CHANGES = (np.int32, np.uint32, np.uint32)
_NODES_AT_A_TIME = 1 << 17
_LOW_BITS, _LOW_MASK = 16, 0xFFFF


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
    """The changes of a superbatch, on disk."""

    batches: int
    fill_nodes: Ids
    """Rows that are read before the first batch, ascending, and their slots."""
    fill_slots: Ids
    changes: Spill

    def take_fill(self) -> tuple[Ids, Ids]:
        """fill_nodes and fill_slots, which are empty from then on: they are large."""
        taken = self.fill_nodes, self.fill_slots
        self.fill_nodes = self.fill_slots = np.empty(0, np.int64)
        return taken

    def scan(self) -> Iterator[Changes]:
        for arrays in self.changes.scan(range(self.batches)):
            yield Changes(*arrays)
            del arrays

    def close(self) -> None:
        self.changes.close()

    def __exit__(self, *_: object) -> None:
        self.close()


class Policy(ABC):
    """Decides who is in the cache. Not thread-safe."""

    slot_bytes: ClassVar[int]
    """Memory of the policy itself, for each slot."""

    def __init__(self, *, keeps: bool) -> None:
        """`keeps`: whether the slots keep their rows from one superbatch to the next."""
        self._keeps = keeps

    @abstractmethod
    def plan(self, trace: TraceReader, disk: Disk, folder: Path) -> Plan:
        """`folder`: for this plan's files."""

    @abstractmethod
    def clear(self) -> None:
        """The cache is empty."""


class Belady(Policy):
    """The rows whose next use is nearest: no policy reads less within a superbatch."""

    slot_bytes = _core.Belady.slot_bytes

    def __init__(self, num_nodes: int, slots: int, *, keeps: bool = True) -> None:
        """Where it keeps nothing, a superbatch begins with the rows that are used first (Ginex)."""
        super().__init__(keeps=keeps)
        self._num_nodes = num_nodes
        self._core = _core.Belady(num_nodes, slots, goes_on=keeps)

    @staticmethod
    def table_bytes(num_nodes: int, slots: int, accesses: int) -> int:
        """Memory while planning a superbatch, beside the slots': of two tables, the larger.

        `accesses`: nodes of all batches together.
        """
        return max(
            _core.node_table_bytes(num_nodes, min(accesses, num_nodes)),
            _core.node_table_bytes(num_nodes, slots),
        )

    def plan(self, trace: TraceReader, disk: Disk, folder: Path) -> Plan:
        core, last = self._core, len(trace) - 1
        if not self._keeps:
            core.clear()
        core.begin(len(trace), min(int(trace.sizes[0].sum()), self._num_nodes))
        changes = Spill(disk, folder / "changes", _CHANGES)
        # Used by one batch after the other: fresh memory costs as much as a lookup.
        room = np.empty(int(trace.sizes[0].max(initial=0)), np.uint32)
        with Spill(disk, folder / "next_uses", [np.uint32]) as uses:
            for back, nodes in enumerate(trace.scan(what="nodes", backwards=True, ahead_bytes=0)):
                next_uses = room[: len(nodes)]
                core.look_back(last - back, nodes, next_uses)
                uses.append(next_uses)
            uses.seal()
            core.turn_around()
            fill_nodes, fill_slots = self._fill(trace)
            following = uses.scan(range(last, -1, -1))
            for t, (nodes, (next_uses,)) in enumerate(
                zip(trace.scan(what="nodes", ahead_bytes=0), following, strict=True)
            ):
                slots = room[: len(nodes)].view(np.int32)
                core.step(t, nodes, next_uses, slots)
                changes.append(slots, core.in_positions, core.in_slots)
        core.end()
        changes.seal()
        return Plan(len(trace), fill_nodes, fill_slots, changes)

    def _fill(self, trace: TraceReader) -> tuple[Ids, Ids]:
        nothing = np.empty(0, np.int64)
        if self._keeps:
            return nothing, nothing
        for t, nodes in enumerate(trace.scan(what="nodes", ahead_bytes=0)):
            if not self._core.fill(t, nodes):
                break
        taken = np.flatnonzero(self._core.nodes >= 0)
        order = np.argsort(self._core.nodes[taken])
        return self._core.nodes[taken][order], taken[order]

    def clear(self) -> None:
        self._core.clear()


class Lru(Policy):
    """The rows used last."""

    slot_bytes = _core.Lru.slot_bytes

    def __init__(self, num_nodes: int, slots: int, *, keeps: bool = True) -> None:
        super().__init__(keeps=keeps)
        self._core = _core.Lru(num_nodes, slots)

    def plan(self, trace: TraceReader, disk: Disk, folder: Path) -> Plan:
        if not self._keeps:
            self.clear()
        changes = Spill(disk, folder / "changes", _CHANGES)
        for nodes in trace.scan(what="nodes", ahead_bytes=0):
            slots = np.empty(len(nodes), np.int32)
            self._core.step(nodes, slots)
            changes.append(slots, self._core.in_positions, self._core.in_slots)
        changes.seal()
        return Plan(len(trace), np.empty(0, np.int64), np.empty(0, np.int64), changes)

    def clear(self) -> None:
        self._core.clear()


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

    def plan(self, trace: TraceReader, disk: Disk, folder: Path) -> Plan:
        changes = Spill(disk, folder / "changes", _CHANGES)
        nothing = np.empty(0, np.uint32)
        for nodes in trace.scan(what="nodes", ahead_bytes=0):
            changes.append(self.look_up(nodes), nothing, nothing)
        changes.seal()
        fill = np.empty(0, np.int64) if self._filled else self._nodes
        self._filled = self._keeps
        return Plan(len(trace), fill, np.arange(len(fill)), changes)

    def clear(self) -> None:
        self._filled = False


def most_out_edges(degrees: NDArray[np.uint32], count: int) -> Ids:
    """The nodes with the highest degrees, of equals the lower ids -> `count` of them, ascending.

    Takes memory for the result, and a few pieces of the degrees at a time.
    """
    count = min(count, len(degrees))
    nodes: Ids = np.empty(count, np.int64)
    if count == 0:
        return nodes
    least, equals = _least_of_most(degrees, count)
    taken = 0
    for first, piece in _pieces(degrees):
        equal = np.flatnonzero(piece == least)[:equals]
        equals -= len(equal)
        chosen = piece > least
        chosen[equal] = True
        found = np.flatnonzero(chosen)
        nodes[taken : taken + len(found)] = found
        nodes[taken : taken + len(found)] += first
        taken += len(found)
    return nodes


def choosing_bytes(num_nodes: int, count: int) -> int:
    """What most_out_edges takes, its argument and result included."""
    pieces = 4 * 8 * min(_NODES_AT_A_TIME, num_nodes) + 3 * 8 * (1 << _LOW_BITS)
    return 4 * num_nodes + 8 * min(count, num_nodes) + pieces


def _least_of_most(degrees: NDArray[np.uint32], count: int) -> tuple[int, int]:
    """The least of the `count` highest degrees, and how many of them are just that."""
    high, left = _bucket(_histogram(piece >> _LOW_BITS for _, piece in _pieces(degrees)), count)
    within = (piece[piece >> _LOW_BITS == high] & _LOW_MASK for _, piece in _pieces(degrees))
    low, left = _bucket(_histogram(within), left)
    return high << _LOW_BITS | low, left


def _histogram(pieces: Iterable[NDArray[np.integer]]) -> NDArray[np.int64]:
    counts = np.zeros(1 << _LOW_BITS, np.int64)
    for piece in pieces:
        counts += np.bincount(piece, minlength=1 << _LOW_BITS)
    return counts


def _bucket(counts: NDArray[np.int64], count: int) -> tuple[int, int]:
    """The bucket where the `count` highest end, and how many of them are in it."""
    from_above = np.cumsum(counts[::-1])
    place = int(np.searchsorted(from_above, count))
    above = int(from_above[place - 1]) if place else 0
    return len(counts) - 1 - place, count - above


def _pieces(degrees: NDArray[np.uint32]) -> Iterator[tuple[int, NDArray[np.uint32]]]:
    for first in range(0, len(degrees), _NODES_AT_A_TIME):
        yield first, degrees[first : first + _NODES_AT_A_TIME]
