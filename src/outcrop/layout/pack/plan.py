"""Plan: a trace and a number of cache slots -> tables, and what goes into which chunk.

All sizes and offsets are known before a row is read. What packing needs, and nobody afterwards,
goes into files of its own, so that an interrupted packing finds its plan again.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from xxhash import xxh3_64_intdigest

from outcrop.disk import Disk, round_up
from outcrop.errors import CorruptError
from outcrop.layout.pack.device_slots import DeviceSlots
from outcrop.layout.pack.reader import ROW, TABLES, Table, table_sizes
from outcrop.layout.pack.segments.layout import Segments
from outcrop.layout.pack.tiers import hottest_of_each, split_batches
from outcrop.layout.trace import TraceReader
from outcrop.progress import SILENT, Progress
from outcrop.sample.seeds import Ids
from outcrop.schema import AtLeast, Count, Made, parse
from outcrop.store.arrays import Appender
from outcrop.store.format import seal, unseal
from outcrop.store.locks import write_synced

# Only while it is made
IDS, PLAN, PLACES = "ids.bin", "plan.json", "places.bin"


@dataclass(frozen=True)
class PackPlan:
    """What is packed: a chunk per batch, that of the cache, and the buckets of segments."""

    index: NDArray[Any]
    """A row per chunk, of dtype ROW; checksums of chunks are yet to come."""
    row_bytes: int
    packed: bool
    """Whether batches have chunks; else only the cache has one."""
    segments: Segments | None = None
    first_id: Ids | None = None
    """Where in the file of ids those of each chunk begin. None: one after the other."""
    pages: int = 0
    """Pages of segments that all batches read together."""
    device_rows: int = 0
    """Cached rows on the device: their ids follow those of the cache in the file of ids."""

    @property
    def batches(self) -> int:
        return len(self.index) - 1 - self._buckets

    @property
    def _buckets(self) -> int:
        return 0 if self.segments is None else len(self.segments.buckets[0])

    @cached_property
    def rows(self) -> Ids:
        """Rows of each chunk that is to be made."""
        rows: Ids = self.index["packed"].copy()
        if not self.packed:
            rows[: self.batches] = 0
        rows.flags.writeable = False
        return rows

    @property
    def first_ids(self) -> Ids:
        """The place in the file of ids where those of each chunk begin."""
        if self.first_id is not None:
            return self.first_id
        return np.concatenate([[0], np.cumsum(self.rows)])[:-1]

    @property
    def sizes(self) -> Ids:
        """Bytes of each chunk."""
        sizes: Ids = round_up(self.rows * self.row_bytes)
        return sizes

    @property
    def chunk_bytes(self) -> int:
        """What the file of chunks takes when it is finished."""
        return self._own_bytes + (0 if self.segments is None else self.segments.bytes)

    @property
    def reserved_bytes(self) -> int:
        """What the file of chunks takes while it is made."""
        return self._own_bytes + (0 if self.segments is None else self.segments.reserved_bytes)

    @property
    def _own_bytes(self) -> int:
        return int(self.sizes[: len(self.index) - self._buckets].sum())

    @property
    def table_bytes(self) -> int:
        return int(table_sizes(self.index[: self.batches]).sum())

    @property
    def list_bytes(self) -> int:
        """What lists that only packing needs take."""
        shared = 0 if self.segments is None else int(self.segments.rows.sum())
        return 8 * (int(self.rows.sum()) + self.device_rows) + 4 * shared

    @property
    def most_bytes(self) -> int:
        """What all of it takes on disk, while it is made."""
        return self.reserved_bytes + self.table_bytes + self.list_bytes


def make_plan(
    disk: Disk,
    folder: Path,
    trace: TraceReader,
    *,
    num_nodes: int,
    row_bytes: int,
    cache_rows: int,
    packed: bool,
    device_rows: int = 0,
    progress: Progress = SILENT,
) -> PackPlan:
    """Writes tables and ids; on return all of it has reached the drive.

    The `device_rows` nodes that most batches want are the device's, and the next `cache_rows` the
    CPU's.
    """
    slots = [device_rows, device_rows + cache_rows]
    device, cached = hottest_of_each(trace, num_nodes, slots, progress)
    renumbered = DeviceSlots(cached, device) if len(device) else None
    index = np.zeros(len(trace) + 1, ROW)
    tables, ids = Appender(disk, folder / TABLES), Appender(disk, folder / IDS)
    try:
        for t, (nodes, table) in enumerate(split_batches(trace, num_nodes, cached, progress)):
            if renumbered is not None:
                table = renumbered.table(table)
            append_table(tables, index, t, table)
            if packed:
                ids.append(nodes)
        index[-1]["packed"] = len(cached)
        ids.append(cached)
        ids.append(device)
        for file in (tables, ids):
            file.finish()
            file.file.sync()
    finally:
        tables.close()
        ids.close()
    plan = PackPlan(index, row_bytes, packed, device_rows=len(device))
    index["chunk_offset"] = np.cumsum(plan.sizes) - plan.sizes
    save_plan(folder, plan)
    return plan


def append_table(tables: Appender, index: NDArray[Any], t: int, table: Table) -> None:
    """The table of batch t -> the file of tables, and its row of the index."""
    rows = (table.cached_rows, table.packed_rows, table.shared_rows, table.copied_rows)
    data = table.to_bytes()
    index[t] = (tables.bytes, 0, *map(len, rows), xxh3_64_intdigest(data.data), 0, 0)
    tables.append(data)


def save_plan(folder: Path, plan: PackPlan) -> None:
    facts = {
        "row_bytes": plan.row_bytes,
        "packed": plan.packed,
        "checked": True,
        "index": plan.index.tobytes().hex(),
        "segments": None if plan.segments is None else plan.segments.to_json(),
        "first_id": None if plan.first_id is None else plan.first_id.tolist(),
        "pages": plan.pages,
        "device_rows": plan.device_rows,
    }
    write_synced(folder / PLAN, seal(facts))


def _to_index(text: Any) -> NDArray[Any]:
    return np.frombuffer(bytes.fromhex(text), ROW).copy()


@dataclass(frozen=True)
class _PlanFile:
    """plan.json."""

    row_bytes: Annotated[int, AtLeast(1)]
    packed: bool
    index: Annotated[NDArray[Any], Made(_to_index, "rows of an index, in hex")]
    segments: Segments | None
    first_id: list[Count] | None
    pages: Count
    device_rows: Count = 0
    checked: bool = False


def load_plan(folder: Path) -> PackPlan | None:
    """The plan of a packing that was interrupted; None where it was not finished.

    None, too, where it was begun by a version that did not compare rows with their checksums.
    """
    try:
        path = folder / PLAN
        facts = parse(_PlanFile, unseal(path.read_bytes(), str(path)), str(path))
    except (FileNotFoundError, CorruptError):  # or its writer was killed
        return None
    if not facts.checked:
        return None
    return PackPlan(
        facts.index,
        facts.row_bytes,
        facts.packed,
        facts.segments,
        None if facts.first_id is None else np.array(facts.first_id, np.int64),
        facts.pages,
        facts.device_rows,
    )
