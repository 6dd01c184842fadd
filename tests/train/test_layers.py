"""Layers of a batch: the same logits and gradients as the model's own forward pass."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch_geometric.data import Data
from torch_geometric.nn import GATConv, GCNConv, SAGEConv
from torch_geometric.nn.models import GAT, GCN, GIN, GraphSAGE

import outcrop
from outcrop.errors import OptionError
from outcrop.loader import NeighborLoader
from outcrop.store.store import GraphStore
from outcrop.train import TrainOptions, make_model
from outcrop.train.dropout import dropout
from outcrop.train.layered import as_layered, mixes_nodes, run_layers
from outcrop.train.layers import layers_of, whole
from outcrop.train.models import seed_logits
from tests.stores import make_random_store

MODELS: dict[str, Any] = {"sage": GraphSAGE, "gcn": GCN, "gat": GAT, "gin": GIN}
DIM, CLASSES = 6, 5


@st.composite
def batches(draw: st.DrawFn) -> Data:
    """As NeighborLoader makes them: hops of nodes, and for each hop edges sorted by target.

    Targets without edges, loops, double edges and hops that found nothing are among them.
    """
    hops = draw(st.integers(1, 4))
    nodes = [draw(st.integers(1, 4))]
    sources: list[int] = []
    targets: list[int] = []
    edges = []
    first = 0
    for _ in range(hops):
        known = sum(nodes)
        nodes.append(draw(st.integers(0, 6)) if nodes[-1] else 0)
        count = 0
        for target in range(first, known):
            found = draw(st.lists(st.integers(0, known + nodes[-1] - 1), max_size=4))
            sources += found
            targets += [target] * len(found)
            count += len(found)
        edges.append(count)
        first = known
    generator = torch.Generator().manual_seed(draw(st.integers(0, 1000)))
    return Data(
        x=torch.randn(sum(nodes), DIM, generator=generator),
        edge_index=torch.tensor([sources, targets], dtype=torch.int64).view(2, -1),
        num_sampled_nodes=nodes,
        num_sampled_edges=edges,
        batch_size=nodes[0],
    )


Results = tuple[torch.Tensor, torch.Tensor, list[torch.Tensor]]


def results(
    model: nn.Module, batch: Data, forward: Callable[[torch.Tensor], torch.Tensor]
) -> Results:
    """The logits, and gradients of their squares' mean."""
    model.zero_grad()
    x = batch.x.to(next(model.parameters()).dtype).requires_grad_()
    out = forward(x)
    out.square().mean().backward()  # type: ignore[no-untyped-call]
    assert x.grad is not None
    return out, x.grad, [p.grad.clone() for p in model.parameters() if p.grad is not None]


def assert_same(model: nn.Module, batch: Data) -> None:
    """Layer by layer as by the model's own forward pass, without dropout."""
    own = results(model, batch, lambda x: model(x, batch.edge_index)[: batch.batch_size])
    layered = as_layered(model)
    assert layered is not None and not mixes_nodes(model)
    layers = layers_of(batch, layered.num_layers)
    found = results(model, batch, lambda x: run_layers(layered, x, layers))
    assert_close(own, found)


def assert_close(own: Results, found: Results) -> None:
    wide = own[0].dtype == torch.float64
    rtol = 1e-10 if wide else 1e-5
    torch.testing.assert_close(found[0], own[0], atol=1e-12 if wide else 1e-5, rtol=rtol)
    for one, other in zip((own[1], *own[2]), (found[1], *found[2]), strict=True):
        torch.testing.assert_close(other, one, atol=1e-12 if wide else 1e-6, rtol=rtol)


@settings(max_examples=60, deadline=None)
@given(
    batch=batches(),
    name=st.sampled_from(sorted(MODELS)),
    layers=st.integers(1, 5),
    jk=st.sampled_from([None, "last", "cat", "max", "lstm"]),
    norm=st.sampled_from([None, nn.LayerNorm(8)]),
    act_first=st.booleans(),
    wide=st.booleans(),
)
def test_pygs_models_say_the_same_of_the_seeds(
    batch: Data, name: str, layers: int, jk: str | None, norm: Any, act_first: bool, wide: bool
) -> None:
    torch.manual_seed(0)
    more = {"heads": 4} if name == "gat" else {}
    out_channels = CLASSES if name != "gat" or jk else 8
    model = MODELS[name](DIM, 8, layers, out_channels, jk=jk, norm=norm, act_first=act_first,
                         **more)  # fmt: skip
    assert_same(model.double() if wide else model, batch)


