"""Curves: what training tells -> tensorboard, Weights & Biases, or both, to be drawn there."""

from __future__ import annotations

import importlib
import json
import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import typer

from outcrop.errors import OptionError
from outcrop.observe.record import rss_bytes
from outcrop.train.memory import MemoryUse
from outcrop.train.options import TrainOptions
from outcrop.train.reporter import EpochResult, TrainReporter

if TYPE_CHECKING:
    from outcrop.train.loop import FitResult

_PROJECT = "outcrop"


class Curves(TrainReporter, ABC):
    """Writes a run's values by step and by epoch. A subclass knows where to."""

    _step = 0
    """Steps so far, over all epochs."""

    @abstractmethod
    def write_step(self, values: dict[str, float], step: int) -> None: ...

    @abstractmethod
    def write_epoch(self, values: dict[str, float], epoch: int, step: int) -> None: ...

    @abstractmethod
    def close(self, status: int) -> None:
        """The run has ended with this exit status."""

    def begin(self, options: TrainOptions, batches: int, epoch: int) -> None:
        self._step = epoch * batches

    def stepped(self, step: int, lr: float, gradient_norm: float | None) -> None:
        self._step = step
        self._rates = {"lr": lr}
        if gradient_norm is not None:
            self._rates["gradient_norm"] = gradient_norm

    def batch(self, epoch: int, batch: int, loss: float, seeds: int, bytes_read: int) -> None:
        self.write_step({"loss": loss, **self._rates}, self._step)

    def memory(self, use: MemoryUse) -> None:
        self.write_step({f"memory/{name}": value for name, value in vars(use).items()}, 1)

    def epoch(self, result: EpochResult) -> None:
        values = {
            "epoch_loss": result.loss,
            "seconds": result.seconds,
            "memory/resident_bytes": float(rss_bytes()),
        }
        scores = {"val": result.val, "test": result.test}
        values |= {name: score for name, score in scores.items() if score is not None}
        self.write_epoch(values, result.epoch, self._step)


class TensorBoard(Curves):
    """Files under runs/."""

    def __init__(self, configuration: dict[str, Any]) -> None:
        writer = _import("tensorboard", "torch.utils.tensorboard.writer")
        self._writer = writer.SummaryWriter()
        lines = json.dumps(configuration, indent=2).splitlines()
        self._writer.add_text("configuration", "\n".join(f"    {line}" for line in lines))

    def write_step(self, values: dict[str, float], step: int) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)

    def write_epoch(self, values: dict[str, float], epoch: int, step: int) -> None:
        self.write_step(values, epoch)

    def close(self, status: int) -> None:
        self._writer.close()


class WeightsAndBiases(Curves):
    """A run of wandb, whose environment variables (WANDB_PROJECT, WANDB_MODE ...) all work."""

    def __init__(self, configuration: dict[str, Any]) -> None:
        wandb = _import("wandb", "wandb")
        project = os.environ.get("WANDB_PROJECT", _PROJECT)
        try:
            self._run = wandb.init(project=project, config=configuration)
        except wandb.Error as error:
            raise OptionError(
                f"log=wandb: {error} (with WANDB_MODE=offline in the environment, the run stays on "
                "this machine)"
            ) from error

    def write_step(self, values: dict[str, float], step: int) -> None:
        self._run.log(values, step=step)

    def write_epoch(self, values: dict[str, float], epoch: int, step: int) -> None:
        self._run.log({**values, "epoch": epoch + 1}, step=step)

    def close(self, status: int) -> None:
        self._run.finish(exit_code=status)


_KINDS: dict[str, type[TensorBoard] | type[WeightsAndBiases]] = {
    "tensorboard": TensorBoard,
    "wandb": WeightsAndBiases,
}


def curve_names(log: str | None) -> list[str]:
    """ "tensorboard,wandb" -> both. OptionError where it names anything else."""
    names = [] if log is None else log.split(",")
    if not set(names) <= set(_KINDS) or len(set(names)) != len(names):
        raise OptionError(f"log must be tensorboard, wandb or tensorboard,wandb (got {log!r})")
    return names


@contextmanager
def open_curves(names: Sequence[str], configuration: dict[str, Any]) -> Iterator[list[Curves]]:
    """Those of the given names, closed with the status that the command will end with."""
    opened: list[Curves] = []
    status = 1
    try:
        for name in names:
            opened.append(_KINDS[name](configuration))
        yield opened
        status = 0
    except typer.Exit as end:
        status = end.exit_code
        raise
    except KeyboardInterrupt:
        status = 130
        raise
    finally:
        for one in opened:
            one.close(status)


def _import(name: str, module: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise OptionError(
            f"log={name} needs the package {name} (pip install 'outcrop[{name}]'): {error}"
        ) from error


class Together(TrainReporter):
    """Tells several what one is told; the first one's progress."""

    def __init__(self, first: TrainReporter, *others: TrainReporter) -> None:
        self._all = (first, *others)
        self.progress = first.progress

    def begin(self, options: TrainOptions, batches: int, epoch: int) -> None:
        for one in self._all:
            one.begin(options, batches, epoch)

    def stepped(self, step: int, lr: float, gradient_norm: float | None) -> None:
        for one in self._all:
            one.stepped(step, lr, gradient_norm)

    def batch(self, epoch: int, batch: int, loss: float, seeds: int, bytes_read: int) -> None:
        for one in self._all:
            one.batch(epoch, batch, loss, seeds, bytes_read)

    def memory(self, use: MemoryUse) -> None:
        for one in self._all:
            one.memory(use)

    def epoch(self, result: EpochResult) -> None:
        for one in self._all:
            one.epoch(result)

    def end(self, result: FitResult) -> None:
        for one in self._all:
            one.end(result)
