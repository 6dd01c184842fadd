"""Strategies: which bytes are read, when, and in what order. One file each."""

from __future__ import annotations

from outcrop.errors import OptionError
from outcrop.strategies.base import Strategy
from outcrop.strategies.direct import Direct
from outcrop.strategies.memory import Memory
from outcrop.strategies.mmap import Mmap

STRATEGIES: dict[str, type[Strategy]] = {made.name: made for made in (Memory, Mmap, Direct)}


def strategy_named(name: str) -> type[Strategy]:
    if name not in STRATEGIES:
        raise OptionError(f"a strategy is one of {', '.join(STRATEGIES)} (got {name!r})")
    return STRATEGIES[name]
