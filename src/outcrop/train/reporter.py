"""Reporter: what a run tells while it trains. Does not load torch, so that commands start fast."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from outcrop.progress import SILENT, Progress
from outcrop.schema import Count, Made
from outcrop.train.memory import MemoryUse
from outcrop.train.options import TrainOptions

if TYPE_CHECKING:
    from outcrop.train.loop import FitResult


def _score(value: Any) -> float:
    if type(value) not in (int, float):
        raise ValueError
    return float(value)


Score = Annotated[float, Made(_score, "a number")]
"""May be NaN or infinite: a run that diverges has scores, too."""


@dataclass
class EpochResult:
    """One epoch, as it is reported."""

    epoch: Count
    loss: Score
    """Mean over its batches."""
    seconds: float
    val: Score | None = None
    test: Score | None = None


class TrainReporter:
    """Is told how training goes, and does nothing with it. Subclasses draw and log."""

    progress: Progress = SILENT
    """Is told how the strategy's preparation goes, before training begins."""

    def begin(self, options: TrainOptions, batches: int, epoch: int) -> None:
        """Training starts, or is resumed, at this epoch."""

    def batch(self, epoch: int, batch: int, loss: float, seeds: int, bytes_read: int) -> None:
        """A step was made; `batch` counts from 1, `bytes_read` is of the drive since the start."""

    def stepped(self, step: int, lr: float, gradient_norm: float | None) -> None:
        """A step was made, by its number over all epochs; the norm where gradients are clipped."""

    def memory(self, use: MemoryUse) -> None:
        """After the first step: what the run takes."""

    def epoch(self, result: EpochResult) -> None: ...

    def end(self, result: FitResult) -> None: ...
