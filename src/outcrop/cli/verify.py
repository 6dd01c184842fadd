"""outcrop verify: is a store whole?"""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from outcrop.cli.arguments import Json, Store
from outcrop.cli.output import Bars, print_json, say
from outcrop.layout.verify import verify as verify_store
from outcrop.options import format_size


def verify(
    store: Store,
    quick: Annotated[
        bool,
        typer.Option("--quick", help="Only manifest, records, sizes and headers; milliseconds."),
    ] = False,
    as_json: Json = False,
) -> None:
    """Check every byte of a store against its checksums, and the structure of its graph.

    Derived layouts (samples, packed rows, neighbour lists) are checked, too. Exit status 1 where
    something is wrong; each damaged piece and layout is named.

    Example: outcrop verify papers.outcrop
    """
    with Bars() as progress:
        report = verify_store(store, quick=quick, progress=progress)
    if as_json:
        print_json({**asdict(report), "ok": report.ok})
    elif report.ok:
        depth = "sizes and headers" if quick else format_size(report.bytes)
        layouts = f", {report.layouts} derived layouts" if report.layouts else ""
        say(f"{store}: whole ({report.files} files{layouts}, {depth} checked)")
    else:
        for problem in report.problems:
            say(str(problem), style="red")
        say(f"{store}: damaged ({len(report.problems)} problems)")
    if not report.ok:
        raise typer.Exit(1)
