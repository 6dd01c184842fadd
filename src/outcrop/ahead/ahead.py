"""Ahead: what of a run's batches is known before it comes to them.

A plan without a window has none of it: every batch is sampled as it comes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

from outcrop.memory.charges import Charge
from outcrop.memory.context import Context
from outcrop.observe.meter import Meter
from outcrop.rows.source import Admission, Resources, RowSource
from outcrop.sample.sampler import Subgraph, Topology
from outcrop.sample.seeds import Task


@dataclass(frozen=True)
class Replayed:
    """A batch as it was sampled ahead."""

    task: Task
    """The one that was asked for; where samples are repeated or imported, around their seeds."""
    subgraph: Subgraph
    record: Any
    """What was decided for its rows."""


class AheadPart(Protocol):
    """What a plan says of it."""

    decides_reuse: ClassVar[bool]
    """Whether what it samples may depend on the run that it is of: on embeddings."""

    def charges(self, context: Context) -> Sequence[Charge]:
        """All that making and reading it takes."""

    def written_bytes(self, context: Context) -> int:
        """On disk, at most at a time, as far as sizes tell."""

    def open(
        self, on: Resources, topology: Topology, rows: RowSource | None, lent_bytes: int
    ) -> Ahead:
        """Makes what there has to be before the first batch.

        `lent_bytes`: of the batches' memory, to be taken while something is made between loops.
        """


class Ahead(ABC):
    """Batches that are sampled ahead. Lives as long as the loader."""

    @abstractmethod
    def begin(self, tasks: Sequence[Task], whole: bool, meter: Meter) -> AheadRun | None:
        """A run of these tasks; None: all of them are sampled as they come.

        `whole`: the run goes to the end of its epoch, and the next epoch will follow.
        """

    @property
    def alterations(self) -> dict[str, Any]:
        """Options that make its batches differ from `memory`'s, in JSON's values: a position that
        was saved with them fits such batches alone. {}: the batches are the same."""
        return {}

    @property
    def facts(self) -> dict[str, Any]:
        """For the record, in JSON's values."""
        return {}

    @abstractmethod
    def close(self) -> None:
        """Ends what is under way; closed twice is closed."""


class AheadRun:
    """What is ahead of one run."""

    enters: bool = False
    """Whether `enter` is to be called."""

    def enter(self, number: int, admission: Admission) -> None:
        """In the order of tasks: what lies ahead of task `number` is made and current. May wait.

        Earlier batches are done, where that is necessary: `admission` drains.
        """

    def replay(self, number: int, task: Task) -> Replayed | None:
        """None: it is to be sampled. By one thread, in the order of tasks."""
        raise NotImplementedError

    def end(self, *, complete: bool) -> None:
        """The run is over; `complete`: all its batches were delivered."""
        raise NotImplementedError

    def cancel(self) -> None:
        """From any thread: what `enter` is doing is not wanted any more."""
        raise NotImplementedError
