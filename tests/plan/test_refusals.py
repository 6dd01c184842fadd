"""Refusals: given exactly what one names, a loader is made and gives its batches."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outcrop.ahead.window import Window
from outcrop.disk import EngineFacts
from outcrop.errors import BudgetError
from outcrop.loader import NeighborLoader, ShaDowLoader
from outcrop.memory.budget import Budget
from outcrop.memory.context import BatchSizes, Context, DiskFacts
from outcrop.options import parse_size
from outcrop.plan.plan import Strategy
from outcrop.sample.sampler import Sampling
from outcrop.sample.seeds import SeedOrder, Stream
from outcrop.store.facts import ArrayFacts, GraphFacts
from outcrop.store.format import RowEncoding
from outcrop.strategies import STRATEGIES
from outcrop.tools.bench.variants import variant_named
from tests.conftest import SOAK
from tests.graphs import random_graph
from tests.stores import make_random_store, make_store

MB = 10**6
OPTIONS = [
    *STRATEGIES,
    "pagraph:neighbors=0",
    "pagraph:neighbors=1",
    "ginex:mode=split",
    "ginex:mode=split:overlap=true",
    "ginex:policy=static",
    "ginex:policy=lru:mode=split",
    "ginex:topology=mmap",
    "ginex:superbatch=2:read_unit=65536",
    "gnndrive:topology=cache",
    "gnndrive:topology=mmap:reuse=lru",
    "gnndrive:buffer=1.5",
    "gnndrive:x=slots",
    "diskgnn:refresh=background",
    "diskgnn:topology=cache",
    "diskgnn:topology=memory:device_cache=20rows",
    "diskgnn:raw=true",
]


def refusal(make: Callable[[Any], Any], memory: int) -> int | None:
    """What make(memory) names as the least; None where it is accepted."""
    try:
        make(memory)
    except BudgetError as error:
        found = re.search(r"memory=.* the smallest that would do is (\w+)(;|$)", str(error))
        assert found is not None, str(error)
        return parse_size(found[1])
    return None


@pytest.mark.parametrize("strategy", OPTIONS)
@settings(max_examples=200 if SOAK else 5)
@given(data=st.data())
def test_what_a_refusal_names_is_enough(strategy: str, data: st.DataObject) -> None:
    nodes = data.draw(st.sampled_from([1, 7, 129, 1000, 5003]), "nodes")
    edges = data.draw(st.integers(0, 8), "edges") * nodes
    dim = data.draw(st.sampled_from([None, 1, 33, 1000]), "dim")
    dtype = "float32" if "slots" in strategy else data.draw(st.sampled_from(["float32", "float16"]))
    shadow = data.draw(st.booleans(), "shadow")
    fanout = data.draw(st.sampled_from([1, 5, -1]), "fanout")
    epochs = data.draw(st.sampled_from([None, 3]), "epochs")
    disk = data.draw(st.sampled_from([None, "1GB"]), "disk")
    before = data.draw(st.integers(0, 40), "before") * 10**5
    with TemporaryDirectory() as folder:
        graph = random_graph(nodes, edges)
        store = make_store(Path(folder) / "g", graph, dim=dim, feature_dtype=dtype, train=nodes)

        def make(memory: int) -> NeighborLoader | ShaDowLoader:
            given: dict[str, Any] = {
                "batch_size": 11, "strategy": variant_named(strategy), "memory": memory,
                "epochs": epochs, "disk": disk, "strict_memory": True, "shuffle": True,
            }  # fmt: skip
            if shadow:
                return ShaDowLoader(store, 2, fanout, "train", **given)
            return NeighborLoader(store, [fanout, 3], "train", **given)

        with store:
            loader = make(refusal(make, before) or before)
            assert next(iter(loader)).num_nodes
            loader.close()


def facts(nodes: int, edges: int, dim: int) -> GraphFacts:
    """Of a graph that is not there."""
    encoding = RowEncoding("float32", dim)
    rows = {"indptr": (8, nodes + 1), "indices": (4, edges), "features": (4, nodes * dim)}
    arrays = {name: ArrayFacts(size * count, size) for name, (size, count) in rows.items()}
    return GraphFacts("g", nodes, edges, arrays, encoding, label_bytes=nodes)


def context(strategy: str, memory_bytes: int, **changes: Any) -> tuple[Strategy, Context]:
    made = variant_named(strategy)
    given: dict[str, Any] = {
        "graph": facts(8_000_000, 16_000_000, 4),
        "sampling": Sampling.of([10, 10]),
        "seeds": SeedOrder(range(100_000), batch_size=1000, stream=Stream.TRAIN, seed=0),
        "epochs": 3,
        "batch": BatchSizes(60_000, 120_000, 10_000, 3 * MB),
        "options": made.options,
        "memory_bytes": memory_bytes,
        "disk": DiskFacts(None, 10**12, writable=True),
        "engine": EngineFacts("uring", {"uring": 2, "pool": 64}, 4096),
    }
    return made, Context(**{**given, **changes})


@pytest.mark.parametrize("strategy", OPTIONS)
@pytest.mark.parametrize("memory", [1, 40 * MB, 76 * MB, 85 * MB, 107 * MB])
def test_millions_of_nodes_are_refused_once(strategy: str, memory: int) -> None:
    """Tables by node are large beside caches of small rows, and grow in steps.

    The graph is not there: a plan is made from facts alone.
    """

    def settle(total: int) -> None:
        made, known = context(strategy, total)
        Budget(total).settle(
            lambda total: made.plan(known.with_memory(total)).demands(known.with_memory(total))
        )

    least = refusal(settle, memory)
    if least is not None:
        assert refusal(settle, least) is None
        assert refusal(settle, least - MB) is not None or least - MB <= memory


LARGE: dict[str, Any] = {
    "graph": facts(100 * MB, 1600 * MB, 128),
    "batch": BatchSizes(500_000, MB, 90_000, 30 * MB),
    "seeds": SeedOrder(range(1_200_000), batch_size=1000, stream=Stream.TRAIN, seed=0),
}


@pytest.mark.parametrize("strategy", [name for name in OPTIONS if name.startswith("ginex")])
def test_of_a_large_graph_planning_takes_little_of_the_memory(strategy: str) -> None:
    made, known = context(strategy, 2000 * MB, **LARGE)
    ahead = made.plan(known).ahead
    assert isinstance(ahead, Window) and ahead.rows is not None
    assert ahead.rows.planning_bytes(known, ahead.batches) < 150 * MB
    assert made.plan(known).fits(known)

    def settle(total: int) -> None:
        made, known = context(strategy, total, **LARGE)
        Budget(total).settle(
            lambda total: made.plan(known.with_memory(total)).demands(known.with_memory(total))
        )

    least = refusal(settle, 1)
    assert least is not None and refusal(settle, least) is None


@pytest.mark.parametrize("strategy", OPTIONS)
@given(megabytes=st.integers(0, 2000), dim=st.sampled_from([1, 4, 100, 1025]))
@settings(max_examples=20)
def test_what_a_plan_divides_it_has(strategy: str, megabytes: int, dim: int) -> None:
    """Where the loop fits at all, so do its caches: they are what is left."""
    graph = facts(300_000, 3_000_000, dim)
    made, known = context(strategy, megabytes * MB, graph=graph)
    plan = made.plan(known)
    more = known.with_memory(known.memory_bytes + 500 * MB)
    if plan.fits(known):
        assert made.plan(more).fits(more), "more memory is not too little"
    names = [charge.name for charge in plan.charges(known)]
    assert "indptr" not in names or names.count("indptr") == 1
    assert all(charge.bytes >= 0 for charge in plan.charges(known))


@pytest.mark.parametrize(
    "strategy",
    ["ginex", "ginex:superbatch=3", "diskgnn", "diskgnn:packing=false", "diskgnn:cpu_cache=false",
     "diskgnn:refresh=background:cpu_cache=false", "diskgnn:device_cache=20rows"],
)  # fmt: skip
@settings(max_examples=50 if SOAK else 3)
@given(data=st.data())
def test_the_disk_that_a_refusal_names_is_enough(strategy: str, data: st.DataObject) -> None:
    dim = data.draw(st.sampled_from([None, 1, 33, 1000]), "dim")
    disk = data.draw(st.sampled_from([0, 1000, 50_000, 300_000]), "disk")
    edges = data.draw(st.sampled_from([0, 500, 4000]), "edges")
    with (
        TemporaryDirectory() as folder,
        make_random_store(Path(folder) / "g", 500, edges, dim=dim) as store,
    ):

        def make(disk: int) -> NeighborLoader:
            return NeighborLoader(
                store, [4, 3], "train", batch_size=20, strategy=variant_named(strategy),
                memory="200MB", epochs=3, disk=disk,
            )  # fmt: skip

        try:
            loader = make(disk)
        except BudgetError as error:
            named = parse_size(str(error).rsplit(" ", 1)[1])
            loader = make(named * (2 if "one half: disk" in str(error) else 1))
        for _ in range(3):
            assert sum(batch.batch_size for batch in loader) == 250
        loader.close()


def test_disk_is_checked_before_anything_is_sampled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("outcrop.ahead.prepared.prepare_trace", None)  # not to be called
    with make_random_store(tmp_path / "g", 1000, 9000) as store:

        def make(**more: Any) -> NeighborLoader:
            return NeighborLoader(store, [10, 10], "train", batch_size=100, strategy="diskgnn",
                                  memory="200MB", epochs=1000, **more)  # fmt: skip

        with pytest.raises(BudgetError, match=r"samples alone of 5000 batches .* in all is \d+MB$"):
            make(disk="1MB")
        full = SimpleNamespace(free=10 * MB)
        monkeypatch.setattr("shutil.disk_usage", lambda _: full)
        with pytest.raises(BudgetError, match=r"10\.0 MB that are free there; .* is \d+MB$"):
            make()
