"""Order: buckets that packing has filled -> segments, each row in its position; then checksums.

Buckets move forward one after the other. How many have moved is saved before the next ones would
overwrite buckets that are needed again after a kill.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from xxhash import xxh3_64_intdigest

from outcrop import _core
from outcrop.disk import PAGE_BYTES, Disk, File, aligned_empty, read_blocks, round_up
from outcrop.errors import CorruptError
from outcrop.layout.pack.plan import PLACES, PackPlan
from outcrop.layout.pack.reader import (
    CHUNKS,
    PIECE_BYTES,
    TABLES,
    Checksums,
    PageRuns,
    chunk_checksum,
    read_table,
)
from outcrop.layout.pack.segments.layout import BLOCK_BYTES, Segments
from outcrop.progress import SILENT, Progress
from outcrop.sample.seeds import Ids
from outcrop.schema import Count, parse
from outcrop.store.format import seal, unseal
from outcrop.store.locks import replace_synced

_MOVED = "progress-order.json"


def order_segments(
    disk: Disk, folder: Path, plan: PackPlan, checksums: Checksums, progress: Progress = SILENT
) -> Checksums:
    """Puts all segments in order, and cuts the file to its length -> a checksum per batch.

    `checksums`: of all chunks, buckets included. On return all of it has reached the device. Goes
    on where an earlier call was interrupted.
    """
    segments = plan.segments
    assert segments is not None
    with disk.open_for_update(folder / CHUNKS) as chunks:
        progress.stage("order", 2 * segments.bytes)
        with disk.open(folder / PLACES) as places:
            _move_buckets(chunks, places, folder, segments, checksums, progress)
        chunks.truncate(plan.chunk_bytes)
        chunks.sync()
        with disk.open(folder / TABLES) as tables:
            return _batch_checksums(chunks, tables, plan, segments, progress)


def _move_buckets(
    chunks: File,
    places: File,
    folder: Path,
    segments: Segments,
    checksums: Checksums,
    progress: Progress,
) -> None:
    rows, ends_at, filled_at = segments.buckets
    before = np.cumsum(rows) - rows
    row_bytes = segments.row_bytes
    moved = _load_moved(folder)
    progress.advance(int(rows[:moved].sum()) * row_bytes)
    most = int(rows.max(initial=0))
    memory = aligned_empty(int(round_up(most * row_bytes)))
    step = max(1, BLOCK_BYTES // row_bytes)
    block = aligned_empty((min(step, most), row_bytes))
    for bucket in range(moved, len(rows)):
        count = int(rows[bucket])
        stored = memory[: round_up(count * row_bytes)]
        chunks.read_extents([int(filled_at[bucket])], [len(stored)], stored)
        own = len(checksums) - len(rows) + bucket
        _check_bucket(chunks, stored, int(filled_at[bucket]), int(checksums[own]))
        by_id = stored[: count * row_bytes].reshape(count, row_bytes)
        source = _inverse(places.read(4 * int(before[bucket]), 4 * count).view(np.uint32))
        for begin in range(0, count, step):
            taken = source[begin : begin + step]
            np.take(by_id, taken, axis=0, out=block[: len(taken)], mode="clip")
            chunks.write(int(ends_at[bucket]) + begin * row_bytes, block[: len(taken)])
        progress.advance(count * row_bytes)
        if (bucket + 1 - moved) % segments.moves_per_sync == 0 or bucket + 1 == len(rows):
            chunks.sync()
            _save_moved(folder, bucket + 1)


def _inverse(places: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """Where each position's row is, from the position of each row."""
    source = np.empty_like(places)
    source[places] = np.arange(len(places), dtype=np.uint32)
    return source


def _check_bucket(chunks: File, stored: NDArray[np.uint8], offset: int, checksum: int) -> None:
    pieces = [
        xxh3_64_intdigest(stored[begin : begin + PIECE_BYTES].data)
        for begin in range(0, len(stored), PIECE_BYTES)
    ]
    if chunk_checksum(np.array(pieces, "<u8")) != checksum:
        raise CorruptError(
            f"{chunks.path}: {len(stored)} B at {offset} differ from their checksum while packing"
        )


@dataclass(frozen=True)
class _Moved:
    moved: Count


def _load_moved(folder: Path) -> int:
    path = folder / _MOVED
    try:
        return parse(_Moved, unseal(path.read_bytes(), str(path)), str(path)).moved
    except FileNotFoundError:
        return 0


def _save_moved(folder: Path, moved: int) -> None:
    """On return it has reached the device."""
    replace_synced(folder / _MOVED, seal({"moved": moved}))


def _batch_checksums(
    chunks: File, tables: File, plan: PackPlan, segments: Segments, progress: Progress
) -> Checksums:
    """Per batch: the sum of the checksums of the pages that it reads of its segment."""
    found = np.zeros(plan.batches, "<u8")
    for number, (offset, size) in enumerate(
        zip(segments.offsets.tolist(), segments.sizes.tolist(), strict=True)
    ):
        # sums[i]: of all pages before page i, modulo 2^64.
        sums = np.zeros(size // PAGE_BYTES + 1, np.uint64)
        page = 0
        for block in read_blocks(chunks, offset, offset + size):
            pages = len(block) // PAGE_BYTES
            _core.checksum_pages(
                block, offset // PAGE_BYTES + page, sums[1 + page : 1 + page + pages]
            )
            page += pages
            progress.advance(len(block))
        np.cumsum(sums, out=sums)
        first = number * segments.batches
        for t in range(first, min(first + segments.batches, plan.batches)):
            positions = read_table(tables, t, plan.index[t]).shared_positions
            runs = PageRuns(positions, segments.row_bytes)
            found[t] = _sum_of(sums, runs.firsts, runs.counts)
    return found


def _sum_of(sums: NDArray[np.uint64], firsts: Ids, counts: Ids) -> int:
    return int((sums[firsts + counts] - sums[firsts]).sum(dtype=np.uint64))
