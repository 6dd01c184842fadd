"""outcrop report: records -> tables here, and one HTML page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from outcrop.cli.arguments import Json
from outcrop.cli.output import print_json, say, stdout
from outcrop.tools.report import compare, load, print_report, write_report


def report(
    paths: Annotated[
        list[Path],
        typer.Argument(help="A folder with records, or records.", metavar="DIR", exists=True),
    ],
    out: Annotated[
        Path | None,
        typer.Option(help="The page to write.", show_default="DIR/report.html"),
    ] = None,
    as_json: Json = False,
) -> None:
    """Show what runs have recorded: a table here, and one HTML page that needs no network.

    Example: outcrop report results/ --out report.html
    """
    loaded = load(paths)
    comparison = compare(loaded.records, loaded.bench)
    first = paths[0]
    page = out or (first if first.is_dir() else first.parent) / "report.html"
    write_report(loaded.records, loaded.bench, page)
    if as_json:
        print_json({**comparison.as_dict(), "report": str(page)})
        return
    print_report(comparison, stdout)
    say(f"\n{page}")
