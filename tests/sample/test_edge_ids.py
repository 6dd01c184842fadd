"""e_id: whatever the strategy, a batch's edges are found in the user's own array of edges."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch_geometric.data import Data

import outcrop
from outcrop.disk import Disk
from outcrop.errors import CancelledError, OptionError, ReadError
from outcrop.ingest.build import import_graph
from outcrop.ingest.edgelist import edgelist_source
from outcrop.ingest.npz import npz_source
from outcrop.ingest.source import IngestOptions
from outcrop.loader import NeighborLoader, ShaDowLoader
from outcrop.options import DiskOptions, Faults, parse_size
from outcrop.sample.sampler import Sampler, Sampling, StoredEdgeIds
from outcrop.sample.seeds import Stream, Task
from outcrop.store.build import StoreBuilder
from outcrop.store.store import GraphStore
from outcrop.strategies import STRATEGIES
from outcrop.topology.parts import mapped_topology
from outcrop.train import TrainOptions, fit
from tests.conformance.contract import all_contents
from tests.graphs import Graph, random_graph, save_npz
from tests.stores import make_store, smallest_memory

GRAPH = random_graph(400, 5000)
SEEDS = np.arange(0, 400, 3)
Ints = NDArray[np.int64]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("edge-ids") / "g.outcrop"
    make_store(path, GRAPH, train=100, edge_ids=True).close()
    return path


@pytest.fixture
def store(path: Path) -> Iterator[GraphStore]:
    with GraphStore(path) as opened:
        yield opened
    shutil.rmtree(path / "derived", ignore_errors=True)


def loader(store: GraphStore, kind: str = "neighbor", **more: Any) -> Any:
    options = {"input_nodes": SEEDS, "batch_size": 20, "memory": "1GB", **more}
    if kind == "shadow":
        return ShaDowLoader(store, 2, 4, **options)
    return NeighborLoader(store, [4, 3], **options)


def ends(batch: Any) -> Ints:
    """[2, E]: the nodes at both ends of a batch's edges, as the user knows them."""
    found: Ints = batch.n_id[batch.edge_index].numpy()
    return found


@pytest.mark.parametrize("kind", ["neighbor", "shadow"])
@pytest.mark.parametrize("strategy", [*STRATEGIES, "ginex:superbatch=2:mode=split"])
@pytest.mark.parametrize("budget", ["least", "1GB"])
def test_edge_attributes_of_pyg_data_are_found_by_e_id(
    tmp_path: Path, strategy: str, kind: str, budget: str
) -> None:
    edge_index = torch.from_numpy(GRAPH.edges)
    data = Data(edge_index=edge_index, x=torch.randn(400, 3), y=torch.zeros(400).long())
    edge_attr = edge_index.T.clone()  # of each edge, its source and target
    with outcrop.from_pyg(data, tmp_path / "s") as store:

        def make(memory: Any) -> Any:
            return loader(store, kind, strategy=strategy, memory=memory)

        made = make(smallest_memory(make) if budget == "least" else budget)
        batches = 0
        for epoch in range(2):  # the second one is not prepared
            for batch in made.epoch(epoch):
                assert torch.equal(edge_attr[batch.e_id].T, batch.n_id[batch.edge_index])
                batches += 1
                del batch
        direct = made([3, 4])
        assert torch.equal(edge_attr[direct.e_id].T, direct.n_id[direct.edge_index])
        assert batches == 2 * len(made)
        made.close()


@pytest.mark.parametrize("form", ["npz", "edge list", "sparse edge list"])
@pytest.mark.parametrize("flags", ["", "undirected", "drop_self_loops merge_multi_edges"])
def test_edges_of_files_are_found_by_e_id(tmp_path: Path, form: str, flags: str) -> None:
    graph = random_graph(40, 900)  # with loops and equal edges
    options = IngestOptions.with_sizes(**dict.fromkeys(flags.split(), True))
    edges = graph.edges
    if form == "npz":
        source = npz_source(save_npz(tmp_path / "g.npz", graph))
    else:
        edges = edges * (10**9 if form.startswith("sparse") else 1)
        lines = [f"{source} {target}\n" for source, target in edges.T.tolist()]
        lines.insert(7, "# comments do not count\n")
        (tmp_path / "g.txt").write_text("".join(lines))
        num_nodes = None if form.startswith("sparse") else 40
        source = edgelist_source(tmp_path / "g.txt", num_nodes=num_nodes)
    import_graph(source, tmp_path / "s", options)
    with GraphStore(tmp_path / "s") as store:
        found = next(iter(NeighborLoader(store, [-1], batch_size=40, strategy="direct")))
        mine, theirs = edges[:, found.e_id.numpy()], ends(found)
        if store.has("node_ids"):
            theirs = store.array("node_ids")[theirs]
        assert store.has("edge_ids") and len(found.e_id) == store.num_edges
        assert store.num_edges > 900 if options.undirected else store.num_edges <= 900
        if options.undirected:
            mine, theirs = np.sort(mine, axis=0), np.sort(theirs, axis=0)
        assert np.array_equal(mine, theirs)
        if options.merge_multi_edges:
            assert found.e_id.max() >= store.num_edges


