"""Trials of a target: some inputs in one process -> how many were refused, or what was wrong."""

from __future__ import annotations

import os
import random
import resource
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from outcrop.errors import OutcropError
from outcrop.observe.record import rss_bytes
from tests.fuzz.targets import TARGETS
from tests.soak.trials import Trial

INPUTS_PER_TRIAL = 500
_MOST_PROBLEMS = 3
# An input is a few kB. What takes longer or more was led to by it.
_MOST_CPU_SECONDS = 10.0
_MOST_BYTES = 256 << 20
_MOST_ADDRESSES = 4 << 30
# A file that is not there, or may not be read, is told by the built-in error.
_DOCUMENTED = (FileNotFoundError, PermissionError, IsADirectoryError, NotADirectoryError)

Trials = Callable[[Path, int, int], Iterator[Trial]]


def trials_of(name: str) -> Trials:
    def trials(folder: Path, count: int, seed: int) -> Iterator[Trial]:
        for first in range(0, count, INPUTS_PER_TRIAL):
            numbers = range(first, min(first + INPUTS_PER_TRIAL, count))
            own = folder / f"{name}-{first}"
            own.mkdir()
            yield Trial(f"fuzz {name} {numbers}", partial(try_inputs, name, own, numbers, seed))

    return trials


def try_inputs(name: str, folder: Path, numbers: range, seed: int) -> dict[str, int]:
    """Raises where anything came out that the package does not raise on purpose."""
    warnings.simplefilter("ignore")
    try_one = TARGETS[name](folder)
    _limit_memory()
    refused, problems = 0, []
    for number in numbers:
        rng = random.Random(f"{name} {seed} {number}")
        start, memory = time.process_time(), rss_bytes()
        try:
            try_one(rng)
        except (OutcropError, *_DOCUMENTED):
            refused += 1
        except Exception:
            problems.append(f"input {number}: {traceback.format_exc(limit=-6)}")
        took, grown = time.process_time() - start, rss_bytes() - memory
        if took > _MOST_CPU_SECONDS or grown > _MOST_BYTES:
            problems.append(f"input {number}: took {took:.1f} s and {grown} B")
        if len(problems) == _MOST_PROBLEMS:
            break
    if problems:
        raise AssertionError("\n".join(problems))
    return {"inputs": len(numbers), "refused": refused, "bare exceptions": 0}


def _limit_memory() -> None:
    """What is allocated without being touched shows as a MemoryError."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * os.sysconf("SC_PAGESIZE") + _MOST_ADDRESSES
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
