"""The format: headers that numpy reads, rows that decode, a manifest that shows any change."""

from __future__ import annotations

import io
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from outcrop.errors import CorruptError, StoreError
from outcrop.store.format import (
    HEADER_BYTES,
    ArrayEntry,
    Manifest,
    RowEncoding,
    npy_header,
    parse_npy_header,
    read_npy_header,
    seal,
    unseal,
)
from outcrop.store.store import decode


@pytest.mark.parametrize("dtype", ["<f4", "<i8", "<u2", "|i1"])
@pytest.mark.parametrize("shape", [(3,), (0,), (2, 5), (10**12, 768)])
def test_headers_are_4096_bytes_that_numpy_reads(dtype: str, shape: tuple[int, ...]) -> None:
    header = npy_header(np.dtype(dtype), shape)
    assert len(header) == HEADER_BYTES
    stream = io.BytesIO(header)
    assert np.lib.format.read_magic(stream) == (1, 0)
    assert np.lib.format.read_array_header_1_0(stream) == (shape, False, np.dtype(dtype))
    assert stream.tell() == HEADER_BYTES


def test_headers_of_every_version_are_read(tmp_path: Path) -> None:
    array = np.arange(12, dtype=np.float32).reshape(3, 4)
    for version in [(1, 0), (2, 0), (3, 0)]:
        with open(tmp_path / "a.npy", "wb") as file:
            np.lib.format.write_array(file, np.asfortranarray(array), version=version)
        header = read_npy_header(tmp_path / "a.npy")
        assert (header.dtype, header.shape, header.fortran_order) == (array.dtype, (3, 4), True)
        assert (tmp_path / "a.npy").stat().st_size == header.data_offset + array.nbytes


