"""What outre.py measures by runs of strategies: lines, columns and conclusions of each figure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from itertools import product

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
_HISTORY = "width=256:staleness=100"
_OUTRE, _GINEX = f"outre, {_HISTORY}", f"ginex, {_CHANCE}"
_TARGET_SPEEDUP, _TARGET_BYTES = 1.25, 0.05
_AUTOMATIC = "automatic"


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


def embeddings(base: Run, _: list[str]) -> Rows:
    """outre against others, with and without embeddings that are used again."""
    ginex, outre = replace(base, strategy="ginex"), with_outre(base)
    return [
        (_GINEX, ginex),
        (f"ginex, buffered reads, {_CHANCE}", replace(ginex, access="buffered")),
        (f"ginex, {_PARTS}", replace(ginex, batching="partition")),
        (f"gnndrive, {_CHANCE}", replace(base, strategy="gnndrive")),
        (f"agnes, {_CHANCE}", replace(base, strategy="agnes")),
        ("outre, no embeddings", replace(outre, history="")),
        (_OUTRE, outre),
        # Neither is of one strategy: batches, embeddings and how rows are read are composed.
        (f"agnes, {_PARTS}, {_HISTORY}", replace(outre, strategy="agnes")),
    ]


def with_outre(base: Run, history: str = "") -> Run:
    """`history`: options of embeddings, beside the usual ones."""
    options = ":".join([_HISTORY, *filter(None, [history])])
    return replace(base, strategy="outre", batching="partition", history=options)


def trained(base: Run, _: list[str]) -> Rows:
    """Models of two and three layers, a hop for each."""
    runs = []
    for model, hops in product(("sage", "gat", "gcn"), (2, 3)):
        run = replace(base, model=model, hops=hops)
        name = f"{model}, {hops} layers"
        ginex = replace(run, strategy="ginex")
        runs += [(f"{name}, ginex", ginex)]
        runs += [(f"{name}, ginex with buffered reads", replace(ginex, access="buffered"))]
        runs += [(f"{name}, outre", with_outre(run))]
    return runs


def shares(base: Run, _: list[str]) -> Rows:
    """The part of the caches' memory that embeddings have, from none to all of it."""
    sweep = [f"{step / 10:g}" for step in range(11)]
    runs = [(f"share {one}", with_outre(base, f"share={one}")) for one in sweep]
    return [*runs, (_AUTOMATIC, with_outre(base))]


def metrics(base: Run, _: list[str]) -> Rows:
    """Who has an embedding, at the same shares."""
    shares = [(_AUTOMATIC, ""), ("share 0.25", "share=0.25"), ("share 0.5", "share=0.5")]
    runs = []
    for label, share in shares:
        runs += [(f"{label}, saved", with_outre(base, share))]
        runs += [(f"{label}, degree", with_outre(base, f"{share}:metric=degree".strip(":")))]
    return runs


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


def speedup(found: Found) -> Iterable[str]:
    """How many times faster outre is, and whether that is enough."""
    for label in (label for label in found if label != _OUTRE):
        ratio = _ratio(found[label], found[_OUTRE], BATCH)
        later = _ratio(found[label], found[_OUTRE], LATER)
        if ratio is not None and later is not None:
            told = (
                f"{label} takes {ratio:.2f} times as long in epochs as {_OUTRE}, and {later:.2f} "
            )
            told += "times beyond the first"
            if label == _GINEX:
                met = "met" if ratio >= _TARGET_SPEEDUP else "MISSED"
                told += f"; target {_TARGET_SPEEDUP} in epochs: {met}"
            yield told


def by_model(found: Found) -> Iterable[str]:
    for label in found:
        name, _, strategy = label.rpartition(", ")
        if strategy != "outre":
            ratio = _ratio(found[label], found[f"{name}, outre"], BATCH)
            if ratio is not None:
                yield f"{name}: {strategy} takes {ratio:.2f} times as long in epochs as outre"


