"""Traces of given nodes, and what packs of them hold."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from outcrop.disk import Disk
from outcrop.layout.pack.reader import Pack
from outcrop.layout.trace import TraceWriter
from outcrop.sample.sampler import Subgraph
from outcrop.sample.seeds import Stream, Task


def write_trace(disk: Disk, folder: Path, batches: Sequence[Any], num_nodes: int) -> None:
    """A batch per list of nodes, without edges."""
    none = np.empty(0, np.uint32)
    with TraceWriter(disk, folder, num_nodes=num_nodes, num_edges=1, identity={}) as writer:
        for t, nodes in enumerate(batches):
            ids = np.array(nodes, np.int64)
            subgraph = Subgraph(ids, none, none, np.empty(0, np.int64), [len(ids)], [], [])
            writer.append(Task(Stream.TRAIN, 0, t, ids[:0], ids[:0]), subgraph)
        writer.finish()


def cached_rows(pack: Pack) -> NDArray[np.uint8]:
    """The rows of `pack.cached`, as they are stored."""
    blocks = [kept.copy() for kept, _ in pack.cache_blocks()]
    return np.concatenate([np.empty((0, pack.row_bytes), np.uint8), *blocks])
