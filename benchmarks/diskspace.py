"""Disk space against reads: DiskGNN's Table 7 and Figures 5, 12 to 14 and 16, on the quick graph.

Amplification is bytes read per byte of rows that are not in memory. It is counted from lists of
rows, page by page, without packing; one setting is packed and read, to see that it is so. Writes
benchmarks/results/diskspace.md.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np

from brute_force import Candidate, brute_force, candidates, segment_pages
from machine import add_dirty, check_results, provenance, quick_store
from outcrop.ahead.prepare import PackSpec, prepare_pack, prepare_trace
from outcrop.disk import PAGE_BYTES
from outcrop.layout.pack.plan import make_plan
from outcrop.layout.pack.reader import Pack, Predicted
from outcrop.layout.pack.segments.search import Order, OrderName, PackedLists, measure, search
from outcrop.layout.pack.tiers import hottest_of_each, split_batches
from outcrop.layout.pack.writer import predict
from outcrop.layout.trace import Trace
from outcrop.options import DiskOptions, format_size, parse_size
from outcrop.sample.sampler import Sampler, Sampling
from outcrop.sample.seeds import SeedOrder, seed_nodes
from outcrop.store.derived import Garbage, remove
from outcrop.store.store import GraphStore
from outcrop.topology.parts import PAGE_THREADS, paged_topology

RESULTS = Path(__file__).parent / "results" / "diskspace.md"
BUDGETS = (3, 5, 7)
# The brute force's steps; the paper has steps too.
LENGTHS = (10, 15, 20, 30, 40, 50, 60, 80, 100, 150, 200)
THRESHOLDS = (1, 2, 3)
ORDERS: tuple[OrderName, ...] = ("id", "printed", "minhash", "set")
SEGMENTS = (20, 50, 100, 150, 200)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--store", type=Path, default=None, help="default: makes the quick graph")
    parser.add_argument("--cache", type=float, default=10.0, help="percent of the rows")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--memory", default="1GB", help="of packing")
    parser.add_argument("--pack", type=float, default=3, help="budget that is packed; 0: none")
    add_dirty(parser)
    arguments = parser.parse_args()
    check_results(RESULTS, dirty=arguments.dirty)
    with quick_store(arguments.store) as path, GraphStore(path) as store:
        features = store.array_bytes("features")
        lines = ["# Disk space against reads: quick", ""]
        lines += [f"- {name}: {value}" for name, value in provenance(path).items()]
        cache_rows = int(store.num_nodes * arguments.cache / 100)
        spec = spec_of(store, (10, 10, 10), 1000, arguments.epochs, cache_rows)
        with trace_of(store, spec, keep=True) as trace:
            lines += [
                f"- {len(trace)} batches of 1000 seeds, fanouts 10,10,10, of {arguments.epochs} "
                f"epochs; features {format_size(features)}, a cache of {arguments.cache:g} % of "
                f"the rows; samples take {trace.bytes / features:.2f} times the features",
                "- sizes are in times the features, and count samples, tables, chunks, segments "
                "and the cache's rows; amplification is bytes read per byte of rows not in memory",
                "",
            ]
            with store.derived.scratch() as scratch:
                lines += of_segments(store, trace, cache_rows, scratch.path)
            lines += by_memory(store, trace)
            if arguments.pack:
                disk_bytes = int(arguments.pack * features)
                memory = parse_size(arguments.memory)
                lines += packed(path, store, spec, trace, memory, disk_bytes, arguments.pack)
        lines += by_sampling(store, cache_rows)
    lines += [f"Load of the machine at the end: {os.getloadavg()[2]:.0f} (15 minutes).", ""]
    text = "\n".join(lines)
    RESULTS.write_text(text)
    print(text)


def spec_of(
    store: GraphStore, fanouts: tuple[int, ...], batch_size: int, epochs: int, cache_rows: int
) -> PackSpec:
    nodes, stream = seed_nodes(store, "train")
    seeds = SeedOrder(nodes, batch_size=batch_size, stream=stream, seed=0, shuffle=True)
    return PackSpec(Sampling.of(list(fanouts)), seeds, epochs, cache_rows)


@contextmanager
def trace_of(store: GraphStore, spec: PackSpec, *, keep: bool) -> Iterator[Trace]:
    sampler = Sampler(spec.sampling, paged_topology(store), 0, PAGE_THREADS)
    with prepare_trace(store, spec, [sampler]) as layout:
        trace = Trace(store.disk, layout.path)
        with trace:
            yield trace
    if not keep:
        remove(Garbage(layout.path, "measured", 0))


def of_segments(store: GraphStore, trace: Trace, cache_rows: int, folder: Path) -> list[str]:
    """Table 7, and Figures 5 and 16."""
    plan = make_plan(
        store.disk, folder, trace, num_nodes=store.num_nodes, row_bytes=store.encoding.row_bytes,
        cache_rows=cache_rows, packed=True,
    )  # fmt: skip
    with PackedLists(store.disk, folder, plan, store.num_nodes) as lists:
        return [*table_7(store, trace, lists), *orders(store, trace, lists)]


def table_7(store: GraphStore, trace: Trace, lists: PackedLists) -> list[str]:
    features = store.array_bytes("features")
    whole = trace.bytes + lists.plan.most_bytes
    lines = [
        "## Table 7: search",
        "",
        f"All rows of all batches take {whole / features:.2f}. Brute force looks at segments of "
        f"{', '.join(map(str, LENGTHS))} batches with m = {', '.join(map(str, THRESHOLDS))}; its "
        "time is that of the settings that fit.",
        "",
        "| disk | heuristic: s, m | amplification | s | brute force: s, m | amplification | s |",
        "|--:|--:|--:|--:|--:|--:|--:|",
    ]
    timed: list[tuple[Candidate, float]] = []
    start = time.perf_counter()
    for found in candidates(lists, max(BUDGETS) * features - trace.bytes, LENGTHS, THRESHOLDS):
        timed.append((found, time.perf_counter() - start))
        start = time.perf_counter()
    for budget in BUDGETS:
        start = time.perf_counter()
        chosen = search(lists, budget * features, trace.bytes).segments
        seconds = time.perf_counter() - start
        assert chosen is not None
        heuristic = predicted(lists, chosen.batches, chosen.above, Order.best(chosen.batches))
        room = budget * features - trace.bytes
        fitting = [(one, took) for one, took in timed if one.most_bytes <= room]
        best = brute_force(one for one, _ in fitting)
        assert best is not None
        lines.append(
            f"| {budget} | {chosen.batches}, {chosen.above} | {heuristic.amplification:.2f} | "
            f"{seconds:.1f} | {best.batches}, {best.above} | {best.predicted.amplification:.2f} | "
            f"{sum(took for _, took in fitting):.0f} |"
        )
    return [*lines, ""]


def predicted(lists: PackedLists, batches: int, above: int, order: Order) -> Predicted:
    pages = segment_pages(lists, batches, above, order)
    return predict(replace(measure(lists, batches).plan(above), pages=int(pages.sum())))


def orders(store: GraphStore, trace: Trace, lists: PackedLists) -> list[str]:
    lines = [
        "## Figures 5 and 16: orders within segments, m = 1",
        "",
        "Amplification; in brackets the share of batches that read at most half of what they read "
        "in the order of ids. `printed` is the paper's Algorithm 1 with 4 hashes, `minhash` the "
        "same hashes one after the other, `set` the exact set of batches (up to 64). Segments of "
        f"{len(trace)} batches are the global disk cache.",
        "",
        f"| batches | disk | {' | '.join(ORDERS)} |",
        f"|--:|--:|{'--:|' * len(ORDERS)}",
    ]
    for batches in (size for size in SEGMENTS if size <= len(trace)):
        plan = measure(lists, batches).plan(1)
        cells = []
        by_id = np.zeros(len(lists), np.int64)
        for name in ORDERS:
            if name == "set" and batches > 64:
                cells.append("")
                continue
            pages = segment_pages(lists, batches, 1, Order(name))
            found = predict(replace(plan, pages=int(pages.sum())))
            read = pages * PAGE_BYTES + plan.sizes[: len(lists)]
            by_id = read if name == "id" else by_id
            halved = np.count_nonzero(2 * read <= by_id) / len(lists)
            cells.append(f"{found.amplification:.2f} ({halved:.0%})")
        size = (trace.bytes + plan.most_bytes) / store.array_bytes("features")
        lines.append(f"| {batches} | {size:.2f} | {' | '.join(cells)} |")
    return [*lines, ""]


def by_memory(store: GraphStore, trace: Trace) -> list[str]:
    lines = [
        "## Figures 12 and 13: disk space of all packed rows against memory",
        "",
        "| cache, % of the rows | disk |",
        "|--:|--:|",
    ]
    for percent in (0, 2, 5, 10, 20, 40):
        size = whole_bytes(store, trace, store.num_nodes * percent // 100)
        lines.append(f"| {percent} | {size / store.array_bytes('features'):.2f} |")
    return [*lines, ""]


def by_sampling(store: GraphStore, cache_rows: int) -> list[str]:
    lines = [
        "## Figure 14: disk space of all packed rows against sampling, one epoch",
        "",
        "| fanouts | batch size | batches | disk |",
        "|---|--:|--:|--:|",
    ]
    settings = [((10, 10), 1000), ((5, 5, 5), 1000), ((10, 10, 10), 1000), ((15, 10, 10), 1000)]
    settings += [((10, 10, 10), size) for size in (250, 500, 2000, 4000)]
    for fanouts, batch_size in settings:
        spec = spec_of(store, fanouts, batch_size, 1, cache_rows)
        with trace_of(store, spec, keep=False) as trace:
            size = whole_bytes(store, trace, cache_rows) / store.array_bytes("features")
            shown = ",".join(map(str, fanouts))
            lines.append(f"| {shown} | {batch_size} | {len(trace)} | {size:.2f} |")
    return [*lines, ""]


def whole_bytes(store: GraphStore, trace: Trace, cache_rows: int) -> int:
    """Samples, chunks of all rows, and the cache's; without tables."""
    (cached,) = hottest_of_each(trace, store.num_nodes, [cache_rows])
    rows = len(cached)
    for packed_nodes, _ in split_batches(trace, store.num_nodes, cached):
        rows += len(packed_nodes)
    return trace.bytes + rows * store.encoding.row_bytes


