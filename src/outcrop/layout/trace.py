"""Trace: sampled batches -> one append-only file and an index; read back in order, with prefetch.

docs/format.md has the bytes. A batch is one record of whole pages, so that a flushed page is never
written again and reads land where they belong. Its node ids come first, with a checksum of their
own, for those who need nothing else.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Literal, TypeVar, overload

import numpy as np
from numpy.typing import NDArray
from xxhash import xxh3_64_intdigest, xxh3_128_hexdigest

from outcrop.closing import Closing
from outcrop.disk import Disk, File, Pending, Recycled, aligned_empty, round_up
from outcrop.errors import CorruptError, OptionError, ReadError, StoreError
from outcrop.progress import Progress
from outcrop.sample.sampler import Reuse, Subgraph
from outcrop.sample.seeds import Ids, Stream, Task
from outcrop.schema import Count
from outcrop.store.arrays import Appender, ArrayWriter, piece_checksums
from outcrop.store.format import HEADER_BYTES, ArrayEntry, seal, unseal_as
from outcrop.store.locks import sync_directory, write_synced

_FORMAT_NAME, TRACE_VERSION = "outcrop-trace", 1
AHEAD_BYTES = 8 << 20  # benchmarks/results/read_rows.md: as much in flight fills the drive

Bytes = NDArray[np.uint8]
Batch = tuple[Task, Subgraph]
_All = Literal["all"]
_Nodes = Literal["nodes"]
_Narrow = Literal["narrow"]
_Item = TypeVar("_Item")

_DATA, _INDEX, _HEADER = "batches.bin", "index.npy", "trace.json"
_COUNTS = ["nodes", "edges", "targets", "seeds", "numbers"]
_CHECKSUMS = ["nodes_checksum", "rest_checksum", "row_checksum"]
_ROW = np.dtype(
    [(name, "<i8") for name in ("offset", "bytes", *_COUNTS)]
    + [(name, "<u8") for name in _CHECKSUMS]
)
_INT64, _UINT32 = np.dtype("<i8"), np.dtype("<u4")
# Stream, epoch, batch, lengths of nodes_per_hop and edges_per_hop; these two follow, then roots; or
# what is used again: the iteration, how many are pulled, and the lists.
_LEADING_NUMBERS = 5
_REUSE_NUMBERS = 2


@dataclass(frozen=True)
class _Format:
    """How batches lie in the data file."""

    node: np.dtype[Any]
    edge: np.dtype[Any]
    edge_ids: bool
    reuse: bool = False
    """Whether batches have what they use again; in windows alone, which no file outlives."""

    @staticmethod
    def of(num_nodes: int, num_edges: int, edge_ids: bool, reuse: bool = False) -> _Format:
        """With the smaller dtypes that hold the graph's ids."""
        node, edge = (np.dtype("<i4" if n <= 1 << 31 else "<i8") for n in (num_nodes, num_edges))
        return _Format(node, edge, edge_ids, reuse)

    def sections(self, counts: list[int]) -> list[tuple[np.dtype[Any], int]]:
        """The sections of a record with these _COUNTS; each begins at a multiple of 8 bytes."""
        nodes, edges, targets, seeds, numbers = counts
        kept = edges if self.edge_ids else 0
        ids = [(self.node, nodes), (_INT64, seeds), (self.node, seeds), (_INT64, numbers)]
        return [*ids, (self.edge, kept), (_UINT32, targets), (_UINT32, edges)]

    def record_bytes(self, counts: list[int]) -> int:
        sections = self.sections(counts)
        return int(round_up(sum(round_up(n * dtype.itemsize, 8) for dtype, n in sections)))

    def views(self, record: Bytes, counts: list[int]) -> Iterator[NDArray[Any]]:
        """Nodes, input_ids, seeds, numbers, edge_ids, counts, sources."""
        begin = 0
        for dtype, count in self.sections(counts):
            end = begin + count * dtype.itemsize
            yield record[begin:end].view(dtype)
            begin = round_up(end, 8)


