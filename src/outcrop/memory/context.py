"""Context: all that a plan depends on, as facts. Nothing is open, nothing is read."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from outcrop.disk import EngineFacts
from outcrop.layout.samples import ImportedSamples
from outcrop.layout.savings import SavingsFacts
from outcrop.layout.trace import trace_bytes
from outcrop.memory.batches import BatchShape, RowShape
from outcrop.memory.budget import lendable
from outcrop.memory.charges import Charge, Phase, total
from outcrop.sample.edge_ids import edge_id_limit, edge_ids_bytes, keeps_edge_ids
from outcrop.sample.history import HistoryOptions
from outcrop.sample.sampler import Sampling, WaitingBatches
from outcrop.sample.seeds import SeedOrder
from outcrop.store.facts import GraphFacts

# The least that memory must have room for: one with the user's loop, one on the way to it.
MIN_BATCHES = 2
# Labels are kept in memory up to so many bytes, and beyond that up to one part in so many of all
# memory. Read from disk they cost every batch about a page for each of its nodes, as rows do; a
# cache of as many bytes would save it a few rows in a thousand. So they are read where keeping them
# would leave too little for all else.
KEPT_LABEL_BYTES = 64 << 20
LABELS_PART = 8
# What is charged where the memory of batches is too little for what is lent.
LENT = "lent between epochs"


@dataclass(frozen=True)
class BatchSizes:
    """How large batches are, with a margin, whatever their rows are held in."""

    nodes: int
    edges: int
    targets: int
    """Nodes of a batch whose neighbours are drawn."""
    scratch_bytes: int
    """What the sampler that makes it takes."""
    mean_nodes: int = 0
    """The mean of the first schedule's batches, without a margin; so is that of edges."""
    mean_edges: int = 0


@dataclass(frozen=True)
class DiskFacts:
    """Where a plan may write beside the store."""

    given_bytes: int | None
    """What the user allows; None: what is needed."""
    free_bytes: int
    writable: bool

    def allows(self, size: int) -> bool:
        return self.writable and (self.given_bytes is None or size <= self.given_bytes)


@dataclass(frozen=True)
class TiersAbove:
    """Tiers above a strategy's own rows, which its options ask for, and what they keep."""

    device_rows: int = 0
    cache_rows: int = 0
    verify_rows: bool = False
    charges: tuple[Charge, ...] = ()


@dataclass(frozen=True, eq=False)
class HistoryFacts:
    """Embeddings that are to be used again."""

    options: HistoryOptions
    given: NDArray[np.int64] | None = None
    """Whose embeddings they are, ascending; None: they are chosen."""


