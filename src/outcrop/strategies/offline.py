"""Offline sampling: what batches are drawn from before training, in memory that is free only then.

The batches are the same from each source. What it takes is gone before there are caches.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

from outcrop import _core
from outcrop.cache.neighbor import NeighborCache, making_bytes, neighbor_bytes
from outcrop.parallel import cpu_count
from outcrop.sample.sampler import Sampler
from outcrop.sample.topology import PAGE_THREADS, paged_topology
from outcrop.strategies.base import Job, Means, sampler_bytes

Source = Literal["mmap", "cache", "memory"]


def source_bytes(means: Means, source: Source) -> int:
    """The least that a source takes, beside the sampler's own memory."""
    store = means.store
    if source == "memory":
        return store.array_bytes("indptr") + store.array_bytes("indices")
    if source == "cache":
        # Lists are chosen first.
        return max(store.array_bytes("indptr") + sampler_bytes(means), making_bytes(store))
    return 0


@contextmanager
def offline_sampler(job: Job, source: Source, spare_bytes: int) -> Iterator[Sampler]:
    """`spare_bytes`: memory for neighbour lists beyond the least."""
    with _topology(job, source, spare_bytes) as topology:
        threads = PAGE_THREADS if source == "mmap" else cpu_count()
        yield job.sampler(topology, threads)


@contextmanager
def _topology(job: Job, source: Source, spare_bytes: int) -> Iterator[_core.Topology]:
    store = job.store
    if source == "mmap":
        yield paged_topology(store)
    elif source == "memory":
        yield _core.array_topology(store.load("indptr"), store.load("indices"))
    else:
        size = neighbor_bytes(store, spare_bytes)
        with NeighborCache.open(store, size, progress=job.progress) as cache:
            yield cache.topology(store.load("indptr"))