@settings(max_examples=30, deadline=None)
@given(
    batch=batches(),
    model=st.sampled_from(["sage", "gcn", "gat", "gin"]),
    layers=st.integers(1, 5),
    normalize_rows=st.booleans(),
)
def test_so_do_residual_models(batch: Data, model: Any, layers: int, normalize_rows: bool) -> None:
    torch.manual_seed(0)
    options = TrainOptions(model=model, layers=layers, hidden=8, dropout=0, residual=True,
                           normalize_rows=normalize_rows)  # fmt: skip
    assert_same(make_model(options, DIM, CLASSES).double(), batch)


@pytest.mark.parametrize("kind", ["sage", "gcn", "gat", "gin"])
def test_a_residual_model_is_made_of_pygs_convolutions(kind: Any) -> None:
    torch.manual_seed(0)
    model: Any = make_model(
        TrainOptions(model=kind, layers=3, hidden=8, dropout=0, residual=True), DIM, CLASSES
    )
    x, edges = torch.randn(30, DIM), torch.randint(0, 30, (2, 90))
    states = model.encoder(x).relu()
    for norm, conv, mixer in zip(model.norms, model.convs, model.mixers, strict=True):
        states = states + mixer(conv(norm(states), edges).relu())
    expected = model.decoder(model.norm(states))
    torch.testing.assert_close(model(x, edges), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    "make",
    [
        lambda: GraphSAGE(DIM, 8, 2, 3, aggr="max"),
        lambda: GraphSAGE(DIM, 8, 2, 3, project=True),
        lambda: GraphSAGE(DIM, 8, 2, 3, normalize=True, root_weight=False),
        lambda: GraphSAGE(DIM, 8, 2, 3, bias=False),
        lambda: GAT(DIM, 8, 2, 3, heads=2, concat=False),
        lambda: GAT(DIM, 8, 2, 8, heads=2, add_self_loops=False),
        lambda: GAT(DIM, 8, 2, 8, heads=4, residual=True, negative_slope=0.5),
        lambda: GCN(DIM, 8, 2, 3, bias=False),
        lambda: GIN(DIM, 8, 2, 3, train_eps=True, eps=0.3),
    ],
)
def test_so_do_pygs_models_with_other_options(make: Callable[[], nn.Module]) -> None:
    torch.manual_seed(0)
    for batch in sampled():
        assert_same(make().double(), batch)


@pytest.mark.parametrize(
    "make",
    [
        lambda: GCN(DIM, 8, 2, 3, improved=True),
        lambda: GCN(DIM, 8, 2, 3, add_self_loops=False),
        lambda: GAT(DIM, 8, 2, 8, heads=2, v2=True),
        lambda: GraphSAGE(DIM, 8, 2, 3, norm="batch_norm"),
        lambda: GraphSAGE(DIM, 8, 2, 3, norm="layer_norm"),  # PyG's is over all nodes of a batch
        lambda: nn.Linear(DIM, 3),
    ],
)
def test_models_that_are_not_known_to_be_layered_run_as_they_are(
    make: Callable[[], nn.Module],
) -> None:
    model = make()
    assert as_layered(model) is None or mixes_nodes(model)
    if isinstance(model, nn.Linear):
        return
    for batch in sampled():
        model.train()
        assert seed_logits(model, batch.clone()).shape == (batch.batch_size, model.out_channels)


def sampled() -> Iterator[Data]:
    torch.manual_seed(1)
    for nodes, edges in (([3, 9, 20], [12, 40]), ([2, 0, 0], [0, 0])):
        parts: list[torch.Tensor] = []
        known, first = 0, 0
        for count, found in zip(edges, nodes, strict=False):
            known += found
            parts.append(torch.stack([
                torch.randint(0, known + nodes[len(parts) + 1], (count,)),
                torch.randint(first, max(known, first + 1), (count,)).sort().values,
            ]))  # fmt: skip
            first = known
        edge_index = torch.cat(parts, dim=1)
        edge_index[0, :1] = edge_index[1, :1]  # a loop
        yield Data(x=torch.randn(sum(nodes), DIM), edge_index=edge_index, batch_size=nodes[0],
                   num_sampled_nodes=nodes, num_sampled_edges=edges)  # fmt: skip


# Batches of the loader


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> GraphStore:
    path = tmp_path_factory.mktemp("layers") / "g.outcrop"
    return make_random_store(path, 400, 3000, dim=DIM, train=60)


