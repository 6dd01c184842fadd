"""mmap: what people do today (PyG+): everything memory-mapped, the page cache decides.

As fast as memory maps can be made: no readahead, and page faults of many threads at once. A failing
drive shows as SIGBUS, which no program can turn into an error; the other strategies read properly.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from outcrop import _core
from outcrop.errors import OptionError
from outcrop.gather import ArrayRows, NoRows
from outcrop.sample.topology import PAGE_THREADS
from outcrop.store.store import GraphStore
from outcrop.strategies.base import Job, Means
from outcrop.strategies.online import Gatherer, OnlineStrategy


@dataclass(frozen=True)
class MmapOptions:
    """How faults are met."""

    threads: int = PAGE_THREADS
    """That fault at once, per batch."""

    def __post_init__(self) -> None:
        if not 1 <= self.threads <= 1024:
            raise OptionError(f"mmap: threads must be 1 to 1024 (got {self.threads})")


class Mmap(OnlineStrategy):
    """Topology and features in the page cache, as far as it has room; none of it is charged."""

    name = "mmap"
    Options = MmapOptions

    @classmethod
    def needs(cls, means: Means) -> Mapping[str, int]:
        return {"sampler": means.sizes.scratch_bytes}

    def __init__(self, job: Job) -> None:
        super().__init__(job, mapped_topology(job.store), job.options.threads)

    def _gatherer(self) -> Gatherer:
        store = self._job.store
        if not store.has("features"):
            return NoRows()
        rows = store.array("features", random_access=True)
        return ArrayRows(rows, store.encoding, self._job.options.threads)


def mapped_topology(store: GraphStore) -> _core.Topology:
    """The store's topology as a memory map: no memory of its own, a page fault per miss."""
    return _core.array_topology(
        store.array("indptr", random_access=True), store.array("indices", random_access=True)
    )
