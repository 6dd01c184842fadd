"""Ids: the user's ids of nodes <-> nodes of a store, where they are not the same.

They are not where an import compacted ids, or nodes were put into another order: `node_ids.npy`
then has the user's id of each node.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from outcrop import _core
from outcrop.disk import Disk, aligned_empty
from outcrop.errors import CorruptError, OptionError
from outcrop.store.edges import (
    LEAST_SORT_BYTES,
    EdgeSorter,
    RecordLayout,
    add_pairs,
    view_records,
)
from outcrop.store.permute import Places, places_dtype

if TYPE_CHECKING:
    from outcrop.store.store import ArrayParts, GraphStore

Ids = NDArray[np.int64]
_IDS_AT_A_TIME = 1 << 18


def find_nodes(node_ids: ArrayParts, ids: Ids, name: str) -> Ids:
    """The nodes that have these ids, in any order and as often as wanted.

    One pass over all ids of the store. OptionError where a node has none of them.
    """
    wanted, where = np.unique(ids, return_inverse=True)
    nodes: Ids = np.full(len(wanted), -1, np.int64)
    if len(wanted) == 0:
        return nodes
    for first in range(0, len(node_ids), _IDS_AT_A_TIME):
        piece = node_ids[first : first + _IDS_AT_A_TIME]
        at = np.minimum(np.searchsorted(wanted, piece), len(wanted) - 1)
        found = np.flatnonzero(wanted[at] == piece)
        nodes[at[found]] = first + found
    missing = np.flatnonzero(nodes < 0)
    if len(missing):
        raise OptionError(f"{name}: no node has the id {wanted[missing[0]]}")
    return nodes[where.reshape(ids.shape)]


def in_original_order(store: GraphStore) -> bool:
    """Whether the user's ids ascend with the nodes. A pass over them, where there are any."""
    return not store.has("node_ids") or _look_over(store)[1]


def original_places(store: GraphStore, disk: Disk, scratch: Path, memory: int) -> Places:
    """Each node's place among all by the user's ids, ascending: where the source has it.

    Takes `memory` for sorting, LEAST_SORT_BYTES at least, beside the result. StoreError: the nodes
    have ids of their own.
    """
    pieces = store.checks("node_ids").blocks(disk)
    largest, _ = _look_over(store)
    places: Places = aligned_empty(store.num_nodes, places_dtype(store.num_nodes))
    if largest < store.num_nodes:  # the ids are 0 to N - 1: places themselves
        done = 0
        met = _core.IdSet(store.num_nodes)
        for block in pieces:
            ids = block.view(np.int64)
            new = met.add_new(ids)
            if new < len(ids):
                raise CorruptError(
                    f"{store.file('node_ids')}: node {done + new} has the id {ids[new]}, "
                    "which another has"
                )
            places[done : done + len(ids)] = ids
            done += len(ids)
        return places
    memory = max(memory, LEAST_SORT_BYTES)
    with EdgeSorter(disk, scratch, memory, RecordLayout(wide=True)) as sorter:
        done = 0
        for block in pieces:
            ids = block.view(np.int64)
            add_pairs(sorter, ids, np.arange(done, done + len(ids)))
            done += len(ids)
        done = 0
        for sorted_ids in sorter.blocks():
            nodes = view_records(sorted_ids, sorter.layout)["source"]
            places[nodes] = np.arange(done, done + len(nodes))
            done += len(nodes)
    return places


def _look_over(store: GraphStore) -> tuple[int, bool]:
    """The largest id of the user's, and whether they ascend."""
    parts: Any = store.parts("node_ids")
    largest, last, ascending = -1, -1, True
    for first in range(0, store.num_nodes, _IDS_AT_A_TIME):
        piece = parts[first : first + _IDS_AT_A_TIME]
        if int(piece.min()) < 0:
            raise CorruptError(
                f"{store.file('node_ids')}: node {first + int(piece.argmin())} has the id "
                f"{piece.min()}, which is none"
            )
        ascending = ascending and last < int(piece[0]) and bool((piece[1:] > piece[:-1]).all())
        largest, last = max(largest, int(piece.max())), int(piece[-1])
    return largest, ascending
