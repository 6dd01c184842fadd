"""Rows read from the drive, all of a request by one batched call. A bottom."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from outcrop import _core
from outcrop.disk import Pending
from outcrop.memory.batches import RowRequest, RowShape
from outcrop.memory.charges import Charge
from outcrop.memory.context import Context
from outcrop.observe.meter import Meter
from outcrop.rows.source import Resources, RowFill, RowSource, RowWorker, row_shape
from outcrop.sample.seeds import Ids
from outcrop.store.store import FeatureRows

USUAL_UNIT = 4096


@dataclass(frozen=True)
class DriveRows:
    """No cache: the drive at full queue depth, around the page cache."""

    unit_bytes: int = USUAL_UNIT
    """The size of the smallest read, and what it is aligned to."""
    merged: bool = True
    """Whether rows that are near each other are read by one request."""

    @property
    def _own_engine(self) -> bool:
        return self != DRIVE

    def shape(self, context: Context) -> RowShape:
        return row_shape(context, staged=True)

    def charges(self, context: Context) -> Sequence[Charge]:
        engine = context.engine.in_units(self.unit_bytes) if self._own_engine else 0
        return [Charge("disk engine for rows", engine)]

    def open(self, on: Resources) -> DriveSource:
        store = on.store
        if not self._own_engine:
            return DriveSource(store.features)
        return DriveSource(store.features_by(unit_bytes=self.unit_bytes, merge=self.merged))


DRIVE = DriveRows()


class DriveSource(RowSource):
    """What can also read rows into memory of other tiers."""

    def __init__(self, features: FeatureRows) -> None:
        self.features = features

    def read(self, ids: Ids, memory: NDArray[np.uint8], slots: Ids) -> Pending:
        """Rows as they are stored, ids ascending -> rows `slots` of memory."""
        return _start(self.features, ids, memory, slots)

    def worker(self, copier: _core.Copier, meter: Meter) -> RowWorker:
        return _Worker(self.features, copier, meter)


def _start(features: FeatureRows, ids: Ids, memory: NDArray[np.uint8], places: Ids) -> Pending:
    if features.checks.on_read:
        features.check(ids)
    return features.file.start_read_rows(ids, memory, base=features.base, places=places)


class _Worker(RowWorker):
    def __init__(self, features: FeatureRows, copier: _core.Copier, meter: Meter) -> None:
        self._features = features
        self._copier = copier
        self._meter = meter

    def start(self, request: RowRequest) -> RowFill:
        # Ascending, so that the drive sees one forward sweep and neighbours are read together.
        order = np.argsort(request.ids)
        places: Ids = order if request.x_rows is None else request.x_rows[order].astype(np.int64)
        pending = _start(self._features, request.ids[order], request.stored, places)
        self._meter.fetch(len(order))
        return _Reading(pending, request, self._copier)

    def cancel(self) -> None:
        """A read under way is waited for: it takes as long as a batch."""


class _Reading:
    def __init__(self, pending: Pending, request: RowRequest, copier: _core.Copier) -> None:
        self._pending = pending
        self._request = request
        self._copier = copier

    def finish(self) -> None:
        self._pending.wait()
        request = self._request
        if request.staged is not None:
            places = request.x_rows
            slots = np.arange(len(request.ids)) if places is None else places
            self._copier.gather(request.staged, slots, request.x, places)
