"""What every exact strategy is held to: the batches of `memory`, bit by bit."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import torch

from outcrop.store.store import GraphStore, decode

_TENSORS = ("n_id", "edge_index", "e_id", "x", "y", "input_id", "root_n_id", "batch", "ptr")
_LISTS = ("num_sampled_nodes", "num_sampled_edges", "batch_size")


def contents(batch: Any) -> dict[str, Any]:
    """A batch in plain values, copied."""
    found: dict[str, Any] = {}
    for name in _TENSORS:
        if batch.get(name) is not None:
            tensor: torch.Tensor = batch[name]
            found[name] = _plain(tensor)
    if batch.get("x_buffer") is not None:  # rows that stay in slots
        found["x"] = _plain(batch.x_buffer[batch.x_index])
    for name in _LISTS:
        if name in batch:
            found[name] = batch[name]
    return found


def _plain(tensor: torch.Tensor) -> tuple[str, tuple[int, ...], bytes]:
    return str(tensor.dtype), tuple(tensor.shape), tensor.numpy().tobytes()


def all_contents(batches: Iterable[Any]) -> list[dict[str, Any]]:
    return [contents(batch) for batch in batches]


def check_against_store(batch: Any, store: GraphStore) -> None:
    """Rows, labels and edges are those of the store."""
    n_id = batch.n_id.numpy()
    if store.has("features"):
        raw = np.ascontiguousarray(store.array("features")[n_id])
        stored = raw.reshape(len(n_id), -1).view(np.uint8).reshape(len(n_id), -1)
        assert np.array_equal(batch.x.numpy(), decode(stored, store.encoding), equal_nan=True)
    labelled = n_id[batch.root_n_id.numpy()] if "root_n_id" in batch else n_id
    y = store.labels[labelled]
    if store.target_kind == "multilabel":
        y = np.where(y < 0, np.float32(np.nan), y.astype(np.float32))
    assert batch.y.numpy().dtype == y.dtype
    assert np.array_equal(batch.y.numpy(), y, equal_nan=True)
    source, target = batch.edge_index.numpy()
    places = batch.e_id.numpy()
    if store.has("edge_ids"):  # of a directed graph: a permutation
        places = np.argsort(store.array("edge_ids"))[places]
    assert np.array_equal(store.indices[places], n_id[source])
    lists = np.searchsorted(store.indptr, places, side="right") - 1
    assert np.array_equal(lists, n_id[target])
