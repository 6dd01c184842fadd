"""The format: headers that numpy reads, rows that decode, a manifest that shows any change."""

from __future__ import annotations

import io
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


def manifest() -> Manifest:
    int8 = RowEncoding("int8", 5)
    entries = {
        "indptr": ArrayEntry("topology/indptr.npy", np.dtype("<i8"), (11,), 4096, 4184, ("aa",)),
        "features": ArrayEntry("/data/f.npy", int8.dtype, (10,), 128, 228, ("bb", "cc"), 17),
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
    entries["features"] = ArrayEntry("features.npy", one.arrays["features"].dtype, (10,), 128, 228,
                                     ("bb", "cc"))  # fmt: skip
    other = Manifest(10, 20, 3, one.features, entries, {"source": "elsewhere"})
    assert other.content == one.content
    assert Manifest(11, 20, 3, one.features, entries).content != one.content


def test_a_newer_store_is_refused_by_version() -> None:
    values = unseal(manifest().to_bytes(), "m")
    values["version"] = 99
    with pytest.raises(StoreError, match="version 99; this Outcrop reads version 1"):
        Manifest.from_bytes(seal(values), "m")
