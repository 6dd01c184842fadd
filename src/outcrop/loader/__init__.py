"""What PyG expects: loaders, their arguments, conversion to its Data."""

from outcrop.loader.neighbor import NeighborLoader
from outcrop.loader.shadow import ShaDowLoader

__all__ = ["NeighborLoader", "ShaDowLoader"]
