"""The order of seeds: every seed once per epoch, any position at once, every order as likely."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from outcrop import _core
from outcrop.errors import OptionError
from outcrop.sample.seeds import SeedOrder, Stream, Task
from tests.sample import model
from tests.sample.model import golden_table, numbers
from tests.sample.test_sampler import assert_even

KEY_WORDS = st.integers(0, 2**64 - 1)


def shuffled(
    size: int, key: model.Key, begin: int = 0, count: int | None = None
) -> NDArray[np.int64]:
    out = np.empty(size - begin if count is None else count, np.int64)
    _core.shuffled_seeds(size, key.seed, key.stream, key.epoch, begin, out)
    return out


def many_orders(size: int, count: int, first: model.Key) -> NDArray[np.int64]:
    """[count, size]: the orders of as many epochs."""
    epochs = range(first.epoch, first.epoch + count)
    return np.stack([shuffled(size, first._replace(epoch=epoch)) for epoch in epochs])


def same_task(one: Task, other: Task) -> bool:
    return (
        (one.stream, one.epoch, one.batch) == (other.stream, other.epoch, other.batch)
        and np.array_equal(one.input_ids, other.input_ids)
        and np.array_equal(one.seeds, other.seeds)
    )


# The specification


def test_orders_equal_the_golden_ones() -> None:
    rows = golden_table("n", "seed", "stream", "epoch", "order")
    assert len(rows) == 5
    for *inputs, order in rows:
        size, seed, stream, epoch = map(int, inputs)
        key = model.Key(seed, stream, epoch)
        golden = numbers(order)
        assert shuffled(size, key, count=len(golden)).tolist() == golden
        if size < 100:
            assert model.seed_order(size, key) == golden


@given(st.integers(0, 300), KEY_WORDS, st.integers(0, 2**32 - 1), KEY_WORDS)
def test_orders_equal_the_model(size: int, seed: int, stream: int, epoch: int) -> None:
    key = model.Key(seed, stream, epoch)
    assert shuffled(size, key).tolist() == model.seed_order(size, key)


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 63, 64, 65, 1000, 1023, 1024, 1025])
def test_an_order_has_everything_once(size: int) -> None:
    for epoch in range(20):
        assert sorted(shuffled(size, model.Key(3, 0, epoch))) == list(range(size))


@pytest.mark.parametrize("size", [2**31 + 1, 2**32, 2**40 + 7, 2**62 + 1])
def test_orders_of_more_than_two_billion_seeds_equal_the_model(size: int) -> None:
    key = model.Key(5, 1, 2)
    words = model.philox(key.seed, (key.epoch, 0, key.stream, 9))
    permutation = model.Permutation(size, model.low64(words))
    for begin in (0, size // 2, size - 3):
        found = shuffled(size, key, begin, 3).tolist()
        assert found == [permutation(begin + i) for i in range(3)]
        assert all(0 <= position < size for position in found)


# Every order is as likely


@pytest.mark.parametrize(
    ("size", "epochs"),
    [
        (2, 10_000),
        (3, 10_000),
        (4, 10_000),
        (5, 10_000),
        (6, 10_000),
        (7, 10_000),
        (10, 80_000),
        (16, 20_000),
        (33, 5_000),
        (100, 5_000),
    ],
)
def test_every_seed_is_as_likely_at_every_place(size: int, epochs: int) -> None:
    orders = many_orders(size, epochs, model.Key(7))
    counts = np.stack([np.bincount(place, minlength=size) for place in orders.T])
    # Rows and columns add up to the number of epochs: (size - 1)^2 degrees of freedom.
    assert_even(counts, dof=(size - 1) ** 2, scale=(size - 1) / size)


@pytest.mark.parametrize("size", [3, 16, 33, 64])
def test_every_two_seeds_are_as_likely_at_the_first_two_places(size: int) -> None:
    orders = many_orders(size, 25_000, model.Key(7))
    counts = np.bincount(orders[:, 0] * size + orders[:, 1], minlength=size * size)
    assert_even(counts.reshape(size, size)[~np.eye(size, dtype=bool)])


@pytest.mark.parametrize("size", [33, 100, 1000])
def test_neighbours_of_the_input_share_a_batch_no_more_often_than_others(size: int) -> None:
    """Seeds i and i + 1 often belong together (one community): they must not stay together."""
    batches = 10
    orders = many_orders(size, 2_000, model.Key(8))
    places = np.argsort(orders, axis=1) * batches // size
    together = np.count_nonzero(places[:, 1:] == places[:, :-1])
    sizes = np.bincount(np.arange(size) * batches // size)
    chance = np.sum(sizes * (sizes - 1)) / (size * (size - 1))
    pairs = places.shape[0] * (size - 1)
    assert abs(together - pairs * chance) < 5 * np.sqrt(pairs * chance)


def test_epochs_streams_and_seeds_have_orders_of_their_own() -> None:
    keys = [model.Key(seed, stream, epoch) for seed in (0, 1) for stream in range(4)
            for epoch in (0, 1, 2**32)]  # fmt: skip
    assert len({shuffled(50, key).tobytes() for key in keys}) == len(keys)


@pytest.mark.parametrize("other", [model.Key(7, 0, 1), model.Key(7, 1, 0), model.Key(8, 0, 0)])
def test_orders_of_different_keys_are_independent(other: model.Key) -> None:
    """Where one order has seed 0 says nothing about where the other has it."""
    size, pairs = 16, []
    for step in range(0, 8_000, 2):
        one = shuffled(size, model.Key(7, 0, step))
        two = shuffled(size, other._replace(epoch=other.epoch + step))
        pairs.append(int(np.argmin(one)) * size + int(np.argmin(two)))
    assert_even(np.bincount(pairs, minlength=size * size))


# Batches


def order_of(
    count: int, batch_size: int, *, shuffle: bool = True, drop_last: bool = False
) -> SeedOrder:
    nodes = np.arange(count, dtype=np.int64) * 3 + 5
    return SeedOrder(
        nodes, batch_size=batch_size, stream=Stream.TRAIN, seed=11, shuffle=shuffle,
        drop_last=drop_last,
    )  # fmt: skip


@given(st.integers(0, 60), st.integers(1, 70), st.booleans(), st.integers(0, 2**32 - 1))
def test_every_seed_comes_once_per_epoch(
    count: int, batch_size: int, shuffle: bool, epoch: int
) -> None:
    order = order_of(count, batch_size, shuffle=shuffle)
    tasks = list(order.tasks(epoch))
    assert len(tasks) == len(order)
    assert [task.batch for task in tasks] == list(range(len(tasks)))
    assert sorted(seed for task in tasks for seed in task.seeds) == order.nodes.tolist()  # type: ignore[union-attr]
    assert all(len(task.seeds) == batch_size for task in tasks[:-1])
    assert all(1 <= len(task.seeds) <= batch_size for task in tasks)


@pytest.mark.parametrize(
    ("count", "batch_size", "drop_last", "sizes"),
    [
        (12, 4, False, [4, 4, 4]),  # Ginex trains nothing here
        (12, 4, True, [4, 4, 4]),
        (13, 4, False, [4, 4, 4, 1]),
        (13, 4, True, [4, 4, 4]),
        (3, 4, False, [3]),
        (3, 4, True, []),
        (4, 4, True, [4]),
        (0, 4, False, []),
        (1, 1, False, [1]),
    ],
)
@pytest.mark.parametrize("shuffle", [True, False])
def test_the_last_batch_is_short_or_dropped(
    count: int, batch_size: int, drop_last: bool, sizes: list[int], shuffle: bool
) -> None:
    order = order_of(count, batch_size, drop_last=drop_last, shuffle=shuffle)
    assert len(order) == len(sizes)
    assert [len(task.seeds) for task in order.tasks(0)] == sizes


@pytest.mark.parametrize("shuffle", [True, False])
def test_a_task_of_any_position_is_the_iterated_one(shuffle: bool) -> None:
    order = order_of(50, 7, shuffle=shuffle)
    for epoch in (0, 3):
        iterated = list(order.tasks(epoch))
        for batch in reversed(range(len(order))):
            assert same_task(order.task(epoch, batch), iterated[batch])
            rest = list(order.tasks(epoch, first_batch=batch))
            assert len(rest) == len(order) - batch
            assert all(map(same_task, rest, iterated[batch:]))
        assert list(order.tasks(epoch, first_batch=len(order))) == []


def test_batches_of_any_size_cut_one_order() -> None:
    whole = order_of(50, 50).task(2, 0).seeds
    for batch_size in (1, 7, 49):
        parts = [task.seeds for task in order_of(50, batch_size).tasks(2)]
        assert np.array_equal(np.concatenate(parts), whole)


def test_positions_lead_to_seeds() -> None:
    nodes = np.array([9, 4, 4, 7], np.int64)  # an input may repeat a node
    order = SeedOrder(nodes, batch_size=4, stream=Stream.VAL, seed=2)
    task = order.task(1, 0)
    assert task.stream is Stream.VAL
    assert np.array_equal(task.seeds, nodes[task.input_ids])
    assert sorted(task.seeds) == [4, 4, 7, 9]
    assert task.seeds.dtype == task.input_ids.dtype == np.int64


def test_a_range_of_nodes_is_like_its_ids() -> None:
    ids = np.arange(30, 75, dtype=np.int64)
    for shuffle in (True, False):
        one = SeedOrder(ids, batch_size=8, stream=Stream.TEST, seed=2, shuffle=shuffle)
        two = SeedOrder(range(30, 75), batch_size=8, stream=Stream.TEST, seed=2, shuffle=shuffle)
        assert all(map(same_task, one.tasks(4), two.tasks(4)))


def test_without_shuffle_every_epoch_has_the_order_of_the_input() -> None:
    order = order_of(10, 4, shuffle=False)
    for epoch in (0, 1):
        seeds = np.concatenate([task.seeds for task in order.tasks(epoch)])
        assert np.array_equal(seeds, order.nodes)


# Bad input


@pytest.mark.parametrize("batch_size", [0, -1])
def test_a_batch_size_below_one_is_refused(batch_size: int) -> None:
    with pytest.raises(OptionError, match=rf"batch_size must be at least 1 \(got {batch_size}\)"):
        order_of(10, batch_size)


def test_places_beyond_the_order_are_refused() -> None:
    for begin, count in ((0, 11), (10, 1), (11, 0)):
        with pytest.raises(ValueError, match="beyond the number of seeds"):
            shuffled(10, model.Key(), begin, count)
