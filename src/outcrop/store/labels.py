"""Labels of nodes, read from disk batch by batch, where those of all nodes are too many to keep."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
from numpy.typing import NDArray

from outcrop.disk import Disk, RowReader
from outcrop.errors import CorruptError
from outcrop.store.checks import ArrayChecks
from outcrop.store.targets import TargetFormat

Ids = NDArray[np.int64]


def label_read_bytes(targets: TargetFormat) -> int:
    """What reading a node's labels takes, beside their place in a batch."""
    # Of labels that are stored otherwise, a copy as they are stored; then one byte for each number
    # says which is none, or not finite.
    staged = targets.stored.itemsize if targets.marks_none else 0
    marks = 0 if targets.kind == "classes" else 1
    return RowReader.ORDER_BYTES + targets.width * (staged + marks)


class StoredLabels:
    """The labels of a store, on disk. Thread-safe.

    One batch's are read at a time, whoever wants them: its reads keep the drive busy, and memory
    for more is not charged.
    """

    def __init__(self, disk: Disk, checks: ArrayChecks, targets: TargetFormat) -> None:
        """`checks`: of their file."""
        self.disk, self.checks, self.targets = disk, checks, targets
        self.file = disk.open(checks.path)
        self.turn = threading.Lock()
        """Held by whoever reads."""

    def reader(self) -> LabelReader:
        """For one run: to cancel it is to cancel no other."""
        return LabelReader(self)


class LabelReader:
    """Nodes -> their labels as batches have them. Thread-safe."""

    def __init__(self, labels: StoredLabels) -> None:
        self._labels = labels
        # Guarded by labels.turn, apart from `cancel`
        self._rows = RowReader(labels.file, labels.checks.entry.data_offset)

    def read(self, nodes: Ids, y: NDArray[Any]) -> None:
        """Labels of these nodes -> y. ReadError names the file, CorruptError what is no label."""
        with self._labels.turn:
            self._read(nodes, y)

    def _read(self, nodes: Ids, y: NDArray[Any]) -> None:
        disk, checks, targets = self._labels.disk, self._labels.checks, self._labels.targets
        if checks.on_read:
            checks.check_rows(disk, nodes, targets.width * targets.stored.itemsize)
        stored = np.empty(y.shape, targets.stored) if targets.marks_none else y
        self._rows.read(nodes, stored)
        self._check(nodes, stored.reshape(-1))
        if targets.marks_none:
            np.copyto(y, stored)
            y[stored < 0] = np.nan

    def _check(self, nodes: Ids, numbers: NDArray[Any]) -> None:
        targets = self._labels.targets
        bad = targets.first_wrong(numbers)
        if bad is not None:
            at, column = divmod(bad, targets.width)
            place = int(nodes[at]) * targets.width + column
            what = targets.describe_wrong(place, numbers[bad])
            raise CorruptError(f"{self._labels.checks.path}: {what}")

    def cancel(self) -> None:
        """A read under way, and every later one, raises CancelledError. From any thread."""
        self._rows.cancel()
