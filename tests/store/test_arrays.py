"""Arrays written in chunks: files that numpy loads, checksums of their pieces."""

from __future__ import annotations

import errno
from pathlib import Path

import numpy as np
import pytest
import xxhash

from outcrop.disk import Disk, File, read_blocks
from outcrop.errors import StoreError, WriteError
from outcrop.store.arrays import Appender, ArrayWriter, adopt_array, map_array
from outcrop.store.format import PIECE_BYTES


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("rows", [0, 1, 1000, 300_000])
def test_an_array_in_chunks_is_one_npy_file(
    tmp_path: Path, disk: Disk, rows: int, known: bool
) -> None:
    table = np.random.default_rng(0).standard_normal((rows, 7)).astype(np.float32)
    with ArrayWriter(
        disk, tmp_path, "x/a.npy", table.dtype, (7,), rows if known else None
    ) as writer:
        for chunk in np.array_split(table, 13):
            writer.append(chunk)
        entry = writer.close()
    assert entry.shape == (rows, 7)
    assert np.array_equal(np.load(tmp_path / "x/a.npy"), table)
    assert np.array_equal(map_array(tmp_path, entry), table)
    data = (tmp_path / "x/a.npy").read_bytes()
    assert len(data) == entry.file_bytes
    assert entry.checksums == (xxhash.xxh3_128(data).hexdigest(),)


def test_each_piece_has_its_own_checksum(tmp_path: Path, disk: Disk) -> None:
    values = np.arange(PIECE_BYTES // 4 + 1000, dtype=np.int64)  # two pieces and a bit
    with ArrayWriter(disk, tmp_path, "a.npy", values.dtype) as writer:
        for chunk in np.array_split(values, 100):
            writer.append(chunk)
        entry = writer.close()
    data = (tmp_path / "a.npy").read_bytes()
    pieces = [data[at : at + PIECE_BYTES] for at in range(0, len(data), PIECE_BYTES)]
    assert entry.checksums == tuple(xxhash.xxh3_128(piece).hexdigest() for piece in pieces)
    assert len(pieces) == 3
    with disk.open(tmp_path / "a.npy") as file:
        blocks = b"".join(block.tobytes() for block in read_blocks(file, 5, len(data) - 5))
    assert blocks == data[5:-5]


def test_a_disk_with_just_enough_room_is_enough(
    tmp_path: Path, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    room, reserve = 7 << 20, File.reserve

    def reserve_on_a_small_disk(self: File, size: int) -> None:
        if size > room:
            raise WriteError(errno.ENOSPC, "No space left on device", self.path, 0, size)
        reserve(self, size)

    monkeypatch.setattr(File, "reserve", reserve_on_a_small_disk)
    data = np.random.default_rng(0).integers(0, 256, room, dtype=np.uint8)
    appender = Appender(disk, tmp_path / "f")
    appender.append(data)
    appender.finish()
    appender.close()
    assert (tmp_path / "f").read_bytes() == data.tobytes()
    appender = Appender(disk, tmp_path / "g")
    with pytest.raises(WriteError, match="No space left"):
        appender.append(np.zeros(room + (1 << 20), np.uint8))
    appender.close()


def test_a_file_is_adopted_where_it_is(tmp_path: Path, disk: Disk) -> None:
    table = np.random.default_rng(0).standard_normal((50, 3)).astype(np.float16)
    np.save(tmp_path / "mine.npy", table)
    entry = adopt_array(disk, tmp_path / "mine.npy")
    assert entry.data_offset == 128 and entry.adopted_mtime_ns is not None
    assert np.array_equal(map_array(Path("/elsewhere"), entry), table)


def test_an_array_in_fortran_order_is_not_adopted(tmp_path: Path, disk: Disk) -> None:
    np.save(tmp_path / "mine.npy", np.asfortranarray(np.ones((50, 3))))
    with pytest.raises(StoreError, match=r"mine\.npy: is in Fortran order"):
        adopt_array(disk, tmp_path / "mine.npy")
