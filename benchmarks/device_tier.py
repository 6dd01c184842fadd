"""DiskGNN's Figure 18 on a GPU: raw reads, then a cache on the device, one in memory, and packing.

    python benchmarks/device_tier.py --nodes 2000000 --edges 30000000 --device-cache 10%

Each row takes the same prepared batches and trains a GraphSAGE on them; with --no-train it only
takes them. merged is not of the paper: neighbouring rows are read together. A first pass warms up
torch and is not counted. moved: bytes of x that go to the device. The last lines move a batch's x
from memory as it is, and from pinned memory. --device cpu runs the same code without a GPU. Writes
device-tier.md into --out.
"""

from __future__ import annotations

import argparse
import statistics
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.nn.functional import cross_entropy

from machine import add_dirty, check_results, provenance, rmat_store
from outcrop.loader import NeighborLoader
from outcrop.options import format_size, parse_size
from outcrop.store.store import GraphStore
from outcrop.tools.bench.variants import variant_named
from outcrop.train import TrainOptions
from outcrop.train.models import choose_device, make_model, seed_labels, seed_logits

RESULTS = Path(__file__).parent / "results"
FANOUTS = [10, 10, 10]
# Name, and options; the cache on the device comes from the command line.
TIERS = [
    ("raw", "raw=true"),
    ("+ device", "raw=true:device_cache={size}"),
    ("+ merged", "cpu_cache=false:packing=false:device_cache={size}"),
    ("+ CPU", "packing=false:device_cache={size}"),
    ("+ packing", "device_cache={size}"),
    ("all but device", "cpu_cache=true"),
]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--store", type=Path, default=None, help="default: makes a graph")
    parser.add_argument("--nodes", type=int, default=2_000_000)
    parser.add_argument("--edges", type=int, default=30_000_000)
    parser.add_argument("--dim", type=int, default=128)
    parser.add_argument("--memory", default="1GB", help="of the data path, its cache included")
    parser.add_argument("--device-cache", default="10%", help="a size, or percent of the rows")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--batches", type=int, default=20)
    parser.add_argument("--batch-size", type=int, default=1000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--train", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--out", type=Path, default=RESULTS)
    add_dirty(parser)
    arguments = parser.parse_args()
    check_results(arguments.out / "device-tier.md", dirty=arguments.dirty)
    name = f"device-tier-{arguments.nodes}"
    path = arguments.store or rmat_store(name, arguments.nodes, arguments.edges, arguments.dim)
    with GraphStore(path) as store:
        text = report(store, arguments)
    arguments.out.mkdir(parents=True, exist_ok=True)
    (arguments.out / "device-tier.md").write_text(text)
    print(text)


@dataclass
class Measured:
    """One row of the table."""

    seconds: list[float]
    stall_seconds: float
    rows: int
    hits: dict[str, int]
    moved_bytes: int
    read_bytes: int
    prepare_seconds: float
    charges: dict[str, int]


