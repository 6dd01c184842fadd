"""A memory cage: a command under a hard limit, page cache included, as a control group sets it.

A claim about memory counts only inside of one: the kernel, not our own counting, says no.
"""

from __future__ import annotations

import subprocess
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from outcrop.errors import CageError

_V1 = Path("/sys/fs/cgroup/memory")
_V2 = Path("/sys/fs/cgroup")


@dataclass(frozen=True)
class Caged:
    """How a caged command ended."""

    returncode: int
    """137 or -9 where the kernel killed it for memory."""
    peak_bytes: int
    """The most that the group used, page cache included."""
    output: str
    """stdout and stderr, unless they were given."""


def run_caged(
    command: list[str], limit_bytes: int, stdout: IO[str] | None = None, cwd: Path | None = None
) -> Caged:
    """Runs the command; CageError where this process may not make control groups."""
    group = _make_group(limit_bytes)
    try:
        # The command enters the group itself before it begins.
        enter = f'echo $$ > {group}/cgroup.procs && exec "$@"'
        done = subprocess.run(
            ["sh", "-c", enter, "sh", *command],
            stdout=stdout or subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=cwd,
        )
        peak = group / ("memory.max_usage_in_bytes" if _V1.is_dir() else "memory.peak")
        return Caged(done.returncode, int(peak.read_text()), done.stdout or "")
    finally:
        group.rmdir()


def _make_group(limit_bytes: int) -> Path:
    group = (_V1 if _V1.is_dir() else _V2) / f"outcrop-{uuid.uuid4().hex[:8]}"
    try:
        group.mkdir()
        if _V1.is_dir():
            (group / "memory.limit_in_bytes").write_text(str(limit_bytes))
        else:
            (group / "memory.max").write_text(str(limit_bytes))
            (group / "memory.swap.max").write_text("0")
    except OSError as error:
        if group.is_dir():
            group.rmdir()
        raise CageError(f"cannot make a memory control group: {error}") from error
    return group
