"""The layout of a neighbour cache: scores of nodes -> the chosen lists, on disk as in memory.

docs/format.md has the bytes. It is made in passes over the topology. Whatever the budget of the
cache, that takes the offsets of all lists, which sampling keeps as well, 4 bytes of memory per node
or per cached list, and the blocks.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from outcrop import _core
from outcrop.disk import READ_BLOCK_BYTES, Disk, aligned_empty
from outcrop.errors import CorruptError
from outcrop.progress import Progress
from outcrop.schema import Count
from outcrop.store.arrays import ArrayWriter, piece_checksums
from outcrop.store.checks import ArrayChecks
from outcrop.store.degrees import out_degrees
from outcrop.store.facts import GraphFacts
from outcrop.store.format import HEADER_BYTES, ArrayEntry, seal, unseal_as
from outcrop.store.locks import write_synced
from outcrop.store.offsets import Offsets, load_offsets
from outcrop.store.store import GraphStore

NEIGHBORS_VERSION = 1
KIND = "neighbors"
_FORMAT = "outcrop-neighbors"
_HEADER, _LISTS = "neighbors.json", "lists.npy"
_BLOCK_BYTES, _BLOCK_NODES = 64, 384
_LIST_BYTES = 4
_PADDING_BYTES = 4  # after an odd number of starts
_NODES_AT_A_TIME = 1 << 18

Bytes = NDArray[np.uint8]
Scores = NDArray[np.float32]
Metric = Callable[[GraphStore, Progress], Scores]
"""A score per node, not negative: lists are cached by descending score."""


# Metrics


def out_per_in(store: GraphStore, progress: Progress) -> Scores:
    """Out-degree / in-degree: uses by bytes (AliGraph's metric for one hop, and Ginex's)."""
    return per_entry(store, out_degrees(store, progress))


def per_entry(store: GraphStore, uses: NDArray[np.uint32]) -> Scores:
    """Uses of each list / its length, in the memory of `uses`."""
    scores = uses.view(np.float32)
    for first in range(0, store.num_nodes, _NODES_AT_A_TIME):
        piece = slice(first, min(first + _NODES_AT_A_TIME, store.num_nodes))
        offsets = store.load_part("indptr", piece.start, piece.stop + 1)
        scores[piece] = uses[piece] / np.maximum(np.diff(offsets), 1)
    return scores


def out(store: GraphStore, progress: Progress) -> Scores:
    """Out-degree: uses, whatever they cost (PaGraph's metric)."""
    degrees = out_degrees(store, progress)
    scores = degrees.view(np.float32)
    for first in range(0, store.num_nodes, _NODES_AT_A_TIME):
        piece = slice(first, first + _NODES_AT_A_TIME)
        scores[piece] = degrees[piece].astype(np.float32)
    return scores


METRICS: Mapping[str, Metric] = {"out/in": out_per_in, "out": out}


# Sizes


def blocks_bytes(num_nodes: int) -> int:
    """What a cache of any list takes beside the lists."""
    return -(-num_nodes // _BLOCK_NODES) * _BLOCK_BYTES


def entry_dtype(store: GraphStore) -> np.dtype[Any]:
    return store.manifest.arrays["indices"].dtype


def whole_bytes(graph: GraphFacts) -> int:
    """A budget that is enough for all lists."""
    lists = graph.num_nodes * _LIST_BYTES + _PADDING_BYTES
    return blocks_bytes(graph.num_nodes) + lists + graph.array_bytes("indices")


def least_bytes(graph: GraphFacts) -> int:
    """The least budget that caches a list, if there is one of a single entry."""
    lists = _LIST_BYTES + _PADDING_BYTES + graph.item_bytes("indices")
    return blocks_bytes(graph.num_nodes) + lists


# On disk


@dataclass(frozen=True)
class ListsFile:
    """What a layout holds."""

    lists: Count
    entries: Count
    array: ArrayEntry
    """The cache's memory, byte by byte."""

    @property
    def memory_bytes(self) -> int:
        return self.array.file_bytes - self.array.data_offset


def write_lists(
    store: GraphStore, folder: Path, budget_bytes: int, metric: Metric, progress: Progress
) -> None:
    """Chooses the lists and writes them; CorruptError where the topology is damaged."""
    offsets = load_offsets(store)
    blocks = aligned_empty(blocks_bytes(store.num_nodes))
    dtype = entry_dtype(store)
    room = budget_bytes - len(blocks) - _PADDING_BYTES
    lists = entries = 0
    if room > 0:
        scores = metric(store, progress)
        lists, entries = _core.choose_lists(offsets, scores, dtype.itemsize, room, blocks)
        del scores
    size = _core.NeighborLists.bytes(store.num_nodes, dtype.itemsize, lists, entries)
    assert size <= budget_bytes
    with ArrayWriter(store.disk, folder, _LISTS, np.dtype(np.uint8), rows=size) as writer:
        if lists:
            _write_parts(store, writer, offsets, blocks, lists, progress)
        array = writer.close()
    header = {
        "format": _FORMAT,
        "version": NEIGHBORS_VERSION,
        "lists": lists,
        "entries": entries,
        "array": array.to_json(),
    }
    write_synced(folder / _HEADER, seal(header))


def _write_parts(
    store: GraphStore,
    writer: ArrayWriter,
    offsets: Offsets,
    blocks: Bytes,
    lists: int,
    progress: Progress,
) -> None:
    starts = aligned_empty(lists + lists % 2, np.uint32)
    _core.number_lists(offsets, blocks, starts[:lists])
    writer.append(blocks)
    writer.append(starts.view(np.uint8))
    del starts
    entry = store.manifest.arrays["indices"]
    progress.stage("neighbour lists", store.array_bytes("indices"))
    kept = np.empty(READ_BLOCK_BYTES // entry.dtype.itemsize, entry.dtype)
    node = edge = 0
    for block in store.checks("indices").blocks(store.disk):
        chunk = block.view(entry.dtype)
        node, count = _core.copy_lists(offsets, blocks, node, edge, chunk, kept)
        writer.append(kept[:count].view(np.uint8))
        edge += len(chunk)
        progress.advance(len(block))


def read_header(folder: Path) -> ListsFile:
    """What write_lists wrote; CorruptError where it is damaged."""
    path = folder / _HEADER
    try:
        data = path.read_bytes()
    except OSError as error:
        raise CorruptError(f"{path}: {error.strerror}") from error
    lists = unseal_as(ListsFile, data, str(path), _FORMAT, NEIGHBORS_VERSION)
    lists.array.check_is(f"{path}: array", _LISTS, np.dtype(np.uint8))
    return lists


def list_sizes(folder: Path) -> dict[str, int]:
    """The files of a layout that its header speaks of, and their bytes."""
    array = read_header(folder).array
    return {array.file: array.file_bytes}


def check_lists(disk: Disk, folder: Path, progress: Progress) -> None:
    """CorruptError where a byte differs."""
    array = read_header(folder).array
    ArrayChecks(folder, array).check(disk, progress)


def read_lists(disk: Disk, folder: Path, lists: ListsFile, out: Bytes) -> None:
    """The memory of a cache -> out, which is as large; CorruptError where a byte differs."""
    path = folder / lists.array.file
    try:
        size = os.stat(path).st_size
    except OSError as error:
        raise CorruptError(f"{path}: {error.strerror}") from error
    if size != lists.array.file_bytes:
        raise CorruptError(f"{path}: {size} B, but should have {lists.array.file_bytes} B")
    with disk.open(path) as file:
        file.read_extents([HEADER_BYTES], [len(out)], out)
        header = file.read(0, HEADER_BYTES)
    checksums = piece_checksums([header, out])
    for piece, (found, wanted) in enumerate(zip(checksums, lists.array.checksums, strict=True)):
        if found != wanted:
            raise CorruptError(f"{path}: piece {piece} differs from its checksum")
