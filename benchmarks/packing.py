"""Batched packing against individual packing, and against the drive: read once, written once.

All three take turns on one store in one run, since the machine may be shared and noisy: ratios are
between neighbours in time, and the table shows medians and spread. Writes
benchmarks/results/packing-GRAPH.md.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path

from individual import pack_individually
from machine import add_dirty, check_results, provenance, rmat_store
from outcrop.ahead.prepare import PackSpec, prepare_trace
from outcrop.disk import aligned_empty, read_blocks
from outcrop.layout.pack.batched import pack_batched
from outcrop.layout.pack.plan import PackPlan, make_plan
from outcrop.layout.pack.reader import CHUNKS, PIECE_BYTES
from outcrop.layout.pack.scatter import PackMemory
from outcrop.layout.trace import Trace
from outcrop.options import format_size, parse_size
from outcrop.sample.sampler import Sampler, Sampling
from outcrop.sample.seeds import SeedOrder, seed_nodes
from outcrop.store.arrays import Appender
from outcrop.store.store import GraphStore
from outcrop.topology.parts import PAGE_THREADS, paged_topology

RESULTS = Path(__file__).parent / "results"
GRAPHS = {"quick": (4_000_000, 60_000_000), "standard": (20_000_000, 300_000_000)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("graph", choices=GRAPHS, nargs="?", default="quick")
    parser.add_argument("--store", type=Path, default=None, help="default: makes the graph")
    parser.add_argument("--memory", default="500MB", help="of packing")
    parser.add_argument("--cache", type=float, default=10.0, help="percent of the rows")
    parser.add_argument("--individual", type=int, default=20, help="chunks packed one by one")
    parser.add_argument("--repeats", type=int, default=3)
    add_dirty(parser)
    arguments = parser.parse_args()
    file = RESULTS / f"packing-{arguments.graph}.md"
    check_results(file, dirty=arguments.dirty)
    path = arguments.store or rmat_store(arguments.graph, *GRAPHS[arguments.graph])
    with GraphStore(path) as store, store.derived.scratch() as scratch:
        text = report(store, scratch.path, arguments)
    file.write_text(text)
    print(text)


def report(store: GraphStore, folder: Path, arguments: argparse.Namespace) -> str:
    nodes, stream = seed_nodes(store, "train")
    seeds = SeedOrder(nodes, batch_size=1000, stream=stream, seed=0, shuffle=True)
    cache_rows = int(store.num_nodes * arguments.cache / 100)
    spec = PackSpec(Sampling.of([10, 10, 10]), seeds, 1, cache_rows)
    sampler = Sampler(spec.sampling, paged_topology(store), 0, PAGE_THREADS)
    sampled = time.perf_counter()
    layout = prepare_trace(store, spec, [sampler])
    planned = time.perf_counter()
    with layout, Trace(store.disk, layout.path) as trace:
        plan = make_plan(
            store.disk, folder, trace, num_nodes=store.num_nodes,
            row_bytes=store.encoding.row_bytes, cache_rows=cache_rows, packed=True,
        )  # fmt: skip
    done = time.perf_counter()
    some = PackPlan(plan.index[: arguments.individual], plan.row_bytes, plan.packed)
    share = float(some.rows.sum() / plan.rows.sum())
    memory = parse_size(arguments.memory)
    divided = PackMemory.divide(memory, len(plan.index), plan.row_bytes, store.num_nodes)
    ways: dict[str, Callable[[], object]] = {
        "drive": lambda: read_and_write(store, folder, plan),
        "batched": lambda: pack_batched(store.disk, folder, store.features, plan, memory),
        "individual": lambda: pack_individually(store.disk, folder, store.features, some),
    }
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(arguments.repeats):
        for name, way in ways.items():
            for left in (CHUNKS, "progress.bin"):
                (folder / left).unlink(missing_ok=True)
            if name != "drive":
                store.disk.create(folder / CHUNKS, plan.chunk_bytes).close()
            start = time.perf_counter()
            way()
            seconds[name].append(time.perf_counter() - start)
    seconds["individual"] = [value / share for value in seconds["individual"]]
    features = store.array_bytes("features")
    lines = [f"# Packing: {arguments.graph}", ""]
    lines += [f"- {name}: {value}" for name, value in provenance(store.path).items()]
    lines += [
        f"- {len(plan.index) - 1} batches of 1000 seeds, fanouts 10,10,10; features "
        f"{format_size(features)}, a cache of {arguments.cache:g} % of the rows, chunks "
        f"{format_size(plan.chunk_bytes)}",
        f"- packing with {format_size(memory)}: {divided.open_chunks} chunks open, partitions of "
        f"{format_size(divided.partition_bytes)}; chunks of {PIECE_BYTES >> 10} KiB pieces",
        f"- sampling {planned - sampled:.1f} s (0 where it was found), planning "
        f"{done - planned:.1f} s",
        f"- individual packing: of {len(some.index)} chunks, {share:.0%} of all rows; scaled",
        f"- {arguments.repeats} rounds, in which all take turns; medians, and the spread",
        "",
        "| | s | to the drive | to batched |",
        "|---|--:|--:|--:|",
    ]
    names = {
        "drive": "features read once, chunks written once, nothing else",
        "batched": "batched packing",
        "individual": "individual packing",
    }
    for name, shown in names.items():
        lines.append(
            f"| {shown} | {spread(seconds[name])} | {ratio(seconds[name], seconds['drive'])} | "
            f"{ratio(seconds[name], seconds['batched'])} |"
        )
    return "\n".join([*lines, ""])


def read_and_write(store: GraphStore, folder: Path, plan: PackPlan) -> None:
    """What no packing can be faster than, one after the other as one drive does it."""
    entry = store.manifest.arrays["features"]
    with store.disk.open(store.file("features")) as file:
        for _ in read_blocks(file, entry.data_offset, entry.file_bytes):
            pass
    writer = Appender(store.disk, folder / CHUNKS, plan.chunk_bytes)
    block = aligned_empty(4 << 20)
    while writer.bytes < plan.chunk_bytes:
        writer.append(block[: plan.chunk_bytes - writer.bytes])
    writer.finish()
    writer.file.sync()
    writer.close()


def spread(values: list[float]) -> str:
    return f"{statistics.median(values):.1f} ({min(values):.1f} to {max(values):.1f})"


def ratio(values: list[float], beside: list[float]) -> str:
    pairs = [a / b for a, b in zip(values, beside, strict=True)]
    return f"{statistics.median(pairs):.2f} ({min(pairs):.2f} to {max(pairs):.2f})"


if __name__ == "__main__":
    main()
