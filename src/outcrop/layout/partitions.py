"""Partitions: a store -> parts of its nodes, and of each part its nodes, training nodes and lists.

docs/format.md has the bytes. They are made in passes over the topology, in 8 bytes of memory per
node and what is given for putting lists together; the more that is, the fewer passes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import xxhash
from numpy.typing import NDArray

from outcrop.closing import Closing
from outcrop.disk import PAGE_BYTES, Disk, RowReader, aligned_empty
from outcrop.errors import BudgetError, CorruptError, OptionError
from outcrop.ingest.orders import NodeOrder, OrderWork
from outcrop.layout.fennel import (
    Assignment,
    FennelOptions,
    PartCounts,
    assign_parts,
    check_parts,
    count_parts,
)
from outcrop.layout.partition_writer import PartsWriter, list_sum, passing_bytes
from outcrop.options import format_size, parse_size, size_of_at_least
from outcrop.progress import SILENT, Progress
from outcrop.schema import AtLeast, Count
from outcrop.store.checks import ArrayChecks
from outcrop.store.derived import Layout, advising
from outcrop.store.facts import GraphFacts
from outcrop.store.format import PIECE_BYTES, ArrayEntry, seal, unseal_as
from outcrop.store.locks import write_synced
from outcrop.store.store import GraphStore
from outcrop.store.values import first_outside

PARTITIONS_VERSION = 1
KIND = "partitions"
PARTS_PER_MACRO_BATCH = 20
_FORMAT = "outcrop-partitions"
_HEADER = "partitions.json"
_INT64, _UINT32, _UINT64 = np.dtype("<i8"), np.dtype("<u4"), np.dtype("<u8")

# Batches of a macro batch, on average: one in so many of an epoch's, within these bounds. The
# fewer, the more they overlap, and the less they are mixed; the paper's graphs have 2.4 and more.
_MACRO_BATCHES_PER_EPOCH = 100
_LEAST_BATCHES, _MOST_BATCHES = 2, 8
# Fewer nodes are no community that could be found.
_LEAST_NODES = 100
# OUTRE's, for graphs of 100 million nodes.
_MOST_DEFAULT_PARTS = 10_000

Ids = NDArray[np.int64]


# Options


@dataclass(frozen=True, kw_only=True)
class PartitionOptions(FennelOptions):
    """How nodes are divided; all that changes the result."""

    parts: int | None = None
    """How many parts there are; None: `default_parts`, for batches of 1000."""

    def resolved(self, store: GraphStore) -> PartitionOptions:
        """With as many parts as they stand for; OptionError where a value cannot be."""
        self.check()
        parts = self.parts
        if parts is None:
            seeds = store.manifest.arrays["train"].shape[0] if store.has("train") else 0
            parts = default_parts(store.num_nodes, seeds)
        return PartitionOptions(**{**asdict(self), "parts": check_parts(parts)})


def default_parts(num_nodes: int, num_seeds: int, batch_size: int = 1000) -> int:
    """How many parts suit a graph and its training nodes: at least 1.

    So many that a macro batch of 20 has a hundredth of an epoch's batches, but 2 to 8 on average;
    with 100 nodes each at least, and no more than OUTRE's 10,000.
    """
    batches = -(-num_seeds // max(batch_size, 1))
    together = min(max(batches // _MACRO_BATCHES_PER_EPOCH, _LEAST_BATCHES), _MOST_BATCHES)
    by_seeds = PARTS_PER_MACRO_BATCH * batches // together
    return max(1, min(by_seeds, num_nodes // _LEAST_NODES, _MOST_DEFAULT_PARTS))


# Sizes


def least_bytes(graph: GraphFacts, parts: int) -> int:
    """The least memory in which partitions can be made."""
    return 8 * graph.num_nodes + passing_bytes(graph, parts)


def partitions_bytes(graph: GraphFacts, parts: int) -> int:
    """What the files take on disk."""
    index = graph.item_bytes("indices")
    seeds = graph.array_bytes("train") if "train" in graph.arrays else 0
    nodes = graph.num_nodes * (4 + 4 + index + 8)
    files = 14 * PAGE_BYTES  # headers of arrays, and two files that describe them
    return nodes + graph.array_bytes("indices") + seeds + parts * 4 * 8 + files


# On disk


@dataclass(frozen=True)
class PartitionsFile:
    """What a layout holds."""

    parts: Annotated[int, AtLeast(1)]
    cut: Count
    """Edges between parts."""
    edges: Count
    largest: Count
    """Nodes of the part that has most."""
    largest_seeds: Count
    """Training nodes of the part that has most."""
    entry_bytes: Literal[4, 8]
    content: str
    """A digest of the assignment."""
    assignment: ArrayEntry
    cross: ArrayEntry
    members: ArrayEntry
    list_offsets: ArrayEntry
    lists: ArrayEntry
    list_sums: ArrayEntry
    member_offsets: ArrayEntry
    entry_offsets: ArrayEntry
    seeds: ArrayEntry
    seed_offsets: ArrayEntry

    def arrays(self) -> dict[str, ArrayEntry]:
        return {name: getattr(self, name) for name in _expected(self)}

    @property
    def cut_share(self) -> float:
        """Of all edges, those between parts; parts at random would have 1 - 1 / parts."""
        return self.cut / max(self.edges, 1)

    @property
    def balance(self) -> float:
        """Nodes of the largest part / mean."""
        return self.largest * self.parts / self.assignment.shape[0]

    @property
    def seed_balance(self) -> float:
        """Training nodes of the part that has most / mean; 1 where there are none."""
        seeds = self.seeds.shape[0]
        return self.largest_seeds * self.parts / seeds if seeds else 1.0

    @property
    def file_bytes(self) -> int:
        return sum(entry.file_bytes for entry in self.arrays().values())


def _expected(file: PartitionsFile) -> dict[str, tuple[np.dtype[Any], int]]:
    """The type and length of each array, by the header and by each other."""
    nodes, parts = file.assignment.shape[0], file.parts
    index = np.dtype("<i4" if file.entry_bytes == 4 else "<i8")
    return {
        "assignment": (_UINT32, nodes),
        "cross": (_UINT32, nodes),
        "members": (index, nodes),
        "list_offsets": (_INT64, nodes + 1),
        "lists": (index, file.edges),
        "list_sums": (_UINT64, parts),
        "member_offsets": (_INT64, parts + 1),
        "entry_offsets": (_INT64, parts + 1),
        "seeds": (_INT64, file.seeds.shape[0]),
        "seed_offsets": (_INT64, parts + 1),
    }


def open_partitions(
    store: GraphStore,
    options: PartitionOptions | None = None,
    progress: Progress = SILENT,
    *,
    memory: str | int = "2GB",
    disk: str | int | None = None,
) -> Layout:
    """The layout, found or made, in so much memory, which changes nothing in it.

    `disk`: what it may take; None: what is free. BudgetError where either is too little;
    CorruptError where the store is damaged.
    """
    resolved = (options or PartitionOptions()).resolved(store)
    size = parse_size(memory)

    def write(folder: Path) -> None:
        if disk is not None:
            _check_fits(store, resolved, parse_size(disk))
        write_partitions(store, folder, resolved, size, progress)

    inputs = {**asdict(resolved), "version": PARTITIONS_VERSION}
    return store.derived.get_or_build(KIND, inputs, write, progress=progress)


def _check_fits(store: GraphStore, options: PartitionOptions, disk_bytes: int) -> None:
    assert options.parts is not None
    needed = partitions_bytes(store.facts, options.parts)
    if disk_bytes < needed:
        raise BudgetError(
            f"disk={format_size(disk_bytes)} is too little: {options.parts} partitions of "
            f"{store.num_nodes} nodes and their lists take {size_of_at_least(needed)}"
        )


def write_partitions(
    store: GraphStore, folder: Path, options: PartitionOptions, memory: int, progress: Progress
) -> None:
    """CorruptError where the topology or the training set is damaged."""
    assert options.parts is not None
    needed = least_bytes(store.facts, options.parts)
    if memory < needed:
        raise BudgetError(
            f"memory={format_size(memory)} is too little to divide {store.num_nodes} nodes into "
            f"{options.parts} parts; the smallest that would do is {size_of_at_least(needed)}"
        )
    assignment = assign_parts(store, options.parts, options, progress)
    writer = PartsWriter(store, folder, assignment, options.parts)
    counts = count_parts(store, assignment, options.parts, "cut", progress, cross=True)
    writer.write("assignment", assignment)
    writer.write("cross", counts.cross)
    counts = PartCounts(counts.nodes, counts.entries, counts.inside, np.empty(0, np.uint32))
    room = memory - 4 * store.num_nodes - passing_bytes(store.facts, options.parts)
    writer.write_lists(counts, room, progress)
    seeds = writer.write_seeds(room, progress)
    cut = int(counts.entries.sum() - counts.inside.sum())
    header = {
        "format": _FORMAT,
        "version": PARTITIONS_VERSION,
        "parts": options.parts,
        "cut": cut,
        "edges": store.num_edges,
        "largest": int(counts.nodes.max()),
        "largest_seeds": int(seeds.max()),
        "entry_bytes": writer.index.itemsize,
        "content": xxhash.xxh3_128(assignment.data).hexdigest(),
        **{name: entry.to_json() for name, entry in writer.entries.items()},
    }
    write_synced(folder / _HEADER, seal(header))


# Read


def read_header(folder: Path) -> PartitionsFile:
    """What write_partitions wrote; CorruptError where it is damaged."""
    path = folder / _HEADER
    try:
        data = path.read_bytes()
    except OSError as error:
        raise CorruptError(f"{path}: {error.strerror}") from error
    file = unseal_as(PartitionsFile, data, str(path), _FORMAT, PARTITIONS_VERSION)
    for name, (dtype, rows) in _expected(file).items():
        entry: ArrayEntry = getattr(file, name)
        entry.check_is(f"{path}: {name}", f"{name}.npy", dtype)
        if entry.shape != (rows,):
            raise CorruptError(f"{path}: {name} must have {rows} entries (got {entry.shape[0]})")
    return file


def partition_sizes(folder: Path) -> dict[str, int]:
    """The files of a layout that its header speaks of, and their bytes."""
    return {entry.file: entry.file_bytes for entry in read_header(folder).arrays().values()}


def check_partitions(disk: Disk, folder: Path, progress: Progress) -> None:
    """CorruptError where a byte differs."""
    for entry in read_header(folder).arrays().values():
        ArrayChecks(folder, entry).check(disk, progress)


class Partitions(Closing):
    """A layout, opened. In memory are 32 bytes per part; all else is read when it is asked for.

    What is read is compared with checksums: lists part by part, other arrays by pieces of 64 MiB
    when one is first touched. CorruptError where a byte differs. Thread-safe, apart from `close`.
    """

    def __init__(self, disk: Disk, layout: Layout) -> None:
        """Takes the layout: closing this closes it."""
        self._disk = disk
        self._layout = layout
        with advising(layout.path):
            self.file = read_header(layout.path)
            """Parts, cut and balance."""
            entries = self.file.arrays()
            self._checks = {name: self._check(entry) for name, entry in entries.items()}
            self.member_offsets: Ids = self._load_offsets("member_offsets", self.num_nodes)
            """Members of part p are [member_offsets[p], member_offsets[p + 1])."""
            self.seed_offsets: Ids = self._load_offsets("seed_offsets", self.file.seeds.shape[0])
            self.entry_offsets: Ids = self._load_offsets("entry_offsets", self.file.edges)
            """The same of entries of lists."""
            self._sums: NDArray[np.uint64] = self._checks["list_sums"].load(disk)
        names = ("assignment", "members", "seeds", "lists", "list_offsets", "cross")
        self._files = {name: disk.open(self._checks[name].path) for name in names}

    def _check(self, entry: ArrayEntry) -> ArrayChecks:
        try:
            return ArrayChecks(self._layout.path, entry)
        except OSError as error:
            path = self._layout.path / entry.file
            raise CorruptError(f"{path}: {error.strerror}") from error

    def _load_offsets(self, name: str, end: int) -> Ids:
        offsets: Ids = self._checks[name].load(self._disk)
        if offsets[0] != 0 or offsets[-1] != end or (np.diff(offsets) < 0).any():
            raise CorruptError(f"{self._checks[name].path}: does not ascend from 0 to {end}")
        offsets.flags.writeable = False
        return offsets

    @property
    def path(self) -> Path:
        return self._layout.path

    @property
    def parts(self) -> int:
        """How many there are."""
        return self.file.parts

    @property
    def num_nodes(self) -> int:
        return self.file.assignment.shape[0]

    @property
    def digest(self) -> str:
        """Of the content of the assignment: equal where every node has the same part."""
        return self.file.content

    # Nodes

    def assignment_of(self, ids: Ids) -> Assignment:
        """The part of each of these nodes, read from disk, the pages that they are in."""
        ids = np.ascontiguousarray(ids, np.int64)
        self._check_within(ids)
        out: Assignment = np.empty(len(ids), np.uint32)
        with advising(self.path):
            checks = self._checks["assignment"]
            checks.check_rows(self._disk, ids, 4)
        RowReader(self._files["assignment"], checks.entry.data_offset).read(ids, out)
        return out

    def _check_within(self, ids: Ids) -> None:
        bad = first_outside(ids, 0, self.num_nodes)
        if bad is not None:
            raise OptionError(f"node ids must be 0 to {self.num_nodes - 1} (got {ids[bad]})")

    def load_assignment(self) -> Assignment:
        """The part of every node, in memory: 4 bytes each."""
        return self._load("assignment")

    def load_cross(self) -> NDArray[np.uint32]:
        """For each node, how often lists of other parts name it, in memory: 4 bytes each."""
        return self._load("cross")

    def _load(self, name: str) -> NDArray[Any]:
        with advising(self.path):
            return self._checks[name].load(self._disk)

    def members(self, part: int) -> Ids:
        """The nodes of a part, ascending."""
        return self._read("members", *self._range(self.member_offsets, part)).astype(np.int64)

    def all_members(self) -> Iterator[Ids]:
        """All nodes, part by part, in pieces."""
        checks = self._checks["members"]
        with advising(self.path):
            for block in checks.blocks(self._disk):
                yield block.view(checks.entry.dtype).astype(np.int64)

    def seeds(self, part: int) -> Ids:
        """The training nodes of a part, in the order of their split."""
        return self._read("seeds", *self._range(self.seed_offsets, part)).astype(np.int64)

    def _range(self, offsets: Ids, part: int) -> tuple[int, int]:
        if not 0 <= part < self.parts:
            raise OptionError(f"parts are 0 to {self.parts - 1} (got {part})")
        return int(offsets[part]), int(offsets[part + 1])

    def _read(self, name: str, first: int, last: int) -> NDArray[Any]:
        checks = self._checks[name]
        size = checks.entry.dtype.itemsize
        if first == last:
            return np.empty(0, checks.entry.dtype)
        with advising(self.path):
            touched = np.append(np.arange(first, last, PIECE_BYTES // size), last - 1)
            checks.check_rows(self._disk, touched, size)
        data = self._files[name].read(
            checks.entry.data_offset + first * size, (last - first) * size
        )
        return data.view(checks.entry.dtype)

    # Lists

    @property
    def lists_file(self) -> Path:
        return self._checks["lists"].path

    def list_extent(self, part: int) -> tuple[int, int]:
        """Where the lists of a part's members are in `lists_file`: byte, and how many bytes."""
        first, last = self._range(self.entry_offsets, part)
        size = self.file.entry_bytes
        return self.file.lists.data_offset + first * size, (last - first) * size

    def list_offsets(self, part: int) -> Ids:
        """Where in the entries of all parts the list of each member begins, and the last ends."""
        first, last = self._range(self.member_offsets, part)
        return self._read("list_offsets", first, last + 1)

    def lists(self, part: int, out: NDArray[Any] | None = None) -> NDArray[Any]:
        """In-neighbours of a part's members, list by list, in `out` or in memory of its own.

        List i of the part has entries [offsets[i], offsets[i + 1]) - offsets[0] of `list_offsets`.
        """
        offset, length = self.list_extent(part)
        dtype = self.file.lists.dtype
        if out is None:
            out = aligned_empty(length // dtype.itemsize, dtype)
        out = out[: length // dtype.itemsize]
        if length:
            self._files["lists"].read_extents([offset], [length], out)
        if list_sum(out) != int(self._sums[part]):
            with advising(self.path):
                raise CorruptError(
                    f"{self.lists_file}: part {part} (bytes {offset} to {offset + length - 1}) "
                    "differs from its checksum"
                )
        return out

    def close(self) -> None:
        for file in self._files.values():
            file.close()
        self._layout.close()


# As an order of nodes


def community_order(options: PartitionOptions | None = None) -> NodeOrder:
    """Nodes by their part, in a part by their ids; the partitions are found or made."""

    def nodes(work: OrderWork) -> Iterator[Ids]:
        resolved = (options or PartitionOptions()).resolved(work.store)
        assert resolved.parts is not None
        # Nothing else is read or written yet: what that takes is free as well.
        memory = max(
            work.memory + _order_bytes(work.store.num_nodes),
            least_bytes(work.store.facts, resolved.parts),
        )
        layout = open_partitions(work.store, resolved, work.progress, memory=memory)
        with Partitions(work.store.disk, layout) as partitions:
            yield from partitions.all_members()

    return NodeOrder("community", _order_bytes, nodes)


def _order_bytes(num_nodes: int) -> int:
    return 8 * num_nodes
