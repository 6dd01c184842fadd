"""Outcrop: train graph neural networks on graphs larger than memory, from an SSD."""

from __future__ import annotations

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

from outcrop import errors
from outcrop._version import __version__
from outcrop.disk import Disk
from outcrop.ingest.pyg import from_pyg
from outcrop.layout.samples import import_samples
from outcrop.layout.verify import verify
from outcrop.options import DiskOptions
from outcrop.store.store import GraphStore

if TYPE_CHECKING:
    from outcrop.loader import NeighborLoader, ShaDowLoader
    from outcrop.train.layers import layers_of
    from outcrop.train.models import seed_logits

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
    "layers_of",
    "open",
    "seed_logits",
    "verify",
]


def open(
    path: str | os.PathLike[str],
    disk: DiskOptions | None = None,
    derived: str | os.PathLike[str] | None = None,
) -> GraphStore:
    """Opens the store at `path`.

    `derived`: a folder for what strategies make of it, where the store cannot be written to.
    """
    return GraphStore(path, disk, derived)


# Parts that bring torch along, which takes seconds: imported when they are asked for.
_LATER = {
    "loader": "outcrop.loader",
    "lightning": "outcrop.loader.lightning",
    "pyg": "outcrop.loader.pyg",
    "train": "outcrop.train",
}
_LOADERS = ("NeighborLoader", "ShaDowLoader")
_STEPS = {"layers_of": "outcrop.train.layers", "seed_logits": "outcrop.train.models"}
# Loaders of PyG that are not here, by what to use in their place.
_OTHER_LOADERS = {
    "outcrop.ShaDowLoader": ("ShaDowKHopSampler",),
    "outcrop.NeighborLoader": ("NodeLoader", "NeighborSampler", "DataLoader", "CachedLoader",
                               "PrefetchLoader"),
}  # fmt: skip
_ABOUT_OTHERS = "not there yet: there are outcrop.NeighborLoader and outcrop.ShaDowLoader"


def __getattr__(name: str) -> Any:
    if name in _LOADERS:
        return getattr(import_module("outcrop.loader"), name)
    if name in _STEPS:
        return getattr(import_module(_STEPS[name]), name)
    if name in _LATER:
        return import_module(_LATER[name])
    for instead, names in _OTHER_LOADERS.items():
        if name in names:
            raise AttributeError(f"outcrop.{name} is not there; use {instead}")
    if name.endswith(("Loader", "Sampler")):
        raise AttributeError(f"outcrop.{name} is {_ABOUT_OTHERS}")
    raise AttributeError(f"module 'outcrop' has no attribute {name!r}")