def packed(
    path: Path, store: GraphStore, spec: PackSpec, trace: Trace, memory: int, disk_bytes: int,
    times: float,
) -> list[str]:  # fmt: skip
    """Packs within a budget, and reads all batches of it."""
    start = time.perf_counter()
    layout = prepare_pack(store, spec, trace, memory, disk_bytes)
    took = time.perf_counter() - start
    used = trace.bytes + sum(file.stat().st_size for file in layout.path.iterdir())
    lines = [
        f"## Packed: {times:g} times the features",
        "",
        f"Searched and packed with {format_size(memory)} of memory in {took:.0f} s; on disk "
        f"{used / store.array_bytes('features'):.2f}. All batches were read, checksums included. "
        "Engines that read up to 8 KiB too much to save a request read more, by fewer requests.",
        "",
        "| too much at most | predicted | measured | requests | s |",
        "|--:|--:|--:|--:|--:|",
    ]
    with layout:
        for gap in (0, 8192):
            with (
                GraphStore(path, DiskOptions(gap_bytes=gap)) as fresh,
                Pack(fresh.disk, layout.path) as pack,
            ):
                tables = [pack.table(t) for t in range(len(pack))]
                before, start = fresh.disk.counters, time.perf_counter()
                for t, table in enumerate(tables):
                    for _ in pack.blocks(t):
                        pass
                    for _ in pack.shared_blocks(t, table):
                        pass
                seconds, after = time.perf_counter() - start, fresh.disk.counters
                read = after.bytes_read - before.bytes_read
                measured = read / pack.predicted.wanted_bytes
                requests = after.read_requests - before.read_requests
                lines.append(
                    f"| {gap} | {pack.predicted.amplification:.3f} | {measured:.3f} | "
                    f"{requests:,} | {seconds:.1f} |"
                )
    return [*lines, ""]


if __name__ == "__main__":
    main()
