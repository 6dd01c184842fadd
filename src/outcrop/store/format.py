"""The store's format: file names, .npy headers, row encodings, the manifest. See docs/format.md."""

from __future__ import annotations

import ast
import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from outcrop.errors import CorruptError, StoreError

VERSION = 1
MANIFEST = "manifest.json"
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

ENCODINGS = ("float32", "float16", "bfloat16", "int8")


# .npy headers


def npy_header(dtype: np.dtype[Any], shape: tuple[int, ...]) -> bytes:
    """A version 1.0 .npy header, padded to HEADER_BYTES."""
    descr = np.lib.format.dtype_to_descr(dtype)
    text = f"{{'descr': {descr!r}, 'fortran_order': False, 'shape': {shape!r}, }}"
    room = HEADER_BYTES - 10
    assert len(text) < room, "headers are short"
    length = room.to_bytes(2, "little")
    return b"\x93NUMPY\x01\x00" + length + text.ljust(room - 1).encode("latin1") + b"\n"


@dataclass(frozen=True)
class NpyHeader:
    """What the header of any .npy file says."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    fortran_order: bool
    data_offset: int


def read_npy_header(path: str | os.PathLike[str]) -> NpyHeader:
    """The header of a .npy file of any version and length; CorruptError where it is none."""
    with open(path, "rb") as file:
        try:
            return parse_npy_header(file)
        except (ValueError, SyntaxError, EOFError, KeyError, TypeError) as error:
            raise CorruptError(f"{os.fspath(path)}: not a .npy file: {error}") from error


def parse_npy_header(file: Any) -> NpyHeader:
    """Reads the header from a binary stream; ValueError or EOFError where it is none."""
    magic = file.read(8)
    if len(magic) < 8 or magic[:6] != b"\x93NUMPY":
        raise ValueError(f"it begins with {magic[:6]!r}")
    length_bytes = 2 if magic[6] == 1 else 4
    length = int.from_bytes(file.read(length_bytes), "little")
    text = file.read(length)
    if len(text) < length:
        raise EOFError("the header is cut off")
    values = ast.literal_eval(text.decode("latin1" if magic[6] < 3 else "utf8"))
    dtype = np.lib.format.descr_to_dtype(values["descr"])
    shape = tuple(int(n) for n in values["shape"])
    if dtype.hasobject:
        raise ValueError("it holds Python objects")
    return NpyHeader(dtype, shape, bool(values["fortran_order"]), 8 + length_bytes + length)


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
        """Of one array element; a whole row for int8, whose scale lies in the row."""
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


@dataclass(frozen=True)
class ArrayEntry:
    """One array of a store, as the manifest describes it."""

    file: str
    """Relative to the store; absolute where the file was adopted in place."""
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    data_offset: int
    file_bytes: int
    checksums: tuple[str, ...]
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

    @staticmethod
    def from_json(values: dict[str, Any]) -> ArrayEntry:
        return ArrayEntry(
            file=values["file"],
            dtype=np.lib.format.descr_to_dtype(_descr(values["dtype"])),
            shape=tuple(values["shape"]),
            data_offset=values["data_offset"],
            file_bytes=values["file_bytes"],
            checksums=tuple(values["checksums"]),
            adopted_mtime_ns=values.get("adopted_mtime_ns"),
        )


def _descr(value: Any) -> Any:
    """JSON turned a descr's tuples into lists; numpy wants them back."""
    if isinstance(value, list):
        return [
            tuple(tuple(part) if isinstance(part, list) else part for part in item)
            for item in value
        ]
    return value


@dataclass(frozen=True)
class Manifest:
    """What a store holds."""

    num_nodes: int
    num_edges: int
    num_classes: int
    features: RowEncoding | None
    arrays: dict[str, ArrayEntry]
    provenance: dict[str, Any] = field(default_factory=dict)

    @property
    def content(self) -> str:
        """A digest of what is stored, whenever and from wherever it was made."""
        values = self._to_json()
        del values["provenance"]
        for entry in values["arrays"].values():
            for name in ("file", "adopted_mtime_ns"):
                entry.pop(name, None)
        return digest(_dump(values))

    def _to_json(self) -> dict[str, Any]:
        features = self.features and {"encoding": self.features.name, "dim": self.features.dim}
        return {
            "format": "outcrop-store",
            "version": VERSION,
            "num_nodes": self.num_nodes,
            "num_edges": self.num_edges,
            "num_classes": self.num_classes,
            "features": features,
            "arrays": {name: entry.to_json() for name, entry in self.arrays.items()},
            "provenance": self.provenance,
        }

    def to_bytes(self) -> bytes:
        """The manifest file: JSON, sealed by a digest of itself."""
        return seal(self._to_json())

    @staticmethod
    def from_bytes(data: bytes, path: str) -> Manifest:
        values = unseal(data, path)
        if values.get("format") != "outcrop-store":
            raise StoreError(f"{path}: not the manifest of an Outcrop store")
        if values["version"] != VERSION:
            raise StoreError(
                f"{path}: store version {values['version']}; this Outcrop reads version {VERSION}"
            )
        features = values["features"]
        return Manifest(
            num_nodes=values["num_nodes"],
            num_edges=values["num_edges"],
            num_classes=values["num_classes"],
            features=features and RowEncoding(features["encoding"], features["dim"]),
            arrays={name: ArrayEntry.from_json(entry) for name, entry in values["arrays"].items()},
            provenance=values["provenance"],
        )


def digest(data: bytes) -> str:
    return xxhash.xxh3_128(data).hexdigest()


def _dump(values: dict[str, Any]) -> bytes:
    return json.dumps(values, indent=1).encode() + b"\n"


def seal(values: dict[str, Any]) -> bytes:
    """JSON that carries a digest of all its other bytes: any changed byte shows."""
    return _dump({**values, "digest": digest(_dump(values))})


def unseal(data: bytes, path: str) -> dict[str, Any]:
    """The values of sealed JSON; CorruptError where a byte was changed."""
    try:
        values = json.loads(data)
        found = values.pop("digest")
    except (ValueError, KeyError, AttributeError, TypeError) as error:
        raise CorruptError(f"{path}: not readable: {error}") from error
    if seal(values) != data or found != digest(_dump(values)):
        raise CorruptError(f"{path}: its bytes differ from its digest")
    return dict(values)


def read_manifest(store: Path) -> Manifest:
    """The manifest of a store; StoreError where there is none."""
    path = store / MANIFEST
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        kind = "a directory without a manifest" if store.is_dir() else "no such directory"
        raise StoreError(f"{store}: not an Outcrop store ({kind})") from None
    except NotADirectoryError:
        raise StoreError(f"{store}: not an Outcrop store (a file)") from None
    return Manifest.from_bytes(data, str(path))
