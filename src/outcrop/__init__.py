"""Outcrop: train graph neural networks on graphs larger than memory, from an SSD."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from outcrop import errors
from outcrop._version import __version__
from outcrop.disk import Disk
from outcrop.ingest.pyg import from_pyg
from outcrop.options import DiskOptions
from outcrop.sample.imported import import_samples
from outcrop.store.store import GraphStore
from outcrop.store.verify import verify

if TYPE_CHECKING:
    from outcrop.loader import NeighborLoader, ShaDowLoader

__all__ = [
    "Disk",
    "DiskOptions",
    "GraphStore",
    "NeighborLoader",
    "ShaDowLoader",
    "__version__",
    "errors",
    "from_pyg",
    "import_samples",
    "open",
    "verify",
]


def open(path: str | os.PathLike[str], disk: DiskOptions | None = None) -> GraphStore:
    """Opens the store at `path`."""
    return GraphStore(path, disk)


def __getattr__(name: str) -> Any:
    """Loaders bring torch along, which takes seconds: only when they are asked for."""
    if name in ("NeighborLoader", "ShaDowLoader"):
        from outcrop import loader

        return getattr(loader, name)
    raise AttributeError(f"module 'outcrop' has no attribute {name!r}")