def search(found: Found) -> Iterable[str]:
    """Whether the share that is found is as good as the best one there is."""
    read = {label: median(some, LATER_GB.value) for label, some in found.items()}
    automatic = read.pop(_AUTOMATIC)
    measured = {label: value for label, value in read.items() if value is not None}
    if automatic is not None and measured:
        best = min(measured, key=lambda label: measured[label])
        change = automatic / measured[best] - 1
        met = "met" if change <= _TARGET_BYTES else "MISSED"
        yield (f"{_AUTOMATIC} reads {change:+.1%} against the best, {best}; target: at most "
               f"{_TARGET_BYTES:+.0%}: {met}")  # fmt: skip


def by_metric(found: Found) -> Iterable[str]:
    for label in found:
        share, _, metric = label.rpartition(", ")
        if metric == "degree":
            ratio = _ratio(found[label], found[f"{share}, saved"], LATER_GB)
            if ratio is not None:
                yield f"{share}: by degree, {ratio - 1:+.1%} is read against what is saved"


def _ratio(some: list[Result], others: list[Result], column: Column) -> float | None:
    value, other = median(some, column.value), median(others, column.value)
    return value / other if other and value is not None else None


def _stages(result: Result) -> float:
    return sum(map(result.stage_seconds, _STAGES))


PROFILING = Column("of them profiling", lambda r: r.profile_seconds)
# Windows cross the ends of epochs: the first one samples and fills for those after it.
LATER = Column("s/batch beyond the first epoch, less what that made ahead",
               lambda r: r.later("seconds"), "{:.3f}")  # fmt: skip
LATER_ROWS = Column("rows/batch there", lambda r: r.later("rows"), "{:,.0f}")
PULLED = Column("pulled/batch there", lambda r: r.later("pulled"), "{:,.0f}")
PUSHED = Column("pushed/batch there", lambda r: r.later("pushed"), "{:,.0f}")
LATER_GB = Column(
    "GB read there, per epoch",
    lambda r: r.later("bytes_read") * r.total("batches") / len(r.epochs), "{:.3f}", 1e-9,
)  # fmt: skip
FETCHED = Column("rows read/batch there", lambda r: r.later("fetched_rows"), "{:,.0f}")
KEPT = Column("thousand embeddings", lambda r: r.planned("embeddings"), "{:,.1f}", 1e-3)


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
    "embeddings": Figure(
        "Embeddings that are used again, everything counted",
        "Table 6, an epoch of a 3-layer GraphSAGE by Ginex, by Ginex with buffered reads and by "
        "OUTRE takes 605.4, 338.0 and 235.4 s on ogbn-papers100M, 3773.6, 2707.8 and 1706.5 s on "
        "IGB-medium; thousand reads are those that were asked for, also of the page cache",
        embeddings, (
            WHOLE, PARTITIONING, PROFILING, BATCH, LATER, READ, REQUESTS, ROWS, LATER_ROWS, PULLED,
            KEPT, BESIDE,
        ), speedup, graph="community-standard-40", cold=True, epochs=3,
    ),
    "layers": Figure(
        "Two and three layers of three models",
        "Table 6, an epoch of ogbn-papers100M by Ginex, by Ginex with buffered reads and by OUTRE: "
        "GraphSAGE 275.7, 227.6 and 178.1 s with two layers, 605.4, 338.0 and 235.4 s with three; "
        "GAT 288.8, 245.1, 180.2 and 654.6, 344.2, 226.7 s; GCN 277.0, 231.7, 174.3 and 611.9, "
        "357.2, 202.2 s (compute on a GPU; here on the CPU)",
        trained, (BATCH, LATER, *map(stage, _STAGES), LATER_ROWS, PULLED), by_model,
        graph="community-standard-10", epochs=2,
    ),
    "alpha": Figure(
        "The share of embeddings",
        "Figure 5: the best share is near that with the highest benefit, 0.25 on ogbn-papers100M "
        "and 0.52 on IGB-medium",
        shares, (LATER_GB, FETCHED, LATER_ROWS, PULLED, PUSHED, KEPT, LATER), search,
        graph="community-quick", epochs=3,
    ),
    "importance": Figure(
        "Who has an embedding", "Table 12: its numbers are not in the text that we have",
        metrics, (LATER_GB, FETCHED, LATER_ROWS, PULLED, PUSHED, KEPT, LATER), by_metric,
        graph="community-quick", epochs=3,
    ),
}  # fmt: skip
OUTRE = Paper("OUTRE", FIGURES)
