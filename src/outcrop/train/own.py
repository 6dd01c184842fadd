"""Own models: "module:factory" -> the user's own nn.Module, or one line that says what is wrong."""

from __future__ import annotations

import importlib
import os
import sys
import sysconfig
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import nn

from outcrop.errors import OptionError
from outcrop.train.checkpoint import Checkpoint
from outcrop.train.options import TrainOptions

# Whose lines are of no help to who wrote the model.
_NOT_OWN = (sysconfig.get_path("purelib"), sysconfig.get_path("stdlib"), "<frozen ",
            str(Path(__file__).parents[1]))  # fmt: skip


def make_own_model(options: TrainOptions, in_channels: int, out_channels: int) -> nn.Module:
    """factory(in_channels, out_channels, options, **model_args), of a module that is imported.

    Modules of the current folder can be, as with python -m.
    """
    factory = _import_factory(options.model)
    try:
        model = factory(in_channels, out_channels, options, **options.model_args)
    except Exception as error:
        raise OptionError(f"model {options.model}: {last_line(error)}") from error
    if not isinstance(model, nn.Module):
        raise OptionError(
            f"model {options.model}: must return an nn.Module (got {type(model).__name__})"
        )
    return model


def check_trusted(checkpoint: Checkpoint, options: TrainOptions, *, trust: bool) -> None:
    """OptionError unless what the checkpoint names may be imported and run."""
    if not trust:
        raise OptionError(
            f"{checkpoint.name}: its model is made by {options.model}, code that would be imported "
            "and run; if you trust who wrote the checkpoint, give trust=True (--trust), else make "
            "the model yourself, and load its state_dict from load_checkpoint(path).model"
        )


def last_line(error: BaseException) -> str:
    """The last line of a traceback, and where in the user's own files it was raised."""
    text = "\n".join(traceback.format_exception_only(error)[-1:]).strip().splitlines()[0]
    if isinstance(error, SyntaxError):
        return f"{text} ({error.filename}, line {error.lineno})"
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not frame.filename.startswith(_NOT_OWN)]
    return f"{text} ({own[-1].filename}, line {own[-1].lineno})" if own else text


def _import_factory(name: str) -> Callable[..., Any]:
    path, _, attribute = name.partition(":")
    here = os.getcwd()
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        module = importlib.import_module(path)
    except (Exception, SystemExit) as error:
        if isinstance(error, ModuleNotFoundError) and f"{path}.".startswith(f"{error.name}."):
            raise OptionError(
                f"model {name}: there is no module {error.name} in {here}, nor where Python looks"
            ) from error
        raise OptionError(f"model {name}: {path} cannot be imported: {last_line(error)}") from error
    if not hasattr(module, attribute):
        raise OptionError(f"model {name}: {path} has no {attribute}")
    factory: Callable[..., Any] = getattr(module, attribute)
    if not callable(factory):
        raise OptionError(f"model {name}: must be callable (got {type(factory).__name__})")
    return factory
