"""The parts of a soak run, a few trials each: what they promise to find, they can find."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator

import pytest

from tests.processes import program, running
from tests.soak.trials import Trial, run_trials


@pytest.mark.parametrize("part", ["kills", "faults"])
def test_a_few_trials_break_no_promise(part: str) -> None:
    code = "import sys; from tests.soak.__main__ import main; sys.exit(main())"
    with running([*program(code), part, "--count", "3"]) as process:
        said, errors = process.communicate(timeout=200)
    assert process.returncode == 0, errors
    assert f"| {part} | 3 |" in said


def _hang() -> dict[str, int]:
    time.sleep(60)
    return {}


def _crash() -> dict[str, int]:
    os.kill(os.getpid(), signal.SIGKILL)
    return {}


def _break() -> dict[str, int]:
    raise AssertionError("other batches")


def _work() -> dict[str, int]:
    return {"things done": 2}


def test_hangs_crashes_and_broken_promises_are_told_apart() -> None:
    def trials() -> Iterator[Trial]:
        works: dict[str, Callable[[], dict[str, int]]]
        works = {"hang": _hang, "crash": _crash, "break": _break, "one": _work, "two": _work}
        for name, work in works.items():
            yield Trial(name, work)

    figures = run_trials(trials(), jobs=3, seconds=2)
    assert (figures.trials, figures.hangs, figures.counts["things done"]) == (5, 1, 4)
    said = {problem.partition(":")[0]: problem for problem in figures.problems}
    assert set(said) == {"hang", "crash", "break"}
    assert "other batches" in said["break"] and "status" in said["crash"]
