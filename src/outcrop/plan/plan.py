"""Plan: what a strategy decides, as one typed value, before anything is allocated.

Which topology, how far ahead batches are sampled, where rows come from, how many of what are under
way. The budget, its refusal, the record and the runner all read this one object.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from outcrop.ahead.ahead import AheadPart
from outcrop.errors import OptionError
from outcrop.memory.batches import RowShape
from outcrop.memory.budget import Demand
from outcrop.memory.charges import Charge, Phase, by_name, total
from outcrop.memory.context import MIN_BATCHES, Context
from outcrop.options import format_size
from outcrop.plan.history import HistoryPart, with_history
from outcrop.plan.tiers import TierOptions, check_stack, has_part, stacked, with_tiers
from outcrop.rows.packed_window import PackedWindow
from outcrop.rows.slots import PlannedSlots
from outcrop.rows.source import RowsPart, row_shape
from outcrop.sample.batching import RANDOM
from outcrop.topology.parts import TopologyPart

# More batches ahead than this hide nothing more.
MOST_AHEAD = 4


@dataclass(frozen=True)
class Concurrency:
    """How many of what are under way."""

    samplers: int = 1
    """How many sample batches as they come, each with memory of its own; 0: batches that are not
    ahead are sampled in memory that is not charged."""
    waiting: int = 0
    """Sampled batches that wait outside of their samplers; 0: inside."""
    gatherers: int = 1
    batches: int = MOST_AHEAD
    """How many are ahead of the loop, where there is memory for them."""
    order: Literal["exact", "completion"] = "exact"
    """Whether batches come in the order of their tasks, or as they are done."""


@dataclass(frozen=True)
class Plan:
    """What is kept, how far ahead, in how many bytes."""

    topology: TopologyPart
    """What batches are sampled from as they come."""
    rows: RowsPart | None
    """None: the store has no features."""
    ahead: AheadPart | None = None
    """None: every batch is sampled as it comes."""
    concurrency: Concurrency = Concurrency()
    verify_rows: bool = False
    """Whether every row is compared with the store's."""
    history: HistoryPart | None = None
    """Whose embeddings are used again; None: nobody's."""

    def __post_init__(self) -> None:
        if self.history is not None:
            self._check_history()
        if self.rows is None:
            return
        check_stack(self.rows)
        planned = has_part(self.rows, PlannedSlots)
        if self.ahead is None and (planned or has_part(self.rows, PackedWindow)):
            raise OptionError("rows that are decided window by window need windows")
        in_order = self.concurrency.gatherers == 1 and self.concurrency.order == "exact"
        if planned and not in_order:
            raise OptionError("slots that are planned are filled batch by batch, in order")

    def _check_history(self) -> None:
        """Embeddings come in the order of training, of this run."""
        if self.concurrency.order != "exact":
            raise OptionError("history needs batches in exact order (got order=completion)")
        if self.ahead is not None and not self.ahead.decides_reuse:
            raise OptionError(
                "history is not for prepared epochs: what a batch uses again depends on the run "
                "that it is of; use another strategy, outre say"
            )

    def shape(self, context: Context) -> RowShape:
        """What batches have for each of their nodes."""
        return row_shape(context) if self.rows is None else self.rows.shape(context)

    def charges(self, context: Context) -> list[Charge]:
        """Every byte, beside the batches': the only sum there is."""
        parts = [part for part in (self.topology, self.rows, self.ahead, self.history)
                 if part is not None]  # fmt: skip
        return [
            *context.common,
            context.lent(self.shape(context)),
            *samplers(context, self.topology, self.concurrency),
            *(charge for part in parts for charge in part.charges(context)),
        ]

    def demands(self, context: Context) -> list[Demand]:
        """What is in memory in each phase, the loop's first."""
        charges, shape = self.charges(context), self.shape(context)
        each = format_size(context.batch_bytes(shape))
        said = {Phase.LOOP: f"{MIN_BATCHES} batches of {each}", Phase.AHEAD: f"a batch of {each}"}
        return [
            Demand(
                by_name(charges, phase), context.batches_bytes(shape, phase), said.get(phase, "")
            )
            for phase in (Phase.LOOP, Phase.AHEAD, Phase.PREPARE)
        ]

    def fits(self, context: Context) -> bool:
        return all(demand.bytes <= context.memory_bytes for demand in self.demands(context))

    def lent_bytes(self, context: Context) -> int:
        """What making things ahead takes of the batches' memory meanwhile."""
        charges = self.charges(context)
        return max(total(charges, Phase.AHEAD) - total(charges, Phase.LOOP), 0)

    def written_bytes(self, context: Context) -> int:
        """Disk that it takes beside the store, at most at a time, as far as sizes tell."""
        ahead = 0 if self.ahead is None else self.ahead.written_bytes(context)
        return self.topology.written_bytes(context) + ahead


def samplers(context: Context, topology: TopologyPart, count: Concurrency) -> Sequence[Charge]:
    """What sampling takes where batches are sampled as they come."""
    return [
        Charge("samplers", count.samplers * topology.sampler_bytes(context)),
        Charge("sampled batches", count.waiting * context.waiting_bytes),
    ]


NO_OPTIONS = TierOptions()


@dataclass(frozen=True)
class Strategy:
    """A name, options, and a function that decides: a pure one, of facts alone."""

    name: str
    decide: Callable[[Context], Plan]
    """With its own rows alone."""
    options: Any = NO_OPTIONS
    """A frozen dataclass, all of whose fields have defaults: "ginex:superbatch=100" sets one."""
    text: str = ""
    """As it was asked for; empty: by its name."""
    splits: bool = False
    """Whether it decides how many embeddings there are."""
    batching: str = RANDOM
    """How seeds come together where embeddings are used again, and nobody says."""

    def __str__(self) -> str:
        return self.text or self.name

    def plan(self, context: Context) -> Plan:
        """What it decides, with the tiers above that the options ask for."""
        context = with_tiers(context)
        if not self.splits:
            context = with_history(context)
        decided, above = self.decide(context), context.above
        if context.history is not None and not self.splits:
            decided = replace(decided, history=HistoryPart(context.embeddings))
        return replace(decided, rows=stacked(above, decided.rows), verify_rows=above.verify_rows)
