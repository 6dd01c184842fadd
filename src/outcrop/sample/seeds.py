"""Seeds: (epoch, batch) -> the nodes that a batch is sampled around."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from typing import Any, overload

import numpy as np
import xxhash
from numpy.typing import NDArray

from outcrop import _core
from outcrop.errors import OptionError
from outcrop.sample.batching import SeedGroups
from outcrop.store.format import NODE_TYPE, SPLITS
from outcrop.store.store import GraphStore

Ids = NDArray[np.int64]
ALL_NODES = "all"
"""Names every node, wherever "train", "val" or "test" would name some."""


class Stream(IntEnum):
    """What batches are for; each has random choices of its own. Part of the format."""

    TRAIN = 0
    VAL = 1
    TEST = 2
    DIRECT = 3
    """Single batches that a user asks for by their seeds."""


@dataclass(frozen=True)
class Task:
    """One batch to be made: its key and its seeds."""

    stream: Stream
    epoch: int
    batch: int
    input_ids: Ids
    """Positions of the seeds among the input nodes."""
    seeds: Ids
    node_type: str = NODE_TYPE
    """What the seeds are. Pairs, or seeds of several types, would be other tasks."""
    iteration: int | None = None
    """Its place in training, where embeddings are used again; None: none are."""


class EpochTasks(Sequence[Task]):
    """Some batches of an epoch; each task is made when it is asked for."""

    def __init__(
        self, seeds: SeedOrder, epoch: int, numbers: Sequence[int], *, counted: bool = False
    ) -> None:
        """`counted`: as SeedOrder.task has it."""
        self._seeds = seeds
        self._epoch = epoch
        self._numbers = numbers
        self._counted = counted

    def __len__(self) -> int:
        return len(self._numbers)

    @overload
    def __getitem__(self, at: int) -> Task: ...
    @overload
    def __getitem__(self, at: slice) -> EpochTasks: ...
    def __getitem__(self, at: int | slice) -> Task | EpochTasks:
        if isinstance(at, slice):
            return EpochTasks(self._seeds, self._epoch, self._numbers[at], counted=self._counted)
        return self._seeds.task(self._epoch, self._numbers[at], counted=self._counted)


class SeedOrder:
    """The seeds of every batch of every epoch, for any position at once.

    The order of an epoch is a keyed permutation, in O(1) memory, or that of its groups; so a run
    resumed in mid-epoch needs nothing but its position.
    """

    def __init__(
        self,
        nodes: Ids | range,
        *,
        batch_size: int,
        stream: Stream,
        seed: int,
        shuffle: bool = True,
        drop_last: bool = False,
        groups: SeedGroups | None = None,
    ) -> None:
        """`groups`: how shuffled seeds are ordered; None: all by chance."""
        if batch_size < 1:
            raise OptionError(f"batch_size must be at least 1 (got {batch_size})")
        if not 0 <= seed < 2**64:
            raise OptionError(f"seed must be 0 to 2^64 - 1 (got {seed})")
        if isinstance(nodes, range) and nodes.step != 1:
            raise OptionError(f"a range of nodes must be without gaps (got {nodes})")
        self.nodes = nodes
        self.batch_size = batch_size
        self.stream = stream
        self.seed = seed
        self.shuffle = shuffle
        self.drop_last = drop_last
        self.groups = groups if shuffle else None

    def __len__(self) -> int:
        """Batches per epoch; the last one may be short."""
        whole, rest = divmod(len(self.nodes), self.batch_size)
        return whole + (rest > 0 and not self.drop_last)

    @cached_property
    def digest(self) -> str:
        """Tells its nodes from others; of a range, its bounds."""
        if isinstance(self.nodes, range):
            return f"{self.nodes.start} to {self.nodes.stop}"
        return xxhash.xxh3_128_hexdigest(self.nodes.data)

    def task(self, epoch: int, batch: int, *, counted: bool = False) -> Task:
        """`counted`: whether it is one of training, and has an iteration."""
        if not 0 <= batch < len(self):
            raise IndexError(f"batch {batch} of {len(self)}")
        begin, end = self.range_of(batch)
        if self.groups is not None:
            positions = self.groups.order(self.seed, self.stream, epoch, begin, end)
        else:
            positions = np.arange(begin, end)
            if self.shuffle:
                _core.shuffled_seeds(
                    len(self.nodes), self.seed, self.stream, epoch, begin, positions
                )
        iteration = epoch * len(self) + batch if counted else None
        seeds = self.seeds(positions)
        return Task(self.stream, epoch, batch, positions, seeds, iteration=iteration)

    def range_of(self, batch: int) -> tuple[int, int]:
        """The seeds of a batch, in the order of any epoch: the first, and one past the last."""
        begin = batch * self.batch_size
        return begin, min(begin + self.batch_size, len(self.nodes))

    @property
    def nbytes(self) -> int:
        """What its nodes take in memory."""
        return 0 if isinstance(self.nodes, range) else self.nodes.nbytes

    @property
    def order_bytes(self) -> int:
        """What their order takes in memory."""
        return 0 if self.groups is None else self.groups.nbytes

    def tasks(
        self, epoch: int, first_batch: int = 0, last_batch: int | None = None
    ) -> Iterator[Task]:
        """Batches [first, last) of one epoch; None: to its end."""
        last_batch = len(self) if last_batch is None else last_batch
        return (self.task(epoch, batch) for batch in range(first_batch, last_batch))

    def seeds(self, positions: Ids) -> Ids:
        """Nodes at positions of the input."""
        if isinstance(self.nodes, range):
            return positions + self.nodes.start
        return self.nodes[positions]


def seed_nodes(store: GraphStore, input_nodes: Any) -> tuple[Ids | range, Stream]:
    """ "train", "val", "test", ids, a mask, "all" or None -> node ids, and their stream.

    Wherever nodes are named, this decides what the names mean.
    """
    if input_nodes is None or (isinstance(input_nodes, str) and input_nodes == ALL_NODES):
        return range(store.num_nodes), Stream.TRAIN
    if isinstance(input_nodes, str) and input_nodes in SPLITS:
        return np.array(store.split(input_nodes)), Stream[input_nodes.upper()]
    nodes = _as_array(input_nodes)
    if nodes.dtype == bool:
        if len(nodes) != store.num_nodes:
            raise OptionError(
                f"a mask needs an entry per node: {store.num_nodes} (got {len(nodes)})"
            )
        return np.flatnonzero(nodes), Stream.TRAIN
    if nodes.size and not np.issubdtype(nodes.dtype, np.integer):
        raise OptionError(f"input_nodes must be node ids or a mask (got {nodes.dtype})")
    nodes = np.array(nodes, dtype=np.int64)
    if nodes.size and not 0 <= nodes.min() <= nodes.max() < store.num_nodes:
        raise OptionError(
            f"input_nodes must be 0 to {store.num_nodes - 1} (got {nodes.min()} to {nodes.max()})"
        )
    return nodes, Stream.TRAIN


def _as_array(input_nodes: Any) -> NDArray[Any]:
    """Ids or a mask, of Python, numpy or torch."""
    kinds = f"{', '.join(SPLITS)} or {ALL_NODES}, node ids or a mask"
    if isinstance(input_nodes, str):
        raise OptionError(f"input_nodes must be {kinds} (got {input_nodes!r})")
    if isinstance(input_nodes, tuple) and isinstance(next(iter(input_nodes), 0), str | None):
        raise OptionError(
            "a store has one type of nodes: give their mask or ids alone, input_nodes=mask "
            f"(got a tuple that begins with {input_nodes[0]!r})"
        )
    if hasattr(input_nodes, "detach"):  # a tensor, wherever it is
        input_nodes = input_nodes.detach().cpu()
    try:
        nodes = np.asarray(input_nodes)
    except ValueError:  # lists of several lengths
        nodes = np.empty(())
    if nodes.ndim == 0:
        raise OptionError(f"input_nodes must be {kinds} (got {type(input_nodes).__name__})")
    if nodes.ndim != 1:
        raise OptionError(
            f"input_nodes must have one dimension, such as mask[:, 0] (got {list(nodes.shape)})"
        )
    return nodes
