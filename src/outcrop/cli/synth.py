"""outcrop synth: a synthetic graph, or an expansion of a real one."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from outcrop.cli.arguments import Destination, Memory, Seed, count_option
from outcrop.cli.output import Bars, say_made
from outcrop.errors import OptionError
from outcrop.ingest.synthetic import SynthOptions, expand, synthesise
from outcrop.store.store import GraphStore


class Kind(str, Enum):
    """Which random graph."""

    community = "community"
    rmat = "rmat"


Abc = Annotated[tuple[float, float, float], typer.Option("--abc", help="rmat: a, b and c.")]


def synth(
    destination: Destination,
    nodes: Annotated[int | None, count_option("--nodes", "How many nodes, e.g. 1M.")] = None,
    edges: Annotated[int | None, count_option("--edges", "How many edges, e.g. 20M.")] = None,
    dim: Annotated[int, typer.Option(min=0, help="Values per feature row.")] = 128,
    classes: Annotated[int, typer.Option(min=1, help="How many labels.")] = 16,
    seed: Seed = 0,
    kind: Annotated[
        Kind, typer.Option(help="community: power-law, learnable labels. rmat: R-MAT.")
    ] = Kind.community,
    train_fraction: Annotated[
        float, typer.Option(help="The share of nodes in each of train, val and test.")
    ] = 0.01,
    homophily: Annotated[
        float, typer.Option(help="community: the share of edges within a community.")
    ] = 0.8,
    communities: Annotated[
        int | None, typer.Option(help="community: how many.", show_default="one per 1000 nodes")
    ] = None,
    abc: Abc = (0.45, 0.22, 0.22),
    memory: Memory = 2_000_000_000,
    expand_store: Annotated[
        Path | None,
        typer.Option("--expand", help="Enlarge this store instead.", show_default=False),
    ] = None,
    factor: Annotated[int, typer.Option(help="--expand: times as many nodes.")] = 4,
    edge_factor: Annotated[
        float | None,
        typer.Option(help="--expand: times as many edges.", show_default="1.5 x factor"),
    ] = None,
) -> None:
    """Make a graph: the same for a seed, whatever the memory and the number of threads.

    Example: outcrop synth demo.outcrop --nodes 1M --edges 20M --dim 128 --classes 16

    Example: outcrop synth big.outcrop --expand real.outcrop --factor 4
    """
    with Bars() as progress:
        if expand_store is not None:
            if nodes is not None or edges is not None:
                raise OptionError("--expand takes the size from its store and --factor")
            with GraphStore(expand_store) as source:
                manifest = expand(source, destination, factor, edge_factor, seed, memory, progress)
        else:
            if nodes is None or edges is None:
                raise OptionError("give --nodes and --edges, or --expand STORE")
            options = SynthOptions(
                nodes=nodes,
                edges=edges,
                dim=dim,
                classes=classes,
                seed=seed,
                kind=kind.value,
                train_fraction=train_fraction,
                homophily=homophily,
                communities=communities,
                rmat=abc,
            )
            manifest = synthesise(destination, options, memory, progress)
    say_made(destination, manifest)
