"""The disk engine against fio: random rows, sequential extents, and the sweeps behind the defaults.

fio and the engine take turns on one file in one run, since the machine may be shared and noisy:
each ratio is between neighbours in time, and the table shows medians and spread. Writes
benchmarks/results/read_rows.md. Needs fio (Debian: apt-get install fio).
"""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from machine import add_dirty, check_results, provenance
from outcrop.disk import READ_BLOCK_BYTES, Disk, aligned_empty, read_blocks
from outcrop.options import DiskOptions
from outcrop.store.arrays import Appender
from outcrop.tools.bench.drive import run_fio

RESULTS = Path(__file__).parent / "results" / "read_rows.md"
PAGE = 4096


@dataclass(frozen=True)
class Measured:
    """One timed run."""

    requests_per_second: float
    bytes_per_second: float
    p50_us: float = 0.0
    p99_us: float = 0.0
    cpu: float = 0.0
    """CPU seconds per second."""
    rows_per_second: float = 0.0


def fio(path: Path, *, pattern: str, block: int, depth: int, seconds: float) -> Measured:
    """fio on the same file, direct, with io_uring."""
    read = run_fio(path, pattern, block_bytes=block, depth=depth, seconds=seconds)
    percentiles = read["clat_ns"]["percentile"]
    return Measured(
        read["iops"],
        read["bw_bytes"],
        percentiles["50.000000"] / 1000,
        percentiles["99.000000"] / 1000,
    )


def timed(options: DiskOptions, path: Path, work: Callable[[Any], int]) -> Measured:
    """`work` with a fresh engine; returns rates from the engine's counters and the clock."""
    if options.access == "buffered":
        drop_cache(path)
    with Disk(options) as disk, disk.open(path) as file:
        before = resource.getrusage(resource.RUSAGE_SELF)
        start = time.perf_counter()
        rows = work(file)
        seconds = time.perf_counter() - start
        after = resource.getrusage(resource.RUSAGE_SELF)
        counters = disk.counters
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Measured(
        counters.read_requests / seconds,
        counters.bytes_read / seconds,
        counters.latency_us(0.5),
        counters.latency_us(0.99),
        cpu / seconds,
        rows / seconds,
    )


