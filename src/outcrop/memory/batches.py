"""Batch: what a strategy prepares and a training loop receives, in memory of the budget's slabs."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from outcrop import _core
from outcrop.errors import BudgetError, CancelledError
from outcrop.memory.budget import exact_slabs
from outcrop.options import format_size
from outcrop.sample.sampler import Reuse, Subgraph
from outcrop.sample.seeds import Ids, Task
from outcrop.store.format import EDGE_TYPE, NODE_TYPE, EdgeType
from outcrop.store.targets import TargetFormat

if TYPE_CHECKING:
    import torch

Array = NDArray[Any]
# Where some rows are on the device, each row has its place in the batch (int64, as torch wants it)
# and its slot there (int32).
INDEX_BYTES = 8 + 4
RowIndex = NDArray[np.int64] | NDArray[np.uint32]
T = TypeVar("T")
Slabs = list[NDArray[np.uint8]]
Asked = Callable[[], bool]

_POLL_SECONDS = 0.05
# Where memory was exceeded before, the loop should not wait for polls.
_SHORT_POLL_SECONDS = 0.001
# How long a batch waits, the first time, for memory that only the user's own code can free.
_GRACE_SECONDS = 1.0


@dataclass(frozen=True)
class RowRequest:
    """Rows to be had: that of ids[i] -> row x_rows[i] of x."""

    ids: Ids
    x: NDArray[np.float32]
    x_rows: RowIndex | None = None
    """None: in their order, all rows of x."""
    staged: NDArray[np.uint8] | None = None
    """A row for each of x, for rows as they are stored; None: these are what x has."""
    record: Any = None
    """What was decided for this batch ahead; None: nothing."""
    hint: Any = None
    """What a row source gave when the batch was sampled."""
    held: BatchRows | None = None
    """What the request was made of, for whoever is on top."""

    def without(self, here: NDArray[np.bool_]) -> RowRequest:
        """The rows that a tier has not."""
        missing = np.flatnonzero(~here)
        x_rows = missing if self.x_rows is None else self.x_rows[missing]
        return replace(self, ids=self.ids[missing], x_rows=x_rows)

    @property
    def stored(self) -> NDArray[np.uint8]:
        """Where rows are read to as they are stored, by their rows of x."""
        return self.x.view(np.uint8) if self.staged is None else self.staged


class BatchRows:
    """How a batch holds its rows: whoever gathers them fills it, and a loader shows it."""

    def request(self, ids: Ids, record: Any, hint: Any) -> RowRequest:
        """All rows of the batch, whose nodes are `ids`."""
        raise NotImplementedError

    def filled(self) -> None:
        """Gives back now what only the request took."""

    def tensors(self) -> dict[str, torch.Tensor]:
        """What a training loop finds in the batch. They share its memory."""
        raise NotImplementedError

    def values(self) -> NDArray[np.float32]:
        """The rows, in the order of the batch's nodes."""
        raise NotImplementedError

    @property
    def arrays(self) -> list[Array | None]:
        """Memory of the batch that it uses."""
        return []


class OwnRows(BatchRows):
    """x, in memory of the batch."""

    def __init__(self, x: NDArray[np.float32], staged: NDArray[np.uint8] | None) -> None:
        self.x = x
        self.staged = staged
        """[nodes, row bytes], for rows as they are stored, before they are decoded into x."""

    def request(self, ids: Ids, record: Any, hint: Any) -> RowRequest:
        return RowRequest(ids, self.x, None, self.staged, record, hint)

    def filled(self) -> None:
        self.staged = None

    def tensors(self) -> dict[str, torch.Tensor]:
        import torch

        return {"x": torch.from_numpy(self.x)}

    def values(self) -> NDArray[np.float32]:
        return self.x

    @property
    def arrays(self) -> list[Array | None]:
        return [self.x, self.staged]


class SlotView(BatchRows):
    """Rows stay in slots that batches share; this one holds its slots until it is dropped."""

    def __init__(self, index: Ids) -> None:
        self.index = index
        """The slot of each node."""
        self.claim: _core.Claim | None = None
        """Holds the slots until `buffer` does."""
        self.buffer: NDArray[np.float32] | None = None
        """[slots, dim]: all slots. Those of this batch are its own to read while this lives."""

    def request(self, ids: Ids, record: Any, hint: Any) -> RowRequest:
        return RowRequest(ids, np.empty((0, 0), np.float32), None, None, record, hint, self)

    def give_rows(self, memory: NDArray[np.uint8]) -> None:
        """Rows of its own, in place of slots."""
        self.index[:] = np.arange(len(self.index))
        self.buffer = memory.view(np.float32).reshape(len(self.index), -1)

    def tensors(self) -> dict[str, torch.Tensor]:
        import torch

        assert self.buffer is not None, "not gathered"
        return {
            "x_buffer": torch.from_numpy(self.buffer),
            "x_index": torch.from_numpy(self.index),
        }

    def values(self) -> NDArray[np.float32]:
        assert self.buffer is not None, "not gathered"
        return self.buffer[self.index]

    @property
    def arrays(self) -> list[Array | None]:
        return [self.index]


