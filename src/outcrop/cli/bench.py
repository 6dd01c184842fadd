"""outcrop bench: strategies side by side."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from outcrop.cli.arguments import Store, neighbor_counts, optional
from outcrop.cli.output import say, stderr, stdout
from outcrop.errors import OutcropError
from outcrop.sample.batching import RANDOM
from outcrop.tools.bench.compare import BenchOptions, run_bench
from outcrop.tools.report import compare, load, print_report, write_report


def bench(
    store: Store,
    out: Annotated[Path, typer.Option(help="Folder for records and summary.", show_default=False)],
    strategies: Annotated[str, typer.Option(help="With commas.")] = "memory,mmap,direct",
    memory: Annotated[
        str | None,
        typer.Option(
            help="Memory of the data path of each, as in train: caches, batches and tables.",
            show_default="what --cache makes it",
            metavar="SIZE",
        ),
    ] = None,
    cache: Annotated[
        str | None,
        typer.Option(
            help="For caches alone, in place of --memory: a size, or a share of the features; "
            "batches and tables come on top.",
            show_default="10%",
        ),
    ] = None,
    cage: Annotated[
        str | None,
        typer.Option(help="Hard limit of each process.", show_default="memory + 450MB"),
    ] = None,
    model: Annotated[
        str, typer.Option(help="none: preparation alone; or sage, gcn, gat, gin.")
    ] = "none",
    num_neighbors: Annotated[str, typer.Option(help="Per hop, with commas.")] = "10,10,10",
    batch_size: Annotated[int, typer.Option(min=1, help="Seeds per batch.")] = 1000,
    batches: Annotated[int, typer.Option(min=1, help="Timed batches per epoch.")] = 40,
    warmup: Annotated[int, typer.Option(min=0, help="Batches before them.")] = 0,
    epochs: Annotated[int, typer.Option(min=1, help="Epochs per run.")] = 1,
    repeat: Annotated[int, typer.Option(min=1, help="Runs of each strategy.")] = 3,
    seed: Annotated[int, typer.Option(min=0)] = 0,
    batching: Annotated[
        str, typer.Option(help="random, or partition: seeds of neighbours.")
    ] = RANDOM,
    history: Annotated[
        str | None,
        optional("Embeddings used again, as in width=256:staleness=100; whole epochs are best."),
    ] = None,
    check: Annotated[bool, typer.Option(help="Compare digests of batches.")] = True,
    report: Annotated[bool, typer.Option(help="Write report.html beside the records.")] = True,
    slow: Annotated[
        str | None,
        optional("Strategies that are timed on 10 batches after 5 of warm-up, and scaled."),
    ] = None,
) -> None:
    """Measure strategies under one memory limit, each in its own process, cold.

    A strategy that is refused, killed or fails is a line of the result. The exit status is 1 where
    nothing was measured, or where strategies delivered different batches; else 0, with a last line
    that names those that failed.

    Example: outcrop bench big.outcrop --strategies memory,mmap,direct --cache 10% --out results

    Example: outcrop bench big.outcrop --model sage --cage 2.5GB --repeat 5 --out results
    """
    options = BenchOptions(
        strategies=tuple(strategies.split(",")),
        memory=memory,
        cache=cache,
        cage=cage,
        model=model,
        num_neighbors=neighbor_counts(num_neighbors),
        batch_size=batch_size,
        batches=batches,
        warmup=warmup,
        epochs=epochs,
        repeat=repeat,
        seed=seed,
        batching=batching,
        history=history or "",
        check_batches=3 if check else 0,
        slow={name: (10, 5) for name in (slow or "").split(",") if name},
    )
    summary = run_bench(store, options, out, say)
    found = load(out)
    print_report(compare(found.records, found.bench), stdout)
    if report:
        write_report(found.records, found.bench, out / "report.html")
        say(f"{out / 'report.html'}")
    _say_failures(summary, options.strategies)
    if summary["check"] is not None and not summary["check"]["equal"]:
        raise OutcropError(f"strategies delivered different batches: {summary['check']['digests']}")


def _say_failures(summary: dict[str, Any], strategies: tuple[str, ...]) -> None:
    """OutcropError where none of the strategies was measured; a line where some were not."""
    notes = {row["name"]: row["note"] for row in summary["rows"] if row["status"] != "measured"}
    failed = {name: notes[name] for name in strategies if name in notes}
    if len(failed) == len(strategies):
        told = "; ".join(f"{name}: {note}" for name, note in failed.items())
        raise OutcropError(f"nothing was measured: {told}")
    if failed:
        told = ", ".join(f"{name} ({note})" for name, note in failed.items())
        stderr.print(
            f"{len(failed)} of {len(strategies)} strategies failed: {told}",
            markup=False, soft_wrap=True,
        )  # fmt: skip
