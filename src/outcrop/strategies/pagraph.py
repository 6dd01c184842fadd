"""pagraph: static caches, chosen by degree and never changed; what the papers call Ali+PG.

The rows of the nodes with the most out-edges (PaGraph), and the neighbour lists with the most
out-edges per in-edge (AliGraph). Nothing is planned.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from outcrop import _core
from outcrop.batch import Prepared
from outcrop.cache.neighbor import NeighborCache, making_bytes, neighbor_bytes
from outcrop.cache.policy import Static, choosing_bytes, most_out_edges
from outcrop.disk import aligned_empty
from outcrop.errors import OptionError
from outcrop.gather import CachedRows, NoRows
from outcrop.parallel import cpu_count
from outcrop.store.arrays import reading_bytes
from outcrop.store.degrees import out_degrees
from outcrop.strategies.base import Job, Means, RunTimes, preparation_bytes, sampler_bytes
from outcrop.strategies.online import Gatherer, OnlineStrategy


@dataclass(frozen=True)
class PaGraphOptions:
    """How memory is divided."""

    neighbors: float = 0.5
    """Of the memory for caches, the share of neighbour lists; the rest has feature rows."""

    def __post_init__(self) -> None:
        if not 0 <= self.neighbors <= 1:
            raise OptionError(f"pagraph: neighbors must be 0 to 1 (got {self.neighbors})")


class PaGraph(OnlineStrategy):
    """Hot rows and hot lists in memory, the others from the drive."""

    name = "pagraph"
    Options = PaGraphOptions
    reads_stored_rows = True

    @classmethod
    def needs(cls, means: Means) -> Mapping[str, int]:
        store, sizes = means.store, means.sizes
        needs = {
            "sampler": sizes.scratch_bytes + sampler_bytes(means),
            "index": store.array_bytes("indptr"),
        }
        if store.has("features"):
            slots = means.spare_bytes // _slot_bytes(means)
            needs["table of rows"] = _core.node_table_bytes(store.num_nodes, slots)
        spare = max(means.spare_bytes - sum(needs.values()), 0)
        share = means.options.neighbors if store.has("features") else 1.0
        needs["neighbour cache"] = neighbor_bytes(store, int(spare * share))
        if store.has("features"):
            left = int(spare * (1 - share))
            needs["feature cache"] = min(left, store.num_nodes * _slot_bytes(means))
        needs["preparation"] = preparation_bytes(means, _prepare_bytes(means, needs), needs)
        return needs

    @classmethod
    def written_bytes(cls, means: Means) -> int:
        return cls.needs(means)["neighbour cache"]

    def __init__(self, job: Job) -> None:
        store = job.store
        # First: while nodes are chosen there is memory for a number per node.
        nodes = np.empty(0, np.int64)
        if store.has("features"):
            nodes = most_out_edges(out_degrees(store, job.progress), _slots(job, job.charges))
        self._neighbors = NeighborCache.open(
            store, job.charges["neighbour cache"], progress=job.progress
        )
        super().__init__(job, self._neighbors.topology(store.load("indptr")), cpu_count())
        if store.has("features"):
            row_bytes = store.encoding.row_bytes
            self._cached = Static(store.num_nodes, nodes)
            self._memory = aligned_empty((max(len(nodes), 1), row_bytes))
            CachedRows(store.features, self._memory, 1).fill(nodes)

    def _gatherer(self) -> Gatherer:
        store = self._job.store
        if not store.has("features"):
            return NoRows()
        return _StaticRows(CachedRows(store.features, self._memory, cpu_count()), self._cached)

    def _count(self, gatherers: Sequence[Gatherer], times: RunTimes) -> None:
        for gatherer in gatherers:
            if isinstance(gatherer, _StaticRows):
                times.hit("cache", gatherer.hits)

    def close(self) -> None:
        super().close()
        self._neighbors.close()
        self._memory = np.empty((0, 0), np.uint8)


class _StaticRows:
    """Rows from a cache whose contents are known by a table."""

    def __init__(self, rows: CachedRows, cached: Static) -> None:
        self._rows = rows
        self._cached = cached
        self.hits = 0

    def gather(self, batch: Prepared) -> None:
        slots = self._cached.look_up(batch.n_id)
        self.hits += int(np.count_nonzero(slots >= 0))
        self._rows.gather(batch, slots)
        batch.stored = None  # its memory goes back now

    def cancel(self) -> None:
        self._rows.cancel()


def _slots(means: Means, charges: Mapping[str, int]) -> int:
    return charges.get("feature cache", 0) // _slot_bytes(means)


def _prepare_bytes(means: Means, needs: Mapping[str, int]) -> int:
    """Rows are chosen, then lists."""
    store, slots = means.store, _slots(means, needs)
    rows = reading_bytes(store.array_bytes("indices")) + choosing_bytes(store.num_nodes, slots)
    return max(rows, making_bytes(store) + slots * Static.slot_bytes)


def _slot_bytes(means: Means) -> int:
    """A row, and its node in the list of them."""
    row_bytes = means.store.encoding.row_bytes if means.store.has("features") else 0
    return row_bytes + Static.slot_bytes
