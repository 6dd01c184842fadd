"""Schedules: a saved position is taken up by the same batches, and by no others."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import outcrop
from outcrop.errors import OptionError
from outcrop.loader import NeighborLoader
from outcrop.store.store import GraphStore
from tests.conformance.contract import all_contents
from tests.stores import make_random_store


@pytest.fixture
def store(tmp_path: Path) -> Iterator[GraphStore]:
    with make_random_store(tmp_path / "g.outcrop", train=100) as made:
        yield made


def make(store: GraphStore, strategy: str = "memory", **options: Any) -> NeighborLoader:
    given: dict[str, Any] = {"batch_size": 16, "memory": "100MB", "shuffle": True, **options}
    nodes = given.pop("input_nodes", "train")
    return NeighborLoader(store, [4, 3], nodes, strategy=strategy, **given)


def test_a_position_of_other_seeds_is_refused(store: GraphStore) -> None:
    state = make(store, input_nodes=np.arange(100)).state_dict()
    make(store, input_nodes=np.arange(100)).load_state_dict(state)
    for others in (np.arange(100)[::-1], np.arange(100, 200)):
        with pytest.raises(OptionError, match="of other batches: the digest of the seeds"):
            make(store, input_nodes=others).load_state_dict(state)
    with pytest.raises(OptionError, match="digest of the seeds"):
        make(store, input_nodes=None).load_state_dict(state)


def test_a_position_of_repeated_epochs_is_one_of_other_batches(store: GraphStore) -> None:
    repeated = make(store, "diskgnn:cycle=true:distinct_epochs=2")
    state = repeated.state_dict()
    with pytest.raises(OptionError, match="diskgnn:cycle was True, and is not set"):
        make(store).load_state_dict(state)
    with pytest.raises(OptionError, match="diskgnn:cycle was not set, and is True"):
        repeated.load_state_dict(make(store, "diskgnn").state_dict())
    with pytest.raises(OptionError, match="diskgnn:distinct_epochs was 2, and is 3"):
        make(store, "diskgnn:cycle=true:distinct_epochs=3").load_state_dict(state)
    # The same two epochs, said in another way.
    make(store, "diskgnn:cycle=true:packing=false", epochs=2).load_state_dict(state)


def test_a_position_in_imported_samples_is_one_of_those_alone(store: GraphStore) -> None:
    names = ("n_id", "edge_index", "batch_size", "input_id")
    for name, seed in (("one", 1), ("other", 2)):
        loader = make(store, seed=seed)
        copies = [{key: getattr(batch, key) for key in names} for batch in loader]
        outcrop.import_samples(store, [SimpleNamespace(**copy) for copy in copies], name)
    state = make(store, "diskgnn:samples=one").state_dict()
    make(store, "diskgnn:samples=one").load_state_dict(state)
    for strategy in ("diskgnn:samples=other", "diskgnn", "memory"):
        with pytest.raises(OptionError, match="diskgnn:samples was"):
            make(store, strategy).load_state_dict(state)


def test_strategies_that_change_no_batch_take_each_others_positions(store: GraphStore) -> None:
    state = make(store, "diskgnn:distinct_epochs=2").state_dict()
    for strategy in ("memory", "gnndrive:order=completion", "diskgnn:refresh=background", "ginex"):
        loader = make(store, strategy)
        loader.load_state_dict(state)
        loader.close()


def test_a_position_that_was_saved_without_a_digest_is_checked_by_the_number_of_seeds(
    store: GraphStore,
) -> None:
    loader = make(store)
    next(iter(loader))
    state = loader.state_dict()
    old = {name: value for name, value in state["identity"].items() if name != "seeds"}
    resumed = make(store)
    resumed.load_state_dict({**state, "identity": {**old, "num_seeds": 100}})
    assert all_contents(resumed) == all_contents(make(store).epoch(0))[1:]
    with pytest.raises(OptionError, match="the number of seeds was 99, and is 100"):
        resumed.load_state_dict({**state, "identity": {**old, "num_seeds": 99}})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"epoch": None}, "epoch"),
        ({"epoch": -1}, "epoch"),
        ({"epoch": 2.5}, "epoch"),
        ({"batch": "3"}, "batch"),
        ({"batch": 8}, "after batch 8, .* of 7"),
        ({"calls": True}, "calls"),
        ({"ahead": 3}, "ahead"),
        ({"ahead": [2, 7]}, r"ahead \[2, 7\], of 7"),
        ({"ahead": ["x"]}, "ahead"),
        ({"identity": []}, "identity"),
        ({"identity": {}}, "was not set, and is"),
    ],
)
def test_a_position_that_is_none_is_refused_by_its_field(
    store: GraphStore, changes: dict[str, Any], message: str
) -> None:
    loader = make(store)
    state = loader.state_dict()
    with pytest.raises(OptionError, match=message):
        loader.load_state_dict({**state, **changes})
    assert loader.state_dict() == state
    for name in state:
        if name != "ahead":  # which positions of earlier versions do without
            with pytest.raises(OptionError, match=name):
                loader.load_state_dict({key: state[key] for key in state if key != name})