@pytest.mark.parametrize("options", [{}, {"replace": True}])
def test_the_first_layer_has_all_and_the_last_one_the_seeds(
    store: GraphStore, options: dict[str, Any]
) -> None:
    seeds = [5, 9, 9, 30, 5, 2]  # twins have neighbours of their own
    for batch in NeighborLoader(store, [4, 3, 2], seeds, batch_size=4, **options):
        layers = outcrop.layers_of(batch)
        assert layers[0].sources == batch.num_nodes and layers[-1].targets == batch.batch_size
        assert layers[0].edge_index.shape == batch.edge_index.shape
        for layer, after in pairwise(layers):
            assert layer.targets == after.sources
        for layer in layers:
            assert bool((layer.edge_index[1].diff() >= 0).all())
            assert int(layer.edge_index[1].max()) < layer.targets
            assert int(layer.edge_index[0].max()) < layer.sources
            counts = torch.bincount(layer.edge_index[1], minlength=layer.targets)
            assert torch.equal(layer.offsets.diff(), counts)
        assert_same(GraphSAGE(DIM, 8, 3, 4).double(), batch)


def test_gcn_with_a_hop_more_sees_the_sampled_degrees(store: GraphStore) -> None:
    loader = NeighborLoader(store, [4, 3, 2], "train", batch_size=20)
    for batch in loader:
        assert_same(GCN(DIM, 8, 2, 4).double(), batch)
        first = layers_of(batch, 2)[0]
        assert first.sources < batch.num_nodes
        degrees = first.in_degrees()
        assert bool((degrees[: first.sources] > 0).any()), "of the nodes that the hop more is for"


def test_sums_of_edges_that_are_not_sorted_are_refused() -> None:
    batch = Data(x=torch.ones(3, 1), edge_index=torch.tensor([[1, 2], [1, 0]]),
                 num_sampled_nodes=[2, 1], num_sampled_edges=[2])  # fmt: skip
    (layer,) = layers_of(batch)
    with pytest.raises(OptionError, match="sorted by target"):
        layer.mean(batch.x)
    assert whole(batch.edge_index, 3).sum(batch.x).flatten().tolist() == [1, 1, 0]


def test_batches_without_hops_have_no_layers() -> None:
    with pytest.raises(OptionError, match="hop by hop"):
        layers_of(Data(x=torch.ones(3, 1), edge_index=torch.zeros(2, 0, dtype=torch.int64)))


@pytest.mark.parametrize("given", [Data(x=torch.ones(3, DIM)), torch.ones(3, DIM)])
def test_logits_are_those_of_a_loaders_batch(given: Any) -> None:
    with pytest.raises(OptionError, match="takes a batch of a loader"):
        outcrop.seed_logits(GraphSAGE(DIM, 8, 2, 3), given)


def test_a_model_of_ones_own_is_given_the_layers(store: GraphStore) -> None:
    class Own(nn.Module):
        num_layers = 2

        def __init__(self) -> None:
            super().__init__()
            self.convs = nn.ModuleList([SAGEConv(DIM, 8), GATConv(8, 3)])

        def forward(self, x: torch.Tensor, edge_index: torch.Tensor) -> torch.Tensor:
            raise AssertionError("the layers are there")

        def forward_layers(self, x: torch.Tensor, layers: list[Any]) -> torch.Tensor:
            for conv, layer in zip(self.convs, layers, strict=True):
                x = conv((x, x[: layer.targets]), layer.edge_index).relu()
            return x

    for batch in NeighborLoader(store, [4, 3], "train", batch_size=20):
        assert seed_logits(Own(), batch).shape == (batch.batch_size, 3)


def test_gcn_takes_no_pairs_which_is_why_it_has_its_own_way() -> None:
    """If this fails, PyG's own way will do."""
    with pytest.raises(ValueError, match="tuple"):
        GCNConv(2, 2)((torch.ones(3, 2), torch.ones(1, 2)), torch.tensor([[1], [0]]))


# Dropout


@pytest.mark.parametrize("p", [0.1, 0.5, 0.93])
def test_dropout_keeps_the_mean_and_its_gradient_is_its_mask(p: float) -> None:
    torch.manual_seed(0)
    x = torch.ones(1001, 333, requires_grad=True)
    out = dropout(x, p, training=True)
    kept = out != 0
    assert abs(float(kept.float().mean()) - (1 - p)) < 0.003
    assert torch.allclose(out[kept], torch.tensor(1 / (1 - p)), rtol=1e-3)
    # Neighbouring values are independent: they share a draw of 64 bits.
    both = (kept[:, 1:] & kept[:, :-1]).float().mean()
    assert abs(float(both) - (1 - p) ** 2) < 0.003
    out.sum().backward()  # type: ignore[no-untyped-call]
    assert x.grad is not None and torch.equal(x.grad, out.detach())


def test_dropout_repeats_itself_from_the_same_state() -> None:
    x = torch.randn(37, 5)
    state = torch.get_rng_state()
    first = dropout(x, 0.5, training=True)
    torch.set_rng_state(state)
    assert torch.equal(first, dropout(x, 0.5, training=True))
    assert not torch.equal(first, dropout(x, 0.5, training=True))
    assert dropout(x, 0.5, training=False) is x and dropout(x, 0, training=True) is x
