"""outcrop train: a model, trained from a store."""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import Annotated, Any

import typer

from outcrop.cli.arguments import Store, neighbor_counts, optional
from outcrop.cli.output import stderr
from outcrop.cli.train_progress import Terminal
from outcrop.errors import OptionError
from outcrop.observe.monitor import Peak
from outcrop.store.store import GraphStore
from outcrop.strategies import STRATEGIES
from outcrop.tools.environment import command_line, process_facts, run_record
from outcrop.tools.report import write_report
from outcrop.train.options import LAST, TrainOptions, read_config

_DEFAULT = TrainOptions()


def _option(name: str, text: str, **more: Any) -> Any:
    """An option that was not given leaves its value to --config and to the defaults."""
    shown = getattr(_DEFAULT, name.strip("-").replace("-", "_"))
    shown = False if shown in (None, False) else str(shown)
    return typer.Option(name, help=text, show_default=shown, **more)


def train(
    store: Store,
    model: Annotated[str | None, _option("--model", "sage, gcn, gat or gin.")] = None,
    layers: Annotated[int | None, _option("--layers", "Layers of the model.")] = None,
    hidden: Annotated[int | None, _option("--hidden", "Width of hidden layers.")] = None,
    heads: Annotated[int | None, _option("--heads", "Attention heads of gat.")] = None,
    dropout: Annotated[float | None, _option("--dropout", "Share of values dropped.")] = None,
    residual: Annotated[
        bool | None, _option("--residual", "Blocks that add to their input.")
    ] = None,
    norm: Annotated[str | None, _option("--norm", "Between layers: none, layer or batch.")] = None,
    jk: Annotated[
        str | None, _option("--jk", "Jumping knowledge: none, last, cat, max or lstm.")
    ] = None,
    normalize_rows: Annotated[
        bool | None, _option("--normalize-rows", "Scale features to a sum of one per node.")
    ] = None,
    sampler: Annotated[str | None, _option("--sampler", "neighbor or shadow.")] = None,
    num_neighbors: Annotated[
        str | None,
        typer.Option(
            help="Per hop, with commas; -1 takes all. One per layer, or one more.",
            show_default="10 per layer",
        ),
    ] = None,
    replace: Annotated[
        bool | None, _option("--replace", "Draw neighbours with replacement.")
    ] = None,
    batch_size: Annotated[int | None, _option("--batch-size", "Seeds per batch.")] = None,
    strategy: Annotated[
        str | None,
        _option("--strategy", f"Who decides what is read: auto, {', '.join(STRATEGIES)}."),
    ] = None,
    memory: Annotated[
        str | None, _option("--memory", "Memory of the data path, e.g. 8GB.", metavar="SIZE")
    ] = None,
    strict_memory: Annotated[
        bool | None,
        _option("--strict-memory", "End where a batch needs more memory than is left."),
    ] = None,
    disk: Annotated[
        str | None, _option("--disk", "Disk space for derived data.", metavar="SIZE")
    ] = None,
    epochs: Annotated[int | None, _option("--epochs", "Passes over the training nodes.")] = None,
    lr: Annotated[float | None, _option("--lr", "Learning rate of Adam.")] = None,
    weight_decay: Annotated[float | None, _option("--weight-decay", "Of Adam.")] = None,
    seed: Annotated[int | None, _option("--seed", "Seed of weights, batches and dropout.")] = None,
    device: Annotated[str | None, _option("--device", "auto, cpu, cuda, cuda:1 ...")] = None,
    precision: Annotated[str | None, _option("--precision", "fp32 or bf16.")] = None,
    loss: Annotated[str | None, _option("--loss", "Of values: mse, mae or huber.")] = None,
    label_smoothing: Annotated[
        float | None, _option("--label-smoothing", "Of classes: the share that is spread.")
    ] = None,
    class_weights: Annotated[
        str | None,
        _option("--class-weights", "none, balanced, or a weight for each class, with commas."),
    ] = None,
    metric: Annotated[
        str | None,
        _option("--metric", "accuracy, f1, f1_micro, roc_auc, ap; of values mae, mse, rmse, r2."),
    ] = None,
    evaluate: Annotated[
        str | None,
        _option("--evaluate", "On sampled neighbourhoods, on full ones (out of core), or none."),
    ] = None,
    evaluate_every: Annotated[
        int | None, _option("--evaluate-every", "Epochs between evaluations.")
    ] = None,
    patience: Annotated[
        int | None, _option("--patience", "End after so many evaluations without a better one.")
    ] = None,
    checkpoint_dir: Annotated[
        str | None, _option("--checkpoint-dir", "Where the last and the best checkpoint are kept.")
    ] = None,
    checkpoint_every: Annotated[
        int | None, _option("--checkpoint-every", "Batches between checkpoints; 0: per epoch.")
    ] = None,
    resume: Annotated[
        bool | None,
        _option("--resume", "Go on where --checkpoint-dir, which must exist, was left."),
    ] = None,
    deterministic: Annotated[
        bool | None, _option("--deterministic", "The same weights for any number of threads.")
    ] = None,
    check: Annotated[
        bool | None,
        _option("--check", "Compare whatever is read with its checksums first: docs/training.md."),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(help="A YAML file of these options; the command line wins.", exists=True),
    ] = None,
    record: Annotated[Path | None, optional("Write what was counted as JSON.")] = None,
    report: Annotated[Path | None, optional("Write an HTML page of the run.")] = None,
    log: Annotated[str | None, optional("tensorboard: curves under runs/.")] = None,
) -> None:
    """Train a model on the store's training nodes.

    Interrupted or killed, it goes on with --resume where its last checkpoint was; where there is
    none yet, it says so and starts from the beginning.

    Example: outcrop train big.outcrop --strategy direct --memory 2GB --epochs 5

    Example: outcrop train big.outcrop --config run.yaml --checkpoint-dir runs/1 --resume
    """
    given = dict(locals())
    options = _merge(config, {n: given[n] for n in TrainOptions.__dataclass_fields__})
    if options.deterministic:
        # MKL looks at it when it is loaded, which is now.
        os.environ.setdefault("MKL_CBWR", "COMPATIBLE")
    for path in (record, report):
        if path is not None and not path.absolute().parent.is_dir():
            raise OptionError(f"{path} cannot be written: there is no folder {path.parent}")
    if log not in (None, "tensorboard"):
        raise OptionError(f"log must be tensorboard (got {log!r})")
    with (
        GraphStore(store) as opened,
        Peak(opened.derived.used_bytes) as written,
        Terminal(log) as reporter,
    ):
        from outcrop.train.loop import fit

        try:
            result = fit(opened, options, reporter=reporter)
        except KeyboardInterrupt:
            raise typer.Exit(_interrupted(options)) from None
        if record is not None or report is not None:
            found = run_record(
                "train",
                opened,
                name=options.strategy,
                command=command_line(),
                configuration={**options.as_dict(), "metric": result.metric},
                process=process_facts(written.now()),
                loader=result.record.as_dict(),
                layouts=opened.derived.used(),
                history=[vars(epoch) for epoch in result.history],
                series=result.series,
            )
            if record is not None:
                found.write(record)
            if report is not None:
                write_report({options.strategy: found.as_dict()}, None, report)


def _interrupted(options: TrainOptions) -> int:
    directory = options.checkpoint_dir
    if directory is None:
        kept = "nothing was kept: with --checkpoint-dir DIR it could be resumed"
    elif not (Path(directory) / LAST).exists():
        kept = (
            "nothing was kept: there was no checkpoint yet; --checkpoint-every N writes one every "
            "N batches"
        )
    else:
        kept = f"go on with --checkpoint-dir {shlex.quote(directory)} --resume"
    stderr.print(f"Interrupted; {kept}.", markup=False, soft_wrap=True)
    return 130


def _merge(config: Path | None, given: dict[str, Any]) -> TrainOptions:
    values = {} if config is None else read_config(config)
    values |= {name: value for name, value in given.items() if value is not None}
    if isinstance(values.get("num_neighbors"), str):
        values["num_neighbors"] = neighbor_counts(values["num_neighbors"])
    return TrainOptions.from_dict(values, str(config) if config else "options")
