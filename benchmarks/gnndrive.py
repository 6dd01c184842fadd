"""GNNDrive's own figures: the drive's use, memory contention, buffer sizes, the order of batches.

    python benchmarks/gnndrive.py drive --memory 8% --cage 1000000000 --batches 40
    python benchmarks/gnndrive.py contention --dims 64,128,256,512 --strategies mmap,ginex,gnndrive
    python benchmarks/gnndrive.py buffer --sizes 1,2,4,8
    python benchmarks/gnndrive.py order --store wordnet31.outcrop --seeds 5

drive: requests a second while a batch is extracted, against fio with requests of the same mean size
just before and after. contention (Figure 2): sampling alone and sampling beside extraction, under
one hard limit; bytes of the topology that samplers read, by page faults or through the engine.
buffer (Figure 12): slots, in batches. order (Figure 14): exact against completion order, trained on
a real graph; `--delay-us` makes a fast drive slow enough for batches to overtake each other.
`--store` takes one store in place of the generated ones. Tables go to
benchmarks/results/gnndrive-NAME.md.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from machine import add_dirty, check_results, provenance, rmat_store
from outcrop import _core
from outcrop.disk import Disk
from outcrop.loader import NeighborLoader
from outcrop.options import DiskOptions, Faults, format_size
from outcrop.plan.settle import probe
from outcrop.run import runner
from outcrop.run.schedule import Schedule
from outcrop.sample import sampler
from outcrop.sample.sampler import Sampler, Sampling
from outcrop.sample.seeds import SeedOrder, Stream, seed_nodes
from outcrop.store.store import GraphStore
from outcrop.tools.bench.bound import wall_seconds
from outcrop.tools.bench.compare import BenchOptions, plan_memory, run_bench
from outcrop.tools.bench.drive import forget, run_fio
from outcrop.tools.cage import run_caged
from outcrop.topology.lists import NeighborCache
from outcrop.train import TrainOptions, fit

RESULTS = Path("benchmarks/results")


def main() -> None:
    if sys.argv[1] == "worker":
        print(json.dumps(run_worker(json.loads(sys.argv[2]))))
        return
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", choices=FIGURES)
    parser.add_argument("--store", type=Path, default=None)
    parser.add_argument("--nodes", type=int, default=4_000_000)
    parser.add_argument("--dims", default="64,128,256,512")
    parser.add_argument("--strategies", default="mmap,ginex,gnndrive")
    parser.add_argument("--memory", default="10%", help="for caches; of order: in all")
    parser.add_argument("--cage", type=int, default=None, help="bytes; default: as in bench")
    parser.add_argument("--sizes", default="1,2,4,8")
    parser.add_argument("--batch-size", type=int, default=1000)
    parser.add_argument("--batches", type=int, default=10)
    parser.add_argument("--warmup", type=int, default=2)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--layers", type=int, default=3, help="of the model, of order")
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--delay-us", type=int, default=0, help="reads come late, in any order")
    parser.add_argument("--out", type=Path, default=RESULTS)
    add_dirty(parser)
    arguments = parser.parse_args()
    file = arguments.out / f"gnndrive-{arguments.name}.md"
    check_results(file, dirty=arguments.dirty)
    table = FIGURES[arguments.name](arguments)
    lines = [f"# GNNDrive: {arguments.name}", ""]
    lines += [f"- {name}: {text}" for name, text in provenance(Path()).items()]
    arguments.out.mkdir(parents=True, exist_ok=True)
    file.write_text("\n".join([*lines, "", *table, ""]))
    print("\n".join(table))


# The drive while a batch is extracted


def drive(arguments: argparse.Namespace) -> list[str]:
    store = arguments.store or graph(arguments.nodes, 128)
    names = arguments.strategies.split(",")
    options = BenchOptions(
        strategies=tuple(names), cache=arguments.memory, repeat=1, check_batches=0,
        cage=None if arguments.cage is None else str(arguments.cage),
        batches=arguments.batches, batch_size=arguments.batch_size,
    )  # fmt: skip
    found: dict[str, list[list[float]]] = {name: [] for name in names}
    with GraphStore(store) as opened:
        features = opened.file("features")
    for _ in range(arguments.repeat):
        for name in names:
            before = [fio_rate(features, size) for size in FIO_BYTES]
            with tempfile.TemporaryDirectory() as folder:
                run_bench(store, replace(options, strategies=(name,)), Path(folder) / "run", print)
                (file,) = (Path(folder) / "run").glob("*-1.json")
                loader = json.loads(file.read_text())["loader"]
            after = [fio_rate(features, size) for size in FIO_BYTES]
            epoch = loader["epochs"][0]
            extracting = wall_seconds(loader["events"], ("gather",))
            # Page faults of samplers are reads of 4 KiB, which the drive serves beside the others.
            faults = (epoch["drive_bytes"] - epoch["bytes_read"]) / 4096
            requests = epoch["read_requests"] + faults
            size = epoch["drive_bytes"] / requests
            rates = [statistics.mean(pair) for pair in zip(before, after, strict=True)]
            possible = float(np.interp(size, FIO_BYTES, rates))
            found[name].append([
                epoch["seconds"] / epoch["batches"], extracting / epoch["seconds"], size / 1000,
                requests / extracting / 1000, possible / 1000, requests / extracting / possible,
            ])  # fmt: skip
            print(name, found[name][-1], flush=True)
    table = [
        "| strategy | s/batch | of it extracting | mean request, kB | thousand requests/s while "
        "extracting | fio at that size | of fio |",
        "|---|--:|--:|--:|--:|--:|--:|",
    ]
    for name, runs in found.items():
        cells = [spread(list(column)) for column in zip(*runs, strict=True)]
        table.append(f"| {name} | {' | '.join(cells)} |")
    return table


# fio is asked at these sizes, and read off in between.
FIO_BYTES = [4096, 8192, 16384, 32768, 65536]


def fio_rate(path: Path, block_bytes: int) -> float:
    """Random reads a second, with as many in flight as the engine has."""
    read = run_fio(path, "randread", block_bytes=block_bytes, depth=128, seconds=1.0)
    return float(read["iops"])


# Figure 2


def contention(arguments: argparse.Namespace) -> list[str]:
    table = [
        "| dim | strategy | sampling alone, s/batch | with extraction | topology read alone, "
        "MB/batch | with extraction | growth |",
        "|--:|---|--:|--:|--:|--:|--:|",
    ]
    for dim in [0] if arguments.store else [int(text) for text in arguments.dims.split(",")]:
        store = arguments.store or graph(arguments.nodes, dim)
        options = BenchOptions((), cache=arguments.memory, batch_size=arguments.batch_size)
        with GraphStore(store) as opened:
            plan, dim = plan_memory(opened, options), opened.encoding.dim
        for strategy in arguments.strategies.split(","):
            runs = {
                extract: [
                    caged(arguments.cage or plan.cage_bytes, {
                        "store": str(store), "strategy": strategy, "memory": plan.memory_bytes,
                        "batch_size": arguments.batch_size, "batches": arguments.batches,
                        "warmup": arguments.warmup, "extract": extract,
                    })
                    for _ in range(arguments.repeat)
                ]
                for extract in (False, True)
            }  # fmt: skip
            alone, beside = (
                {
                    key: statistics.median(run[key] for run in runs[extract])
                    for key in runs[extract][0]
                }
                for extract in (False, True)
            )
            growth = (beside["bytes"] - alone["bytes"]) / max(alone["bytes"], 1)
            table.append(
                f"| {dim} | {strategy} | {alone['seconds']:.3f} | {beside['seconds']:.3f} | "
                f"{alone['bytes'] / 1e6:.1f} | {beside['bytes'] / 1e6:.1f} | {growth:+.0%} |"
            )
            print(table[-1], flush=True)
    return table


def graph(nodes: int, dim: int) -> Path:
    name = "quick" if (nodes, dim) == (4_000_000, 128) else f"quick-{nodes // 1000}k-{dim}"
    return rmat_store(name, nodes, nodes * 15, dim)


def caged(limit_bytes: int, job: dict[str, Any]) -> dict[str, float]:
    forget(Path(job["store"]))
    done = run_caged([sys.executable, __file__, "worker", json.dumps(job)], limit_bytes)
    if done.returncode:
        raise SystemExit(f"{job['strategy']}: status {done.returncode}: {done.output}")
    found: dict[str, float] = json.loads(done.output.strip().splitlines()[-1])
    return found


@dataclass
class SamplerThreads:
    """Threads that sample: the kernel counts what each of them reads, page faults included."""

    ids: set[int]

    @classmethod
    def watch(cls) -> SamplerThreads:
        """Notes the threads of every sampler that is made from now on."""
        found = cls(set())

        class Watched(Sampler):
            def __init__(self, *args: Any, **named: Any) -> None:
                before = tasks()
                super().__init__(*args, **named)
                found.ids |= tasks() - before

        module: Any = sampler
        module.Sampler = Watched
        return found

    def read_bytes(self) -> int:
        stages = {t.native_id or 0 for t in threading.enumerate() if t.name == "outcrop-sample"}
        return sum(map(thread_read_bytes, (self.ids | stages) & tasks()))


def tasks() -> set[int]:
    return {int(path.name) for path in Path("/proc/self/task").iterdir()}


def thread_read_bytes(thread: int) -> int:
    for line in Path(f"/proc/self/task/{thread}/io").read_text().splitlines():
        if line.startswith("read_bytes:"):
            return int(line.split()[1])
    return 0


@dataclass
class CachedTopologies:
    """Topologies over a neighbour cache: an engine of their own reads for them, and counts."""

    disk: Disk | None = None

    @classmethod
    def watch(cls) -> CachedTopologies:
        found = cls()

        def watched(self: NeighborCache, indptr: Any) -> Any:
            store = self._store
            found.disk = found.disk or Disk(store.disk.options)
            with found.disk.open(store.file("indices")) as file:
                engine, core = file.core
                offset = store.manifest.arrays["indices"].data_offset
                return _core.cached_topology(indptr, self._lists, engine, core, offset)

        made: Any = NeighborCache
        made.topology = watched
        return found

    def read_bytes(self) -> int:
        return 0 if self.disk is None else self.disk.counters.bytes_read


def leave_rows() -> None:
    """From now on strategies sample, and gather nothing."""
    run: Any = runner._Run
    run._gather = lambda _, item: (item[0], None)


def run_worker(job: dict[str, Any]) -> dict[str, float]:
    """One run under the limit -> seconds of sampling and bytes of topology, per batch."""
    threads, cached = SamplerThreads.watch(), CachedTopologies.watch()

    def read_bytes() -> int:
        return threads.read_bytes() + cached.read_bytes()

    if not job["extract"]:
        leave_rows()
    total = job["warmup"] + job["batches"]
    with GraphStore(job["store"]) as store:
        loader = NeighborLoader(
            store, [10, 10, 10], "train", batch_size=job["batch_size"], shuffle=True,
            strategy=job["strategy"], memory=job["memory"],
        )  # fmt: skip
        batches = loader.epoch(0, total)
        # ginex samples all of them before the first one comes.
        first = 0 if job["strategy"].startswith("ginex") else job["warmup"]
        before = read_bytes()
        for number in range(total):
            if number == first:
                before = read_bytes()
            if number == total - 1:
                after = read_bytes()  # before the end, which ends the threads
            next(batches)
        batches.close()  # type: ignore[attr-defined]
        sampled = loader.record.epochs[0].stages["sample"].busy_seconds
    return {"seconds": sampled / total, "bytes": (after - before) / max(total - 1 - first, 1)}


# Figure 12


def buffer(arguments: argparse.Namespace) -> list[str]:
    store = arguments.store or graph(arguments.nodes, 128)
    sizes = [float(text) for text in arguments.sizes.split(",")]
    names = [f"gnndrive:buffer={size:g}" for size in sizes]
    with GraphStore(store) as opened:
        nodes, stream = seed_nodes(opened, "train")
        seeds = SeedOrder(nodes, batch_size=arguments.batch_size, stream=stream, seed=0)
        batch = probe(opened, Sampling((10, 10, 10)), seeds)
        # The largest buffer with its tables, and four samplers.
        row_bytes = opened.encoding.row_bytes + 150
        spare = int(min(max(sizes) * batch.nodes, opened.num_nodes) * row_bytes)
        spare += 4 * batch.scratch_bytes + 64 * batch.nodes + 4 * opened.num_nodes
    options = BenchOptions(
        strategies=tuple(names), cache=str(spare), batches=arguments.batches,
        warmup=arguments.warmup, repeat=arguments.repeat, batch_size=arguments.batch_size,
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "runs"
        summary = run_bench(store, options, out, print)
        table = ["| batches of slots | s/batch | rows found | GB read |", "|--:|--:|--:|--:|"]
        for row in (row for row in summary["rows"] if row["kind"] == "strategy"):
            epochs = [json.loads((out / file).read_text())["loader"]["epochs"][0]
                      for file in row["records"]]  # fmt: skip
            if not epochs:
                table.append(f"| {row['name']} | failed: {row['note']} | | |")
                continue
            seconds = statistics.median(row["seconds"]) / arguments.batches
            found = sum(epochs[0]["hits"].values()) / epochs[0]["rows"]
            size = row["name"].split("=")[1]
            read = format_size(epochs[0]["bytes_read"])
            table.append(f"| {size} | {seconds:.3f} | {found:.0%} | {read} |")
    return table


# Figure 14


def order(arguments: argparse.Namespace) -> list[str]:
    if arguments.store is None:
        raise SystemExit("order needs --store: a real graph")
    memory = "8GB" if arguments.memory.endswith("%") else arguments.memory
    table = [
        "| order | validation, best | test | epochs to 99 % of the best | s to it | s per epoch | "
        "batches out of order |",
        "|---|--:|--:|--:|--:|--:|--:|",
    ]
    delivered = Delivered.watch()
    late = arguments.delay_us > 0
    faults = Faults(delay_us=arguments.delay_us, reorder=True) if late else Faults()
    with GraphStore(arguments.store, DiskOptions(faults=faults)) as store:
        fit(store, TrainOptions(epochs=1, layers=1))  # what torch does once
        runs: dict[str, list[list[float]]] = {"exact": [], "completion": []}
        for seed in range(arguments.seeds):
            for name, found in runs.items():  # in turn: both see what else the machine does
                delivered.all = delivered.early = 0
                options = TrainOptions(
                    strategy=f"gnndrive:order={name}", epochs=arguments.epochs, seed=seed,
                    batch_size=arguments.batch_size, layers=arguments.layers,
                    hidden=arguments.hidden, memory=memory,
                )  # fmt: skip
                result = fit(store, options)
                scores = [epoch.val or 0.0 for epoch in result.history]
                seconds = [epoch.seconds for epoch in result.history]
                reached = next(i for i, val in enumerate(scores, 1) if val >= 0.99 * max(scores))
                found.append([
                    max(scores), result.test or 0.0, reached, sum(seconds[:reached]),
                    statistics.mean(seconds), delivered.early / delivered.all,
                ])  # fmt: skip
                print(name, seed, found[-1], flush=True)
        for name, found in runs.items():
            cells = [spread(list(column)) for column in zip(*found, strict=True)]
            table.append(f"| {name} | {' | '.join(cells)} |")
    return table


@dataclass
class Delivered:
    """Training batches that the loop received; those of them that came before an earlier one."""

    all: int = 0
    early: int = 0

    @classmethod
    def watch(cls) -> Delivered:
        found = cls()
        follow = Schedule._delivered

        def watched(self: Schedule, number: int) -> None:
            if self.seeds.stream == Stream.TRAIN:
                found.all += 1
                found.early += number != self._batch
            follow(self, number)

        made: Any = Schedule
        made._delivered = watched
        return found


def spread(values: list[float]) -> str:
    return f"{statistics.median(values):.4g} ({min(values):.4g} to {max(values):.4g})"


FIGURES: dict[str, Callable[[argparse.Namespace], list[str]]] = {
    "drive": drive,
    "contention": contention,
    "buffer": buffer,
    "order": order,
}


if __name__ == "__main__":
    main()
