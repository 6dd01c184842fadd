"""Cases: a graph, a strategy and its memory -> everything that the ledger keeps of it.

Only what users see is used: loaders, their records, refusals, names under `derived`.
"""

from __future__ import annotations

import hashlib
import re
import shutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch_geometric.data import Data

import outcrop
from outcrop.errors import BudgetError
from outcrop.tools.bench.digest import digest_batches
from outcrop.tools.bench.variants import variant_named

# One thread with pread, on any machine: sizes do not depend on io_uring, nor requests on which of
# several threads comes first.
DISK = outcrop.DiskOptions(engine="pool", workers=1)
CLASSES = 4
# What auto may write; else a quarter of what is free decides.
AUTO_DISK = 50_000_000
# Batches that are looked at with the least memory.
LEAST_BATCHES = 3
_LEAST = re.compile(r"the smallest that would do is (\d+)MB")
_MB = 10**6
# Room for everything.
_MUCH = 300 * _MB


# Graphs


@dataclass(frozen=True)
class Made:
    """A graph, and how its store is made."""

    nodes: int
    edges: int
    dim: int | None
    encoding: str
    train: int
    seed: int
    edge_ids: bool = False
    isolated: int = 0
    """Of the last nodes: those without an edge."""
    loops: int = 0
    batch_size: int = 40


GRAPHS = {
    "power": Made(3000, 30_000, 32, "float32", 400, 1),
    # More rows than there is memory for while diskgnn prepares, so that its cache has only some.
    "wide": Made(6000, 40_000, 1000, "float32", 160, 5, batch_size=20),
    # Rows of 35 bytes, none of them aligned.
    "odd": Made(2000, 16_000, 31, "int8", 300, 2, edge_ids=True, isolated=100, loops=200),
    "half": Made(1500, 9_000, 13, "float16", 200, 3, edge_ids=True, isolated=40, loops=50),
    "bare": Made(2000, 20_000, None, "float32", 300, 4),
}


