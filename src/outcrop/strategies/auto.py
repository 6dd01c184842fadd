"""auto: the strategy, by a rule from measured results, where the user names none.

Batches are the same under every strategy, so the choice is one of time, memory and disk alone:
`memory` where everything fits; else the first of the others that fits, in the order in which
benchmarks found them (results/standard, results/agnes-prepare-standard.md): `diskgnn`, which
prepares an epoch before the first batch and the next ones while it trains, `agnes`, which needs
disk for some batches alone, `ginex`, `gnndrive`, and `direct`, which keeps nothing. Where
embeddings are used again, `agnes` and then `outre` (results/outre-embeddings.md).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from outcrop.errors import BudgetError
from outcrop.options import format_size
from outcrop.plan.settle import Settled, Wanted, settle
from outcrop.strategies import strategy_named

AUTO = "auto"
# The share of the drive's free space to use where disk= says nothing: others live there, too.
_DISK_SHARE = 1 / 4


@dataclass(frozen=True)
class Choice:
    """What was taken, and why not what would have been better."""

    settled: Settled
    passed_over: Mapping[str, str]
    """Reasons, by strategy."""
    where: Path
    """The folder that it writes to."""

    @property
    def strategy(self) -> str:
        return str(self.settled.strategy)

    def sentence(self, written_bytes: int) -> str:
        """For people. `written_bytes`: what preparing it wrote."""
        reasons = "; ".join(f"{name}: {why}" for name, why in self.passed_over.items())
        where = self.where
        parts = [
            f"strategy auto: {self.strategy}",
            f" ({reasons})" if reasons else " (everything fits)",
            f"; wrote {format_size(written_bytes)} to {where}" if written_bytes else "",
        ]
        return "".join(parts)


def choose(wanted: Wanted, failed: Mapping[str, str] | None = None) -> Choice:
    """The best that fits. BudgetError where none does, with the least that would do.

    `failed`: what was tried already, and why it could not be used.
    """
    failed = failed or {}
    passed: dict[str, str] = {}
    room, where = _disk_room(wanted)
    for strategy in _best_first(wanted):
        if strategy in failed:
            passed[strategy] = failed[strategy]
            continue
        try:
            settled = settle(wanted, strategy_named(strategy))
        except BudgetError as error:
            passed[strategy] = str(error).rpartition("; ")[2]  # the least that would do
            refusal = error
            continue
        written = settled.plan.written_bytes(settled.context)
        if written <= room:
            return Choice(settled, passed, wanted.store.derived.root)
        passed[strategy] = f"would write {format_size(written)}, {where}"
    raise refusal  # of `direct`: it needs the least memory, and writes nothing


def with_advice(wanted: Wanted, refusal: BudgetError) -> BudgetError:
    """The refusal of a strategy that was asked for, and which one would fit."""
    try:
        found = choose(wanted).strategy
    except BudgetError:
        return refusal
    return BudgetError(f"{refusal}; strategy={found!r} fits, and auto would choose it")


def _best_first(wanted: Wanted) -> tuple[str, ...]:
    others = "ginex", "gnndrive", "gnndrive:topology=mmap", "direct"
    if wanted.history is not None:  # what was prepared belongs to no run
        return "memory", "agnes", "outre", *others
    ahead = "diskgnn" if wanted.epochs == 1 else "diskgnn:refresh=background"
    return "memory", ahead, "agnes", *others


def _disk_room(wanted: Wanted) -> tuple[int, str]:
    """What may be written beside the store, and a clause that says why no more."""
    folder = wanted.store.derived.folder
    if not wanted.store.derived.writable:
        return 0, f"and {folder} cannot be written to"
    free = wanted.disk.free_bytes
    if wanted.disk_bytes is not None:
        given = min(wanted.disk_bytes, free)
        return given, f"of disk={format_size(wanted.disk_bytes)} with {format_size(free)} free"
    room = int(free * _DISK_SHARE)
    return room, f"more than {format_size(room)}, a quarter of what is free"
