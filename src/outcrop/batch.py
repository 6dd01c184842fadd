"""Batch: what a strategy prepares and a training loop receives, in memory of the budget's slabs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from outcrop import _core
from outcrop.budget import exact_slabs
from outcrop.errors import BudgetError
from outcrop.options import format_size
from outcrop.overdraft import Asked, Overdraft, Slabs
from outcrop.sample.sampler import Subgraph
from outcrop.sample.seeds import Task

if TYPE_CHECKING:
    import torch

Ids = NDArray[np.int64]


@dataclass
class Prepared:
    """A batch: the subgraph in PyG's terms, and memory for its rows."""

    task: Task
    n_id: Ids
    edge_index: Ids
    """[2, E]: sources, targets, as local ids."""
    e_id: Ids | None
    """None: nobody asked for them, or the samples came without."""
    x: NDArray[np.float32] | None
    """None where the store has no features, or rows stay in slots."""
    y: Ids | None
    nodes_per_hop: list[int]
    edges_per_hop: list[int]
    roots: list[int]
    stored: NDArray[np.uint8] | None = None
    """[nodes, row bytes]: rows as they are stored, before they are decoded into x; or what x is put
    together from."""
    x_index: Ids | None = None
    """Where rows stay in slots, the slot of each node."""
    expected: _core.Expected | None = None
    """Keeps slots of rows that it will want, until it has them."""
    claim: _core.Claim | None = None
    """Holds the slots until x_buffer does."""
    x_buffer: NDArray[np.float32] | None = None
    """[slots, dim]: all slots. Those of this batch are its own to read while this array lives."""
    assemble: Callable[[], torch.Tensor] | None = None
    """Where some rows are on the device already: puts x together there."""
    on_device: int = 0
    """Rows that were there already."""

    def give_to_children(self) -> None:
        """Its memory is there in processes that are forked from now on: nothing is read any more.

        Until then it is not, since a drive may be writing to it.
        """
        for array in (
            self.n_id,
            self.edge_index,
            self.e_id,
            self.x,
            self.y,
            self.stored,
            self.x_index,
        ):
            if array is not None:
                _core.give_to_children(array)

    @property
    def row_bytes(self) -> int:
        """What the rows that it came with take."""
        if self.x_buffer is not None:
            return len(self.n_id) * self.x_buffer[:1].nbytes
        return 0 if self.x is None else self.x.nbytes


@dataclass(frozen=True)
class RowShape:
    """What a batch has for each of its nodes."""

    dim: int | None
    """Values of x; None where the store has no features."""
    labels: bool
    staged_bytes: int | None = None
    """Bytes of a row as it is stored, where it is read first and decoded then; or of what else x is
    made from."""
    in_slots: bool = False
    """Whether rows stay where they are read to, so that a batch has their slots in place of x."""


@dataclass(frozen=True)
class BatchShape:
    """What decides the memory of a batch."""

    nodes: int
    edges: int
    rows: RowShape
    edge_ids: bool = True

    def array_bytes(self) -> list[int]:
        """Bytes of n_id, edge_index, e_id, x or x_index, y and stored rows."""
        nodes, edges, rows = self.nodes, self.edges, self.rows
        x = 8 * nodes if rows.in_slots else 4 * (rows.dim or 0) * nodes
        y = 8 * nodes if rows.labels else 0
        e_id = 8 * edges if self.edge_ids else 0
        return [8 * nodes, 16 * edges, e_id, x, y, (rows.staged_bytes or 0) * nodes]

    def charged_bytes(self) -> int:
        return sum(_core.SlabPool.charged_bytes(size) for size in self.array_bytes())


class BatchMaker:
    """Subgraphs -> batches with memory of their own. Thread-safe."""

    def __init__(
        self,
        pool: _core.SlabPool,
        rows: RowShape,
        labels: NDArray[np.integer] | None,
        *,
        edge_ids: bool = True,
        strict: bool = False,
    ) -> None:
        """`labels`: of all nodes, where `rows.labels`. `edge_ids`: whether batches have e_id.

        `strict`: never more than the pool has.
        """
        self.pool = pool
        self.strict = strict
        self.overdraft = Overdraft(pool, strict=strict)
        self._rows = rows
        self._labels = labels
        self._edge_ids = edge_ids

    def make(self, task: Task, subgraph: Subgraph, closed: Asked, awaited: Asked) -> Prepared:
        """All but the rows of x; waits for memory.

        Called in the order of batches, so that those before have all they need and end. Where even
        then nothing is left, since `awaited` says that the consumer waits for this very batch, more
        is taken than the pool has; BudgetError where that is strict.
        """
        nodes, edges = len(subgraph.nodes), len(subgraph.sources)
        dim, staged, in_slots = self._rows.dim, self._rows.staged_bytes, self._rows.in_slots
        edge_ids = subgraph.edge_ids if self._edge_ids else None
        shape = BatchShape(nodes, edges, self._rows, edge_ids is not None)
        n_id, edge_index, e_id, x, y, stored = self._take(shape, closed, awaited)
        batch = Prepared(
            task=task,
            n_id=n_id.view(np.int64),
            edge_index=edge_index.view(np.int64).reshape(2, edges),
            e_id=None if edge_ids is None else e_id.view(np.int64),
            x=None if dim is None or in_slots else x.view(np.float32).reshape(nodes, dim),
            y=None if self._labels is None else y.view(np.int64),
            nodes_per_hop=subgraph.nodes_per_hop,
            edges_per_hop=subgraph.edges_per_hop,
            roots=subgraph.roots,
            stored=None if staged is None else stored.reshape(nodes, staged),
            x_index=x.view(np.int64) if in_slots else None,
        )
        batch.n_id[:] = subgraph.nodes
        if batch.e_id is not None and edge_ids is not None:
            batch.e_id[:] = edge_ids
        _core.expand_edges(subgraph.sources, subgraph.counts, batch.edge_index)
        if batch.y is not None and self._labels is not None:
            batch.y[:] = self._labels[batch.n_id]
        return batch

    def _take(self, shape: BatchShape, closed: Asked, awaited: Asked) -> Slabs:
        needed = shape.charged_bytes()
        if self.strict and needed > self.pool.limit_bytes:
            raise BudgetError(
                f"a batch of {shape.nodes} nodes needs {format_size(needed)}, more "
                f"than the {format_size(self.pool.limit_bytes)} that memory= leaves for all "
                "batches; give that much more, or make batches smaller"
            )
        return self.overdraft.slabs(
            shape.array_bytes(), closed, awaited, lambda: self._want_of(needed)
        )

    def lend(self, size: int, closed: Asked, awaited: Asked) -> Slabs:
        """Memory that batches do not need now, for other uses: lent as long as the result lives.

        Waits as `make` does.
        """
        sizes = exact_slabs(size)
        needed = sum(sizes)
        return self.overdraft.slabs(sizes, closed, awaited, lambda: self._want_of(needed))

    def take(self, size: int, closed: Asked, awaited: Asked) -> NDArray[np.uint8]:
        """Memory that a batch needs beside its own; waits as `make` does."""
        needed = self.pool.charged_bytes(size)
        (taken,) = self.overdraft.slabs([size], closed, awaited, lambda: self._want_of(needed))
        return taken

    def _want_of(self, needed: int) -> str:
        return (
            f"the next batch needs {format_size(needed)}, and of the "
            f"{format_size(self.pool.limit_bytes)} that memory= leaves for batches, "
            f"{format_size(self.pool.held_bytes)} are held by batches that are still referenced"
        )
