"""Option field: an option's default, help and panel -> a field of a dataclass."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

Panel = Literal[
    "Options",
    "Model",
    "Sampling",
    "Optimizer",
    "Targets and metrics",
    "Evaluation",
    "Memory and data",
    "Checkpoints",
]


@dataclass(frozen=True)
class Shown:
    """How `outcrop train --help` shows an option."""

    text: str
    """One short sentence."""
    panel: Panel
    """The first one, "Options", has what everybody needs."""
    metavar: str | None
    default: str | None
    """None: as it is."""


def option(
    default: Any,
    text: str,
    panel: Panel = "Options",
    *,
    metavar: str | None = None,
    shown_default: str | None = None,
    may_change: bool = False,
) -> Any:
    """A field of TrainOptions, with all that is said of it anywhere.

    `may_change`: a run may be resumed with another value. Nothing that weights depend on may.
    """
    about = {"shown": Shown(text, panel, metavar, shown_default), "may_change": may_change}
    if isinstance(default, dict):
        return field(default_factory=default.copy, hash=False, metadata=about)
    return field(default=default, metadata=about)
