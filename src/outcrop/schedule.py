"""Schedule: the epochs of some seeds over a feed, and where a loop over them stands."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from outcrop.batch import Prepared
from outcrop.errors import OptionError
from outcrop.feed import Feed
from outcrop.sample.sampler import SAMPLING_VERSION
from outcrop.sample.seeds import Ids, SeedOrder, Stream, Task


class Schedule:
    """The epochs of some seeds, from a feed, with a position that can be saved. Not thread-safe."""

    def __init__(self, feed: Feed, seeds: SeedOrder) -> None:
        self.feed = feed
        self.seeds = seeds
        self._epoch, self._batch, self._calls = 0, 0, 0
        self._ahead: set[int] = set()
        self._loaded = False

    def epoch(
        self, epoch: int, first_batch: int = 0, last_batch: int | None = None
    ) -> Iterator[Prepared]:
        """Batches [first, last) of one epoch; the position follows them."""
        last_batch = len(self.seeds) if last_batch is None else last_batch
        if epoch < 0 or not 0 <= first_batch <= last_batch <= len(self.seeds):
            raise OptionError(f"no batches {first_batch} to {last_batch} of epoch {epoch}")
        return self._batches(epoch, range(first_batch, last_batch), set())

    def _batches(self, epoch: int, numbers: range, ahead: set[int]) -> Iterator[Prepared]:
        """The batches of these numbers, but for those that were delivered ahead of others."""
        self._epoch, self._batch, self._ahead = epoch, numbers.start, ahead
        self._loaded = False
        before = frozenset(ahead)
        tasks = (self.seeds.task(epoch, number) for number in numbers if number not in before)
        batches = self.feed.batches(tasks, self.seeds.stream, epoch)
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

    def next_epoch(self) -> Iterator[Prepared]:
        """What is left of an epoch whose position was loaded; else the epoch after the last one."""
        begun = self._batch or self._ahead
        if begun and not self._loaded:  # the last iteration was given up in the middle
            self._epoch, self._batch, self._ahead = self._epoch + 1, 0, set()
        return self._batches(self._epoch, range(self._batch, len(self.seeds)), self._ahead)

    def one(self, input_ids: Ids) -> Prepared:
        """A batch around given input positions. Calls are numbered, so each draws afresh."""
        task = Task(Stream.DIRECT, 0, self._calls, input_ids, self.seeds.seeds(input_ids))
        self._calls += 1
        (batch,) = self.feed.batches([task], Stream.DIRECT, 0)
        return batch

    def state_dict(self) -> dict[str, Any]:
        """Where the loop is: after so many batches of an epoch, and what they depend on.

        `ahead`: batches after those that were delivered before them, in completion order.
        """
        return {
            "epoch": self._epoch,
            "batch": self._batch,
            "ahead": sorted(self._ahead),
            "calls": self._calls,
            "identity": self._identity(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """OptionError where the position is one of other batches than these."""
        for name, value in self._identity().items():
            if state["identity"].get(name) != value:
                raise OptionError(
                    f"the saved position is of other batches: {name} was "
                    f"{state['identity'].get(name)!r}, and is {value!r}"
                )
        self._epoch, self._batch = int(state["epoch"]), int(state["batch"])
        self._ahead = {int(number) for number in state.get("ahead", [])}
        self._calls = int(state["calls"])
        self._loaded = True

    def _identity(self) -> dict[str, Any]:
        """Everything that batches are a function of, as plain values."""
        seeds, sampling = self.seeds, self.feed.sampling
        return {
            "store": self.feed.store.content,
            "sampling_version": SAMPLING_VERSION,
            "sampler": sampling.kind,
            "num_neighbors": list(sampling.num_neighbors),
            "replace": sampling.replace,
            "seed": seeds.seed,
            "stream": int(seeds.stream),
            "num_seeds": len(seeds.nodes),
            "batch_size": seeds.batch_size,
            "shuffle": seeds.shuffle,
            "drop_last": seeds.drop_last,
        }
