"""Files of node attributes: features, labels and splits, a .npy each -> attributes of a source."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from outcrop.errors import CorruptError, IngestError
from outcrop.ingest.labels import file_labels, parse_targets
from outcrop.ingest.source import (
    NODES_PER_CHUNK,
    AdoptedRows,
    Attributes,
    Ids,
    LabelStream,
    RowStream,
)
from outcrop.store.format import NpyHeader, read_npy_header


@dataclass(frozen=True)
class Files:
    """Paths; None where there is no such file."""

    features: Path | None = None
    adopt_features: bool = False
    labels: Path | None = None
    splits: Mapping[str, Path | None] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return any((self.features, self.labels, *self.splits.values()))


def file_attributes(
    files: Files, *, nan_is_missing: bool = False, targets: str | None = None
) -> Attributes:
    """Streams over the files."""
    return Attributes(
        features=_features(files),
        labels=_labels(files.labels, nan_is_missing, targets),
        splits={name: _ids(path) for name, path in files.splits.items() if path is not None},
    )


def _labels(path: Path | None, nan_is_missing: bool, targets: str | None) -> LabelStream | None:
    if path is None:
        return None
    header = _header(path)
    return file_labels(
        path,
        "labels",
        dtype=header.dtype,
        shape=header.shape,
        fortran_order=header.fortran_order,
        items=lambda count: npy_items(path, count),
        num_nodes=None,
        nan_is_missing=nan_is_missing,
        targets=parse_targets(targets),
    )


def _features(files: Files) -> RowStream | AdoptedRows | None:
    path = files.features
    if path is None:
        return None
    header = _header(path)
    if len(header.shape) != 2 or header.dtype.kind != "f" or header.fortran_order:
        raise IngestError(
            path, "header", f"needs floats [N, F] in C order (got {header.dtype} {header.shape})"
        )
    rows, dim = header.shape
    encoding = "float16" if header.dtype == np.float16 else "float32"
    if files.adopt_features:
        if header.dtype != np.dtype(encoding):
            raise IngestError(
                path, "header", f"to be adopted, must be float32 or float16 (got {header.dtype})"
            )
        return AdoptedRows(path, rows, dim, encoding)
    return RowStream(
        rows,
        dim,
        encoding,
        lambda count: (block.reshape(-1, dim) for block in npy_items(path, count * dim)),
    )


def _ids(path: Path) -> Iterator[Ids]:
    dtype = _header(path).dtype
    if dtype.kind not in "iu":
        raise IngestError(path, "header", f"needs node ids (got {dtype})")
    return (block.astype(np.int64) for block in npy_items(path, NODES_PER_CHUNK))


def npy_items(path: Path, count: int) -> Iterator[NDArray[Any]]:
    """The items of a .npy file in order, `count` at a time."""
    header = _header(path)
    total = header.count
    with open(path, "rb") as file:
        file.seek(header.data_offset)
        for first in range(0, total, count):
            yield np.fromfile(file, header.dtype, min(count, total - first))


def _header(path: Path) -> NpyHeader:
    try:
        header = read_npy_header(path)
    except CorruptError as error:
        raise IngestError(path, "", str(error).removeprefix(f"{path}: ")) from error
    size = path.stat().st_size
    if size < header.data_offset + header.data_bytes:
        raise IngestError(path, f"byte {size}", "the file is cut off")
    return header
