"""A Lightning data module over a store: `trainer.fit(model, datamodule=StoreDataModule(...))`.

PyG's own LightningNodeData would build a NodeLoader of its own and hold the graph in memory.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Iterator, Sequence
from typing import Any

import lightning

from outcrop.errors import OptionError
from outcrop.loader import NeighborLoader
from outcrop.loader.arguments import as_store, sort_out
from outcrop.sample.sampler import Sampling
from outcrop.store.store import GraphStore


class Batches:
    """A loader as a plain iterable: Lightning would put its own sampler into a DataLoader."""

    def __init__(self, loader: NeighborLoader) -> None:
        self._loader = loader

    def __iter__(self) -> Iterator[Any]:
        return iter(self._loader)

    def __len__(self) -> int:
        return len(self._loader)


class StoreDataModule(lightning.LightningDataModule):
    """Loaders for train, val, test and predict, which share one memory budget."""

    def __init__(
        self,
        store: GraphStore | str | os.PathLike[str],
        num_neighbors: Sequence[int],
        *,
        predict_nodes: Any = "all",
        **options: Any,
    ) -> None:
        """`options` as NeighborLoader takes them; predict_nodes: "all", ids, a mask ..."""
        super().__init__()
        if "input_nodes" in options:
            raise OptionError(
                "input_nodes= cannot be used: the store's train, val and test nodes are, and "
                "predict_nodes="
            )
        known = inspect.signature(NeighborLoader).parameters
        rest = {name: options.pop(name) for name in list(options) if name not in known}
        sort_out(type(self).__name__, rest, stacklevel=2)
        Sampling.of(num_neighbors)  # what is wrong with it is said here, not in a hook
        self._store = as_store(store)
        self._num_neighbors = num_neighbors
        self._predict_nodes = predict_nodes
        self._options = options
        self._loader: NeighborLoader | None = None

    # Loaders are made in hooks, once the trainer has set up its devices.

    @property
    def loader(self) -> NeighborLoader:
        """The loader of the training nodes; the others are its siblings."""
        if self._loader is None:
            options = {"shuffle": True, **self._options}
            self._loader = NeighborLoader(self._store, self._num_neighbors, "train", **options)
        return self._loader

    def train_dataloader(self) -> Batches:
        return Batches(self.loader)

    def val_dataloader(self) -> Batches:
        return Batches(self.loader.sibling("val", shuffle=False))

    def test_dataloader(self) -> Batches:
        return Batches(self.loader.sibling("test", shuffle=False))

    def predict_dataloader(self) -> Batches:
        return Batches(self.loader.sibling(self._predict_nodes, shuffle=False))

    def state_dict(self) -> dict[str, Any]:
        """The position, so that Lightning's checkpoints resume in mid-epoch, and embeddings."""
        if self._loader is None:
            return {}
        state, history = self._loader.state_dict(), self._loader.history
        return state if history is None else {**state, "history": history.state_dict()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        if not state_dict:
            return
        position = {name: value for name, value in state_dict.items() if name != "history"}
        self.loader.load_state_dict(position)
        if self.loader.history is not None and "history" in state_dict:
            self.loader.history.load_state_dict(state_dict["history"])


def __getattr__(name: str) -> Any:
    if name.startswith("Lightning") and name.endswith("Data"):
        raise AttributeError(f"outcrop.lightning.{name} is not there; use StoreDataModule")
    raise AttributeError(f"module 'outcrop.loader.lightning' has no attribute {name!r}")
