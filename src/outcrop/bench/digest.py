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
            if batch.get(name) is not None:
                array = batch[name].cpu().numpy()
                digest.update(f"{name} {array.dtype} {array.shape}".encode())
                digest.update(array.data)
        del batch
    return digest.hexdigest()
