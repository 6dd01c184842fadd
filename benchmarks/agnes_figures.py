"""What agnes.py measures: the figures of AGNES, each with its lines, columns and conclusions."""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import pairwise
from typing import Any

from pages import (
    BATCH,
    EPOCHS,
    FEATURE_BLOCKS,
    FIRST,
    GRAPH_BLOCKS,
    HITS,
    READ_SIZE,
    WHOLE,
    WHOLE_RUN,
    WRITTEN,
    Column,
    Figure,
    Found,
    Paper,
    Rows,
    median,
    of,
)
from runs import Result, Run

# Columns

BLOCKS = Column("GB of blocks read (of ginex: all)", lambda r: r.block_bytes, scale=1e-9)
SPILLS = Column("GB of spills read back", lambda r: r.tier_bytes("chunks"), scale=1e-9)


def size_column(low: int, high: int) -> Column:
    head = f"up to {high >> 10} KiB" if high < 1 << 60 else "larger"
    return Column(head, lambda r: r.size_share(low, high), "{:.1%}")


_SIZES = [0, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 1 << 62]


# Lines

_ALL = ("agnes", "ginex", "gnndrive", "diskgnn", "diskgnn:refresh=background")


def against(name: str, values: Iterable[Any], **fixed: Any) -> Callable[[Run, list[str]], Rows]:
    """agnes and ginex, with a quantity of the run varied, and others as `fixed`."""
    return lambda base, _: [
        (f"{name} {value}, {strategy}", replace(base, strategy=strategy, **fixed, **{name: value}))
        for value in values
        for strategy in ("agnes", "ginex")
    ]


def budgets(*strategies: str) -> Callable[[Run, list[str]], Rows]:
    return lambda base, memories: [
        (f"{memory}, {name}", replace(base, strategy=name, memory=memory, cage=None))
        for memory in memories
        for name in strategies
    ]


def no_hyperbatch(base: Run, _: list[str]) -> Rows:
    few = replace(base, strategy="agnes:hyperbatch=1", epochs=1, batches=min(base.batches or 4, 4))
    return [("agnes", replace(base, strategy="agnes")), (f"of one batch, {few.batches} timed", few)]


def node_orders(base: Run, _: list[str]) -> Rows:
    graphs = [f"{name}{order}" for name in ("community-2000k", "quick-2000k-128")
              for order in ("", "-degree", "-bfs")]  # fmt: skip
    return [(graph, replace(base, graph=graph, strategy="agnes", memory="10%", cage=None))
            for graph in graphs]  # fmt: skip


# What follows


def faster(found: Found, column: Column = WHOLE) -> Iterable[str]:
    """How many times as long as agnes the others took."""
    own = median(found.get("agnes", []), column.value)
    others = {name: median(some, column.value) for name, some in found.items() if name != "agnes"}
    ratios = [f"{name} {value / own:.2f}" for name, value in others.items() if own and value]
    return [f"{column.head}, as a multiple of agnes: {', '.join(ratios)}"] if ratios else []


_MOST_GROWTH = 1.25
"""Of the blocks that are read, from some memory to a quarter of it."""


def stays_flat(found: Found) -> Iterable[str]:
    """Whether agnes reads about the same blocks with little memory as with much."""
    own = [median(some, lambda r: r.block_bytes) for name, some in found.items()
           if name.endswith("agnes")]  # fmt: skip
    if own and own[0] and own[-1]:
        ratio = own[0] / own[-1]
        met = "met" if ratio <= _MOST_GROWTH else "MISSED"
        yield (
            f"blocks read at the least memory: {ratio:.2f} of those at the most (target: "
            f"{_MOST_GROWTH} at a quarter of it; {met})"
        )


def pays_off(found: Found) -> Iterable[str]:
    """After how many epochs the layout of agnes has paid against each of the others."""
    agnes = found.get("agnes", [])
    own, made = median(agnes, epoch_seconds), median(agnes, lambda r: r.layout_seconds)
    for name, some in found.items():
        theirs, before = median(some, epoch_seconds), median(some, lambda r: r.layout_seconds)
        if name == "agnes" or own is None or theirs is None or made is None or before is None:
            continue
        if own >= theirs:
            yield f"against {name}: its epochs are not longer, so the layout never pays"
        else:
            epochs = max(made - before, 0.0) / (theirs - own)
            yield f"against {name}: the layout has paid after {epochs:.2f} epochs"


def epoch_seconds(result: Result) -> float:
    return result.total("seconds") / len(result.epochs)


