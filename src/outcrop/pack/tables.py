"""Tables: where the rows of a batch are found <-> bytes of a file. docs/format.md has them."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from xxhash import xxh3_64_intdigest

from outcrop.cache.tiers import Rows
from outcrop.disk import File
from outcrop.errors import CorruptError

PAGE_BYTES = 4096


@dataclass(frozen=True)
class Table:
    """Where the rows of a batch are found; every row is in one of the four lists of rows."""

    cached_rows: Rows
    """And for each its slot in the cache."""
    cached_slots: Rows
    packed_rows: Rows
    """In the order of the batch's chunk."""
    shared_rows: Rows
    """And for each its position in the batch's segment; these ascend."""
    shared_positions: Rows
    copied_rows: Rows
    """And for each the row that it is a copy of."""
    copied_from: Rows

    def to_bytes(self) -> NDArray[np.uint8]:
        """In whole pages."""
        parts = tuple(vars(self).values())
        words = sum(map(len, parts))
        table = np.zeros(int(round_up(np.int64(4 * words))) // 4, "<u4")
        np.concatenate(parts, out=table[:words])
        return table.view(np.uint8)


def table_sizes(index: NDArray[Any]) -> Any:
    """Rows of an index -> bytes of each table."""
    pairs = index["cached"] + index["shared"] + index["copied"]
    return round_up(4 * (2 * pairs + index["packed"]))


def read_table(file: File, t: int, row: Any) -> Table:
    """The table of batch t, whose row of the index is `row`."""
    cached, packed = int(row["cached"]), int(row["packed"])
    shared, copied = int(row["shared"]), int(row["copied"])
    sizes = (cached, cached, packed, shared, shared, copied, copied)
    size, offset = int(table_sizes(row)), int(row["table_offset"])
    data = file.read(offset, size)
    if xxh3_64_intdigest(data.data) != row["table_checksum"]:
        raise CorruptError(
            f"{file.path}: batch {t}: {size} B at {offset} differ from their checksum"
        )
    words = data.view("<u4")
    bounds = np.concatenate([[0], np.cumsum(sizes)]).tolist()
    return Table(*(words[b:e] for b, e in itertools.pairwise(bounds)))


def round_up(count: Any) -> Any:
    """To whole pages."""
    return -(-count // PAGE_BYTES) * PAGE_BYTES
