"""What an importer gives: streams of edges, features, labels and splits, in bounded memory."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from outcrop.errors import IngestError, OptionError
from outcrop.options import parse_size
from outcrop.store.format import ENCODINGS
from outcrop.store.targets import TargetKind, stored_dtype

Ids = NDArray[np.int64]

NODES_PER_CHUNK = 1 << 18
"""In chunks of labels and splits: 2 MiB of ids."""


@dataclass(frozen=True)
class EdgeChunk:
    """Consecutive edges of a source."""

    sources: Ids
    targets: Ids
    place: Callable[[int], str]
    """Where edge i of the chunk stands in the source, for messages: "line 17"."""
    consumed: int
    """Units of progress that this chunk stands for, e.g. bytes of the file."""


def edge_numbers(first: int) -> Callable[[int], str]:
    """Places of edges in sources where they are only numbered."""
    return lambda i: f"edge {first + i}"


@dataclass(frozen=True)
class RowStream:
    """Feature rows in order."""

    rows: int
    dim: int
    encoding: str
    """How to store them unless the user says otherwise."""
    chunks: Callable[[int], Iterator[NDArray[Any]]]
    """chunks(n) yields arrays [up to n, dim] of numbers, or of up to n rows as they are stored."""
    stored: bool = False
    """Whether chunks hold rows as `encoding` stores them."""


@dataclass(frozen=True)
class LabelStream:
    """Labels in order: integers, -1 for none; or floats, where NaN may stand for none."""

    count: int
    """Nodes that have them."""
    dtype: np.dtype[Any]
    chunks: Iterable[NDArray[Any]]
    """Targets of whole nodes at a time, in any shape."""
    nan_is_missing: bool = False
    """Whether NaN means no class; in other kinds it always means none."""
    kind: TargetKind = "classes"
    width: int | None = None
    """Numbers per node, [N, width]; None: one, [N]."""

    @property
    def stored_row_bytes(self) -> int:
        """What a node's labels take in a store."""
        return (self.width or 1) * stored_dtype(self.kind).itemsize


@dataclass(frozen=True)
class AdoptedRows:
    """A .npy file of feature rows that stays where it is."""

    path: Path
    rows: int
    dim: int
    encoding: str


@dataclass(frozen=True)
class Attributes:
    """What a source knows about its nodes.

    Whatever can be told from headers is checked when this is made, before edges are read.
    """

    features: RowStream | AdoptedRows | None = None
    labels: LabelStream | None = None
    splits: Mapping[str, Iterable[Ids]] = field(default_factory=dict)
    """Node ids of "train", "val" and "test"."""


def check_mask(
    path: str | os.PathLike[str],
    name: str,
    dtype: np.dtype[Any],
    shape: tuple[int, ...],
    num_nodes: int,
) -> None:
    """A mask says yes or no to every node."""
    if dtype.kind != "b" or shape != (num_nodes,):
        raise IngestError(path, name, f"must be bool [{num_nodes}] (got {dtype} {list(shape)})")


def mask_ids(masks: Iterable[NDArray[Any]]) -> Iterator[Ids]:
    """A mask in chunks -> the ids of the nodes that are in it."""
    first = 0
    for mask in masks:
        yield first + np.flatnonzero(mask)
        first += len(mask)


def in_chunks(array: NDArray[Any]) -> Iterator[NDArray[Any]]:
    """An array with an entry per node, a few MB at a time."""
    for first in range(0, len(array), NODES_PER_CHUNK):
        yield array[first : first + NODES_PER_CHUNK]


class Queue:
    """Blocks of any sizes, each overwritten by the next -> as many items as are asked for."""

    def __init__(self, blocks: Iterator[NDArray[Any]], dtype: np.dtype[Any]) -> None:
        self._blocks = blocks
        self._rest: NDArray[Any] = np.empty(0, dtype)

    def take(self, count: int) -> NDArray[Any]:
        """The next items, in memory of their own."""
        parts = []
        while count > len(self._rest):
            parts.append(self._rest.copy())
            count -= len(self._rest)
            self._rest = next(self._blocks)
        parts.append(self._rest[:count])
        self._rest = self._rest[count:]
        return np.concatenate(parts)


def no_attributes(_: int) -> Attributes:
    """For sources that have only topology."""
    return Attributes()


@dataclass(frozen=True)
class GraphSource:
    """A graph to import. Each stream is read once."""

    name: str
    """The path, or what else names it, for messages and for the manifest."""
    edges: Iterable[EdgeChunk]
    num_nodes: int | None
    """None: ids are sparse; they are compacted in ascending order, and the originals kept."""
    attributes: Callable[[int], Attributes] = no_attributes
    """Called with the number of nodes once it is known: before edges are read, if it is given."""
    total: int | None = None
    """Units of progress of all edges, as EdgeChunk.consumed counts them."""
    unit: str = "edges"


@dataclass(frozen=True)
class IngestOptions:
    """What becomes of the source's edges and features, and with how much memory."""

    memory: int = 2_000_000_000
    undirected: bool = False
    """Each edge that is no self loop also gets its reverse."""
    drop_self_loops: bool = False
    merge_multi_edges: bool = False
    """The first of equal edges is kept; each node's in-neighbours are then sorted by id."""
    edge_ids: bool = True
    """Keep, for each edge of the store, its number in the source, unless that is its place."""
    feature_dtype: str | None = None
    """float32, float16, bfloat16 or int8; None: as in the source."""

    def __post_init__(self) -> None:
        if self.feature_dtype not in (None, *ENCODINGS):
            raise OptionError(
                f"feature_dtype must be one of {', '.join(ENCODINGS)} (got {self.feature_dtype!r})"
            )

    @staticmethod
    def with_sizes(memory: str | int = "2GB", **options: Any) -> IngestOptions:
        """The same, with memory as people write it."""
        return IngestOptions(memory=parse_size(memory), **options)
