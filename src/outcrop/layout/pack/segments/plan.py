"""Segmented plan: a plan of packed rows -> one in which batches of a segment share rows.

The lists and tables of the first are read, batch by batch; those of the second are written.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from outcrop import _core
from outcrop.disk import Disk
from outcrop.layout.pack.plan import IDS, PLACES, PackPlan, append_table, save_plan
from outcrop.layout.pack.reader import TABLES, Table, count_pages, read_table
from outcrop.layout.pack.segments.search import Order, PackedLists
from outcrop.progress import SILENT, Progress
from outcrop.sample.seeds import Ids
from outcrop.store.arrays import Appender


def make_segmented(
    disk: Disk,
    folder: Path,
    whole: Path,
    lists: PackedLists,
    chosen: PackPlan,
    progress: Progress = SILENT,
    order: Order | None = None,
) -> PackPlan:
    """`whole`: the folder of the plan that `lists` are from. `chosen`: what search gave.

    On return all has reached the device.
    """
    for name in (TABLES, IDS, PLACES):  # of a call that was killed
        (folder / name).unlink(missing_ok=True)
    segments = chosen.segments
    assert segments is not None
    order = order or Order.best(segments.batches)
    segment = order.segment(lists.num_nodes, lists.most_distinct(segments.batches))
    writer = _Writer(disk, folder, lists, chosen)
    progress.stage("share", 2 * len(lists), "batches")
    try:
        with disk.open(whole / TABLES) as tables:
            for first, last in lists.segments(segments.batches):
                for t, nodes in enumerate(lists.scan(first, last)):
                    segment.add(t, nodes)
                    progress.advance(1)
                segment.share(segments.above)
                for t, nodes in enumerate(lists.scan(first, last), first):
                    segment.split(nodes)
                    writer.batch(t, nodes, read_table(tables, t, lists.plan.index[t]), segment)
                    progress.advance(1)
                writer.segment(segment, int(segments.rows[first // segments.batches]))
                segment.clear()
        cached = lists.plan
        with disk.open(whole / IDS) as ids:
            offset = 8 * int(cached.first_ids[-1])
            count = int(cached.rows[-1]) + cached.device_rows
            writer.cache(ids.read(offset, 8 * count).view(np.int64))
        return writer.finish()
    finally:
        writer.close()


class _Writer:
    """Tables, ids and places of a segmented plan."""

    def __init__(self, disk: Disk, folder: Path, lists: PackedLists, chosen: PackPlan) -> None:
        self._folder = folder
        self._chosen = chosen
        self._tables = Appender(disk, folder / TABLES)
        self._ids = Appender(disk, folder / IDS)
        self._places = Appender(disk, folder / PLACES)
        self._index = chosen.index.copy()
        self._first_id = np.zeros(len(self._index), np.int64)
        self._next_bucket = len(lists) + 1
        self._pages = 0

    def batch(self, t: int, nodes: Ids, table: Table, segment: _core.Segment) -> None:
        shared = replace(
            table,
            packed_rows=table.packed_rows[segment.own],
            shared_rows=table.packed_rows[segment.shared],
            shared_positions=segment.positions,
        )
        append_table(self._tables, self._index, t, shared)
        self._append_ids(t, nodes[segment.own])
        self._pages += count_pages(segment.positions, self._chosen.row_bytes)

    def segment(self, segment: _core.Segment, rows: int) -> None:
        """Its buckets."""
        assert self._chosen.segments is not None
        step = self._chosen.segments.bucket_rows
        for begin in range(0, rows, step):
            count = min(step, rows - begin)
            nodes, places = np.empty(count, np.int64), np.empty(count, np.uint32)
            segment.bucket(begin, nodes, places)
            self._append_ids(self._next_bucket, nodes)
            self._places.append(places)
            self._next_bucket += 1

    def cache(self, nodes: Ids) -> None:
        """Its nodes, and then those of them that are on the device."""
        self._append_ids(self._chosen.batches, nodes)

    def _append_ids(self, chunk: int, nodes: Ids) -> None:
        self._first_id[chunk] = self._ids.bytes // 8
        self._ids.append(nodes)

    def finish(self) -> PackPlan:
        for file in (self._tables, self._ids, self._places):
            file.finish()
            file.file.sync()
        own = self._chosen.batches + 1
        sizes = self._chosen.sizes[:own]
        self._index["chunk_offset"][:own] = np.cumsum(sizes) - sizes
        plan = replace(self._chosen, index=self._index, first_id=self._first_id, pages=self._pages)
        save_plan(self._folder, plan)
        return plan

    def close(self) -> None:
        for file in (self._tables, self._ids, self._places):
            file.close()
