"""outcrop doctor: what this machine and this path can do."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from outcrop.cli.arguments import Json
from outcrop.cli.output import print_facts, print_json, stdout
from outcrop.options import format_size
from outcrop.tools.doctor import Diagnosis, diagnose


def doctor(
    path: Annotated[Path, typer.Argument(help="A store, a file or a directory.")] = Path(),
    as_json: Json = False,
) -> None:
    """Look at CPU, memory, GPU, io_uring and the drive; say what to do about each problem.

    Reads a store's largest file, or a temporary file of 256 MB in the directory.

    Example: outcrop doctor /mnt/nvme
    """
    found = diagnose(path)
    if as_json:
        print_json(found.to_json())
        return
    print_facts(_facts(found))
    for advice in found.advice:
        stdout.print(Text.assemble(("\n! ", "yellow"), f"{advice.problem}\n  {advice.remedy}"))
    if not found.advice:
        stdout.print("\nNo problems found.", style="green")


def _facts(found: Diagnosis) -> dict[str, str]:
    limit = found.memory_limit_bytes
    uring = "not compiled in"
    if found.io_uring_compiled:
        uring = "yes" if found.io_uring_refusal is None else f"denied: {found.io_uring_refusal}"
    facts = {
        "outcrop": found.outcrop,
        "python": found.python,
        **{name: version or "not installed" for name, version in found.versions.items()},
        "system": found.system,
        "cpu": f"{found.cpus} x {found.cpu}",
        "memory": format_size(found.memory_bytes)
        + (f", limited to {format_size(limit)}" if limit is not None else ""),
        "gpu": ", ".join(found.gpus) or "none",
        "io_uring": uring,
        "path": f"{found.path} ({found.file_system}, {format_size(found.free_bytes)} free)",
        "O_DIRECT": f"yes, blocks of {found.block_bytes} B" if found.direct else "no",
        "engine": found.engine,
    }
    if found.random_reads_per_second is None:
        facts["speed"] = "not measured: too few bytes here"
    else:
        facts["random reads"] = f"{found.random_reads_per_second:,.0f} of 4 KiB per second"
    if found.sequential_bytes_per_second is not None:
        facts["in sequence"] = f"{format_size(int(found.sequential_bytes_per_second))}/s"
    return facts