def all_in_edges(seeds: Ints) -> Data:
    """A batch as PyG samples it from `edge_index` itself: e_id are its columns."""
    e_id = np.flatnonzero(np.isin(GRAPH.edges[1], seeds))
    sources, targets = GRAPH.edges[:, e_id]
    n_id = np.concatenate([seeds, np.setdiff1d(sources, seeds)])
    local = np.empty(GRAPH.num_nodes, np.int64)
    local[n_id] = np.arange(len(n_id))
    return Data(
        n_id=torch.from_numpy(n_id),
        edge_index=torch.from_numpy(local[np.stack([sources, targets])]),
        e_id=torch.from_numpy(e_id),
        batch_size=len(seeds),
    )


def test_imported_samples_and_our_own_have_the_same_ids(store: GraphStore) -> None:
    parts = [SEEDS[first : first + 20] for first in range(0, len(SEEDS), 20)]
    outcrop.import_samples(store, map(all_in_edges, parts), "theirs")
    made = loader(store, strategy="diskgnn:samples=theirs")
    for batch in (*made.epoch(0), *made.sibling(SEEDS[:9]).epoch(0)):
        assert np.array_equal(GRAPH.edges[:, batch.e_id.numpy()], ends(batch))
    made.close()


@pytest.mark.parametrize("kind", ["neighbor", "shadow"])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_without_edge_ids_batches_are_the_same_and_nothing_is_charged(
    tmp_path: Path, store: GraphStore, strategy: str, kind: str
) -> None:
    """The store that has none costs as much."""
    with make_store(tmp_path / "s", GRAPH, train=100) as bare:
        costs, batches = [], []
        for opened in (store, bare):
            made = loader(opened, kind, strategy=strategy, edge_ids=False)
            assert made.sibling("val").options.edge_ids is False
            batches.append(all_contents(made))
            epoch = made.record.epochs[0]
            costs.append((made.record.charges, made.record.batch_memory_bytes, epoch.bytes_wanted))
            made.close()
    assert costs[0] == costs[1] and "e_id" not in batches[0][0]
    with_ids = all_contents(loader(store, kind, strategy=strategy))
    assert [{**batch, "e_id": None} for batch in with_ids] == [
        {**batch, "e_id": None} for batch in batches[0]
    ]


def test_what_ids_cost_is_charged_and_counted(store: GraphStore) -> None:
    def record(**options: Any) -> Any:
        made = loader(store, **options)
        for batch in made:
            del batch
        made.close()
        return made.record

    loaded = record()
    assert loaded.charges["edge ids"] == 4 * store.num_edges
    assert "edge ids" not in record(edge_ids=False).charges
    assert loaded.epochs[0].bytes_wanted == 0
    read, without = record(strategy="direct"), record(strategy="direct", edge_ids=False)
    epoch, other = read.epochs[0], without.epochs[0]
    assert epoch.bytes_wanted - other.bytes_wanted == 4 * epoch.sampled_edges
    per_edge = 4 + 16
    largest = per_edge * epoch.sampled_edges // epoch.batches
    assert largest < read.charges["samplers"] - without.charges["samplers"] < 2 * largest
    prepared = record(strategy="diskgnn")
    assert prepared.epochs[0].bytes_wanted < other.bytes_wanted + 10 * epoch.sampled_edges


def test_a_sibling_shares_the_choice(store: GraphStore) -> None:
    made = loader(store)
    with pytest.raises(OptionError, match="edge_ids is shared"):
        made.sibling("val", edge_ids=False)
    made.close()


def layouts(store: GraphStore, kind: str = "trace") -> list[dict[str, Any]]:
    return [inputs for _, inputs in store.derived.records(kind)]


def test_what_is_prepared_with_edge_ids_serves_those_who_do_without(tmp_path: Path) -> None:
    with make_store(tmp_path / "s", random_graph(20_000, 200_000), dim=200, train=5000) as bare:

        def make(memory: Any, **more: Any) -> Any:
            return NeighborLoader(
                bare, [5, 4], "train", batch_size=2500, strategy="diskgnn", memory=memory, **more
            )

        memory = parse_size(smallest_memory(make)) + 14_000_000  # for some rows, not for all
        for edge_ids in (True, False):
            make(memory, edge_ids=edge_ids).close()
        (pack,) = layouts(bare, "pack")
        assert 0 < pack["cache_rows"] < 20_000