def report(store: GraphStore, arguments: argparse.Namespace) -> str:
    device = choose_device(arguments.device)
    size = device_cache(store, arguments.device_cache)
    lines = [f"- {name}: {value}" for name, value in provenance(store.path).items()]
    lines += [
        f"- device: {device_name(device)}, torch {torch.__version__}",
        f"- features {format_size(store.num_nodes * store.encoding.row_bytes)}, memory "
        f"{arguments.memory}, device cache {size}, {arguments.batches} batches of "
        f"{arguments.batch_size} seeds, {'trained' if arguments.train else 'not trained'}",
        "",
        "| tiers | seconds | least to most | waiting | device hits | CPU hits | moved | read |",
        "|---|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for name, options in TIERS:
        found = measure(store, f"diskgnn:{options.format(size=size)}", device, arguments)
        lines.append(row(name, found))
        print(lines[-1], f"prepared in {found.prepare_seconds:.1f} s", found.charges, flush=True)
    return "\n".join(["# Tiers of DiskGNN", "", *lines, "", *transfers(device, arguments), ""])


def device_cache(store: GraphStore, text: str) -> str:
    if text.endswith("%"):
        return f"{int(store.num_nodes * float(text[:-1]) / 100)}rows"
    return format(parse_size(text))


def device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else str(device)


def measure(
    store: GraphStore, strategy: str, device: torch.device, arguments: argparse.Namespace
) -> Measured:
    seeds = store.split("train")[: arguments.batches * arguments.batch_size]
    start = time.perf_counter()
    loader = NeighborLoader(
        store, FANOUTS, seeds, batch_size=arguments.batch_size, shuffle=True,
        strategy=variant_named(strategy),
        memory=arguments.memory, epochs=1, device=device,
    )  # fmt: skip
    prepared = time.perf_counter() - start
    step = Trainer(store, device, arguments) if arguments.train else None
    seconds = []
    for _ in range(1 + arguments.repeats):
        start = time.perf_counter()
        for batch in loader.epoch(0):
            if step is not None:
                step(batch)
            del batch
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        seconds.append(time.perf_counter() - start)
    epoch = loader.record.epochs[-1]
    loader.close()
    on_device = epoch.hits.get("device cache", 0)
    moved = (epoch.rows - on_device) * 4 * store.encoding.dim
    return Measured(
        seconds[1:],
        epoch.stall_seconds,
        epoch.rows,
        epoch.hits,
        moved,
        epoch.bytes_read,
        prepared,
        loader.record.charges,
    )


class Trainer:
    """A step of GraphSAGE on a batch."""

    def __init__(
        self, store: GraphStore, device: torch.device, arguments: argparse.Namespace
    ) -> None:
        torch.manual_seed(0)
        options = TrainOptions(layers=len(FANOUTS), hidden=arguments.hidden)
        classes = int(store.labels.max()) + 1
        self._model = make_model(options, store.encoding.dim, classes).to(device)
        self._optimizer = torch.optim.Adam(self._model.parameters())

    def __call__(self, batch: Any) -> None:
        self._optimizer.zero_grad()
        loss = cross_entropy(seed_logits(self._model, batch), seed_labels(batch), ignore_index=-1)
        loss.backward()  # type: ignore[no-untyped-call]
        self._optimizer.step()


def row(name: str, found: Measured) -> str:
    def share(tier: str) -> str:
        return f"{found.hits.get(tier, 0) / found.rows:.0%}"

    cells = [
        name,
        f"{statistics.median(found.seconds):.2f}",
        f"{min(found.seconds):.2f} to {max(found.seconds):.2f}",
        f"{found.stall_seconds:.2f}",
        share("device cache"),
        share("cpu cache"),
        format_size(found.moved_bytes),
        format_size(found.read_bytes),
    ]
    return f"| {' | '.join(cells)} |"


def transfers(
    device: torch.device, arguments: argparse.Namespace, rows: int = 300_000
) -> list[str]:
    """How fast rows move to the device: as they are, from pinned memory, and copied there first."""
    if device.type != "cuda":
        return ["No GPU: nothing moved."]
    x = torch.rand(rows, arguments.dim)
    pinned = torch.empty_like(x).pin_memory()

    def plain() -> None:
        x.to(device, non_blocking=True)

    def from_pinned() -> None:
        pinned.to(device, non_blocking=True)

    def through_pinned() -> None:
        pinned.copy_(x)
        pinned.to(device, non_blocking=True)

    lines = [f"{format_size(x.nbytes)} to the device, best of ten:", ""]
    for move in (plain, from_pinned, through_pinned):
        best = float("inf")
        for _ in range(10):
            torch.cuda.synchronize(device)
            start = time.perf_counter()
            move()
            torch.cuda.synchronize(device)
            best = min(best, time.perf_counter() - start)
        lines.append(f"- {move.__name__.replace('_', ' ')}: {x.nbytes / best / 1e9:.1f} GB/s")
    return lines


if __name__ == "__main__":
    main()
