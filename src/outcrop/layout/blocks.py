"""The block layout of a topology: its lists, in blocks that are read whole and say what they hold.

docs/format.md has the bytes. In memory there has to be only the last node of each block, so that
neither indptr nor anything else that grows with the nodes is. It is made in one pass over the
topology, in as much memory whatever its size.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from outcrop import _core
from outcrop.disk import PAGE_BYTES, READ_BLOCK_BYTES, Disk, aligned_empty, reading_bytes
from outcrop.errors import CorruptError, OptionError
from outcrop.layout.stream import check_ended, entry_parts, offset_parts
from outcrop.options import format_size
from outcrop.progress import SILENT, Progress
from outcrop.schema import Count
from outcrop.store.arrays import WRITE_BUFFER_BYTES, ArrayWriter
from outcrop.store.checks import ArrayChecks
from outcrop.store.derived import Layout, advising
from outcrop.store.facts import GraphFacts
from outcrop.store.format import ArrayEntry, seal, unseal_as
from outcrop.store.locks import write_synced
from outcrop.store.store import GraphStore

BLOCKS_VERSION = 1
KIND = "blocks"
DEFAULT_BLOCK_BYTES = 1 << 20
_LEAST_BLOCK_BYTES, _MOST_BLOCK_BYTES = 4 << 10, 4 << 20
_FORMAT = "outcrop-blocks"
_HEADER, _BLOCKS, _INDEX = "blocks.json", "blocks.npy", "index.npy"
_INDEX_DTYPE = np.dtype("<i8")
_BLOCK_HEADER_BYTES, _NODE_BYTES = 48, 4

Bytes = NDArray[np.uint8]
Ids = NDArray[np.int64]


def check_block_bytes(block_bytes: int) -> int:
    """The size of blocks, if it can be one; else OptionError."""
    within = _LEAST_BLOCK_BYTES <= block_bytes <= _MOST_BLOCK_BYTES
    if not within or block_bytes & (block_bytes - 1):
        raise OptionError(
            f"blocks have a power of two of 4 KiB to 4 MiB (got {format_size(block_bytes)})"
        )
    return block_bytes


# Sizes


def blocks_bytes(graph: GraphFacts, block_bytes: int) -> int:
    """What the layout takes on disk, at most: a block that is not full has room for less than one
    list, and where lists are longer than that it is more than half full."""
    blocks = 2 * -(-_own_bytes(graph) // _room(block_bytes)) + 1
    return blocks * (block_bytes + _INDEX_DTYPE.itemsize) + 3 * PAGE_BYTES


def usual_blocks_bytes(graph: GraphFacts, block_bytes: int) -> int:
    """The same, where few lists are nearly as long as a block."""
    blocks = -(-_own_bytes(graph) * 9 // 8 // _room(block_bytes)) + 1
    return min(blocks * (block_bytes + 8) + 3 * PAGE_BYTES, blocks_bytes(graph, block_bytes))


def _own_bytes(graph: GraphFacts) -> int:
    """What nodes and their entries take."""
    return graph.array_bytes("indices") + _NODE_BYTES * graph.num_nodes


def _room(block_bytes: int) -> int:
    return block_bytes - _BLOCK_HEADER_BYTES - 2 * _NODE_BYTES


def index_bytes(graph: GraphFacts, block_bytes: int) -> int:
    """What the index takes in memory, at most."""
    return blocks_bytes(graph, block_bytes) // block_bytes * _INDEX_DTYPE.itemsize


def making_bytes(graph: GraphFacts, block_bytes: int) -> int:
    """What making the layout takes in memory."""
    reading = sum(reading_bytes(graph.array_bytes(name)) for name in ("indptr", "indices"))
    made = max(READ_BLOCK_BYTES, block_bytes)
    return reading + READ_BLOCK_BYTES + made + 2 * block_bytes + 4 * WRITE_BUFFER_BYTES


# On disk


@dataclass(frozen=True)
class BlocksFile:
    """What a layout holds."""

    block_bytes: Count
    entry_bytes: Literal[4, 8]
    blocks: ArrayEntry
    index: ArrayEntry
    """The last node of each block."""

    @property
    def count(self) -> int:
        """How many blocks there are."""
        return self.index.shape[0]


def open_blocks(
    store: GraphStore, block_bytes: int = DEFAULT_BLOCK_BYTES, progress: Progress = SILENT
) -> Layout:
    """The layout, found or made."""
    check_block_bytes(block_bytes)
    return store.derived.get_or_build(
        KIND,
        {"block_bytes": block_bytes, "version": BLOCKS_VERSION},
        lambda folder: write_blocks(store, folder, block_bytes, progress),
        progress=progress,
    )


def write_blocks(store: GraphStore, folder: Path, block_bytes: int, progress: Progress) -> None:
    """CorruptError where the topology is damaged."""
    with (
        ArrayWriter(store.disk, folder, _BLOCKS, np.dtype(np.uint8)) as blocks,
        ArrayWriter(store.disk, folder, _INDEX, _INDEX_DTYPE) as index,
    ):
        for data, last_nodes in _made_blocks(store, block_bytes, progress):
            blocks.append(data)
            index.append(last_nodes)
        header = {
            "format": _FORMAT,
            "version": BLOCKS_VERSION,
            "block_bytes": block_bytes,
            "entry_bytes": store.manifest.arrays["indices"].dtype.itemsize,
            "blocks": blocks.close().to_json(),
            "index": index.close().to_json(),
        }
    write_synced(folder / _HEADER, seal(header))


def _made_blocks(
    store: GraphStore, block_bytes: int, progress: Progress
) -> Iterator[tuple[Bytes, Ids]]:
    """Some blocks at a time, and the last node of each, in memory that is used again."""
    dtype = store.manifest.arrays["indices"].dtype
    make = _core.BlockWriter32 if dtype.itemsize == 4 else _core.BlockWriter64
    writer = make(block_bytes, store.num_nodes)
    made = aligned_empty(max(READ_BLOCK_BYTES, block_bytes))
    last_nodes = np.empty(len(made) // block_bytes, np.int64)
    parts = offset_parts(store)
    offsets = next(parts)
    progress.stage("blocks", store.array_bytes("indices"))
    try:
        for entries in entry_parts(store):
            size = entries.nbytes
            while True:
                nodes, taken, count = writer.add(offsets, entries, made, last_nodes)
                if count:
                    yield made[: count * block_bytes], last_nodes[:count]
                offsets, entries = offsets[nodes:], entries[taken:]
                if len(offsets) == 1:
                    offsets = next(parts, offsets)
                    if len(offsets) == 1:
                        break  # that was the last node
                elif count < len(last_nodes):
                    break  # what is missing are entries
            progress.advance(size)
        check_ended(store, offsets, writer.num_edges)
        for _ in parts:  # what is left is compared with its checksums
            pass
    except CorruptError:
        # Where a byte was changed, that is the better message.
        store.check_topology(progress)
        raise
    if writer.finish(made, last_nodes):
        yield made[:block_bytes], last_nodes[:1]


def read_header(folder: Path) -> BlocksFile:
    """What write_blocks wrote; CorruptError where it is damaged."""
    path = folder / _HEADER
    try:
        data = path.read_bytes()
    except OSError as error:
        raise CorruptError(f"{path}: {error.strerror}") from error
    blocks = unseal_as(BlocksFile, data, str(path), _FORMAT, BLOCKS_VERSION)
    blocks.blocks.check_is(f"{path}: blocks", _BLOCKS, np.dtype(np.uint8))
    blocks.index.check_is(f"{path}: index", _INDEX, _INDEX_DTYPE)
    try:
        check_block_bytes(blocks.block_bytes)
    except OptionError as error:
        raise CorruptError(f"{path}: {error}") from error
    if blocks.blocks.shape[0] != blocks.count * blocks.block_bytes:
        raise CorruptError(f"{path}: as many blocks as entries of the index are expected")
    return blocks


def load_index(disk: Disk, folder: Path, blocks: BlocksFile) -> Ids:
    """The last node of each block, in memory; CorruptError where a byte differs."""
    with advising(folder):
        try:
            return ArrayChecks(folder, blocks.index).load(disk)
        except FileNotFoundError as error:
            raise CorruptError(f"{error.filename}: {error.strerror}") from error


def block_sizes(folder: Path) -> dict[str, int]:
    """The files of a layout that its header speaks of, and their bytes."""
    blocks = read_header(folder)
    return {array.file: array.file_bytes for array in (blocks.blocks, blocks.index)}


def check_blocks(disk: Disk, folder: Path, progress: Progress) -> None:
    """CorruptError where a byte differs."""
    blocks = read_header(folder)
    for array in (blocks.blocks, blocks.index):
        ArrayChecks(folder, array).check(disk, progress)
