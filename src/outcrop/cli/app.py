"""The `outcrop` command: its subcommands, and what they do about errors."""

from __future__ import annotations

import os
from pathlib import Path

import typer

from outcrop._version import __version__
from outcrop.cli.bench import bench
from outcrop.cli.demo import demo
from outcrop.cli.doctor import doctor
from outcrop.cli.gc import gc
from outcrop.cli.import_ import import_app
from outcrop.cli.infer import infer
from outcrop.cli.info import info
from outcrop.cli.output import guarded
from outcrop.cli.partition import partition
from outcrop.cli.prepare import prepare
from outcrop.cli.profile import profile
from outcrop.cli.reorder import reorder
from outcrop.cli.report import report
from outcrop.cli.synth import synth
from outcrop.cli.train import train
from outcrop.cli.verify import verify
from outcrop.store.derived import ELSEWHERE

app = typer.Typer(
    name="outcrop",
    help="Train graph neural networks on graphs larger than memory, from an SSD.",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    add_completion=False,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"outcrop {__version__}")
        raise typer.Exit()


def _put_derived(folder: Path | None) -> None:
    if folder is not None:
        os.environ[ELSEWHERE] = str(folder.absolute())


@app.callback()
def _outcrop(
    version: bool = typer.Option(
        False, "--version", help="Print the version.", callback=_print_version, is_eager=True
    ),
    derived: Path | None = typer.Option(
        None,
        help="A folder for what is derived from stores that cannot be written to.",
        envvar=ELSEWHERE,
        show_default=False,
        callback=_put_derived,
    ),
) -> None:
    pass


app.add_typer(import_app)
_COMMANDS = (
    synth, reorder, info, profile, partition, prepare, train, infer, bench, report, verify, gc,
    doctor, demo,
)  # fmt: skip
for command in _COMMANDS:
    app.command()(guarded(command))


def main() -> None:
    app()
