"""Row sources: what a plan says of rows, and what fills those of a batch.

A part is a frozen value: what, how many, over what. Opened it is a source, which lives as long as
the loader and is shared by all its runs; each run has workers of its own. Sources stack: each
serves the rows that it has, and passes the others on to a slower one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from outcrop import _core
from outcrop.memory.batches import (
    Batch,
    BatchMaker,
    RowIndex,
    RowRequest,
    RowShape,
)
from outcrop.memory.charges import Charge
from outcrop.memory.context import Context
from outcrop.observe.meter import Meter
from outcrop.progress import Progress
from outcrop.sample.seeds import Ids
from outcrop.store.store import GraphStore
from outcrop.threads.parallel import cpu_count

Stop = Callable[[], None]
"""Called between steps of long work; raises where it is not wanted any more."""


@dataclass(frozen=True)
class Resources:
    """What parts are opened with."""

    store: GraphStore
    context: Context
    maker: BatchMaker
    """Makes batches in memory of the budget."""
    depth: int
    """Batches that may be under way at a time; the budget has room for so many."""
    gatherers: int
    """Threads that gather in a run, at a time."""
    prepare_bytes: int
    """Memory that preparation may use, as long as there are no batches and no caches."""
    progress: Progress
    """Is told how preparation goes."""


@dataclass(frozen=True)
class Admission:
    """What can be asked and done while a batch waits for its turn."""

    closed: Callable[[], bool]
    """Whether nobody wants the batch any more."""
    awaited: Callable[[], bool]
    """Whether the loop waits for this very batch."""
    drain: Callable[[], None] = lambda: None
    """Waits until all batches before it are gathered, or it is closed."""


class RowsPart(Protocol):
    """What a plan says of rows."""

    def shape(self, context: Context) -> RowShape:
        """What batches have for each of their nodes."""

    def charges(self, context: Context) -> Sequence[Charge]:
        """All that it and the parts below keep, beside batches."""

    def open(self, on: Resources) -> RowSource:
        """Whatever is chosen by reading is chosen now; what is kept is loaded later."""


class RowFill(Protocol):
    """Rows on their way."""

    def finish(self) -> None:
        """Waits for them; then what may change, changes: nobody reads it for this batch again."""


class RowWorker:
    """What gathers rows for one run; used by one thread at a time."""

    def start(self, request: RowRequest) -> RowFill:
        """Begins what is slow below, then copies what is here while that is on its way."""
        raise NotImplementedError

    def divide(self, _: RowRequest) -> tuple[RowIndex, RowIndex, Any] | None:
        """Where it was decided ahead which rows a tier above has: these rows, their slots there,
        and the record of the others. None: tiers look nodes up."""
        return None

    def cancel(self) -> None:
        """From any thread: a request under way may raise CancelledError. The copier is cancelled
        by whoever made it."""
        raise NotImplementedError


class Script(Protocol):
    """What a source decided for the batches of a window."""

    @property
    def fills(self) -> bool:
        """Whether rows are read before its first batch."""

    def scan(self, first: int) -> Iterator[Any]:
        """What was decided for batch `first` of the window, and for those after it."""

    def contents(self, t: int) -> Ids | None:
        """Who is in which slot after batch t, where that was asked for."""

    def close(self) -> None:
        """Removes its files."""


class RowSource:
    """Where rows come from. Thread-safe. What it does not do itself, those below do."""

    below: RowSource | None = None
    expects: bool = False
    """Whether `expect` is to be called, and `reserve`."""
    reserves: bool = False
    transfers: bool = False
    """Whether x is put together on the device, by `transfer`."""

    @property
    def shared_memory(self) -> NDArray[np.uint8] | None:
        """The memory of its region, for another tenant while it holds no rows; None: no region."""
        return None if self.below is None else self.below.shared_memory

    def load(self) -> None:
        """Reads what is kept from the first batch on: all preparation is over."""
        if self.below is not None:
            self.below.load()

    @property
    def threads(self) -> int:
        """How many copy the rows of a batch."""
        return cpu_count() if self.below is None else self.below.threads

    def worker(self, copier: _core.Copier, meter: Meter) -> RowWorker:
        """For one gatherer of one run, whose copier all its tiers share."""
        raise NotImplementedError

    def expect(self, nodes: Ids) -> _core.Expected | None:
        """A sampled batch will want these -> a hint for its request. From any thread."""
        return None if self.below is None else self.below.expect(self.passes_on(nodes))

    def reserve(self, batch: Batch, hint: Any, admission: Admission) -> None:
        """In the order of batches: takes what a batch needs beside its own memory. May wait."""
        raise NotImplementedError

    def transfer(self, batch: Batch) -> None:
        """The stage of the device: puts x of a gathered batch together there."""
        raise NotImplementedError

    def passes_on(self, nodes: Ids) -> Ids:
        """The nodes of a batch whose rows are asked for below."""
        return nodes

    def beneath(self, above: RowSource) -> None:
        """From now on only what this one passes on comes here."""
        if self.below is not None:
            self.below.beneath(above)

    @property
    def facts(self) -> dict[str, Any]:
        """For the record, in JSON's values."""
        return {} if self.below is None else self.below.facts

    def close(self) -> None:
        """Gives its memory up; closed twice is closed."""
        if self.below is not None:
            self.below.close()


class _Done:
    def finish(self) -> None:
        """Nothing is on its way."""


DONE = _Done()
"""Rows that are there already."""


def row_shape(context: Context, *, staged: bool = False) -> RowShape:
    """What batches that have x hold for each node.

    `staged`: rows are read as they are stored; all but float32 then need memory of their own.
    """
    rows = context.graph.rows
    labels, label_bytes = context.graph.has("labels"), context.graph.y_row_bytes
    if rows is None:
        return RowShape(None, labels, label_bytes=label_bytes)
    staged_bytes = rows.row_bytes if staged and rows.name != "float32" else 0
    return RowShape(rows.dim, labels, staged_bytes, label_bytes=label_bytes)
