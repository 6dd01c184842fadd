"""python -m tests.soak kills faults leaks fuzz: long random trials, and their figures.

    python -m tests.soak kills --count 300 --jobs 2
    python -m tests.soak fuzz --count 10000         each target so often; or one, fuzz:manifest
    python -m tests.soak kills faults leaks --jobs 16 --results benchmarks/results/reliability.md

Exit status 1 where a promise was broken: what happened is printed, with the seed that repeats it.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

from outcrop.tools.environment import machine_facts, now, versions
from tests.fuzz.targets import TARGETS
from tests.fuzz.trials import trials_of
from tests.soak import faults, kills, leaks
from tests.soak.trials import Figures, run_trials

_FUZZ = {f"fuzz:{name}": trials_of(name) for name in TARGETS}
_PARTS = {"kills": kills.trials, "faults": faults.trials, "leaks": leaks.trials, **_FUZZ}
_COUNTS = {"kills": 300, "faults": 1000, "leaks": 2000, **dict.fromkeys(_FUZZ, 10_000)}
_SECONDS = {"kills": 600.0, "faults": 120.0, "leaks": 3000.0, **dict.fromkeys(_FUZZ, 1800.0)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", default=list(_PARTS), help=", ".join(_PARTS))
    parser.add_argument(
        "--count", type=int, default=None, help=f"trials (epochs for leaks); {_COUNTS}"
    )
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--results", type=Path, default=None, help="a file for the table")
    given = parser.parse_args()
    lines = []
    broken = 0
    for part in _chosen(given.parts):
        start = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="outcrop-soak-") as folder:
            count = given.count or _COUNTS[part]
            trials = _PARTS[part](Path(folder), count, given.seed)
            figures = run_trials(trials, given.jobs, _SECONDS[part])
        for problem in figures.problems:
            print(f"BROKEN ({part}, seed {given.seed}): {problem}", file=sys.stderr)
        broken += len(figures.problems)
        lines.append(_row(part, figures, time.monotonic() - start))
        print(lines[-1], flush=True)
    if given.results is not None:
        given.results.write_text(_page(lines))
    return 1 if broken else 0


def _chosen(parts: list[str]) -> list[str]:
    """Names of parts, where "fuzz" stands for all of its targets."""
    return [name for part in parts for name in (_FUZZ if part == "fuzz" else [part])]


def _row(part: str, figures: Figures, seconds: float) -> str:
    counted = ", ".join(f"{count:,} {what}" for what, count in sorted(figures.counts.items()))
    return (
        f"| {part} | {figures.trials:,} | {counted} | {figures.hangs} | {len(figures.problems)} "
        f"| {seconds:.0f} |"
    )


def _page(lines: list[str]) -> str:
    machine, found = machine_facts(Path()), versions()
    facts = {
        "machine": ", ".join(f"{name} {value}" for name, value in machine.items()),
        "versions": ", ".join(f"{name} {value}" for name, value in found.items()),
        "made": now(),
        "command": f"python -m tests.soak {' '.join(sys.argv[1:])}",
    }
    return "\n".join(
        [
            "# Reliability",
            "",
            *(f"- {name}: {value}" for name, value in facts.items()),
            "",
            "| part | trials | what they did | hangs | promises broken | seconds |",
            "|---|--:|---|--:|--:|--:|",
            *lines,
            "",
        ]
    )


if __name__ == "__main__":
    sys.exit(main())
