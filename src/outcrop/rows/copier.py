"""Copier: rows as they are stored, from wherever they are -> rows of a batch, decoded; and back."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from outcrop import _core
from outcrop.store.format import RowEncoding

_ENCODINGS = {
    "float32": _core.Encoding.FLOAT32,
    "float16": _core.Encoding.FLOAT16,
    "bfloat16": _core.Encoding.BFLOAT16,
    "int8": _core.Encoding.INT8,
}


def copiers(encoding: RowEncoding, threads: int) -> Callable[[], _core.Copier]:
    """Makes copiers, each for one thread at a time, with so many of its own."""
    return partial(
        _core.Copier,
        row_bytes=encoding.row_bytes,
        dim=encoding.dim,
        encoding=_ENCODINGS[encoding.name],
        threads=threads,
    )
