"""Rows read from the drive, every one of them, by one batched call."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from outcrop.batch import Prepared, RowShape
from outcrop.meter import Meter
from outcrop.plan.charges import Charge
from outcrop.rows.source import Resources, RowSource, RowWorker, row_shape
from outcrop.store.store import FeatureRows, GraphStore, decode_into

if TYPE_CHECKING:
    from outcrop.plan.context import Context


@dataclass(frozen=True)
class DriveRows:
    """No cache: the drive at full queue depth, around the page cache."""

    def shape(self, context: Context) -> RowShape:
        return row_shape(context, staged=True)

    def charges(self, _: Context) -> Sequence[Charge]:
        return []

    def open(self, on: Resources) -> RowSource:
        return _Drive(on.store)


class _Drive(RowSource):
    def __init__(self, store: GraphStore) -> None:
        self._store = store

    def worker(self, meter: Meter) -> RowWorker:
        return _Worker(self._store.features, meter)


class _Worker:
    def __init__(self, features: FeatureRows, meter: Meter) -> None:
        self._features = features
        self._meter = meter

    def gather(self, batch: Prepared, _: None = None) -> None:
        read_all(self._features, batch)
        self._meter.serve(len(batch.n_id))

    def cancel(self) -> None:
        """A read under way is waited for: it takes as long as a batch."""


def read_all(features: FeatureRows, batch: Prepared) -> None:
    """Every row of a batch."""
    assert batch.x is not None
    # Ascending, so that the drive sees one forward sweep and neighbours are read together.
    order = np.argsort(batch.n_id, kind="stable")
    stored = batch.x if batch.stored is None else batch.stored
    features.start_read(batch.n_id[order], stored, order).wait()
    if batch.stored is not None:
        decode_into(batch.stored, features.encoding, batch.x)
        batch.stored = None  # its memory goes back now
