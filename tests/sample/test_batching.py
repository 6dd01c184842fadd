"""Batches of partitions: every seed once per epoch, macro batch after macro batch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from outcrop.errors import OptionError
from outcrop.sample import batching
from outcrop.sample.batching import PartitionBatching, SeedGroups, batching_named
from outcrop.sample.seeds import SeedOrder, Stream
from tests.sample.model import golden_table, numbers


def groups_of(parts_of_seeds: Any, parts: int, macro: int = 2, digest: str = "d") -> SeedGroups:
    table = np.asarray(parts_of_seeds, np.uint32)
    return SeedGroups.of(
        len(table), lambda positions: positions, parts, lambda ids: table[ids], macro, digest
    )


def order_of(groups: SeedGroups, count: int, batch_size: int = 7, seed: int = 0) -> SeedOrder:
    return SeedOrder(
        np.arange(100, 100 + count), batch_size=batch_size, stream=Stream.TRAIN, seed=seed,
        groups=groups,
    )  # fmt: skip


ASSIGNMENTS = st.integers(1, 9).flatmap(
    lambda parts: st.tuples(
        st.just(parts), st.lists(st.integers(0, parts - 1), min_size=1, max_size=80)
    )
)


@given(ASSIGNMENTS, st.integers(1, 4), st.integers(1, 90), st.integers(0, 3))
def test_every_seed_once_per_epoch_macro_batch_after_macro_batch(
    assigned: tuple[int, list[int]], macro: int, batch_size: int, epoch: int
) -> None:
    parts, of_seeds = assigned
    groups = groups_of(of_seeds, parts, macro)
    order = order_of(groups, len(of_seeds), batch_size)
    tasks = list(order.tasks(epoch))
    assert [len(task.seeds) for task in tasks[:-1]] == [batch_size] * (len(tasks) - 1)
    positions = np.concatenate([task.input_ids for task in tasks])
    assert sorted(positions) == list(range(len(of_seeds)))
    assert np.array_equal(np.concatenate([task.seeds for task in tasks]), positions + 100)
    # The seeds of a macro batch are together: partitions change in groups of `macro`.
    found = np.asarray(of_seeds)[positions]
    begin = 0
    for one in groups.macros(0, Stream.TRAIN, epoch, 0, len(of_seeds)):
        assert begin == one.begin and 1 <= len(one.parts) <= macro
        end = begin + int(np.isin(of_seeds, one.parts).sum())
        assert set(found[begin:end]) == set(one.parts)
        begin = end
    assert begin == len(of_seeds)


@given(ASSIGNMENTS, st.data())
def test_any_part_of_an_epoch_is_that_of_the_whole(
    assigned: tuple[int, list[int]], data: st.DataObject
) -> None:
    parts, of_seeds = assigned
    groups = groups_of(of_seeds, parts)
    begin = data.draw(st.integers(0, len(of_seeds) - 1))
    end = data.draw(st.integers(begin + 1, len(of_seeds)))
    whole = groups.order(5, 0, 1, 0, len(of_seeds))
    assert np.array_equal(groups.order(5, 0, 1, begin, end), whole[begin:end])


def test_epochs_seeds_and_streams_have_orders_of_their_own() -> None:
    of_seeds = np.arange(400) % 20
    groups = groups_of(of_seeds, 20)
    orders = [
        tuple(groups.order(seed, stream, epoch, 0, 400))
        for seed in (0, 1) for stream in (0, 1) for epoch in (0, 1)
    ]  # fmt: skip
    assert len(set(orders)) == len(orders)
    assert orders[0] == tuple(groups_of(of_seeds, 20).order(0, 0, 0, 0, 400))


def test_the_order_is_that_of_the_format() -> None:
    groups = groups_of(np.arange(12) % 4, 4)
    rows = golden_table("seed", "stream", "epoch", "macro batches", "positions")
    for *key, macros, positions in rows:
        seed, stream, epoch = map(int, key)
        found = [macro.parts.tolist() for macro in groups.macros(seed, stream, epoch, 0, 12)]
        assert found == [numbers(macro) for macro in macros.split(",")]
        assert groups.order(seed, stream, epoch, 0, 12).tolist() == numbers(positions)
    assert len(rows) == 3


def test_partitions_and_seeds_of_a_macro_batch_are_shuffled() -> None:
    groups = groups_of(np.repeat(np.arange(40), 25), 40, macro=4)
    order = groups.order(0, 0, 0, 0, 1000)
    first = order[:100] // 25
    assert len(set(first)) == 4
    assert (np.diff(first) != 0).sum() > 40, "they are mixed"
    chosen = [tuple(m.parts) for m in groups.macros(0, 0, 0, 0, 1000)]
    assert sorted(sum(chosen, ())) == list(range(40)) and chosen[0] != (0, 1, 2, 3)


def test_large_inputs_are_grouped_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    of_seeds = np.random.default_rng(0).integers(0, 13, 1000)
    whole = groups_of(of_seeds, 13).order(0, 0, 0, 0, 1000)
    monkeypatch.setattr(batching, "_SEEDS_AT_A_TIME", 37)
    assert np.array_equal(groups_of(of_seeds, 13).order(0, 0, 0, 0, 1000), whole)


def test_the_identity_tells_partitions_and_macro_batches_apart() -> None:
    same = groups_of([0, 1], 2, 2, "a").identity
    assert same == groups_of([0, 1], 2, 2, "a").identity
    assert same != groups_of([0, 1], 2, 3, "a").identity
    assert same != groups_of([0, 1], 2, 2, "b").identity


def test_without_shuffling_seeds_come_as_they_are_given() -> None:
    groups = groups_of([1, 0, 1, 0], 2)
    order = SeedOrder(
        np.arange(4), batch_size=4, stream=Stream.VAL, seed=0, shuffle=False, groups=groups
    )
    assert order.groups is None and list(order.task(0, 0).seeds) == [0, 1, 2, 3]


def test_names_of_batchings() -> None:
    assert batching_named("random") is None
    assert batching_named("partition") == PartitionBatching()
    assert batching_named("partition:parts=8:macro=3") == PartitionBatching(parts=8, macro=3)


@pytest.mark.parametrize(
    "text", ["", "metis", "random:parts=2", "partition:parts=0", "partition:macro=0",
             "partition:size=3", "partition:seed=-1"],
)  # fmt: skip
def test_others_are_refused(text: str) -> None:
    with pytest.raises(OptionError):
        batching_named(text)
