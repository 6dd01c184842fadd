"""Sharing rows among batches: what it takes in memory, and what the record says of it."""

from __future__ import annotations

from typing import Any

from outcrop import _core
from outcrop.disk import READ_BLOCK_BYTES
from outcrop.layout.pack.reader import Pack
from outcrop.layout.pack.segments.layout import bucket_memory_bytes
from outcrop.layout.pack.segments.search import MOST_ABOVE, pairs_bytes
from outcrop.store.arrays import WRITE_BUFFER_BYTES
from outcrop.store.facts import GraphFacts


def sharing_bytes(graph: GraphFacts, batches: int, batch_nodes: int) -> int:
    """Memory of any step, at most, for a trace of batches of `batch_nodes`."""
    row_bytes = graph.row_bytes
    distinct = min(graph.num_nodes, batches * batch_nodes)
    counts = 2 * 8 * (MOST_ABOVE + 2) * batches
    # Two lists of nodes are read; a table, and what becomes of it and of the list.
    lists = (2 * 8 + 2 * 12 + 5 * 8) * batch_nodes
    planning = (
        _core.segment_bytes(graph.num_nodes, distinct)
        + max(pairs_bytes(batches), 6 * WRITE_BUFFER_BYTES)
        + counts
        + lists
    )
    checksums = 2 * distinct * row_bytes // 512 + 4 * READ_BLOCK_BYTES + lists
    return max(planning, bucket_memory_bytes(row_bytes), checksums)


def segment_facts(pack: Pack) -> dict[str, Any]:
    """How batches share rows, and what all of them will read."""
    predicted = pack.predicted
    facts: dict[str, Any] = {
        "predicted_bytes": predicted.bytes,
        "predicted_amplification": predicted.amplification,
    }
    segments = pack.segments
    if segments is not None:
        facts |= {
            "segment_batches": segments.batches,
            "segment_above": segments.above,
            "segments": len(segments.rows),
            "segment_bytes": segments.bytes,
        }
    return facts
