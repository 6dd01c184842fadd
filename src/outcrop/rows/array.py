"""Rows of an array that can be addressed: loaded, or memory-mapped. A bottom."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from outcrop import _core
from outcrop.memory.batches import RowRequest, RowShape
from outcrop.memory.charges import Charge
from outcrop.memory.context import Context
from outcrop.observe.meter import Meter
from outcrop.rows.source import DONE, Resources, RowFill, RowSource, RowWorker, row_shape
from outcrop.store.store import GraphStore
from outcrop.threads.parallel import cpu_count


@dataclass(frozen=True)
class ArrayRows:
    """All rows at an address."""

    loaded: bool
    """In memory; else the page cache decides, and is not charged."""
    threads: int | None = None
    """How many copy, and fault, at once; None: as many as there are cores."""

    def shape(self, context: Context) -> RowShape:
        return row_shape(context)

    def charges(self, context: Context) -> Sequence[Charge]:
        return [Charge("features", context.graph.array_bytes("features") if self.loaded else 0)]

    def open(self, on: Resources) -> RowSource:
        return _Array(on.store, loaded=self.loaded, threads=self.threads or cpu_count())


class _Array(RowSource):
    def __init__(self, store: GraphStore, *, loaded: bool, threads: int) -> None:
        self._store = store
        self._loaded = loaded
        self._threads = threads
        self._rows: NDArray[Any] | None = None

    def load(self) -> None:
        if self._loaded:
            self._rows = self._store.load("features")
        else:
            self._rows = self._store.array("features", random_access=True)

    @property
    def threads(self) -> int:
        return self._threads

    def worker(self, copier: _core.Copier, meter: Meter) -> RowWorker:
        assert self._rows is not None, "closed, or not loaded"
        return _Worker(self._rows.reshape(-1).view(np.uint8), copier, meter)

    def close(self) -> None:
        self._rows = None


class _Worker(RowWorker):
    def __init__(self, rows: NDArray[np.uint8], copier: _core.Copier, meter: Meter) -> None:
        self._rows = rows
        self._copier = copier
        self._meter = meter

    def start(self, request: RowRequest) -> RowFill:
        self._copier.gather(self._rows, request.ids, request.x, request.x_rows)
        self._meter.fetch(len(request.ids))
        return DONE

    def cancel(self) -> None:
        """Copying is cancelled with the copier."""
