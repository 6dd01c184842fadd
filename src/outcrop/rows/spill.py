"""Spill: records of arrays -> a file of a run; read back in any order, the next ones ahead."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterable, Sequence
from contextlib import AbstractContextManager
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from xxhash import xxh3_64_intdigest

from outcrop.disk import PAGE_BYTES, Disk, File, Pending, Recycled, round_up
from outcrop.errors import CorruptError
from outcrop.store.arrays import Appender

_AHEAD = 1

Bytes = NDArray[np.uint8]


class _Record(NamedTuple):
    offset: int
    lengths: tuple[int, ...]
    checksum: int


class Spill(AbstractContextManager["Spill"]):
    """Append, `seal`, then `scan` and `read`. Lives as long as its run: nothing is synced.

    Holds 2 MiB while it is written; a scan holds the memory of two records, and of those in use.
    Once it is sealed, thread-safe, apart from `close`; but one iterator belongs to one thread.
    """

    def __init__(self, disk: Disk, path: Path, dtypes: Sequence[Any]) -> None:
        """`dtypes`: of the arrays of each record."""
        self._disk = disk
        self._path = path
        self._dtypes = [np.dtype(dtype) for dtype in dtypes]
        self._stream: Appender | None = Appender(disk, path)
        self._file: File | None = None
        self._records: list[_Record] = []

    def __len__(self) -> int:
        return len(self._records)

    def append(self, *arrays: NDArray[Any]) -> None:
        assert self._stream is not None, "sealed"
        offset = self._stream.bytes
        checksum = 0
        for array, dtype in zip(arrays, self._dtypes, strict=True):
            data = np.ascontiguousarray(array, dtype).view(np.uint8)
            checksum = xxh3_64_intdigest(data.data, seed=checksum)
            self._stream.append(data)
        self._stream.append(np.zeros(-self._stream.bytes % PAGE_BYTES, np.uint8))
        self._records.append(_Record(offset, tuple(map(len, arrays)), checksum))

    def seal(self) -> None:
        """No more is appended; on return all of it can be read."""
        assert self._stream is not None, "sealed"
        self._stream.finish()
        self._stream.close()
        self._stream = None
        self._file = self._disk.open(self._path)

    def scan(self, numbers: Iterable[int]) -> Generator[list[NDArray[Any]], None, None]:
        """The records of these numbers, each in memory that is used again once it is dropped.

        Until it is at its end, or closed, it keeps the file open.
        """
        records = [self._records[number] for number in numbers]
        memory = Recycled(max(map(self._record_bytes, records), default=0))
        starts = (self._start(record, memory) for record in records)
        flying = deque(islice(starts, _AHEAD))
        for record in records:
            pending, data = flying.popleft()
            pending.wait()
            flying.extend(islice(starts, 1))
            arrays = self._arrays(record, data)
            del data
            yield arrays
            del arrays  # not kept here while the next one is awaited

    def read(self, number: int) -> list[NDArray[Any]]:
        """The record of this number, in memory of its own."""
        record = self._records[number]
        pending, data = self._start(record, Recycled(0))
        pending.wait()
        return self._arrays(record, data)

    def _record_bytes(self, record: _Record) -> int:
        wanted = 0
        for length, dtype in zip(record.lengths, self._dtypes, strict=True):
            wanted += length * int(dtype.itemsize)
        return int(round_up(wanted))

    def _start(self, record: _Record, memory: Recycled) -> tuple[Pending, Bytes]:
        assert self._file is not None, "not sealed"
        data = memory.take(self._record_bytes(record))
        return self._file.start_read_extents([record.offset], [len(data)], data), data

    def _arrays(self, record: _Record, data: Bytes) -> list[NDArray[Any]]:
        arrays = []
        checksum = begin = 0
        for length, dtype in zip(record.lengths, self._dtypes, strict=True):
            part = data[begin : begin + length * dtype.itemsize]
            checksum = xxh3_64_intdigest(part.data, seed=checksum)
            arrays.append(part.view(dtype))
            begin += len(part)
        if checksum != record.checksum:
            where = f"{begin} B at {record.offset}"
            raise CorruptError(f"{self._path}: {where} differ from their checksum")
        return arrays

    def close(self) -> None:
        """Removes the file."""
        if self._stream is not None:
            self._stream.close()
        if self._file is not None:
            self._file.close()
        self._path.unlink(missing_ok=True)

    def __exit__(self, *_: object) -> None:
        self.close()
