"""Outcrop: train graph neural networks on graphs larger than memory, from an SSD."""

from __future__ import annotations

import os

from outcrop import errors
from outcrop._version import __version__
from outcrop.disk import Disk
from outcrop.ingest.pyg import from_pyg
from outcrop.options import DiskOptions
from outcrop.store.store import GraphStore
from outcrop.store.verify import verify

__all__ = [
    "Disk",
    "DiskOptions",
    "GraphStore",
    "__version__",
    "errors",
    "from_pyg",
    "open",
    "verify",
]


def open(path: str | os.PathLike[str], disk: DiskOptions | None = None) -> GraphStore:
    """Opens the store at `path`."""
    return GraphStore(path, disk)
