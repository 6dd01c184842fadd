"""Imported samples: batches of other samplers come back as they were, with the store's rows."""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import outcrop
from outcrop.errors import OptionError, StoreError
from outcrop.layout.samples import find_samples
from outcrop.loader import NeighborLoader, ShaDowLoader
from outcrop.store.store import GraphStore
from outcrop.train import TrainOptions, fit
from tests.conformance.contract import all_contents, check_against_store
from tests.stores import make_random_store, smallest_memory

BATCHES = 9
OPTIONAL = ("input_id", "e_id", "num_sampled_nodes", "num_sampled_edges")


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("imported") / "g.outcrop"
    make_random_store(path, 600, 4000, dim=20, train=103, edge_ids=True).close()
    return path


@pytest.fixture
def store(path: Path) -> Iterator[GraphStore]:
    with GraphStore(path) as opened:
        yield opened
    shutil.rmtree(path / "derived", ignore_errors=True)


def loader(store: GraphStore, strategy: str, **more: Any) -> NeighborLoader:
    options: dict[str, Any] = {"batch_size": 12, "shuffle": True, "memory": "1GB", **more}
    return NeighborLoader(store, [4, 3], "train", strategy=strategy, **options)


def sampled(store: GraphStore, epochs: int = 1, leave_out: tuple[str, ...] = ()) -> list[Any]:
    """Plain objects with what PyG's batches have."""
    names = {"n_id", "edge_index", "batch_size", *OPTIONAL} - set(leave_out)
    made = loader(store, "memory")
    found = []
    for epoch in range(epochs):
        for batch in made.epoch(epoch):
            copied = {name: _copy(batch[name]) for name in names}
            found.append(SimpleNamespace(**copied))
    made.close()
    return found


def _copy(value: Any) -> Any:
    return value.clone() if isinstance(value, torch.Tensor) else value


@pytest.mark.parametrize("budget", ["least", "1GB"])
def test_imported_batches_come_back_as_they_were(store: GraphStore, budget: str) -> None:
    facts = outcrop.import_samples(store, sampled(store, epochs=2), "mine", epochs=2)
    assert (facts.epochs, facts.batches, facts.seeds) == (2, BATCHES, 12)
    assert facts == find_samples(store, "mine")
    strategy = "diskgnn:samples=mine:verify_rows=true"
    memory = smallest_memory(lambda memory: loader(store, strategy, memory=memory))
    made = loader(store, strategy, memory=memory if budget == "least" else budget)
    reference = loader(store, "memory")
    for epoch in range(2):
        assert all_contents(made.epoch(epoch)) == all_contents(reference.epoch(epoch))
    repeated = [[c["n_id"] for c in all_contents(made.epoch(e))] for e in (0, 2, 4)]
    assert made.record.plan["samples"] == "mine" and made.record.plan["distinct_epochs"] == 2
    made.close()
    reference.close()
    assert sorted(repeated[0]) == sorted(repeated[1]) == sorted(repeated[2])
    assert len({tuple(order) for order in repeated}) == 3


def test_edges_come_in_the_order_of_their_targets(store: GraphStore) -> None:
    samples = sampled(store, leave_out=("num_sampled_nodes", "num_sampled_edges"))
    before = [sample.edge_index.numpy().copy() for sample in samples]
    for sample in samples:
        order = torch.randperm(len(sample.e_id), generator=torch.Generator().manual_seed(1))
        sample.edge_index, sample.e_id = sample.edge_index[:, order], sample.e_id[order]
    outcrop.import_samples(store, samples, "mine")
    made = loader(store, "diskgnn:samples=mine")
    for batch, edges in zip(made.epoch(0), before, strict=True):
        found = batch.edge_index.numpy()
        assert (np.diff(found[1]) >= 0).all()
        assert sorted(map(tuple, found.T)) == sorted(map(tuple, edges.T))
        check_against_store(batch, store)
    made.close()


def test_what_samples_leave_out_is_not_made_up(store: GraphStore) -> None:
    outcrop.import_samples(store, sampled(store, leave_out=OPTIONAL), "bare")
    made = loader(store, "diskgnn:samples=bare")
    for batch, other in zip(made.epoch(0), loader(store, "memory"), strict=True):
        assert torch.equal(batch.n_id, other.n_id) and torch.equal(batch.x, other.x)
        assert torch.equal(batch.input_id, batch.n_id[: batch.batch_size])
        assert "e_id" not in batch and "num_sampled_nodes" not in batch
    made.close()
    options = TrainOptions(
        strategy="diskgnn:samples=bare", epochs=3, layers=2, hidden=8, num_neighbors=(4, 3),
        batch_size=12,
    )  # fmt: skip
    assert len(fit(store, options).history) == 3