def test_layouts_and_positions_tell_ids_from_places_only_where_there_are_both(
    tmp_path: Path, store: GraphStore
) -> None:
    with make_store(tmp_path / "s", GRAPH, train=100) as bare:
        states = {}
        for name, opened in (("ids", store), ("bare", bare)):
            for edge_ids in (True, False):
                made = loader(opened, strategy="diskgnn", edge_ids=edge_ids)
                states[name, edge_ids] = made.state_dict()
                made.close()
        (plain,) = layouts(bare)
        assert "edge_ids" not in json.dumps([plain, states["bare", True]])
        assert states["bare", True] == states["bare", False]
        for_ids, for_none = sorted(layouts(store), key=len, reverse=True)
        assert for_ids == {**for_none, "edge_ids": "source"}
        assert for_none == plain  # as it ever was
        with pytest.raises(OptionError, match="edge_ids was not set, and is 'source'"):
            loader(store).load_state_dict(states["ids", False])
        loader(store).load_state_dict(states["ids", True])
        loader(bare).load_state_dict(states["bare", False])


def test_training_does_without(store: GraphStore) -> None:
    options = TrainOptions(
        strategy="diskgnn", epochs=1, layers=2, hidden=8, num_neighbors=(4, 3), batch_size=50
    )
    fit(store, options)
    assert ["edge_ids" in inputs for inputs in layouts(store)] == [False]


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_ids_beyond_32_bits_reach_the_batch(
    tmp_path: Path, store: GraphStore, strategy: str
) -> None:
    """Of a source with very many edges, most of which were left out; and of older stores."""
    with Disk() as disk, StoreBuilder(tmp_path / "s", disk) as builder:
        for name in ("indptr", "indices", "labels", "features"):
            array = store.array(name)
            builder.write(name, [array], array.dtype, array.shape[1:])
        ids = store.array("edge_ids").astype(np.int64) << 40
        builder.write("edge_ids", [ids], np.int64)
        builder.commit(
            num_nodes=store.num_nodes, num_edges=store.num_edges, num_classes=store.num_classes,
            features=store.encoding, source="", options={},
        )  # fmt: skip
    with GraphStore(tmp_path / "s") as wide:

        def make(memory: Any) -> Any:
            return loader(wide, strategy=strategy, memory=memory)

        made = make(smallest_memory(make))
        expected = loader(store)
        for batch, other in zip(made, expected, strict=True):
            assert torch.equal(batch.e_id >> 40, other.e_id) and batch.e_id.max() > 2**40
            del batch, other
        made.close()
        expected.close()


def sampled_task() -> Task:
    return Task(Stream.TRAIN, 0, 0, np.arange(20), np.arange(20))


def stored(store: GraphStore) -> StoredEdgeIds:
    return StoredEdgeIds(store.disk, store.checks("edge_ids"))


def test_a_cancelled_sampler_reads_no_ids(store: GraphStore) -> None:
    ids = stored(store)
    sampler = Sampler(Sampling((4, 3)), mapped_topology(store), 0, edge_ids=ids)
    places = sampler.sample(sampled_task()).edge_ids
    assert places is not None
    before = store.counters.read_requests
    sampler.cancel()
    with pytest.raises(CancelledError):
        sampler.sample(sampled_task())
    with pytest.raises(CancelledError, match=r"cancelled before .*edge_ids\.npy"):
        ids.look_up(np.arange(5))
    assert store.counters.read_requests == before


def test_a_failing_drive_is_named(path: Path) -> None:
    with (
        GraphStore(path, DiskOptions(faults=Faults(fail_read_at=1))) as store,
        pytest.raises(ReadError, match=r"edge_ids\.npy"),
    ):
        stored(store).look_up(np.arange(100, 0, -1))


def test_one_edge_may_be_asked_for_often_and_in_any_order(store: GraphStore) -> None:
    places = np.random.default_rng(0).integers(0, store.num_edges, 3000)
    assert np.array_equal(stored(store).look_up(places), store.array("edge_ids")[places])
    assert len(stored(store).look_up(np.empty(0, np.int64))) == 0


def test_edges_in_order_need_no_ids(tmp_path: Path) -> None:
    edges = GRAPH.edges[:, np.argsort(GRAPH.edges[1], kind="stable")]
    with make_store(tmp_path / "s", Graph(400, edges), train=100, edge_ids=True) as store:
        assert not store.has("edge_ids")
        made = loader(store)
        for batch in made:
            assert np.array_equal(edges[:, batch.e_id.numpy()], ends(batch))
        assert "edge ids" not in made.record.charges
        made.close()
