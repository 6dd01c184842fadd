"""Where and from what a benchmark's figures come: machine, commit, command."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from outcrop.doctor import diagnose
from outcrop.environment import versions
from outcrop.ingest.synthetic import SynthOptions, synthesise
from outcrop.options import format_size


def provenance(path: Path) -> dict[str, str]:
    """The machine, the drive at `path`, the commit and the command line."""
    found = diagnose(path, measure=False)
    return {
        "machine": f"{found.cpus} x {found.cpu}, {format_size(found.memory_bytes)}, {found.system}",
        "drive": f"{found.file_system}, blocks of {found.block_bytes} B",
        "outcrop": f"{found.outcrop}, commit {versions().get('commit', 'unknown')}",
        "command": shlex.join(["python", *sys.argv]),
    }


@contextmanager
def quick_store(path: Path | None) -> Iterator[Path]:
    """The store at `path`, or the quick benchmark graph."""
    if path is not None:
        yield path
        return
    yield rmat_store("quick", 4_000_000, 60_000_000)


def rmat_store(name: str, nodes: int, edges: int, dim: int = 128) -> Path:
    """A benchmark graph in bench-data, made where it is missing."""
    folder = Path("bench-data")
    folder.mkdir(exist_ok=True)
    made = folder / f"{name}.outcrop"
    if not made.exists():
        options = SynthOptions(
            nodes=nodes, edges=edges, dim=dim, classes=16, kind="rmat", rmat=(0.45, 0.22, 0.22)
        )
        synthesise(made, options, memory=1_500_000_000)
    return made
