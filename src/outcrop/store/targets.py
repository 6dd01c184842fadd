"""Targets: what the labels of a store are, as they are stored, in memory and in batches.

classes     a class per node        stored int64 [N], -1: none      in batches int64 [n]
multilabel  T labels, each 0 or 1   stored int8 [N, T], -1: none    in batches float32, NaN: none
values      numbers                 stored float32 [N] or [N, T]    in batches float32, NaN: none
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from outcrop.disk import Ints
from outcrop.store.values import first_outside

TargetKind = Literal["classes", "multilabel", "values"]
TARGET_KINDS: tuple[str, ...] = get_args(TargetKind)

_STORED: dict[str, np.dtype[Any]] = {
    "classes": np.dtype("<i8"),
    "multilabel": np.dtype("i1"),
    "values": np.dtype("<f4"),
}


@dataclass(frozen=True)
class TargetFormat:
    """How the targets of a store are kept."""

    kind: TargetKind
    num_classes: int
    """Classes, or labels of a node; 0 for values."""
    row_shape: tuple[int, ...] = ()
    """The shape of a node's targets."""

    @property
    def width(self) -> int:
        """Numbers per node."""
        return self.row_shape[0] if self.row_shape else 1

    @property
    def count(self) -> int:
        """Classes, labels or values: what a model has an output for."""
        return self.num_classes if self.kind == "classes" else self.width

    @property
    def noun(self) -> str:
        """What `count` counts."""
        return "labels" if self.kind == "multilabel" else self.kind

    @property
    def stored(self) -> np.dtype[Any]:
        return stored_dtype(self.kind)

    @property
    def held(self) -> np.dtype[Any]:
        """In memory: of classes, the smallest integers that hold every one."""
        if self.kind != "classes":
            return self.stored
        return np.min_scalar_type(-max(self.num_classes, 1))

    @property
    def held_row_bytes(self) -> int:
        """What a node's targets take in memory."""
        return self.width * self.held.itemsize

    @property
    def batch_row_bytes(self) -> int:
        """What a node's targets take in a batch."""
        return self.width * self.batch_dtype.itemsize

    @property
    def batch_dtype(self) -> np.dtype[Any]:
        """What batches have them as."""
        return np.dtype(np.int64 if self.kind == "classes" else np.float32)

    @property
    def marks_none(self) -> bool:
        """Whether -1 stands for NaN, which batches have."""
        return self.kind == "multilabel"

    def take(self, labels: NDArray[Any], nodes: Ints | slice) -> NDArray[Any]:
        """Labels of these nodes, out of those of all, as batches have them."""
        taken: NDArray[Any] = labels[nodes].astype(self.batch_dtype)
        if self.marks_none:
            taken[taken < 0] = np.nan
        return taken

    def first_wrong(self, numbers: NDArray[Any]) -> int | None:
        """The place of the first number that is no target; None where all are. One dimension."""
        if self.kind != "values":
            return first_outside(numbers, -1, self.num_classes if self.kind == "classes" else 2)
        infinite = np.isinf(numbers)
        return int(np.argmax(infinite)) if infinite.any() else None

    def describe_wrong(self, place: int, number: Any) -> str:
        """A sentence about the number at this place of all."""
        node, at = divmod(place, self.width)
        if self.kind == "classes":
            return f"node {node} has label {number}, but there are {self.num_classes} classes"
        if self.kind == "multilabel":
            return f"node {node} has {number} for label {at}, which is neither 0, 1 nor -1 (none)"
        return f"node {node} has {number} for value {at}, which is not finite"


def stored_dtype(kind: TargetKind) -> np.dtype[Any]:
    """What a store keeps targets of this kind as."""
    return _STORED[kind]


def without_target(targets: NDArray[Any]) -> NDArray[np.bool_]:
    """Whether each node has none at all."""
    missing: NDArray[Any] = np.isnan(targets) if targets.dtype.kind == "f" else targets < 0
    none: NDArray[np.bool_] = np.asarray(missing.reshape(len(targets), -1).all(axis=1))
    return none
