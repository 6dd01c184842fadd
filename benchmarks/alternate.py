"""Two checkouts of Outcrop, in turn on one machine: is the new one as fast as the old one?

    python benchmarks/alternate.py --old ../before --strategies direct,ginex --out alternate.md

Each run is a process of its own, in a memory cage where one can be made, after the store has left
the page cache; which checkout goes first changes from round to round. Layouts are made in an
untimed run of each, in a folder per checkout and strategy, so that none finds what the other made.
Run it with the package of the new checkout; both need their own native core, built alike.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import outcrop
from machine import add_dirty, check_results, provenance, quick_store
from outcrop.errors import CageError
from outcrop.options import format_size
from outcrop.store.store import GraphStore
from outcrop.tools.bench.compare import OVERHEAD_BYTES, BenchOptions, plan_memory
from outcrop.tools.bench.drive import forget
from outcrop.tools.cage import run_caged

# One run of either checkout, so with nothing but what both have.
_PROGRAM = """
import json, resource, sys, time, zlib
import outcrop

def cpu_seconds():
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime

def checksum(batch):
    found = zlib.crc32(batch.edge_index.contiguous().numpy(), zlib.crc32(batch.n_id.numpy()))
    slots = batch.get("x_index")
    for at in range(0, len(batch.n_id), 4096):
        part = slice(at, at + 4096)
        rows = batch.x[part] if slots is None else batch.x_buffer[slots[part]]
        found = zlib.crc32(rows.contiguous().numpy(), found)
    return found

job = json.loads(sys.argv[1])
if not outcrop.__file__.startswith(job["package"]):
    sys.exit(f"{outcrop.__file__} is not of the checkout: an installed package comes before it")
make, start = outcrop.NeighborLoader, time.perf_counter()
loader = make(job["store"], [10, 10, 10], "train", batch_size=job["batch_size"], shuffle=True,
              strategy=job["strategy"], memory=job["memory"], epochs=1, edge_ids=False)
prepared, total, number, check = time.perf_counter() - start, job["warmup"] + job["batches"], 0, 0
batches = loader.epoch(0, total)
asked = begin = time.perf_counter()
cpu_begin = cpu_seconds()
for batch in batches:
    now, cpu = time.perf_counter(), cpu_seconds()
    number += 1
    if number == 1:
        first = now - asked
    if number == job["warmup"]:
        begin, cpu_begin = now, cpu
    if job["check"]:
        check += checksum(batch)
    del batch
if number != total:
    sys.exit(f"{number} batches came, not {total}")
