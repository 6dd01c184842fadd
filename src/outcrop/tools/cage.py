"""A memory cage: a command under a hard limit, page cache included, as a control group sets it.

A claim about memory counts only inside of one: the kernel, not our own counting, says no.
"""

from __future__ import annotations

import subprocess
import uuid
from collections.abc import Iterator
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


def group_limit_bytes() -> int | None:
    """The smallest memory limit of this process's control groups (v2 or v1), if there is one."""
    limits = []
    for folder, v2 in _own_groups():
        file = "memory.max" if v2 else "memory.limit_in_bytes"
        for parent in (folder, *folder.parents):
            value = _read_number(parent / file)
            if value is not None and value < 1 << 60:  # v1 writes a huge number for none
                limits.append(value)
    return min(limits, default=None)


def group_peak_bytes() -> int | None:
    """The most that this process's control group used, page cache included, where it is told."""
    for folder, v2 in _own_groups():
        peak = _read_number(folder / ("memory.peak" if v2 else "memory.max_usage_in_bytes"))
        if peak is not None:
            return peak
    return None


def _own_groups() -> Iterator[tuple[Path, bool]]:
    """Folders of this process's memory groups, and whether each is of version 2."""
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, group = line.split(":", 2)
        if controllers == "":
            yield _V2 / group.lstrip("/"), True
        elif "memory" in controllers.split(","):
            yield _V1 / group.lstrip("/"), False


def _read_number(path: Path) -> int | None:
    try:
        text = path.read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None