@pytest.mark.parametrize(
    "content", [b"", b"\x93NUMPY", b"PK\x03\x04" + bytes(100), b"\x93NUMPY\x01\x00\xff\xffxx"]
)
def test_what_is_no_npy_file_is_named(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.npy").write_bytes(content)
    with pytest.raises(CorruptError, match=r"a\.npy: not a \.npy file"):
        read_npy_header(tmp_path / "a.npy")


def test_pickled_arrays_are_refused_unread() -> None:
    stream = io.BytesIO()
    np.lib.format.write_array(stream, np.array([{}]), allow_pickle=True)
    stream.seek(0)
    with pytest.raises(ValueError, match="objects"):
        parse_npy_header(stream)


def stored(encoding: RowEncoding, rows: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return encoding.encode(rows).reshape(-1).view(np.uint8).reshape(len(rows), encoding.row_bytes)


@given(
    rows=st.integers(0, 5),
    dim=st.sampled_from([1, 7, 32, 100, 127, 129]),
    seed=st.integers(0, 100),
    scale=st.sampled_from([0.0, 1e-30, 1.0, 1e4]),
)
def test_rows_survive_encoding_as_well_as_their_dtype_allows(
    rows: int, dim: int, seed: int, scale: float
) -> None:
    values = (np.random.default_rng(seed).standard_normal((rows, dim)) * scale).astype(np.float32)
    for name in ("float32", "float16", "bfloat16", "int8"):
        encoding = RowEncoding(name, dim)
        again = decode(stored(encoding, values), encoding)
        assert again.shape == values.shape and again.dtype == np.float32
        size = np.abs(values).max(axis=1, initial=0, keepdims=True)
        allowed = {"float32": 0, "float16": 1e-3, "bfloat16": 4e-3, "int8": 0.5 / 127 * 1.01}[name]
        floor = 6e-8 if name == "float16" else 1e-44
        assert (np.abs(again - values) <= allowed * size + floor).all(), name


def test_float16_and_bfloat16_decode_every_bit_pattern_right() -> None:
    bits = np.arange(1 << 16, dtype=np.uint16)
    rows = bits.view(np.uint8).reshape(1, -1)
    half = decode(rows, RowEncoding("float16", 1 << 16))[0]
    assert np.array_equal(half, bits.view(np.float16).astype(np.float32), equal_nan=True)
    brain = decode(rows, RowEncoding("bfloat16", 1 << 16))[0]
    expected = (bits.astype(np.uint32) << 16).view(np.float32)
    assert np.array_equal(brain, expected, equal_nan=True)


def test_bfloat16_rounds_to_nearest_even() -> None:
    values = np.array([[1.0, 1.00390625, 1.01171875, np.nan, np.inf, -0.0]], np.float32)
    encoded = RowEncoding("bfloat16", 6).encode(values)
    assert encoded.tolist() == [[0x3F80, 0x3F80, 0x3F82, 0x7FC0, 0x7F80, 0x8000]]


@pytest.mark.parametrize(
    ("name", "largest", "beyond"),
    [
        ("float32", 3.4e38, 1e39),
        ("float16", 65519, 65520),
        ("bfloat16", 3.39e38, 3.4e38),
        ("bfloat16", 3.39e38, 1e39),
        ("int8", 3.4e38, 1e39),
    ],
)
def test_rows_that_become_infinite_are_told(name: str, largest: float, beyond: float) -> None:
    encoding = RowEncoding(name, 2)
    rows = np.array([[1, largest], [1, -largest], [beyond, 1], [1, -beyond], [0, 0]])
    assert encoding.lost(rows, encoding.encode(rows)).tolist() == [False, False, True, True, False]
    rows = np.array([[1, np.inf], [np.nan, 1]])  # as they were; but int8 has no such values
    assert encoding.lost(rows, encoding.encode(rows)).tolist() == [name == "int8"] * 2


def test_an_int8_row_carries_its_scale() -> None:
    encoding = RowEncoding("int8", 3)
    row = encoding.encode(np.array([[1.0, -2.0, 0.5]], np.float32))
    assert encoding.row_bytes == 7 and row["values"].tolist() == [[64, -127, 32]]
    assert row["scale"][0] == np.float32(2.0) / np.float32(127)


def entry(file: str, dtype: Any, shape: tuple[int, ...], *, adopted: bool = False) -> ArrayEntry:
    offset = 128 if adopted else HEADER_BYTES
    size = offset + int(np.prod(shape)) * np.dtype(dtype).itemsize
    return ArrayEntry(
        file, np.dtype(dtype), shape, offset, size, ("0" * 32,), 17 if adopted else None
    )


def manifest() -> Manifest:
    int8 = RowEncoding("int8", 5)
    entries = {
        "indptr": entry("topology/indptr.npy", "<i8", (11,)),
        "indices": entry("topology/indices.npy", "<i4", (20,)),
        "features": entry("/data/f.npy", int8.dtype, (10,), adopted=True),
        "labels": entry("labels.npy", "<i8", (10,)),
        "train": entry("splits/train.npy", "<i8", (4,)),
    }
    return Manifest(10, 20, 3, int8, entries, {"source": "test"})


def test_a_manifest_survives_its_file() -> None:
    assert Manifest.from_bytes(manifest().to_bytes(), "m") == manifest()


@given(position=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7))
def test_any_flipped_bit_of_a_manifest_shows(position: float, bit: int) -> None:
    data = bytearray(manifest().to_bytes())
    data[int(position * len(data))] ^= 1 << bit
    with pytest.raises(StoreError):
        Manifest.from_bytes(bytes(data), "m")


def test_content_does_not_depend_on_time_or_place() -> None:
    one = manifest()
    entries = dict(one.arrays)
    entries["features"] = replace(entries["features"], file="features.npy", adopted_mtime_ns=None)
    other = Manifest(10, 20, 3, one.features, entries, {"source": "elsewhere"})
    assert other.content == one.content
    assert Manifest(11, 20, 3, one.features, entries).content != one.content


def test_a_manifest_names_its_types() -> None:
    """One of each; those of a store that was made before they had names are the same."""
    made = manifest()
    assert made.node_types == ("node",) and made.edge_types == (("node", "to", "node"),)
    values = unseal(made.to_bytes(), "m")
    assert values.pop("types") == {"nodes": ["node"], "edges": [["node", "to", "node"]]}
    older = Manifest.from_bytes(seal(values), "m")
    assert older == made and older.content == made.content
    named = replace(made, node_types=("paper",), edge_types=(("paper", "cites", "paper"),))
    assert Manifest.from_bytes(named.to_bytes(), "m") == named and named.content != made.content


def test_a_store_of_several_types_is_refused_by_name() -> None:
    several = replace(manifest(), node_types=("paper", "author"))
    with pytest.raises(StoreError, match=r"types\.nodes: .* one type of nodes \(got 2\)"):
        Manifest.from_bytes(several.to_bytes(), "m")


def test_a_newer_store_is_refused_by_version() -> None:
    values = unseal(manifest().to_bytes(), "m")
    values["version"] = 99
    with pytest.raises(StoreError, match="version 99; this Outcrop reads version 1"):
        Manifest.from_bytes(seal(values), "m")


def altered(path: str, value: Any) -> bytes:
    """The manifest with one value replaced, sealed again."""
    values = unseal(manifest().to_bytes(), "m")
    *way, last = path.split("/")
    part = values
    for name in way:
        part = part[name]
    part[last] = value
    return seal(values)


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("num_nodes", "10", "num_nodes must be a whole number of at least 1 (got '10')"),
        ("num_nodes", 0, "num_nodes must be a whole number of at least 1 (got 0)"),
        ("num_edges", True, "num_edges must be a whole number of at least 0 (got True)"),
        ("num_classes", 3.0, "num_classes must be a whole number of at least 0 (got 3.0)"),
        ("features", [], "features must be an object or none (got [])"),
        ("features/encoding", "f8", "features.encoding must be one of float32, float16"),
        ("features/dim", 0, "features.dim must be a whole number of at least 1 (got 0)"),
        ("arrays", None, "arrays must be an object (got None)"),
        ("arrays/indices", 7, "arrays.indices must be an object (got 7)"),
        ("arrays/extra", {}, "a name in arrays must be one of indptr, indices"),
        ("arrays/indices/extra", 1, "arrays.indices has no field 'extra'; there are file, dtype"),
        ("arrays/indices/dtype", "|O", "arrays.indices.dtype must be a dtype as in a .npy header"),
        ("arrays/indices/dtype", [["a"]], "arrays.indices.dtype must be a dtype"),
        ("arrays/indices/shape", [-1], "arrays.indices.shape[0] must be a whole number of at le"),
        ("arrays/indices/checksums", ["xy"], "arrays.indices.checksums must be a list of ch"),
        ("types/nodes", [3], "types.nodes[0] must be"),
        ("types/edges", [["a", "b"]], "types.edges[0] must have 3 entries"),
        ("provenance", "me", "provenance must be an object (got 'me')"),
    ],
)
def test_a_manifest_of_wrong_types_names_the_field(path: str, value: Any, message: str) -> None:
    with pytest.raises(CorruptError, match=re.escape(f"m: {message}")):
        Manifest.from_bytes(altered(path, value), "m")


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("features/dim", 16, r"arrays\.features\.dtype must be .* \(got"),
        ("features/encoding", "float32", r"arrays\.features\.dtype must be <f4"),
        ("features", None, r"arrays\.features\.dtype must be none"),
        ("num_nodes", 9, r"arrays\.indptr\.shape must be \[10\].* \(got \[11\]\)"),
        ("num_edges", 19, r"arrays\.indices\.shape must be \[19\]"),
        ("arrays/indptr/dtype", "<u8", r"arrays\.indptr\.dtype must be <i8 \(got uint64\)"),
        ("arrays/indices/dtype", ">i4", r"arrays\.indices\.dtype must be <i4 or <i8"),
        ("arrays/labels/shape", [5, 2], r"arrays\.labels\.shape must be \[10\]"),
        ("arrays/train/shape", [2, 2], r"arrays\.train\.shape must be \[4\]"),
        ("arrays/labels/data_offset", 4088, r"arrays\.labels\.file_bytes must be 4168"),
        ("arrays/labels/file_bytes", 4184, r"arrays\.labels\.file_bytes must be 4176"),
        ("arrays/labels/checksums", [], r"arrays\.labels\.checksums must be 1"),
        ("arrays/labels/file", "../x.npy", r"arrays\.labels\.file must be a path within"),
        ("arrays/labels/file", "/etc/x", r"arrays\.labels\.file must be a path within"),
        ("arrays/labels/file", "a\0b", r"arrays\.labels\.file must be a path within"),
        ("arrays/features/file", "f.npy", r"arrays\.features\.file must be an absolute path"),
    ],
)
def test_a_manifest_whose_parts_do_not_fit_names_the_field(
    path: str, value: Any, message: str
) -> None:
    with pytest.raises(CorruptError, match=message):
        Manifest.from_bytes(altered(path, value), "m")


