"""A benchmark as `outcrop bench` leaves it: all kinds and statuses, several repeats, all stages."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

from outcrop.observe.record import EpochRecord, LoaderRecord, RunRecord, StageRecord

BATCHES = 40
ROWS = 13_400_000
STORE = {
    "path": "bench-data/quick.outcrop", "content": "0d57cdd20193a0afc7dc02d1c060c269",
    "nodes": 4_000_000, "edges": 60_000_000, "dim": 128, "encoding": "float32", "row_bytes": 512,
    "feature_bytes": 2_048_000_000, "topology_bytes": 272_000_008,
}  # fmt: skip
MACHINE = {
    "cpu": "Example CPU 9000", "cpus": 8, "memory_bytes": 34_000_000_000, "gpus": [],
    "system": "Linux 6.1", "file_system": "ext4", "block_bytes": 512,
}  # fmt: skip
VERSIONS = {"outcrop": "0.1.0", "python": "3.11.7", "torch": "2.13.0", "commit": "6aea091"}
DRIVE = {
    "source": "fio 3.33", "random_reads_per_second": 182_000.0,
    "sequential_bytes_per_second": 2_310_000_000.0,
}  # fmt: skip
SHAPES: dict[str, dict[str, Any]] = {
    "memory": {"seconds": 38.0, "stages": {"sample": 31.0, "gather": 18.5}},
    "mmap": {"seconds": 612.0, "stages": {"sample": 60.0, "gather": 608.0}},
    "direct": {"seconds": 101.0, "stages": {"sample": 44.0, "gather": 98.0}},
    "belady": {
        "seconds": 64.0,
        "stages": {"sample": 40.0, "inspect": 9.0, "switch": 4.0, "gather": 47.0,
                   "cache update": 12.0, "transfer": 3.0},
        "hits": {"neighbour cache": 2_100_000, "feature cache": 6_900_000},
    },
}  # fmt: skip
"""What each strategy is made to look like."""


def make_record(name: str, repeat: int = 0, kind: str = "bench") -> RunRecord:
    shape, rng = SHAPES[name], random.Random(f"{name}{repeat}")
    factor = 1 + 0.05 * rng.random()
    return RunRecord(
        kind=kind,
        name=name,
        command=["outcrop", "train", "a b.outcrop", "--strategy", name],
        created="2026-11-15T13:24:14+00:00",
        store=STORE,
        configuration={"strategy": name, "model": "sage", "num_neighbors": [10, 10, 10]},
        machine=MACHINE,
        versions=VERSIONS,
        process={"peak_rss_bytes": rng.randrange(10**8, 10**9), "cgroup_peak_bytes": None,
                 "cgroup_limit_bytes": 1_000_000_000, "read_bytes": 10**10, "disk_used_bytes": 0},
        loader=_loader(name, shape, factor).as_dict(),
        series=_series(rng, shape["seconds"] * factor, name),
        digest="3f2a",
    )  # fmt: skip


def _loader(name: str, shape: dict[str, Any], factor: float) -> LoaderRecord:
    epoch = EpochRecord("train", 0, shape["seconds"] * factor, shape["seconds"] * 0.9)
    epoch.batches, epoch.seeds, epoch.sampled_edges = BATCHES, 40_000, 25_000_000
    epoch.rows, epoch.row_bytes, epoch.hits = ROWS, ROWS * 512, shape.get("hits", {})
    missed = ROWS - sum(epoch.hits.values())
    if name in ("direct", "belady"):
        epoch.read_requests = missed // 3
        epoch.bytes_wanted, epoch.bytes_read = missed * 512, missed * 1900
        few = epoch.read_requests // 10
        epoch.read_sizes = [epoch.read_requests - 3 * few, few, 0, 0, few, 0, 0, 0, few, 0, 0, 0]
    epoch.drive_bytes = {"memory": 0, "mmap": ROWS * 4096 // 2}.get(name, epoch.bytes_read)
    epoch.stages = {s: StageRecord(b * factor, b / 3) for s, b in shape["stages"].items()}
    epoch.stages["compute"] = StageRecord(epoch.seconds - epoch.stall_seconds, epoch.stall_seconds)
    charges = {"index": 32_000_000, "sampler": 81_000_000}
    return LoaderRecord(name, 700_000_000, charges, 300_000_000, 4, 1.25, 290_000_000, [epoch],
                        _events(shape))  # fmt: skip


def _events(shape: dict[str, Any]) -> list[tuple[str, int, float, float]]:
    """A pipeline with one thread per stage; a batch follows the one before it."""
    stages = list(shape["stages"].items())
    free = dict.fromkeys(shape["stages"], 0.0)
    events = []
    for batch in range(BATCHES):
        ready = 0.0
        for stage, busy in stages:
            begin = max(ready, free[stage])
            ready = free[stage] = begin + busy / BATCHES
            events.append((stage, batch, begin, ready))
    return events


def _series(rng: random.Random, seconds: float, name: str) -> dict[str, list[float]]:
    count = int(min(seconds, 120))
    level = {"memory": 0.0, "mmap": 0.3}.get(name, 0.9)
    return {
        "seconds": [1.0 + i for i in range(count)],
        "cpu_share": [round(rng.uniform(0.3, 0.9), 4) for _ in range(count)],
        "gpu_share": [round(rng.uniform(0.1, 0.6), 4) for _ in range(count)],
        "iowait_share": [round(rng.uniform(0, 0.4) * level, 4) for _ in range(count)],
        "drive_bytes_per_second": [round(rng.uniform(1e9, 2e9) * level, 1) for _ in range(count)],
        "drive_reads_per_second": [round(rng.uniform(1e5, 2e5) * level, 1) for _ in range(count)],
        "faults_per_second": [round(rng.uniform(0, 2e4), 1) for _ in range(count)],
        "refaults_per_second": [0.0] * count,
        "queue_gather": [float(rng.randrange(2)) for _ in range(count)],
        "queue_consumer": [float(rng.randrange(5)) for _ in range(count)],
    }


def make_train_record(name: str, epochs: int = 6) -> RunRecord:
    record = make_record(name, kind="train")
    record.history = [
        {"epoch": i, "loss": 2 / (i + 1), "seconds": SHAPES[name]["seconds"],
         "val": 1 - 0.6 / (i + 1), "test": 1 - 0.65 / (i + 1)}
        for i in range(epochs)
    ]  # fmt: skip
    return record


def make_bench(repeats: int = 3) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """bench.json, and its records by file name."""
    records = {
        f"{name}-{repeat}.json": make_record(name, repeat).as_dict()
        for name in SHAPES
        for repeat in range(repeats)
    }
    rows = [_strategy_row(name, records) for name in SHAPES]
    rows += [
        _row("pyg mmap", "peer", seconds=[940.0], scaled=True, measured_batches=10),
        _row("graphbolt", "peer", "absent", "not installed: see benchmarks/peers.md"),
        _row("ginex", "peer", "failed", "ended with status 137: out of memory"),
        _row("wanted bytes in sequence", "limit", seconds=[ROWS * 512 / 2.31e9]),
        _row("model alone", "limit", seconds=[32.0]),
    ]
    return {
        "format": "outcrop-bench", "version": 1,
        "command": ["outcrop", "bench", "bench-data/quick.outcrop", "--strategies", "memory,mmap"],
        "created": "2026-11-15T13:24:14+00:00", "store": STORE, "machine": MACHINE,
        "versions": VERSIONS,
        "configuration": {
            "model": "none", "memory_bytes": 700_000_000, "cage_bytes": 1_000_000_000,
            "cage": "cgroup", "epochs": 1, "batches": BATCHES, "repeat": repeats,
            "num_neighbors": [10, 10, 10], "batch_size": 1000, "seed": 0,
        },
        "drive": DRIVE, "rows": rows,
        "check": {"equal": True, "batches": 4, "digests": dict.fromkeys(SHAPES, "3f2a")},
    }, records  # fmt: skip


def _strategy_row(name: str, records: dict[str, dict[str, Any]]) -> dict[str, Any]:
    own = [file for file in records if file.startswith(f"{name}-")]
    row = _row(name, "strategy")
    row["records"] = own
    row["seconds"] = [records[file]["loader"]["epochs"][0]["seconds"] for file in own]
    if name != "memory":
        row["bound_seconds"], row["bound"] = 22.5, "its misses at the drive's random rate"
        row["cache_bytes"] = 205_000_000
    return row


def _row(
    name: str, kind: str, status: str = "measured", note: str = "", **more: Any
) -> dict[str, Any]:
    values = {
        "name": name, "kind": kind, "status": status, "note": note, "seconds": [],
        "measured_batches": BATCHES, "scaled": False, "records": [], "bound_seconds": None,
        "bound": None, "cache_bytes": None,
    }  # fmt: skip
    return values | more


def write_bench(folder: Path, repeats: int = 3) -> Path:
    bench, records = make_bench(repeats)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "bench.json").write_text(json.dumps(bench))
    for name, record in records.items():
        (folder / name).write_text(json.dumps(record))
    return folder
