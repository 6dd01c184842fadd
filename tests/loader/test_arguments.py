"""Loaders, as PyG users call them: what works, what is ignored, what is said of the rest."""

from __future__ import annotations

import inspect
import re
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.utils.data
from torch_geometric.data import Data, HeteroData
from torch_geometric.loader import NeighborLoader as PygNeighborLoader
from torch_geometric.loader import ShaDowKHopSampler
from torch_geometric.sampler.base import SubgraphType

import outcrop
from outcrop.errors import OptionError
from outcrop.loader import NeighborLoader, ShaDowLoader
from outcrop.loader import arguments as loader_arguments
from outcrop.loader.lightning import StoreDataModule
from outcrop.loader.pyg import adapters
from outcrop.store.store import GraphStore
from tests.conformance.contract import all_contents
from tests.stores import make_random_store


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GraphStore]:
    path = tmp_path_factory.mktemp("arguments") / "g.outcrop"
    with make_random_store(path, train=100) as made:
        yield made


@pytest.fixture(autouse=True)
def nothing_told_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loader_arguments, "_told", set())


def make(store: GraphStore, **options: Any) -> NeighborLoader:
    given: dict[str, Any] = {"num_neighbors": [4, 3], "batch_size": 50, "memory": "100MB"}
    return NeighborLoader(store, **(given | options))


# In place of a store


@pytest.mark.parametrize("kind", [NeighborLoader, StoreDataModule, adapters])
def test_a_data_is_told_to_become_a_store_first(tmp_path: Path, kind: Any) -> None:
    data = Data(x=torch.ones(2, 3), edge_index=torch.tensor([[0], [1]]))
    arguments = [[2]] if kind is not adapters else []
    sentence = r'\(got Data\): make one once, store = outcrop\.from_pyg\(data, "graph\.outcrop"\)'
    with pytest.raises(OptionError, match=sentence):
        kind(data, *arguments)
    with pytest.raises(OptionError, match="several node types are not there yet"):
        kind(HeteroData(), *arguments)
    with pytest.raises(OptionError, match=r"a store, or the path of one \(got tuple\)"):
        kind((1, 2), *arguments)
    assert not list(tmp_path.iterdir()), "nothing is imported silently"


def test_the_store_may_be_named_data_as_in_pyg(store: GraphStore) -> None:
    loader = NeighborLoader(data=store.path, num_neighbors=[2], input_nodes="val")
    assert loader.store.num_nodes == 300
    outcrop.ShaDowLoader(data=store, depth=1, num_neighbors=2)


# Which nodes, and how many neighbours


def test_all_means_all_nodes_wherever_nodes_are_named(store: GraphStore) -> None:
    expected = all_contents(make(store, input_nodes=None))
    loader = make(store, input_nodes="all")
    assert all_contents(loader) == expected
    assert all_contents(make(store, input_nodes="train").sibling("all")) == expected
    module = StoreDataModule(store, [4, 3], predict_nodes="all", batch_size=50, memory="100MB")
    assert all_contents(iter(module.predict_dataloader())) == expected
    assert sum(map(len, iter_input_ids(ShaDowLoader(store, 1, 2, "all", batch_size=50)))) == 300


def iter_input_ids(loader: ShaDowLoader) -> Iterator[Any]:
    for batch in loader:
        yield batch.input_id.clone()


def test_a_mask_of_the_store_names_the_nodes_of_the_split(store: GraphStore) -> None:
    expected = all_contents(make(store, input_nodes="train", shuffle=True))
    mask = store.train_mask
    for nodes in (mask, mask.nonzero().view(-1), mask.numpy(), mask.tolist()):
        assert all_contents(make(store, input_nodes=nodes, shuffle=True)) == expected


@pytest.mark.parametrize(
    ("nodes", "sentence"),
    [
        (("paper", torch.ones(300).bool()), "one type of nodes.*input_nodes=mask"),
        (("paper", None), "one type of nodes"),
        ((None, torch.tensor([1])), "one type of nodes"),
        ("paper", "train, val, test or all, node ids or a mask .got 'paper'"),
        (5, "train, val, test or all, node ids or a mask .got int"),
        ({1, 2}, "train, val, test or all, node ids or a mask .got set"),
        ({"train": [1]}, "train, val, test or all, node ids or a mask .got dict"),
        ([[1], [2, 3]], "train, val, test or all, node ids or a mask .got list"),
        (torch.ones(300, 2).bool(), r"one dimension.*mask\[:, 0\].*got \[300, 2\]"),
    ],
)
def test_input_nodes_that_are_none_are_named(store: GraphStore, nodes: Any, sentence: str) -> None:
    with pytest.raises(OptionError, match=sentence):
        make(store, input_nodes=nodes)


