"""Batching: which seeds of an epoch come together. By default any; by partitions, neighbours.

"partition": a macro batch is made of some partitions, chosen at random; its seeds are shuffled, and
the macro batches of an epoch, one after the other, are cut into batches. Neighbours share much of
what is sampled around them, so batches have fewer nodes, and the same ones for longer (OUTRE).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from outcrop import _core
from outcrop.errors import OptionError
from outcrop.options import options_from_text

RANDOM, PARTITION = "random", "partition"
_SEEDS_AT_A_TIME = 1 << 20
_EPOCHS_KEPT = 4

Ids = NDArray[np.int64]
PartsOf = Callable[[Ids], NDArray[np.uint32]]
"""Nodes -> their partitions."""


@dataclass(frozen=True)
class PartitionBatching:
    """Options of batching="partition", as in "partition:parts=800:macro=20"."""

    parts: int | None = None
    """Partitions of the graph. None: by its size and that of batches."""
    macro: int = 20
    """Partitions of a macro batch. (The paper: 20.)"""
    seed: int = 0
    """Of the partitioner; the order of partitions is of the loader's seed."""

    def __post_init__(self) -> None:
        if self.parts is not None and self.parts < 1:
            raise OptionError(f"batching: parts must be at least 1 (got {self.parts})")
        if self.macro < 1:
            raise OptionError(f"batching: macro must be at least 1 (got {self.macro})")
        if not 0 <= self.seed < 2**63:
            raise OptionError(f"batching: seed must be 0 to 2^63 - 1 (got {self.seed})")


def batching_named(text: str) -> PartitionBatching | None:
    """ "random" is None; "partition", or with options "partition:parts=800"."""
    name, *given = text.split(":")
    if name == RANDOM and not given:
        return None
    if name != PARTITION:
        raise OptionError(f"batching is {RANDOM} or {PARTITION} (got {text!r})")
    return options_from_text(PartitionBatching, given, where="batching")


@dataclass(frozen=True)
class Macro:
    """A macro batch of an epoch."""

    number: int
    parts: NDArray[np.uint32]
    begin: int
    """Its first seed, in the order of the epoch."""


class _EpochOrder:
    """Where partitions and macro batches of an epoch begin."""

    def __init__(self, parts: NDArray[np.uint32], starts: Ids, macro: int) -> None:
        self.parts = parts
        """In their order."""
        self.starts = starts
        """The first seed of each, in the order of the epoch; then how many there are."""
        self.macro_starts = np.append(starts[:-1:macro], starts[-1:])


class SeedGroups:
    """Positions of seeds by partition, and an order of them for every epoch.

    The order is a function of (seed, stream, epoch): partitions are permuted, and the seeds of each
    macro batch, by keyed permutations, so that any part of an epoch is found at once.
    """

    def __init__(self, positions: NDArray[Any], firsts: Ids, macro: int, digest: str) -> None:
        """`positions`: of seeds, by partition; `firsts`: where each partition's begin, and the end.
        `digest`: tells these partitions from others."""
        self._positions, self._firsts, self.macro = positions, firsts, macro
        self.batching: PartitionBatching | None = None
        """Whose partitions they are, with their number; None: they were given."""
        # Others would make macro batches smaller.
        self._parts = np.flatnonzero(np.diff(firsts)).astype(np.uint32)
        self.identity = f"{PARTITION}:macro={macro}:{digest}"
        self._order_of = lru_cache(_EPOCHS_KEPT)(self._make_order)

    @classmethod
    def of(
        cls, count: int, nodes_at: Callable[[Ids], Ids], parts: int, parts_of: PartsOf, macro: int,
        digest: str,
    ) -> SeedGroups:  # fmt: skip
        """`nodes_at`: positions of the input -> nodes; `count` of them."""
        firsts = np.zeros(parts + 1, np.int64)
        for _, found in _pieces(count, nodes_at, parts_of):
            firsts[1:] += np.bincount(found, minlength=parts)
        np.cumsum(firsts, out=firsts)
        positions = np.empty(count, _position_dtype(count))
        ends = firsts[:-1].copy()
        for begin, found in _pieces(count, nodes_at, parts_of):
            order = np.argsort(found, kind="stable")
            sizes = np.bincount(found, minlength=parts)
            within = np.arange(len(order)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
            positions[np.repeat(ends, sizes) + within] = begin + order
            ends += sizes
        return cls(positions, firsts, macro, digest)

    @property
    def num_parts(self) -> int:
        """Partitions that have seeds."""
        return len(self._parts)

    @property
    def nbytes(self) -> int:
        """What it takes in memory, tables of the partitions for a few epochs included."""
        tables = _EPOCHS_KEPT * 20 * len(self._parts) + self._parts.nbytes
        return self._positions.nbytes + self._firsts.nbytes + tables

    def order(self, seed: int, stream: int, epoch: int, begin: int, end: int) -> Ids:
        """Positions of seeds [begin, end) of an epoch."""
        out = np.empty(end - begin, np.int64)
        order = self._order_of(seed, stream, epoch)
        for macro in self.macros(seed, stream, epoch, begin, end):
            first = macro.number * self.macro
            starts = order.starts[first : first + len(macro.parts) + 1] - macro.begin
            low, high = max(begin - macro.begin, 0), min(end - macro.begin, int(starts[-1]))
            places = np.empty(high - low, np.int64)
            key = _key(b"macro", seed, stream, epoch, macro.number)
            _core.shuffled_seeds(int(starts[-1]), key, stream, epoch, low, places)
            which = np.searchsorted(starts, places, side="right") - 1
            places += self._firsts[macro.parts[which]] - starts[which]
            at = macro.begin + low - begin
            out[at : at + len(places)] = self._positions[places]
        return out

    def macros(self, seed: int, stream: int, epoch: int, begin: int, end: int) -> Iterator[Macro]:
        """The macro batches that seeds [begin, end) of an epoch are of."""
        order = self._order_of(seed, stream, epoch)
        starts = order.macro_starts
        number = int(np.searchsorted(starts, begin, side="right")) - 1
        while begin < end:
            parts = order.parts[number * self.macro : (number + 1) * self.macro]
            yield Macro(number, parts, int(starts[number]))
            number += 1
            begin = int(starts[number])

    def _make_order(self, seed: int, stream: int, epoch: int) -> _EpochOrder:
        places = np.empty(len(self._parts), np.int64)
        key = _key(b"parts", seed, stream, epoch)
        _core.shuffled_seeds(len(places), key, stream, epoch, 0, places)
        parts = self._parts[places]
        starts = np.zeros(len(parts) + 1, np.int64)
        np.cumsum(self._firsts[parts + 1] - self._firsts[parts], out=starts[1:])
        return _EpochOrder(parts, starts, self.macro)


def _position_dtype(count: int) -> np.dtype[Any]:
    """For positions below `count`."""
    return np.dtype(np.uint32 if count <= 2**32 else np.int64)


def _key(purpose: bytes, *values: int) -> int:
    return xxhash.xxh3_64_intdigest(purpose + struct.pack(f"<{len(values)}Q", *values))


def _pieces(
    count: int, nodes_at: Callable[[Ids], Ids], parts_of: PartsOf
) -> Iterator[tuple[int, NDArray[np.uint32]]]:
    """The first position of each piece, and the partitions of its nodes."""
    for begin in range(0, count, _SEEDS_AT_A_TIME):
        positions = np.arange(begin, min(begin + _SEEDS_AT_A_TIME, count))
        yield begin, parts_of(nodes_at(positions))
