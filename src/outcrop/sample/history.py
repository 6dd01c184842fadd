"""History: which embeddings are used again, decided in the order of training (OUTRE).

A candidate is a node that has a place for h^(L-1), its input of a model's last layer. When the
first hop of a batch finds one whose embedding is fresh, the second hop does not expand it: the
embedding is pulled. Every other candidate among the seeds and those nodes is computed in full, and
pushed. docs/outre.md draws the states.

A seed needs its neighbours one layer below as well: a pulled node is expanded one hop later, as if
that hop had found it. So what a pull saves is what the last hop would have found below it.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import xxhash
from numpy.typing import NDArray

from outcrop import _core
from outcrop.errors import CancelledError, OptionError
from outcrop.options import options_from_text
from outcrop.sample.sampler import Reuse, Sampling
from outcrop.sample.seeds import Ids

NEVER = -1
"""The iteration of an embedding that is not there."""
_MOST_ITERATIONS = 2**31 - 1


@dataclass(frozen=True)
class HistoryOptions:
    """Options of history=, as in "width=256:staleness=100"."""

    width: int = 0
    """Numbers of an embedding: the width of the model's input to its last layer."""
    staleness: int = 100
    """An embedding is used in fewer than so many iterations after its own. (The paper: 100.)"""
    share: float | None = None
    """Of the memory for caches. None: strategy outre weighs embeddings against rows, by a profile;
    others give a quarter."""
    nodes: int | None = None
    """How many candidates, in place of a share of memory."""
    metric: Literal["saved", "degree"] = "saved"
    """Who is a candidate: those whose embeddings save most, by a profile; or by out-edges."""
    dtype: Literal["bfloat16", "float32"] = "bfloat16"
    """What embeddings and their gradients are kept in. In half the memory there are twice as many;
    what rounding changes is less than what they change in a few iterations."""
    place: Literal["host", "device"] = "host"
    """Where embeddings are kept; device: that of batches."""
    gradients: Literal["late", "none"] = "late"
    """What becomes of the gradient of a row that is pulled. late: it is kept, and joins that of the
    next push of its node; that takes as much memory as embeddings. none (the paper): it is lost."""

    @property
    def number_bytes(self) -> int:
        """A number of an embedding."""
        return 2 if self.dtype == "bfloat16" else 4

    def __post_init__(self) -> None:
        for name in ("width", "staleness"):
            if getattr(self, name) < 1:
                raise OptionError(f"history: {name} must be at least 1 (got {getattr(self, name)})")
        if self.share is not None and not 0 <= self.share <= 1:
            raise OptionError(f"history: share must be 0 to 1 (got {self.share})")
        if self.nodes is not None and self.nodes < 0:
            raise OptionError(f"history: nodes must be at least 0 (got {self.nodes})")
        if None not in (self.share, self.nodes):
            raise OptionError("history: give a share of memory or a number of nodes, not both")


def history_named(given: Any) -> HistoryOptions | None:
    """256, "256", "width=256:staleness=10", options, or None for none."""
    if given is None or isinstance(given, HistoryOptions):
        return given
    if isinstance(given, int | np.integer) and not isinstance(given, bool):
        return HistoryOptions(int(given))
    if not isinstance(given, str) or not given:
        raise OptionError(
            f"history is the width of embeddings, or text such as 'width=256:staleness=100' "
            f"(got {given!r})"
        )
    first, *rest = given.split(":")
    return options_from_text(
        HistoryOptions, [f"width={first}" if first.isdecimal() else first, *rest], where="history"
    )


def check_history(sampling: Sampling, candidates: Ids | None, num_nodes: int) -> None:
    """OptionError where no batch could use embeddings again, or not those of these nodes."""
    if candidates is not None and len(candidates):
        low, high = int(candidates[0]), int(candidates[-1])
        if not 0 <= low <= high < num_nodes:
            raise OptionError(
                f"history: candidates must be 0 to {num_nodes - 1} (got {low} to {high})"
            )
    if sampling.kind != "neighbor":
        raise OptionError("history is for neighbour sampling: ShaDow's seeds share no embeddings")
    if len(sampling.num_neighbors) < 2:
        raise OptionError(
            f"history needs two hops at least (got num_neighbors={list(sampling.num_neighbors)})"
        )


