"""Load: a folder, or files -> the records of runs, and the summary of a benchmark."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from outcrop.errors import StoreError
from outcrop.observe.record import RECORD_FORMAT, read_json
from outcrop.tools.report.model import BENCH_FORMAT, parse_bench, parse_run


@dataclass
class Loaded:
    """Checked, and as they are in the files."""

    records: dict[str, dict[str, Any]] = field(default_factory=dict)
    """By file name."""
    bench: dict[str, Any] | None = None


def load(paths: Path | Sequence[Path]) -> Loaded:
    """From a folder, takes what is Outcrop's; a file that is named must be.

    StoreError where one is broken, of another version, or where there is none.
    """
    loaded = Loaded()
    for path in [paths] if isinstance(paths, Path) else paths:
        if path.is_dir():
            for file in sorted(path.glob("*.json")):
                _add(loaded, file, named=False)
        else:
            _add(loaded, path, named=True)
    if not loaded.records and loaded.bench is None:
        where = paths if isinstance(paths, Path) else ", ".join(map(str, paths))
        raise StoreError(
            f"{where}: no records here; outcrop train --record and outcrop bench write them"
        )
    return loaded


def _add(loaded: Loaded, path: Path, *, named: bool) -> None:
    values = read_json(path)
    form = values.get("format") if isinstance(values, dict) else None
    if form == BENCH_FORMAT:
        if loaded.bench is not None:
            raise StoreError(f"{path}: a second benchmark; a report shows one")
        parse_bench(values, str(path))
        loaded.bench = values
    elif form == RECORD_FORMAT:
        if path.name in loaded.records:
            raise StoreError(f"{path}: a second record of this name")
        parse_run(values, str(path))
        loaded.records[path.name] = values
    elif named:
        raise StoreError(f"{path}: neither a record nor a benchmark of Outcrop")
