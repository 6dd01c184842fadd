"""Reads: the rows of each batch -> the requests that would bring all of them from the drive."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from outcrop.sample.seeds import Ids
from outcrop.tools.profile.accesses import Bin, powers_of_two

PAGE_BYTES = 4096


@dataclass(frozen=True)
class RowPlace:
    """Where rows lie in their file."""

    base: int
    """The first row's first byte."""
    row_bytes: int

    def pages(self, rows: Ids) -> tuple[Ids, Ids]:
        """The first and the last page of each row."""
        begin = self.base + rows * self.row_bytes
        return begin // PAGE_BYTES, (begin + self.row_bytes - 1) // PAGE_BYTES


@dataclass(frozen=True)
class ReadPlan:
    """The requests of all batches, where no row is in memory."""

    gap_bytes: int
    """Pages with at most so much between them are read by one request, what is between included."""
    requests: int
    pages: int
    requests_per_batch: float
    pages_per_batch: float
    amplification: float
    """Bytes read per byte wanted."""
    pages_per_request: list[Bin]


def plan_reads(batches: Iterable[Ids], place: RowPlace, gaps: tuple[int, ...]) -> list[ReadPlan]:
    """One plan per gap. A request may be of any length, unlike the disk engine's."""
    tallies = [_Tally(gap) for gap in gaps]
    number = rows_wanted = 0
    for number, rows in enumerate(batches, 1):  # noqa: B007, how many there were
        rows_wanted += len(rows)
        first, last = place.pages(np.sort(rows))
        for tally in tallies:
            tally.add(first, last)
    return [tally.plan(number, rows_wanted * place.row_bytes) for tally in tallies]


class _Tally:
    """Requests so far, by their pages."""

    def __init__(self, gap_bytes: int) -> None:
        self._gap_bytes = gap_bytes
        self._requests: Ids = np.zeros(1, np.int64)

    def add(self, first: Ids, last: Ids) -> None:
        """The first and the last page of each row of a batch, ascending."""
        lengths = np.bincount(run_pages(first, last, self._gap_bytes))
        if len(lengths) > len(self._requests):
            self._requests = np.pad(self._requests, (0, len(lengths) - len(self._requests)))
        self._requests[: len(lengths)] += lengths

    def plan(self, batches: int, wanted_bytes: int) -> ReadPlan:
        requests = int(self._requests.sum())
        pages = int((self._requests * np.arange(len(self._requests))).sum())
        return ReadPlan(
            gap_bytes=self._gap_bytes,
            requests=requests,
            pages=pages,
            requests_per_batch=requests / batches,
            pages_per_batch=pages / batches,
            amplification=pages * PAGE_BYTES / wanted_bytes,
            pages_per_request=powers_of_two(self._requests)[1:],
        )


def run_pages(first: Ids, last: Ids, gap_bytes: int) -> Ids:
    """Pages of each request, for rows from page `first` to `last`, ascending."""
    if not len(first):
        return first
    apart = (first[1:] - last[:-1] - 1) * PAGE_BYTES > gap_bytes
    begins = np.concatenate([[True], apart])
    ends = np.concatenate([apart, [True]])
    pages: Ids = last[ends] - first[begins] + 1
    return pages