class HistoryTable:
    """When the embedding of each candidate was pushed: as it was decided, and as it was done.

    Decisions run ahead of training. Not thread-safe: a `Gate` takes turns.
    """

    def __init__(self, num_nodes: int, nodes: Ids, staleness: int) -> None:
        """`nodes`: the candidates, ascending; each one's slot is its place there."""
        self.nodes = nodes
        self.staleness = staleness
        self._slots = _core.StaticSlots(num_nodes, nodes)
        self._decided: NDArray[np.int32] = np.full(len(nodes), NEVER, np.int32)
        self.stored: NDArray[np.int32] = np.full(len(nodes), NEVER, np.int32)
        """The iteration of what is really there, by slot. Training writes it."""
        self.restored = 0
        """How often that was replaced by what was saved."""

    @staticmethod
    def table_bytes(num_nodes: int, candidates: int) -> int:
        """What it takes: ids, iterations twice, one of them kept while a window is sampled, and
        what finds slots."""
        return (8 + 3 * 4) * candidates + _core.StaticSlots.bytes(num_nodes, candidates)

    @property
    def identity(self) -> str:
        digest = xxhash.xxh3_128_hexdigest(self.nodes.data)
        return f"staleness={self.staleness}:{digest}"

    def restart(self, iteration: int) -> None:
        """Decisions go on from what is there, before this iteration; what is from it on is void."""
        self.stored[self.stored >= iteration] = NEVER
        self._decided[:] = self.stored

    @contextmanager
    def drafted(self) -> Iterator[None]:
        """Decisions that are taken back if what is within fails."""
        before = self._decided.copy()
        try:
            yield
        except BaseException:
            self._decided[:] = before
            raise

    def decide(self, iteration: int, nodes: Ids, seeds: int) -> tuple[NDArray[np.uint8], Reuse]:
        """`nodes`: the seeds, then what the first hop found -> which of these are put off."""
        slots = np.empty(len(nodes), np.int32)
        self._slots.find(nodes, slots)
        candidates = np.flatnonzero(slots >= 0)
        pushed = self._decided[slots[candidates]]
        fresh = (pushed != NEVER) & (iteration - pushed < self.staleness)
        fresh[: np.searchsorted(candidates, seeds)] = False
        pulled, others = candidates[fresh], candidates[~fresh]
        deferred = np.zeros(len(nodes), np.uint8)
        deferred[pulled] = 1
        # A seed that occurs twice is two nodes; the first has the edges.
        _, firsts = np.unique(slots[others], return_index=True)
        others = others[np.sort(firsts)]
        places = (others - np.cumsum(deferred)[others]).astype(np.uint32)
        reuse = Reuse(iteration, slots[pulled], pushed[fresh], places, slots[others])
        self._decided[reuse.pushed_slots] = iteration
        return deferred[seeds:], reuse


class Gate:
    """Lets batches be decided one after the other, whichever threads sample them."""

    def __init__(self, table: HistoryTable, first: int) -> None:
        self._table = table
        self._changed = threading.Condition()
        # Guarded by _changed
        self._next = first
        self._cancelled = False

    def decide(self, iteration: int, nodes: Ids, seeds: int) -> tuple[NDArray[np.uint8], Reuse]:
        """Waits for the batches before. CancelledError once nobody wants it any more."""
        if iteration > _MOST_ITERATIONS:
            raise OptionError(f"history: more than {_MOST_ITERATIONS} iterations")
        with self._changed:
            self._changed.wait_for(lambda: self._cancelled or self._next >= iteration)
            if self._cancelled:
                raise CancelledError("cancelled while a batch waited for those before it")
            assert self._next == iteration, "batches come one after the other"
            found = self._table.decide(iteration, nodes, seeds)
            self._next += 1
            self._changed.notify_all()
            return found

    def drafted(self) -> AbstractContextManager[None]:
        """What is decided within is taken back if it fails."""
        return self._table.drafted()

    def cancel(self) -> None:
        with self._changed:
            self._cancelled = True
            self._changed.notify_all()
