"""Fennel: a store -> the part of each of its nodes, with few edges between parts, out of core.

Nodes are streamed in the order of ids with their in-neighbours, and each goes to the part that has
the most of them, less what speaks for balance (cpp/layout/fennel.h). At one level, or at two: the
nodes are divided into about the square root of the parts, and each of those into parts, by streams
over the whole topology that serve all of them at once. In memory are 4 bytes per node and what is
read.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from outcrop import _core
from outcrop.disk import aligned_empty
from outcrop.errors import CorruptError, OptionError
from outcrop.layout.stream import stream_lists
from outcrop.progress import SILENT, Progress
from outcrop.store.store import GraphStore
from outcrop.store.values import first_outside

Assignment = NDArray[np.uint32]
"""The part of each node."""
Counts = NDArray[np.uint64]
Numbers = NDArray[np.float64]

Counting = Literal["exact", "bloom"]
# What the core keeps for each part: counts, penalties in two heaps, limits; at the largest level.
PART_BYTES = 160
_MOST_PARTS = (1 << 30) - 1


@dataclass(frozen=True, kw_only=True)
class FennelOptions:
    """What changes the parts of nodes."""

    gamma: float = 2.0
    """How steeply a part's penalty grows with its nodes: FENNEL has 1.5, OUTRE's code 2. They cut
    alike (4M nodes with communities, 800 and 10,000 parts: 24.8 and 60.0 % against 24.9 and 59.7);
    with 2, training nodes are in better balance (800 parts: 1.05 against 1.10)."""
    imbalance: float = 1.1
    """No part has more than so many times the mean number of nodes. Training nodes keep to it
    where that leaves them a part."""
    seed: int = 0
    """Of the order in which equally good parts are taken."""
    levels: int = 1
    """1: all parts at once. 2: parts of parts, as in OUTRE, which takes twice the streams and cuts
    about as much (the same graph: 23.7 and 59.4 %, against 24.7 and 59.3 % by as long a time at one
    level). Counting takes no filter per part, so that there is no memory to save by it."""
    passes: int = 5
    """Streams over the topology at each level; from the second on, each node is assigned again
    with all others known. The same graph, 800 parts: 67.6 % are cut by one, 26.0 by three, 24.9 by
    five, 24.7 by eight."""
    counting: Counting = "exact"
    """How neighbours in a part are counted. bloom: by a filter per part, as in OUTRE's paper, for
    comparisons: one test per neighbour and part."""

    def check(self) -> None:
        """OptionError where a value cannot be."""
        if not (math.isfinite(self.gamma) and self.gamma >= 1):
            raise OptionError(f"gamma must be a number of at least 1 (got {self.gamma})")
        if not (math.isfinite(self.imbalance) and self.imbalance >= 1):
            raise OptionError(f"imbalance must be a number of at least 1 (got {self.imbalance})")
        if not 0 <= self.seed < 1 << 63:
            raise OptionError(f"seed must be 0 to 2^63 - 1 (got {self.seed})")
        if self.levels not in (1, 2):
            raise OptionError(f"levels must be 1 or 2 (got {self.levels})")
        if self.passes < 1:
            raise OptionError(f"passes must be at least 1 (got {self.passes})")
        if self.counting not in ("exact", "bloom"):
            raise OptionError(f"counting must be exact or bloom (got {self.counting!r})")
        if self.counting == "bloom" and self.passes != 1:
            raise OptionError(
                "counting=bloom needs passes=1, since nothing can be removed from a Bloom filter "
                f"(got {self.passes})"
            )


def check_parts(parts: int) -> int:
    """How many parts there are to be, if there can be as many; else OptionError."""
    if not 1 <= parts <= _MOST_PARTS:
        raise OptionError(f"parts must be 1 to {_MOST_PARTS} (got {parts})")
    return parts


def assign_parts(
    store: GraphStore, parts: int, options: FennelOptions, progress: Progress = SILENT
) -> Assignment:
    """The part of each node; CorruptError where the topology or the training set is damaged."""
    options.check()
    check_parts(parts)
    assignment: Assignment = aligned_empty(store.num_nodes, np.uint32)
    seeds = _mark_seeds(store, assignment)
    work = _Partitioning(store, parts, options, assignment, seeds, progress)
    groups = 1 if options.levels == 1 else max(1, round(math.sqrt(parts)))
    if groups == 1:
        work.divide_at_once()
    else:
        work.divide(groups)
    _core.unmark_seeds(assignment)
    return assignment


def _mark_seeds(store: GraphStore, assignment: Assignment) -> int:
    """Marks the training nodes; returns how many entries their split has."""
    if not store.has("train"):
        return 0
    done = 0
    for block in store.checks("train").blocks(store.disk):
        ids = block.view(np.int64)
        check_seeds(store, ids, done)
        _core.mark_seeds(ids, assignment)
        done += len(ids)
    return done


def check_seeds(store: GraphStore, ids: NDArray[np.int64], first: int) -> None:
    """CorruptError where one of these entries of the split, from `first` on, is no node."""
    bad = first_outside(ids, 0, store.num_nodes)
    if bad is not None:
        raise CorruptError(
            f"{store.file('train')}: entry {first + bad} is {ids[bad]}, "
            f"but there are {store.num_nodes} nodes"
        )


class _Partitioning:
    def __init__(
        self,
        store: GraphStore,
        parts: int,
        options: FennelOptions,
        assignment: Assignment,
        seeds: int,
        progress: Progress,
    ) -> None:
        self._store = store
        self._parts = parts
        self._options = options
        self._assignment = assignment
        self._seeds = seeds
        self._progress = progress
        # Nodes that a part may have: it holds after both levels.
        self._most = most_nodes(store.num_nodes, parts, options.imbalance)

    def divide_at_once(self) -> None:
        """Into all parts."""
        everything = np.array([self._parts], np.int64)
        self._divide(
            "partition",
            widths=everything,
            degree=np.array([self._degree()]),
            nodes=np.array([float(self._store.num_nodes)]),
            seeds=np.array([float(self._seeds)]),
            most=np.full(self._parts, self._most, np.uint64),
        )

    def divide(self, groups: int) -> None:
        """Into groups first, each of which has the room of the parts that it will have."""
        bounds = np.arange(groups + 1) * self._parts // groups
        widths = np.diff(bounds)
        # A group that is as full as its parts may be would leave nothing to choose within it.
        slack = math.sqrt(self._options.imbalance)
        share = self._store.num_nodes * widths / self._parts
        most = np.maximum(np.ceil(share), np.floor(slack * share)).astype(np.uint64)
        most = np.minimum(most, widths.astype(np.uint64) * np.uint64(self._most))
        self._divide(
            "groups",
            widths=np.array([groups], np.int64),
            degree=np.array([self._degree()]),
            nodes=np.array([float(self._store.num_nodes)]),
            seeds=np.array([float(self._seeds)]),
            most=most,
            weights=widths / widths.mean(),
            slack=slack,
        )
        counts = count_parts(self._store, self._assignment, groups, "within groups", self._progress)
        nodes = counts.nodes.astype(np.float64)
        seeds = self._seeds_of_groups(groups)
        self._divide(
            "parts",
            widths=widths,
            degree=counts.inside / np.maximum(nodes, 1),
            nodes=nodes,
            seeds=seeds,
            most=np.full(self._parts, self._most, np.uint64),
        )

    def _degree(self) -> float:
        return self._store.num_edges / self._store.num_nodes

    def _seeds_of_groups(self, groups: int) -> Numbers:
        counts = np.zeros(groups, np.int64)
        if self._seeds:
            for block in self._store.checks("train").blocks(self._store.disk):
                parts = part_of(self._assignment, block.view(np.int64))
                counts += np.bincount(parts, minlength=groups)
        return counts.astype(np.float64)

    def _divide(
        self,
        stage: str,
        *,
        widths: NDArray[np.int64],
        degree: Numbers,
        nodes: Numbers,
        seeds: Numbers,
        most: Counts,
        weights: Numbers | None = None,
        slack: float | None = None,
    ) -> None:
        """Groups of these numbers of parts, nodes and training nodes -> parts, by all passes.

        `weights`: of the parts, by what they are to have; `slack`: the imbalance of seeds.
        """
        options = self._options
        first_part = np.concatenate([[0], np.cumsum(widths)]).astype(np.uint32)
        weights = np.ones(len(most)) if weights is None else weights
        seed_target = np.repeat(seeds / widths, widths) * weights
        mean_seeds = self._seeds / len(most) * weights
        most_seeds = np.maximum(
            np.ceil(seed_target), np.floor((slack or options.imbalance) * mean_seeds)
        ).astype(np.uint64)
        make = _core.Fennel32 if self._index.itemsize == 4 else _core.Fennel64
        _core.make_groups(self._assignment)  # of the parts so far, or all in group 0
        fennel = make(
            self._assignment,
            first_part,
            np.asarray(degree, np.float64),
            np.repeat(nodes / widths, widths) * weights,
            most,
            seed_target,
            most_seeds,
            options.gamma,
            options.seed,
            options.counting == "bloom",
        )
        for number in range(1, options.passes + 1):
            if number > 1:
                fennel.restart()
            name = stage if options.passes == 1 else f"{stage} {number}/{options.passes}"
            stream_lists(self._store, fennel, name, self._progress)

    @property
    def _index(self) -> np.dtype[Any]:
        return self._store.manifest.arrays["indices"].dtype


def most_nodes(num_nodes: int, parts: int, imbalance: float) -> int:
    """How many nodes a part may have."""
    return max(-(-num_nodes // parts), math.floor(imbalance * num_nodes / parts))


def part_of(assignment: Assignment, ids: NDArray[np.int64]) -> Assignment:
    """The parts of some nodes, while others, or all, may be marked as training nodes."""
    return assignment[ids] & np.uint32(_MOST_PARTS)


@dataclass(frozen=True)
class PartCounts:
    """What each part has."""

    nodes: Counts
    entries: Counts
    """Of the lists of its nodes."""
    inside: Counts
    """Those of them that are in the part as well."""
    cross: NDArray[np.uint32]
    """For each node, entries that name it in lists of other parts; empty: not counted."""


def count_parts(
    store: GraphStore,
    assignment: Assignment,
    parts: int,
    stage: str,
    progress: Progress,
    *,
    cross: bool = False,
) -> PartCounts:
    """One pass over the topology; 4 bytes per node for `cross`."""
    nodes, entries, inside = (np.zeros(parts, np.uint64) for _ in range(3))
    named: NDArray[np.uint32] = aligned_empty(store.num_nodes if cross else 0, np.uint32)
    narrow = store.manifest.arrays["indices"].dtype.itemsize == 4
    make = _core.PartCounts32 if narrow else _core.PartCounts64
    counts = make(assignment, nodes, entries, inside, named)
    stream_lists(store, counts, stage, progress)
    return PartCounts(nodes, entries, inside, named)
