"""Segments: how many rows each has -> where they lie in the file of chunks.

A segment is a run of consecutive batches. Rows that several of them want are stored once for all,
behind the chunks, in an order of their own. Packing goes through the features in the order of ids,
so it first fills buckets: parts of a segment that fit in memory, each in the order of ids. Buckets
lie behind the place that they will have at last. Then they are put in order, the first one first,
and each moves forward into its place, over others that have moved before.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cached_property
from typing import Annotated, Any

import numpy as np

from outcrop.disk import PAGE_BYTES, round_up
from outcrop.sample.seeds import Ids
from outcrop.schema import AtLeast, Count, Made, parse

# A bucket is held in memory while it is put in order. Small ones cost packing a piece of memory
# each, large ones that memory.
MOST_BUCKET_BYTES = 8 << 20
_LEAST_BUCKET_BYTES = 64 << 10
MOST_BUCKET_ROWS = 1 << 15
_BUCKETS = 32
# Buckets are written in blocks of this size once they are in order.
BLOCK_BYTES = 1 << 20
# How far buckets are behind their places: so many may move between two syncs.
_MOST_AHEAD = 16


def _to_ids(values: Any) -> Ids:
    counts = parse(list[Count], values, "", error=ValueError)
    return np.array(counts, np.int64)


@dataclass(frozen=True)
class Segments:
    """Where the segments of a pack lie, and their buckets while it is made."""

    batches: Annotated[int, AtLeast(1)]
    """How many each segment is for; the last one may have fewer."""
    above: Count
    """A row is in the segment if more of its batches than this want it."""
    rows: Annotated[Ids, Made(_to_ids, "a list of whole numbers of at least 0")]
    """How many each segment has."""
    row_bytes: Annotated[int, AtLeast(1)]
    first: Count
    """The byte of the file at which they begin."""

    @property
    def sizes(self) -> Ids:
        sizes: Ids = round_up(self.rows * self.row_bytes)
        return sizes

    @property
    def offsets(self) -> Ids:
        sizes = self.sizes
        return self.first + np.cumsum(sizes) - sizes

    @property
    def bytes(self) -> int:
        return int(self.sizes.sum())

    @property
    def bucket_rows(self) -> int:
        """Rows in every bucket but the last one of a segment."""
        wanted = min(max(self.bytes // _BUCKETS, _LEAST_BUCKET_BYTES), MOST_BUCKET_BYTES)
        return min(max(1, wanted // self.row_bytes), MOST_BUCKET_ROWS)

    @property
    def spare_bytes(self) -> int:
        """The distance between the place of a bucket and where it is filled."""
        each = self._bucket_bytes
        ahead = max(2 * each, min(_MOST_AHEAD * each, self.bytes // _BUCKETS))
        return int(round_up(ahead + PAGE_BYTES))

    @property
    def moves_per_sync(self) -> int:
        """How many buckets may move before a sync: they overwrite none that was not synced."""
        return (self.spare_bytes - PAGE_BYTES) // self._bucket_bytes

    @property
    def _bucket_bytes(self) -> int:
        """What one bucket takes, with the end of the segment's last page."""
        return self.bucket_rows * self.row_bytes + PAGE_BYTES

    @cached_property
    def buckets(self) -> tuple[Ids, Ids, Ids]:
        """For each bucket: rows, the byte of its place, and the byte at which it is filled."""
        step = self.bucket_rows
        counts = -(-self.rows // step)
        segment = np.repeat(np.arange(len(counts)), counts)
        number = np.arange(len(segment)) - np.repeat(np.cumsum(counts) - counts, counts)
        rows = np.minimum(self.rows[segment] - number * step, step)
        places = self.offsets[segment] + number * step * self.row_bytes
        sizes = round_up(rows * self.row_bytes)
        return rows, places, self.first + self.spare_bytes + np.cumsum(sizes) - sizes

    @property
    def reserved_bytes(self) -> int:
        """What segments take while buckets are there."""
        rows, _, _ = self.buckets
        return self.spare_bytes + int(round_up(rows * self.row_bytes).sum())

    def to_json(self) -> dict[str, Any]:
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {**values, "rows": self.rows.tolist()}


def bucket_memory_bytes(row_bytes: int) -> int:
    """What putting a bucket in order takes: the bucket, a block of it in order, ids and places."""
    return max(MOST_BUCKET_BYTES, row_bytes) + BLOCK_BYTES + row_bytes + 24 * MOST_BUCKET_ROWS
