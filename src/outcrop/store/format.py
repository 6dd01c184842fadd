"""The store's format: file names, .npy headers, row encodings, the manifest. See docs/format.md."""

from __future__ import annotations

import ast
import json
import math
import os
import re
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import IO, Annotated, Any, Literal, TypeVar, get_args

import numpy as np
import xxhash
from numpy.typing import NDArray

from outcrop.errors import CorruptError, StoreError
from outcrop.schema import AtLeast, Count, Made, parse, parse_json, shown
from outcrop.store.targets import TargetFormat, TargetKind, stored_dtype

T = TypeVar("T")

_FORMAT = "outcrop-store"
VERSION = 1
MANIFEST = "manifest.json"
EdgeType = tuple[str, str, str]
"""Source, relation, target: as PyG names edges."""
NODE_TYPE = "node"
EDGE_TYPE: EdgeType = (NODE_TYPE, "to", NODE_TYPE)
HEADER_BYTES = 4096
PIECE_BYTES = 64 << 20
LOCK = ".lock"
DERIVED = "derived"

FILES = {
    "indptr": "topology/indptr.npy",
    "indices": "topology/indices.npy",
    "edge_ids": "topology/edge_ids.npy",
    "node_ids": "node_ids.npy",
    "features": "features.npy",
    "labels": "labels.npy",
    "train": "splits/train.npy",
    "val": "splits/val.npy",
    "test": "splits/test.npy",
}
SPLITS: tuple[str, ...] = ("train", "val", "test")

Encoding = Literal["float32", "float16", "bfloat16", "int8"]
ENCODINGS: tuple[str, ...] = get_args(Encoding)


def to_dtype(descr: Any) -> np.dtype[Any]:
    """The descr of a .npy header, or its like from JSON -> a dtype; ValueError where it is none."""
    try:
        dtype: np.dtype[Any] = np.lib.format.descr_to_dtype(_with_tuples(descr))
    except Exception as error:  # numpy raises whatever its conversion trips over
        raise ValueError(f"{shown(descr)} is no dtype") from error
    if dtype.hasobject:
        raise ValueError("it holds Python objects")
    if dtype.itemsize == 0:
        raise ValueError(f"{shown(descr)} takes no bytes")
    return dtype


def _with_tuples(descr: Any) -> Any:
    """JSON turned the tuples of a descr into lists; numpy wants them back."""
    if not isinstance(descr, list):
        return descr
    return [
        tuple(tuple(part) if isinstance(part, list) else part for part in item) for item in descr
    ]


_INT32, _INT64 = np.dtype("<i4"), np.dtype("<i8")
Dtype = Annotated[np.dtype[Any], Made(to_dtype, "a dtype as in a .npy header, without objects")]


# .npy headers


def npy_header(dtype: np.dtype[Any], shape: tuple[int, ...]) -> bytes:
    """A version 1.0 .npy header, padded to HEADER_BYTES."""
    descr = np.lib.format.dtype_to_descr(dtype)
    text = f"{{'descr': {descr!r}, 'fortran_order': False, 'shape': {shape!r}, }}"
    room = HEADER_BYTES - 10
    assert len(text) < room, "headers are short"
    length = room.to_bytes(2, "little")
    return b"\x93NUMPY\x01\x00" + length + text.ljust(room - 1).encode("latin1") + b"\n"


# As numpy's own reader: longer ones are made to hurt whoever parses them.
_MOST_HEADER_BYTES = 10_000


