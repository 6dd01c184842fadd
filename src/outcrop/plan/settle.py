"""Settle: batches that are wanted and one memory number -> a plan, and who gets what.

Nothing is allocated and nothing is written: a strategy that does not fit is refused here.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from dataclasses import astuple, dataclass, replace
from functools import cached_property

from outcrop.ahead.profiling import making_bytes, open_savings
from outcrop.errors import BudgetError
from outcrop.layout.samples import ImportedSamples, find_samples
from outcrop.layout.savings import KIND as SAVINGS
from outcrop.layout.savings import SavingsFacts, read_facts, savings_inputs
from outcrop.memory.budget import Budget, Demand
from outcrop.memory.charges import Phase, total
from outcrop.memory.context import BatchSizes, Context, DiskFacts, HistoryFacts
from outcrop.options import format_size, size_of_at_least
from outcrop.plan.plan import Plan, Strategy
from outcrop.plan.tiers import with_tiers
from outcrop.progress import SILENT, Progress
from outcrop.sample.history import HistoryOptions, check_history
from outcrop.sample.sampler import Sampler, Sampling
from outcrop.sample.seeds import Ids, SeedOrder, Task
from outcrop.store.store import GraphStore
from outcrop.topology.parts import paged_topology

# Where in a schedule batches are sampled to see how large they are: the first places first.
_PROBED_PLACES = (0.0, 1.0, 0.5, 0.25, 0.75)
# Fewer, once so many edges were sampled. No clock decides: sizes say what is found on disk again.
_PROBED_EDGES = 1 << 22
# Other batches may be larger than the largest of those: by so many times its distance from the
# smallest, within these bounds. Five of a normal distribution are 2.3 deviations apart, and of ten
# thousand the largest is 2.7 above the largest of five.
_MARGIN_OF_SPREAD = 1.5
_LEAST_MARGIN, _MOST_MARGIN = 0.1, 0.5
_MARGIN_OF_ONE = 0.15
_PROBE_THREADS = 16


@dataclass(frozen=True)
class Wanted:
    """Which batches, and what may be used for them, whichever strategy prepares them."""

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
    """What other work between epochs needs: the batches' memory, and what that lacks."""
    history: HistoryOptions | None = None
    """Which embeddings are used again; None: none."""
    candidates: Ids | None = None
    """Whose they are, ascending; None: they are chosen."""
    progress: Progress = SILENT
    """Is told of what has to be known before."""
    _found_savings: SavingsFacts | None = None

    @cached_property
    def sampled(self) -> BatchSizes:
        """Sizes that are the same for every strategy."""
        return probe(self.store, self.sampling, self.seeds, *self.others)

    @cached_property
    def disk(self) -> DiskFacts:
        derived = self.store.derived
        free = shutil.disk_usage(derived.folder).free
        return DiskFacts(self.disk_bytes, free, derived.writable)

    def _savings(self, context: Context) -> SavingsFacts:
        """Found, or made: that is an epoch of sampling, once for all strategies.

        BudgetError where even making it takes more memory than there is, or more disk.
        """
        if self._found_savings is None:
            needed = making_bytes(context) + total(context.common, Phase.PREPARE)
            if needed > self.memory_bytes:
                raise BudgetError(
                    f"memory={format_size(self.memory_bytes)} is too little for the profile of an "
                    f"epoch; the smallest that would do is {size_of_at_least(needed)} "
                    "(history=...:nodes=N:metric=degree needs none)"
                )
            store, seeds, staleness = self.store, self.seeds, context.staleness
            inputs = savings_inputs(self.sampling, seeds, staleness)
            if not store.derived.path(SAVINGS, inputs).exists():
                _check_trace_fits(context)
            with open_savings(store, self.sampling, seeds, staleness, self.progress) as layout:
                found = read_facts(layout.path)
            object.__setattr__(self, "_found_savings", found)
            return found
        return self._found_savings

    def _history_facts(self) -> HistoryFacts | None:
        if self.history is None:
            return None
        check_history(self.sampling, self.candidates, self.store.num_nodes)
        return HistoryFacts(self.history, self.candidates)

    def _wants_savings(self, options: object) -> bool:
        history = None if self.candidates is not None else self.history
        profiles = getattr(options, "profiles", lambda _: False)
        return profiles(history) or (history is not None and history.metric == "saved")

    def context(self, options: object) -> Context:
        """The facts, for a strategy with these options."""
        context = self.known(options)
        if self._wants_savings(options):
            context = replace(context, savings=self._savings(context))
        return context

    def known(self, options: object) -> Context:
        """The same as far as nothing has to be made for it."""
        history = self._history_facts()
        samples, batch = self._samples(options), self.sampled
        if samples is not None:
            nodes, edges = max(batch.nodes, samples.nodes), max(batch.edges, samples.edges)
            batch = replace(batch, nodes=nodes, edges=edges)
        context = Context(
            graph=self.store.facts,
            sampling=self.sampling,
            seeds=self.seeds,
            epochs=self.epochs,
            batch=batch,
            options=options,
            memory_bytes=self.memory_bytes,
            disk=self.disk,
            engine=self.store.disk.facts,
            samples=samples,
            device=self.device,
            lent_bytes=self.lent_bytes,
            check_bytes=self.store.check_bytes,
            history=history,
        )
        return with_tiers(context)

    def _samples(self, options: object) -> ImportedSamples | None:
        name = getattr(options, "samples", None)
        return None if name is None else find_samples(self.store, name)


