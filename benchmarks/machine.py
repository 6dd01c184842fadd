"""Where and from what a benchmark's figures come: machine, commit, command."""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from outcrop.doctor import diagnose
from outcrop.ingest.synthetic import SynthOptions, synthesise
from outcrop.options import format_size


def provenance(path: Path) -> dict[str, str]:
    """The machine, the drive at `path`, the commit and the command line."""
    found = diagnose(path, measure=False)
    return {
        "machine": f"{found.cpus} x {found.cpu}, {format_size(found.memory_bytes)}, {found.system}",
        "drive": f"{found.file_system}, blocks of {found.block_bytes} B",
        "outcrop": f"{found.outcrop}, commit {commit()}",
        "command": shlex.join(["python", *sys.argv]),
    }


def commit() -> str:
    """The commit at hand, marked where the working tree differs from it."""
    try:
        head = _git("rev-parse", "--short", "HEAD")
        return head + ("+changes" if _git("status", "--porcelain", "--untracked-files=no") else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def _git(*arguments: str) -> str:
    done = subprocess.run(
        ["git", *arguments],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).parent,
    )
    return done.stdout.strip()


@contextmanager
def quick_store(path: Path | None) -> Iterator[Path]:
    """The store at `path`, or the quick benchmark graph in bench-data, made where it is missing."""
    if path is not None:
        yield path
        return
    folder = Path("bench-data")
    folder.mkdir(exist_ok=True)
    made = folder / "quick.outcrop"
    if not made.exists():
        options = SynthOptions(
            nodes=4_000_000, edges=60_000_000, dim=128, classes=16, kind="rmat",
            rmat=(0.45, 0.22, 0.22),
        )  # fmt: skip
        synthesise(made, options, memory=2_000_000_000)
    yield made
