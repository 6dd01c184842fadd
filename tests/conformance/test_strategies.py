"""Every strategy gives the batches of `memory`, whatever the graph, the rows and the budget."""

from __future__ import annotations

import itertools
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outcrop.ingest.reorder import reorder
from outcrop.loader import NeighborLoader, ShaDowLoader
from outcrop.options import DiskOptions, parse_size
from outcrop.store.format import ENCODINGS
from outcrop.store.store import GraphStore
from outcrop.store.targets import TARGET_KINDS
from outcrop.strategies import STRATEGIES
from outcrop.tools.bench.variants import variant_named
from tests.conformance.contract import all_contents, check_against_store
from tests.conftest import ENGINES, SOAK
from tests.graphs import Graph, graphs, random_graph
from tests.stores import make_store, smallest_memory

DIMS = [1, 7, 32, 100, 127, 128, 129, 768, 1025]
BUDGETS = ["least", "1GB"]
OTHERS = [name for name in STRATEGIES if name != "memory"]
# Strategies with options that change what is read and when.
VARIANTS = [
    "ginex:superbatch=2:mode=split:neighbors=0.5",
    "ginex:superbatch=3:mode=split:overlap=false:read_unit=65536",
    "ginex:superbatch=2",
    "ginex:superbatch=2:mode=split:policy=lru",
    "ginex:superbatch=2:policy=static:metric=out",
    "ginex:superbatch=1:policy=static:topology=mmap",
    "gnndrive:extractors=1:buffer=0.2",
    "gnndrive:topology=cache",
    "gnndrive:reuse=lru:topology=mmap:buffer=0.3",
]


def loader_of(store: GraphStore, **options: Any) -> NeighborLoader | ShaDowLoader:
    kind = options.pop("kind", "neighbor")
    options["strategy"] = variant_named(options["strategy"])
    if kind == "shadow":
        fanouts = options.pop("num_neighbors")
        return ShaDowLoader(store, len(fanouts), fanouts[0], **options)
    return NeighborLoader(store, **options)


def check(store: GraphStore, strategy: str, budget: str, epochs: int = 2, **options: Any) -> None:
    """Two epochs and a direct call, against `memory`."""

    def batches(strategy: str, memory: str) -> list[dict[str, Any]]:
        def make(memory: Any) -> NeighborLoader | ShaDowLoader:
            return loader_of(store, strategy=strategy, memory=memory, **options)

        loader = make(smallest_memory(make) if memory == "least" else memory)
        found = []
        for epoch in range(epochs):
            for batch in loader.epoch(epoch):
                check_against_store(batch, store)
                found += all_contents([batch])
                del batch
        if len(loader.schedule.seeds.nodes):
            found += all_contents([loader([0])])
        return found

    assert batches(strategy, budget) == batches("memory", "1GB")


@st.composite
def cases(draw: st.DrawFn) -> tuple[Graph, dict[str, Any], dict[str, Any]]:
    graph = draw(graphs())
    stored = {
        "dim": draw(st.sampled_from([None, 1, 3, 8, 33])),
        "feature_dtype": draw(st.sampled_from(ENCODINGS)),
        "train": draw(st.integers(0, graph.num_nodes)),
        "edge_ids": draw(st.booleans()),
        "targets": draw(st.sampled_from(TARGET_KINDS)),
        "width": draw(st.sampled_from([None, 1, 3, 70])),
    }
    hops = draw(st.integers(1, 3))
    kind = draw(st.sampled_from(["neighbor", "neighbor", "shadow"]))
    fanout = st.sampled_from([-1, 0, 1, 2, 5, 60])
    fanouts = draw(st.lists(fanout, min_size=hops, max_size=hops))
    options = {
        "kind": kind,
        "num_neighbors": [fanouts[0]] * hops if kind == "shadow" else fanouts,
        "input_nodes": draw(st.sampled_from(["train", None])),
        "batch_size": draw(st.integers(1, 8)),
        "replace": draw(st.booleans()),
        "shuffle": draw(st.booleans()),
        "drop_last": draw(st.booleans()),
        "seed": draw(st.integers(0, 2**64 - 1)),
    }
    return graph, stored, options


@pytest.mark.parametrize("strategy", [*STRATEGIES, *(VARIANTS if SOAK else VARIANTS[2:3])])
@given(case=cases(), budget=st.sampled_from(BUDGETS))
def test_any_graph_and_any_options_give_the_reference_batches(
    strategy: str, case: tuple[Graph, dict[str, Any], dict[str, Any]], budget: str
) -> None:
    graph, stored, options = case
    with (
        tempfile.TemporaryDirectory() as folder,
        make_store(Path(folder) / "g.outcrop", graph, **stored) as store,
    ):
        check(store, strategy, budget, **options)


