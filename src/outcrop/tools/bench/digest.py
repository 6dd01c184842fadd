"""Digest: batches -> a checksum over everything that a model would see of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import xxhash

_TENSORS = ("n_id", "edge_index", "e_id", "x", "y", "input_id", "root_n_id")
# Rows at a time, where they stay in slots: all at once would take more memory than the batch has.
_ROWS = 4096


def digest_batches(batches: Iterable[Any]) -> str:
    """Ids, edges, labels and rows of each batch, in their order -> XXH3-128, in hex."""
    digest = xxhash.xxh3_128()
    for batch in batches:
        for name in _TENSORS:
            for part in _parts(batch, name):
                digest.update(part)
        del batch
    return digest.hexdigest()


def _parts(batch: Any, name: str) -> Iterator[Any]:
    """A tensor's name, type and shape, then its bytes; nothing where the batch has none."""
    if name == "x" and batch.get("x_index") is not None:
        rows, index = batch.x_buffer, batch.x_index
        yield _header(name, rows[:1].cpu().numpy().dtype, (len(index), rows.shape[1]))
        for begin in range(0, len(index), _ROWS):
            yield rows[index[begin : begin + _ROWS]].cpu().numpy().data
    elif batch.get(name) is not None:
        array = batch[name].cpu().numpy()
        yield _header(name, array.dtype, array.shape)
        yield array.data


def _header(name: str, dtype: Any, shape: tuple[int, ...]) -> bytes:
    return f"{name} {dtype} {shape}".encode()
