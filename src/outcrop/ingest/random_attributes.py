"""Random features, labels and splits, for graphs that have only topology or are synthetic."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from outcrop import _core
from outcrop.errors import OptionError
from outcrop.ingest.compact import list_ids
from outcrop.ingest.source import NODES_PER_CHUNK, Attributes, Ids, LabelStream, RowStream
from outcrop.store.format import SPLITS
from outcrop.threads.parallel import cpu_count, ordered_map

# The class signal, spread over all dimensions, against noise of variance 1 in each: weak enough
# that features alone do not tell the class, strong enough that neighbours do.
_SIGNAL = 1.2

MakeLabels = Callable[[int, NDArray[np.int64]], None]
"""(first node, out) -> fills the labels of consecutive nodes."""


def check_train_fraction(fraction: float) -> None:
    if not 0 < fraction <= 1:
        raise OptionError(f"train_fraction must be above 0 and at most 1 (got {fraction})")


def random_attributes(
    num_nodes: int,
    *,
    dim: int,
    classes: int,
    train_fraction: float,
    seed: int,
    memory: int = 2_000_000_000,
    labels: MakeLabels | None = None,
) -> Attributes:
    """Class labels (random unless given), features that hint at them, and random splits.

    Each of train, val and test gets `train_fraction` of the nodes, or what is left of them. Rows
    are made by as many threads as a quarter of `memory` has room for.
    """
    check_train_fraction(train_fraction)

    def uniform(first: int, out: NDArray[np.int64]) -> None:
        _core.random_labels(classes, seed, first, out)

    make = labels or uniform
    return Attributes(
        features=_features(num_nodes, dim, seed, make, memory // 4) if dim else None,
        labels=LabelStream(num_nodes, np.dtype(np.int64), _labels(num_nodes, make)),
        splits=_splits(num_nodes, train_fraction, seed),
    )


def _labels(num_nodes: int, make: MakeLabels) -> Iterator[NDArray[np.int64]]:
    for first in range(0, num_nodes, NODES_PER_CHUNK):
        yield _labels_of(first, min(NODES_PER_CHUNK, num_nodes - first), make)


def _labels_of(first: int, count: int, make: MakeLabels) -> NDArray[np.int64]:
    out = np.empty(count, np.int64)
    make(first, out)
    return out


def _features(num_nodes: int, dim: int, seed: int, make: MakeLabels, memory: int) -> RowStream:
    def chunks(rows: int) -> Iterator[NDArray[np.float32]]:
        def rows_from(first: int) -> NDArray[np.float32]:
            labels = _labels_of(first, min(rows, num_nodes - first), make)
            out = np.empty((len(labels), dim), np.float32)
            _core.features(seed, _SIGNAL / math.sqrt(dim), first, labels, out)
            return out

        # The map keeps one chunk more than it has threads.
        threads = max(1, min(cpu_count(), memory // (4 * rows * dim) - 1))
        return ordered_map(rows_from, range(0, num_nodes, rows), threads=threads)

    return RowStream(num_nodes, dim, "float32", chunks)


def _splits(num_nodes: int, fraction: float, seed: int) -> dict[str, Iterator[Ids]]:
    """Consecutive stretches of one random order, each sorted."""
    size = min(max(1, round(num_nodes * fraction)), num_nodes)
    bounds = [min(size * i, num_nodes) for i in range(4)]
    return {
        name: _random_nodes(num_nodes, seed, first, last)
        for name, first, last in zip(SPLITS, bounds, bounds[1:], strict=False)
    }


def _random_nodes(num_nodes: int, seed: int, first: int, last: int) -> Iterator[Ids]:
    nodes = _core.IdSet(num_nodes)  # sorts them in a bit and a quarter per node
    for start in range(first, last, NODES_PER_CHUNK):
        chunk = np.empty(min(NODES_PER_CHUNK, last - start), np.int64)
        _core.random_order(num_nodes, seed, start, chunk)
        nodes.add(chunk)
    yield from list_ids(nodes)