@dataclass(frozen=True)
class Context:
    """What is wanted, of which graph, and what may be used for it."""

    graph: GraphFacts
    sampling: Sampling
    seeds: SeedOrder
    """The schedule that is planned for; batches of others may be asked for as well."""
    epochs: int | None
    """How many there will be; None: nobody knows."""
    batch: BatchSizes
    options: Any
    """An instance of the strategy's `Options`."""
    memory_bytes: int
    disk: DiskFacts
    engine: EngineFacts
    samples: ImportedSamples | None = None
    """The imported samples, where batches come from them."""
    device: str = "cpu"
    """Where batches go, as torch names it."""
    lent_bytes: int = 0
    """What other work between epochs needs: the batches' memory, and what that lacks."""
    check_bytes: int = 0
    """What checksums take, where whatever is read is compared with them."""
    above: TiersAbove = TiersAbove()
    savings: SavingsFacts | None = None
    """What each node would save in a cache; None: nobody asked."""
    history: HistoryFacts | None = None
    """None: every embedding is computed."""
    embeddings: int = 0
    """How many are kept beside whatever a strategy decides, ..."""
    beside: tuple[Charge, ...] = ()
    """... and what they take."""

    # Batches

    @property
    def keeps_edge_ids(self) -> bool:
        """Whether batches have ids that the store keeps; else they have places, or nothing."""
        return keeps_edge_ids(self.graph, self.sampling)

    @property
    def edge_id_limit(self) -> int:
        """A number above every edge id of batches."""
        return edge_id_limit(self.graph, kept=self.keeps_edge_ids)

    def batch_bytes(self, rows: RowShape) -> int:
        """What the largest batch takes; `rows`: of a strategy's own part, or of a whole stack."""
        if self.above.device_rows:
            rows = rows.on_device(self.device)
        shape = BatchShape(self.batch.nodes, self.batch.edges, rows, self.sampling.edge_ids)
        return max(shape.charged_bytes(), 1)

    def sampler_bytes(self, *, loaded_edge_ids: bool = False) -> int:
        """What one sampler takes, whatever it draws from."""
        looking_up = 0
        if self.keeps_edge_ids:
            looking_up = edge_ids_bytes(self.graph, self.batch.edges, loaded=loaded_edge_ids)
        return self.batch.scratch_bytes + looking_up

    @property
    def waiting_bytes(self) -> int:
        """What a sampled batch that waits outside of its sampler takes."""
        return WaitingBatches.subgraph_bytes(self.batch.nodes, self.batch.edges)

    def record_bytes(self) -> int:
        """What the largest batch takes in a trace of its own samples."""
        seeds, hops = self.seeds.batch_size, len(self.sampling.num_neighbors)
        lists = seeds + 2 * hops + 2
        if self.history is not None:
            lists += 2 + 2 * self.first_hop_nodes
        return trace_bytes(
            self.batch.nodes,
            self.batch.edges,
            seeds,
            targets=self.batch.targets,
            lists=lists,
            num_nodes=self.graph.num_nodes,
            num_edges=self.edge_id_limit,
            edge_ids=self.sampling.edge_ids,
        )

    @property
    def staleness(self) -> int:
        """Of embeddings; where there are none, 1: nothing is used again."""
        return 1 if self.history is None else self.history.options.staleness

    @property
    def first_hop_nodes(self) -> int:
        """The seeds and what the first hop finds, at most."""
        fanout = self.sampling.num_neighbors[0]
        seeds = self.seeds.batch_size
        return self.batch.nodes if fanout < 0 else min(seeds * (1 + fanout), self.batch.nodes)

    @property
    def stream_batches(self) -> int:
        """Batches in the whole run, as far as that is known; else in an epoch."""
        return max(self.epochs or 1, 1) * len(self.seeds)

    # Memory

    @property
    def reads_labels(self) -> bool:
        """Whether labels stay on disk, where a batch's are read for it; else all are in memory."""
        kept = max(KEPT_LABEL_BYTES, self.memory_bytes // LABELS_PART)
        return self.graph.label_bytes > kept

    @cached_property
    def common(self) -> tuple[Charge, ...]:
        """What every plan keeps."""
        graph, reads = self.graph, self.reads_labels
        reading = self.batch.nodes * graph.label_read_bytes
        return (
            Charge("labels", 0 if reads else graph.label_bytes, Phase.ALWAYS),
            Charge("label reads", reading if reads else 0),
            Charge("seeds", self.seeds.nbytes, Phase.ALWAYS),
            Charge("order of seeds", self.seeds.order_bytes, Phase.ALWAYS),
            Charge("disk engine", self.engine.memory_bytes, Phase.ALWAYS),
            Charge("checks", self.check_bytes, Phase.ALWAYS),
        )

    def lent(self, rows: RowShape) -> Charge:
        """What the memory of the least number of batches lacks for what is lent."""
        lacking = self.lent_bytes - lendable(MIN_BATCHES * self.batch_bytes(rows))
        return Charge(LENT, max(0, lacking), Phase.ALWAYS)

    def room(self, rows: RowShape, charges: Iterable[Charge] = ()) -> int:
        """Bytes left beside these charges and the tiers above, in the tightest phase of a run."""
        charges = [*self.common, self.lent(rows), *self.above.charges, *self.beside, *charges]
        left = [
            self.memory_bytes - total(charges, phase) - self.batches_bytes(rows, phase)
            for phase in (Phase.LOOP, Phase.AHEAD)
        ]
        return max(min(left), 0)

    def batches_bytes(self, rows: RowShape, phase: Phase) -> int:
        """What batches take in a phase, where there are as few as may be."""
        size = self.batch_bytes(rows)
        if phase == Phase.PREPARE:
            return 0
        # Ahead, the loop has one, and a slab may be a little larger than what is asked for.
        return MIN_BATCHES * size if phase == Phase.LOOP else size + size // 4

    def with_memory(self, memory_bytes: int) -> Context:
        return replace(self, memory_bytes=memory_bytes)
