"""Pages: positions of rows in a segment -> which pages are read, and where in them each row is.

Every page is read once for a batch, and pages that follow each other by one request. Rows may have
any size: one that goes on in the next page finds it, since both are read and follow each other.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from outcrop.cache.tiers import Rows
from outcrop.pack.tables import PAGE_BYTES
from outcrop.sample.seeds import Ids


def count_pages(positions: Rows, row_bytes: int) -> int:
    """REQUIRES: ascending, each once."""
    first, last = _pages_of(positions, row_bytes)
    return int((last - first + 1).sum() - np.count_nonzero(first[1:] == last[:-1]))


def _pages_of(positions: Rows, row_bytes: int) -> tuple[Ids, Ids]:
    """The first and the last page of each row."""
    begin = positions.astype(np.int64) * row_bytes
    last = begin + (row_bytes - 1)
    return np.floor_divide(begin, PAGE_BYTES, out=begin), np.floor_divide(
        last, PAGE_BYTES, out=last
    )


class PageRuns:
    """The pages of some rows of a segment, one after the other: a stream of bytes."""

    def __init__(self, positions: Rows, row_bytes: int) -> None:
        """REQUIRES: ascending, each once."""
        first, last = _pages_of(positions, row_bytes)
        begins = np.flatnonzero(first[1:] > last[:-1] + 1) + 1
        begins = np.concatenate([np.zeros(min(1, len(first)), np.int64), begins])
        ends = np.append(begins[1:], len(first))
        self.firsts: Ids = first[begins]
        """The first page of each run, and how many it has."""
        self.counts: Ids = last[ends - 1] - self.firsts + 1 if len(begins) else begins
        del first, last
        self._before = np.cumsum(self.counts) - self.counts
        self.pages = int(self.counts.sum())
        gone = np.repeat((self.firsts - self._before) * PAGE_BYTES, ends - begins)
        self.offsets: Ids = np.multiply(positions, row_bytes, dtype=np.int64)
        """The byte of the stream at which each row begins."""
        self.offsets -= gone

    def blocks(self, pages: int) -> Iterator[tuple[Ids, Ids]]:
        """The stream in blocks of so many pages: runs of each, their first pages and counts."""
        for begin in range(0, self.pages, pages):
            end = min(begin + pages, self.pages)
            low = int(np.searchsorted(self._before, begin, side="right")) - 1
            high = int(np.searchsorted(self._before, end))
            before, counts = self._before[low:high], self.counts[low:high]
            skipped = np.maximum(begin - before, 0)
            taken = np.minimum(before + counts, end) - before - skipped
            yield self.firsts[low:high] + skipped, taken
