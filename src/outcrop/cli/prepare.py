"""outcrop prepare: what a strategy makes before the first batch, made now."""

from __future__ import annotations

from typing import Annotated, Literal, cast

import typer

from outcrop.cli.arguments import Json, Store, neighbor_counts
from outcrop.cli.output import Bars, print_facts, print_json, stderr
from outcrop.errors import OptionError
from outcrop.options import format_size
from outcrop.run.order import check_batching, seed_order
from outcrop.run.runner import Runner
from outcrop.sample.batching import RANDOM
from outcrop.sample.sampler import Sampling
from outcrop.store.store import GraphStore


def prepare(
    store: Store,
    strategy: Annotated[
        str, typer.Option(help="Whose preparation, with its options: diskgnn:cpu_cache=false.")
    ] = "diskgnn",
    num_neighbors: Annotated[
        str, typer.Option(help="Per hop, with commas; -1 takes all.")
    ] = "10,10,10",
    batch_size: Annotated[int, typer.Option(min=1, help="Seeds per batch.")] = 1000,
    epochs: Annotated[int, typer.Option(min=1, help="That the run will have.")] = 10,
    input_nodes: Annotated[str, typer.Option(help="train, val, test or all.")] = "train",
    seed: Annotated[int, typer.Option(min=0, help="Of the batches.")] = 0,
    shuffle: Annotated[
        bool, typer.Option("--shuffle/--no-shuffle", help="Whether epochs are shuffled.")
    ] = True,
    sampler: Annotated[str, typer.Option(help="neighbor or shadow.")] = "neighbor",
    batching: Annotated[
        str, typer.Option(help="random, or partition: seeds of neighbours.")
    ] = RANDOM,
    replace: Annotated[
        bool, typer.Option("--replace", help="Draw neighbours with replacement.")
    ] = False,
    edge_ids: Annotated[
        bool,
        typer.Option("--edge-ids", help="For a loader of your own with e_id; training has none."),
    ] = False,
    memory: Annotated[
        str, typer.Option(metavar="SIZE", help="Memory of the data path of the run.")
    ] = "8GB",
    disk: Annotated[
        str | None,
        typer.Option(metavar="SIZE", help="Disk space for what is made.", show_default="any"),
    ] = None,
    device: Annotated[
        str, typer.Option(help="Where batches of the run go, for a device cache: cpu or cuda.")
    ] = "cpu",
    as_json: Json = False,
) -> None:
    """Sample and pack ahead of a run, which finds the result if it has the same settings.

    Interrupted or killed while it packs, the same command goes on where it was; before that, the
    step that was under way, sampling or planning, begins anew. What is made lies in the store and
    moves with it; outcrop gc --all removes it.

    Example: outcrop prepare big.outcrop --strategy diskgnn --epochs 10 --memory 2GB

    Then: outcrop train big.outcrop --strategy diskgnn --epochs 10 --memory 2GB
    """
    if device not in ("cpu", "cuda"):
        raise OptionError(f"--device must be cpu or cuda (got {device!r})")
    kind = cast(Literal["neighbor", "shadow"], sampler)  # checked there
    sampling = Sampling.of(
        neighbor_counts(num_neighbors), replace=replace, kind=kind, edge_ids=edge_ids
    )
    try:
        with GraphStore(store) as opened, Bars() as progress:
            check_batching(batching, shuffle=shuffle)
            seeds = seed_order(
                opened, input_nodes, batch_size=batch_size, seed=seed, shuffle=shuffle,
                batching=batching, memory=memory, disk=disk, progress=progress,
            )  # fmt: skip
            runner = Runner(
                opened, sampling, seeds, strategy=strategy, memory=memory, disk=disk,
                epochs=epochs, progress=progress, device=device,
            )  # fmt: skip
            runner.close()
    except KeyboardInterrupt:
        stderr.print(
            "Interrupted; the same command goes on. Packing continues where it was, sampling and "
            "planning begin anew unless they were done."
        )
        raise typer.Exit(130) from None
    facts = {"strategy": strategy, "seconds": runner.record.prepare_seconds, **runner.record.plan}
    if as_json:
        print_json(facts)
    else:
        print_facts({name.replace("_", " "): _shown(name, value) for name, value in facts.items()})


def _shown(name: str, value: object) -> str:
    if isinstance(value, float):
        return f"{value:,.1f}"
    if isinstance(value, int) and not isinstance(value, bool):
        return format_size(value) if name.endswith("bytes") else f"{value:,}"
    return str(value)
