"""Rows of an array that can be addressed: loaded, or memory-mapped."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from outcrop import _core
from outcrop.batch import Prepared, RowShape
from outcrop.meter import Meter
from outcrop.parallel import cpu_count
from outcrop.plan.charges import Charge
from outcrop.rows.source import ENCODINGS, Resources, RowSource, RowWorker, row_shape
from outcrop.store.format import RowEncoding
from outcrop.store.store import GraphStore

if TYPE_CHECKING:
    from outcrop.plan.context import Context


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

    def worker(self, meter: Meter) -> RowWorker:
        assert self._rows is not None, "closed, or not loaded"
        return _Worker(RowCopier(self._rows, self._store.encoding, self._threads), meter)

    def close(self) -> None:
        self._rows = None


class _Worker:
    def __init__(self, copier: RowCopier, meter: Meter) -> None:
        self._copier = copier
        self._meter = meter
        self.cancel = copier.cancel

    def gather(self, batch: Prepared, _: None = None) -> None:
        assert batch.x is not None
        self._copier.copy(batch.n_id, batch.x)
        self._meter.serve(len(batch.n_id))


class RowCopier:
    """Rows of an array, decoded on the way."""

    def __init__(self, rows: NDArray[Any], encoding: RowEncoding, threads: int) -> None:
        """`rows` as they are stored."""
        self._core = _core.RowGatherer(
            rows.reshape(-1).view(np.uint8),
            row_bytes=encoding.row_bytes,
            dim=encoding.dim,
            encoding=ENCODINGS[encoding.name],
            threads=threads,
        )

    def copy(
        self,
        ids: NDArray[np.int64],
        out: NDArray[np.float32],
        places: NDArray[np.int64] | None = None,
    ) -> None:
        """Row ids[i] -> out[places[i]]; None: in their order."""
        if places is None:
            self._core.gather(ids, out)
        else:
            self._core.gather(ids, out, places)

    def cancel(self) -> None:
        self._core.cancel()
