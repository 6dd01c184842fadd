"""Record: the code as it is now -> ledger.json and saved.tar.xz.

python -m tests.ledger.record [ledger] [saved]: both, or one of them.
"""

from __future__ import annotations

import json
import logging
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

import outcrop
from tests.ledger.cases import (
    AUTO_MEMORIES,
    CASES,
    DISK,
    GRAPHS,
    Case,
    least_memory,
    make_graph,
    observe,
    observe_auto,
    observe_least,
)
from tests.ledger.saved import save_all

LEDGER = Path(__file__).with_name("ledger.json")
SAVED = Path(__file__).with_name("saved.tar.xz")
# What differs between them is raced.
_RUNS = 3


def record_ledger(folder: Path) -> dict[str, Any]:
    contents = {}
    for name in GRAPHS:
        make_graph(folder / f"{name}.outcrop", name)
        with outcrop.open(folder / f"{name}.outcrop", DISK) as store:
            contents[name] = store.content
    cases = {}
    for case in CASES:
        print(case.name, flush=True)
        cases[case.name] = record_case(folder / f"{case.graph}.outcrop", case)
    wide = folder / "wide.outcrop"
    auto = {memory: observe_auto(wide, memory) for memory in AUTO_MEMORIES}
    return {"graphs": contents, "cases": cases, "auto": auto}


def record_case(path: Path, case: Case) -> dict[str, Any]:
    least = least_memory(path, case)
    seen = [observe(path, case, case.memory(least)) for _ in range(_RUNS)]
    flat = [dict(numbers(one)) for one in seen]
    for other in seen[1:]:
        assert other["digests"] == seen[0]["digests"], f"{case.name}: batches differ"
        assert other["layouts"] == seen[0]["layouts"], f"{case.name}: layouts differ"
    raced = {}
    for place in flat[0]:
        found = [one.get(place, 0) for one in flat]
        if len(set(found)) > 1:
            close = max(found) <= case.limit(place, min(found))
            assert case.raced or close, f"{case.name}: {place} differs from run to run: {found}"
            raced[place] = [min(found), max(found)]
    first = observe_least(path, case, least)
    return {"least": least, "least_digest": first, **seen[0], "raced": raced}


def numbers(value: Any, place: str = "") -> Iterator[tuple[str, int]]:
    """Every number in plain values, by the way to it."""
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from numbers(inner, f"{place}.{name}" if place else name)
    elif isinstance(value, list):
        for number, inner in enumerate(value):
            yield from numbers(inner, f"{place}.{number}")
    elif isinstance(value, int):
        yield place, value


def as_lines(ledger: dict[str, Any]) -> str:
    """JSON with a line for each case, so that a difference shows which."""
    parts = []
    for name, entries in ledger.items():
        lines = [f"{json.dumps(entry)}: {json.dumps(entries[entry])}" for entry in entries]
        parts.append(f"{json.dumps(name)}: {{\n" + ",\n".join(lines) + "\n}")
    return "{\n" + ",\n".join(parts) + "\n}\n"


def main(parts: list[str]) -> None:
    logging.disable(logging.WARNING)  # epochs that are not prepared say so
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as at:
        if not parts or "ledger" in parts:
            LEDGER.write_text(as_lines(record_ledger(Path(at))))
        if not parts or "saved" in parts:
            save_all(Path(at) / "saved", SAVED)
            print(f"{SAVED.name}: {SAVED.stat().st_size} bytes")


if __name__ == "__main__":
    main(sys.argv[1:])
