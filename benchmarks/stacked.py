"""What tiers above their own rows give every strategy: a cache on the device, and one in memory.

    python benchmarks/stacked.py --device cuda

Strategies in turn, some rounds; nothing is computed on the batches, and no page is dropped. Seconds
are those of a whole epoch; preparation is what making the loader takes, the first time. With
--device cpu the same code runs without a GPU, where a cache on the device saves nothing. Writes
stacked.md into --out.
"""

from __future__ import annotations

import argparse
import statistics
import time
from dataclasses import dataclass, field
from pathlib import Path

import torch

from machine import add_dirty, check_results, provenance, rmat_store
from outcrop.loader import NeighborLoader
from outcrop.observe.record import EpochRecord
from outcrop.options import format_size
from outcrop.store.store import GraphStore

RESULTS = Path(__file__).parent / "results"
STRATEGIES = (
    "direct,direct:device_cache={size},direct:cache={half},ginex,ginex:device_cache={size},"
    "gnndrive,gnndrive:device_cache={size},diskgnn,diskgnn:device_cache={size}"
)


@dataclass
class Measured:
    """One strategy, in all rounds."""

    seconds: list[float] = field(default_factory=list)
    prepare_seconds: list[float] = field(default_factory=list)
    epoch: EpochRecord | None = None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=4_000_000)
    parser.add_argument("--edges", type=int, default=60_000_000)
    parser.add_argument("--memory", default="1500MB")
    parser.add_argument("--size", default="1GB", help="of the cache on the device")
    parser.add_argument("--half", default="500MB", help="of the cache in memory")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--batches", type=int, default=40)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--strategies", default=STRATEGIES)
    parser.add_argument("--out", type=Path, default=RESULTS)
    add_dirty(parser)
    given = parser.parse_args()
    check_results(given.out / "stacked.md", dirty=given.dirty)
    path = rmat_store(f"stacked-{given.nodes}", given.nodes, given.edges)
    names = given.strategies.format(size=given.size, half=given.half).split(",")
    found = {name: Measured() for name in names}
    with GraphStore(path) as store:
        for _ in range(given.rounds):
            for name in names:
                measure(store, name, found[name], given)
                print(name, found[name].seconds[-1], flush=True)
        text = "\n".join([*heading(store, given), *(row(name, found[name]) for name in names), ""])
    given.out.mkdir(parents=True, exist_ok=True)
    (given.out / "stacked.md").write_text(text)
    print(text)


def measure(store: GraphStore, name: str, into: Measured, given: argparse.Namespace) -> None:
    seeds = store.split("train")[: given.batches * 1000]
    start = time.perf_counter()
    loader = NeighborLoader(
        store, [10, 10, 10], seeds, batch_size=1000, shuffle=True, epochs=1, strategy=name,
        memory=given.memory, device=given.device,
    )  # fmt: skip
    into.prepare_seconds.append(time.perf_counter() - start)
    start = time.perf_counter()
    for batch in loader:
        del batch
    if given.device != "cpu":
        torch.cuda.synchronize()
    into.seconds.append(time.perf_counter() - start)
    into.epoch = loader.record.epochs[-1]
    loader.close()


def heading(store: GraphStore, given: argparse.Namespace) -> list[str]:
    facts = provenance(store.path)
    on = torch.cuda.get_device_name() if given.device != "cpu" else "the CPU"
    return [
        "# Tiers above every strategy",
        "",
        *(f"- {name}: {value}" for name, value in facts.items()),
        f"- device: {on}, torch {torch.__version__}",
        f"- graph: {store.num_nodes:,} nodes, {store.num_edges:,} edges, features "
        f"{format_size(store.num_nodes * store.encoding.row_bytes)}",
        f"- setting: memory {given.memory}, {given.batches} batches of 1000 seeds, 3 hops of 10, "
        f"no model; medians of {given.rounds} rounds (least to most)",
        "",
        "| strategy | s | prepared in s | hits | fetched rows | read | busy s by stage |",
        "|---|--:|--:|---|--:|--:|---|",
    ]


def row(name: str, found: Measured) -> str:
    epoch, seconds = found.epoch, found.seconds
    assert epoch is not None
    hits = ", ".join(f"{tier} {rows:,}" for tier, rows in epoch.hits.items() if rows) or "none"
    stages = ", ".join(f"{stage} {times.busy_seconds:.1f}" for stage, times in epoch.stages.items())
    spread = f"{statistics.median(seconds):.2f} ({min(seconds):.2f} to {max(seconds):.2f})"
    return (
        f"| {name} | {spread} | {found.prepare_seconds[0]:.1f} | {hits} | {epoch.fetched_rows:,} | "
        f"{format_size(epoch.bytes_read)} | {stages} |"
    )


if __name__ == "__main__":
    main()
