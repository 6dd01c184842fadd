"""Strategies: which bytes are read, when, and in what order. One file each."""

from __future__ import annotations

from typing import Any

from outcrop.errors import OptionError
from outcrop.options import options_from_text
from outcrop.strategies.base import Strategy
from outcrop.strategies.direct import Direct
from outcrop.strategies.diskgnn import DiskGNN
from outcrop.strategies.ginex import Ginex
from outcrop.strategies.gnndrive import GnnDrive
from outcrop.strategies.memory import Memory
from outcrop.strategies.mmap import Mmap
from outcrop.strategies.pagraph import PaGraph

STRATEGIES: dict[str, type[Strategy]] = {
    made.name: made for made in (Memory, Mmap, Direct, PaGraph, Ginex, GnnDrive, DiskGNN)
}


def strategy_named(text: str) -> tuple[type[Strategy], Any]:
    """ "mmap", or with options "mmap:threads=16" -> the strategy and its options."""
    name, *given = text.split(":")
    if name not in STRATEGIES:
        raise OptionError(f"a strategy is one of {', '.join(STRATEGIES)} (got {name!r})")
    return STRATEGIES[name], options_from_text(STRATEGIES[name].Options, given, where=name)
