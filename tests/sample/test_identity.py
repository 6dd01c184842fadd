"""The identity of samples: what batches are a function of, in words and as keys."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from outcrop.ahead.prepare import PackSpec
from outcrop.layout.trace import TRACE_VERSION
from outcrop.sample.identity import SamplingIdentity
from outcrop.sample.sampler import SAMPLING_VERSION, Sampling
from outcrop.sample.seeds import SeedOrder, Stream


def seeds_of(nodes: object = range(5, 25), **more: object) -> SeedOrder:
    given = {"batch_size": 4, "stream": Stream.VAL, "seed": 3, **more}
    return SeedOrder(nodes, **given)  # type: ignore[arg-type]


def test_layouts_are_found_by_the_keys_that_they_always_had() -> None:
    spec = PackSpec(Sampling.of([4, -1]), seeds_of(), epochs=2, cache_rows=0)
    assert spec.trace_inputs == {
        "version": TRACE_VERSION,
        "sampling_version": SAMPLING_VERSION,
        "sampler": "neighbor",
        "num_neighbors": [4, -1],
        "replace": False,
        "seed": 3,
        "stream": 1,
        "seeds": "5 to 25",
        "batch_size": 4,
        "shuffle": True,
        "drop_last": False,
        "epochs": 2,
    }
    ids = replace(spec, seeds=seeds_of(np.arange(10)))
    assert ids.trace_inputs["seeds"] == "fe06f302eaf7f6c1071bb76f840473e3"


def test_every_part_of_the_identity_makes_a_difference() -> None:
    sampling = Sampling.of([4, 3])
    one = SamplingIdentity.of(sampling, seeds_of(), "content")
    assert one.difference(one.values()) is None
    others = {
        "store": SamplingIdentity.of(sampling, seeds_of(), "other"),
        "sampler": SamplingIdentity.of(replace(sampling, kind="shadow"), seeds_of(), "content"),
        "num_neighbors": SamplingIdentity.of(Sampling.of([4, 2]), seeds_of(), "content"),
        "replace": SamplingIdentity.of(replace(sampling, replace=True), seeds_of(), "content"),
        "altered:x": SamplingIdentity.of(sampling, seeds_of(), "content", {"altered:x": 1}),
    }
    for name, value in (
        ("seed", 4), ("stream", Stream.TRAIN), ("batch_size", 5), ("shuffle", False),
        ("drop_last", True),
    ):  # fmt: skip
        others[name] = SamplingIdentity.of(sampling, seeds_of(**{name: value}), "content")
    for name, other in others.items():
        assert str(one.difference(other.values())).startswith(f"{name} was "), name
        assert str(other.difference(one.values())).startswith(f"{name} was "), name


@pytest.mark.parametrize("nodes", [range(5, 26), range(4, 25), np.arange(5, 25), np.arange(20)])
def test_seeds_are_told_apart_by_what_they_are(nodes: object) -> None:
    one, other = (SamplingIdentity.of(Sampling.of([4]), seeds_of(n)) for n in (range(5, 25), nodes))
    assert "digest of the seeds" in str(one.difference(other.values()))
