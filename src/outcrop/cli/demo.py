"""outcrop demo: a graph whose features exceed the memory, trained from the drive, twice."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from outcrop.cli.arguments import count_option
from outcrop.cli.output import Bars, say, stdout
from outcrop.errors import CageError, OutcropError
from outcrop.ingest.synthetic import SynthOptions, synthesise
from outcrop.options import format_size
from outcrop.tools.cage import run_caged

_DIM = 128
# For the data path. Python, torch and the model need their own: measured and printed by the run.
_MEMORY_BYTES = 100_000_000
_CAGE_BYTES = 750_000_000
_TRAIN = ["--layers", "2", "--num-neighbors", "10,5", "--hidden", "64", "--batch-size", "1000",
          "--epochs", "2", "--lr", "0.01", "--dropout", "0.2"]  # fmt: skip


@dataclass
class _Outcome:
    strategy: str
    seconds: float
    record: dict[str, Any]
    peak_bytes: int | None
    """The most that everything took, page cache included; None where no limit could be set."""


def demo(
    folder: Annotated[
        Path,
        typer.Argument(
            help="Where the graph is made: 1.3 GB on the drive to be shown.",
            show_default="here",
            exists=True,
            file_okay=False,
        ),
    ] = Path(),
    nodes: Annotated[int, count_option("--nodes", "How many nodes.")] = 2_000_000,
) -> None:
    """Make a graph whose features exceed the memory budget, and train on it from the drive.

    Example: outcrop demo /mnt/nvme
    """
    with tempfile.TemporaryDirectory(prefix="outcrop-demo-", dir=folder) as work:
        store = Path(work) / "demo.outcrop"
        features = nodes * _DIM * 4
        say(f"1. A graph of {nodes:,} nodes and {nodes * 10:,} edges", style="bold")
        options = SynthOptions(nodes=nodes, edges=nodes * 10, dim=_DIM, classes=16)
        with Bars() as progress:
            synthesise(store, options, memory=2 * _MEMORY_BYTES, progress=progress)
        say(
            f"   {format_size(features)} of features: {features / _MEMORY_BYTES:.0f} times the "
            f"{format_size(_MEMORY_BYTES)} that training may use for data."
        )
        outcomes = [
            _train(store, "direct", "2. GraphSAGE, rows read around the page cache (direct)"),
            _train(store, "mmap", "3. The same with memory maps, as people do today (mmap)"),
        ]
        _print(outcomes)


def _train(store: Path, strategy: str, title: str) -> _Outcome:
    say(title, style="bold")
    record = store.parent / f"{strategy}.json"
    command = [
        sys.executable, "-m", "outcrop", "train", str(store), "--strategy", strategy,
        "--memory", str(_MEMORY_BYTES), "--record", str(record), *_TRAIN,
    ]  # fmt: skip
    start = time.perf_counter()
    peak = None
    try:
        caged = run_caged(command, _CAGE_BYTES, stdout=sys.stdout)
        code, peak = caged.returncode, caged.peak_bytes
    except CageError as error:
        say(f"   no limit is enforced here ({error}); memory is measured instead")
        code = subprocess.run(command).returncode
    if code:
        raise OutcropError(f"training with {strategy} ended with status {code}")
    return _Outcome(strategy, time.perf_counter() - start, json.loads(record.read_text()), peak)


def _print(outcomes: list[_Outcome]) -> None:
    table = Table("", *(outcome.strategy for outcome in outcomes), box=None, pad_edge=False)
    runs = [outcome.record for outcome in outcomes]
    peaks = [
        format_size(outcome.peak_bytes or outcome.record["process"]["peak_rss_bytes"])
        for outcome in outcomes
    ]
    scores = [max(run["history"], key=lambda epoch: epoch["val"])["test"] for run in runs]
    epochs = [[epoch["seconds"] for epoch in run["history"]] for run in runs]
    rows = {
        "test accuracy": [f"{score:.3f}" for score in scores],
        "seconds per epoch": [f"{sum(times) / len(times):.1f}" for times in epochs],
        "read from the drive": [format_size(run["process"]["read_bytes"]) for run in runs],
        "for data": [format_size(run["loader"]["memory_bytes"]) for run in runs],
        "peak memory of all": peaks,
    }
    for name, values in rows.items():
        table.add_row(name, *values)
    say("")
    stdout.print(table)
    if all(outcome.peak_bytes for outcome in outcomes):
        say(f"Both under a hard limit of {format_size(_CAGE_BYTES)}, page cache included.")
    if scores[0] == scores[1]:
        say("The batches are the same bit by bit, and so are the models.")
