"""outcrop train: a model, trained from a store."""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import Annotated, Any

import typer

from outcrop.cli.arguments import Store, optional
from outcrop.cli.curves import Together, curve_names, open_curves
from outcrop.cli.option_parameters import read_texts, with_train_options
from outcrop.cli.output import stderr
from outcrop.cli.train_progress import Terminal
from outcrop.errors import OptionError, OutcropError
from outcrop.observe.monitor import Peak
from outcrop.store.store import GraphStore
from outcrop.tools.environment import command_line, process_facts, run_record
from outcrop.tools.report import write_report
from outcrop.train.options import LAST, TrainOptions, read_config

_OUTPUT = "Output"


@with_train_options
def train(
    store: Store,
    config: Annotated[
        Path | None,
        typer.Option(
            help="A YAML file of these options; the command line wins.",
            exists=True,
            show_default=False,
        ),
    ] = None,
    record: Annotated[Path | None, optional("Write what was counted as JSON.", _OUTPUT)] = None,
    report: Annotated[Path | None, optional("Write an HTML page of the run.", _OUTPUT)] = None,
    log: Annotated[
        str | None, optional("Draw curves: tensorboard, wandb or both, with a comma.", _OUTPUT)
    ] = None,
    **given: Any,
) -> None:
    """Train a model on the store's training nodes.

    Interrupted or killed, it goes on with --resume where its last checkpoint was; where there is
    none yet, it says so and starts from the beginning.

    Example: outcrop train big.outcrop --strategy direct --memory 2GB --epochs 5

    Example: outcrop train big.outcrop --config run.yaml --checkpoint-dir runs/1 --resume
    """
    options = _merge(config, given)
    # torch looks at it when it first allocates: huge pages for large tensors, which it gives back
    # after each step. Half of a step on the CPU was page faults of small ones.
    os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")
    for path in (record, report):
        if path is not None and not path.absolute().parent.is_dir():
            raise OptionError(f"{path} cannot be written: there is no folder {path.parent}")
    names = curve_names(log)
    with (
        GraphStore(store) as opened,
        Peak(opened.derived.used_bytes) as written,
        open_curves(names, {"store": str(store), **options.as_dict()}) as curves,
        Terminal() as terminal,
    ):
        from outcrop.train.loop import fit

        try:
            result = fit(opened, options, reporter=Together(terminal, *curves))
        except KeyboardInterrupt:
            raise typer.Exit(_interrupted(options)) from None
        except Exception as error:
            if options.is_own_model and not isinstance(error, (OutcropError, OSError)):
                raise _mistake_in_own_model(options, error) from error
            raise
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


def _mistake_in_own_model(options: TrainOptions, error: Exception) -> Exception:
    """The error in one line; with OUTCROP_DEBUG in the environment, as it is."""
    from outcrop.train.own import last_line

    if os.environ.get("OUTCROP_DEBUG"):
        return error
    return OptionError(f"training {options.model}: {last_line(error)}")


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
    return TrainOptions.from_dict(read_texts(values), str(config) if config else "options")
