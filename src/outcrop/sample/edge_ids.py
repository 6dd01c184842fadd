"""Edge ids: places of edges in a store's topology -> the user's own edges, which the store keeps.

Batches have them as `e_id`. Of a store that keeps none, places are all that is known of its edges.
Sampled edges are translated once, by the sampler, so that a trace has the ids that batches have.
"""

from __future__ import annotations

import threading
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from outcrop.disk import Pending
from outcrop.errors import CancelledError
from outcrop.sample.sampler import Sampling
from outcrop.sample.seeds import Ids
from outcrop.store.facts import GraphFacts
from outcrop.store.store import GraphStore

_NAME = "edge_ids"
# Per edge, beside the ids themselves: the order in which they are read, and sorted places.
_ORDER_BYTES = 16


class EdgeIds(Protocol):
    """Places -> ids."""

    def look_up(self, places: Ids) -> NDArray[Any]:
        """int32 or int64, as they are stored."""

    def cancel(self) -> None:
        """A look-up under way, and every later one, raises CancelledError. From any thread."""


class LoadedEdgeIds:
    """Ids of all edges in memory. Thread-safe."""

    def __init__(self, ids: NDArray[Any]) -> None:
        self._ids = ids

    def look_up(self, places: Ids) -> NDArray[Any]:
        found: NDArray[Any] = self._ids[places]
        return found

    def cancel(self) -> None:
        """A look-up takes milliseconds."""


class StoredEdgeIds:
    """Ids read from the drive, around the page cache. Not thread-safe, apart from `cancel`."""

    def __init__(self, store: GraphStore) -> None:
        self._disk, self._checks = store.disk, store.checks(_NAME)
        self._file = store.disk.open(self._checks.path)
        self._base, self._dtype = self._checks.entry.data_offset, self._checks.entry.dtype
        self._lock = threading.Lock()
        # Guarded by the lock
        self._reading: Pending | None = None
        self._cancelled = False

    def look_up(self, places: Ids) -> NDArray[Any]:
        if self._checks.on_read:
            self._checks.check_rows(self._disk, places, self._dtype.itemsize)
        # Ascending, so that the drive sees one forward sweep and neighbours are read together.
        order = np.argsort(places)
        found = np.empty(len(places), self._dtype)
        try:
            self._start(places[order], order, found).wait()
        finally:
            with self._lock:
                self._reading = None
        return found

    def _start(self, places: Ids, order: Ids, found: NDArray[Any]) -> Pending:
        engine, file = self._file.core
        with self._lock:
            if self._cancelled:
                raise CancelledError("sampling was cancelled before edge ids were read")
            # As the engine wants them: a File would copy both lists.
            self._reading = engine.read_rows(
                file, self._base, self._dtype.itemsize, places, order, found.view(np.uint8)
            )
            return self._reading

    def cancel(self) -> None:
        with self._lock:
            self._cancelled = True
            if self._reading is not None:
                self._reading.cancel()


def keeps_edge_ids(graph: GraphFacts, sampling: Sampling) -> bool:
    """Whether batches have ids that the store keeps; else they have places, or nothing."""
    return sampling.edge_ids and graph.has(_NAME)


def edge_id_limit(graph: GraphFacts, *, kept: bool) -> int:
    """Above every edge id of batches; `kept`: whether they are ids that the store keeps.

    Those may be larger than the number of edges, since edges that were left out count.
    """
    if not kept:
        return graph.num_edges
    return 1 << (8 * graph.item_bytes(_NAME) - 1)


def edge_ids_bytes(graph: GraphFacts, edges: int, *, loaded: bool) -> int:
    """What a look-up of so many edges takes while a batch is sampled."""
    own = graph.item_bytes(_NAME)
    return edges * (own if loaded else own + _ORDER_BYTES)
