"""Strategies: which bytes are read, when, and in what order. One file each: what it decides."""

from __future__ import annotations

from dataclasses import replace

from outcrop.errors import OptionError
from outcrop.options import options_from_text
from outcrop.plan.plan import Strategy
from outcrop.strategies.agnes import AGNES
from outcrop.strategies.direct import DIRECT
from outcrop.strategies.diskgnn import DISKGNN
from outcrop.strategies.ginex import GINEX
from outcrop.strategies.gnndrive import GNNDRIVE
from outcrop.strategies.memory import MEMORY
from outcrop.strategies.mmap import MMAP
from outcrop.strategies.outre import OUTRE
from outcrop.strategies.pagraph import PAGRAPH

STRATEGIES: dict[str, Strategy] = {
    made.name: made
    for made in (MEMORY, MMAP, DIRECT, PAGRAPH, GINEX, GNNDRIVE, OUTRE, DISKGNN, AGNES)
}


def strategy_named(text: str) -> Strategy:
    """ "mmap", or with options "mmap:threads=16"."""
    name, *given = text.split(":")
    if name not in STRATEGIES:
        raise OptionError(f"a strategy is one of {', '.join(STRATEGIES)} (got {name!r})")
    known = STRATEGIES[name]
    options = options_from_text(type(known.options), given, where=name)
    return replace(known, options=options, text=text)
