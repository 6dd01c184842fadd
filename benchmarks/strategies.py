"""Strategies side by side on the two benchmark graphs: `quick` and `standard`.

Both are R-MAT 0.45/0.22/0.22/0.11, relabelled at random, with 128 float32 dimensions, 1 % training
nodes, fanouts 10,10,10 and batches of 1000. Writes records and summary into
benchmarks/results/NAME/; `outcrop report` makes a page of them.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass
from pathlib import Path

from machine import add_dirty, check_results, rmat_store
from outcrop.cli.app import app

RESULTS = Path("benchmarks/results")
_STRATEGIES = (
    "memory,mmap,direct,pagraph,ginex:policy=static,ginex,ginex:mode=split,"
    "gnndrive,gnndrive:reuse=lru,gnndrive:topology=mmap,gnndrive:x=slots,diskgnn"
)


@dataclass(frozen=True)
class Setting:
    """A graph, the memory, and how it is measured."""

    nodes: int
    edges: int
    cache: str
    """Memory for caches, of the features."""
    cage: str
    batches: int
    flags: tuple[str, ...] = ()


SETTINGS = {
    # Slow baselines are timed on fewer batches and scaled: the table says so.
    # 8 % of the features for caches is what the cage of quick leaves beside torch and two batches.
    "quick": Setting(4_000_000, 60_000_000, "8%", "1GB", 40, ("--slow", "mmap")),
    "standard": Setting(20_000_000, 300_000_000, "10%", "2.5GB", 60, ("--slow", "mmap,direct")),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", choices=SETTINGS)
    parser.add_argument("--strategies", default=_STRATEGIES)
    parser.add_argument("--repeat", default="3")
    add_dirty(parser)
    arguments = parser.parse_args()
    setting = SETTINGS[arguments.name]
    out = RESULTS / arguments.name
    check_results(out, dirty=arguments.dirty)
    for old in out.glob("*.json"):
        old.unlink()
    store = rmat_store(arguments.name, setting.nodes, setting.edges)
    sys.argv = [
        "outcrop", "bench", str(store), "--strategies", arguments.strategies,
        "--cache", setting.cache, "--cage", setting.cage,
        "--batches", str(setting.batches), "--repeat", arguments.repeat,
        "--no-report", "--out", str(out), *setting.flags,
    ]  # fmt: skip
    app()


if __name__ == "__main__":
    main()
