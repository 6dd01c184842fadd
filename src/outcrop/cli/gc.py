"""outcrop gc: remove what nobody uses."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from outcrop.cli.arguments import Json, Store
from outcrop.cli.output import print_json, say
from outcrop.options import format_size
from outcrop.store.derived import find_garbage, remove


def gc(
    store: Store,
    everything: Annotated[
        bool,
        typer.Option("--all", help="Also layouts that fit but that nobody uses now."),
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would go.")] = False,
    as_json: Json = False,
) -> None:
    """Remove derived layouts that nobody uses, and what interrupted work left.

    Layouts that a running process holds always stay.

    Example: outcrop gc papers.outcrop --dry-run
    """
    garbage = list(find_garbage(store, everything=everything))
    removed = [item for item in garbage if dry_run or remove(item)]
    if as_json:
        shown = [{**asdict(item), "path": str(item.path)} for item in removed]
        print_json({"dry_run": dry_run, "removed": shown})
        return
    for item in removed:
        say(f"{item.path}: {item.why} ({format_size(item.bytes)})")
    total = format_size(sum(item.bytes for item in removed))
    say(f"{'would free' if dry_run else 'freed'} {total}")