def test_larger_batches_than_the_loader_would_sample_have_room(store: GraphStore) -> None:
    made = NeighborLoader(store, [-1, -1], "train", batch_size=12, memory="1GB")
    outcrop.import_samples(store, made, "large")
    memory = smallest_memory(lambda memory: loader(store, "diskgnn:samples=large", memory=memory))
    found = loader(store, "diskgnn:samples=large", memory=memory)
    count = 0
    for batch, other in zip(found.epoch(0), made.epoch(0), strict=True):
        assert torch.equal(batch.n_id, other.n_id) and torch.equal(batch.x, other.x)
        count += 1
        del batch
    assert count == BATCHES
    found.close()
    made.close()


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"n_id": None}, "batch 4 of the samples: has no n_id"),
        ({"n_id": torch.tensor([600])}, "n_id must be 0 to 599"),
        ({"n_id": torch.tensor([0.5])}, "n_id must be integers"),
        ({"batch_size": None}, "has no batch_size"),
        ({"batch_size": 10**6}, "batch_size must be 1 to"),
        ({"edge_index": torch.zeros(3, 1, dtype=torch.int64)}, r"of shape \[2, E\]"),
        ({"edge_index": torch.tensor([[0], [10**6]])}, "edge_index must be 0 to"),
        ({"e_id": torch.tensor([0])}, "e_id has 1 entries"),
        ({"e_id": None}, "all batches have e_id or none"),
        ({"input_id": torch.tensor([0])}, "input_id has 1 entries for 12 seeds"),
        ({"num_sampled_nodes": [1, 2]}, "num_sampled_nodes must add up to"),
        ({"num_sampled_edges": None}, "give both, or neither"),
    ],
)
def test_a_batch_that_cannot_be_used_is_named_and_nothing_remains(
    store: GraphStore, change: dict[str, Any], match: str
) -> None:
    samples = sampled(store)
    vars(samples[4]).update(change)
    with pytest.raises(OptionError, match=match):
        outcrop.import_samples(store, samples, "bad")
    assert not list(store.path.glob("derived/*samples*"))
    with pytest.raises(StoreError, match="no samples 'bad'"):
        loader(store, "diskgnn:samples=bad")


def test_hops_whose_edges_are_mixed_are_refused(store: GraphStore) -> None:
    samples = sampled(store)
    samples[0].edge_index = samples[0].edge_index.flip(1)
    with pytest.raises(OptionError, match="later nodes than those of the hop before"):
        outcrop.import_samples(store, samples, "mixed")


def test_samples_that_do_not_fit_the_loader_are_refused(store: GraphStore) -> None:
    samples = sampled(store)
    with pytest.raises(OptionError, match="9 batches are not 2 epochs"):
        outcrop.import_samples(store, samples, "mine", epochs=2)
    with pytest.raises(OptionError, match="0 batches are not 1 epochs"):
        outcrop.import_samples(store, [], "mine")
    with pytest.raises(OptionError, match="letters, digits"):
        outcrop.import_samples(store, samples, "a:b")
    outcrop.import_samples(store, samples, "mine")
    with pytest.raises(StoreError, match="are there already: remove"):
        outcrop.import_samples(store, samples, "mine")
    with pytest.raises(OptionError, match="9 batches per epoch, and the loader 11"):
        loader(store, "diskgnn:samples=mine", batch_size=10)
    with pytest.raises(OptionError, match="no distinct_epochs"):
        loader(store, "diskgnn:samples=mine:distinct_epochs=2")
    with pytest.raises(OptionError, match="NeighborLoader"):
        ShaDowLoader(store, 2, 4, "train", batch_size=12, strategy="diskgnn:samples=mine")


def test_a_pack_belongs_to_the_samples_not_to_their_name(store: GraphStore) -> None:
    samples = sampled(store, epochs=2)
    for half in (samples[:BATCHES], samples[BATCHES:]):
        outcrop.import_samples(store, half, "mine")
        made = loader(store, "diskgnn:samples=mine:cpu_cache=false:verify_rows=true")
        found = [batch.n_id.tolist() for batch in made.epoch(0)]
        assert found == [sample.n_id.tolist() for sample in half]
        made.close()
        [layout] = store.path.glob("derived/samples-*")
        shutil.rmtree(layout)


@pytest.mark.skipif(
    not (importlib.util.find_spec("pyg_lib") or importlib.util.find_spec("torch_sparse")),
    reason="PyG samples with pyg-lib or torch-sparse",
)
@pytest.mark.filterwarnings("ignore:Using 'NeighborSampler' without a 'pyg-lib'")
def test_samples_of_pyg_itself(store: GraphStore) -> None:
    from torch_geometric.data import Data
    from torch_geometric.loader import NeighborLoader as PygLoader

    indptr = torch.from_numpy(np.array(store.indptr))
    targets = torch.repeat_interleave(torch.arange(store.num_nodes), indptr.diff())
    sources = torch.from_numpy(np.array(store.indices)).long()
    data = Data(edge_index=torch.stack([sources, targets]), num_nodes=store.num_nodes)
    nodes = torch.from_numpy(np.array(store.split("train")))
    samples = list(PygLoader(data, [4, 3], nodes, batch_size=12, shuffle=True))
    outcrop.import_samples(store, samples, "pyg")
    made = loader(store, "diskgnn:samples=pyg:verify_rows=true")
    for batch, sample in zip(made.epoch(0), samples, strict=True):
        assert torch.equal(batch.n_id, sample.n_id)
        if "num_sampled_nodes" in sample:  # by pyg-lib
            assert batch.num_sampled_nodes == list(sample.num_sampled_nodes)
    made.close()
