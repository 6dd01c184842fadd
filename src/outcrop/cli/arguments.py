"""Arguments that several commands take."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from outcrop.errors import OptionError
from outcrop.options import parse_count, parse_size


def _parser(parse: Callable[[str], int]) -> Callable[[str], int]:
    def parsed(text: str) -> int:
        try:
            return parse(text)
        except OptionError as error:
            raise typer.BadParameter(str(error)) from error

    return parsed


Store = Annotated[Path, typer.Argument(help="The store.", show_default=False)]
Destination = Annotated[
    Path, typer.Argument(help="The store to make; must not exist.", show_default=False)
]
Memory = Annotated[
    int,
    typer.Option(
        "--memory",
        help="Memory to use, beside about 60 MB for Python and its libraries.",
        parser=_parser(parse_size),
        metavar="SIZE",
        show_default="2GB",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Seed = Annotated[
    int,
    typer.Option("--seed", min=0, max=(1 << 63) - 1, help="The same seed makes the same store."),
]


def optional(text: str, panel: str | None = None) -> Any:
    """An option that may be left out, and then is None."""
    return typer.Option(help=text, show_default=False, rich_help_panel=panel)


def count_option(name: str, text: str) -> object:
    """An option that takes a count such as 1M."""
    parser = _parser(parse_count)
    return typer.Option(name, help=text, parser=parser, metavar="COUNT", show_default=False)


def neighbor_counts(text: str) -> tuple[int, ...]:
    """ "10,10,5" -> the neighbours to sample, per hop."""
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise OptionError(f"num_neighbors must be like 10,10,5 (got {text!r})") from None
