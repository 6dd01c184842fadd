"""Individual packing, the paper's baseline: chunk after chunk, each row read where it is.

The same bytes as batched packing; for comparison.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from outcrop.disk import Disk, aligned_empty
from outcrop.layout.pack.pieces import SPARE_SLOTS, PieceWriter
from outcrop.layout.pack.plan import IDS, PackPlan
from outcrop.layout.pack.reader import CHUNKS, Checksums
from outcrop.progress import SILENT, Progress
from outcrop.store.store import FeatureRows

_BLOCK_BYTES = 16 << 20


def pack_individually(
    disk: Disk,
    folder: Path,
    features: FeatureRows,
    plan: PackPlan,
    progress: Progress = SILENT,
) -> Checksums:
    """Fills the file of chunks, which is there and has its size -> the checksum of each chunk."""
    step = max(1, _BLOCK_BYTES // plan.row_bytes)
    stored = aligned_empty((step, plan.row_bytes))
    checksums = np.zeros(len(plan.index), "<u8")
    progress.stage("pack", plan.chunk_bytes)
    with disk.open_for_update(folder / CHUNKS) as chunks, disk.open(folder / IDS) as file:
        for chunk, (place, rows) in enumerate(zip(plan.first_ids, plan.rows, strict=True)):
            writer = PieceWriter(chunks, plan, chunk, chunk + 1, 1 + SPARE_SLOTS, progress)
            for begin in range(0, int(rows), step):
                count = min(step, int(rows) - begin)
                ids = file.read(8 * (int(place) + begin), 8 * count).view(np.int64)
                features.start_read(ids, stored[:count]).wait()
                writer.append(
                    stored[:count].reshape(-1),
                    0,
                    np.array([chunk]),
                    np.array([count]),
                    np.arange(count),
                )
            checksums[chunk : chunk + 1] = writer.finish()
        chunks.sync()
    return checksums
