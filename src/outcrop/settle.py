"""Settle: batches that are wanted and one memory number -> how a strategy divides it.

Nothing is allocated and nothing is written: a strategy that does not fit is refused here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from functools import cached_property

from outcrop.batch import BatchShape, RowShape
from outcrop.budget import Budget, lendable
from outcrop.errors import OptionError
from outcrop.sample.edge_ids import edge_ids_bytes, keeps_edge_ids
from outcrop.sample.sampler import Sampler, Sampling
from outcrop.sample.seeds import SeedOrder, Task
from outcrop.sample.topology import paged_topology
from outcrop.store.store import GraphStore
from outcrop.strategies import strategy_named
from outcrop.strategies.base import MIN_BATCHES, Means, Sizes, Strategy

# Where in a schedule batches are sampled to see how large they are: the first places first.
_PROBED_PLACES = (0.0, 1.0, 0.5, 0.25, 0.75)
# Fewer, once so many edges were sampled. Not seconds: sizes decide what is found on disk again.
_PROBED_EDGES = 1 << 22
# Others may be larger than the largest of those: by so many times what lies between it and the
# smallest, within these bounds. Five of a normal distribution are 2.3 deviations apart, and of ten
# thousand the largest is 2.7 above the largest of five.
_MARGIN_OF_SPREAD = 1.5
_LEAST_MARGIN, _MOST_MARGIN = 0.1, 0.5
_MARGIN_OF_ONE = 0.15
_PROBE_THREADS = 16
# What is charged where the memory of batches is too little for what is lent.
LENT = "lent between epochs"


@dataclass(frozen=True)
class Wanted:
    """Which batches, and what may be used for them; whoever prepares them."""

    store: GraphStore
    sampling: Sampling
    seeds: SeedOrder
    """A schedule whose batches show how large batches are."""
    memory_bytes: int
    disk_bytes: int | None = None
    epochs: int | None = None
    device: str = "cpu"
    others: tuple[SeedOrder, ...] = ()
    """Further schedules whose batches must fit as well."""
    lent_bytes: int = 0
    """That other work between epochs needs: of the batches' memory, and what that lacks."""

    @cached_property
    def sampled(self) -> Sampled:
        """Sizes that are the same for every strategy."""
        return probe(self.store, self.sampling, self.seeds, *self.others)


@dataclass(frozen=True)
class Sampled:
    """How large batches are, with a margin, whatever their rows are held in."""

    nodes: int
    edges: int
    targets: int
    scratch_bytes: int
    """Of the sampler."""
    mean_nodes: int
    """Of the first schedule's batches, without a margin; so are the edges."""
    mean_edges: int

    def sizes(
        self, rows: RowShape, least: tuple[int, int] = (0, 0), *, edge_ids: bool = False
    ) -> Sizes:
        """`least`: nodes and edges that there must be room for in any case.

        `edge_ids`: whether batches have them.
        """
        shape = BatchShape(max(self.nodes, least[0]), max(self.edges, least[1]), rows, edge_ids)
        return Sizes(
            shape.nodes,
            shape.edges,
            self.targets,
            max(shape.charged_bytes(), 1),
            self.scratch_bytes,
            self.mean_nodes,
            self.mean_edges,
        )


@dataclass(frozen=True)
class Settled:
    """A strategy, and who gets what of the memory."""

    strategy: str
    """With its options, as it was named."""
    made: type[Strategy]
    rows: RowShape
    means: Means
    charges: Mapping[str, int]
    """What the strategy asked for, by name."""
    budget: Budget
    """With all charges, those that every strategy has included."""


