"""memory: everything is loaded; the definition of right."""

from __future__ import annotations

from collections.abc import Mapping

from outcrop import _core
from outcrop.gather import ArrayRows, NoRows
from outcrop.parallel import cpu_count
from outcrop.sample.edge_ids import LoadedEdgeIds
from outcrop.sample.sampler import Sampler
from outcrop.strategies.base import Job, Means
from outcrop.strategies.online import Gatherer, OnlineStrategy


class Memory(OnlineStrategy):
    """Topology and features in memory: nothing is read while batches are made."""

    name = "memory"
    loads_edge_ids = True

    @classmethod
    def needs(cls, means: Means) -> Mapping[str, int]:
        store = means.store
        return {
            "topology": store.array_bytes("indptr") + store.array_bytes("indices"),
            "features": store.array_bytes("features") if store.has("features") else 0,
            "edge ids": store.array_bytes("edge_ids") if means.keeps_edge_ids else 0,
            "sampler": means.sizes.scratch_bytes,
        }

    def __init__(self, job: Job) -> None:
        store = job.store
        topology = _core.array_topology(store.load("indptr"), store.load("indices"))
        super().__init__(job, topology, threads=cpu_count())
        self._rows = store.load("features") if store.has("features") else None
        self._edge_ids = LoadedEdgeIds(store.load("edge_ids")) if job.keeps_edge_ids else None

    def _sampler(self) -> Sampler:
        job = self._job
        return Sampler(job.sampling, self._topology, job.seed, self._threads, self._edge_ids)

    def _gatherer(self) -> Gatherer:
        if self._rows is None:
            return NoRows()
        return ArrayRows(self._rows, self._job.store.encoding, cpu_count())

    def close(self) -> None:
        super().close()
        self._rows = self._edge_ids = None