def trace_bytes(
    nodes: int,
    edges: int,
    seeds: int,
    *,
    targets: int,
    lists: int,
    num_nodes: int,
    num_edges: int,
    edge_ids: bool = True,
) -> int:
    """Counts of a batch -> its bytes on disk, exactly, its row of the index included.

    `targets`: len(counts). `lists`: entries of nodes_per_hop, edges_per_hop and roots together.
    `num_nodes`, `num_edges`: above every id of a node and of an edge. While it is written, a trace
    reserves as much again, at least 4 MiB and at most 256.
    """
    counts = [nodes, edges, targets, seeds, _LEADING_NUMBERS + lists]
    return _Format.of(num_nodes, num_edges, edge_ids).record_bytes(counts) + _ROW.itemsize


class TraceWriter(Closing):
    """Batches -> a folder. Not thread-safe, but what `flush` returned may be read meanwhile.

    Holds 2 MiB of buffers, 1.25 times the largest record, and up to 160 bytes per batch. A failed
    write closes it. A folder without `finish` is no trace, and the caller's to remove.
    """

    def __init__(
        self,
        disk: Disk,
        folder: Path,
        *,
        num_nodes: int,
        num_edges: int,
        identity: Mapping[str, Any],
        edge_ids: bool = True,
        reuse: bool = False,
    ) -> None:
        """`num_nodes`, `num_edges`: above every id of a node and of an edge; see `edge_id_limit`.

        `identity`: of the samples, in JSON's values. `reuse`: batches have what they use again;
        such a trace is sealed, and cannot be finished.
        """
        try:
            self._identity = json.loads(json.dumps(dict(identity)))
        except (TypeError, ValueError) as error:
            raise OptionError(f"identity takes plain values: {error} (got {identity})") from None
        self._disk = disk
        self._folder = folder
        self._num_nodes, self._num_edges = num_nodes, num_edges
        self._format = _Format.of(num_nodes, num_edges, edge_ids, reuse)
        self._rows = np.zeros(64, _ROW)
        self._count = 0
        self._memory = aligned_empty(0)
        self._stream: Appender | None = Appender(disk, folder / _DATA)

    @property
    def bytes(self) -> int:
        """What the batches so far take."""
        return 0 if self._stream is None else self._stream.bytes

    def append(self, task: Task, subgraph: Subgraph) -> None:
        """Copies everything: the arrays may change afterwards."""
        node_hops, edge_hops = subgraph.nodes_per_hop, subgraph.edges_per_hop
        key = [task.stream, task.epoch, task.batch]
        numbers = [*key, len(node_hops), len(edge_hops), *node_hops, *edge_hops]
        numbers += _reuse_numbers(subgraph.reuse) if self._format.reuse else subgraph.roots
        edge_ids: NDArray[Any] | None = np.empty(0, np.int64)
        if self._format.edge_ids:
            edge_ids = subgraph.edge_ids
        if edge_ids is None:
            raise ValueError("a trace with edge ids was begun, and a batch has none")
        parts: list[NDArray[Any]] = [
            _checked("a node", subgraph.nodes, self._num_nodes),
            task.input_ids,
            _checked("a seed", task.seeds, self._num_nodes),
            np.array(numbers, np.int64),
            _checked("an edge id", edge_ids, self._num_edges),
            subgraph.counts,
            subgraph.sources,
        ]
        nodes, _, seeds, _, _, targets, edges = map(len, parts)
        counts = [nodes, edges, targets, seeds, len(numbers)]
        self._append_record(self._record(counts, parts), counts)

    def _record(self, counts: list[int], parts: list[NDArray[Any]]) -> Bytes:
        """In memory that the next one uses again."""
        size = self._format.record_bytes(counts)
        if len(self._memory) < size:
            self._memory = aligned_empty(size + size // 4)
        record = self._memory[:size]
        record.fill(0)
        for view, part in zip(self._format.views(record, counts), parts, strict=True):
            if part.shape != view.shape:  # numpy would repeat a single entry
                raise ValueError(f"an array of shape {view.shape} was expected (got {part.shape})")
            np.copyto(view, part)
        return record

    def _append_record(self, record: Bytes, counts: list[int]) -> None:
        if self._count == len(self._rows):
            self._rows = np.concatenate([self._rows, np.zeros_like(self._rows)])
        row = self._rows[self._count : self._count + 1]  # beyond what any reader looks at
        split = counts[0] * self._format.node.itemsize
        with self._open_stream() as stream:
            checksums = (_checksum(record[:split]), _checksum(record[split:]))
            row[0] = (stream.bytes, len(record), *counts, *checksums, 0)
            row["row_checksum"] = _row_checksum(row.view(np.uint8), self._count)
            stream.append(record)
            self._count += 1

    def flush(self) -> TraceReader:
        """The batches so far, readable while more are appended. Nothing is synced."""
        with self._open_stream() as stream:
            stream.flush()
            return self._reader()

    def seal(self) -> TraceReader:
        """All batches, for as long as a run lasts: no more are appended, and nothing is synced."""
        with self._open_stream() as stream:
            stream.finish()  # gives back what was reserved ahead
            reader = self._reader()
        self.close()
        return reader

    def _reader(self) -> TraceReader:
        file = self._disk.open(self._folder / _DATA)
        return TraceReader(file, self._format, self._rows[: self._count], self._identity)

    def finish(self) -> None:
        """Makes the folder a trace; on return, all of it has reached the device."""
        if self._format.reuse:
            raise ValueError(
                "what batches use again is of one run: such a trace cannot be finished"
            )
        with self._open_stream() as stream:
            stream.finish()
            stream.file.sync()
            with ArrayWriter(self._disk, self._folder, _INDEX, _ROW, rows=self._count) as index:
                index.append(self._rows[: self._count])
                entry = index.close()
            header = {
                "format": _FORMAT_NAME,
                "version": TRACE_VERSION,
                "node_dtype": self._format.node.str,
                "edge_dtype": self._format.edge.str,
                "edge_ids": self._format.edge_ids,
                "data_bytes": stream.bytes,
                "index": entry.to_json(),
                "identity": self._identity,
            }
            write_synced(self._folder / _HEADER, seal(header))
            sync_directory(self._folder)
        self.close()

    @contextmanager
    def _open_stream(self) -> Iterator[Appender]:
        if self._stream is None:
            raise ValueError(f"{self._folder}: the writer of this trace is closed")
        try:
            yield self._stream
        except BaseException:  # bytes may be missing: nothing may be made of the others
            self.close()
            raise

    def close(self) -> None:
        if self._stream is not None:
            self._stream.close()
            self._stream = None


class TraceReader(Closing):
    """Batches 0, 1, 2 ... as they were appended, each in memory of its own.

    Thread-safe, apart from `close`; but one iterator of `scan` belongs to one thread.
    """

    def __init__(
        self, file: File, layout: _Format, index: NDArray[Any], identity: dict[str, Any]
    ) -> None:
        # Constant after construction
        self.identity = identity
        """The identity of the samples, as the writer was given it."""
        self.has_edge_ids = layout.edge_ids
        """Where not, `edge_ids` of its subgraphs is None."""
        self._file = file
        self._format = layout
        self._index = index

    def __len__(self) -> int:
        return len(self._index)

    @property
    def bytes(self) -> int:
        """What all batches and the index take."""
        return int(self._index["bytes"].sum()) + self._index.nbytes

    @property
    def sizes(self) -> tuple[Ids, Ids]:
        """Nodes and edges per batch, from the index: nothing is read."""
        return self._index["nodes"].copy(), self._index["edges"].copy()

    @property
    def largest(self) -> tuple[int, int, int]:
        """The most nodes, edges and seeds of a batch."""
        nodes, edges, seeds = (
            int(self._index[name].max(initial=0)) for name in ("nodes", "edges", "seeds")
        )
        return nodes, edges, seeds

    @property
    def digest(self) -> str:
        """A digest of all batches, made from their checksums."""
        return xxh3_128_hexdigest(self._index.tobytes())

    def read(self, t: int) -> Batch:
        return next(self.scan(t, t + 1))

    def nodes(self, t: int) -> Ids:
        """The node ids alone; nothing else is read."""
        return next(self.scan(t, t + 1, what="nodes"))

    @overload
    def scan(
        self,
        first: int = ...,
        last: int | None = ...,
        *,
        ahead_bytes: int = ...,
        what: _All | _Narrow = ...,
        backwards: bool = ...,
    ) -> Iterator[Batch]: ...
    @overload
    def scan(
        self,
        first: int = ...,
        last: int | None = ...,
        *,
        ahead_bytes: int = ...,
        what: _Nodes,
        backwards: bool = ...,
    ) -> Iterator[Ids]: ...
    def scan(
        self,
        first: int = 0,
        last: int | None = None,
        *,
        ahead_bytes: int = AHEAD_BYTES,
        what: _All | _Nodes | _Narrow = "all",
        backwards: bool = False,
    ) -> Iterator[Batch] | Iterator[Ids]:
        """Batches [first, last), or their node ids; the next ones are read while one is used.

        "narrow": nodes and edge ids as they are stored, in 32 bits where those suffice: for those
        who copy them anyway.

        As many are read ahead as fit in `ahead_bytes`, at least one. Let L be the largest record
        (the largest node ids, in pages) and W what its ids take in 64 bits (nodes, seeds, edge
        ids): the reads ahead hold max(ahead_bytes, L), and every item that is in use or in the
        making L + W. To drop the iterator is to stop the reads.
        """
        last = len(self) if last is None else last
        if not 0 <= first <= last <= len(self):
            raise IndexError(f"{self._file.path}: batches [{first}, {last}) of {len(self)}")
        numbers = range(last - 1, first - 1, -1) if backwards else range(first, last)
        reads, wide = self._lengths(self._index[np.array(numbers, np.int64)], what)
        if what == "nodes":
            return self._scan(numbers, reads, wide, ahead_bytes, self._nodes_of)
        make = self._batch_of if what == "all" else self._narrow_batch_of
        return self._scan(numbers, reads, wide, ahead_bytes, make)

    def _lengths(self, index: NDArray[Any], what: _All | _Nodes | _Narrow) -> tuple[Ids, Ids]:
        """Per batch: bytes to read, and bytes of its ids in 64 bits."""
        if what == "nodes":  # whole pages, so that they are read straight into place
            return round_up(index["nodes"] * self._format.node.itemsize), 8 * index["nodes"]
        if what == "all":
            edge_ids = index["edges"] * self.has_edge_ids
            return index["bytes"], 8 * (index["nodes"] + index["seeds"] + edge_ids)
        if what == "narrow":
            return index["bytes"], 8 * index["seeds"]
        raise OptionError(f"what to read is all, narrow or nodes (got {what!r})")

    def _scan(
        self,
        numbers: range,
        reads: Ids,
        wide: Ids,
        ahead_bytes: int,
        make: Callable[[int, Bytes, Ids], _Item],
    ) -> Iterator[_Item]:
        records, ids = Recycled(int(reads.max(initial=0))), Recycled(int(wide.max(initial=0)))
        ahead = max(1, ahead_bytes // max(1, records.bytes))
        starts = (
            self._start(t, records.take(n)) for t, n in zip(numbers, reads.tolist(), strict=True)
        )
        flying = deque(islice(starts, ahead))
        for t, size in zip(numbers, wide.tolist(), strict=True):
            pending, record = flying.popleft()
            with _noting_batch(t):
                pending.wait()
            flying.extend(islice(starts, 1))
            item = make(t, record, ids.take(size).view(_INT64))
            yield item
            del item  # not kept here while the next one is awaited

    def _start(self, t: int, record: Bytes) -> tuple[Pending, Bytes]:
        offset = int(self._index["offset"][t])
        with _noting_batch(t):
            return self._file.start_read_extents([offset], [len(record)], record), record

    def _nodes_of(self, t: int, record: Bytes, memory: Ids) -> Ids:
        split = int(self._index["nodes"][t]) * self._format.node.itemsize
        self._verify(t, record, 0, split, "nodes_checksum")
        return next(_widened(memory, record[:split].view(self._format.node)))

    def _narrow_batch_of(self, t: int, record: Bytes, memory: Ids) -> Batch:
        return self._batch_of(t, record, memory, wide=False)

    def _batch_of(self, t: int, record: Bytes, memory: Ids, *, wide: bool = True) -> Batch:
        counts = [int(self._index[name][t]) for name in _COUNTS]
        split = counts[0] * self._format.node.itemsize
        self._verify(t, record, 0, split, "nodes_checksum")
        self._verify(t, record, split, len(record), "rest_checksum")
        views = self._format.views(record, counts)
        nodes, input_ids, seeds, numbers, edge_ids, edge_counts, sources = views
        if wide:
            nodes, seeds, edge_ids = _widened(memory, nodes, seeds, edge_ids)
        else:
            (seeds,) = _widened(memory, seeds)
        stream, epoch, batch, hops, edge_hops = numbers[:_LEADING_NUMBERS].tolist()
        lists, rest = np.split(numbers[_LEADING_NUMBERS:], [hops + edge_hops])
        reuse = _reuse_of(rest) if self._format.reuse else None
        subgraph = Subgraph(
            nodes=nodes,
            sources=sources,
            counts=edge_counts,
            edge_ids=edge_ids if self.has_edge_ids else None,
            nodes_per_hop=lists[:hops].tolist(),
            edges_per_hop=lists[hops:].tolist(),
            roots=[] if self._format.reuse else rest.tolist(),
            reuse=reuse,
        )
        iteration = None if reuse is None else reuse.iteration
        task = Task(Stream(stream), epoch, batch, input_ids, seeds, iteration=iteration)
        return task, subgraph

    def _verify(self, t: int, record: Bytes, begin: int, end: int, column: str) -> None:
        if _checksum(record[begin:end]) != self._index[column][t]:
            where = f"{end - begin} B at {int(self._index['offset'][t]) + begin}"
            raise CorruptError(f"{self._file.path}: batch {t}: {where} differ from their checksum")

    def close(self) -> None:
        self._file.close()


class Trace(TraceReader):
    """A finished trace."""

    def __init__(self, disk: Disk, folder: Path) -> None:
        """StoreError where it was never finished; CorruptError where it is damaged."""
        header = _read_header(folder / _HEADER)
        layout = _Format(np.dtype(header.node_dtype), np.dtype(header.edge_dtype), header.edge_ids)
        index = _read_index(disk, folder, header.index)
        file = disk.open(folder / _DATA)
        if file.size != header.data_bytes:
            whole = int((index["offset"] + index["bytes"] <= file.size).sum())
            raise CorruptError(
                f"{file.path}: {file.size} B, but {_HEADER} says {header.data_bytes} B: "
                f"of {len(index)} batches, those from {whole} on are cut off"
            )
        super().__init__(file, layout, index, header.identity)


def trace_sizes(folder: Path) -> dict[str, int]:
    """The files of a finished trace that its header speaks of, and their bytes."""
    header = _read_header(folder / _HEADER)
    return {_INDEX: header.index.file_bytes, _DATA: header.data_bytes}


def check_trace(disk: Disk, folder: Path, progress: Progress) -> None:
    """CorruptError where a byte of it differs."""
    with Trace(disk, folder) as trace:
        progress.stage(f"check {folder.name.partition('-')[0]}", trace.bytes)
        for t, _ in enumerate(trace.scan(what="narrow")):
            progress.advance(int(trace._index["bytes"][t]))


@dataclass(frozen=True)
class _Header:
    """trace.json, beside its format and version."""

    node_dtype: Literal["<i4", "<i8"]
    edge_dtype: Literal["<i4", "<i8"]
    edge_ids: bool
    data_bytes: Count
    index: ArrayEntry
    identity: dict[str, Any]


def _read_header(path: Path) -> _Header:
    try:
        data = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        raise StoreError(f"{path.parent}: not a trace, or one that was never finished") from None
    header = unseal_as(_Header, data, str(path), _FORMAT_NAME, TRACE_VERSION)
    header.index.check_is(f"{path}: index", _INDEX, _ROW)
    return header


def _read_index(disk: Disk, folder: Path, entry: ArrayEntry) -> NDArray[Any]:
    with disk.open(folder / entry.file) as file:
        size = file.size
        data = file.read(0, min(size, entry.file_bytes))
    if size == entry.file_bytes and piece_checksums([data]) == entry.checksums:
        return data[HEADER_BYTES:].view(_ROW)
    where = f"{size} B, header"  # unless one of the rows is at fault
    for t in range(entry.shape[0]):
        begin = HEADER_BYTES + t * _ROW.itemsize
        row = data[begin : begin + _ROW.itemsize]
        if len(row) < _ROW.itemsize or row[-8:].view("<u8")[0] != _row_checksum(row, t):
            where = f"batch {t}: {_ROW.itemsize} B at {begin}"
            break
    raise CorruptError(f"{file.path}: {where}: differs from its checksum")


def _reuse_numbers(reuse: Reuse | None) -> list[int]:
    """Nothing of a batch that uses nothing again."""
    if reuse is None:
        return []
    lists = (reuse.pulled_slots, reuse.pulled_from, reuse.pushed, reuse.pushed_slots)
    return [
        reuse.iteration,
        len(reuse.pulled_slots),
        *np.concatenate(lists, dtype=np.int64).tolist(),
    ]


def _reuse_of(numbers: NDArray[np.int64]) -> Reuse | None:
    """The inverse; copies."""
    if not len(numbers):
        return None
    iteration, pulled = numbers[:_REUSE_NUMBERS].tolist()
    lists = numbers[_REUSE_NUMBERS:]
    pushed = (len(lists) - 2 * pulled) // 2
    slots, since, places, into = np.split(lists, np.cumsum([pulled, pulled, pushed]))
    return Reuse(iteration, slots.astype(np.int32), since.astype(np.int32),
                 places.astype(np.uint32), into.astype(np.int32))  # fmt: skip


def _checksum(data: Bytes) -> int:
    return xxh3_64_intdigest(data.data)


def _row_checksum(row: Bytes, t: int) -> int:
    """The checksum of all else in the row, and of its place."""
    return xxh3_64_intdigest(row[:-8].data, seed=t)


def _checked(what: str, ids: Ids, bound: int) -> Ids:
    if len(ids) and not 0 <= ids.min() <= ids.max() < bound:
        raise ValueError(f"{what} is 0 to {bound - 1} (got {ids.min()} to {ids.max()})")
    return ids


def _widened(memory: Ids, *parts: NDArray[Any]) -> Iterator[Ids]:
    for part in parts:
        wide, memory = memory[: len(part)], memory[len(part) :]
        wide[:] = part
        yield wide


@contextmanager
def _noting_batch(t: int) -> Iterator[None]:
    try:
        yield
    except ReadError as error:
        cause = f"{error.strerror} (batch {t} of the trace)"
        place = (error.filename, error.offset, error.length)
        raise ReadError(error.errno or 0, cause, *place) from error
