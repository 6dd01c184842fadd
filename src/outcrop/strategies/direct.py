"""direct: topology in the page cache, every row read from the drive by the disk engine; no cache.

What is left when a strategy keeps nothing: the drive at full queue depth, for each row of each
batch. The baseline of caches, as `mmap` is the baseline of readers.
"""

from __future__ import annotations

from collections.abc import Mapping

from outcrop.gather import DiskRows, NoRows
from outcrop.sample.topology import PAGE_THREADS, paged_topology
from outcrop.strategies.base import Job, Means
from outcrop.strategies.online import Gatherer, OnlineStrategy


class Direct(OnlineStrategy):
    """Rows around the page cache, which is left to the topology."""

    name = "direct"
    reads_stored_rows = True

    @classmethod
    def needs(cls, means: Means) -> Mapping[str, int]:
        return {"sampler": means.sizes.scratch_bytes}

    def __init__(self, job: Job) -> None:
        super().__init__(job, paged_topology(job.store), PAGE_THREADS)

    def _gatherer(self) -> Gatherer:
        store = self._job.store
        return DiskRows(store.features) if store.has("features") else NoRows()
