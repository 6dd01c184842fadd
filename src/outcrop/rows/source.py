"""Row sources: what a plan says of rows, and what fills those of a batch.

A part is a frozen value: what, how many. Opened it is a source, which lives as long as the loader
and is shared by all its runs; each run has workers of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from outcrop import _core
from outcrop.batch import BatchMaker, Prepared, RowShape
from outcrop.meter import Meter
from outcrop.plan.charges import Charge
from outcrop.progress import Progress
from outcrop.sample.seeds import Ids
from outcrop.store.store import GraphStore

if TYPE_CHECKING:
    from outcrop.plan.context import Context

ENCODINGS = {
    "float32": _core.Encoding.FLOAT32,
    "float16": _core.Encoding.FLOAT16,
    "bfloat16": _core.Encoding.BFLOAT16,
    "int8": _core.Encoding.INT8,
}


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
        """All that it keeps, beside batches."""

    def open(self, on: Resources) -> RowSource:
        """No row is read yet: there may be preparation to come, which needs the memory."""


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


class RowWorker(Protocol):
    """Gathers rows for one run; used by one thread at a time."""

    def gather(self, batch: Prepared, record: Any) -> None:
        """Fills x. `record`: the script's; None: the batch is in no script."""

    def cancel(self) -> None:
        """From any thread: a gather under way may raise CancelledError."""


class RowSource:
    """Where rows come from. Thread-safe."""

    shared_memory: NDArray[np.uint8] | None = None
    """The memory of its region, for another tenant while it holds no rows; None: it is in none."""

    def load(self) -> None:
        """Reads what is kept from the first batch on: all preparation is over."""

    def worker(self, meter: Meter) -> RowWorker:
        """For one gatherer of one run."""
        raise NotImplementedError

    def expect(self, _: Ids) -> _core.Expected | None:
        """A sampled batch will want these: a hint, from any thread."""
        return None

    def reserve(self, batch: Prepared, admission: Admission) -> None:
        """In the order of batches: takes what a batch needs beside its own memory. May wait."""

    @property
    def facts(self) -> dict[str, Any]:
        """For the record, in JSON's values."""
        return {}

    def close(self) -> None:
        """Gives its memory up; closed twice is closed."""


Stop = Callable[[], None]
"""Called between steps of long work; raises where it is not wanted any more."""


def row_shape(context: Context, *, staged: bool = False) -> RowShape:
    """What batches that have x hold for each node.

    `staged`: rows are read as they are stored; all but float32 then need memory of their own.
    """
    rows = context.graph.rows
    labels = context.graph.has("labels")
    if rows is None:
        return RowShape(None, labels)
    staged_bytes = rows.row_bytes if staged and rows.name != "float32" else None
    return RowShape(rows.dim, labels, staged_bytes)