@dataclass(frozen=True)
class NpyHeader:
    """What the header of any .npy file says."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    fortran_order: bool
    data_offset: int

    @property
    def count(self) -> int:
        """Items of the array."""
        return math.prod(self.shape)

    @property
    def data_bytes(self) -> int:
        return self.count * self.dtype.itemsize


@dataclass(frozen=True)
class _HeaderText:
    descr: Any
    fortran_order: bool
    shape: tuple[Count, ...]


def read_npy_header(path: str | os.PathLike[str]) -> NpyHeader:
    """The header of a .npy file of any version; CorruptError where it is none."""
    with open(path, "rb") as file:
        try:
            return parse_npy_header(file)
        except (ValueError, EOFError) as error:
            raise CorruptError(f"{os.fspath(path)}: not a .npy file: {error}") from error


def parse_npy_header(file: IO[bytes]) -> NpyHeader:
    """Reads the header from a binary stream; ValueError or EOFError where it is none."""
    magic = file.read(8)
    if len(magic) < 8 or magic[:6] != b"\x93NUMPY":
        raise ValueError(f"it begins with {magic[:6]!r}")
    version = magic[6]
    if version not in (1, 2, 3):
        raise ValueError(f"its version is {version}, not 1, 2 or 3")
    length_bytes = 2 if version == 1 else 4
    length = int.from_bytes(file.read(length_bytes), "little")
    if length > _MOST_HEADER_BYTES:
        raise ValueError(f"its header has {length} B, more than {_MOST_HEADER_BYTES}")
    data = file.read(length)
    if len(data) < length:
        raise EOFError("the header is cut off")
    text = parse(_HeaderText, _literal(data, version), "header", error=ValueError)
    header = NpyHeader(
        to_dtype(text.descr), text.shape, text.fortran_order, 8 + length_bytes + length
    )
    if header.data_bytes >= 1 << 63:
        raise ValueError(f"its shape is {shown(list(text.shape))}: more than any file holds")
    return header


def _literal(data: bytes, version: int) -> Any:
    try:
        return ast.literal_eval(data.decode("utf8" if version == 3 else "latin1"))
    except (SyntaxError, TypeError, RecursionError, MemoryError) as error:
        # What is nested too deep is told as a lack of memory.
        raise ValueError(f"its header is no dictionary: {shown(data)}") from error


# Feature rows


@dataclass(frozen=True)
class RowEncoding:
    """How feature rows are stored: name and number of values per row."""

    name: str
    dim: int

    def __post_init__(self) -> None:
        if self.name not in ENCODINGS:
            raise StoreError(f"feature encoding must be one of {ENCODINGS} (got {self.name!r})")

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type of one array element; a whole row for int8, whose scale lies in the row."""
        if self.name == "int8":
            return np.dtype([("scale", "<f4"), ("values", "i1", (self.dim,))])
        return np.dtype({"float32": "<f4", "float16": "<f2", "bfloat16": "<u2"}[self.name])

    def shape(self, rows: int) -> tuple[int, ...]:
        return (rows,) if self.name == "int8" else (rows, self.dim)

    @property
    def row_bytes(self) -> int:
        return self.dtype.itemsize * (1 if self.name == "int8" else self.dim)

    def encode(self, rows: NDArray[Any]) -> NDArray[Any]:
        """float rows [n, dim] -> rows as they are stored. `lost` tells which do not fit."""
        with np.errstate(over="ignore", invalid="ignore"):
            if self.name == "bfloat16":
                return _to_bfloat16(rows.astype(np.float32, copy=False))
            if self.name == "int8":
                return self._quantise(rows.astype(np.float32, copy=False))
            return np.ascontiguousarray(rows, dtype=self.dtype)

    def lost(self, rows: NDArray[Any], stored: NDArray[Any]) -> NDArray[np.bool_]:
        """Which rows hold a finite value that is not finite as stored; for int8, any infinity."""
        lost: NDArray[np.bool_]
        if self.name == "int8":
            lost = ~np.isfinite(stored["scale"])
        elif self.name == "bfloat16":  # an exponent of ones is infinity or NaN
            lost = ((stored & 0x7F80 == 0x7F80) & np.isfinite(rows)).any(axis=1)
        else:
            lost = (~np.isfinite(stored) & np.isfinite(rows)).any(axis=1)
        return lost

    def _quantise(self, rows: NDArray[np.float32]) -> NDArray[Any]:
        """Symmetric per row: the largest magnitude becomes 127."""
        stored = np.zeros(len(rows), dtype=self.dtype)
        scale = np.abs(rows).max(axis=1, initial=0) / np.float32(127)
        divisor = np.where(scale > 0, scale, np.float32(1))
        stored["scale"] = scale
        stored["values"] = np.clip(np.rint(rows / divisor[:, None]), -127, 127).astype(np.int8)
        return stored


