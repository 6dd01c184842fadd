"""npz: one file with edge_index, x, y and masks -> a graph source.

Members, each a .npy inside the zip, compressed or not, read as streams:

    edge_index  int [2, E], source -> target
    num_nodes   int; else the number of rows of x, or of y
    x           float [N, F]; or CSR: x_data, x_indices, x_indptr, x_shape
    y           int [N], -1 for none, or float: classes; int [N, T] of 0 and 1: labels; else as
                `targets` says
    train_mask, val_mask, test_mask   bool [N]
"""

from __future__ import annotations

import lzma
import os
import struct
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from outcrop.errors import IngestError
from outcrop.ingest.labels import file_labels, parse_targets
from outcrop.ingest.source import (
    NODES_PER_CHUNK,
    Attributes,
    EdgeChunk,
    GraphSource,
    Ids,
    LabelStream,
    Queue,
    RowStream,
    check_mask,
    edge_numbers,
    mask_ids,
)
from outcrop.schema import shown
from outcrop.store.format import SPLITS, NpyHeader, parse_npy_header
from outcrop.store.targets import TargetKind

_EDGES_PER_CHUNK = 1 << 17
# What zipfile raises about archives that are damaged, encrypted, or of a kind that it lacks.
_ZIP_ERRORS = (
    zipfile.BadZipFile,
    zlib.error,
    lzma.LZMAError,
    struct.error,
    EOFError,
    OSError,
    ValueError,
    RuntimeError,  # NotImplementedError is one
)


def npz_source(
    path: str | os.PathLike[str], *, nan_is_missing: bool = False, targets: str | None = None
) -> GraphSource:
    """Opens the file and checks that its members fit together."""
    kind = parse_targets(targets)
    archive = NpzArchive(Path(path))
    if "edge_index" not in archive:
        raise IngestError(path, "", f"no edge_index among {', '.join(sorted(archive.names))}")
    header = archive.header("edge_index")
    if len(header.shape) != 2 or header.shape[0] != 2 or header.dtype.kind not in "iu":
        raise IngestError(
            path,
            "edge_index",
            f"must be integers of shape [2, E] (got {header.dtype} {list(header.shape)})",
        )
    return GraphSource(
        name=os.fspath(path),
        edges=_edges(archive, header),
        num_nodes=_num_nodes(archive),
        attributes=lambda num_nodes: _attributes(archive, num_nodes, nan_is_missing, kind),
        total=header.shape[1],
    )


