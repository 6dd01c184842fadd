"""Degrees: a store -> how many edges begin at each node."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from outcrop import _core
from outcrop.disk import aligned_empty
from outcrop.errors import CorruptError
from outcrop.progress import SILENT, Progress
from outcrop.store.store import GraphStore


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
