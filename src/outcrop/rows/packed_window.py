"""Rows of a window, gathered at once: one ascending sweep over the features serves all its batches.

The rows that most of its batches want are kept in memory; the others go to a chunk per batch, in
scratch, and are read back in sequence when the batch comes. Of the features, only blocks in which
rows are wanted are read, and where these are few, the rows.
"""

from __future__ import annotations

import shutil
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from outcrop import _core
from outcrop.layout.pack.plan import make_plan
from outcrop.layout.pack.reader import ROW, Checksums, Pack
from outcrop.layout.pack.scatter import BlockReads, WantedBlocks, scatter_wanted
from outcrop.layout.pack.tiers import tiers_bytes
from outcrop.layout.pack.writer import write_pack
from outcrop.layout.trace import TraceReader
from outcrop.memory.batches import RowIndex, RowRequest, RowShape
from outcrop.memory.charges import PREPARATION, Charge, Phase
from outcrop.memory.context import Context
from outcrop.observe.meter import Meter
from outcrop.progress import Interruptible
from outcrop.rates import BRIEF, measure_rates
from outcrop.rows.packed import CPU_CACHE, PackedRows, PackedTiers, PackWorker
from outcrop.rows.source import (
    Resources,
    RowSource,
    RowWorker,
    Script,
    ScriptedRows,
    Stop,
    passed_on,
)
from outcrop.sample.seeds import Ids
from outcrop.store.arrays import WRITE_BUFFER_BYTES

FEATURE_BLOCKS, SINGLE_ROWS = "feature blocks", "single rows"
_PACK = "pack"


@dataclass(frozen=True)
class PackedWindow:
    """A cache of the rows that most batches of a window want, over chunks of the others."""

    cache_rows: int
    making_bytes: int
    """For what gathers the rows of a window."""
    block_bytes: int
    """What is read of the features at a time."""
    making_region: str | None = None
    """The name of memory that has the cache in the main loop, and makes windows in between."""

    @staticmethod
    def cached_row_bytes(context: Context) -> int:
        """In memory: a row, and its node."""
        return context.graph.row_bytes + 8

    def shape(self, context: Context) -> RowShape:
        return self._tiers.shape(context)

    @property
    def _tiers(self) -> PackedTiers:
        return PackedTiers(self.cache_rows)

    def charges(self, context: Context) -> Sequence[Charge]:
        when = Phase.RUN if self.making_region is None else Phase.LOOP
        cache = self.cache_rows * self.cached_row_bytes(context)
        rates = BRIEF.within(context.graph.array_bytes("features")).memory_bytes
        return [
            Charge(CPU_CACHE, cache, when, self.making_region),
            Charge("chunks", self._tiers.gatherer_bytes(context)),
            Charge("measuring the drive", rates, Phase.PREPARE, PREPARATION),
        ]

    def planning_bytes(self, context: Context, batches: int) -> int:
        return max(self.making_bytes, self.deciding_bytes(context, batches))

    def deciding_bytes(self, context: Context, batches: int) -> int:
        """What deciding who is cached takes: tables, their writers, and lists of who is."""
        nodes = context.batch.nodes
        tiers = tiers_bytes(context.graph.num_nodes, batches, nodes, self.cache_rows)
        index = batches * (80 + 2 * ROW.itemsize)
        return tiers + 8 * nodes + 4 * WRITE_BUFFER_BYTES + 16 * self.cache_rows + index

    def script_bytes(self, context: Context) -> int:
        """Its chunk, table and list of rows, and its share of the rows that stay in memory; at
        most: as if no other batch wanted its rows."""
        return (context.graph.row_bytes + 8 + 8) * context.batch.nodes

    def open(self, on: Resources) -> RowSource:
        return PackedWindowRows(self, on)


class PackedWindowRows(PackedRows, ScriptedRows):
    """The cache and the chunks of the window that is current."""

    lasting = True

    def __init__(self, part: PackedWindow, on: Resources) -> None:
        super().__init__(PackedTiers(part.cache_rows), on)
        self._window, self._store = part, on.store
        self._above: list[RowSource] = []
        self._rates = measure_rates(self._features.file)

    def beneath(self, above: RowSource) -> None:
        self._above.append(above)

    @property
    def found_by_node(self) -> Ids:
        """Nobody: whoever has no table may run beside a switch."""
        return np.empty(0, np.int64)

    def worker(self, copier: _core.Copier, meter: Meter) -> RowWorker:
        return _Worker(self, self._features, copier, meter)

    @property
    def _reads(self) -> BlockReads:
        return BlockReads(self._window.block_bytes, self._rates.request_bytes)

    @property
    def facts(self) -> dict[str, Any]:
        return {
            "cache_rows": self._window.cache_rows,
            "feature_block_bytes": self._window.block_bytes,
            "request_bytes": self._rates.request_bytes,
        }

    def script(
        self,
        trace: TraceReader,
        folder: Path,
        first: int,
        _last: int,
        _ends: Collection[int],
        stop: Stop,
    ) -> Script:
        """All batches of the window are gathered, whichever are asked for: later ones follow."""
        disk, features, made = self._store.disk, self._features, folder / _PACK
        shutil.rmtree(made, ignore_errors=True)  # of a call that failed
        made.mkdir()
        plan = make_plan(
            disk,
            made,
            passed_on(trace, self._above),
            num_nodes=self._store.num_nodes,
            row_bytes=features.encoding.row_bytes,
            cache_rows=self._window.cache_rows,
            packed=True,
            progress=Interruptible(stop),
        )
        readers: list[WantedBlocks] = []

        def fill(*_: object) -> Checksums:
            checksums, reader = scatter_wanted(
                disk, made, features, plan, self._reads, self._window.making_bytes, stop
            )
            readers.append(reader)
            return checksums

        write_pack(disk, made, plan, fill)
        return _WindowScript(self, Pack(disk, made), first, readers[0])

    def make_room(self) -> None:
        if self._window.making_region is not None:
            self.turn_to(None)

    def switch(self, script: Script) -> None:
        assert isinstance(script, _WindowScript)
        self.turn_to(script.pack)


class _WindowScript:
    """A pack of the batches of a window."""

    def __init__(
        self, source: PackedWindowRows, pack: Pack, first: int, reader: WantedBlocks
    ) -> None:
        self._source, self.pack = source, pack
        self.batches = len(pack) - first
        self.read_bytes = {
            FEATURE_BLOCKS: reader.block_bytes,
            SINGLE_ROWS: reader.rows * pack.row_bytes,
        }

    @property
    def fills(self) -> bool:
        return not self._source.is_at(self.pack)

    def scan(self, first: int) -> Iterator[int]:
        return iter(range(first, len(self.pack)))

    def contents(self, _: int) -> None:
        """It has those of the window, from its first batch to its last."""

    def close(self) -> None:
        self.pack.close()


class _Worker(PackWorker):
    def divide(self, _: RowRequest) -> tuple[RowIndex, RowIndex, Any] | None:
        """Tiers above are not its own: what they have was left out when it was made."""
        return None
