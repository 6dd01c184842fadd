"""A topology as a stream: all neighbour lists of a store in the order of nodes, piece by piece."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from outcrop.errors import CorruptError
from outcrop.progress import Progress
from outcrop.store.store import GraphStore

Ids = NDArray[np.int64]


class ListPass(Protocol):
    """What takes the lists; see cpp/layout/list_stream.h."""

    @property
    def num_edges(self) -> int:
        """Met so far."""

    def add(self, offsets: Ids, entries: NDArray[Any]) -> tuple[int, int]: ...


def stream_lists(store: GraphStore, taker: ListPass, stage: str, progress: Progress) -> None:
    """Gives all lists to `taker`; CorruptError where a byte of the topology is damaged.

    What it has made of them is good only once this returns.
    """
    progress.stage(stage, store.array_bytes("indices"))
    parts = offset_parts(store)
    offsets = next(parts)
    try:
        for entries in entry_parts(store):
            size = entries.nbytes
            while True:
                nodes, taken = taker.add(offsets, entries)
                offsets, entries = offsets[nodes:], entries[taken:]
                if len(offsets) > 1:
                    break  # what is missing are entries
                offsets = next(parts, offsets)
                if len(offsets) == 1:
                    break  # that was the last node
            progress.advance(size)
        check_ended(store, offsets, taker.num_edges)
        for _ in parts:  # what is left is compared with its checksums
            pass
    except CorruptError:
        # Where a byte was changed, that is the better message.
        store.check_topology(progress)
        raise


def check_ended(store: GraphStore, offsets: Ids, num_edges: int) -> None:
    """CorruptError where offsets are left, or edges are that no node has."""
    if len(offsets) > 1 or num_edges != store.num_edges:
        raise CorruptError(
            f"{store.file('indptr')}: ends at edge {offsets[-1]}, but there are "
            f"{store.num_edges} edges"
        )


def offset_parts(store: GraphStore) -> Iterator[Ids]:
    """indptr in parts; each begins with the last entry of the one before."""
    last = np.empty(0, np.int64)
    for block in store.checks("indptr").blocks(store.disk):
        part = np.concatenate([last, block.view(np.int64)])
        last = part[-1:].copy()
        yield part


def entry_parts(store: GraphStore) -> Iterator[NDArray[Any]]:
    """indices in parts; the last has nothing, for nodes behind the last edge."""
    dtype = store.manifest.arrays["indices"].dtype
    for block in store.checks("indices").blocks(store.disk):
        yield block.view(dtype)
    yield np.empty(0, dtype)
