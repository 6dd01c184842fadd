"""Offsets: a store's indptr -> in memory, plain or compressed, to look up the list of any node."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from outcrop import _core
from outcrop.disk import reading_bytes
from outcrop.errors import CorruptError
from outcrop.store.facts import GraphFacts
from outcrop.store.store import GraphStore

# A smaller array stays as it is: nobody needs its memory, and lookups in it are faster (frontiers
# of random nodes of 20M, mean degree 11: 10 ns each in 64 bits per node, 35 ns in 6; one core of an
# AMD EPYC).
COMPRESSED_FROM_BYTES = 64 << 20

Offsets = NDArray[np.int64] | _core.CompressedOffsets


def offsets_bytes(graph: GraphFacts) -> int:
    """What `load_offsets` keeps in memory."""
    if _are_compressed(graph):
        return _core.CompressedOffsets.bytes(graph.num_nodes, graph.num_edges)
    return graph.array_bytes("indptr")


def loading_bytes(graph: GraphFacts) -> int:
    """What `load_offsets` takes while it works, what it keeps included."""
    reading = reading_bytes(graph.array_bytes("indptr")) if _are_compressed(graph) else 0
    return offsets_bytes(graph) + reading


def load_offsets(store: GraphStore) -> Offsets:
    """CorruptError where indptr differs from its checksums, descends or ends at another edge."""
    return _compressed(store) if _are_compressed(store.facts) else store.load("indptr")


def _are_compressed(graph: GraphFacts) -> bool:
    return graph.array_bytes("indptr") >= COMPRESSED_FROM_BYTES


def _compressed(store: GraphStore) -> _core.CompressedOffsets:
    offsets = _core.CompressedOffsets(store.num_nodes, store.num_edges)
    checks = store.checks("indptr")
    try:
        for block in checks.blocks(store.disk):
            offsets.append(block.view(np.int64))
    except ValueError as error:
        # Where a byte was changed, that is the better message.
        checks.check(store.disk)
        raise CorruptError(f"{store.file('indptr')}: {error}") from error
    return offsets
