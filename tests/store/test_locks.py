"""Files that are written whole: a drive without room for them keeps what was there."""

from __future__ import annotations

import errno
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from outcrop.errors import WriteError
from outcrop.store.locks import replace_synced, write_synced


@contextmanager
def room_for(size: int) -> Iterator[None]:
    """No file may become larger than this."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_file_that_does_not_fit_is_named_and_the_old_one_stays(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    for there in ([], ["run.json"]):
        with (
            pytest.raises(WriteError, match=r"run\.json: 100000 B at 0: .*") as raised,
            room_for(5),
        ):
            replace_synced(path, bytes(60_000), memoryview(bytes(40_000)))
        assert raised.value.errno == errno.EFBIG and raised.value.filename == str(path)
        assert os.listdir(tmp_path) == there
        path.write_bytes(b"old")
    assert path.read_bytes() == b"old"


def test_a_file_that_may_not_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as raised:
        replace_synced(tmp_path / "none" / "run.json", b"")
    assert raised.value.filename == str(tmp_path / "none" / "run.json")


def test_a_header_that_does_not_fit_is_named(tmp_path: Path) -> None:
    with pytest.raises(WriteError, match=r"layout\.json: 9000 B at 0: "), room_for(5):
        write_synced(tmp_path / "layout.json", bytes(9000))


def test_a_pipe_is_written_to_and_not_replaced(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    replace_synced(tmp_path / "pipe", b"to ", b"someone")
    assert os.read(reader, 100) == b"to someone"
    assert (tmp_path / "pipe").is_fifo()
    os.close(reader)