PREPARE = Figure(
    "Data preparation, everything counted",
    "Figure 6: an epoch of agnes is up to 3.1 (32 GB) and 4.1 times (8 GB) as fast as ginex's, the "
    "best of the others, with training on a GPU",
    of(*_ALL), WHOLE_RUN, faster, rounds=3, cold=True,
)  # fmt: skip
FIGURES = {
    "prepare": PREPARE,
    "huge": replace(
        PREPARE, title="100 batches of a graph of 1000M edges",
        paper="Figure 6, yahoo-web: 1.4B nodes, 6.6B edges",
        rows=of("agnes", "ginex", "diskgnn"), graph="huge", rounds=1,
    ),
    "memory": Figure(
        "Memory",
        "Figure 10a: 1 to 16 GB of buffer; agnes stays about as fast, ginex slows down as memory "
        "shrinks",
        budgets("agnes", "ginex"), (BATCH, BLOCKS, SPILLS, WRITTEN, *EPOCHS[1:]), stays_flat,
        graph="standard", memory="900MB,1800MB,2700MB,3600MB",
    ),
    "hyperbatch": Figure(
        "Without hyperbatches", "Figure 8: up to 622 times as long without",
        no_hyperbatch, EPOCHS, lambda found: faster(found, BATCH),
    ),
    "blocks": Figure(
        "Block size", "Figure 9a: 1 MiB is the fastest of 64 KiB to 4 MiB",
        of(*(f"agnes:block_bytes={1 << bits}" for bits in range(16, 23))), EPOCHS,
    ),
    "length": Figure(
        "Length of hyperbatches", "Figure 9b: the fastest from 1024 batches on, of 64 to 2048",
        of(*(f"agnes:hyperbatch={1 << bits}" for bits in range(3, 8)), "agnes"), EPOCHS,
    ),
    "sizes": replace(
        PREPARE, title="Sizes of reads",
        paper="Figure 2b: of ginex and gnndrive, most are small, and few are very large",
        columns=(*(size_column(*pair) for pair in pairwise(_SIZES)), READ_SIZE), notes=None,
    ),
    "bandwidth": replace(
        PREPARE, title="The drive's bandwidth",
        paper="Figure 11: agnes uses up to 17.3 GB/s of 4 drives of 6.7 GB/s, up to 4.5 times as "
        "much as the best of the others",
        columns=(
            Column("GB/s in the best second", lambda r: max(r.bandwidths), scale=1e-9),
            Column("GB/s of epochs", lambda r: statistics.mean(r.bandwidths), scale=1e-9),
            Column("fio in sequence", lambda r: r.fio, scale=1e-9),
            Column("the best second, of it", lambda r: max(r.bandwidths) / r.fio, "{:.0%}"),
            Column("epochs", lambda r: statistics.mean(r.bandwidths) / r.fio, "{:.0%}"),
        ), notes=None,
    ),
    "pays": replace(
        PREPARE, title="When the layout has paid", paper="not in the paper",
        rows=of("agnes", "ginex"),
        columns=(
            Column("s per epoch", epoch_seconds), FIRST, WHOLE,
            Column("s for layouts", lambda r: r.layout_seconds),
            Column("GB of layouts", lambda r: r.layout_bytes, scale=1e-9),
        ), notes=pays_off,
    ),
    "overall": Figure(
        "Two budgets", "Figure 6: up to 3.1 times as fast as ginex in 32 GB, 4.1 times in 8 GB",
        budgets("agnes", "ginex", "gnndrive", "diskgnn"), WHOLE_RUN, cold=True, memory="10%,2.5%",
    ),
    "unit": Figure(
        "Larger reads alone",
        "Figure 4: with large units ginex reads more than 15 TB, and finds less than 0.06 % of its "
        "rows cached",
        of("agnes", *(f"ginex:read_unit={1 << bits}" for bits in (12, 14, 16, 18, 20))),
        (*EPOCHS, HITS), lambda found: faster(found, BATCH),
    ),
    "drive": Figure(
        "A slower drive",
        "Figure 10e: 4 drives take 18 % off an epoch of agnes on average, nothing off ginex's",
        against("rate", (0.25, 0.5, 1.0)), EPOCHS,
    ),
    "threads": Figure(
        "CPUs", "Figure 10b: both gain from 1 to 16 threads, agnes more",
        against("cpus", [1 << bits for bits in range((os.cpu_count() or 1).bit_length())]), EPOCHS,
    ),
    "fanout": Figure(
        "Neighbours per hop", "Figure 10d: agnes grows linearly from 5 to 15, ginex faster",
        against("fanout", (5, 10, 15), memory="10%", cage=None), EPOCHS,
    ),
    "dim": Figure(
        "Dimensions", "Figure 10c: of 64 to 512, agnes gains most where rows are small",
        against("graph", [f"quick-2000k-{dim}" for dim in (64, 128, 256, 512)], memory="10%",
                cage=None), EPOCHS,
    ),
    "orders": Figure(
        "The order of nodes",
        "section 3.2: ids are assigned so that what is used together lies together; no figure",
        node_orders,
        (BATCH, GRAPH_BLOCKS, FEATURE_BLOCKS, *EPOCHS[1:]),
    ),
}  # fmt: skip
AGNES = Paper("AGNES", FIGURES)
