"""outcrop partition: parts of a store's nodes with few edges between them."""

from __future__ import annotations

from typing import Annotated

import typer

from outcrop.cli.arguments import Json, Memory, Store, optional
from outcrop.cli.output import Bars, print_facts, print_json
from outcrop.layout.fennel import Counting
from outcrop.layout.partitions import (
    PartitionOptions,
    Partitions,
    default_parts,
    open_partitions,
)
from outcrop.options import format_size
from outcrop.store.store import GraphStore

_DEFAULTS = PartitionOptions()


def partition(
    store: Store,
    parts: Annotated[
        int | None, optional("How many parts. Left out: what suits the graph and --batch-size.")
    ] = None,
    batch_size: Annotated[
        int, typer.Option(min=1, help="Seeds per batch of the run, for the number of parts.")
    ] = 1000,
    passes: Annotated[
        int, typer.Option(min=1, help="Streams over the topology; more of them cut less.")
    ] = _DEFAULTS.passes,
    levels: Annotated[
        int, typer.Option(min=1, max=2, help="1: all parts at once. 2: parts of parts.")
    ] = _DEFAULTS.levels,
    gamma: Annotated[
        float, typer.Option(min=1, help="How steeply a part's penalty grows with its nodes.")
    ] = _DEFAULTS.gamma,
    imbalance: Annotated[
        float, typer.Option(min=1, help="The largest part / the mean, at most.")
    ] = _DEFAULTS.imbalance,
    counting: Annotated[
        Counting,
        typer.Option(help="Of neighbours in a part. bloom: by filters, far slower; --passes 1."),
    ] = _DEFAULTS.counting,
    seed: Annotated[
        int, typer.Option(min=0, max=(1 << 63) - 1, help="The same seed makes the same parts.")
    ] = _DEFAULTS.seed,
    memory: Memory = 2_000_000_000,
    as_json: Json = False,
) -> None:
    """Divide a store's nodes into parts with few edges between them, out of core.

    By FENNEL: nodes are streamed with their in-neighbours, and each goes to the part that has the
    most of them, as far as balance allows. What is made lies in the store and is found again by
    strategies and by outcrop reorder --order community; outcrop gc --all removes it.

    Example: outcrop partition papers.outcrop --parts 10000 --memory 4GB
    """
    with GraphStore(store) as opened, Bars() as progress:
        if parts is None:
            seeds = opened.manifest.arrays["train"].shape[0] if opened.has("train") else 0
            parts = default_parts(opened.num_nodes, seeds, batch_size)
        options = PartitionOptions(
            parts=parts, gamma=gamma, imbalance=imbalance, seed=seed, levels=levels, passes=passes,
            counting=counting,
        )  # fmt: skip
        layout = open_partitions(opened, options, progress, memory=memory)
        seconds = layout.record["seconds"]
        found = not any(used["made"] for used in opened.derived.used())
        with Partitions(opened.disk, layout) as made:
            file, path, digest = made.file, made.path, made.digest
    facts = {
        "parts": file.parts,
        "cut": file.cut_share,
        "random_cut": 1 - 1 / file.parts,
        "balance": file.balance,
        "train_balance": file.seed_balance,
        "digest": digest,
        "seconds": seconds,
        "found": found,
        "bytes": file.file_bytes,
        "path": str(path),
    }
    if as_json:
        print_json(facts)
        return
    made_in = f"{seconds:,.1f}" + (" (found; made earlier)" if found else "")
    print_facts(
        {
            "parts": f"{file.parts:,}",
            "cut": f"{file.cut_share:.1%} of the edges (parts at random: {1 - 1 / file.parts:.1%})",
            "balance": f"{file.balance:.3f} nodes, {file.seed_balance:.3f} training nodes "
            "(largest part / mean)",
            "seconds": made_in,
            "on disk": f"{format_size(file.file_bytes)}, {path}",
        }
    )