def settle(wanted: Wanted, strategy: str) -> Settled:
    """BudgetError where the memory is too little, with the least that would do."""
    made, options = strategy_named(strategy)
    store = wanted.store
    rows = row_shape(
        store, staged=made.reads_stored_rows, in_slots=made.leaves_rows_in_slots(options)
    )
    assembly = made.assembly_bytes(store, options, wanted.device)
    if assembly:
        rows = replace(rows, staged_bytes=assembly)
    sizes = wanted.sampled.sizes(
        rows, made.largest_batch(store, options), edge_ids=wanted.sampling.edge_ids
    )
    if keeps_edge_ids(store, wanted.sampling):
        looking_up = edge_ids_bytes(store, sizes.edges, loaded=made.loads_edge_ids)
        sizes = replace(sizes, scratch_bytes=sizes.scratch_bytes + looking_up)
    budget = Budget(wanted.memory_bytes)
    common = common_needs(store, wanted.seeds)
    common[LENT] = max(0, wanted.lent_bytes - lendable(MIN_BATCHES * sizes.batch_bytes))
    least = sum(common.values()) + MIN_BATCHES * sizes.batch_bytes
    unsettled = Means(
        store=store,
        sampling=wanted.sampling,
        seeds=wanted.seeds,
        options=options,
        sizes=sizes,
        spare_bytes=0,
        disk_bytes=wanted.disk_bytes,
        epochs=wanted.epochs,
        device=wanted.device,
    )

    def with_memory(total: int) -> Means:
        return replace(unsettled, spare_bytes=max(total - least, 0))

    budget.settle(
        lambda total: {**common, **made.needs(with_memory(total))}, sizes.batch_bytes, MIN_BATCHES
    )
    means = with_memory(budget.total_bytes)
    charges = made.needs(means)
    return Settled(strategy, made, rows, means, charges, budget)


def probe(store: GraphStore, sampling: Sampling, *schedules: SeedOrder) -> Sampled:
    """Samples some batches of each schedule, from first to last, through the page cache.

    -> the largest that batches will be, as far as these tell.
    """
    found = [_probe(store, sampling, seeds) for seeds in schedules]
    largest = Sampled(*(max(sizes) for sizes in zip(*map(astuple, found), strict=True)))
    return replace(largest, mean_nodes=found[0].mean_nodes, mean_edges=found[0].mean_edges)


def _probe(store: GraphStore, sampling: Sampling, seeds: SeedOrder) -> Sampled:
    sampler = Sampler(sampling, paged_topology(store), seeds.seed, _PROBE_THREADS)
    nodes, edges, targets = [0], [0], [0]
    for task in _probed(seeds):
        subgraph = sampler.sample(task)
        nodes.append(len(subgraph.nodes))
        edges.append(len(subgraph.sources))
        targets.append(len(subgraph.counts))
        if sum(edges) > _PROBED_EDGES:
            break
    margin = 1 + max(_margin(nodes[1:]), _margin(edges[1:]))
    return Sampled(
        int(max(nodes) * margin),
        int(max(edges) * margin),
        int(max(targets) * margin),
        int(sampler.memory_bytes * margin),
        sum(nodes) // max(len(nodes) - 1, 1),
        sum(edges) // max(len(edges) - 1, 1),
    )


def _probed(seeds: SeedOrder) -> Iterator[Task]:
    """Batches across the schedule, each of another epoch; none that is shorter than others."""
    whole = max(len(seeds.nodes) // seeds.batch_size, 1)
    for epoch, place in enumerate(_PROBED_PLACES if len(seeds) else ()):
        yield seeds.task(epoch, round(place * (whole - 1)))


def _margin(sizes: Sequence[int]) -> float:
    if len(sizes) < 2 or not max(sizes):
        return _MARGIN_OF_ONE
    spread = (max(sizes) - min(sizes)) / max(sizes)
    return min(max(spread * _MARGIN_OF_SPREAD, _LEAST_MARGIN), _MOST_MARGIN)


def common_needs(store: GraphStore, seeds: SeedOrder) -> dict[str, int]:
    """What every strategy keeps resident."""
    labels = store.num_nodes * store.label_dtype.itemsize if store.has("labels") else 0
    return {
        "labels": labels,
        "seeds": 0 if isinstance(seeds.nodes, range) else seeds.nodes.nbytes,
        "disk engine": store.disk.memory_bytes,
        **({"checks": store.check_bytes} if store.check_bytes else {}),
    }


def row_shape(store: GraphStore, *, staged: bool, in_slots: bool = False) -> RowShape:
    """`staged`: rows are read as they are stored; all but float32 then need memory of their own.

    `in_slots`: batches have the slots of their rows in place of x.
    """
    if not store.has("features"):
        return RowShape(None, store.has("labels"))
    encoding = store.encoding
    if in_slots and encoding.name != "float32":
        raise OptionError(
            f"{store.path}: x=slots needs rows stored as float32 (got {encoding.name}); others are "
            "decoded on the way into x"
        )
    staged_bytes = encoding.row_bytes if staged and encoding.name != "float32" else None
    return RowShape(encoding.dim, store.has("labels"), staged_bytes, in_slots)
