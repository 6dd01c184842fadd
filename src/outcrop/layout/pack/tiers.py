"""Tiers: a trace -> which rows stay in memory, and where every row of a batch is found.

Two passes over the node ids of the trace: the first counts, the second splits each batch. Memory: a
table of nodes (4 bytes for each of the graph; 24 to 48 for each that is touched, where that is less
than half of it; of large graphs 4 for each that is touched and 1.33 bits for each other, where that
is less, after a pass that marks them), and what is in flight of the batch at hand.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from outcrop import _core
from outcrop.layout.pack.reader import Table
from outcrop.layout.trace import AHEAD_BYTES, TraceReader
from outcrop.progress import SILENT, Progress
from outcrop.sample.seeds import Ids


def hottest_of_each(
    trace: TraceReader, num_nodes: int, slots: Sequence[int], progress: Progress = SILENT
) -> list[Ids]:
    """The nodes that most batches want, ascending; of equals, the lower ids.

    As many as each of `slots` says: those of the larger have those of the smaller.
    """
    if not any(slots):
        return [np.empty(0, np.int64) for _ in slots]
    counts = _core.AccessCounts(num_nodes, _distinct(trace, num_nodes))
    if counts.wants_marks:
        progress.stage("mark", len(trace), "batches")
        for nodes in trace.scan(what="nodes"):
            counts.mark(nodes)
            progress.advance(1)
    progress.stage("count", len(trace), "batches")
    for nodes in trace.scan(what="nodes"):
        counts.add(nodes)
        progress.advance(1)
    return [counts.hottest(count) for count in slots]


def split_batches(
    trace: TraceReader, num_nodes: int, cached: Ids, progress: Progress = SILENT
) -> Iterator[tuple[Ids, Table]]:
    """Each batch of the trace, in order: the nodes to pack, ascending, each once; and its table.

    `cached`: nodes, ascending; their places are slots. Views, valid until the next batch is split.
    """
    splitter = _core.TierSplitter(num_nodes, cached)
    progress.stage("split", len(trace), "batches")
    for nodes in trace.scan(what="nodes"):
        splitter.split(nodes)
        packed = splitter.packed_rows
        table = Table(
            splitter.cached_rows,
            splitter.cached_slots,
            packed,
            shared_rows=packed[:0],
            shared_positions=packed[:0],
            copied_rows=splitter.copied_rows,
            copied_from=splitter.copied_from,
        )
        yield splitter.packed_nodes, table
        progress.advance(1)


def tiers_bytes(num_nodes: int, batches: int, batch_nodes: int, slots: int) -> int:
    """Memory of either pass, at most, for a trace of batches of `batch_nodes`."""
    table = max(
        _core.AccessCounts.bytes(num_nodes, min(num_nodes, batches * batch_nodes)),
        _core.StaticSlots.bytes(num_nodes, slots),
    )
    # Two sorted copies of 16 bytes, six results of 4, and two of ids; read ahead, and in use.
    per_batch = batch_nodes * (2 * 16 + 6 * 4 + 2 * 8 + 12)
    return table + 8 * slots + per_batch + max(AHEAD_BYTES, 4 * batch_nodes)


def _distinct(trace: TraceReader, num_nodes: int) -> int:
    nodes, _ = trace.sizes
    return min(num_nodes, int(nodes.sum()))
