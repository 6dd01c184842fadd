"""Facts: what `fit` keeps in a checkpoint beside tensors, checked when it is read."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Literal

from outcrop.errors import OptionError, StoreError
from outcrop.schema import Count, parse
from outcrop.train.checkpoint import Checkpoint
from outcrop.train.optimizer import Plateau
from outcrop.train.options import TrainOptions
from outcrop.train.reporter import EpochResult, Score

if TYPE_CHECKING:
    from typing_extensions import Self


@dataclass
class RunProgress:
    """Where a run is."""

    history: list[EpochResult] = field(default_factory=list)
    best: Score | None = None
    best_epoch: Count | None = None
    best_test: Score | None = None
    reference: Score | None = None
    """The score that one has to be better than, by min_delta; None: saved before there was one."""
    worse: Count = 0
    """Evaluations since the reference."""
    plateau: Plateau = field(default_factory=Plateau)
    loss_sum: Score = 0.0
    """The sum over the steps of the current epoch so far."""
    steps: Count = 0
    seconds: float = 0.0
    """What the current epoch had taken before it was interrupted."""

    def __post_init__(self) -> None:
        if self.reference is None:
            self.reference = self.best


class _Facts:
    """What is read from a checkpoint."""

    @classmethod
    def of(cls, checkpoint: Checkpoint) -> Self:
        """StoreError names the file and the field that is not what it should be."""
        names = [one.name for one in fields(cls)]  # type: ignore[arg-type]
        there = {name: checkpoint.facts[name] for name in names if name in checkpoint.facts}
        return parse(cls, there, checkpoint.name, error=StoreError)


@dataclass(frozen=True)
class ModelFacts(_Facts):
    """What the model of a checkpoint is made with."""

    options: dict[str, Any]
    in_channels: Count
    out_channels: Count


@dataclass(frozen=True)
class RunFacts(_Facts):
    """Where a run was."""

    options: dict[str, Any]
    loader: dict[str, Any]
    """Its position; the loader looks at it."""
    progress: RunProgress
    order: Literal["exact", "completion"] | None = None
    """The order in which batches came; None: saved by a version that did not say."""


def saved_options(facts: ModelFacts | RunFacts, where: str) -> TrainOptions:
    try:
        return TrainOptions.from_dict(facts.options, where)
    except OptionError as error:
        raise StoreError(str(error)) from error
