"""A few inputs per target in `make test`; `python -m tests.soak fuzz` tries thousands."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from tests.fuzz.mutate import altered, altered_bytes
from tests.fuzz.targets import TARGETS
from tests.fuzz.trials import try_inputs
from tests.processes import program, running

_SLOW = {"arrays": 10, "neighbors": 10, "npy": 15, "npz": 25, "edges": 25, "samples": 10,
         "checkpoint": 15}  # fmt: skip
_COUNT = 60


def test_altered_inputs_end_in_errors_of_ours() -> None:
    counts = {name: _SLOW.get(name, _COUNT) for name in TARGETS}
    code = (
        "import sys, tempfile\n"
        "from pathlib import Path\n"
        "from tests.fuzz.trials import trials_of\n"
        "from tests.soak.trials import run_trials\n"
        "with tempfile.TemporaryDirectory() as folder:\n"
        f"    for name, count in {counts}.items():\n"
        "        figures = run_trials(trials_of(name)(Path(folder), count, 1), 1, 100)\n"
        "        print(name, figures.counts['inputs'], *figures.problems)\n"
    )
    with running(program(code)) as process:
        said, errors = process.communicate(timeout=280)
    assert process.returncode == 0, errors
    assert said.splitlines() == [f"{name} {count}" for name, count in counts.items()]


def test_a_bare_exception_is_a_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(folder: Path) -> Any:
        def try_one(rng: random.Random) -> None:
            raise KeyError("shape")

        return try_one

    monkeypatch.setitem(TARGETS, "broken", broken)
    monkeypatch.setattr("tests.fuzz.trials._limit_memory", lambda: None)
    with pytest.raises(AssertionError, match=r"input 0: (?s:.*)KeyError: 'shape'"):
        try_inputs("broken", tmp_path, range(2), seed=0)


def test_mutations_repeat_by_seed_and_leave_the_good_value_alone() -> None:
    good: Any = {"a": [1, {"b": "x"}], "c": None}
    tried = [repr(altered(good, random.Random(seed))) for seed in range(50)]
    assert tried == [repr(altered(good, random.Random(seed))) for seed in range(50)]
    assert good == {"a": [1, {"b": "x"}], "c": None} and len(set(tried)) > 25
    data = [altered_bytes(b"0123456789", random.Random(seed)) for seed in range(50)]
    assert data == [altered_bytes(b"0123456789", random.Random(seed)) for seed in range(50)]
