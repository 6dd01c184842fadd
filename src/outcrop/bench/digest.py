"""Digest: batches -> a checksum over everything that a model would see of them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import xxhash

_TENSORS = ("n_id", "edge_index", "e_id", "x", "y", "input_id", "root_n_id")


def digest_batches(batches: Iterable[Any]) -> str:
    """Ids, edges, labels and rows of each batch, in their order -> XXH3-128, in hex."""
    digest = xxhash.xxh3_128()
    for batch in batches:
        for name in _TENSORS:
            found = batch.get(name)
            if name == "x" and found is None and batch.get("x_index") is not None:
                found = batch.x_buffer[batch.x_index]  # rows that stay in slots
            if found is not None:
                array = found.cpu().numpy()
                digest.update(f"{name} {array.dtype} {array.shape}".encode())
                digest.update(array.data)
        del batch, found
    return digest.hexdigest()
