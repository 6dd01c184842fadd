"""What outre.py measures by runs of strategies: lines, columns and conclusions of each figure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from pages import (
    BATCH,
    BESIDE,
    EPOCHS,
    FEATURE_BLOCKS,
    GRAPH_BLOCKS,
    PARTITIONING,
    READ,
    REQUESTS,
    ROWS,
    WHOLE,
    Column,
    Figure,
    Found,
    Paper,
    Rows,
    median,
)
from runs import Result, Run

_CHANCE, _PARTS = "by chance", "by partitions"
_STAGES = ("sample", "gather", "compute")
_ORDERED = ("community-2000k", "quick-2000k-128")


# Lines


def batchings(base: Run, *strategies: str) -> Rows:
    """Strategies with batches by chance and by partitions."""
    rows = []
    for name in strategies:
        run = replace(base, strategy=name)
        parts = replace(run, batching="partition")
        # This one has lists of partitions, and nothing to have without.
        rows += [(f"{name}, {_CHANCE}", run)] * ("topology=partition" not in name)
        rows += [(f"{name}, {_PARTS}", parts)]
    return rows


def preparing(base: Run, _: list[str]) -> Rows:
    names = ("ginex", "ginex:topology=partition", "gnndrive", "diskgnn", "agnes")
    return batchings(base, *names)


def node_orders(base: Run, _: list[str]) -> Rows:
    graphs = _ORDERED if base.graph in _ORDERED else (base.graph,)
    runs = [
        (f"{graph}{order}, {name}", replace(base, graph=f"{graph}{order}", strategy=name))
        for graph in graphs
        for order in ("", "-degree", "-bfs", "-community")
        for name in ("agnes", "direct")
    ]
    # Both that come of partitions, together.
    return runs + [
        (f"{label}, {_PARTS}", replace(run, batching="partition"))
        for label, run in runs
        if run.graph in graphs or run.graph.endswith("-community")
    ]


# What follows


def by_partitions(found: Found) -> Iterable[str]:
    """What partitions change, for each strategy."""
    for label, chance in found.items():
        name, _, how = label.rpartition(", ")
        some = found.get(f"{name}, {_PARTS}", [])
        if how == _CHANCE and chance and some:
            changes = [f"{column.head} {_change(chance, some, column)}"
                       for column in (WHOLE, BATCH, READ, ROWS)]  # fmt: skip
            yield f"{name}, {_PARTS}, against {_CHANCE}: {', '.join(changes)}"


def by_order(found: Found) -> Iterable[str]:
    """What each order changes, for each graph and strategy."""
    for label, original in found.items():
        graph, _, name = label.rpartition(", ")
        changes = [
            f"{order} {_change(original, found[f'{graph}-{order}, {name}'], BATCH)}"
            for order in ("degree", "bfs", "community")
            if original and found.get(f"{graph}-{order}, {name}")
        ]
        if changes:
            yield f"{label}, {BATCH.head}, against its own order: {', '.join(changes)}"


def _change(before: list[Result], after: list[Result], column: Column) -> str:
    old, new = median(before, column.value), median(after, column.value)
    return f"{new / old - 1:+.1%}" if old and new is not None else "-"


def prepared_share(found: Found) -> Iterable[str]:
    """How much of the time goes to data preparation."""
    for label, some in found.items():
        share = median(some, lambda r: 1 - r.stage_seconds("compute") / _stages(r))
        if share is not None:
            yield f"{label}: data preparation is {share:.1%} of these stages (paper: over 95 %)"


def _stages(result: Result) -> float:
    return sum(map(result.stage_seconds, _STAGES))


def stage(name: str) -> Column:
    return Column(f"s of {name}", lambda r: r.stage_seconds(name))


FIGURES = {
    "stages": Figure(
        "Where the time goes",
        "Table 1, seconds of sample / gather / transfer / compute: ogbn-products in 4 GB 374.61 / "
        "14.57 / 9.49 / 4.98, ogbn-papers100M in 64 GB 121.03 / 3542.62 / 75.21 / 20.94 (PyG over "
        "memory maps, compute on a GPU; here on the CPU, where nothing is transferred, and stages "
        "of several batches are busy at a time)",
        lambda base, _: batchings(replace(base, model="sage"), "mmap"),
        (
            *map(stage, _STAGES), Column("s of epochs", lambda r: r.total("seconds")), BATCH, ROWS,
        ), prepared_share,
    ),
    "prepare": Figure(
        "Data preparation with batches of partitions, everything counted",
        "Table 7: an epoch by chance, by METIS and by FENNEL takes 389.9, 213.6 and 235.4 s on "
        "ogbn-papers100M, 2089.4, 1640.7 and 1706.5 s on IGB-medium, partitioning not counted",
        preparing, (WHOLE, PARTITIONING, BATCH, READ, REQUESTS, ROWS, BESIDE), by_partitions,
        graph="community-quick", cold=True,
    ),
    "orders": Figure(
        "Nodes that lie partition by partition", "not in the paper",
        node_orders, (BATCH, GRAPH_BLOCKS, FEATURE_BLOCKS, *EPOCHS[1:]), by_order,
        graph=_ORDERED[0],
    ),
}  # fmt: skip
OUTRE = Paper("OUTRE", FIGURES)
