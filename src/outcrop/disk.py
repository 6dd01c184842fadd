"""Disk: files, and the engine that reads and writes them.

Everything that Outcrop moves in bulk passes through three calls of `File`: read extents, read rows
and write extents. Each exists as a blocking call and as `start_...`, which returns a `Pending` at
once; no call holds the GIL while it waits.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from itertools import islice
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from outcrop import _core
from outcrop.closing import Closing
from outcrop.errors import CancelledError, OptionError
from outcrop.options import DiskOptions, Faults

Path = str | os.PathLike[str]
Ints = NDArray[np.int64] | Sequence[int]
Array = NDArray[Any]
Pending = _core.Pending
T = TypeVar("T")

# benchmarks/results/read_rows.md: two rings keep the drive busy while one copies rows out; blocking
# threads gain up to 64.
_URING_WORKERS = 2
_POOL_WORKERS = 64
_URING_BOUNCE_BYTES = 1 << 20
_POOL_BOUNCE_BYTES = 128 << 10
# The same: 8 MiB in flight fill the drive; a larger memory to read into is slower, since it leaves
# the CPU's cache.
READ_BLOCK_BYTES = 2 << 20
_BLOCKS_AHEAD = 3
PAGE_BYTES = 4096
"""What direct reads are aligned to, wherever they go."""


SIZE_BOUNDS = tuple(4096 << bucket for bucket in range(11))
"""Bytes by which requests are counted: 4 KiB to 4 MiB."""


@dataclass(frozen=True)
class DiskCounters:
    """What an engine did since it was made."""

    read_requests: int
    bytes_wanted: int
    bytes_read: int
    write_requests: int
    bytes_written: int
    retries: int
    wait_seconds: float
    latency: tuple[int, ...]
    """Requests by latency: entry b counts those of 2^b to 2^(b+1) nanoseconds."""
    read_sizes: tuple[int, ...]
    """Requests by size, reads: entry b counts those of up to SIZE_BOUNDS[b] bytes that are in none
    before it; the last those of more."""
    write_sizes: tuple[int, ...]
    """Writes, by size as reads are."""

    def __add__(self, other: DiskCounters) -> DiskCounters:
        """The counters of two engines together."""
        return DiskCounters(
            **{f.name: _added(getattr(self, f.name), getattr(other, f.name)) for f in fields(self)}
        )

    def latency_us(self, share: float) -> float:
        """The latency in microseconds that `share` of all requests did not exceed, interpolated."""
        wanted = share * sum(self.latency)
        for bucket, count in enumerate(self.latency):
            if count and wanted <= count:
                return float(2.0**bucket * (1 + wanted / count) / 1000)
            wanted -= count
        return 0.0


def _added(a: Any, b: Any) -> Any:
    """Numbers, or tuples of them entry by entry."""
    if isinstance(a, tuple):
        return tuple(x + y for x, y in zip(a, b, strict=True))
    return a + b


def aligned_empty(shape: int | tuple[int, ...], dtype: Any = np.uint8) -> Array:
    """A page-aligned array, zeroed, whose memory goes back to the system when it is freed.

    Reads go straight into it, and so it is not there in forked children, unless it is `given`.
    """
    shape = (shape,) if isinstance(shape, int) else shape
    dtype = np.dtype(dtype)
    count = int(np.prod(shape, dtype=np.int64))
    memory: Array = _core.aligned_zeros(count * dtype.itemsize)
    array: Array = memory.view(dtype).reshape(shape)
    return array


def given(array: Array) -> Array:
    """The array, whose memory forked children have from now on.

    Nothing is being read into it; what is read later arrives with a copy.
    """
    _core.give_to_children(_bytes(array))
    return array


@dataclass(frozen=True)
class EngineFacts:
    """What an engine holds."""

    engine: str
    workers: Mapping[str, int]
    """How many each kind of engine has."""
    unit_bytes: int

    @property
    def memory_bytes(self) -> int:
        return self.in_units(self.unit_bytes)

    @property
    def most_memory_bytes(self) -> int:
        """The most that either kind of engine would hold: plans made with it are alike for both."""
        return max(self._bytes(engine, self.unit_bytes) for engine in self.workers)

    def in_units(self, unit_bytes: int) -> int:
        """What another engine of this kind would hold."""
        return self._bytes(self.engine, unit_bytes)

    def _bytes(self, engine: str, unit_bytes: int) -> int:
        return self.workers[engine] * _bounce_bytes(engine, unit_bytes)


class Recycled:
    """Memory for reads that is used again, since fresh pages cost more than what is read there."""

    def __init__(self, size: int) -> None:
        """`size`: what is lent for any smaller take; a larger one gets what it needs."""
        self.bytes = size
        self._slabs = _core.SlabPool(limit_bytes=2**63)

    def take(self, size: int) -> NDArray[np.uint8]:
        """Nobody else has it until the last view of it is gone."""
        slabs = self._slabs.take([max(self.bytes, size)], 0)
        assert slabs is not None
        return slabs[0][:size]


class Disk(Closing):
    """The engine: opens files, and does all their reads and writes on threads of its own.

    Thread-safe. Belongs to the process that made it: after a fork, make another.
    """

    def __init__(self, options: DiskOptions | None = None, beside: Disk | None = None) -> None:
        """`beside`: an engine on the same drive; where it is throttled, both are together."""
        self.options = options or DiskOptions()
        self._throttle: _core.Throttle | None = (
            _throttle(self.options) if beside is None else beside._throttle
        )
        self.engine: str
        """ "uring" or "pool": what was chosen."""
        self.refusal: str | None = None
        """Why `auto` did not choose io_uring, where it did not."""
        self._engine = self._choose_engine()

    def _choose_engine(self) -> _core.Engine:
        if self.options.engine != "pool":
            self.refusal = _core.uring_refusal() or None
            if self.refusal is None:
                try:
                    return self._make_engine("uring")
                except OSError as error:  # allowed a moment ago: memory or threads ran out
                    self.refusal = str(error)
            if self.options.engine == "uring":
                raise OptionError(
                    f"engine='uring' cannot be used: {self.refusal}; use 'auto' or 'pool'"
                )
        return self._make_engine("pool")

    def _make_engine(self, name: str) -> _core.Engine:
        options = self.options
        engine = _core.Engine(
            uring=name == "uring",
            workers=self._workers(name),
            queue_depth=options.queue_depth,
            bounce_bytes=_bounce_bytes(name, options.unit_bytes),
            unit_bytes=options.unit_bytes,
            gap_bytes=options.gap_bytes,
            merge=options.merge,
            max_request_bytes=options.max_request_bytes,
            faults=_faults(options.faults),
            throttle=self._throttle,
        )
        self.engine = name
        return engine

    def _workers(self, name: str) -> int:
        return self.options.workers or (_URING_WORKERS if name == "uring" else _POOL_WORKERS)

    @property
    def facts(self) -> EngineFacts:
        """What plans are made from."""
        workers = {name: self._workers(name) for name in ("uring", "pool")}
        return EngineFacts(self.engine, workers, self.options.unit_bytes)

    @property
    def counters(self) -> DiskCounters:
        c = self._engine.counters()
        return DiskCounters(
            read_requests=c.read_requests,
            bytes_wanted=c.bytes_wanted,
            bytes_read=c.bytes_read,
            write_requests=c.write_requests,
            bytes_written=c.bytes_written,
            retries=c.retries,
            wait_seconds=c.wait_ns / 1e9,
            latency=tuple(c.latency),
            read_sizes=tuple(c.read_sizes),
            write_sizes=tuple(c.write_sizes),
        )

    def open(self, path: Path) -> File:
        """Opens a file for reading."""
        return File(self._engine, _core.File.open(os.fspath(path), self._access()))

    def open_for_update(self, path: Path) -> File:
        """Opens a file that exists for writing and reading."""
        return File(self._engine, _core.File.open_for_update(os.fspath(path), self._access()))

    def create(self, path: Path, size: int = 0) -> File:
        """Creates a file of `size` bytes, allocated on disk; an existing file is an error."""
        return File(self._engine, _core.File.create(os.fspath(path), size, self._access()))

    def _access(self) -> _core.Access:
        return _core.Access[self.options.access.upper()]

    def close(self) -> None:
        """Ends the threads and waits for what is in flight; the rest raises CancelledError."""
        self._engine.close()


class File(Closing):
    """An open file. Thread-safe, apart from `close`."""

    def __init__(self, engine: _core.Engine, file: _core.File) -> None:
        self._engine = engine
        self._file: _core.File | None = file
        self.path = file.path
        self.direct = file.direct
        """Whether reads go around the page cache."""

    @property
    def _open(self) -> _core.File:
        if self._file is None:
            raise ValueError(f"{self.path} is closed")
        return self._file

    @property
    def core(self) -> tuple[_core.Engine, _core.File]:
        """For parts of the core that read by themselves."""
        return self._engine, self._open

    @property
    def size(self) -> int:
        return self._open.size

    @property
    def block_bytes(self) -> int:
        """What direct reads must be aligned to; 1 for a buffered file."""
        return self._open.offset_align

    # Reads

    def start_read_extents(
        self, offsets: Ints, lengths: Ints, out: Array, places: Ints | None = None
    ) -> Pending:
        """Bytes [offsets[i], offsets[i] + lengths[i]) -> out, at byte places[i].

        Without `places` the extents follow each other in `out`.
        """
        offsets, lengths = _ints(offsets), _ints(lengths)
        places = _following(lengths) if places is None else _ints(places)
        return self._engine.read_extents(self._open, offsets, lengths, places, _bytes(out))

    def read_extents(
        self, offsets: Ints, lengths: Ints, out: Array, places: Ints | None = None
    ) -> None:
        self.start_read_extents(offsets, lengths, out, places).wait()

    def start_read_rows(
        self, ids: Ints, out: Array, *, base: int = 0, places: Ints | None = None
    ) -> Pending:
        """Rows `ids` (ascending) of the rows that begin at byte `base` -> out[places[i]].

        A row has as many bytes as `out[0]`. Without `places` row i goes to out[i].
        """
        row_bytes = out.itemsize * int(np.prod(out.shape[1:], dtype=np.int64))
        ids = _ints(ids)
        places = None if places is None else _ints(places)
        return self._engine.read_rows(self._open, base, row_bytes, ids, places, _bytes(out))

    def read_rows(
        self, ids: Ints, out: Array, *, base: int = 0, places: Ints | None = None
    ) -> None:
        self.start_read_rows(ids, out, base=base, places=places).wait()

    def read(self, offset: int, length: int) -> NDArray[np.uint8]:
        """Bytes [offset, offset + length), in memory of their own."""
        out = aligned_empty(length)
        self.read_extents([offset], [length], out)
        return given(out)

    # Writes

    def start_write_extents(
        self, offsets: Ints, lengths: Ints, source: Array, places: Ints | None = None
    ) -> Pending:
        """source, from byte places[i] on -> bytes [offsets[i], offsets[i] + lengths[i])."""
        offsets, lengths = _ints(offsets), _ints(lengths)
        places = _following(lengths) if places is None else _ints(places)
        return self._engine.write_extents(self._open, offsets, lengths, places, _bytes(source))

    def write_extents(
        self, offsets: Ints, lengths: Ints, source: Array, places: Ints | None = None
    ) -> None:
        self.start_write_extents(offsets, lengths, source, places).wait()

    def write(self, offset: int, source: Array) -> None:
        """All of `source` -> the bytes from `offset` on."""
        self.write_extents([offset], [source.nbytes], source)

    def reserve(self, size: int) -> None:
        """Allocates disk space up to `size` bytes, or raises WriteError."""
        self._open.reserve(size)

    def truncate(self, size: int) -> None:
        self._open.truncate(size)

    def sync(self) -> None:
        """On return, everything written has reached the device."""
        self._open.sync()

    def close(self) -> None:
        """Transfers under way keep the file until they are done."""
        self._file = None


class RowReader:
    """Rows of a file in any order -> memory. Not thread-safe, apart from `cancel`."""

    ORDER_BYTES = 16
    """What a read takes per row: the order in which they are read, and their ids in it."""

    def __init__(self, file: File, base: int) -> None:
        """`base`: the byte at which rows begin."""
        self._file, self._base = file, base
        self._lock = threading.Lock()
        # Guarded by _lock
        self._reading: Pending | None = None
        self._cancelled = False

    def read(self, ids: NDArray[np.int64], out: Array) -> None:
        """Row ids[i] -> out[i], as often as one is wanted; it has as many bytes as `out[0]`."""
        try:
            self._start(ids, out).wait()
        finally:
            with self._lock:
                self._reading = None

    def _start(self, ids: NDArray[np.int64], out: Array) -> Pending:
        # Ascending, so that the drive sees one forward sweep and neighbours are read together.
        order = np.argsort(ids)
        row_bytes = out.itemsize * int(np.prod(out.shape[1:], dtype=np.int64))
        engine, file = self._file.core
        with self._lock:
            if self._cancelled:
                raise CancelledError(f"cancelled before {self._file.path} was read")
            # As the engine wants them: a File would copy both lists.
            self._reading = engine.read_rows(
                file, self._base, row_bytes, ids[order], order, _bytes(out)
            )
            return self._reading

    def cancel(self) -> None:
        """A read under way, and every later one, raises CancelledError. From any thread."""
        with self._lock:
            self._cancelled = True
            if self._reading is not None:
                self._reading.cancel()


def reading_bytes(size: int, block_bytes: int = READ_BLOCK_BYTES) -> int:
    """What read_blocks keeps for so many bytes."""
    return min(1 + _BLOCKS_AHEAD, -(-size // block_bytes)) * min(block_bytes, size)


def read_blocks(
    file: File, start: int, end: int, block_bytes: int = READ_BLOCK_BYTES
) -> Iterator[NDArray[np.uint8]]:
    """Bytes [start, end) in blocks, the following ones being read while one is used.

    A block is overwritten once the next one is asked for.
    """
    offsets = range(start, end, block_bytes)
    count = min(1 + _BLOCKS_AHEAD, len(offsets))
    buffers = [aligned_empty(min(block_bytes, end - start)) for _ in range(count)]

    def starts() -> Iterator[tuple[Pending, NDArray[np.uint8]]]:
        for index, offset in enumerate(offsets):
            block = buffers[index % count][: min(block_bytes, end - offset)]
            yield file.start_read_extents([offset], [len(block)], block), block

    return landed(starts(), count)


class Landing(Protocol):
    """Bytes on their way to memory."""

    def wait(self) -> None: ...


def landed(starts: Iterator[tuple[Landing, T]], count: int) -> Iterator[T]:
    """What transfers bring, in order; up to `count` are begun before the first is waited for.

    The next one is begun when the next result is asked for: it may have the memory of the last.
    """
    flying = deque(islice(starts, count))
    while flying:
        pending, brought = flying.popleft()
        pending.wait()
        yield brought
        flying.extend(islice(starts, 1))


def round_up(count: Any, unit: int = PAGE_BYTES) -> Any:
    """To whole pages, or other units; numbers and arrays of them alike."""
    return -(-count // unit) * unit


def _bounce_bytes(engine: str, unit_bytes: int) -> int:
    """What each worker has; a quarter is the longest read that is not straight into its place."""
    usual = _URING_BOUNCE_BYTES if engine == "uring" else _POOL_BOUNCE_BYTES
    return max(usual, 4 * unit_bytes)


def _ints(values: Ints) -> NDArray[np.int64]:
    """A copy: checked once, it is read by workers until the transfer is done."""
    return np.array(values, dtype=np.int64, order="C")


def _following(lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    places = np.zeros(len(lengths), dtype=np.int64)
    np.cumsum(lengths[:-1], out=places[1:])
    return places


def _bytes(array: Array) -> NDArray[np.uint8]:
    """The array's own memory as bytes; never a copy."""
    if not array.flags.c_contiguous:
        raise ValueError("the array must be contiguous")
    return array.reshape(-1).view(np.uint8)


def _throttle(options: DiskOptions) -> _core.Throttle | None:
    if options.bytes_per_second is None and options.requests_per_second is None:
        return None
    return _core.Throttle(
        bytes_per_second=options.bytes_per_second or 0,
        requests_per_second=options.requests_per_second or 0,
    )


def _faults(faults: Faults | None) -> _core.FaultOptions | None:
    if faults is None:
        return None
    options = _core.FaultOptions()
    for name, value in asdict(faults).items():
        setattr(options, name, value)
    return options
