"""History: embeddings of nodes, pushed and pulled by a model in the order of training.

Who pushes and who pulls was decided when a batch was sampled (sample/history.py). A pull is refused
where what it counts on was not pushed: a batch was not trained on, or its model does not push.

A pulled row is an input like any other: its gradient says how what made it should change, and it
was made by an earlier step. So it is kept, and goes into the model when the node is pushed next
(gradients="late"). A node that nearly every batch pulls would else hardly ever change anything.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from outcrop.errors import BudgetError, HistoryError, OptionError
from outcrop.memory.batches import Batch
from outcrop.options import format_size
from outcrop.sample.history import NEVER, HistoryOptions, HistoryTable, history_named
from outcrop.sample.sampler import Reuse
from outcrop.sample.seeds import Ids


@dataclass(frozen=True, eq=False)
class GivenHistory:
    """What history= says."""

    options: HistoryOptions
    nodes: Ids | None = None
    """The candidates, ascending; None: they are chosen."""


def history_given(given: Any) -> GivenHistory | None:
    """A width, text, options, or (any of these, the ids of candidates); None: none."""
    if given is None or isinstance(given, GivenHistory):
        return given
    nodes = None
    if isinstance(given, tuple) and len(given) == 2:
        given, nodes = given[0], _candidates(given[1])
    options = history_named(given)
    return None if options is None else GivenHistory(options, nodes)


def _candidates(given: Any) -> Ids:
    """Ids or a mask -> ids, ascending."""
    try:
        nodes = np.asarray(given)
    except ValueError:  # lists of several lengths
        nodes = np.empty(())
    if nodes.dtype == bool and nodes.ndim == 1:
        return np.flatnonzero(nodes)
    if nodes.ndim != 1 or not (np.issubdtype(nodes.dtype, np.integer) or not nodes.size):
        raise OptionError(
            f"history: candidates are node ids or a mask (got {nodes.dtype}, {list(nodes.shape)})"
        )
    return np.unique(nodes.astype(np.int64))


@dataclass(frozen=True, eq=False)
class Embeddings:
    """Those of some nodes."""

    nodes: Ids
    pushed: NDArray[np.int32]
    """The iteration of each."""
    degrees: torch.Tensor
    """The in-degrees that they were made with; NaN: nobody asked."""
    rows: torch.Tensor
    gradients: torch.Tensor
    """Of rows that were pulled, since the last push; no columns: they are not kept."""


# Saved at a time.
_AT_A_TIME = 4096
# A loop may fetch a batch or two before it trains on the one it has.
_FETCHED_AHEAD = 3

Degrees = Callable[[], torch.Tensor]


class History:
    """The embeddings of a loader's candidates. Not thread-safe: it belongs to the training loop."""

    def __init__(self, table: HistoryTable, options: HistoryOptions, device: torch.device) -> None:
        """`device`: where embeddings are kept."""
        self.table = table
        self.width = options.width
        self.dtype: torch.dtype = getattr(torch, options.dtype)
        self.late = options.gradients == "late"
        count, width = len(table.nodes), options.width
        owed = width if self.late else 0
        try:
            # Not touched, so that memory is taken as embeddings come.
            self._rows = torch.empty(count, width, device=device, dtype=self.dtype)
            self._gradients = torch.zeros(count, owed, device=device, dtype=self.dtype)
            self._degrees = torch.full((count,), torch.nan, device=device)
        except torch.cuda.OutOfMemoryError:
            needed = count * (options.number_bytes * (width + owed) + 4)
            raise BudgetError(
                f"history: {count} embeddings need {format_size(needed)} on {device}; give fewer "
                "(nodes=N), or place=host"
            ) from None
        self._handed: deque[BatchHistory] = deque(maxlen=_FETCHED_AHEAD)

    def of(self, batch: Batch) -> BatchHistory | None:
        """What a batch has of it; None: nothing is used again.

        HistoryError where it counts on a batch that was not trained on: one that came long before,
        or any, once so many batches were handed out and none was exchanged.
        """
        reuse = batch.reuse
        if reuse is None:
            return None
        if self._handed and self._handed[-1].reuse.iteration + 1 != reuse.iteration:
            self._handed.clear()  # another loop
        idle = len(self._handed) == _FETCHED_AHEAD and not any(b.exchanged for b in self._handed)
        self._check(reuse, idle | (reuse.pulled_from <= reuse.iteration - _FETCHED_AHEAD))
        handed = BatchHistory(self, reuse)
        self._handed.append(handed)
        return handed

    def push(self, reuse: Reuse, x: torch.Tensor, degrees: torch.Tensor | None) -> None:
        """Rows of a batch's first nodes -> embeddings. What is not finite is not kept."""
        if not len(reuse.pushed):
            return
        slots = torch.from_numpy(reuse.pushed_slots.astype(np.int64))
        places = torch.from_numpy(reuse.pushed.astype(np.int64)).to(x.device)
        rows = x.detach().index_select(0, places).to(self._rows.dtype)
        finite = rows.isfinite().all(dim=1).cpu().numpy()
        on_device = slots.to(self._rows.device)
        self._rows.index_copy_(0, on_device, rows.to(self._rows.device))
        if degrees is not None:
            found = degrees.index_select(0, places).to(self._degrees)
            self._degrees.index_copy_(0, on_device, found)
        self.table.stored[reuse.pushed_slots] = np.where(finite, reuse.iteration, NEVER)
        if self.late:
            self._gradients[on_device[torch.from_numpy(~finite).to(on_device.device)]] = 0

    def pull(self, reuse: Reuse, like: torch.Tensor) -> torch.Tensor:
        """The embeddings of a batch's pulled nodes, as `like` is; no gradient flows into them."""
        self._check(reuse, np.ones(len(reuse.pulled_slots), bool))
        return self._taken(self._rows, reuse).to(like.device, like.dtype)

    def pull_degrees(self, reuse: Reuse, like: torch.Tensor) -> torch.Tensor:
        """The in-degrees that these were made with."""
        return self._taken(self._degrees, reuse).to(like)

    def settle(self, reuse: Reuse, own: torch.Tensor, pulled: torch.Tensor) -> torch.Tensor:
        """Gradients of a batch's first rows and of its pulled ones -> those of the first rows, with
        what is owed to the nodes that are pushed. Those of pulled rows are kept, if finite."""
        slots = torch.from_numpy(reuse.pushed_slots.astype(np.int64)).to(self._gradients.device)
        places = torch.from_numpy(reuse.pushed.astype(np.int64)).to(own.device)
        own = own.index_add(0, places, self._gradients.index_select(0, slots).to(own))
        self._gradients.index_fill_(0, slots, 0)
        slots = torch.from_numpy(reuse.pulled_slots.astype(np.int64)).to(self._gradients.device)
        new = torch.where(pulled.isfinite().all(dim=1, keepdim=True), pulled, 0)
        self._gradients.index_add_(0, slots, new.to(self._gradients))
        return own

    def _taken(self, values: torch.Tensor, reuse: Reuse) -> torch.Tensor:
        slots = torch.from_numpy(reuse.pulled_slots.astype(np.int64))
        return values.index_select(0, slots.to(values.device))

    def _check(self, reuse: Reuse, which: NDArray[np.bool_]) -> None:
        stored = self.table.stored[reuse.pulled_slots]
        bad = np.flatnonzero(which & (stored != reuse.pulled_from))
        if not len(bad):
            return
        first = bad[0]
        node, since = self.table.nodes[reuse.pulled_slots[first]], reuse.pulled_from[first]
        there = "none is there" if stored[first] == NEVER else f"one of {stored[first]} is there"
        raise HistoryError(
            f"iteration {reuse.iteration} counts on the embedding of node {node} of iteration "
            f"{since}, and {there}: that batch was not trained on, its step gave NaN, or the model "
            "does not call layer.exchange (docs/outre.md)"
        )

    # Kept with a checkpoint

    @property
    def stored(self) -> int:
        """How many embeddings are there."""
        return int(np.count_nonzero(self.table.stored != NEVER))

    def embeddings(self) -> Iterator[Embeddings]:
        """All that are there, some at a time."""
        there = np.flatnonzero(self.table.stored != NEVER)
        for first in range(0, len(there), _AT_A_TIME):
            some = there[first : first + _AT_A_TIME]
            slots = torch.from_numpy(some).to(self._rows.device)
            yield Embeddings(
                self.table.nodes[some],
                self.table.stored[some],
                self._degrees.index_select(0, slots),
                self._rows.index_select(0, slots),
                self._gradients.index_select(0, slots),
            )

    def restore(self, embeddings: Iterable[Embeddings]) -> None:
        """In place of those that are there; OptionError where one is of another node."""
        self.table.restored += 1
        self.table.stored[:] = NEVER
        self._gradients.zero_()
        for some in embeddings:
            slots = np.searchsorted(self.table.nodes, some.nodes)
            if not np.isin(some.nodes, self.table.nodes, assume_unique=True).all():
                raise OptionError("saved embeddings are of other nodes than this loader's")
            on_device = torch.from_numpy(slots).to(self._rows.device)
            self._rows.index_copy_(0, on_device, some.rows.to(self._rows))
            self._degrees.index_copy_(0, on_device, some.degrees.to(self._degrees))
            self._gradients.index_copy_(0, on_device, some.gradients.to(self._gradients))
            self.table.stored[slots] = some.pushed

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Copies of what is there, and the candidates: keep them with the loader's position.

        A loader of the same candidates takes them up: history=(256, state["candidates"]).
        """
        parts = list(self.embeddings())
        none = torch.empty(0)
        return {
            "candidates": torch.from_numpy(self.table.nodes.copy()),
            "nodes": torch.from_numpy(
                np.concatenate([np.empty(0, np.int64), *(p.nodes for p in parts)])
            ),
            "pushed": torch.from_numpy(
                np.concatenate([np.empty(0, np.int32), *(p.pushed for p in parts)])
            ),
            "degrees": torch.cat([none, *(part.degrees.cpu() for part in parts)]),
            "rows": torch.cat([self._rows[:0].cpu(), *(part.rows.cpu() for part in parts)]),
            "gradients": torch.cat(
                [self._gradients[:0].cpu(), *(part.gradients.cpu() for part in parts)]
            ),
        }

    def load_state_dict(self, state: Mapping[str, torch.Tensor]) -> None:
        """OptionError where it is one of other candidates, or of another width."""
        count, of = (len(state.get(name, ())) for name in ("nodes", "candidates"))
        wanted = {"candidates": (of,), "nodes": (count,), "pushed": (count,), "degrees": (count,),
                  "rows": (count, self.width),
                  "gradients": (count, self._gradients.shape[1])}  # fmt: skip
        for name, shape in wanted.items():
            found = tuple(state[name].shape) if name in state else "nothing"
            if found != shape:
                raise OptionError(f"saved embeddings: {name} has {found}, and should have {shape}")
        if state["rows"].dtype != self.dtype:
            raise OptionError(
                f"saved embeddings: rows are {state['rows'].dtype}, and should be {self.dtype}"
            )
        if not np.array_equal(state["candidates"].numpy(), self.table.nodes):
            raise OptionError(
                "saved embeddings are of other candidates than this loader's: make it with "
                'history=(width, state["candidates"])'
            )
        nodes, pushed = state["nodes"].numpy(), state["pushed"].numpy()
        self.restore(
            [Embeddings(nodes, pushed, state["degrees"], state["rows"], state["gradients"])]
        )


@dataclass
class BatchHistory:
    """What a batch pulls and pushes: `layer.exchange` of its last layer does both."""

    history: History
    reuse: Reuse
    exchanged: bool = False
    """Whether that was done."""

    @property
    def pulled(self) -> int:
        """Nodes whose embeddings are used again."""
        return len(self.reuse.pulled_slots)

    def exchange(self, x: torch.Tensor, degrees: Degrees | None = None) -> torch.Tensor:
        """Rows of the first nodes -> the same, and those of pulled nodes after them.

        `degrees`: of the batch's nodes, where embeddings depend on them.
        """
        if x.shape[1] != self.history.width:
            raise OptionError(
                f"history: the width is {self.history.width}, and the input of the model's last "
                f"layer has {x.shape[1]}"
            )
        pulled = self.history.pull(self.reuse, x)
        self.history.push(self.reuse, x, None if degrees is None else degrees())
        self.exchanged = True
        if self.history.late and x.requires_grad:
            joined: torch.Tensor = _Joined.apply(x, pulled, self)  # type: ignore[no-untyped-call]
            return joined
        return torch.cat([x, pulled]) if len(pulled) else x

    def degrees(self, own: torch.Tensor) -> torch.Tensor:
        """In-degrees of the first nodes, and of pulled nodes after them."""
        return torch.cat([own, self.history.pull_degrees(self.reuse, own)])


class _Joined(torch.autograd.Function):
    """A batch's own rows with pulled ones behind them, whose gradients come late."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, pulled: torch.Tensor, of: BatchHistory) -> torch.Tensor:
        ctx.of, ctx.own = of, len(x)
        return torch.cat([x, pulled])

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        (gradient,) = gradients
        own, pulled = gradient[: ctx.own], gradient[ctx.own :]
        return ctx.of.history.settle(ctx.of.reuse, own, pulled), None, None