def make_graph(path: Path, name: str) -> None:
    """The store of a graph. Its numbers are exact in every encoding, on every machine."""
    made = GRAPHS[name]
    rng = np.random.default_rng(made.seed)
    linked = made.nodes - made.isolated
    edges = np.stack([_hubs(rng, linked, made.edges), rng.integers(0, linked, made.edges)])
    edges[1, : made.loops] = edges[0, : made.loops]
    parts: dict[str, Any] = {"edge_index": torch.from_numpy(edges), "num_nodes": made.nodes}
    if made.dim is not None:
        # int8 has a scale per row, the largest value: 127 / 64 leaves all others as they are.
        rows = rng.integers(-127, 128, (made.nodes, made.dim))
        rows[:, 0] = 127
        parts["x"] = torch.from_numpy((rows / 64).astype(np.float32))
    parts["y"] = torch.from_numpy(rng.integers(0, CLASSES, made.nodes))
    ids = rng.permutation(made.nodes)
    ends = (0, made.train, made.train + made.train // 2, made.nodes)
    for split, begin, end in zip(("train", "val", "test"), ends, ends[1:], strict=False):
        mask = torch.zeros(made.nodes, dtype=torch.bool)
        mask[torch.from_numpy(ids[begin:end])] = True
        parts[f"{split}_mask"] = mask
    encoding: dict[str, Any] = {} if made.dim is None else {"feature_dtype": made.encoding}
    outcrop.from_pyg(Data(**parts), path, edge_ids=made.edge_ids, **encoding).close()


def _hubs(rng: np.random.Generator, nodes: int, count: int) -> NDArray[np.int64]:
    """Ids by a power law, spread over all of them."""
    place = rng.random(count)
    rank = (place * place * place * nodes).astype(np.int64)
    return rng.permutation(nodes)[rank]


# Cases


@dataclass(frozen=True)
class Case:
    """Two epochs of the loop, with one of validation between them, and a direct call."""

    graph: str
    strategy: str
    epochs: int | None = None
    """That the loader is told of."""
    loops: int = 2
    disk: int | None = None
    spare: int | None = 150_000
    """Memory beyond the least, so that caches have room for some rows; None: for all."""
    kind: str = "neighbor"
    edge_ids: bool = True
    more: tuple[tuple[str, Any], ...] = ()
    """Further arguments of the loader."""

    @property
    def name(self) -> str:
        parts = [self.graph, *(["shadow"] if self.kind == "shadow" else []), self.strategy]
        parts += [f"epochs={self.epochs}"] if self.epochs is not None else []
        parts += [f"disk={self.disk}"] if self.disk is not None else []
        parts += [] if self.spare == Case.spare else [f"spare={self.spare}"]
        parts += [f"{name}={value}" for name, value in self.more]
        return " ".join(parts + ([] if self.edge_ids else ["no e_id"]))

    def memory(self, least: int) -> int:
        return _MUCH if self.spare is None else least + self.spare

    def limit(self, place: str, value: int) -> int:
        """The most that a count may be, in this place of the ledger, where it was seen as this."""
        tolerance = 0.01
        if self.raced:
            tolerance = 0.3
        elif self.strategy.startswith("ginex") and "mode=split" not in self.strategy:
            tolerance = 0.02
        one = 1 if "requests" in place else 4096
        return int(value * (1 + tolerance)) + (one if tolerance > 0.01 else 0)

    @property
    def raced(self) -> bool:
        """Whether threads decide what is read: who comes first claims a slot, or reads ahead."""
        return "refresh" in self.strategy or self.strategy.startswith("gnndrive")


_POWER = [
    "memory",
    "mmap",
    "mmap:threads=2",
    "direct",
    "pagraph",
    "pagraph:neighbors=0.2",
    "ginex",
    "ginex:superbatch=3",
    "ginex:superbatch=3:topology=mmap",
    "ginex:superbatch=3:policy=static",
    "ginex:superbatch=3:policy=lru",
    "ginex:superbatch=3:read_unit=8192",
    "ginex:superbatch=3:metric=out",
    "ginex:mode=split",
    "ginex:mode=split:superbatch=3:overlap=true",
    "ginex:mode=split:superbatch=3:overlap=false",
    "ginex:mode=split:superbatch=3:overlap=true:topology=mmap",
    "ginex:mode=split:superbatch=3:overlap=false:policy=static:neighbors=0.5",
    "ginex:mode=split:superbatch=3:overlap=true:policy=lru",
    "gnndrive",
    "gnndrive:x=slots",
    "gnndrive:order=completion",
    "gnndrive:topology=mmap",
    "gnndrive:topology=cache",
    "gnndrive:reuse=frequency",
    "gnndrive:reuse=lru",
    "gnndrive:prefetch=false",
    "gnndrive:extractors=1",
    "gnndrive:samplers=1:extractors=1:reuse=lru:prefetch=false:buffer=0.5",
    "gnndrive:samplers=1:extractors=1:reuse=frequency:prefetch=false",
]
_WIDE = [
    "memory",
    "mmap",
    "direct",
    "pagraph",
    "pagraph:neighbors=0.2",
    "ginex",
    "ginex:mode=split:superbatch=3:overlap=true",
    "gnndrive",
    "diskgnn",
    "diskgnn:distinct_epochs=2",
    "diskgnn:cycle=true",
    "diskgnn:packing=false",
    "diskgnn:raw=true",
    "diskgnn:cpu_cache=false",
    "diskgnn:cache_share=0.5",
    "diskgnn:topology=cache",
    "diskgnn:topology=memory",
    "diskgnn:device_cache=100rows",
    "diskgnn:pipeline=off",
    "diskgnn:verify_rows=true",
]
_OTHERS = [
    "memory",
    "mmap",
    "direct",
    "pagraph",
    "ginex:superbatch=3",
    "ginex:mode=split:superbatch=3:overlap=true",
    "gnndrive",
    "gnndrive:samplers=1:extractors=1:reuse=lru:prefetch=false:topology=cache",
    "diskgnn:distinct_epochs=2",
]

_SPARE = 6_000_000

CASES = [
    *(Case("power", strategy) for strategy in _POWER),
    Case("power", "direct", edge_ids=False),
    Case("power", "direct", more=(("check", True),)),
    Case("power", "direct", more=(("lent_bytes", 3_000_000),)),
    Case("power", "ginex:superbatch=3", more=(("check", True),)),
    Case("power", "gnndrive", more=(("replace", True), ("drop_last", True))),
    Case("power", "ginex:mode=split", spare=None),
    Case("power", "ginex", spare=None),
    Case("power", "gnndrive", spare=None),
    Case("power", "pagraph", spare=None),
    *(Case("wide", strategy, spare=_SPARE) for strategy in _WIDE),
    Case("wide", "diskgnn", epochs=2, spare=_SPARE),
    Case("wide", "diskgnn:refresh=background", epochs=3, loops=3, spare=_SPARE),
    Case("wide", "diskgnn:distinct_epochs=2:refresh=background", epochs=3, loops=3, spare=_SPARE),
    Case("wide", "diskgnn:cpu_cache=false", epochs=2, disk=12_000_000, spare=_SPARE),
    Case("wide", "diskgnn", edge_ids=False, epochs=2, spare=_SPARE),
    Case("wide", "diskgnn", spare=None, epochs=2),
    Case("wide", "diskgnn", spare=_SPARE, more=(("check", True),)),
    Case("wide", "diskgnn", spare=_SPARE, epochs=2, more=(("replace", True), ("drop_last", True))),
    *(Case("odd", strategy, spare=30_000) for strategy in _OTHERS),
    Case("half", "diskgnn:device_cache=50rows", spare=20_000),
    Case("half", "direct", spare=20_000, edge_ids=False),
    *(Case("bare", strategy) for strategy in _OTHERS),
    *(Case("power", strategy, kind="shadow") for strategy in _OTHERS),
]  # fmt: skip
BY_NAME = {case.name: case for case in CASES}
AUTO_MEMORIES = ["60MB", "35MB", "28MB", "20MB", "8MB", "5.4MB", "4MB"]


def make_loader(store: Any, case: Case, memory: int | str) -> Any:
    options: dict[str, Any] = {
        "input_nodes": "train",
        "batch_size": GRAPHS[case.graph].batch_size,
        "shuffle": True,
        "seed": 7,
        "strategy": "auto" if case.strategy == "auto" else variant_named(case.strategy),
        "memory": memory,
        "disk": case.disk,
        "epochs": case.epochs,
        "edge_ids": case.edge_ids,
        **dict(case.more),
    }
    if case.kind == "shadow":
        return outcrop.ShaDowLoader(store, 2, 3, **options)
    return outcrop.NeighborLoader(store, [5, 4], **options)


# What is seen


def observe(path: Path, case: Case, memory: int) -> dict[str, Any]:
    """All that the ledger keeps of a case, of a store without layouts."""
    forget_layouts(path)
    with outcrop.open(path, DISK) as store:
        loader = make_loader(store, case, memory)
        val = loader.sibling("val", shuffle=False)
        digests = []
        for epoch in range(case.loops):
            digests.append(digest(loader, case.strategy))
            if epoch == 0:
                digests.append(digest(val, case.strategy))
        digests.append(digest([loader([3, 1])], case.strategy))
        record = loader.record.as_dict()
        loader.close()
        counters = store.counters
        layouts = sorted(layout["name"] for layout in store.derived.used())
    return {
        "memory": memory,
        "digests": digests,
        "epochs": [_epoch(entry) for entry in record["epochs"]],
        "whole": {
            "read_requests": counters.read_requests,
            "bytes_read": counters.bytes_read,
            "bytes_written": counters.bytes_written,
        },
        "charges": record["charges"],
        "charged_bytes": sum(record["charges"].values()),
        "batch_memory_bytes": record["batch_memory_bytes"],
        "depth": record["depth"],
        "order": record["order"],
        "layouts": layouts,
        "left": leftovers(path),
    }


def _epoch(entry: dict[str, Any]) -> dict[str, Any]:
    names = (
        "stream", "epoch", "batches", "seeds", "sampled_edges", "rows", "row_bytes", "hits",
        "tier_bytes", "read_requests", "bytes_wanted", "bytes_read", "unprepared_batches",
    )  # fmt: skip
    return {name: entry[name] for name in names}


def digest(batches: Iterable[Any], strategy: str = "") -> str:
    """Of all that batches have; of the set of them where their order is the machine's."""
    if "order=completion" not in strategy:
        return digest_batches(batches)
    each = []
    for batch in batches:
        each.append(digest_batches([batch]))
        del batch
    return hashlib.sha256(" ".join(sorted(each)).encode()).hexdigest()[:32]


def observe_least(path: Path, case: Case, memory: int) -> str:
    """The digest of the first batches with so much memory; BudgetError where it is too little."""
    forget_layouts(path)
    with outcrop.open(path, DISK) as store:
        loader = make_loader(store, case, memory)
        found = digest(loader.epoch(0, batches=LEAST_BATCHES), case.strategy)
        loader.close()
    return found


def least_memory(path: Path, case: Case) -> int:
    """The least memory in steps of 10 kB: what the refusal names, in MB, and less as far as it
    goes."""

    def accepts(memory: int) -> bool:
        try:
            make_loader(store, case, memory).close()
        except BudgetError:
            return False
        return True

    forget_layouts(path)
    with outcrop.open(path, DISK) as store:
        accepted = refused_least(lambda: make_loader(store, case, 1))
        assert accepts(accepted), "the refusal names what would do"
        refused = accepted - _MB
        while accepted - refused > 10_000:
            middle = (accepted + refused) // 2 // 10_000 * 10_000
            if middle <= refused:
                break
            if accepts(middle):
                accepted = middle
            else:
                refused = middle
    return accepted


def refused_least(make: Callable[[], Any]) -> int:
    """What the refusal names as the least."""
    try:
        make()
    except BudgetError as error:
        found = _LEAST.search(str(error))
        assert found is not None, error
        return int(found[1]) * _MB
    raise AssertionError("a budget of one byte was accepted")


def observe_auto(path: Path, memory: str) -> str:
    """What auto takes with so much memory, or that it is refused."""
    case = Case("wide", "auto", epochs=2, disk=AUTO_DISK)
    forget_layouts(path)
    with outcrop.open(path, DISK) as store:
        try:
            loader = make_loader(store, case, memory)
        except BudgetError:
            return "refused"
        chosen = loader.record.strategy
        loader.close()
    return str(chosen)


def forget_layouts(path: Path) -> None:
    shutil.rmtree(path / "derived", ignore_errors=True)


def leftovers(path: Path) -> list[str]:
    """Kinds of what lies under `derived` once the loader is closed."""
    return sorted(at.name.partition("-")[0] for at in (path / "derived").glob("*"))
