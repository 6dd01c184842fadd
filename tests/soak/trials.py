"""Trials: work in forked processes, some at a time -> what came of each; a hang is an outcome.

The parent has imported everything and started nothing, so that a trial costs milliseconds.
"""

from __future__ import annotations

import json
import os
import select
import signal
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field

_POLL_SECONDS = 0.005
_LONGEST_PROBLEM = 4000


@dataclass(frozen=True)
class Trial:
    """One piece of work: it counts what it did, and raises where a promise is broken."""

    name: str
    work: Callable[[], dict[str, int]]


@dataclass
class Figures:
    """What all trials of a part counted."""

    trials: int = 0
    hangs: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)
    """Of trials that broke a promise, crashed or hung."""


@dataclass
class _Running:
    trial: Trial
    pipe: int
    deadline: float
    said: bytes = b""


def run_trials(trials: Iterable[Trial], jobs: int, seconds: float) -> Figures:
    """At most `jobs` at a time; one that takes longer than `seconds` hangs, and is killed."""
    figures = Figures()
    waiting = iter(trials)
    running: dict[int, _Running] = {}
    more = True
    while more or running:
        while more and len(running) < jobs:
            trial = next(waiting, None)
            if trial is None:
                more = False
                break
            running |= _start(trial, seconds)
        _take_ended(running, figures)
        time.sleep(_POLL_SECONDS)
    return figures


def _start(trial: Trial, seconds: float) -> dict[int, _Running]:
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reading)
        os.setsid()  # so that what a trial leaves running ends with it
        os._exit(_report(trial, writing))
    os.close(writing)
    return {pid: _Running(trial, reading, time.monotonic() + seconds)}


def _report(trial: Trial, pipe: int) -> int:
    counts: dict[str, int] = {}
    problem = None
    try:
        sys.stdout = sys.stderr = open(os.devnull, "w")
        counts = trial.work()
    except BaseException:
        problem = traceback.format_exc()[-_LONGEST_PROBLEM:]
    os.write(pipe, json.dumps({"counts": counts, "problem": problem}).encode())
    return 0


def _take_ended(running: dict[int, _Running], figures: Figures) -> None:
    for pid, one in list(running.items()):
        while select.select([one.pipe], [], [], 0)[0] and (piece := os.read(one.pipe, 65536)):
            one.said += piece
        ended, status = os.waitpid(pid, os.WNOHANG)
        hangs = not ended and time.monotonic() > one.deadline
        if not ended and not hangs:
            continue
        _kill_group(pid)
        if hangs:
            os.waitpid(pid, 0)
        while piece := os.read(one.pipe, 65536):
            one.said += piece
        os.close(one.pipe)
        del running[pid]
        _count(figures, one, status, hangs)


def _kill_group(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)


def _count(figures: Figures, one: _Running, status: int, hangs: bool) -> None:
    figures.trials += 1
    if hangs:
        figures.hangs += 1
        figures.problems.append(f"{one.trial.name}: hung")
        return
    if not one.said:
        figures.problems.append(f"{one.trial.name}: ended with status {status}, without a word")
        return
    said = json.loads(one.said)
    figures.counts.update(said["counts"])
    if said["problem"]:
        figures.problems.append(f"{one.trial.name}: {said['problem']}")


def run_and_kill(work: Callable[[], None], seconds: float) -> bool:
    """`work` in a child that is killed after so long -> whether it was killed before its end.

    AssertionError where it failed by itself.
    """
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            work()
            status = 0
        finally:
            os._exit(status)
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            assert status == 0, f"ended with status {status} before it was killed"
            return False
        time.sleep(min(_POLL_SECONDS / 5, max(deadline - time.monotonic(), 0)))
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return True
