"""Batches of partitions: the same for every strategy, each training node once per epoch."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from outcrop.errors import BudgetError, OptionError
from outcrop.layout.partitions import PartitionOptions, open_partitions
from outcrop.loader import NeighborLoader
from outcrop.store.store import GraphStore
from outcrop.strategies import STRATEGIES
from outcrop.tools.bench.variants import variant_named
from tests.conformance.contract import all_contents
from tests.conformance.test_strategies import BUDGETS, cases, check
from tests.graphs import Graph, random_graph
from tests.stores import make_store, smallest_memory

BATCHING = "partition:parts=12:macro=3"
# Both caches of lists, resident and handed over.
VARIANTS = [
    "ginex:topology=partition",
    "ginex:topology=partition:superbatch=3",
    "ginex:topology=partition:mode=split",
]
ALL = [*STRATEGIES, *VARIANTS]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("partitions") / "g.outcrop"
    with make_store(folder, random_graph(600, 6000), dim=17, train=205) as store:
        open_partitions(store, PartitionOptions(parts=12)).close()
    return folder


@pytest.fixture
def store(path: Path) -> Iterator[GraphStore]:
    with GraphStore(path) as opened:
        yield opened


def make(store: GraphStore, strategy: str, memory: Any = "1GB", **more: Any) -> NeighborLoader:
    given: dict[str, Any] = {
        "num_neighbors": [4, 3], "input_nodes": "train", "batch_size": 10, "shuffle": True,
        "batching": BATCHING, **more,
    }  # fmt: skip

    def of(memory: Any) -> NeighborLoader:
        return NeighborLoader(store, strategy=variant_named(strategy), memory=memory, **given)

    return of(smallest_memory(of) if memory == "least" else memory)


@pytest.mark.parametrize("strategy", ALL)
@given(
    case=cases(),
    budget=st.sampled_from(BUDGETS),
    parts=st.integers(1, 9),
    macro=st.integers(1, 4),
)
def test_any_graph_and_any_options_give_the_reference_batches(
    strategy: str,
    case: tuple[Graph, dict[str, Any], dict[str, Any]],
    budget: str,
    parts: int,
    macro: int,
) -> None:
    graph, stored, options = case
    options = {**options, "shuffle": True, "batching": f"partition:parts={parts}:macro={macro}"}
    with (
        tempfile.TemporaryDirectory() as folder,
        make_store(Path(folder) / "g.outcrop", graph, **stored) as store,
    ):
        # Making partitions may take more than the least that batches take.
        open_partitions(store, PartitionOptions(parts=parts)).close()
        check(store, strategy, budget, **options)


@pytest.mark.parametrize("strategy", ALL)
@pytest.mark.parametrize("memory", BUDGETS)
def test_each_training_node_once_per_epoch(store: GraphStore, strategy: str, memory: str) -> None:
    loader = make(store, strategy, memory, epochs=2)
    for _ in range(2):
        seeds = [node for batch in loader for node in batch.n_id[: batch.batch_size].tolist()]
        assert sorted(seeds) == sorted(store.split("train").tolist())
        assert len(loader) == 21
    loader.close()


@pytest.mark.parametrize("strategy", ALL)
def test_a_position_in_mid_epoch_resumes_bit_by_bit(store: GraphStore, strategy: str) -> None:
    wanted = [all_contents(make(store, "memory").epoch(epoch)) for epoch in range(2)]
    loader, found = make(store, strategy, epochs=2), []
    for batch in loader:
        found += all_contents([batch])
        del batch
        if len(found) == 8:
            state = loader.state_dict()
            break
    loader.close()
    other = make(store, strategy, epochs=2)
    other.load_state_dict(state)
    assert found + all_contents(other) + all_contents(other) == wanted[0] + wanted[1]
    other.close()


@pytest.mark.parametrize(
    ("seeds", "batching", "wanted"),
    [("train", BATCHING, "partition"), ([5], BATCHING, "cache"), ("train", "random", "cache")],
)
def test_outre_keeps_lists_of_macro_batches_where_they_may_pay(
    store: GraphStore, seeds: Any, batching: str, wanted: str
) -> None:
    """Not for an epoch of a batch, which expands two nodes of 600."""
    loader = make(store, "outre", input_nodes=seeds, num_neighbors=[1, 1], batching=batching)
    assert loader.record.plan["topology"] == wanted
    loader.close()


@pytest.mark.parametrize(
    ("batching", "told"),
    [("random", "batching was .*partition"), ("partition:parts=12:macro=2", "macro=3"),
     ("partition:parts=12:macro=3:seed=1", "batching")],
)  # fmt: skip
def test_a_position_of_other_batches_is_refused(
    store: GraphStore, batching: str, told: str
) -> None:
    state = make(store, "memory").state_dict()
    with pytest.raises(OptionError, match=told):
        make(store, "memory", batching=batching).load_state_dict(state)


@pytest.mark.parametrize("strategy", ["diskgnn", "ginex", "agnes"])
def test_what_was_prepared_for_random_batches_is_not_taken_for_others(
    store: GraphStore, strategy: str
) -> None:
    for batching in ("random", BATCHING, "random"):
        wanted = all_contents(make(store, "memory", batching=batching).epoch(0))
        loader = make(store, strategy, batching=batching, epochs=1)
        assert all_contents(loader) == wanted
        loader.close()


def test_macro_batches_come_one_after_the_other(store: GraphStore) -> None:
    loader = make(store, "memory")
    groups = loader.schedule.seeds.groups
    assert groups is not None
    order = loader.schedule.seeds
    macros = list(groups.macros(order.seed, order.stream, 0, 0, 205))
    assert [len(macro.parts) for macro in macros] == [3] * (len(macros) - 1) + [
        len(macros[-1].parts)
    ]
    assert len({int(part) for macro in macros for part in macro.parts}) == groups.num_parts


def test_partitions_that_are_given(store: GraphStore) -> None:
    parts = np.random.default_rng(0).integers(0, 30, store.num_nodes)
    for own in (parts, torch.from_numpy(parts), parts.astype(np.int16)):
        loader = make(store, "memory", batching=own)
        first = next(iter(loader)).n_id[:10].numpy()
        assert len(set(parts[first])) <= 20
        assert (
            make(store, "direct", batching=own).state_dict()
            == make(store, "memory", batching=parts).state_dict()
        )
    wanted = all_contents(make(store, "memory", batching=parts).epoch(1))
    assert all_contents(make(store, "ginex", batching=parts).epoch(1)) == wanted


@pytest.mark.parametrize(
    "given", [[0, 1], np.zeros(600), np.full(600, -1), np.zeros((600, 2), int)]
)
def test_partitions_that_cannot_be_are_refused(store: GraphStore, given: Any) -> None:
    with pytest.raises(OptionError, match="partition of each of the 600 nodes"):
        make(store, "memory", batching=given)


def test_an_order_that_is_given_is_not_shuffled_by_partitions(store: GraphStore) -> None:
    with pytest.raises(OptionError, match="shuffle=True"):
        make(store, "memory", shuffle=False)
    loader = make(store, "memory")
    other = loader.sibling("val", shuffle=False)
    seeds = torch.cat([batch.n_id[: batch.batch_size] for batch in other])
    assert seeds.tolist() == store.split("val").tolist()
    shuffled = loader.sibling("val")
    assert shuffled.schedule.seeds.groups is not None
    assert loader.sibling("val", batching="random").schedule.seeds.groups is None


@pytest.mark.parametrize(
    ("mode", "memory"), [("mode=split:neighbors=0.1", "20MB"), ("superbatch=5", "14MB")]
)
def test_lists_of_macro_batches_save_reads(tmp_path: Path, mode: str, memory: str) -> None:
    """A graph of communities; memory for half of its lists, resident or handed over."""
    rng = np.random.default_rng(0)
    target = np.repeat(np.arange(20_000), 32)
    source = target // 500 * 500 + rng.integers(0, 500, len(target))
    graph = Graph(20_000, np.stack([source, target]))
    given: dict[str, Any] = {"batch_size": 100, "batching": "partition:parts=40:macro=5"}
    with make_store(tmp_path / "g.outcrop", graph, dim=4) as store:
        open_partitions(store, PartitionOptions(parts=40)).close()
        wanted = all_contents(make(store, "memory", **given).epoch(0))
        read = {}
        for topology in ("cache", "partition"):
            loader = make(store, f"ginex:topology={topology}:{mode}", memory, epochs=1, **given)
            assert all_contents(loader) == wanted
            read[topology] = loader.record.epochs[0].read_requests
            loader.close()
        assert read["partition"] < 0.85 * read["cache"], "rows are among them"


def test_partitions_are_made_within_the_memory(tmp_path: Path) -> None:
    with make_store(tmp_path / "g.outcrop", random_graph(600, 6000), dim=17) as store:
        with pytest.raises(
            BudgetError, match=r"600 nodes into 12 parts.* the smallest that would do"
        ):
            make(store, "direct", "1MB")
        assert not list((store.path / "derived").glob("partitions-*"))
        loader = make(store, "direct", "least")
        assert len(list(loader)) == len(loader)


def test_partitions_are_made_within_the_disk(tmp_path: Path) -> None:
    with make_store(tmp_path / "g.outcrop", random_graph(600, 6000), dim=17) as store:
        with pytest.raises(BudgetError, match=r"12 partitions of 600 nodes .* take 1MB"):
            make(store, "direct", disk="10kB")
        assert not list((store.path / "derived").glob("partitions-*"))
        # What is there already is not written again.
        make(store, "direct").close()
        make(store, "direct", disk="10kB").close()


def test_siblings_are_made_of_the_same_partitions(tmp_path: Path) -> None:
    """Of few seeds there would be fewer; none is made while batches have the memory."""
    with make_store(tmp_path / "g.outcrop", random_graph(3000, 9000), dim=3, train=400) as store:
        loader = make(store, "direct", batching="partition")
        sibling = loader.sibling(np.arange(15))
        assert len(list((store.path / "derived").glob("partitions-*"))) == 1
        own, other = (one.state_dict()["identity"]["batching"] for one in (loader, sibling))
        assert own == other
        assert len(list(sibling)) == len(sibling) == 2
        loader.close()


def test_lists_of_macro_batches_need_macro_batches(store: GraphStore) -> None:
    with pytest.raises(OptionError, match="topology=partition is for batching"):
        make(store, "ginex:topology=partition", batching="random")
