"""Brute force: all segments that fit on disk -> those that read the least; the paper's baseline.

For comparison with the heuristic (segments/search.py), which looks at a few.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from outcrop.layout.pack.reader import Predicted, count_pages
from outcrop.layout.pack.segments.search import Order, PackedLists, measure
from outcrop.layout.pack.writer import predict
from outcrop.sample.seeds import Ids


@dataclass(frozen=True)
class Candidate:
    """Segments of one kind: what they take on disk, and what is read."""

    batches: int
    above: int
    most_bytes: int
    predicted: Predicted


def candidates(
    lists: PackedLists, room: int, lengths: Iterable[int], thresholds: Iterable[int]
) -> Iterator[Candidate]:
    """All that fit into `room` bytes on disk, one by one: the paper's brute force, less its choice.

    For comparison: each takes two passes over the lists, and a sort.
    """
    thresholds = list(thresholds)
    for batches in lengths:
        measured = measure(lists, batches)
        for above in thresholds:
            needed = measured.most_bytes(above)
            if above > measured.most_above or needed > room:
                continue
            pages = segment_pages(lists, batches, above, Order.best(batches))
            plan = replace(measured.plan(above), pages=int(pages.sum()))
            yield Candidate(batches, above, needed, predict(plan))


def brute_force(found: Iterable[Candidate]) -> Candidate | None:
    """The one that reads the least."""
    return min(found, key=lambda candidate: candidate.predicted.bytes, default=None)


def segment_pages(lists: PackedLists, batches: int, above: int, order: Order) -> Ids:
    """How many pages each batch reads of its segment; nothing is written."""
    segment = order.segment(lists.num_nodes, lists.most_distinct(batches))
    pages = np.zeros(len(lists), np.int64)
    for first, last in lists.segments(batches):
        for t, nodes in enumerate(lists.scan(first, last)):
            segment.add(t, nodes)
        segment.share(above)
        for t, nodes in enumerate(lists.scan(first, last), first):
            segment.split(nodes)
            pages[t] = count_pages(segment.positions, lists.plan.row_bytes)
        segment.clear()
    return pages
