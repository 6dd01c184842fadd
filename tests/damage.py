"""Damage that nothing but a checksum shows: other values that could as well be right."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from outcrop.store.store import GraphStore

HUGE = np.float32(3e9).tobytes()


def overwrite(path: Path, offset: int, data: bytes) -> None:
    with open(path, "r+b") as file:
        file.seek(offset)
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def damage(store: GraphStore, name: str) -> None:
    """Every row, edge or offset that it can, to another that could be right as well."""
    entry = store.manifest.arrays[name]
    values = np.fromfile(store.file(name), entry.dtype, offset=entry.data_offset)
    if name == "indptr":  # of neighbours, an edge from one to the other
        values[1:-1:2] += values[2::2] > values[1:-1:2]
    elif name == "indices":
        values = (values + 1) % store.num_nodes
    else:
        values = values * 2 + 1
    overwrite(store.file(name), entry.data_offset, values.astype(entry.dtype).tobytes())
