"""Degrees: a store -> how many edges begin at each node, and the nodes with the most."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
from numpy.typing import NDArray

from outcrop import _core
from outcrop.disk import aligned_empty
from outcrop.errors import CorruptError
from outcrop.progress import SILENT, Progress
from outcrop.store.store import GraphStore

Ids = NDArray[np.int64]
_NODES_AT_A_TIME = 1 << 17
_LOW_BITS, _LOW_MASK = 16, 0xFFFF


def out_degrees(store: GraphStore, progress: Progress = SILENT) -> NDArray[np.uint32]:
    """Edges that begin at each node, by one pass over the topology; at most 2^32 - 1.

    CorruptError where a byte of it is damaged.
    """
    entry = store.manifest.arrays["indices"]
    degrees: NDArray[np.uint32] = aligned_empty(store.num_nodes, np.uint32)
    progress.stage("out-degrees", entry.file_bytes - entry.data_offset)
    edge = 0
    for block in store.checks("indices").blocks(store.disk):
        ids = block.view(entry.dtype)
        counted = _core.count_ids(ids, degrees)
        if counted < len(ids):
            raise CorruptError(
                f"{store.file('indices')}: edge {edge + counted} comes from {ids[counted]}, which "
                f"is no node; outcrop verify {store.path} shows all that is damaged"
            )
        edge += counted
        progress.advance(len(block))
    return degrees


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
