"""Files of node attributes: features, labels and splits, a .npy each -> attributes of a source."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from outcrop.errors import CorruptError, IngestError
from outcrop.ingest.source import AdoptedRows, Attributes, Ids, LabelStream, RowStream
from outcrop.store.format import NpyHeader, read_npy_header

_NODES_PER_CHUNK = 1 << 18


@dataclass(frozen=True)
class Files:
    """Paths; None where there is no such file."""

    features: Path | None = None
    adopt_features: bool = False
    labels: Path | None = None
    splits: Mapping[str, Path | None] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return any((self.features, self.labels, *self.splits.values()))


def file_attributes(files: Files, *, nan_is_missing: bool = False) -> Attributes:
    """Streams over the files."""
    labels = None
    if files.labels is not None:
        labels = LabelStream(npy_items(files.labels, _NODES_PER_CHUNK), nan_is_missing)
    return Attributes(
        features=_features(files),
        labels=labels,
        splits={name: _ids(path) for name, path in files.splits.items() if path is not None},
    )


def _features(files: Files) -> RowStream | AdoptedRows | None:
    path = files.features
    if path is None:
        return None
    if files.adopt_features:
        return AdoptedRows(path)
    header = _header(path)
    if len(header.shape) != 2 or header.dtype.kind != "f" or header.fortran_order:
        raise IngestError(
            path, "header", f"needs floats [N, F] in C order (got {header.dtype} {header.shape})"
        )
    dim = header.shape[1]
    return RowStream(
        dim,
        "float16" if header.dtype == np.float16 else "float32",
        lambda rows: (block.reshape(-1, dim) for block in npy_items(path, rows * dim)),
    )


def _ids(path: Path) -> Iterator[Ids]:
    if _header(path).dtype.kind not in "iu":
        raise IngestError(path, "header", f"needs node ids (got {_header(path).dtype})")
    for block in npy_items(path, _NODES_PER_CHUNK):
        yield block.astype(np.int64)


def npy_items(path: Path, count: int) -> Iterator[NDArray[Any]]:
    """The items of a .npy file in order, `count` at a time."""
    header = _header(path)
    total = int(np.prod(header.shape, dtype=np.int64))
    with open(path, "rb") as file:
        file.seek(header.data_offset)
        for first in range(0, total, count):
            block = np.fromfile(file, header.dtype, min(count, total - first))
            if len(block) < min(count, total - first):
                raise IngestError(path, f"byte {file.tell()}", "the file is cut off")
            yield block


def _header(path: Path) -> NpyHeader:
    try:
        return read_npy_header(path)
    except CorruptError as error:
        raise IngestError(path, "", str(error).removeprefix(f"{path}: ")) from error
