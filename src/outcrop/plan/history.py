"""Histories in a plan: how many nodes have an embedding that is used again, and in how many bytes.

They stand above every strategy, as tiers do; a strategy that weighs them against rows decides how
many there are itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from outcrop.ahead.profiling import making_bytes, open_savings
from outcrop.errors import OptionError
from outcrop.layout.savings import Savings
from outcrop.memory.charges import PREPARATION, Charge, Phase
from outcrop.memory.context import Context
from outcrop.progress import Progress
from outcrop.rows.source import row_shape
from outcrop.sample.history import HistoryTable
from outcrop.sample.seeds import Ids
from outcrop.store.degrees import choosing_bytes, most_out_edges, out_degrees
from outcrop.store.store import GraphStore

# Of the memory for caches, where nobody weighs embeddings against rows.
_USUAL_SHARE = 0.25
# What is used again of a batch: two numbers for a node that is pulled, two for one that is pushed.
_REUSE_BYTES = 16
# Batches that have it at a time: sampled, waiting, gathered, in the loop.
_BATCHES_KEPT = 12


@dataclass(frozen=True)
class HistoryPart:
    """Embeddings of some nodes."""

    nodes: int
    cached_rows: int = 0
    """Rows that a static cache has: who saves these, saves nothing."""

    @staticmethod
    def node_bytes(context: Context) -> int:
        """An embedding, the gradient that it is owed, and the in-degree it was made with; on the
        host."""
        assert context.history is not None
        options = context.history.options
        rows = 2 if options.gradients == "late" else 1
        return 0 if _on_device(context) else rows * options.number_bytes * options.width + 4

    @classmethod
    def bytes(cls, context: Context, nodes: int) -> int:
        """What so many take, with their tables."""
        table = HistoryTable.table_bytes(context.graph.num_nodes, nodes)
        return nodes * cls.node_bytes(context) + table if nodes else 0

    @classmethod
    def within(cls, context: Context, room: int) -> HistoryPart:
        """As many as fit."""
        low, high = 0, most_candidates(context)
        while low < high:
            middle = (low + high + 1) // 2
            if cls.bytes(context, middle) <= room:
                low = middle
            else:
                high = middle - 1
        return cls(low)

    def charges(self, context: Context) -> Sequence[Charge]:
        assert context.history is not None
        graph, kept = context.graph, self.nodes * self.node_bytes(context)
        choosing = choosing_bytes(graph.num_nodes, self.nodes)
        if context.savings is not None:
            choosing = making_bytes(context)
        return [
            Charge("embeddings", kept),
            Charge("tables of embeddings", self.bytes(context, self.nodes) - kept),
            Charge("reuse of batches", _BATCHES_KEPT * _REUSE_BYTES * context.first_hop_nodes),
            Charge("choosing embeddings", choosing, Phase.PREPARE, PREPARATION),
        ]

    def facts(self, context: Context) -> dict[str, Any]:
        """For the record, in JSON's values."""
        assert context.history is not None
        facts: dict[str, Any] = {"embeddings": self.nodes, "staleness": context.staleness}
        if context.savings is not None:
            facts |= {"profile_seconds": context.savings.seconds, "beta": context.savings.beta}
        return facts

    def open(self, store: GraphStore, context: Context, progress: Progress) -> HistoryTable:
        """Who they are."""
        nodes = self._nodes(store, context, progress)
        return HistoryTable(store.num_nodes, nodes, context.staleness)

    def _nodes(self, store: GraphStore, context: Context, progress: Progress) -> Ids:
        """Ascending."""
        facts = context.history
        assert facts is not None
        if facts.given is not None:
            return facts.given
        if not self.nodes:
            return np.empty(0, np.int64)
        if context.savings is None or facts.options.metric == "degree":
            return most_out_edges(out_degrees(store, progress), self.nodes)
        with opened_savings(store, context, progress) as savings:
            return savings.history_nodes(self.nodes, self.cached_rows)


def _on_device(context: Context) -> bool:
    """Whether embeddings have memory of their own: that of a device which is not the host."""
    assert context.history is not None
    return context.history.options.place == "device" and context.device != "cpu"


def opened_savings(store: GraphStore, context: Context, progress: Progress) -> Savings:
    """The profile, which was made before."""
    layout = open_savings(store, context.sampling, context.seeds, context.staleness, progress)
    return Savings(store.disk, layout)


def most_candidates(context: Context) -> int:
    """Nodes that may have an embedding."""
    assert context.history is not None
    if context.savings is None or context.history.options.metric == "degree":
        return context.graph.num_nodes
    return context.savings.most_histories


def fixed_history(context: Context) -> HistoryPart | None:
    """As many embeddings as the options say; None: memory decides."""
    assert context.history is not None
    given, nodes = context.history.given, context.history.options.nodes
    if given is not None:
        return HistoryPart(len(given))
    if nodes is not None:
        return HistoryPart(min(nodes, most_candidates(context)))
    if _on_device(context):
        raise OptionError(
            "history: place=device needs a number, nodes=N: memory= is the host's, and does not "
            f"say how much {context.device} may have"
        )
    return None


def with_history(context: Context) -> Context:
    """The facts, with the embeddings that the options ask for, whatever the strategy."""
    facts = context.history
    if facts is None:
        return context
    part = fixed_history(context)
    if part is None:
        share = _USUAL_SHARE if facts.options.share is None else facts.options.share
        room = context.room(row_shape(context, staged=True), HistoryPart(0).charges(context))
        part = HistoryPart.within(context, int(share * room))
    return replace(context, embeddings=part.nodes, beside=tuple(part.charges(context)))
