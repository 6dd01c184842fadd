"""Option parameters: fields of TrainOptions -> options of a command.

A parameter that was not given is None, and leaves its value to --config and to the defaults.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable
from dataclasses import MISSING, Field, fields
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import typer

from outcrop.errors import OptionError
from outcrop.train.option_field import Shown
from outcrop.train.options import TrainOptions

_KINDS = get_type_hints(TrainOptions, include_extras=True)


def with_train_options(command: Callable[..., None]) -> Callable[..., None]:
    """The command, with an option for each field of TrainOptions in place of its **keywords.

    Panels of --help are in the order of their first field; the command's own options come last.
    """
    signature = inspect.signature(command, eval_str=True)
    first, *others, _ = signature.parameters.values()
    made = [_parameter(one) for one in fields(TrainOptions)]
    made += [one.replace(kind=one.KEYWORD_ONLY) for one in others]
    command.__signature__ = signature.replace(parameters=[first, *made])  # type: ignore[attr-defined]
    return command


def read_texts(given: dict[str, Any]) -> dict[str, Any]:
    """Lists and mappings of options that were given as text, on the command line or in YAML."""
    return {
        name: _read(name, value) if isinstance(value, str) and name in _KINDS else value
        for name, value in given.items()
    }


def _parameter(one: Field[Any]) -> inspect.Parameter:
    shown: Shown = one.metadata["shown"]
    option = typer.Option(
        f"--{one.name.replace('_', '-')}",
        help=_with_choices(shown.text, _KINDS[one.name]),
        rich_help_panel=None if shown.panel == "Options" else shown.panel,
        metavar=shown.metavar,
        show_default=shown.default or _default(one),
    )
    kind = Annotated[_typed(_KINDS[one.name]) | None, option]  # type: ignore[valid-type]
    return inspect.Parameter(
        one.name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=kind
    )


def _default(one: Field[Any]) -> str | bool:
    if one.default in (None, ()) or one.default is False or one.default is MISSING:
        return False
    return f"{one.default:g}" if isinstance(one.default, float) else str(one.default)


def _plain(kind: Any) -> Any:
    """A kind without its rule."""
    return get_args(kind)[0] if get_origin(kind) is Annotated else kind


def _typed(kind: Any) -> type:
    """What the command line reads for a kind: text for all that is no flag and no number."""
    plain = _plain(kind)
    return plain if plain in (bool, int, float) else str


def _with_choices(text: str, kind: Any) -> str:
    """ "Precision." -> "Precision: fp32 or bf16." where the kind is, or has, a Literal."""
    plain = _plain(kind)
    kinds = get_args(plain) if get_origin(plain) in (Union, UnionType) else (plain,)
    names = [name for one in kinds if get_origin(one) is Literal for name in get_args(one)]
    if not names:
        return text
    return f"{text.removesuffix('.')}: {', '.join(names[:-1])} or {names[-1]}."


def _read(name: str, text: str) -> Any:
    kind = _plain(_KINDS[name])
    if get_origin(kind) is tuple:
        item = _plain(get_args(kind)[0])
        try:
            return tuple(item(part) for part in text.split(","))
        except ValueError:
            raise OptionError(f"{name} must be like 10,10,5 (got {text!r})") from None
    if get_origin(kind) is dict:
        try:
            return json.loads(text)
        except ValueError as error:
            raise OptionError(f"{name} must be JSON: {error} (got {text!r})") from None
    return text
