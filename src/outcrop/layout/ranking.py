"""Rankings: scores of places -> the places, best first, and the curve of what the best have.

And stays, which a cache that knows what comes has room for, the shortest first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from outcrop.schema import Count

PIECE = 1 << 18
"""Places that are looked at together."""
# More points of a curve than its lines would show.
_MOST_POINTS = 200

Ids = NDArray[np.int64]
Scores = NDArray[np.uint32]
"""Numbers that rank: counts, or the bits of float32 that are not negative."""


@dataclass(frozen=True)
class Curve:
    """What the best nodes of a ranking save together, in rows of an epoch."""

    counts: tuple[Count, ...]
    """How many nodes, from 0 to all of the ranking."""
    sums: tuple[float, ...]

    def at(self, count: float) -> float:
        """Of so many nodes; linear between its points, flat beyond the end."""
        return float(np.interp(count, self.counts, self.sums))

    @property
    def length(self) -> int:
        """Nodes of the ranking."""
        return self.counts[-1]


def ranked(scores: Callable[[slice], Scores], length: int) -> NDArray[np.uint64]:
    """Scores above 0 -> keys, best first, of equals the lower place first: 8 bytes each.

    `scores`: of some places at a time. A key has the inverted score above its place.
    """
    pieces = [slice(first, min(first + PIECE, length)) for first in range(0, length, PIECE)]
    keys = np.empty(sum(int(np.count_nonzero(scores(piece))) for piece in pieces), np.uint64)
    begin = 0
    for piece in pieces:
        found = scores(piece)
        places = np.flatnonzero(found)
        part = keys[begin : begin + len(places)]
        part[:] = ~found[places]
        part <<= np.uint64(32)
        part |= (places + piece.start).astype(np.uint64)
        begin += len(places)
    keys.sort()
    return keys


def places_of(keys: NDArray[np.uint64]) -> Iterator[tuple[int, NDArray[np.uint32]]]:
    """The places of a ranking, best first, some at a time, after how many others."""
    for first in range(0, len(keys), PIECE):
        yield first, keys[first : first + PIECE].astype(np.uint32)  # the lower half


def scores_of(keys: NDArray[np.uint64]) -> Iterator[tuple[int, Scores]]:
    """The same of their scores."""
    for first in range(0, len(keys), PIECE):
        yield first, ~(keys[first : first + PIECE] >> np.uint64(32)).astype(np.uint32)


def curve_of(scores: Iterator[tuple[int, NDArray[Any]]], length: int) -> Curve:
    """Numbers in the order of their ranking -> their prefix sums."""
    counts = _points(length)
    sums, total = np.zeros(len(counts)), 0.0
    for first, piece in scores:
        running = np.cumsum(piece, dtype=np.float64)
        running += total
        inside = slice(*np.searchsorted(counts, [first + 1, first + len(piece) + 1]))
        sums[inside] = running[counts[inside] - first - 1]
        total = float(running[-1])
    return Curve(tuple(counts.tolist()), tuple(sums.tolist()))


# Stays


def planned_curve(stays: Ids) -> Curve:
    """What caches of rows save that know what comes: `stays[n]` rows are wanted again after n
    batches, of as many as there are numbers."""
    rows, saved = np.ceil(_room(stays)).astype(np.int64), np.cumsum(stays[1:])
    last = np.flatnonzero(np.diff(rows, append=np.int64(-1)))  # of sizes that are the same
    some = last[rows[last] > 0]
    if len(some) > _MOST_POINTS:
        some = some[np.linspace(0, len(some) - 1, _MOST_POINTS - 1).round().astype(np.int64)]
    return Curve((0, *rows[some].tolist()), (0.0, *saved[some].astype(float).tolist()))


def higher(one: Curve, other: Curve) -> Curve:
    """The better of both, for each count."""
    counts = sorted({*one.counts, *other.counts})
    return Curve(tuple(counts), tuple(max(one.at(count), other.at(count)) for count in counts))


def kept_stays(stays: Ids, sizes: Sequence[int]) -> Ids:
    """The longest stay that caches of so many rows have room for, with all shorter ones."""
    return np.searchsorted(_room(stays), sizes, side="right")


def _room(stays: Ids) -> NDArray[np.float64]:
    """Rows that a cache has for stays of 1, up to 2 ... batches, on average over all batches."""
    room: NDArray[np.float64] = np.cumsum(stays[1:] * np.arange(1, len(stays))) / max(len(stays), 1)
    return room


def _points(length: int) -> NDArray[np.int64]:
    """0, then ever farther apart, up to `length`; all of them where they are few."""
    if length < _MOST_POINTS:
        return np.arange(length + 1)
    ones = np.round(np.geomspace(1, length, _MOST_POINTS - 1)).astype(np.int64)
    return np.unique(np.concatenate([[0], ones, [length]]))