def _to_bfloat16(values: NDArray[np.float32]) -> NDArray[np.uint16]:
    """Rounded to nearest, ties to even; NaN stays NaN."""
    bits = np.ascontiguousarray(values).view(np.uint32)
    rounded = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    return np.where(np.isnan(values), np.uint16(0x7FC0), rounded)


# The manifest


_CHECKSUM = re.compile(r"[0-9a-f]{32}")


def _to_checksums(values: Any) -> tuple[str, ...]:
    """All at once: a large store has thousands."""
    if not isinstance(values, list) or not all(map(_CHECKSUM.fullmatch, values)):
        raise ValueError
    return tuple(values)


@dataclass(frozen=True)
class ArrayEntry:
    """One array of a store, as the manifest describes it."""

    file: str
    """Relative to the store; absolute where the file was adopted in place."""
    dtype: Dtype
    shape: tuple[Count, ...]
    data_offset: Count
    file_bytes: Count
    checksums: Annotated[
        tuple[str, ...], Made(_to_checksums, "a list of checksums, 32 digits of hex each")
    ]
    """XXH3-128 of each piece of PIECE_BYTES of the whole file, header included."""
    adopted_mtime_ns: int | None = None

    def to_json(self) -> dict[str, Any]:
        values: dict[str, Any] = {
            "file": self.file,
            "dtype": np.lib.format.dtype_to_descr(self.dtype),
            "shape": list(self.shape),
            "data_offset": self.data_offset,
            "file_bytes": self.file_bytes,
            "checksums": list(self.checksums),
        }
        if self.adopted_mtime_ns is not None:
            values["adopted_mtime_ns"] = self.adopted_mtime_ns
        return values

    @property
    def data_bytes(self) -> int:
        """What the array takes without the file's header."""
        return math.prod(self.shape) * self.dtype.itemsize

    def check_is(self, where: str, file: str, dtype: np.dtype[Any]) -> None:
        """It is this file of ours, rows of `dtype` one after the other; else CorruptError."""
        found = (self.file, self.dtype, len(self.shape), self.data_offset)
        if found != (file, dtype, 1, HEADER_BYTES):
            raise CorruptError(
                f"{where} must be {file}, {dtype} [n] from byte {HEADER_BYTES} on (got "
                f"{shown(self.file)}, {self.dtype} {shown(list(self.shape))} from {found[-1]} on)"
            )
        self.check(where)

    def check(self, where: str) -> None:
        """Its parts fit each other; CorruptError at `where` names one that does not."""
        file = PurePosixPath(self.file)
        adopted = self.adopted_mtime_ns is not None
        if not self.file.isprintable() or file.is_absolute() != adopted or ".." in file.parts:
            kind = "an absolute path" if adopted else "a path within the folder"
            raise CorruptError(f"{where}.file must be {kind} (got {shown(self.file)})")
        size = self.data_offset + self.data_bytes
        if self.file_bytes < size or (self.file_bytes > size and not adopted):
            raise CorruptError(
                f"{where}.file_bytes must be {size}, by dtype, shape and data_offset "
                f"(got {self.file_bytes})"
            )
        pieces = -(-self.file_bytes // PIECE_BYTES)
        if len(self.checksums) != pieces:
            raise CorruptError(
                f"{where}.checksums must be {pieces}, one for each {PIECE_BYTES} B of the file "
                f"(got {len(self.checksums)})"
            )


@dataclass(frozen=True)
class Manifest:
    """What a store holds."""

    num_nodes: int
    num_edges: int
    num_classes: int
    features: RowEncoding | None
    arrays: dict[str, ArrayEntry]
    provenance: dict[str, Any] = field(default_factory=dict)
    node_types: tuple[str, ...] = (NODE_TYPE,)
    """One today: the counts and the arrays are its."""
    edge_types: tuple[EdgeType, ...] = (EDGE_TYPE,)
    target_kind: TargetKind = "classes"
    """What labels are."""

    @property
    def targets(self) -> TargetFormat:
        """How labels are kept; classes where there are none."""
        entry = self.arrays.get("labels")
        return TargetFormat(self.target_kind, self.num_classes, entry.shape[1:] if entry else ())

    @property
    def content(self) -> str:
        """A digest of what is stored, whenever and from wherever it was made."""
        values = self._to_json()
        del values["provenance"]
        if (self.node_types, self.edge_types) == ((NODE_TYPE,), (EDGE_TYPE,)):
            del values["types"]  # as of stores that were made before types had names
        for entry in values["arrays"].values():
            for name in ("file", "adopted_mtime_ns"):
                entry.pop(name, None)
        return digest(_dump(values))

    def _to_json(self) -> dict[str, Any]:
        features = self.features and {"encoding": self.features.name, "dim": self.features.dim}
        # Absent where they are classes, as of stores that were made before there were others.
        targets = {} if self.target_kind == "classes" else {"targets": self.target_kind}
        return {
            "format": _FORMAT,
            "version": VERSION,
            "num_nodes": self.num_nodes,
            "num_edges": self.num_edges,
            "num_classes": self.num_classes,
            **targets,
            "features": features,
            "arrays": {name: entry.to_json() for name, entry in self.arrays.items()},
            "types": {"nodes": list(self.node_types), "edges": list(map(list, self.edge_types))},
            "provenance": self.provenance,
        }

    def to_bytes(self) -> bytes:
        """The manifest file: JSON, sealed by a digest of itself."""
        return seal(self._to_json())

    @staticmethod
    def from_bytes(data: bytes, path: str) -> Manifest:
        """CorruptError where its values are not of their types, or do not fit each other."""
        values = unseal(data, path)
        if values.get("format") != _FORMAT:
            raise StoreError(f"{path}: not the manifest of an Outcrop store")
        if values.get("version") != VERSION:
            raise StoreError(
                f"{path}: store version {shown(values.get('version'))}; "
                f"this Outcrop reads version {VERSION}"
            )
        file = parse(_ManifestFile, values, path)
        features = file.features
        manifest = Manifest(
            num_nodes=file.num_nodes,
            num_edges=file.num_edges,
            num_classes=file.num_classes,
            features=None if features is None else RowEncoding(features.encoding, features.dim),
            arrays=file.arrays,
            provenance=file.provenance,
            node_types=file.types.nodes,
            edge_types=file.types.edges,
            target_kind=file.targets,
        )
        manifest.check(path)
        return manifest

    def check(self, path: str) -> None:
        """Arrays are what the counts and the encoding say; CorruptError names one that is not.

        No file is looked at.
        """
        for kind, types in (("nodes", self.node_types), ("edges", self.edge_types)):
            if len(types) != 1:
                raise StoreError(
                    f"{path}: types.{kind}: this Outcrop reads stores of one type of {kind} "
                    f"(got {len(types)})"
                )
        needed = ["indptr", "indices"] + (["features"] if self.features else [])
        if self.target_kind != "classes":
            needed.append("labels")
            if (self.num_classes > 0) != (self.target_kind == "multilabel"):
                wanted = "at least 1" if self.target_kind == "multilabel" else "0"
                raise CorruptError(
                    f"{path}: num_classes must be {wanted}, as targets are {self.target_kind} "
                    f"(got {self.num_classes})"
                )
        for name in needed:
            if name not in self.arrays:
                raise CorruptError(f"{path}: arrays.{name} is missing")
        for name, entry in self.arrays.items():
            where = f"{path}: arrays.{name}"
            entry.check(where)
            if entry.adopted_mtime_ns is not None and name != "features":
                raise CorruptError(f"{where}.adopted_mtime_ns must be absent, but for features")
            dtypes, shape = self._expected_array(name, entry)
            if entry.dtype not in dtypes:
                wanted = " or ".join(dtype.str for dtype in dtypes) or "none, as `features` is"
                raise CorruptError(f"{where}.dtype must be {wanted} (got {entry.dtype})")
            if entry.shape != shape:
                raise CorruptError(
                    f"{where}.shape must be {list(shape)}, by the counts of nodes and edges and by "
                    f"`features` (got {shown(list(entry.shape))})"
                )

    def _expected_array(
        self, name: str, entry: ArrayEntry
    ) -> tuple[tuple[np.dtype[Any], ...], tuple[int, ...]]:
        """The dtypes that an array may have, and its shape."""
        if name == "features":
            features = self.features
            return ((features.dtype,), features.shape(self.num_nodes)) if features else ((), ())
        if name == "indices":
            narrow = (_INT32,) if self.num_nodes <= 1 << 31 else ()
            return (*narrow, _INT64), (self.num_edges,)
        if name in SPLITS:  # as many nodes as it likes
            return (_INT64,), (min(math.prod(entry.shape), self.num_nodes),)
        if name == "edge_ids":  # narrow by the source's edges, which nobody counts here
            return (_INT32, _INT64), (self.num_edges,)
        if name == "labels":
            return (stored_dtype(self.target_kind),), self._label_shape(entry)
        return (_INT64,), (self.num_nodes + (name == "indptr"),)

    def _label_shape(self, entry: ArrayEntry) -> tuple[int, ...]:
        if self.target_kind == "multilabel":
            return self.num_nodes, self.num_classes
        if self.target_kind == "values" and len(entry.shape) == 2:  # as many as it likes
            return self.num_nodes, max(entry.shape[1], 1)
        return (self.num_nodes,)


@dataclass(frozen=True)
class _Features:
    encoding: Encoding
    dim: Annotated[int, AtLeast(1)]


@dataclass(frozen=True)
class _Types:
    nodes: tuple[str, ...] = (NODE_TYPE,)
    edges: tuple[EdgeType, ...] = (EDGE_TYPE,)


def _array_name(name: Any) -> str:
    if name not in FILES:
        raise ValueError
    return str(name)


@dataclass(frozen=True)
class _ManifestFile:
    """The manifest's values, as they are in its file."""

    format: Literal["outcrop-store"]
    version: Literal[1]
    num_nodes: Annotated[int, AtLeast(1)]
    num_edges: Count
    num_classes: Count
    features: _Features | None
    arrays: dict[Annotated[str, Made(_array_name, f"one of {', '.join(FILES)}")], ArrayEntry]
    provenance: dict[str, Any]
    types: _Types = _Types()
    """Absent from stores that were made before types had names."""
    targets: TargetKind = "classes"
    """Absent where they are classes."""


def digest(data: bytes) -> str:
    return xxhash.xxh3_128(data).hexdigest()


def _dump(values: dict[str, Any]) -> bytes:
    return json.dumps(values, indent=1).encode() + b"\n"


def seal(values: dict[str, Any]) -> bytes:
    """JSON that carries a digest of all its other bytes: any changed byte shows."""
    return _dump({**values, "digest": digest(_dump(values))})


def unseal(data: bytes, path: str) -> dict[str, Any]:
    """The values of sealed JSON; CorruptError where a byte was changed."""
    values = parse_json(data, path)
    if not isinstance(values, dict) or "digest" not in values:
        raise CorruptError(f"{path}: not readable: it has no digest")
    found = values.pop("digest")
    try:
        sealed = seal(values)
    except RecursionError as error:
        raise CorruptError(f"{path}: not readable: {error}") from error
    if sealed != data or found != digest(_dump(values)):
        raise CorruptError(f"{path}: its bytes differ from its digest")
    return values


def unseal_as(kind: type[T], data: bytes, path: str, form: str, version: int) -> T:
    """Sealed JSON -> a dataclass of all that is in it beside `format` and `version`.

    StoreError where these are others; CorruptError where a byte was changed, or a value is none
    that belongs there.
    """
    values = unseal(data, path)
    found = [values.pop(name, None) for name in ("format", "version")]
    if found != [form, version]:
        got = " version ".join(shown(value).strip("'") for value in found)
        raise StoreError(f"{path}: expected {form} version {version} (got {got})")
    return parse(kind, values, path)


def read_manifest(store: Path) -> Manifest:
    """The manifest of a store; StoreError where there is none."""
    path = store / MANIFEST
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        kind = "a directory without a manifest" if store.is_dir() else "no such directory"
        raise StoreError(f"{store}: not an Outcrop store ({kind})") from None
    except NotADirectoryError:
        raise StoreError(
            f"{store}: not an Outcrop store, but a file; outcrop import makes a store of it"
        ) from None
    return Manifest.from_bytes(data, str(path))
