"""Row sources: what a plan says of rows, and what fills those of a batch.

A part is a frozen value: what, how many, over what. Opened it is a source, which lives as long as
the loader and is shared by all its runs; each run has workers of its own. Sources stack: each
serves the rows that it has, and passes the others on to a slower one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, cast

import numpy as np
from numpy.typing import NDArray

from outcrop import _core
from outcrop.layout.trace import TraceReader
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
from outcrop.sample.history import HistoryTable
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
    history: HistoryTable | None = None
    """Whose embeddings are used again; None: nobody's."""


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
    def batches(self) -> int:
        """For how many it was decided; one at least, where one was asked for."""

    @property
    def fills(self) -> bool:
        """Whether rows are read before its first batch."""

    def scan(self, first: int) -> Iterator[Any]:
        """What was decided for batch `first` of the window, and for those after it."""

    @property
    def read_bytes(self) -> dict[str, int]:
        """What was read to make it, by what it was read of."""

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


class ScriptedPart(RowsPart, Protocol):
    """Rows that are decided for window by window."""

    @property
    def making_region(self) -> str | None:
        """The name of its memory that windows are made in, while no batch is under way; None: its
        memory is its own."""

    def planning_bytes(self, context: Context, batches: int) -> int:
        """What deciding for a window takes, and gives back."""

    def script_bytes(self, context: Context) -> int:
        """What a batch's script takes on disk."""


class ScriptedRows(RowSource):
    """Scripts are made one window after the other, and carried out in the same order."""

    lasting: bool = False
    """Whether a script is a function of its window alone, and stays good whatever comes between."""

    def script(
        self,
        trace: TraceReader,
        folder: Path,
        first: int,
        last: int,
        ends: Collection[int],
        stop: Stop,
    ) -> Script:
        """Decides for batches [first, last) of a window, or for as many of them as there is room.

        `ends`: batches after which its contents are kept. `stop` may raise.
        """
        raise NotImplementedError

    def make_room(self) -> None:
        """Gives up memory of its region: no batch is under way until it is switched."""

    def switch(self, script: Script) -> None:
        """Its contents become those of a window; nothing is gathered meanwhile."""
        raise NotImplementedError

    def restore(self, contents: Ids | None) -> None:
        """Later scripts go on from these contents; None: from an empty cache."""


class _Rest:
    """The node ids of a trace, without those whose rows tiers above have."""

    def __init__(self, trace: TraceReader, above: Sequence[RowSource]) -> None:
        self._trace = trace
        self._above = above

    def __len__(self) -> int:
        return len(self._trace)

    @property
    def sizes(self) -> tuple[Ids, Ids]:
        """At most."""
        return self._trace.sizes

    def scan(self, *given: Any, **options: Any) -> Iterator[Ids]:
        for nodes in self._trace.scan(*given, **options):
            for source in self._above:
                nodes = source.passes_on(nodes)
            yield np.ascontiguousarray(nodes)


def passed_on(trace: TraceReader, above: Sequence[RowSource]) -> TraceReader:
    """A trace as a source sees it that has these above: only for its nodes."""
    return cast(TraceReader, _Rest(trace, above)) if above else trace


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