record, epoch = loader.record, loader.record.epochs[0]
loader.close()
print(json.dumps({
    "wall s": now - begin, "CPU s": cpu - cpu_begin, "first batch s": first,
    "preparation s": prepared, "requests": epoch.read_requests, "bytes read": epoch.bytes_read,
    "of the drive": epoch.drive_bytes, "hits": sum(epoch.hits.values()), "rows": epoch.rows,
    "charged": sum(record.charges.values()), "for batches": record.batch_memory_bytes,
    "check": check,
}))
"""
_SIZES = ("bytes read", "of the drive", "charged", "for batches")
_COLUMNS = (
    "wall s", "CPU s", "first batch s", "preparation s", "requests", "bytes read", "of the drive",
    "hits", "rows", "charged", "for batches",
)  # fmt: skip
_HEAD = f"| strategy | checkout | {' | '.join(_COLUMNS)} | preparation s, layouts made | batches |"
_USUAL = {
    "strategies": "direct,ginex,gnndrive,diskgnn", "rounds": 5, "batches": 20, "warmup": 0,
    "batch_size": 1000,
}  # fmt: skip


class Alternate:
    """Runs both checkouts, and keeps what they counted by strategy and side."""

    def __init__(
        self, given: argparse.Namespace, store: Path, layouts: Path, sides: dict[str, Path]
    ) -> None:
        self._given, self._store, self._layouts, self._sides = given, store, layouts, sides
        self._strategies = given.strategies.split(",")
        options = BenchOptions(
            tuple(self._strategies), given.memory, given.cache, given.cage,
            batch_size=given.batch_size,
        )  # fmt: skip
        with GraphStore(store) as opened:
            self.plan = plan_memory(opened, options)
            self._whole = sum(opened.array_bytes(n) for n in ("features", "indptr", "indices"))
        self.caged = True
        self._first: dict[tuple[str, str], dict[str, float]] = {}  # untimed: layouts were made
        self._runs: dict[tuple[str, str], list[dict[str, float]]] = {}
        self._failures: dict[str, list[str]] = {}

    def prepare(self) -> None:
        for strategy in self._strategies:
            for side in self._sides:
                self._run(strategy, side, untimed=True)

    def round(self, number: int) -> None:
        for strategy in self._strategies:
            for side in list(self._sides)[:: -1 if number % 2 else 1]:
                if strategy not in self._failures:
                    self._run(strategy, side, untimed=False)

    def _run(self, strategy: str, side: str, *, untimed: bool) -> None:
        memory, cage = self.plan.memory_bytes, self.plan.cage_bytes
        if strategy == "memory":  # the reference: everything fits
            memory += 2 * self._whole
            cage = memory + OVERHEAD_BYTES
        source, layouts = self._sides[side] / "src", self._layouts / side / strategy
        layouts.mkdir(parents=True, exist_ok=True)
        job = {name: getattr(self._given, name) for name in ("batch_size", "batches", "warmup")}
        job |= {"store": str(self._store), "strategy": strategy, "memory": memory}
        job |= {"package": f"{source}/", "check": untimed}
        command = ["env", f"PYTHONPATH={source}", f"OUTCROP_DERIVED={layouts}"]
        command += [sys.executable, "-c", _PROGRAM, json.dumps(job)]
        forget(self._store)
        forget(layouts)
        try:
            caged = run_caged(command, cage)
            code, output = caged.returncode, caged.output
        except CageError:
            self.caged = False
            done = subprocess.run(command, capture_output=True, text=True)
            code, output = done.returncode, done.stderr + done.stdout
        last = (output.strip().splitlines() or [""])[-1]
        print(strategy, side, "untimed" if untimed else "timed", code, last, flush=True)
        if code:
            self._failures.setdefault(strategy, []).append(f"{side}: status {code}: {last}")
        elif untimed:
            self._first[strategy, side] = json.loads(last)
        else:
            self._runs.setdefault((strategy, side), []).append(json.loads(last))

    def table(self) -> list[str]:
        lines = [_HEAD, "|---|---|" + "--:|" * (_HEAD.count("|") - 3)]
        for strategy in self._strategies:
            if strategy in self._failures:
                lines.append(f"| {strategy} | failed: {'; '.join(self._failures[strategy])} |")
                continue
            medians = []
            for side in self._sides:
                runs, first = self._runs[strategy, side], self._first[strategy, side]
                made, batches = first["preparation s"], int(first["check"])
                columns = {name: [run[name] for run in runs] for name in _COLUMNS}
                medians.append([*map(statistics.median, columns.values()), made, batches])
                cells = [spread(name, values) for name, values in columns.items()]
                line = [strategy, side, *cells, f"{made:.3f}", f"{batches:x}"]
                lines.append(f"| {' | '.join(line)} |")
            cells = [f"{new / old:.3f}" if old else "-" for old, new in zip(*medians, strict=True)]
            cells[-1] = "the same" if medians[0][-1] == medians[1][-1] else "DIFFERENT"
            lines.append(f"| {strategy} | **new/old** | {' | '.join(cells)} |")
        return lines


def spread(name: str, values: list[float]) -> str:
    """The median, and the least and the most where they differ."""

    def text(value: float) -> str:
        if name in _SIZES:
            return format_size(int(value))
        return f"{value:.3f}" if name.endswith(" s") else f"{value:,.0f}"

    median, least, most = map(text, (statistics.median(values), min(values), max(values)))
    return median if least == most else f"{median} ({least} to {most})"


def commit(checkout: Path) -> str:
    def git(*arguments: str) -> str:
        command = ["git", "--no-optional-locks", "-C", str(checkout), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    changed = git("status", "--porcelain").splitlines()
    tree = f"NOT clean: changed or new files: {len(changed)}" if changed else "a clean tree"
    return f"commit {git('rev-parse', 'HEAD')}, {tree}"


def facts(given: argparse.Namespace, runs: Alternate, rounds: int) -> dict[str, str]:
    plan, limit = runs.plan, format_size(runs.plan.cage_bytes)
    none = "NONE could be made here: memory by accounting alone"
    return {
        "store": str(given.store or "quick"),
        "memory": f"{plan.memory_bytes:,} B for both, {format_size(plan.cache_bytes)} for caches",
        "cage": f"a control group's limit of {limit} on each process" if runs.caged else none,
        "setting": f"{rounds} rounds; {given.batches} batches of {given.batch_size} after "
        f"{given.warmup} of warm-up, no model. Medians (least to most); ratios are of medians. "
        "Wall and CPU seconds (user and system, all threads): from the first request after the "
        "warm-up to the last batch; counts are of the warm-up, too. Preparation is what making "
        "the loader takes, with layouts found; its last column is of the run that made them",
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--store", type=Path, default=None, help="default: the graph quick")
    parser.add_argument("--old", type=Path, required=True, help="a checkout; so is --new")
    parser.add_argument("--new", type=Path, default=Path(__file__).parents[1])
    for name, value in _USUAL.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=type(value), default=value)
    for name in ("memory", "cache", "cage"):
        parser.add_argument(f"--{name}", default=None, help="as of outcrop bench")
    parser.add_argument("--out", type=Path, required=True)
    add_dirty(parser)
    given = parser.parse_args()
    check_results(given.out, dirty=given.dirty)
    sides = {"old": given.old.resolve(), "new": given.new.resolve()}
    if not Path(outcrop.__file__).resolve().is_relative_to(sides["new"] / "src"):
        parser.error(f"run it with the package of {sides['new']} (got {outcrop.__file__})")
    found = {**provenance(Path()), **{side: commit(path) for side, path in sides.items()}}
    with (
        quick_store(given.store) as store,
        tempfile.TemporaryDirectory(dir=store.absolute().parent) as layouts,
    ):
        runs = Alternate(given, store.absolute(), Path(layouts), sides)
        runs.prepare()
        for number in range(given.rounds):
            runs.round(number)
            lines = [f"- {k}: {v}" for k, v in {**found, **facts(given, runs, number + 1)}.items()]
            page = "\n".join(["# Old and new in turn", "", *lines, "", *runs.table(), ""])
            given.out.write_text(page)  # after each round: it stays if cut short
    print(page)


if __name__ == "__main__":
    main()
