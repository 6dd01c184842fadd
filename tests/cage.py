"""A memory cage: a command under a hard limit, page cache included, as a control group sets it."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from dataclasses import dataclass
from pathlib import Path

import pytest


@dataclass(frozen=True)
class Caged:
    """How a caged command ended."""

    returncode: int
    peak_bytes: int
    output: str


def run_caged(command: list[str], limit_bytes: int) -> Caged:
    """Runs the command; skips the test where this process may not make control groups."""
    v1 = Path("/sys/fs/cgroup/memory")
    root = v1 if v1.is_dir() else Path("/sys/fs/cgroup")
    group = root / f"outcrop-test-{uuid.uuid4().hex[:8]}"
    try:
        group.mkdir()
        if root == v1:
            (group / "memory.limit_in_bytes").write_text(str(limit_bytes))
        else:
            (group / "memory.max").write_text(str(limit_bytes))
            (group / "memory.swap.max").write_text("0")
    except OSError as error:
        if group.exists():
            group.rmdir()
        pytest.skip(f"cannot make a memory control group: {error}")
    try:
        # The command enters the group itself before it begins.
        enter = f'echo $$ > {group}/cgroup.procs && exec "$@"'
        done = subprocess.run(
            ["sh", "-c", enter, "sh", *command],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        peak = group / ("memory.max_usage_in_bytes" if root == v1 else "memory.peak")
        return Caged(done.returncode, int(peak.read_text()), done.stdout)
    finally:
        group.rmdir()


OUTCROP = [str(Path(sys.executable).parent / "outcrop")]
"""The command line of this environment."""

assert os.access(OUTCROP[0], os.X_OK)