def pairs() -> list[tuple[int, str, str, str]]:
    """(dimension, encoding, engine, budget): all of them in a soak, else such that each value of
    one meets each value of the next somewhere."""
    product = list(itertools.product(DIMS, ENCODINGS, ENGINES, BUDGETS))
    return product if SOAK else product[:: 2 * len(ENGINES) * len(BUDGETS) + 1]


@pytest.mark.parametrize("strategy", OTHERS)
@pytest.mark.parametrize(("dim", "encoding", "engine", "budget"), pairs())
def test_rows_of_any_size_and_encoding(
    tmp_path: Path, strategy: str, dim: int, encoding: str, engine: str, budget: str
) -> None:
    graph = random_graph(500, 4000)
    make_store(tmp_path / "g.outcrop", graph, dim=dim, feature_dtype=encoding, train=103).close()
    options = DiskOptions(engine=engine)  # type: ignore[arg-type]
    with GraphStore(tmp_path / "g.outcrop", options) as store:
        check(store, strategy, budget, num_neighbors=[4, 3], input_nodes="train", batch_size=25)


@pytest.mark.parametrize("strategy", OTHERS)
@pytest.mark.parametrize(("targets", "width"), [("multilabel", 40), ("values", None)])
@pytest.mark.parametrize("kind", ["neighbor", "shadow"])
def test_targets_of_any_kind(
    tmp_path: Path, strategy: str, targets: str, width: int | None, kind: str
) -> None:
    graph = random_graph(500, 4000)
    with make_store(tmp_path / "g.outcrop", graph, targets=targets, width=width) as store:
        check(store, strategy, "least", kind=kind, num_neighbors=[3, 3], batch_size=50)


@pytest.mark.parametrize("strategy", OTHERS)
@pytest.mark.parametrize("order", ["degree", "bfs"])
def test_a_store_in_another_order(tmp_path: Path, strategy: str, order: str) -> None:
    graph = random_graph(500, 4000)
    with make_store(tmp_path / "g.outcrop", graph, dim=33, edge_ids=True) as store:
        reorder(store, tmp_path / "r.outcrop", order, "100MB")
    with GraphStore(tmp_path / "r.outcrop") as store:
        check(
            store,
            strategy,
            "least",
            num_neighbors=[4, 3],
            input_nodes="train",
            batch_size=25,
            shuffle=True,
        )


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_full_neighbourhoods_are_those_of_the_store_before(tmp_path: Path, strategy: str) -> None:
    """In the user's ids, in whatever order the nodes are: the same seeds, nodes, edges and rows."""
    graph = random_graph(500, 2000)
    found = []
    with make_store(tmp_path / "g.outcrop", graph, dim=5, edge_ids=True) as store:
        seeds = [7, 499, 0, 33]
        for order in ("degree", "bfs"):
            reorder(store, tmp_path / order, order, "100MB")
        for path in (store.path, tmp_path / "degree", tmp_path / "bfs"):
            with GraphStore(path) as opened:
                loader = NeighborLoader(
                    opened,
                    [-1, -1],
                    opened.to_internal(seeds),
                    batch_size=2,
                    strategy=strategy,
                    memory="300MB",
                )
                for batch in loader:
                    ids = opened.to_original(batch.n_id)
                    rows = zip(ids.tolist(), batch.x.tolist(), batch.y.tolist(), strict=True)
                    edges = zip(*ids[batch.edge_index.numpy()].tolist(), strict=True)
                    found.append(
                        (
                            ids[: batch.batch_size].tolist(),
                            sorted(rows),
                            sorted(zip(batch.e_id.tolist(), edges, strict=True)),
                        )
                    )
    assert found[0:2] == found[2:4] == found[4:6] and found[0] != found[1]


@pytest.mark.parametrize("strategy", VARIANTS)
@pytest.mark.parametrize("memory", ["least", "more", "1GB"])
def test_options_change_no_batch(tmp_path: Path, strategy: str, memory: str) -> None:
    graph = random_graph(2000, 30_000)
    with make_store(tmp_path / "g.outcrop", graph, dim=100, train=300, edge_ids=True) as store:
        options = {"num_neighbors": [5, 4], "input_nodes": "train", "batch_size": 25}
        if memory == "more":  # a cache that has room for some rows and not for all
            least = smallest_memory(
                lambda memory: loader_of(store, strategy=strategy, memory=memory, **options)
            )
            memory = str(parse_size(least) + 200_000)
        check(store, strategy, memory, epochs=3, shuffle=True, **options)