class PartialRows(BatchRows):
    """Some rows are on the device already: the host gathers the others, which alone are moved.

    x is put together there. On the CPU it is the batch's own, beside the partial input; elsewhere
    its memory here has the partial input.
    """

    def __init__(
        self, x: NDArray[np.float32], memory: NDArray[np.uint8], staged_bytes: int
    ) -> None:
        """`memory`: [nodes, bytes]: places and slots; the partial input, where it is not in x; rows
        as they are stored."""
        nodes, each = memory.shape
        index, partial, staged = np.split(
            memory.reshape(-1), [INDEX_BYTES * nodes, (each - staged_bytes) * nodes]
        )
        self._x = x
        self._memory: NDArray[np.uint8] | None = memory
        self.rows = index[: 8 * nodes].view(np.int64)
        """Rows of the batch: first those that the host gathers, ascending."""
        self.slots = index[8 * nodes :].view(np.int32)
        """The slots of the others, on the device."""
        self.whole: NDArray[np.float32] | None = None
        """Memory for all rows, where the device is the CPU."""
        self.input = x
        """[host rows, dim], to be filled."""
        if len(partial):
            self.whole, self.input = x, partial.view(np.float32).reshape(x.shape)
        self._staged = staged.reshape(nodes, staged_bytes) if staged_bytes else None
        self._assembled: torch.Tensor | None = None

    def request(self, ids: Ids, record: Any, hint: Any) -> RowRequest:
        return RowRequest(ids, self.input, None, self._staged, record, hint, self)

    def divide(self, rows: NDArray[np.integer], slots: NDArray[np.integer]) -> None:
        """These rows are in these slots of the device."""
        count = len(self._x) - len(rows)
        on_host = np.ones(len(self._x), bool)
        on_host[rows] = False
        self.rows[:count] = np.flatnonzero(on_host)
        self.rows[count:] = rows
        self.slots = self.slots[: len(rows)]
        self.slots[:] = slots
        self.input = self.input[:count]
        self._staged = None if self._staged is None else self._staged[:count]

    @property
    def host_rows(self) -> Ids:
        return self.rows[: len(self.input)]

    def put_together(self, x: torch.Tensor) -> None:
        """All rows are in x, on the device; what that was made from goes back now."""
        self._assembled = x
        self._memory = self._staged = None
        self.rows, self.slots = np.empty(0, np.int64), np.empty(0, np.int32)
        self.input = np.empty((0, 0), np.float32)
        if self.whole is None:
            self._x = self.input

    def tensors(self) -> dict[str, torch.Tensor]:
        x = self._assembled
        assert x is not None, "not put together"
        if x.is_cuda:  # made in another stream: not to be given away while this one reads it
            import torch

            x.record_stream(torch.cuda.current_stream(x.device))
        return {"x": x}

    def values(self) -> NDArray[np.float32]:
        assert self._assembled is not None, "not put together"
        values: NDArray[np.float32] = self._assembled.cpu().numpy()
        return values

    @property
    def arrays(self) -> list[Array | None]:
        return [self._x, self._memory]


@dataclass
class Batch:
    """A batch: the subgraph in PyG's terms, and a handle for its rows."""

    task: Task
    n_id: Ids
    edge_index: Ids
    """[2, E]: sources, targets, as local ids."""
    e_id: Ids | None
    """None: nobody asked for them, or the samples came without."""
    y: NDArray[Any] | None
    nodes_per_hop: list[int]
    edges_per_hop: list[int]
    roots: list[int]
    rows: BatchRows | None
    """None where the store has no features."""
    row_bytes: int = 0
    """What the rows take as float32, wherever they are."""
    reuse: Reuse | None = None
    """What of it is used again; None: nothing."""
    node_types: tuple[str, ...] = (NODE_TYPE,)
    """Names of what its nodes are, and its edges: one of each today."""
    edge_types: tuple[EdgeType, ...] = (EDGE_TYPE,)

    def give_to_children(self) -> None:
        """Its memory is there in processes that are forked from now on: nothing is read any more.

        Until then it is not, since a drive may be writing to it.
        """
        rows = [] if self.rows is None else self.rows.arrays
        for array in (self.n_id, self.edge_index, self.e_id, self.y, *rows):
            if array is not None and array.nbytes:
                _core.give_to_children(array)


