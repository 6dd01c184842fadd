"""Labels of a source -> targets as a store keeps them, or an error that names the node.

Which kind they are is told by dtype and shape, or by whoever imports them: a stream is read once,
so nothing is told by values that are yet to come.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from outcrop.errors import IngestError, OptionError
from outcrop.ingest.source import NODES_PER_CHUNK, LabelStream
from outcrop.progress import Progress
from outcrop.store.targets import TARGET_KINDS, TargetKind, stored_dtype

_SAY_VALUES = '; for numbers to predict, give --targets values (targets="values")'


def parse_targets(targets: str | None) -> TargetKind | None:
    """What a user says of them; None: it is to be told from them."""
    if targets is not None and targets not in (*TARGET_KINDS, "auto"):
        raise OptionError(f"targets must be auto or one of {', '.join(TARGET_KINDS)} "
                          f"(got {targets!r})")  # fmt: skip
    return None if targets in (None, "auto") else targets  # type: ignore[return-value]


def file_labels(
    path: str | os.PathLike[str],
    name: str,
    *,
    dtype: np.dtype[Any],
    shape: tuple[int, ...],
    fortran_order: bool,
    items: Callable[[int], Iterator[NDArray[Any]]],
    num_nodes: int | None,
    nan_is_missing: bool,
    targets: TargetKind | None,
) -> LabelStream:
    """An array in a file, of this dtype and shape, as a stream.

    `items(n)` gives its numbers in their order, n at a time.
    """
    if shape[:1] == (1,) and num_nodes != 1:  # a row of them
        shape = (math.prod(shape),)
    width = _width(shape)
    if len(shape) > 2 and width != 1:
        raise IngestError(path, name, f"must be [N] or [N, T] (got {list(shape)})")
    if fortran_order and (width or 1) > 1:
        raise IngestError(path, name, f"must be in C order (got {dtype} {list(shape)})")
    kind = targets or _kind_by_header(path, name, dtype, shape, width)
    rows = max(1, NODES_PER_CHUNK // (width or 1))
    return LabelStream(
        shape[0] if shape else 1, dtype, items(rows * (width or 1)), nan_is_missing, kind, width
    )


def array_labels(
    array: NDArray[Any], *, nan_is_missing: bool = False, targets: TargetKind | None = None
) -> LabelStream:
    """An array in memory as a stream; its values may be looked at first."""
    width = _width(array.shape)
    if len(array.shape) > 2 and width != 1:
        raise IngestError("PyG Data", "y", f"must be [N] or [N, T] (got {list(array.shape)})")
    rows = max(1, NODES_PER_CHUNK // (width or 1))

    def chunks() -> Iterator[NDArray[Any]]:
        for first in range(0, len(array), rows):
            yield array[first : first + rows]

    kind = targets or _kind_by_values(chunks(), array.dtype, width)
    return LabelStream(len(array), array.dtype, chunks(), nan_is_missing, kind, width)


def _width(shape: tuple[int, ...]) -> int | None:
    """Numbers per node; None: [N]."""
    return None if len(shape) < 2 else math.prod(shape[1:])


def _kind_by_header(
    path: str | os.PathLike[str],
    name: str,
    dtype: np.dtype[Any],
    shape: tuple[int, ...],
    width: int | None,
) -> TargetKind:
    if width in (None, 1):
        return "classes"
    if dtype.kind == "f":
        raise IngestError(
            path,
            name,
            f"floats {list(shape)} may be labels of 0 and 1, or values: give --targets multilabel "
            "or --targets values",
        )
    return "multilabel"


def _kind_by_values(
    chunks: Iterator[NDArray[Any]], dtype: np.dtype[Any], width: int | None
) -> TargetKind:
    """Whole numbers, one per node, are classes; 0, 1 and NaN are labels; other floats values."""
    alone = width in (None, 1)
    if dtype.kind != "f":
        return "classes" if alone else "multilabel"
    for chunk in chunks:
        with np.errstate(invalid="ignore"):  # infinity: it is no whole number either
            fits = chunk == np.trunc(chunk) if alone else (chunk == 0) | (chunk == 1)
            fits = fits & ~np.isinf(chunk) | np.isnan(chunk)
        if not fits.all():
            return "values"
    return "classes" if alone else "multilabel"


class LabelReader:
    """Labels as they come -> as a store keeps them."""

    def __init__(self, name: str, labels: LabelStream, progress: Progress) -> None:
        self.kind = labels.kind
        self.dtype = stored_dtype(labels.kind)
        self._name = name
        self._labels = labels
        self._progress = progress
        self._largest = -1

    @property
    def row_shape(self) -> tuple[int, ...]:
        """The shape of a node's targets."""
        width = self._labels.width
        if self.kind == "classes" or (self.kind == "values" and width is None):
            return ()
        return (width or 1,)

    @property
    def num_classes(self) -> int:
        """Known when all were read: classes, or labels per node; 0 for values."""
        if self.kind == "classes":
            return self._largest + 1
        return self.row_shape[0] if self.kind == "multilabel" else 0

    def chunks(self) -> Iterator[NDArray[Any]]:
        convert = {
            "classes": self._classes,
            "multilabel": self._multilabel,
            "values": self._values,
        }[self.kind]
        node = 0
        for chunk in self._labels.chunks:
            labels = convert(chunk.reshape(-1, *self.row_shape), node)
            node += len(labels)
            self._progress.advance(len(labels))
            yield labels

    def _classes(self, labels: NDArray[Any], node: int) -> NDArray[Any]:
        found = self._to_int(labels, node)
        if len(found):
            self._refuse(found < -1, found, node, "is negative (-1 means no label)")
            self._largest = max(self._largest, int(found.max()))
        return found

    def _to_int(self, labels: NDArray[Any], node: int) -> NDArray[np.int64]:
        if labels.dtype.kind != "f":
            return labels.astype(np.int64)
        missing = np.isnan(labels)
        if missing.any() and not self._labels.nan_is_missing:
            raise self._error(
                node + int(np.argmax(missing)),
                "NaN; write -1 for a node without a label, or say that NaN means none "
                "(--missing-label nan, nan_is_missing=True)",
            )
        with np.errstate(invalid="ignore"):  # infinity: it is no whole number either
            rounded = np.where(missing, -1, labels).astype(np.int64)
        wrong = rounded != np.where(missing, -1, labels)
        self._refuse(wrong, labels, node, f"is not a whole number{_SAY_VALUES}")
        return rounded

    def _multilabel(self, labels: NDArray[Any], node: int) -> NDArray[Any]:
        missing = np.isnan(labels) if labels.dtype.kind == "f" else np.zeros(labels.shape, bool)
        missing |= labels == -1
        self._refuse(
            ~(missing | (labels == 0) | (labels == 1)),
            labels,
            node,
            f"is neither 0 nor 1, nor none (NaN or -1){_SAY_VALUES}",
        )
        return np.where(missing, -1, labels).astype(self.dtype)

    def _values(self, labels: NDArray[Any], node: int) -> NDArray[Any]:
        with np.errstate(over="ignore"):  # what is too large becomes infinite
            values = labels.astype(self.dtype)
        self._refuse(np.isinf(values), labels, node, "is not finite as float32")
        return values

    def _refuse(self, wrong: NDArray[np.bool_], labels: NDArray[Any], node: int, what: str) -> None:
        """IngestError with the node of the first of them."""
        if wrong.any():
            place = int(np.argmax(wrong))
            width = math.prod(labels.shape[1:])
            raise self._error(node + place // width, f"{labels.reshape(-1)[place]} {what}")

    def _error(self, node: int, what: str) -> IngestError:
        return IngestError(self._name, f"label of node {node}", what)
