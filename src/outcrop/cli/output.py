"""What commands share: tables, JSON, progress, and errors that end a command."""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import typer
from rich.console import Console
from rich.progress import BarColumn, ProgressColumn, Task, TaskID, TextColumn, TimeRemainingColumn
from rich.progress import Progress as RichBars
from rich.table import Table
from rich.text import Text

from outcrop.errors import OptionError, OutcropError
from outcrop.options import format_size
from outcrop.progress import Progress
from outcrop.store.format import Manifest

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")

stdout = Console(highlight=False)
stderr = Console(stderr=True, highlight=False)
_drawn: list[RichBars] = []
"""Bars that are on the terminal now, on stderr."""


def guarded(command: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """The command, with errors as one line on stderr and an exit status instead of a traceback.

    1: it failed. 2: it was asked for something impossible. 130: it was interrupted. An error that
    nobody foresaw is raised where the environment has OUTCROP_DEBUG, for its traceback.
    """

    @functools.wraps(command)
    def run(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
        try:
            return command(*args, **kwargs)
        except KeyboardInterrupt:
            stderr.print("Interrupted; nothing half-made is left.")
            raise typer.Exit(130) from None
        except typer.Exit:
            raise
        except (OutcropError, OSError) as error:
            _print_error(_message(error))
            raise typer.Exit(2 if isinstance(error, OptionError) else 1) from error
        except Exception as error:
            if os.environ.get("OUTCROP_DEBUG"):
                raise
            _print_error(
                f"{type(error).__name__}: {error} (a mistake in Outcrop; please report it, with "
                "the traceback that OUTCROP_DEBUG=1 shows)"
            )
            raise typer.Exit(1) from error

    return run


def _print_error(message: str) -> None:
    stderr.print(Text.assemble(("Error: ", "bold red"), message), soft_wrap=True)


def _message(error: Exception) -> str:
    if isinstance(error, OSError) and not isinstance(error, OutcropError):
        return f"{error.filename}: {error.strerror}" if error.filename else str(error)
    return str(error)


def say(text: str, style: str | None = None) -> None:
    """A line on stdout, as long as it is: paths and messages are for copying."""
    # The console that draws bars writes above them; another would write over them.
    console = stderr if _drawn and stdout.is_terminal else stdout
    console.print(text, style=style, soft_wrap=True, markup=False)


def say_made(path: Path, manifest: Manifest) -> None:
    """What a command has made."""
    size = sum(entry.file_bytes for entry in manifest.arrays.values())
    say(f"{path}: {manifest.num_nodes:,} nodes, {manifest.num_edges:,} edges, {format_size(size)}")


def print_json(values: Any) -> None:
    print(json.dumps(values, indent=2))


def print_facts(facts: dict[str, str]) -> None:
    """Names and values in two columns."""
    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_column(style="dim")
    table.add_column(overflow="fold")
    for name, value in facts.items():
        table.add_row(name, Text(value))  # a Text, since paths such as a[b] are no markup
    stdout.print(table)


class ScreenBars(RichBars):
    """Bars on stderr; what `say` says meanwhile stands above them."""

    def __init__(self, *columns: ProgressColumn, transient: bool = False) -> None:
        super().__init__(*columns, console=stderr, transient=transient)

    def start(self) -> None:
        super().start()
        _drawn.append(self)

    def stop(self) -> None:
        super().stop()
        _drawn[:] = [bars for bars in _drawn if bars is not self]


class Bars(Progress):
    """Progress, drawn: a line per stage with amount, rate and time left."""

    def __init__(self) -> None:
        self._bars = ScreenBars(
            TextColumn("{task.description:<13}"),
            BarColumn(bar_width=20),
            _Amount(),
            _Rate(),
            TimeRemainingColumn(compact=True, elapsed_when_finished=True),
        )
        self._task: TaskID | None = None

    def stage(self, name: str, total: int | None = None, unit: str = "B") -> None:
        self._finish()
        self._task = self._bars.add_task(name, total=total, unit=unit)

    def advance(self, amount: int) -> None:
        if self._task is not None:
            self._bars.advance(self._task, amount)

    def note(self, text: str) -> None:
        self._bars.console.print(text, soft_wrap=True, markup=False)

    def _finish(self) -> None:
        if self._task is not None:
            done = self._bars.tasks[self._task].completed
            self._bars.update(self._task, total=done)

    def __enter__(self) -> Bars:
        self._bars.start()
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if error is None:
            self._finish()
        self._bars.stop()


def _quantity(amount: float, unit: str) -> str:
    if unit == "B":
        return format_size(int(amount))
    for limit, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if amount >= limit:
            return f"{amount / limit:.1f}{letter} {unit}"
    return f"{amount:.0f} {unit}"


class _Amount(ProgressColumn):
    def render(self, task: Task) -> Text:
        return Text(_quantity(task.completed, task.fields["unit"]).rjust(12))


class _Rate(ProgressColumn):
    def render(self, task: Task) -> Text:
        speed = task.finished_speed or task.speed
        text = "" if speed is None else _quantity(speed, task.fields["unit"]) + "/s"
        return Text(text.rjust(14), style="dim")