@dataclass(frozen=True)
class RowShape:
    """What a batch has for each of its nodes."""

    dim: int | None
    """Values of x; None where the store has no features."""
    labels: bool
    staged_bytes: int = 0
    """Bytes of a row as it is stored, where it is read first and decoded then."""
    held: Literal["own", "slots", "partial"] = "own"
    """As x; as slots of a buffer, where rows stay; or as what the device of batches lacks."""
    label_bytes: int = 8
    """What a node's labels take, where there are any."""
    device: str = "cpu"
    """Where x of such a partial input is put together."""

    def on_device(self, device: str) -> RowShape:
        """The same rows, some of which are there already."""
        return replace(self, held="partial", device=device)

    @property
    def beside_bytes(self) -> int:
        """What a batch has for each row beside x."""
        if self.held != "partial":
            return self.staged_bytes
        partial = 4 * (self.dim or 0) if self.device == "cpu" else 0
        return INDEX_BYTES + self.staged_bytes + partial


@dataclass(frozen=True)
class BatchShape:
    """What decides the memory of a batch."""

    nodes: int
    edges: int
    rows: RowShape
    edge_ids: bool = True

    def array_bytes(self) -> list[int]:
        """Bytes of n_id, edge_index, e_id, x or slots, y, and what rows take beside."""
        nodes, edges, rows = self.nodes, self.edges, self.rows
        x = 8 * nodes if rows.held == "slots" else 4 * (rows.dim or 0) * nodes
        y = rows.label_bytes * nodes if rows.labels else 0
        e_id = 8 * edges if self.edge_ids else 0
        return [8 * nodes, 16 * edges, e_id, x, y, rows.beside_bytes * nodes]

    def charged_bytes(self) -> int:
        return sum(_core.SlabPool.charged_bytes(size) for size in self.array_bytes())


class Overdraft:
    """Who goes beyond the limit of a pool, and by how much. Thread-safe.

    A batch that the loop itself waits for gets memory, beyond the budget if need be: only the
    user's code can then free any. It keeps batches, or one is larger than was foreseen.
    """

    def __init__(self, pool: _core.SlabPool, *, strict: bool = False) -> None:
        """`strict`: nobody does; BudgetError instead."""
        self._pool = pool
        self._strict = strict
        self._lock = threading.Lock()
        # Guarded by _lock
        self._granted = False
        self._granted_bytes = 0
        self._excuse: str | None = None

    @property
    def peak_bytes(self) -> int:
        """The most that was beyond the limit."""
        return max(self._pool.peak_bytes - self._pool.limit_bytes, 0)

    def take_excuse(self) -> str | None:
        """Why the limit was exceeded, the first time that it was; None from then on."""
        with self._lock:
            excuse, self._excuse = self._excuse, None
            return excuse

    def slabs(
        self, sizes: list[int], closed: Asked, awaited: Asked, why: Callable[[], str]
    ) -> Slabs:
        """Memory of these sizes; waits for it as `wait` does."""
        return self.wait(
            lambda seconds: self._pool.take(sizes, seconds),
            lambda: self.beyond(sizes),
            sum(map(self._pool.charged_bytes, sizes)),
            closed,
            awaited,
            why,
        )

    def beyond(self, sizes: list[int]) -> Slabs:
        """Memory of these sizes at once, whatever the limit."""
        slabs = self._pool.take(sizes, 0.0, beyond_limit=True)
        assert slabs is not None
        return slabs

    def wait(
        self,
        take: Callable[[float], T | None],
        beyond: Callable[[], T],
        size: int,
        closed: Asked,
        awaited: Asked,
        why: Callable[[], str],
    ) -> T:
        """What take(seconds) gives, once it gives something.

        Where the loop waits for this very batch (`awaited`), all that is held is held by the
        user's code: then what beyond() gives, which takes `size` bytes of the pool. BudgetError,
        with `why`, if strict.
        """
        deadline = 0.0
        while not closed():
            taken = take(_SHORT_POLL_SECONDS if self._granted else _POLL_SECONDS)
            if taken is not None:
                return taken
            if not awaited():
                continue
            if not deadline:
                if self._is_granted(size):
                    return beyond()
                gc.collect()  # batches in cycles of references are nobody's
                deadline = time.monotonic() + self._grace_seconds(size)
            elif time.monotonic() >= deadline:
                self._grant(size, why)
                return beyond()
        raise CancelledError("closed while a batch waited for memory")

    def _missing_bytes(self, size: int) -> int:
        return self._pool.held_bytes + size - self._pool.limit_bytes

    def _is_granted(self, size: int) -> bool:
        return self._granted and self._missing_bytes(size) <= self._granted_bytes

    def _grace_seconds(self, size: int) -> float:
        hopeless = size > self._pool.limit_bytes
        return 0.0 if self._granted or hopeless else _GRACE_SECONDS

    def _grant(self, size: int, why: Callable[[], str]) -> None:
        if self._strict:
            raise BudgetError(
                f"{why()}; drop them (copy what you keep, as in batch.y.clone()), or give more "
                "memory"
            )
        missing = self._missing_bytes(size)
        with self._lock:
            self._granted = True
            if missing > 0 and not self._granted_bytes:
                self._excuse = (
                    f"batches take {format_size(missing)} more than memory= allows: {why()}. "
                    "They are served all the same; to stay within it drop what you keep (copy "
                    "what you need, as in batch.y.clone()), or give more memory. "
                    "strict_memory=True raises instead"
                )
            # Twice as much: a loop that keeps every batch should not search for garbage each time.
            self._granted_bytes = max(self._granted_bytes, 2 * missing)


