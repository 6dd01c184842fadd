"""Identity: a sampler, its seeds and a store -> what their batches are a function of.

It keys whatever is only right for the same batches: saved positions, traces, packs, profiles.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from outcrop.sample.sampler import SAMPLING_VERSION, Sampling
from outcrop.sample.seeds import SeedOrder

_ABSENT = "not set"


@dataclass(frozen=True)
class SamplingIdentity:
    """All that batches depend on, as plain values."""

    sampler: str
    num_neighbors: list[int]
    replace: bool
    seed: int
    stream: int
    seeds: str
    """Their digest; of a range, its bounds."""
    batch_size: int
    shuffle: bool
    drop_last: bool
    store: str | None = None
    """Its content; None where what is keyed knows its store already."""
    edge_ids: str | None = None
    """ "source" where batches have edge ids that the store keeps; None: places, or none."""
    sampling_version: int = SAMPLING_VERSION
    batching: str | None = None
    """How seeds come together, and of which partitions; None: by chance."""
    history: str | None = None
    """Whose embeddings are used again, and for how long; None: nobody's."""
    alterations: Mapping[str, Any] = field(default_factory=dict)
    """Options of a strategy that gives other batches than are sampled, by their full names."""

    @classmethod
    def of(
        cls,
        sampling: Sampling,
        seeds: SeedOrder,
        store: str | None = None,
        alterations: Mapping[str, Any] | None = None,
        *,
        keeps_edge_ids: bool = False,
        history: str | None = None,
    ) -> SamplingIdentity:
        return cls(
            sampler=sampling.kind,
            num_neighbors=list(sampling.num_neighbors),
            replace=sampling.replace,
            seed=seeds.seed,
            stream=int(seeds.stream),
            seeds=seeds.digest,
            batch_size=seeds.batch_size,
            shuffle=seeds.shuffle,
            drop_last=seeds.drop_last,
            store=store,
            edge_ids="source" if keeps_edge_ids else None,
            batching=None if seeds.groups is None else seeds.groups.identity,
            history=history,
            alterations=alterations or {},
        )

    def values(self) -> dict[str, Any]:
        """For JSON. What is added later must be left out where it has its default, as the store,
        edge ids and alterations are: it enters keys, and layouts that exist are found by them."""
        values = asdict(self)
        alterations = values.pop("alterations")
        known = {name: value for name, value in values.items() if value is not None}
        return {**known, **alterations}

    def difference(self, saved: Mapping[str, Any]) -> str | None:
        """What differs from saved values, in words; None: they are of the same batches."""
        own = self.values()
        for name in [*own, *(name for name in saved if name not in own)]:
            was, now = saved.get(name, _ABSENT), own.get(name, _ABSENT)
            if was != now:
                name = "the digest of the seeds" if name == "seeds" else name
                return f"{name} was {_shown(was)}, and is {_shown(now)}"
        return None


def _shown(value: Any) -> str:
    return value if value is _ABSENT else repr(value)
