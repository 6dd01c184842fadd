"""Plan: a trace and a number of cache slots -> tables, and what goes into which chunk.

All sizes and offsets are known before a row is read. What packing needs, and nobody afterwards,
goes into files of its own, so that an interrupted packing finds its plan again.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from xxhash import xxh3_64_intdigest

from outcrop.cache.tiers import BatchTiers, hottest_nodes, split_batches
from outcrop.disk import Disk
from outcrop.errors import CorruptError
from outcrop.progress import SILENT, Progress
from outcrop.sample.seeds import Ids
from outcrop.sample.trace import TraceReader
from outcrop.store.arrays import Appender
from outcrop.store.format import seal, unseal
from outcrop.store.locks import write_synced

PAGE_BYTES = 4096
TABLES, CHUNKS = "tables.bin", "chunks.bin"
# Only while it is made
IDS, PLAN = "ids.bin", "plan.json"

ROW = np.dtype(
    [(name, "<i8") for name in ("table_offset", "chunk_offset", "cached", "packed", "copied")]
    + [("table_checksum", "<u8"), ("chunk_checksum", "<u8")]
)


@dataclass(frozen=True)
class PackPlan:
    """What is packed: a chunk per batch, and last the one of the cache."""

    index: NDArray[Any]
    """A row per chunk, of dtype ROW; checksums of chunks are yet to come."""
    row_bytes: int
    packed: bool
    """Whether batches have chunks; else only the cache has one."""

    @cached_property
    def rows(self) -> Ids:
        """Rows of each chunk that is to be made."""
        rows: Ids = self.index["packed"].copy()
        if not self.packed:
            rows[:-1] = 0
        rows.flags.writeable = False
        return rows

    @property
    def first_ids(self) -> Ids:
        """The place in the file of ids where those of each chunk begin."""
        return np.concatenate([[0], np.cumsum(self.rows)])[:-1]

    @property
    def chunk_bytes(self) -> int:
        """Of all chunks together."""
        return int(round_up(self.rows * self.row_bytes).sum())

    @property
    def table_bytes(self) -> int:
        words = 2 * self.index["cached"] + self.index["packed"] + 2 * self.index["copied"]
        return int(round_up(4 * words[:-1]).sum())

    @property
    def most_bytes(self) -> int:
        """On disk, while it is made."""
        return self.chunk_bytes + self.table_bytes + 8 * int(self.rows.sum())


def make_plan(
    disk: Disk,
    folder: Path,
    trace: TraceReader,
    *,
    num_nodes: int,
    row_bytes: int,
    cache_rows: int,
    packed: bool,
    progress: Progress = SILENT,
) -> PackPlan:
    """Writes tables and ids; on return all of it has reached the device."""
    cached = hottest_nodes(trace, num_nodes, cache_rows, progress)
    index = np.zeros(len(trace) + 1, ROW)
    tables, ids = Appender(disk, folder / TABLES), Appender(disk, folder / IDS)
    try:
        for t, tiers in enumerate(split_batches(trace, num_nodes, cached, progress)):
            table = table_of(tiers)
            counts = len(tiers.cached_rows), len(tiers.packed_rows), len(tiers.copied_rows)
            checksum = xxh3_64_intdigest(table.data)
            index[t] = (tables.bytes, 0, *counts, checksum, 0)
            tables.append(table)
            if packed:
                ids.append(tiers.packed_nodes)
        index[-1]["packed"] = len(cached)
        ids.append(cached)
        for file in (tables, ids):
            file.finish()
            file.file.sync()
    finally:
        tables.close()
        ids.close()
    plan = PackPlan(index, row_bytes, packed)
    sizes = round_up(plan.rows * row_bytes)
    index["chunk_offset"] = np.cumsum(sizes) - sizes
    facts = {"row_bytes": row_bytes, "packed": packed, "index": index.tobytes().hex()}
    write_synced(folder / PLAN, seal(facts))
    return plan


def load_plan(folder: Path) -> PackPlan | None:
    """The plan of a packing that was interrupted; None where it was not finished."""
    try:
        facts = unseal((folder / PLAN).read_bytes(), str(folder / PLAN))
    except (FileNotFoundError, CorruptError):  # or its writer was killed
        return None
    index = np.frombuffer(bytes.fromhex(facts["index"]), ROW).copy()
    return PackPlan(index, facts["row_bytes"], facts["packed"])


def table_of(tiers: BatchTiers) -> NDArray[np.uint8]:
    """Cached rows, their slots, packed rows, copied rows, their originals; in whole pages."""
    parts = (tiers.cached_rows, tiers.cached_slots, tiers.packed_rows, tiers.copied_rows,
             tiers.copied_from)  # fmt: skip
    words = sum(map(len, parts))
    table = np.zeros(int(round_up(np.int64(4 * words))) // 4, "<u4")
    np.concatenate(parts, out=table[:words])
    return table.view(np.uint8)


def round_up(count: Any) -> Any:
    """To whole pages."""
    return -(-count // PAGE_BYTES) * PAGE_BYTES
