"""Traces of given nodes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from outcrop.disk import Disk
from outcrop.sample.sampler import Subgraph
from outcrop.sample.seeds import Stream, Task
from outcrop.sample.trace import TraceWriter


def write_trace(disk: Disk, folder: Path, batches: Sequence[Any], num_nodes: int) -> None:
    """A batch per list of nodes, without edges."""
    none = np.empty(0, np.uint32)
    with TraceWriter(disk, folder, num_nodes=num_nodes, num_edges=1, identity={}) as writer:
        for t, nodes in enumerate(batches):
            ids = np.array(nodes, np.int64)
            subgraph = Subgraph(ids, none, none, np.empty(0, np.int64), [len(ids)], [], [])
            writer.append(Task(Stream.TRAIN, 0, t, ids[:0], ids[:0]), subgraph)
        writer.finish()