def test_counts_may_be_tensors(store: GraphStore) -> None:
    expected = all_contents(make(store, seed=3))
    given = {"batch_size": torch.tensor(50), "seed": np.int64(3)}
    loader = make(store, num_neighbors=torch.tensor([4, 3]), epochs=np.int64(2), **given)
    assert all_contents(loader) == expected
    make(store, seed=3).load_state_dict(loader.state_dict())


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"num_neighbors": 10}, r"a count per hop, such as \[10, 10\] .got 10\)"),
        ({"num_neighbors": {("a", "b", "c"): [2]}}, r"one type of edges.*such as \[10, 10\]"),
        ({"num_neighbors": "10,10"}, r"a count per hop, such as \[10, 10\] .got '10,10'"),
        ({"num_neighbors": None}, r"a count per hop, such as \[10, 10\] .got None"),
        ({"num_neighbors": [2.5]}, r"a count per hop, such as \[10, 10\] .got \[2\.5\]"),
        ({"batch_size": None}, "batch_size must be a whole number .got None"),
        ({"batch_size": 4.5}, "batch_size must be a whole number .got 4.5"),
        ({"batch_size": "4"}, "batch_size must be a whole number .got '4'"),
        ({"seed": None}, "seed must be a whole number .got None"),
        ({"epochs": "3"}, "epochs must be a whole number .got '3'"),
        ({"strategy": None}, "strategy must be a name such as 'auto' .got None"),
        ({"transform": 3}, "transform must be a function .got 3"),
        ({"device": "gpu"}, "device must be one that torch knows, such as 'cuda' .got 'gpu'"),
    ],
)
def test_values_that_are_none_of_an_argument_are_named(
    store: GraphStore, options: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(OptionError, match=sentence):
        make(store, **options)


@pytest.mark.parametrize(
    ("depth", "neighbors", "sentence"),
    [
        ([2], 3, r"depth must be a whole number .got \[2\]"),
        (2, [3, 3], r"num_neighbors is one count for every hop .got \[3, 3\]"),
    ],
)
def test_shadow_takes_one_count(
    store: GraphStore, depth: Any, neighbors: Any, sentence: str
) -> None:
    with pytest.raises(OptionError, match=sentence):
        ShaDowLoader(store, depth, neighbors)


# What is ignored


def test_hints_of_speed_are_ignored_with_one_warning(store: GraphStore) -> None:
    given = {"num_workers": 4, "pin_memory": True, "persistent_workers": True, "prefetch_factor": 2,
             "worker_init_fn": print, "timeout": 3, "multiprocessing_context": "spawn",
             "filter_per_worker": True}  # fmt: skip
    with pytest.warns(UserWarning, match="ignores num_workers, pin_memory, persist") as told:
        loader = make(store, **given)
    (warning,) = told
    assert all(name in str(warning.message) for name in given)
    assert warning.filename == __file__
    assert all_contents(loader) == all_contents(make(store))


def test_the_next_loaders_do_not_repeat_the_warning(store: GraphStore) -> None:
    with pytest.warns(UserWarning, match="num_workers") as told:
        loader = make(store, num_workers=4)
        make(store, num_workers=2)
        loader.sibling("val", num_workers=2)
    assert len(told) == 1
    with pytest.warns(UserWarning, match="ignores pin_memory:"):
        make(store, num_workers=2, pin_memory=True)


@pytest.mark.parametrize("pyg", [PygNeighborLoader, ShaDowKHopSampler, torch.utils.data.DataLoader])
def test_every_argument_of_pyg_is_known_and_its_default_is_silent(
    store: GraphStore, pyg: type
) -> None:
    ours = set(inspect.signature(NeighborLoader).parameters) | {"depth", "kwargs"}
    of_pyg = inspect.signature(pyg).parameters
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for name, parameter in of_pyg.items():
            if name not in ours and parameter.default is not parameter.empty:
                make(store, **{name: parameter.default})


@pytest.mark.parametrize("value", [SubgraphType.directional, "directional"])
def test_what_is_so_anyway_is_accepted(store: GraphStore, value: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        make(store, subgraph_type=value, directed=True, is_sorted=True, disjoint=False)


def test_the_documentation_has_every_argument() -> None:
    text = (Path(__file__).parents[2] / "docs/training.md").read_text()
    table = text.split("### Coming from PyG")[1].split("### ")[0]
    for name in (*loader_arguments._IGNORED, *loader_arguments._ACCEPTED):
        assert f"`{name}`" in table, name
    for name in loader_arguments._REFUSED:
        assert f"`{name}`" in table, name


# What is refused


@pytest.mark.parametrize(
    ("argument", "value", "sentence"),
    [
        ("subgraph_type", SubgraphType.induced, "'induced' cannot be used: .*ShaDowLoader"),
        ("subgraph_type", "bidirectional", "'bidirectional' cannot be used: .*ShaDowLoader"),
        ("directed", False, "False cannot be used: .*ShaDowLoader"),
        ("disjoint", True, "True cannot be used: .*ShaDowLoader"),
        ("time_attr", "time", "'time' cannot be used: .*not there yet"),
        ("input_time", torch.ones(300), "a Tensor cannot be used: .*not there yet"),
        ("temporal_strategy", "last", "'last' cannot be used: .*not there yet"),
        ("weight_attr", "weight", "'weight' cannot be used: .*not there yet"),
        ("generator", torch.Generator(), "a Generator cannot be used: .*seed="),
        ("sampler", range(3), "a range cannot be used: .*outcrop.loader.lightning"),
        ("batch_sampler", np.ones(3), "a ndarray cannot be used"),
        ("collate_fn", print, "a builtin_function_or_method cannot be used: use transform="),
        ("node_idx", torch.ones(300).bool(), "a Tensor cannot be used: give input_nodes="),
    ],
)
def test_what_would_change_batches_is_refused(
    store: GraphStore, argument: str, value: Any, sentence: str
) -> None:
    with pytest.raises(OptionError, match=f"{argument}={sentence}"):
        make(store, **{argument: value})


def test_siblings_say_what_they_share(store: GraphStore) -> None:
    loader = make(store)
    for name, value in {"memory": "1GB", "num_neighbors": [1], "replace": True}.items():
        with pytest.raises(OptionError, match=f"{name} is shared with the sibling"):
            loader.sibling("val", **{name: value})
    with pytest.raises(OptionError, match="batch_sampler=a list"):
        loader.sibling("val", batch_sampler=[1])
    with pytest.raises(TypeError, match="NeighborLoader has no argument 'fanout'"):
        loader.sibling("val", fanout=3)


# Names of the package


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("LinkNeighborLoader", "not there yet: .*NeighborLoader and outcrop.ShaDowLoader"),
        ("HGTLoader", "not there yet"),
        ("ClusterLoader", "not there yet"),
        ("GraphSAINTNodeSampler", "not there yet"),
        ("ShaDowKHopSampler", "outcrop.ShaDowLoader"),
        ("DataLoader", "outcrop.NeighborLoader"),
        ("nonsense", "has no attribute 'nonsense'"),
    ],
)
def test_loaders_that_are_not_there_say_so(name: str, sentence: str) -> None:
    assert not hasattr(outcrop, name)
    with pytest.raises(AttributeError, match=sentence):
        getattr(outcrop, name)


def test_no_loader_of_pyg_is_left_without_a_word() -> None:
    import torch_geometric.loader

    for name in torch_geometric.loader.__all__:
        if re.search("Loader|Sampler", name) and not hasattr(outcrop, name):
            with pytest.raises(AttributeError, match=f"outcrop.{name} is not there"):
                getattr(outcrop, name)


def test_lightnings_name_of_pyg_is_explained() -> None:
    from outcrop.loader import lightning

    assert not hasattr(lightning, "LightningNodeData")
    with pytest.raises(AttributeError, match="StoreDataModule"):
        _ = lightning.LightningNodeData


def test_a_data_module_names_its_wrong_arguments_at_once(store: GraphStore) -> None:
    with pytest.raises(TypeError, match="no argument 'input_train_nodes'"):
        StoreDataModule(store, [2], input_train_nodes=[1])
    with pytest.raises(OptionError, match=r"input_nodes=.*train, val and test"):
        StoreDataModule(store, [2], input_nodes="train")
    with pytest.raises(OptionError, match="count per hop"):
        StoreDataModule(store, 10)  # type: ignore[arg-type]
