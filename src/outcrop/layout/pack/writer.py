"""A plan -> a finished pack: chunks are filled, put in order where batches share rows, sealed."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from outcrop.disk import PAGE_BYTES, Disk
from outcrop.errors import CorruptError
from outcrop.layout.pack.plan import IDS, PLACES, PLAN, PackPlan
from outcrop.layout.pack.reader import (
    CACHED,
    CHUNKS,
    DEVICE,
    HEADER,
    INDEX,
    PACK_FORMAT,
    PACK_VERSION,
    PIECE_BYTES,
    Checksums,
    Predicted,
)
from outcrop.layout.pack.segments.order import order_segments
from outcrop.progress import SILENT, Progress
from outcrop.sample.seeds import Ids
from outcrop.store.arrays import ArrayWriter
from outcrop.store.format import seal, unseal
from outcrop.store.locks import sync_directory, write_synced

Fill = Callable[[Disk, Path, PackPlan], Checksums]


def write_pack(
    disk: Disk, folder: Path, plan: PackPlan, fill: Fill, progress: Progress = SILENT
) -> None:
    """Makes the folder a pack; `fill` makes the chunks. On return all has reached the device.

    Where the file of chunks exists, an earlier call was interrupted, and `fill` goes on.
    """
    if (folder / CHUNKS).exists():
        with disk.open_for_update(folder / CHUNKS) as file:
            file.reserve(plan.reserved_bytes)  # killed before that, it may be shorter
    else:
        disk.create(folder / CHUNKS, plan.reserved_bytes).close()
    checksums = fill(disk, folder, plan)
    index = plan.index[: plan.batches + 1].copy()
    index["chunk_checksum"] = checksums[: len(index)]
    if plan.segments is not None:
        shared = order_segments(disk, folder, plan, checksums, progress)
        index["shared_checksum"][:-1] = shared
    cached, device = _cached_ids(disk, folder, plan)
    header = {
        "format": PACK_FORMAT,
        "version": PACK_VERSION,
        "row_bytes": plan.row_bytes,
        "piece_bytes": PIECE_BYTES,
        "packed": plan.packed,
        "table_bytes": plan.table_bytes,
        "chunk_bytes": plan.chunk_bytes,
        "segments": None if plan.segments is None else plan.segments.to_json(),
        "predicted": asdict(predict(plan)),
        "index": _write_array(disk, folder, INDEX, index),
        "cached": _write_array(disk, folder, CACHED, cached),
    }
    if len(device):
        header["device"] = _write_array(disk, folder, DEVICE, device)
    write_synced(folder / HEADER, seal(header))
    sync_directory(folder)  # before what it was made from goes
    tidy_finished(folder)


def tidy_finished(folder: Path) -> bool:
    """Whether the pack is finished: then what only its making needs is removed."""
    try:
        unseal((folder / HEADER).read_bytes(), str(folder / HEADER))
    except (FileNotFoundError, CorruptError):  # or its writer was killed
        return False
    for path in folder.iterdir():
        if path.name in (IDS, PLACES, PLAN) or path.name.lstrip(".").startswith("progress"):
            os.unlink(path)
    return True


def _cached_ids(disk: Disk, folder: Path, plan: PackPlan) -> tuple[Ids, Ids]:
    """All cached ids, and those of the device."""
    with disk.open(folder / IDS) as file:
        begin, count = int(plan.first_ids[plan.batches]), int(plan.rows[plan.batches])
        ids = file.read(8 * begin, 8 * (count + plan.device_rows)).view(np.int64)
        return ids[:count], ids[count:]


def _write_array(disk: Disk, folder: Path, name: str, array: NDArray[Any]) -> dict[str, Any]:
    (folder / name).unlink(missing_ok=True)  # of a call that was interrupted here
    with ArrayWriter(disk, folder, name, array.dtype, rows=len(array)) as writer:
        writer.append(array)
        return writer.close().to_json()


def predict(plan: PackPlan) -> Predicted:
    """What training will read, by the paper's equation 2."""
    own = plan.index[: plan.batches]
    rows = int((own["packed"] + own["shared"]).sum())
    chunks = int(plan.sizes[: plan.batches].sum())
    return Predicted(chunks, plan.pages * PAGE_BYTES, rows * plan.row_bytes)