def _check_trace_fits(context: Context) -> None:
    """BudgetError where the trace of an epoch, which a profile goes through, is too large."""
    given, needed = context.disk.given_bytes, len(context.seeds) * context.record_bytes()
    if given is not None and given < needed:
        raise BudgetError(
            f"disk={format_size(given)} is too little for the profile of an epoch; the smallest "
            f"that would do is {size_of_at_least(needed)} (history=...:nodes=N:metric=degree needs "
            "none)"
        )


@dataclass(frozen=True)
class Settled:
    """A plan, and who gets what of the memory."""

    strategy: Strategy
    plan: Plan
    context: Context
    budget: Budget
    """With all charges of the main loop."""

    @property
    def batch_bytes(self) -> int:
        """What the largest batch takes."""
        return self.context.batch_bytes(self.plan.shape(self.context))

    @property
    def depth(self) -> int:
        """Batches that may be under way at a time; the budget has room for so many."""
        room = self.budget.left_bytes // self.batch_bytes - 1
        return min(room, self.plan.concurrency.batches)

    @property
    def prepare_bytes(self) -> int:
        """Memory that preparation may use, as long as there are no batches and no caches."""
        lent = self.context.lent(self.plan.shape(self.context))
        kept = total([*self.context.common, lent], Phase.PREPARE)
        return self.budget.total_bytes - kept


def settle(wanted: Wanted, strategy: Strategy) -> Settled:
    """BudgetError where the memory is too little, with the least that would do."""
    if wanted.history is not None and not strategy.splits:
        strategy.plan(wanted.known(strategy.options))  # refuses it before an epoch is profiled
    context = wanted.context(strategy.options)

    def demands(total: int) -> list[Demand]:
        with_so_much = context.with_memory(total)
        return strategy.plan(with_so_much).demands(with_so_much)

    budget = Budget(wanted.memory_bytes)
    budget.settle(demands)
    return Settled(strategy, strategy.plan(context), context, budget)


def probe(store: GraphStore, sampling: Sampling, *schedules: SeedOrder) -> BatchSizes:
    """Samples some batches of each schedule, from first to last, through the page cache.

    -> the largest that batches will be, as far as these tell.
    """
    found = [_probe(store, sampling, seeds) for seeds in schedules]
    largest = BatchSizes(*(max(sizes) for sizes in zip(*map(astuple, found), strict=True)))
    return replace(largest, mean_nodes=found[0].mean_nodes, mean_edges=found[0].mean_edges)


def _probe(store: GraphStore, sampling: Sampling, seeds: SeedOrder) -> BatchSizes:
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
    return BatchSizes(
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
