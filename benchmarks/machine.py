"""Where and from what a benchmark's figures come: machine, commit, command."""

from __future__ import annotations

import argparse
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from outcrop.ingest.synthetic import SynthOptions, synthesise
from outcrop.options import format_size
from outcrop.tools.doctor import diagnose
from outcrop.tools.environment import git, tree_differs, versions


def provenance(path: Path) -> dict[str, str]:
    """The machine, the drive at `path`, the commit and the command line."""
    found = diagnose(path, measure=False)
    return {
        "machine": f"{found.cpus} x {found.cpu}, {format_size(found.memory_bytes)}, {found.system}",
        "drive": f"{found.file_system}, blocks of {found.block_bytes} B",
        "outcrop": f"{found.outcrop}, commit {versions().get('commit', 'unknown')}",
        "command": shlex.join(["python", *sys.argv]),
    }


def add_dirty(parser: argparse.ArgumentParser) -> None:
    """The argument that `check_results` goes by."""
    parser.add_argument(
        "--dirty", action="store_true", help="overwrite tracked results though the tree is changed"
    )


def check_results(*paths: Path, dirty: bool) -> None:
    """Ends the program where results that git tracks would say `+changes`, unless told `dirty`.

    To be called before anything is measured, with the files or folders that will be written.
    """
    for path in paths:
        if not dirty and _tracked(path) and tree_differs(path.parent):
            sys.exit(
                f"{path} is tracked by git, and the working tree differs from its commit: commit "
                "the changes first, or overwrite it nevertheless with --dirty"
            )


def _tracked(path: Path) -> bool:
    try:
        return bool(git(path.parent, "ls-files", "--", path.name))
    except (OSError, subprocess.CalledProcessError):
        return False  # no git, or no checkout


@contextmanager
def quick_store(path: Path | None) -> Iterator[Path]:
    """The store at `path`, or the quick benchmark graph."""
    if path is not None:
        yield path
        return
    yield rmat_store("quick", 4_000_000, 60_000_000)


def rmat_store(
    name: str, nodes: int, edges: int, dim: int = 128, train_fraction: float = 0.01
) -> Path:
    """A benchmark graph in bench-data, made where it is missing."""
    folder = Path("bench-data")
    folder.mkdir(exist_ok=True)
    made = folder / f"{name}.outcrop"
    if not made.exists():
        options = SynthOptions(
            nodes=nodes, edges=edges, dim=dim, classes=16, kind="rmat", rmat=(0.45, 0.22, 0.22),
            train_fraction=train_fraction,
        )  # fmt: skip
        synthesise(made, options, memory=1_500_000_000)
    return made
