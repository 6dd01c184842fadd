"""Schedule: the epochs of some seeds over a runner, and where a loop over them stands."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from typing import Any

from outcrop.errors import OptionError
from outcrop.memory.batches import Batch
from outcrop.run.runner import Runner
from outcrop.sample.edge_ids import keeps_edge_ids
from outcrop.sample.history import NEVER
from outcrop.sample.identity import SamplingIdentity
from outcrop.sample.seeds import EpochTasks, Ids, SeedOrder, Stream, Task


class Schedule:
    """The epochs of some seeds, of a runner, with a position that can be saved. Not thread-safe."""

    def __init__(self, runner: Runner, seeds: SeedOrder, *, trains: bool = False) -> None:
        """`trains`: embeddings are used again in its epochs, if they are in any."""
        self.runner = runner
        self.seeds = seeds
        self._history = runner.history if trains else None
        self._wants_history = False
        self._epoch, self._batch, self._calls = 0, 0, 0
        self._ahead: set[int] = set()
        self._loaded = False
        self._first_look = False

    def epoch(
        self, epoch: int, first_batch: int = 0, last_batch: int | None = None
    ) -> Iterator[Batch]:
        """Batches [first, last) of one epoch; the position follows them."""
        last_batch = len(self.seeds) if last_batch is None else last_batch
        if epoch < 0 or not 0 <= first_batch <= last_batch <= len(self.seeds):
            raise OptionError(f"no batches {first_batch} to {last_batch} of epoch {epoch}")
        self._first_look = False
        return self._batches(epoch, range(first_batch, last_batch), set())

    def _batches(
        self, epoch: int, numbers: range, ahead: set[int], *, counted: bool = False
    ) -> Iterator[Batch]:
        """The batches of these numbers, but for those that were delivered ahead of others."""
        self._epoch, self._batch, self._ahead = epoch, numbers.start, ahead
        self._loaded = False
        before = frozenset(ahead)
        some = [number for number in numbers if number not in before]
        tasks = EpochTasks(self.seeds, epoch, some, counted=counted)
        whole = not before and numbers.stop == len(self.seeds)
        batches = self.runner.run(tasks, self.seeds.stream, epoch, whole=whole)
        try:
            for batch in batches:
                self._delivered(batch.task.batch)
                yield batch
                del batch
            if numbers.stop == len(self.seeds):
                self._epoch, self._batch = epoch + 1, 0
        finally:
            batches.close()  # type: ignore[attr-defined]

    def _delivered(self, number: int) -> None:
        self._ahead.add(number)
        while self._batch in self._ahead:
            self._ahead.remove(self._batch)
            self._batch += 1

    def next_epoch(self) -> Iterator[Batch]:
        """What is left of an epoch whose position was loaded; else the epoch after the last one.

        A first look is free: where only one batch of the first epoch was taken, it begins anew.
        """
        counted = self._history is not None
        if counted:
            self.runner.check_alone()  # before the position changes
        begun = self._batch + len(self._ahead)
        if begun and not self._loaded:  # the last iteration was given up in the middle
            looked = self._first_look and begun == 1
            self._epoch, self._batch, self._ahead = 0 if looked else self._epoch + 1, 0, set()
        self._first_look = not (self._epoch or self._batch or self._ahead)
        if counted:
            self._check_embeddings()
        numbers = range(self._batch, len(self.seeds))
        return self._batches(self._epoch, numbers, self._ahead, counted=counted)

    def _check_embeddings(self) -> None:
        """OptionError where the position is one with embeddings, and they are not here."""
        assert self._history is not None
        if self._loaded and self._wants_history and not (self._history.stored != NEVER).any():
            raise OptionError(
                "the saved position is of a run with embeddings: load them, too, by "
                "loader.history.load_state_dict"
            )

    def one(self, input_ids: Ids) -> Batch:
        """A batch around given input positions. Calls are numbered, so each draws afresh."""
        task = Task(Stream.DIRECT, 0, self._calls, input_ids, self.seeds.seeds(input_ids))
        self._calls += 1
        (batch,) = self.runner.run([task], Stream.DIRECT, 0)
        return batch

    def state_dict(self) -> dict[str, Any]:
        """Where the loop is: after so many batches of an epoch, and what they depend on.

        `ahead`: later batches that were delivered already, in completion order.
        """
        position = {
            "epoch": self._epoch,
            "batch": self._batch,
            "ahead": sorted(self._ahead),
            "calls": self._calls,
            "identity": self._identity.values(),
        }
        if self._history is not None:
            position["embeddings"] = bool((self._history.stored != NEVER).any())
        return position

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """OptionError where the position is one of other batches than these, or is none."""
        self._check_identity(_part(state, "identity", lambda value: isinstance(value, Mapping)))
        epoch, batch, calls = (
            _part(state, name, _is_count) for name in ("epoch", "batch", "calls")
        )
        ahead = _part({"ahead": [], **state}, "ahead", _are_counts)
        batches = len(self.seeds)
        if batch > batches or any(number >= batches for number in ahead):
            raise OptionError(
                f"the saved position is after batch {batch}, and ahead {ahead}, of {batches}"
            )
        self._epoch, self._batch, self._calls = epoch, batch, calls
        self._ahead = set(ahead)
        self._loaded = True
        self._wants_history = bool(state.get("embeddings"))

    def _check_identity(self, saved: Mapping[str, Any]) -> None:
        saved = dict(saved)
        count = saved.pop("num_seeds", None)
        if count is not None and "seeds" not in saved:
            # Saved by a version that counted the seeds and did not look at them.
            if count != len(self.seeds.nodes):
                raise _of_others(f"the number of seeds was {count}, and is {len(self.seeds.nodes)}")
            saved["seeds"] = self._identity.seeds
        difference = self._identity.difference(saved)
        if difference is not None:
            raise _of_others(difference)

    @cached_property
    def _identity(self) -> SamplingIdentity:
        """Everything that batches are a function of."""
        runner = self.runner
        return SamplingIdentity.of(
            runner.sampling,
            self.seeds,
            runner.store.content,
            runner.alterations,
            keeps_edge_ids=keeps_edge_ids(runner.store.facts, runner.sampling),
            history=None if self._history is None else self._history.identity,
        )


def _part(state: Mapping[str, Any], name: str, fits: Callable[[Any], bool]) -> Any:
    if name not in state:
        raise OptionError(f"the saved position has no {name}")
    if not fits(state[name]):
        raise OptionError(f"the saved position's {name} cannot be {state[name]!r}")
    return state[name]


def _is_count(value: Any) -> bool:
    return type(value) is int and value >= 0


def _are_counts(value: Any) -> bool:
    return isinstance(value, list) and all(map(_is_count, value))


def _of_others(difference: str) -> OptionError:
    return OptionError(f"the saved position is of other batches: {difference}")
