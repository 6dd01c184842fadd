"""Train: a store -> a trained model. `fit` is the whole of `outcrop train`, from Python."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from outcrop.train.options import TrainOptions
from outcrop.train.reporter import TrainReporter

if TYPE_CHECKING:
    from outcrop.train.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
    from outcrop.train.inference import infer
    from outcrop.train.loop import FitResult, fit
    from outcrop.train.models import load_model, make_model

__all__ = [
    "Checkpoint",
    "FitResult",
    "TrainOptions",
    "TrainReporter",
    "fit",
    "infer",
    "load_checkpoint",
    "load_model",
    "make_model",
    "save_checkpoint",
]

_HOMES = {
    "checkpoint": ("Checkpoint", "load_checkpoint", "save_checkpoint"),
    "inference": ("infer",),
    "loop": ("FitResult", "fit"),
    "models": ("load_model", "make_model"),
}


def __getattr__(name: str) -> Any:
    """What brings torch along: the command line sets its switches before that."""
    for module, names in _HOMES.items():
        if name in names:
            return getattr(importlib.import_module(f"outcrop.train.{module}"), name)
    raise AttributeError(f"module 'outcrop.train' has no attribute {name!r}")
