"""Progress on the terminal: lines stand above the bar, never on it."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from outcrop.cli import output
from outcrop.cli.train_progress import Terminal
from outcrop.train.memory import MemoryUse
from outcrop.train.options import TrainOptions


def screen_of(monkeypatch: pytest.MonkeyPatch, *, stdout_is_terminal: bool) -> list[io.StringIO]:
    """What a run of training writes: to the terminal, and to stdout where that is a file."""
    terminal, file = io.StringIO(), io.StringIO()
    shown = Console(file=terminal, force_terminal=True, width=100, highlight=False)
    monkeypatch.setattr(output, "stderr", shown)
    told = terminal if stdout_is_terminal else file
    console = Console(file=told, force_terminal=stdout_is_terminal, width=100, highlight=False)
    monkeypatch.setattr(output, "stdout", console)
    with Terminal() as reporter:
        reporter.progress.stage("trace", 3, "batches")
        reporter.begin(TrainOptions(epochs=2), batches=10, epoch=0)
        reporter.batch(0, 3, 1.5, 100, 0)
        reporter.memory(MemoryUse(1, 2, 3))
    return [terminal, file]


def test_lines_stand_above_the_bar_and_not_on_it(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal, _ = screen_of(monkeypatch, stdout_is_terminal=True)
    for line in ("preparing: trace", "memory: "):
        before, found, after = terminal.getvalue().partition(line)
        assert found and before.endswith(("\x1b[2K", "\n", "\x1b[?25l"))
        assert after.split("\n")[0].strip()
    assert "3/10" in terminal.getvalue()


def test_lines_go_to_a_file_where_stdout_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal, file = screen_of(monkeypatch, stdout_is_terminal=False)
    assert [line.split(":")[0] for line in file.getvalue().splitlines()] == ["preparing", "memory"]
    assert "memory:" not in terminal.getvalue() and "3/10" in terminal.getvalue()


def test_no_bar_is_drawn_before_there_is_an_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal, _ = screen_of(monkeypatch, stdout_is_terminal=True)
    before, _, _ = terminal.getvalue().partition("epoch 1/2")
    assert "loss" not in before
