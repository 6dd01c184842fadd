"""The drive's own rates, by fio, in the same run as what is compared with them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from outcrop.tools.doctor import diagnose

_LEAST_BYTES = 16 << 20  # below it the drive's own cache answers


@dataclass(frozen=True)
class DriveRates:
    """What a drive can do."""

    source: str
    """ "fio 3.33", or "outcrop doctor" where there is no fio."""
    random_reads_per_second: float
    """4 KiB, depth 128."""
    sequential_bytes_per_second: float
    """1 MiB, depth 8."""


def measure_drive(path: Path, seconds: float = 3.0) -> DriveRates:
    """Reads a file directly, at random and in sequence; rates are 0 where it is too small."""
    if path.stat().st_size < _LEAST_BYTES:
        return DriveRates("not measured: the file is too small", 0.0, 0.0)
    if shutil.which("fio") is None:
        found = diagnose(path.parent)
        return DriveRates(
            "outcrop doctor",
            found.random_reads_per_second or 0.0,
            found.sequential_bytes_per_second or 0.0,
        )
    version = subprocess.run(["fio", "--version"], capture_output=True, text=True).stdout.strip()
    random = run_fio(path, "randread", block_bytes=4096, depth=128, seconds=seconds)
    sequential = run_fio(path, "read", block_bytes=1 << 20, depth=8, seconds=seconds)
    return DriveRates(version.replace("-", " "), random["iops"], sequential["bw_bytes"])


def run_fio(
    path: Path, pattern: str, *, block_bytes: int, depth: int, seconds: float
) -> dict[str, Any]:
    """fio on a file, direct, with io_uring -> the "read" part of its report."""
    command = [
        "fio", "--name=r", f"--filename={path}", f"--rw={pattern}", f"--bs={block_bytes}",
        f"--iodepth={depth}", "--ioengine=io_uring", "--direct=1", "--readonly", "--time_based",
        f"--runtime={seconds}", "--output-format=json", "--norandommap", "--randrepeat=0",
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    read: dict[str, Any] = json.loads(done.stdout)["jobs"][0]["read"]
    return read


def forget(path: Path) -> None:
    """A folder's files leave the page cache, as far as nobody else has them mapped."""
    for file in path.rglob("*"):
        if file.is_file():
            with file.open("rb") as opened:
                os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