def drop_cache(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    os.fsync(descriptor)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(descriptor)


def random_rows(
    options: DiskOptions, path: Path, count: int, seed: int, row: int = 512
) -> Measured:
    """Random rows, each in a page of its own and no two in adjacent pages: one request each."""
    pages = path.stat().st_size // PAGE
    picked = np.random.default_rng(seed).permutation(pages // 2)[: min(count, pages // 2)]
    ids = np.sort(picked) * 2 * (PAGE // row)
    out = aligned_empty((len(ids), row))
    out[:] = 0  # touched now, not while the clock runs

    def work(file: Any) -> int:
        file.read_rows(ids, out)
        return len(ids)

    return timed(options, path, work)


def in_sequence(options: DiskOptions, path: Path, total: int, block: int) -> Measured:
    """The file from its beginning, in blocks, as `verify` and packing read."""

    def work(file: Any) -> int:
        return sum(1 for _ in read_blocks(file, 0, total, block))

    return timed(options, path, work)


def dense_rows(options: DiskOptions, path: Path, share: float, seed: int) -> Measured:
    """A random share of all 512-byte rows, as a mini-batch wants them."""
    rows = path.stat().st_size // 512
    ids = np.flatnonzero(np.random.default_rng(seed).random(rows) < share)
    out = aligned_empty((len(ids), 512))
    out[:] = 0

    def work(file: Any) -> int:
        file.read_rows(ids, out)
        return len(ids)

    return timed(options, path, work)


def spread(values: list[float], form: str = "{:.2f}") -> str:
    """The median, and from where to where."""
    low, middle, high = min(values), statistics.median(values), max(values)
    return f"{form.format(middle)} ({form.format(low)} to {form.format(high)})"


def against_fio(path: Path, repeats: int, seconds: float) -> list[str]:
    count = int(120_000 * seconds)
    total = min(path.stat().st_size, int(2e9 * seconds))
    engines = {
        "uring": DiskOptions(engine="uring", gap_bytes=0),
        "uring, 1 worker": DiskOptions(engine="uring", workers=1, gap_bytes=0),
        "pool": DiskOptions(engine="pool", gap_bytes=0),
    }
    random: dict[str, list[Measured]] = {name: [] for name in ("fio", *engines)}
    blocks = {", blocks of 2 MiB": READ_BLOCK_BYTES, ", blocks of 32 MiB": 32 << 20}
    sequential: dict[str, list[Measured]] = {"fio": []}
    sequential |= {name + suffix: [] for name in engines for suffix in blocks}
    for repeat in range(repeats):
        random["fio"].append(fio(path, pattern="randread", block=PAGE, depth=128, seconds=seconds))
        for name, options in engines.items():
            random[name].append(random_rows(options, path, count, repeat))
        sequential["fio"].append(fio(path, pattern="read", block=1 << 20, depth=8, seconds=seconds))
        for name, options in engines.items():
            for suffix, block in blocks.items():
                sequential[name + suffix].append(in_sequence(options, path, total, block))
        print(f"  round {repeat + 1} of {repeats}", file=sys.stderr)
    lines = [
        "| random 4 KiB, depth 128 | thousand requests/s | of fio | p50 µs | p99 µs | CPUs |",
        "|---|--:|--:|--:|--:|--:|",
    ]
    for name, runs in random.items():
        ratios = [r.requests_per_second / f.requests_per_second
                  for r, f in zip(runs, random["fio"], strict=True)]  # fmt: skip
        lines.append(
            f"| {name} | {spread([r.requests_per_second / 1e3 for r in runs], '{:.0f}')} "
            f"| {spread(ratios)} | {statistics.median(r.p50_us for r in runs):.0f} "
            f"| {statistics.median(r.p99_us for r in runs):.0f} "
            f"| {statistics.median(r.cpu for r in runs):.2f} |"
        )
    lines += ["", "| sequential 1 MiB, 8 in flight | GB/s | of fio | CPUs |", "|---|--:|--:|--:|"]
    for name, runs in sequential.items():
        ratios = [r.bytes_per_second / f.bytes_per_second
                  for r, f in zip(runs, sequential["fio"], strict=True)]  # fmt: skip
        lines.append(
            f"| {name} | {spread([r.bytes_per_second / 1e9 for r in runs])} | {spread(ratios)} "
            f"| {statistics.median(r.cpu for r in runs):.2f} |"
        )
    return lines


def sweep(path: Path, repeats: int, count: int) -> list[str]:
    """Threads against queue depth, direct against buffered, 512 B against 4 KiB."""
    cases: dict[str, DiskOptions] = {}
    for access in ("direct", "buffered"):
        for unit in (512, PAGE):
            for workers, depth in (
                (1, 16),
                (1, 64),
                (1, 128),
                (1, 256),
                (2, 64),
                (2, 128),
                (4, 64),
            ):
                name = f"uring | {access} | {unit} | {workers} | {depth}"
                cases[name] = DiskOptions("uring", access, workers, depth, unit, 0)
            for workers in (8, 16, 32, 64, 128):
                name = f"pool | {access} | {unit} | {workers} | 1"
                cases[name] = DiskOptions("pool", access, workers, 1, unit, 0)
    runs: dict[str, list[Measured]] = {name: [] for name in cases}
    for repeat in range(repeats):
        for name, options in cases.items():
            runs[name].append(random_rows(options, path, count, repeat))
        print(f"  sweep {repeat + 1} of {repeats}", file=sys.stderr)
    lines = [
        "| engine | access | unit | workers | depth "
        "| thousand rows/s | MB/s | p50 µs | p99 µs | CPUs |",
        "|---|---|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for name, measured in runs.items():
        lines.append(
            f"| {name} | {spread([m.rows_per_second / 1e3 for m in measured], '{:.0f}')} "
            f"| {statistics.median(m.bytes_per_second for m in measured) / 1e6:.0f} "
            f"| {statistics.median(m.p50_us for m in measured):.0f} "
            f"| {statistics.median(m.p99_us for m in measured):.0f} "
            f"| {statistics.median(m.cpu for m in measured):.2f} |"
        )
    return lines


def gaps(path: Path, repeats: int) -> list[str]:
    """How far apart two wanted pieces may be to be read as one."""
    shares = (0.01, 0.03, 0.1)
    sizes = (0, 4096, 8192, 12288, 16384, 32768, 65536)
    runs: dict[tuple[float, int], list[float]] = {(s, g): [] for s in shares for g in sizes}
    for repeat in range(repeats):
        for share, gap in runs:
            measured = dense_rows(DiskOptions(gap_bytes=gap), path, share, repeat)
            runs[share, gap].append(measured.rows_per_second / 1e3)
    lines = [
        "| gap | " + " | ".join(f"{share:.0%} of rows" for share in shares) + " |",
        "|--:|" + "--:|" * len(shares),
    ]
    for gap in sizes:
        cells = " | ".join(spread(runs[share, gap], "{:.0f}") for share in shares)
        lines.append(f"| {gap} | {cells} |")
    return lines


def make_file(path: Path, size: int) -> None:
    """Random bytes: a file that was only allocated is read without touching the device."""
    if path.exists() and path.stat().st_size == size:
        return
    path.unlink(missing_ok=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    block = np.frombuffer(np.random.default_rng(0).bytes(16 << 20), np.uint8)
    with Disk() as disk:
        appender = Appender(disk, path, size)
        for _ in range(size // len(block)):
            appender.append(block)
        appender.finish()
        appender.file.sync()
        appender.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--file", type=Path, default=Path("bench-data/read_rows.bin"))
    parser.add_argument("--size-gib", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=2.0, help="of each run against fio")
    parser.add_argument("--no-sweep", action="store_true")
    add_dirty(parser)
    arguments = parser.parse_args()
    check_results(RESULTS, dirty=arguments.dirty)
    if shutil.which("fio") is None:
        sys.exit("fio is missing: apt-get install fio")
    make_file(arguments.file, arguments.size_gib << 30)
    lines = ["# The disk engine against fio", ""]
    lines += [f"- {name}: {value}" for name, value in provenance(arguments.file.parent).items()]
    lines += ["", "Medians, and in brackets the spread, over "
              f"{arguments.repeats} rounds in which all take turns.", ""]  # fmt: skip
    lines += against_fio(arguments.file, arguments.repeats, arguments.seconds)
    if not arguments.no_sweep:
        lines += ["", "## Threads, depth, access and unit", "",
                  "Random rows of 512 B, each in a page of its own.", ""]  # fmt: skip
        lines += sweep(arguments.file, max(3, arguments.repeats // 2), 60_000)
        lines += ["", "## The gap over which neighbours are merged", "",
                  "Thousand rows of 512 B per second, random shares of all rows.", ""]  # fmt: skip
        lines += gaps(arguments.file, max(3, arguments.repeats // 2))
    text = "\n".join(lines) + "\n"
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(text)
    print(text)


if __name__ == "__main__":
    main()
