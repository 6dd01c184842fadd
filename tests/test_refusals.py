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

from outcrop.batch import BatchShape
from outcrop.budget import Budget
from outcrop.errors import BudgetError
from outcrop.loader import NeighborLoader, ShaDowLoader
from outcrop.options import parse_size
from outcrop.sample.sampler import Sampling
from outcrop.sample.seeds import SeedOrder, Stream
from outcrop.settle import row_shape
from outcrop.store.store import GraphStore
from outcrop.strategies import STRATEGIES, strategy_named
from outcrop.strategies.base import Means, Sizes
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
                "batch_size": 11, "strategy": strategy, "memory": memory, "epochs": epochs,
                "disk": disk, "strict_memory": True, "shuffle": True,
            }  # fmt: skip
            if shadow:
                return ShaDowLoader(store, 2, fanout, "train", **given)
            return NeighborLoader(store, [fanout, 3], "train", **given)

        with store:
            loader = make(refusal(make, before) or before)
            assert next(iter(loader)).num_nodes
            loader.close()


class _Facts(GraphStore):
    """A store that says it were larger: enough for those who only ask for sizes."""

    nodes, edges, dim = 8_000_000, 16_000_000, 4

    @property
    def num_nodes(self) -> int:
        return self.nodes

    @property
    def num_edges(self) -> int:
        return self.edges

    def array_bytes(self, name: str) -> int:
        row = {"indptr": 8, "indices": 4, "features": 4 * self.dim}[name]
        return row * (self.edges if name == "indices" else self.nodes)


@pytest.mark.parametrize("strategy", OPTIONS)
@pytest.mark.parametrize("memory", [1, 40 * MB, 76 * MB, 85 * MB, 107 * MB])
def test_millions_of_nodes_are_refused_once(tmp_path: Path, strategy: str, memory: int) -> None:
    """Tables by node are large beside caches of small rows, and grow in steps."""
    make_random_store(tmp_path / "g", 100, 200, dim=4).close()
    made, options = strategy_named(strategy)
    with _Facts(tmp_path / "g") as store:
        rows = row_shape(store, staged=made.reads_stored_rows)
        shape = BatchShape(60_000, 120_000, rows)
        means = Means(
            store=store,
            sampling=Sampling.of([10, 10]),
            seeds=SeedOrder(range(100_000), batch_size=1000, stream=Stream.TRAIN, seed=0),
            options=options,
            sizes=Sizes(shape.nodes, shape.edges, 10_000, shape.charged_bytes(), 3 * MB),
            spare_bytes=0,
            disk_bytes=None,
            epochs=3,
            device="cpu",
        )

        def settle(total: int) -> None:
            def needs(total: int) -> Any:
                spare = max(total - 2 * means.sizes.batch_bytes, 0)
                return made.needs(Means(**{**vars(means), "spare_bytes": spare}))

            Budget(total).settle(needs, means.sizes.batch_bytes, 2)

        least = refusal(settle, memory)
        if least is not None:
            assert refusal(settle, least) is None
            assert refusal(settle, least - MB) is not None or least - MB <= memory


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
            return NeighborLoader(store, [4, 3], "train", batch_size=20, strategy=strategy,
                                  memory="200MB", epochs=3, disk=disk)  # fmt: skip

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
    monkeypatch.setattr("outcrop.strategies.diskgnn.prepare_trace", None)  # not to be called
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