@pytest.mark.parametrize("name", ["indptr", "indices", "features"])
def test_a_manifest_without_an_array_that_it_needs_is_refused(name: str) -> None:
    values = unseal(manifest().to_bytes(), "m")
    del values["arrays"][name]
    with pytest.raises(CorruptError, match=f"m: arrays.{name} is missing"):
        Manifest.from_bytes(seal(values), "m")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{'descr': '<f4', 'fortran_order': False, 'shape': (-1,)}", r"shape\[0\] must be a whole"),
        ("{'descr': '<f4', 'fortran_order': False, 'shape': (2.5,)}", r"shape\[0\] must be a who"),
        ("{'descr': '<f4', 'fortran_order': False, 'shape': 3}", "shape must be a list"),
        ("{'descr': '<f4', 'fortran_order': 0, 'shape': ()}", "fortran_order must be true or fal"),
        ("{'descr': '<f4', 'fortran_order': False}", "shape is missing"),
        (f"{{'descr': '<f4', 'fortran_order': False, 'shape': ({2**40}, {2**40})}}", "any file"),
        ("{'descr': 'V0', 'fortran_order': False, 'shape': ()}", "takes no bytes"),
        ("{'descr': ('<f4',), 'fortran_order': False, 'shape': ()}", "is no dtype"),
        ("[" * 500, "its header is no dictionary"),
        ("-" * 9000 + "1", "its header is no dictionary"),
        ("3", "must be an object"),
    ],
)
def test_a_header_that_is_wrong_says_where(tmp_path: Path, text: str, message: str) -> None:
    data = text.encode()
    (tmp_path / "a.npy").write_bytes(b"\x93NUMPY\x02\x00" + len(data).to_bytes(4, "little") + data)
    with pytest.raises(CorruptError, match=rf"a\.npy: not a \.npy file: .*{message}"):
        read_npy_header(tmp_path / "a.npy")


def test_a_header_that_claims_gigabytes_is_not_read() -> None:
    claimed = b"\x93NUMPY\x02\x00" + (1 << 31).to_bytes(4, "little")
    with pytest.raises(ValueError, match="its header has 2147483648 B, more than"):
        parse_npy_header(io.BytesIO(claimed))
    with pytest.raises(ValueError, match="its version is 9"):
        parse_npy_header(io.BytesIO(b"\x93NUMPY\x09\x00" + bytes(90)))


@pytest.mark.parametrize(
    "data", [b"[" * 100_000, b"[]", b"{}", b"\xff\xfe", b'{"a":' * 600 + b"1" + b"}" * 600]
)
def test_what_is_not_sealed_json_is_corrupt(data: bytes) -> None:
    with pytest.raises(CorruptError, match="m: not readable"):
        unseal(data, "m")
