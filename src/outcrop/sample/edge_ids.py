"""Edge ids: what a plan must know of the user's own edges, where a store keeps them.

Batches have them as `e_id`. Of a store that keeps none, places are all that is known of its edges.
Sampled edges are translated once, by the sampler, so that a trace has the ids that batches have.
"""

from __future__ import annotations

from outcrop.disk import RowReader
from outcrop.sample.sampler import EDGE_IDS, Sampling
from outcrop.store.facts import GraphFacts


def keeps_edge_ids(graph: GraphFacts, sampling: Sampling) -> bool:
    """Whether batches have ids that the store keeps; else they have places, or nothing."""
    return sampling.edge_ids and graph.has(EDGE_IDS)


def edge_id_limit(graph: GraphFacts, *, kept: bool) -> int:
    """Above every edge id of batches; `kept`: whether they are ids that the store keeps.

    Those may be larger than the number of edges, since edges that were left out count.
    """
    if not kept:
        return graph.num_edges
    return 1 << (8 * graph.item_bytes(EDGE_IDS) - 1)


def edge_ids_bytes(graph: GraphFacts, edges: int, *, loaded: bool) -> int:
    """What a look-up of so many edges takes while a batch is sampled."""
    own = graph.item_bytes(EDGE_IDS)
    return edges * (own if loaded else own + RowReader.ORDER_BYTES)
