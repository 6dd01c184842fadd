"""Progress of training on the terminal."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from rich.progress import BarColumn, TextColumn, TimeRemainingColumn

from outcrop.cli.output import ScreenBars, say
from outcrop.options import format_size
from outcrop.progress import Progress
from outcrop.train.memory import MemoryUse
from outcrop.train.options import TrainOptions
from outcrop.train.reporter import EpochResult, TrainReporter

if TYPE_CHECKING:
    from outcrop.train.loop import FitResult


class _Preparing(Progress):
    """A line for each stage of what is prepared; outcrop prepare draws bars."""

    def stage(self, name: str, total: int | None = None, unit: str = "B") -> None:
        amount = "" if total is None else format_size(total) if unit == "B" else f"{total} {unit}"
        say(f"preparing: {name} {amount}".rstrip())

    def note(self, text: str) -> None:
        say(text)


class Terminal(TrainReporter):
    """A bar for the current epoch, a line for each that is done."""

    def __init__(self) -> None:
        self.progress = _Preparing()
        self._bars = ScreenBars(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            TextColumn("{task.completed:.0f}/{task.total:.0f}  loss {task.fields[loss]}"),
            TextColumn("{task.fields[rate]}", style="dim"),
            TimeRemainingColumn(compact=True),
            transient=True,
        )
        self._task = self._bars.add_task("", total=1, loss="", rate="", visible=False)

    def __enter__(self) -> Terminal:
        self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bars.stop()

    def begin(self, options: TrainOptions, batches: int, epoch: int) -> None:
        self._epochs, self._batches = options.epochs, batches
        self._reset(epoch)

    def _reset(self, epoch: int) -> None:
        self._since, self._seeds = time.perf_counter(), 0
        self._bytes: int | None = None
        self._bars.reset(
            self._task,
            description=f"epoch {epoch + 1}/{self._epochs}",
            total=self._batches,
            visible=True,
            loss="",
            rate="",
        )

    def batch(self, epoch: int, batch: int, loss: float, seeds: int, bytes_read: int) -> None:
        self._seeds += seeds
        if self._bytes is None:
            self._bytes = bytes_read
        seconds = max(time.perf_counter() - self._since, 1e-9)
        rate = f"{self._seeds / seconds:,.0f} seeds/s"
        if bytes_read > self._bytes:
            rate += f", {format_size(int((bytes_read - self._bytes) / seconds))}/s read"
        self._bars.update(self._task, completed=batch, loss=f"{loss:.3f}", rate=rate)

    def memory(self, use: MemoryUse) -> None:
        say(
            f"memory: {format_size(use.data_bytes)} data + {format_size(use.model_bytes)} "
            f"model + {format_size(use.runtime_bytes)} runtime = "
            f"{format_size(use.total_bytes)}"
        )

    def epoch(self, result: EpochResult) -> None:
        parts = [f"epoch {result.epoch + 1:>3}", f"loss {result.loss:.4f}"]
        for name in ("val", "test"):
            value = getattr(result, name)
            if value is not None:
                parts.append(f"{name} {value:.4f}")
        say("  ".join([*parts, f"{result.seconds:.1f} s"]))
        self._reset(result.epoch + 1)

    def end(self, result: FitResult) -> None:
        if result.stopped_early:
            say("stopped early: no better validation for a while")
        if result.best_epoch is not None:
            test = "" if result.test is None else f", test {result.test:.4f}"
            say(f"best: epoch {result.best_epoch + 1}, val {result.val:.4f}{test}")