class NpzArchive:
    """The arrays of an .npz file as streams. Errors name the member and the offset in it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with open(path, "rb") as file:  # OSError where it cannot be read
            try:
                with zipfile.ZipFile(file) as archive:
                    members = archive.infolist()
            except _ZIP_ERRORS as error:
                raise IngestError(path, "", f"cut off, or not an .npz file: {error}") from error
        self._sizes = {
            member.filename.removesuffix(".npy"): member.file_size
            for member in members
            if member.filename.endswith(".npy")
        }
        self.names = self._sizes.keys()

    def __contains__(self, name: str) -> bool:
        return name in self.names

    def header(self, name: str) -> NpyHeader:
        with self._open(name) as stream:
            return self._parse(name, stream)

    @contextmanager
    def _open(self, name: str) -> Iterator[IO[bytes]]:
        """The member as a stream. Whatever the zip refuses to give, here or later, is told."""
        try:
            with zipfile.ZipFile(self.path) as archive, archive.open(f"{name}.npy") as stream:
                yield stream
        except KeyError:
            raise IngestError(self.path, name, "no such member") from None
        except IngestError:
            raise
        except _ZIP_ERRORS as error:
            raise IngestError(self.path, name, f"damaged or cut off: {error}") from error

    def _parse(self, name: str, stream: IO[bytes]) -> NpyHeader:
        try:
            header = parse_npy_header(stream)
        except (ValueError, EOFError) as error:
            raise IngestError(self.path, name, f"not an array: {error}") from error
        size = self._sizes[name]
        if size < header.data_offset + header.data_bytes:
            raise IngestError(
                self.path,
                f"{name}, byte {size}",
                f"the array is cut off here: {header.dtype} {shown(list(header.shape))} needs "
                f"{header.data_bytes} B",
            )
        return header

    def integers(self, name: str, count: int) -> list[int]:
        """All of a small array."""
        header = self.header(name)
        if header.dtype.kind not in "iu" or header.count != count:
            raise IngestError(
                self.path,
                name,
                f"needs integers, {count} in all (got {header.dtype} {list(header.shape)})",
            )
        return [int(value) for value in next(self.items(name, count))]

    def items(
        self, name: str, count: int, first: int = 0, last: int | None = None
    ) -> Iterator[NDArray[Any]]:
        """Items [first, last) of the array in storage order, `count` at a time."""
        with self._open(name) as stream:
            header = self._parse(name, stream)
            size = header.dtype.itemsize
            last = header.count if last is None else last
            stream.seek(header.data_offset + first * size)
            for at in range(first, last, count):
                wanted = min(count, last - at) * size
                data = stream.read(wanted)
                if len(data) < wanted:
                    offset = header.data_offset + at * size + len(data)
                    raise IngestError(
                        self.path, f"{name}, byte {offset}", "the array is cut off here"
                    )
                yield np.frombuffer(data, dtype=header.dtype)


def _num_nodes(archive: NpzArchive) -> int:
    if "num_nodes" in archive:
        return archive.integers("num_nodes", 1)[0]
    for name in ("x", "y"):
        if name in archive and archive.header(name).shape:
            return archive.header(name).shape[0]
    raise IngestError(archive.path, "", "needs num_nodes, x or y to know the number of nodes")


def _edges(archive: NpzArchive, header: NpyHeader) -> Iterator[EdgeChunk]:
    count = header.shape[1]
    done = 0
    for sources, targets in _edge_pairs(archive, header, count):
        yield EdgeChunk(_ids(sources), _ids(targets), edge_numbers(done), len(sources))
        done += len(sources)


def _edge_pairs(
    archive: NpzArchive, header: NpyHeader, count: int
) -> Iterator[tuple[NDArray[Any], NDArray[Any]]]:
    if header.fortran_order:  # pairs follow each other
        for pairs in archive.items("edge_index", 2 * _EDGES_PER_CHUNK):
            yield pairs[0::2], pairs[1::2]
        return
    sources = archive.items("edge_index", _EDGES_PER_CHUNK, 0, count)
    targets = archive.items("edge_index", _EDGES_PER_CHUNK, count, 2 * count)
    yield from zip(sources, targets, strict=True)


def _ids(values: NDArray[Any]) -> Ids:
    return np.ascontiguousarray(values, dtype=np.int64)


def _attributes(
    archive: NpzArchive, num_nodes: int, nan_is_missing: bool, targets: TargetKind | None
) -> Attributes:
    splits = {
        split: _mask_ids(archive, f"{split}_mask", num_nodes)
        for split in SPLITS
        if f"{split}_mask" in archive
    }
    labels = _labels(archive, num_nodes, nan_is_missing, targets) if "y" in archive else None
    return Attributes(_features(archive), labels, splits)


def _labels(
    archive: NpzArchive, num_nodes: int, nan_is_missing: bool, targets: TargetKind | None
) -> LabelStream:
    header = archive.header("y")
    return file_labels(
        archive.path,
        "y",
        dtype=header.dtype,
        shape=header.shape,
        fortran_order=header.fortran_order,
        items=lambda count: archive.items("y", count),
        num_nodes=num_nodes,
        nan_is_missing=nan_is_missing,
        targets=targets,
    )


def _mask_ids(archive: NpzArchive, name: str, num_nodes: int) -> Iterator[Ids]:
    header = archive.header(name)
    check_mask(archive.path, name, header.dtype, header.shape, num_nodes)
    return mask_ids(archive.items(name, NODES_PER_CHUNK))


def _features(archive: NpzArchive) -> RowStream | None:
    if "x" in archive:
        return _dense_features(archive)
    if "x_data" in archive:
        return _sparse_features(archive)
    return None


def _dense_features(archive: NpzArchive) -> RowStream:
    header = archive.header("x")
    if len(header.shape) != 2 or header.fortran_order or header.dtype.kind not in "fiub":
        raise IngestError(
            archive.path, "x", f"must be [N, F] in C order (got {header.dtype} {header.shape})"
        )
    rows, dim = header.shape
    return RowStream(
        rows,
        dim,
        "float16" if header.dtype == np.float16 else "float32",
        lambda count: (block.reshape(-1, dim) for block in archive.items("x", count * dim)),
    )


def _sparse_features(archive: NpzArchive) -> RowStream:
    """CSR -> dense rows, a few at a time."""
    rows, dim = archive.integers("x_shape", 2)
    entries = _check_csr(archive, "x_data", "fiub")
    _check_csr(archive, "x_indices", "iu", entries)
    _check_csr(archive, "x_indptr", "iu", rows + 1)

    def chunks(count: int) -> Iterator[NDArray[Any]]:
        # Streams of data and indices advance row by row as indptr says.
        values = _queue(archive, "x_data")
        columns = _queue(archive, "x_indices")
        offsets = _queue(archive, "x_indptr")
        last = offsets.take(1)
        for first in range(0, rows, count):
            ends = offsets.take(min(count, rows - first))
            bounds: Ids = np.concatenate([last, ends]).astype(np.int64)
            lengths = bounds[1:] - bounds[:-1]
            if (lengths < 0).any():
                raise IngestError(archive.path, "x_indptr", "descends")
            if (lengths > dim).any():
                row = first + int(np.argmax(lengths > dim))
                raise IngestError(archive.path, "x_indptr", f"row {row} has more than {dim} values")
            total = int(lengths.sum())
            dense = np.zeros((len(ends), dim), dtype=np.float32)
            inside = columns.take(total)
            if total and not 0 <= int(inside.min()) <= int(inside.max()) < dim:
                raise IngestError(archive.path, "x_indices", f"a column is not below {dim}")
            dense[np.repeat(np.arange(len(ends)), lengths), inside] = values.take(total)
            last = ends[-1:]
            yield dense

    return RowStream(rows, dim, "float32", chunks)


def _check_csr(archive: NpzArchive, name: str, kinds: str, count: int | None = None) -> int:
    """The number of its items, which is `count` where that is given."""
    if name not in archive:
        raise IngestError(
            archive.path, "", f"no {name}; CSR is x_data, x_indices, x_indptr and x_shape"
        )
    header = archive.header(name)
    numbers = "numbers" if "f" in kinds else "integers"
    if header.dtype.kind not in kinds or count not in (None, header.count):
        wanted = numbers if count is None else f"{numbers}, {count} in all"
        raise IngestError(
            archive.path, name, f"needs {wanted} (got {header.dtype} {shown(list(header.shape))})"
        )
    return header.count


def _queue(archive: NpzArchive, name: str) -> Queue:
    """The items of an array; IngestError where more are taken than it has."""

    def blocks() -> Iterator[NDArray[Any]]:
        yield from archive.items(name, 1 << 16)
        raise IngestError(archive.path, name, "has too few items")

    return Queue(blocks(), archive.header(name).dtype)
