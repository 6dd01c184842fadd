"""Values of arrays that are about to be used: in range, or a CorruptError that names the entry.

Checksums tell what changed since it was written; this tells what was written wrong, before it is
followed out of bounds. A pass over memory or a file, a few MB at a time.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from outcrop.errors import CorruptError

_ENTRIES_AT_A_TIME = 1 << 18


class _Parts(Protocol):
    """Slices of an array that is not in memory."""

    def __len__(self) -> int: ...

    def __getitem__(self, at: slice | int) -> Any: ...


Offsets = NDArray[np.int64] | _Parts


def check_offsets(path: Path, offsets: Offsets, num_edges: int) -> None:
    """Offsets of neighbour lists ascend from 0 to the number of edges."""
    check_ends(path, offsets, num_edges)
    for first in range(0, len(offsets) - 1, _ENTRIES_AT_A_TIME):
        piece = offsets[first : first + _ENTRIES_AT_A_TIME + 1]
        descends = piece[1:] < piece[:-1]
        if descends.any():
            node = first + int(np.argmax(descends))
            begin, end = (int(offset) for offset in offsets[node : node + 2])
            raise CorruptError(
                f"{path}: node {node}: its list begins at edge {begin} and ends at {end}"
            )


def check_ends(path: Path, offsets: Offsets, num_edges: int) -> None:
    """The first and the last of them alone."""
    if int(offsets[0]) != 0 or int(offsets[-1]) != num_edges:
        raise CorruptError(
            f"{path}: goes from edge {offsets[0]} to {offsets[-1]}, but there are {num_edges} edges"
        )


def first_outside(values: NDArray[Any], low: int, high: int) -> int | None:
    """The place of the first value that is not low to high - 1; None where all are."""
    for first in range(0, len(values), _ENTRIES_AT_A_TIME):
        piece = values[first : first + _ENTRIES_AT_A_TIME]
        if not low <= int(piece.min()) <= int(piece.max()) < high:
            return first + int(np.argmax((piece < low) | (piece >= high)))
    return None