class BatchMaker:
    """Subgraphs -> batches with memory of their own. Thread-safe."""

    def __init__(
        self,
        pool: _core.SlabPool,
        rows: RowShape,
        targets: TargetFormat,
        labels: NDArray[Any] | None,
        *,
        edge_ids: bool = True,
        strict: bool = False,
    ) -> None:
        """`targets`: what labels are, where `rows.labels`. `labels`: of all nodes; None: there are
        none, or y is left to whoever reads them. `edge_ids`: whether batches have e_id.

        `strict`: never more than the pool has.
        """
        self.pool = pool
        self.strict = strict
        self.overdraft = Overdraft(pool, strict=strict)
        self._rows = rows
        self._labels = labels
        self._y_dtype, self._y_row_shape = targets.batch_dtype, targets.row_shape
        self._marks_none = targets.marks_none
        self._edge_ids = edge_ids

    def make(self, task: Task, subgraph: Subgraph, closed: Asked, awaited: Asked) -> Batch:
        """All but the rows of x, and labels that are not in memory; waits for memory.

        Called in the order of batches, so that those before have all they need and end. Where even
        then nothing is left, since `awaited` says that the consumer waits for this very batch, more
        is taken than the pool has; BudgetError where that is strict.
        """
        nodes, edges = len(subgraph.nodes), len(subgraph.sources)
        edge_ids = subgraph.edge_ids if self._edge_ids else None
        shape = BatchShape(nodes, edges, self._rows, edge_ids is not None)
        n_id, edge_index, e_id, x, y, beside = self._take(shape, closed, awaited)
        batch = Batch(
            task=task,
            n_id=n_id.view(np.int64),
            edge_index=edge_index.view(np.int64).reshape(2, edges),
            e_id=None if edge_ids is None else e_id.view(np.int64),
            y=self._shaped(nodes, y) if self._rows.labels else None,
            nodes_per_hop=subgraph.nodes_per_hop,
            edges_per_hop=subgraph.edges_per_hop,
            roots=subgraph.roots,
            rows=self._held(nodes, x, beside),
            row_bytes=4 * (self._rows.dim or 0) * nodes,
            reuse=subgraph.reuse,
        )
        batch.n_id[:] = subgraph.nodes
        if batch.e_id is not None and edge_ids is not None:
            batch.e_id[:] = edge_ids
        _core.expand_edges(subgraph.sources, subgraph.counts, batch.edge_index)
        if batch.y is not None and self._labels is not None:
            batch.y[:] = self._labels[batch.n_id]
            if self._marks_none:
                batch.y[batch.y < 0] = np.nan
        return batch

    def _shaped(self, nodes: int, memory: NDArray[np.uint8]) -> NDArray[Any]:
        return memory.view(self._y_dtype).reshape(nodes, *self._y_row_shape)

    def _held(
        self, nodes: int, x: NDArray[np.uint8], beside: NDArray[np.uint8]
    ) -> BatchRows | None:
        rows = self._rows
        if rows.dim is None:
            return None
        if rows.held == "slots":
            return SlotView(x.view(np.int64))
        own = x.view(np.float32).reshape(nodes, rows.dim)
        if rows.held == "partial":
            memory = beside.reshape(nodes, rows.beside_bytes)
            return PartialRows(own, memory, rows.staged_bytes)
        staged = beside.reshape(nodes, rows.staged_bytes) if rows.staged_bytes else None
        return OwnRows(own, staged)

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
