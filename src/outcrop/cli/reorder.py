"""outcrop reorder: the same graph with its nodes in another order."""

from __future__ import annotations

from typing import Annotated

import typer

from outcrop.cli.arguments import Destination, Memory, Store
from outcrop.cli.output import Bars, say_made
from outcrop.ingest.reorder import reorder as make
from outcrop.layout.partitions import community_order
from outcrop.store.store import GraphStore


def reorder(
    store: Store,
    destination: Destination,
    order: Annotated[
        str,
        typer.Option(
            help="degree: nodes that are read most come first. bfs: as a breadth-first search "
            "along in-edges meets them. community: by the parts of outcrop partition, which are "
            "found or made. Or a .npy file: entry i is the node that becomes node i.",
            metavar="degree|bfs|community|FILE",
            show_default=False,
        ),
    ],
    memory: Memory = 2_000_000_000,
    edge_ids: Annotated[
        bool,
        typer.Option(
            "--edge-ids/--no-edge-ids", help="Keep each edge's id, which batches have as e_id."
        ),
    ] = True,
) -> None:
    """Make a store with the same graph, whose nodes are in another order.

    Your ids stay: node_ids.npy has that of each node, and outcrop infer writes its rows in the
    order that they had before. Adopted features are copied.

    Example: outcrop reorder papers.outcrop papers-bfs.outcrop --order bfs --memory 4GB
    """
    chosen = community_order() if order == "community" else order
    with GraphStore(store) as source, Bars() as progress:
        manifest = make(source, destination, chosen, memory, edge_ids=edge_ids, progress=progress)
    say_made(destination, manifest)
