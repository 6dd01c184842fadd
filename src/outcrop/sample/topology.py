"""Topology: where samplers find a store's neighbour lists, without memory of their own for them."""

from __future__ import annotations

import os

from outcrop import _core
from outcrop.store.store import GraphStore

# A thread waits for each page that is not there: as many of them as the drive serves at once.
PAGE_THREADS = 64


def paged_topology(store: GraphStore) -> _core.Topology:
    """The store's topology through the page cache, which keeps what it has room for.

    It reads a page per miss, as a memory map does; but a file that was truncated, or a drive that
    fails, raises ReadError, where a map would end the process (SIGBUS).
    """
    indptr, indices = store.manifest.arrays["indptr"], store.manifest.arrays["indices"]
    return _core.paged_topology(
        _open(store, "indptr"),
        indptr.data_offset,
        _open(store, "indices"),
        indices.data_offset,
        entry_bytes=indices.dtype.itemsize,
        num_nodes=store.num_nodes,
        num_edges=store.num_edges,
    )


def _open(store: GraphStore, name: str) -> _core.File:
    return _core.File.open(os.fspath(store.file(name)), _core.Access.BUFFERED)
