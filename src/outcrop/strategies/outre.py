"""outre: less is asked for, and memory has what saves most.

What ginex does, of batches that are made of neighbours (partitions): lists that other partitions
want, and those of the macro batch, while a superbatch is sampled. With history=, embeddings are
used again. They stay in memory, and a profile of an epoch divides it between them and rows: it says
of each node what it saves as either. Without, batches are those of any strategy.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from outcrop.disk import PAGE_BYTES
from outcrop.layout.ranking import higher
from outcrop.memory.context import Context
from outcrop.memory.split import split
from outcrop.plan.history import HistoryPart, fixed_history
from outcrop.plan.plan import Plan, Strategy
from outcrop.rows.slots import PlannedSlots
from outcrop.sample.batching import PARTITION
from outcrop.sample.history import HistoryOptions
from outcrop.strategies import ginex
from outcrop.strategies.ginex import GinexOptions

_LISTS_MISSED = 1 / 4
"""Of the nodes that a batch expands, those whose lists no cache has, as the rule takes it. Chosen
after the runs of results/outre-layers.md, for 10 batches of 20M nodes: no other graph has
confirmed it."""


@dataclass(frozen=True)
class OutreOptions(GinexOptions):
    """As ginex's. How much embeddings get is share= of history=."""

    topology: Literal["auto", "mmap", "cache", "memory", "partition"] = "auto"
    """auto: partition, where batches are of partitions, and an epoch has so many batches that
    reading all lists once may pay; else cache."""
    policy: Literal["belady", "saved"] = "belady"
    """Who is in the cache of rows: by what is sampled ahead, those that are wanted next; or, as in
    the paper, always those that are in most batches of a profile."""

    def profiles(self, history: HistoryOptions | None) -> bool:
        """Whether a profile decides something, embeddings of given nodes apart."""
        return self.policy == "saved" or (history is not None and history.nodes is None)


def plan(context: Context) -> Plan:
    slots = PlannedSlots(0, context.options.policy)
    history = None if context.history is None else _history(context, slots)
    if history is not None:
        context = replace(context, beside=tuple(history.charges(context)))
    return replace(ginex.plan(_with_topology(context), slots), history=history)


def _with_topology(context: Context) -> Context:
    options = context.options
    if options.topology != "auto":
        return context
    topology = "partition" if _lists_pay(context) else "cache"
    return replace(context, options=replace(options, topology=topology))


def _lists_pay(context: Context) -> bool:
    """Whether lists of macro batches, which an epoch reads once, are fewer bytes than what batches
    would read without them."""
    groups = context.seeds.groups
    if groups is None or groups.batching is None:
        return False
    lists_bytes = context.graph.array_bytes("indices") / max(len(context.seeds), 1)
    return lists_bytes <= _LISTS_MISSED * context.batch.targets * PAGE_BYTES


def _history(context: Context, slots: PlannedSlots) -> HistoryPart:
    """How many embeddings there are, of the memory that rows would have without any."""
    history, facts = context.history, context.savings
    fixed = fixed_history(context)
    if fixed is not None:
        return fixed
    assert history is not None and facts is not None
    with_none = replace(context, beside=tuple(HistoryPart(0).charges(context)))
    # A planned cache saves no less than one that never changes, which a profile may see more of.
    static = context.options.policy == "saved"
    curve = facts.features if static else higher(facts.features, facts.planned)
    room, row_bytes = ginex.room_for_caches(_with_topology(with_none), slots)
    room = max(room - row_bytes, 0)  # a slot is there in any case
    found = split(
        facts,
        curve,
        room,
        lambda rows: rows * (row_bytes or room + 1),
        lambda embeddings: HistoryPart.bytes(context, embeddings),
        history.options.share,
    )
    return HistoryPart(found.embeddings, found.rows)


OUTRE = Strategy("outre", plan, OutreOptions(), splits=True, batching=PARTITION)
