"""Embeddings that are used again: whose they are and how old, what a model makes of them, and that
a run which was ended goes on with them."""

from __future__ import annotations

import random
import shutil
import subprocess
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch_geometric.nn import GCNConv, SAGEConv
from torch_geometric.nn.models import GAT, GCN, GraphSAGE

import outcrop
from outcrop.errors import CorruptError, HistoryError, OptionError, ReadError, StoreError
from outcrop.ingest.synthetic import SynthOptions, synthesise
from outcrop.loader import NeighborLoader
from outcrop.options import parse_size
from outcrop.sample.history import NEVER
from outcrop.store.store import GraphStore
from outcrop.strategies import strategy_named
from outcrop.train import TrainOptions, fit, load_checkpoint, loop, make_model
from outcrop.train.checkpoint import save_checkpoint
from outcrop.train.layered import as_layered, run_layers
from outcrop.train.layers import Layer, layers_of
from outcrop.train.models import seed_labels
from tests.cage import OUTCROP
from tests.conftest import SOAK
from tests.damage import overwrite
from tests.graphs import random_graph
from tests.stores import make_store, smallest_memory
from tests.train.test_loop import FLAGS, SMALL, StopAt, run, weights_hash

DIM = 6


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("history") / "g.outcrop"
    make_store(folder, random_graph(1200, 9000), dim=DIM, train=400).close()
    return folder


@pytest.fixture
def store(path: Path) -> Iterator[GraphStore]:
    with GraphStore(path) as opened:
        yield opened


def opened(store: GraphStore, history: Any, **more: Any) -> NeighborLoader:
    options: dict[str, Any] = {
        "num_neighbors": [4, 4], "input_nodes": "train", "batch_size": 25, "shuffle": True,
        "strategy": "memory", "memory": "300MB", **more,
    }  # fmt: skip
    return NeighborLoader(store, history=unrounded(history), **options)


def unrounded(history: Any) -> Any:
    """The same, kept as they are pushed, unless it says how they are kept."""
    if isinstance(history, tuple):
        return unrounded(history[0]), history[1]
    return history if history is None or "dtype=" in history else f"{history}:dtype=float32"


# Whose they are, and how old


class Checking(nn.Module):
    """Pushes rows that say whose they are and of when, and looks at all that it pulls."""

    def __init__(self, store: GraphStore, candidates: np.ndarray[Any, Any], staleness: int) -> None:
        super().__init__()
        self._in_degrees = np.diff(store.indptr)
        self._is_candidate = np.isin(np.arange(store.num_nodes), candidates)
        self._staleness = staleness
        self._pushed: dict[int, int] = {}
        self.batch: Any = None
        self.iteration = 0
        self.pulled = self.stale = 0

    def forward_layers(self, x: torch.Tensor, layers: list[Layer]) -> torch.Tensor:
        batch, t = self.batch, self.iteration
        n_id, last = batch.n_id, layers[-1]
        own = layers[-2].targets
        assert own == sum(batch.num_sampled_nodes[:2])
        rows = torch.stack([n_id[:own].float(), torch.full((own,), float(t))], dim=1)
        found = last.exchange(rows)
        assert torch.equal(found[:own], rows), "a batch's own rows are as they were"
        # A row per node that the last layer reads, which are all the neighbours of the seeds.
        assert len(found) == last.sources
        sources, targets = last.edge_index
        assert not len(sources) or int(sources.max()) < len(found)
        assert bool((targets < batch.batch_size).all())
        self._check_expanded(batch, own)
        self._check_pulled(n_id[own : len(found)].tolist(), found[own:].tolist(), t)
        for node in n_id[:own][self._is_candidate[n_id[:own].numpy()]].tolist():
            self._pushed[node] = t
        return torch.zeros(last.targets, 1, requires_grad=True)

    def _check_pulled(self, nodes: list[int], rows: list[list[float]], t: int) -> None:
        for node, (whose, since) in zip(nodes, rows, strict=True):
            assert whose == node, "a row of another node"
            assert since == self._pushed[node], "not the last one that was pushed"
            assert t - since < self._staleness, "a stale row"
        self.pulled += len(nodes)

    def _check_expanded(self, batch: Any, own: int) -> None:
        """What is not pulled has all that the second hop draws of its neighbours; what is fresh
        is pulled."""
        fanout = batch.fanouts[1]
        n_id, seeds = batch.n_id.numpy(), batch.batch_size
        ends = np.bincount(batch.edge_index[1].numpy(), minlength=len(n_id))
        degrees = self._in_degrees[n_id[seeds:own]]
        wanted = degrees if fanout < 0 else np.minimum(degrees, fanout)
        assert np.array_equal(ends[seeds:own], wanted), "pruned, and not pulled"
        for node in n_id[seeds:own].tolist():
            since = self._pushed.get(node)
            assert since is None or self.iteration - since >= self._staleness, "was fresh"


STRATEGIES = ["memory", "direct", "ginex", "ginex:superbatch=7", "outre", "outre:superbatch=5"]


@pytest.mark.parametrize("seed", range(200 if SOAK else 10))
def test_every_row_is_the_nodes_own_and_fresh_and_nobody_is_left_out(
    store: GraphStore, seed: int
) -> None:
    """200 batches of each of some random loaders: 2,000 in all."""
    rng = np.random.default_rng(seed)
    strategy = STRATEGIES[seed % len(STRATEGIES)]
    staleness = int(rng.choice([1, 2, 3, 7, 20, 100]))
    fanouts = rng.choice([2, 4, 6, -1], int(rng.integers(2, 4)), p=[0.3, 0.3, 0.3, 0.1]).tolist()
    candidates = rng.permutation(store.num_nodes)[: int(rng.integers(50, 1201))]
    options: dict[str, Any] = {
        "num_neighbors": fanouts, "batch_size": 20, "strategy": strategy, "seed": seed,
        "epochs": [None, 10][int(rng.integers(0, 2))], "batching": "random",
    }  # fmt: skip

    def make(memory: Any) -> NeighborLoader:
        return opened(store, (f"width=2:staleness={staleness}", candidates),
                      **{**options, "memory": memory})  # fmt: skip

    least = parse_size(smallest_memory(make))
    loader = make(least + int(rng.choice([0, 50_000, 1_000_000, 100_000_000])))
    model = Checking(store, candidates, staleness)
    for _ in range(10):
        for batch in loader:
            model.batch = batch
            batch.fanouts = fanouts
            outcrop.seed_logits(model, batch)
            model.iteration += 1
            model.batch = None
            del batch
    assert model.iteration == 200
    epochs = loader.record.epochs
    assert sum(epoch.pulled for epoch in epochs) == model.pulled
    assert (model.pulled > 0) == (staleness > 1)
    loader.close()


def test_candidates_that_are_chosen_are_used_again(store: GraphStore) -> None:
    """By a share of memory, and by what a profile says that they save."""
    for strategy in ("memory", "ginex", "outre"):
        for some in ("share=0.5", "nodes=100", "metric=degree", "share=0"):
            loader = opened(store, f"width=2:{some}", strategy=strategy, memory="100MB", epochs=2)
            assert loader.history is not None
            candidates = loader.history.table.nodes
            assert (len(candidates) == 0) == (some == "share=0")
            assert loader.record.plan["embeddings"] == len(candidates)
            assert some != "nodes=100" or len(candidates) == 100
            model = Checking(store, candidates, 100)
            for batch in loader:
                model.batch = batch
                batch.fanouts = [4, 4]
                outcrop.seed_logits(model, batch)
                model.iteration += 1
                model.batch = None
                del batch
            assert (model.pulled > 0) == (some != "share=0")
            loader.close()


# What is noticed


def chosen(store: GraphStore, width: int = 8, staleness: int = 100) -> str:
    return f"width={width}:staleness={staleness}:nodes={store.num_nodes}:metric=degree"


@pytest.mark.parametrize("strategy", ["memory", "ginex", "outre"])
def test_a_batch_that_is_skipped_is_noticed(store: GraphStore, strategy: str) -> None:
    """By the first one that counts on it."""
    loader = opened(store, chosen(store), strategy=strategy, batching="random")
    model = GraphSAGE(DIM, 8, 2, 4)
    told = r"iteration 3 counts on the embedding of node \d+ of iteration 2, and .* is there"
    with pytest.raises(HistoryError, match=told):
        for number, batch in enumerate(loader):
            if number != 2:
                outcrop.seed_logits(model, batch)
    loader.close()


def test_a_step_that_gives_nan_is_noticed_and_none_of_it_is_kept(store: GraphStore) -> None:
    loader, model = opened(store, chosen(store)), GraphSAGE(DIM, 8, 2, 4)
    assert loader.history is not None
    with pytest.raises(HistoryError, match=r"of iteration 3, and none is there"):
        for number, batch in enumerate(loader):
            if number == 3:
                batch.x = torch.full_like(batch.x, torch.nan)
            outcrop.seed_logits(model, batch)
            if number == 3:
                slots = batch.history.reuse.pushed_slots
                assert (loader.history.table.stored[slots] == NEVER).all()
                state = loader.history.state_dict()
                assert bool(state["rows"].isfinite().all())
    # What is not there is not counted on by the next loop.
    for batch in loader:
        logits = outcrop.seed_logits(model, batch)
        assert bool(logits.isfinite().all())


def test_rows_that_are_not_finite_are_left_out_alone(store: GraphStore) -> None:
    loader = opened(store, chosen(store, 2))
    assert loader.history is not None
    batch = next(iter(loader))
    reuse = batch.history.reuse
    rows = torch.zeros(sum(batch.num_sampled_nodes[:2]), 2)
    rows[0, 1], rows[1, 0] = torch.nan, torch.inf
    batch.history.exchange(rows)
    stored = loader.history.table.stored[reuse.pushed_slots]
    assert stored.tolist() == [NEVER if place < 2 else 0 for place in reuse.pushed]


class Plain(nn.Module):
    """A model of one's own that knows nothing of embeddings."""

    def __init__(self) -> None:
        super().__init__()
        self.convs = nn.ModuleList([SAGEConv(DIM, 8), SAGEConv(8, 4)])

    def forward(self, x: torch.Tensor, edge_index: torch.Tensor) -> torch.Tensor:
        for conv in self.convs:
            x = conv(x, edge_index)
        return x


class WithoutExchange(Plain):
    def forward_layers(self, x: torch.Tensor, layers: list[Layer]) -> torch.Tensor:
        for conv, layer in zip(self.convs, layers, strict=True):
            x = conv((x, x[: layer.targets]), layer.edge_index).relu()
        return x


class WithExchange(Plain):
    def forward_layers(self, x: torch.Tensor, layers: list[Layer]) -> torch.Tensor:
        for number, (conv, layer) in enumerate(zip(self.convs, layers, strict=True)):
            x = layer.exchange(x) if number else x
            x = conv((x, x[: layer.targets]), layer.edge_index).relu()
        return x


def test_a_model_that_calls_exchange_has_a_history(store: GraphStore) -> None:
    loader, model = opened(store, chosen(store)), WithExchange()
    pulled = 0
    for batch in loader:
        assert outcrop.seed_logits(model, batch).shape == (batch.batch_size, 4)
        pulled += batch.history.pulled
    assert pulled > 0


def test_a_model_without_the_hook_is_noticed_at_the_first_batch(store: GraphStore) -> None:
    for model, told in (
        (WithoutExchange(), r"forward_layers does not call x = layer\.exchange\(x\)"),
        (Plain(), "Plain has no hook between its layers"),
        (GAT(DIM, 8, 2, 4, v2=True), "GAT has no hook between its layers"),
        (GCN(DIM, 8, 2, 4, improved=True), "GCN has no hook between its layers"),
        (GraphSAGE(DIM, 8, 2, 4, norm="layer_norm"), "has no hook"),
        (GraphSAGE(DIM, 8, 2, 4, norm="batch_norm"), "batch normalisation is over all nodes"),
        (GraphSAGE(DIM, 8, 1, 4), "two layers at least"),
    ):
        with pytest.raises(OptionError, match=told):
            outcrop.seed_logits(model, next(iter(opened(store, chosen(store)))))


@pytest.mark.parametrize("staleness", [2, 3, 100])
def test_a_loop_that_does_not_exchange_is_noticed(store: GraphStore, staleness: int) -> None:
    """As one's own loop may be: without seed_logits, by PyG's way or by layers. Few batches count
    on one that came long before where embeddings are soon stale."""
    model, own = Plain(), WithoutExchange()
    loader = opened(store, chosen(store, staleness=staleness))
    seen = 0
    with pytest.raises(HistoryError, match=r"the model does not call layer\.exchange"):
        for batch in loader:
            seen += 1
            model(batch.x, batch.edge_index)
    assert seen <= 3
    with pytest.raises((HistoryError, IndexError)):
        for batch in opened(store, chosen(store, staleness=staleness)):
            own.forward_layers(batch.x, layers_of(batch))


def test_a_loop_may_fetch_batches_before_it_trains_on_them(store: GraphStore) -> None:
    """Two of them, in every loop anew."""
    loader, model = opened(store, chosen(store, staleness=2)), WithExchange()
    for _ in range(2):
        fetched = deque[Any]()
        for batch in loader:
            fetched.append(batch)
            if len(fetched) == 2:
                outcrop.seed_logits(model, fetched.popleft())
        outcrop.seed_logits(model, fetched.popleft())


def test_embeddings_of_another_width_are_refused(store: GraphStore) -> None:
    with pytest.raises(OptionError, match=r"the width is 7, and .* last layer has 8"):
        outcrop.seed_logits(
            GraphSAGE(DIM, 8, 2, 4), next(iter(opened(store, chosen(store, width=7))))
        )


# What a model makes of them


def own_conv(
    conv: Any, x: torch.Tensor, edges: torch.Tensor, degrees: torch.Tensor
) -> torch.Tensor:
    """PyG's convolution over a graph; `degrees`: in-edges of its nodes, where GCN is to use these
    in place of its own."""
    if not isinstance(conv, GCNConv):
        out: torch.Tensor = conv(x, edges)
        return out
    source, target = edges[:, edges[0] != edges[1]]
    scale = (degrees + 1).rsqrt()
    rows = conv.lin(x)
    out = rows * scale.square()[:, None]
    out = out.index_add(0, target, rows[source] * (scale[source] * scale[target])[:, None])
    return out if conv.bias is None else out + conv.bias


def in_degrees(batch: Any) -> torch.Tensor:
    """Of a batch's nodes, loops not counted."""
    source, target = batch.edge_index
    counts: torch.Tensor = torch.bincount(target[source != target], minlength=len(batch.n_id))
    return counts.float()


class TwoGraphs:
    """The slow way: all layers but the last over the whole batch; then the last one over the edges
    that end at seeds, with rows of pulled nodes in their places."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self._kept: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self.pulled = 0

    def logits(self, batch: Any, candidates: set[int]) -> torch.Tensor:
        edges, n_id, seeds = batch.edge_index, batch.n_id.tolist(), batch.batch_size
        degrees, states = in_degrees(batch), self.states(batch)
        x = states[-1]
        own = sum(batch.num_sampled_nodes[:2])
        to_seeds = edges[:, edges[1] < seeds]
        pulled = [place for place in sorted(set(to_seeds[0].tolist())) if place >= own]
        kept = [self._kept[n_id[place]] for place in pulled]
        self.pulled += len(pulled)
        spliced, with_degrees = x.clone(), degrees.clone()
        spliced[own:] = 1e6  # which nothing may depend on
        if pulled:
            spliced[pulled] = torch.stack([row for row, _ in kept])
            with_degrees[pulled] = torch.stack([degree for _, degree in kept])
        out = self._last(spliced, to_seeds, with_degrees, states, seeds)
        seen = set()
        for place, node in enumerate(n_id[:own]):
            if node in candidates and node not in seen:
                self._kept[node] = x[place].detach().clone(), degrees[place].clone()
                seen.add(node)
        return out

    def states(self, batch: Any) -> list[torch.Tensor]:
        """What each layer but the last made of all nodes, the input of the first before them."""
        model, x, edges, degrees = self._model, batch.x, batch.edge_index, in_degrees(batch)
        if hasattr(model, "encoder"):
            x = model.encoder(x).relu()
        states = [x]
        for index in range(model.num_layers - 1):
            states.append(self._layer(index, states[-1], edges, degrees))
        return states

    def _layer(
        self, index: int, x: torch.Tensor, edges: torch.Tensor, degrees: torch.Tensor
    ) -> torch.Tensor:
        model = self._model
        if hasattr(model, "encoder"):
            found = own_conv(model.convs[index], model.norms[index](x), edges, degrees)
            out: torch.Tensor = x + model.mixers[index](found.relu())
            return out
        x = own_conv(model.convs[index], x, edges, degrees)
        if index == model.num_layers - 1 and model.jk_mode is None:
            return x
        made: torch.Tensor = model.norms[index](x)
        return made.relu()

    def _last(
        self,
        x: torch.Tensor,
        edges: torch.Tensor,
        degrees: torch.Tensor,
        states: list[torch.Tensor],
        seeds: int,
    ) -> torch.Tensor:
        model = self._model
        x = self._layer(model.num_layers - 1, x, edges, degrees)[:seeds]
        out: torch.Tensor
        if hasattr(model, "encoder"):
            out = model.decoder(model.norm(x))
            return out
        if model.jk_mode is None:
            return x
        out = model.lin(model.jk([*(state[:seeds] for state in states[1:]), x]))
        return out


MODELS: list[dict[str, Any]] = [
    *({"model": kind} for kind in ("sage", "gat", "gin", "gcn")),
    *({"model": kind, "layers": 3} for kind in ("sage", "gcn", "gat")),
    {"model": "sage", "layers": 4},
    {"model": "gin", "layers": 3, "jk": "cat"},
    {"model": "sage", "jk": "max"},
    {"model": "gcn", "layers": 3, "jk": "max", "norm": "layer"},
    *({"model": kind, "residual": True, "layers": 3} for kind in ("sage", "gcn", "gat")),
    {"model": "sage", "hops": 3},
    {"model": "gcn", "hops": 3},
    {"model": "gat", "layers": 3, "hops": 4},
    {"model": "gcn", "residual": True, "hops": 3},
    {"model": "sage", "norm": "layer", "normalize_rows": True},
]


@pytest.mark.parametrize(
    "options", MODELS, ids=lambda options: "-".join(map(str, options.values()))
)
def test_logits_and_gradients_are_those_of_two_graphs(
    store: GraphStore, options: dict[str, Any]
) -> None:
    options = {"layers": 2, **options}
    hops = options.pop("hops", options["layers"])
    normalized = options.pop("normalize_rows", False)
    torch.manual_seed(0)
    made = TrainOptions(hidden=8, dropout=0, normalize_rows=normalized, **options)
    model: Any = make_model(made, DIM, 8)
    inner = model.model if normalized else model
    candidates = np.arange(0, 1200, 2)
    options_of_history = "width=8:staleness=7:gradients=none"
    loader = opened(store, (options_of_history, candidates), num_neighbors=[3] * hops)
    reference, known = TwoGraphs(inner), set(candidates.tolist())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    losses = nn.CrossEntropyLoss()
    for batch in loader:
        plain = batch.clone()
        if normalized:
            plain.x = nn.functional.normalize(plain.x, p=1.0)
        expected = reference.logits(plain, known)
        wanted = torch.autograd.grad(losses(expected, seed_labels(batch)), list(model.parameters()),
                                     allow_unused=True)  # fmt: skip
        optimizer.zero_grad()
        logits = outcrop.seed_logits(model, batch)
        torch.testing.assert_close(logits, expected, atol=1e-4, rtol=1e-4)
        losses(logits, seed_labels(batch)).backward()
        for one, parameter in zip(wanted, model.parameters(), strict=True):
            if one is None:
                assert parameter.grad is None
            else:
                torch.testing.assert_close(parameter.grad, one, atol=1e-4, rtol=1e-4)
        optimizer.step()
    assert reference.pulled > 100
    assert sum(epoch.pulled for epoch in loader.record.epochs) == reference.pulled


def test_rows_are_kept_as_copies_and_no_gradient_flows_unless_it_may(store: GraphStore) -> None:
    loader = opened(store, f"{chosen(store, 2)}:gradients=none")
    assert loader.history is not None
    for batch in loader:
        before = loader.history.state_dict()["rows"]
        assert not before.requires_grad
        rows = torch.randn(sum(batch.num_sampled_nodes[:2]), 2, requires_grad=True)
        found = batch.history.exchange(rows)
        assert len(found) == len(rows) + batch.history.pulled
        found.square().sum().backward()
        torch.testing.assert_close(rows.grad, 2 * rows)
        pushed = rows.detach().clone()
        with torch.no_grad():
            rows.zero_()  # what is kept is a copy
        state = loader.history.state_dict()
        mine = state["pushed"] == batch.history.reuse.iteration
        assert torch.equal(state["rows"][mine], pushed[by_slot(batch)])


@pytest.mark.parametrize("pieces", [1, 2])
@pytest.mark.parametrize("place", ["host", "device"])
def test_the_gradient_of_a_pulled_row_comes_with_the_next_push(
    store: GraphStore, place: str, pieces: int
) -> None:
    """Whoever pulled it, and in how many backward passes; what is not finite is left out."""
    history = f"{chosen(store, 3, staleness=4)}:place={place}"
    loader = opened(store, history, device="cpu")
    assert loader.history is not None
    owed = torch.zeros(store.num_nodes, 3)
    generator = torch.Generator().manual_seed(0)
    delivered = dropped = 0
    for batch in loader:
        own = sum(batch.num_sampled_nodes[:2])
        n_id, pulled = batch.n_id, batch.history.pulled
        rows = torch.randn(own, 3, requires_grad=True, generator=generator)
        found = batch.history.exchange(rows)
        gradient = torch.randn(len(found), 3, generator=generator)
        if pulled > 5:
            gradient[own + 2, 1] = torch.inf
            dropped += 1
        for _ in range(pieces):
            found.backward(gradient / pieces, retain_graph=True)
        expected = gradient[:own].clone()
        places = torch.from_numpy(batch.history.reuse.pushed.astype(np.int64))
        expected[places] += owed[n_id[places]]
        delivered += int((owed[n_id[places]] != 0).any(dim=1).sum())
        owed[n_id[places]] = 0
        late = gradient[own:]
        late[~late.isfinite().all(dim=1)] = 0
        owed[n_id[own : own + pulled]] += late
        torch.testing.assert_close(rows.grad, expected)
        state = loader.history.state_dict()
        torch.testing.assert_close(state["gradients"], owed[state["nodes"]])
    assert delivered > 50
    assert dropped > 5


def test_late_gradients_change_what_is_learnt_and_take_as_much_as_embeddings(
    store: GraphStore,
) -> None:
    """Unless a row that is pulled is all that they could have come from."""
    charges, weights = {}, {}
    for gradients in ("late", "none"):
        torch.manual_seed(0)
        model = GraphSAGE(DIM, 8, 2, 4)
        loader = opened(store, f"{chosen(store)}:gradients={gradients}")
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        for batch in loader:
            optimizer.zero_grad()
            loss = outcrop.seed_logits(model, batch).square().mean()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        charges[gradients] = loader.record.charges["embeddings"]
        weights[gradients] = weights_hash(model)
        loader.close()
    assert charges["late"] == store.num_nodes * (2 * 4 * 8 + 4)
    assert charges["none"] == store.num_nodes * (4 * 8 + 4)
    assert weights["late"] != weights["none"]


def test_a_node_that_was_pushed_as_nan_is_owed_nothing(store: GraphStore) -> None:
    loader = opened(store, chosen(store, 2, staleness=3))
    assert loader.history is not None
    owed = 0
    with pytest.raises(HistoryError):
        for batch in loader:
            rows = torch.randn(sum(batch.num_sampled_nodes[:2]), 2, requires_grad=True)
            spoilt = rows * (torch.nan if owed else 1)
            found = batch.history.exchange(spoilt)
            if owed:
                pushed = torch.from_numpy(batch.history.reuse.pushed_slots.astype(np.int64))
                assert not loader.history._gradients[pushed].any()
                continue  # without a backward pass
            found.sum().backward()
            owed = int((loader.history.state_dict()["gradients"] != 0).sum())
    assert owed


def by_slot(batch: Any) -> torch.Tensor:
    """The local ids of what a batch pushes, in the order of a state_dict."""
    reuse = batch.history.reuse
    return torch.from_numpy(reuse.pushed.astype(np.int64)[np.argsort(reuse.pushed_slots)])


@pytest.mark.parametrize("kind", ["sage", "gcn", "gin"])
def test_what_is_kept_is_before_dropout(store: GraphStore, kind: Any) -> None:
    """In training mode: of two layers, what the first one made has had no dropout before."""
    torch.manual_seed(0)
    model: Any = make_model(TrainOptions(model=kind, layers=2, hidden=8, dropout=0.5), DIM, 4)
    loader = opened(store, chosen(store))
    assert loader.history is not None and model.training
    reference = TwoGraphs(model)
    for batch in loader:
        outcrop.seed_logits(model, batch)
        state = loader.history.state_dict()
        mine = state["pushed"] == batch.history.reuse.iteration
        expected = reference.states(batch)[-1][by_slot(batch)].detach()
        torch.testing.assert_close(state["rows"][mine], expected, atol=1e-5, rtol=1e-5)


def test_pulled_rows_are_dropped_as_others_are(store: GraphStore) -> None:
    """The last layer reads them after dropout."""
    torch.manual_seed(0)
    model = GraphSAGE(DIM, 8, 2, 4, dropout=0.5)
    layered: Any = as_layered(model)
    inner, seen = layered.layer, []

    def watched(index: int, x: torch.Tensor, layer: Layer) -> torch.Tensor:
        if layer.history is not None:
            seen.append(x[len(x) - layer.history.pulled :].detach())
        out: torch.Tensor = inner(index, x, layer)
        return out

    layered.layer = watched
    for batch in opened(store, chosen(store)):
        pulled = batch.history.history.pull(batch.history.reuse, batch.x)
        run_layers(layered, batch.x, layers_of(batch))
        kept = seen[-1] != 0
        torch.testing.assert_close(seen[-1][kept], 2 * pulled[kept], atol=1e-3, rtol=1e-3)
        seen[-1] = torch.cat([kept[pulled != 0].float(), torch.empty(0)])
    share = float(torch.cat(seen).mean())
    assert abs(share - 0.5) < 0.05


def test_degrees_are_kept_with_the_embeddings(store: GraphStore) -> None:
    """Those that GCN made them with; where nobody asked for them, there are none."""
    for model in (GCN(DIM, 8, 2, 4), GraphSAGE(DIM, 8, 2, 4)):
        loader, other = opened(store, chosen(store)), opened(store, chosen(store))
        for batch in loader:
            outcrop.seed_logits(model, batch)
        assert loader.history is not None and other.history is not None
        state = loader.history.state_dict()
        assert bool(state["degrees"].isfinite().all()) == isinstance(model, GCN)
        other.history.load_state_dict(state)
        again = other.history.state_dict()
        assert state.keys() == again.keys()
        for name, kept in state.items():
            torch.testing.assert_close(again[name], kept, rtol=0, atol=0, equal_nan=True)


def test_evaluation_neither_pushes_nor_pulls(store: GraphStore) -> None:
    loader, model = opened(store, chosen(store)), GraphSAGE(DIM, 8, 2, 4, dropout=0.5)
    for batch in loader:
        outcrop.seed_logits(model, batch)
    assert loader.history is not None
    before = loader.history.state_dict()
    model.eval()
    wanted = opened(store, None)
    with torch.no_grad():
        for batch, plain in zip(loader.sibling("val", shuffle=False),
                                wanted.sibling("val", shuffle=False), strict=True):  # fmt: skip
            assert batch.get("history") is None
            assert torch.equal(outcrop.seed_logits(model, batch), outcrop.seed_logits(model, plain))
    after = loader.history.state_dict()
    for name, kept in before.items():
        torch.testing.assert_close(after[name], kept, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("kind", ["sage", "gcn"])
def test_place_device_gives_the_same(store: GraphStore, kind: Any) -> None:
    found = []
    for place in ("host", "device"):
        torch.manual_seed(0)
        model = make_model(TrainOptions(model=kind, layers=2, hidden=8, dropout=0.1), DIM, 4)
        loader = opened(store, f"{chosen(store)}:place={place}", device="cpu")
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        for batch in loader:
            optimizer.zero_grad()
            loss = outcrop.seed_logits(model, batch).square().mean()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        assert loader.history is not None
        state = loader.history.state_dict()
        found.append((weights_hash(model), weights_hash(state)))
        # Batches go to the host: so it has the embeddings, in either place.
        assert loader.record.charges["embeddings"] > 0
    assert found[0] == found[1]


# fit


@pytest.fixture(scope="module")
def learnable(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A graph with labels that can be learnt, and batches that have nodes in common."""
    path = tmp_path_factory.mktemp("fit") / "g.outcrop"
    options = SynthOptions(nodes=3000, edges=24_000, dim=16, classes=4, train_fraction=0.13)
    synthesise(path, options, memory=100_000_000)
    return path


HISTORY = "staleness=5:nodes=1500:metric=degree"
REUSING: dict[str, Any] = {**SMALL, "history": HISTORY}


@pytest.fixture
def whole(learnable: Path) -> Iterator[GraphStore]:
    with GraphStore(learnable) as opened:
        yield opened


@pytest.fixture(scope="module")
def expected(learnable: Path) -> Any:
    """A run that nobody interrupts."""
    with GraphStore(learnable) as store:
        return fit(store, TrainOptions(**REUSING))


def resumed(store: GraphStore, folder: Path, **more: Any) -> Any:
    options = {**REUSING, "checkpoint_dir": str(folder), "resume": True, **more}
    return fit(store, TrainOptions(**options))


KINDS = ["embeddings", "candidates"]


def files(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()} - {".lock"}


def embeddings_of(folder: Path) -> Path:
    (found,) = folder.glob("embeddings-*")
    return found


def test_a_run_with_embeddings_learns_and_says_so(whole: GraphStore, expected: Any) -> None:
    epochs = [epoch for epoch in expected.record.epochs if epoch.stream == "train"]
    assert all(epoch.pulled > 0 and epoch.pushed > 0 for epoch in epochs)
    assert expected.record.plan["embeddings"] == 1500
    assert expected.history[-1].loss < expected.history[0].loss
    other = fit(whole, TrainOptions(**{**REUSING, "history": "none"}))
    assert weights_hash(other.model) != weights_hash(expected.model)
    stale = fit(whole, TrainOptions(**{**REUSING, "history": "staleness=1"}))
    assert weights_hash(stale.model) == weights_hash(other.model)


@pytest.mark.parametrize("strategy", ["direct", "ginex", "gnndrive", "outre", "agnes"])
def test_strategies_train_the_same_model(whole: GraphStore, expected: Any, strategy: str) -> None:
    options = {**REUSING, "strategy": strategy, "batching": "random"}
    assert weights_hash(fit(whole, TrainOptions(**options)).model) == weights_hash(expected.model)


@pytest.mark.parametrize(("stop", "every", "strategy"), [
    (1, 1, "memory"), (8, 0, "memory"), (11, 3, "ginex"), (20, 1, "ginex:superbatch=5"),
    (11, 0, "memory"), (13, 1, "agnes"),
])  # fmt: skip
def test_an_interrupted_run_resumes_bit_by_bit(
    whole: GraphStore, expected: Any, tmp_path: Path, stop: int, every: int, strategy: str
) -> None:
    more: dict[str, Any] = {"strategy": strategy, "checkpoint_every": every}
    with pytest.raises(KeyboardInterrupt):
        fit(
            whole,
            TrainOptions(**REUSING, **more, checkpoint_dir=str(tmp_path)),
            reporter=StopAt(stop),
        )
    result = resumed(whole, tmp_path, **more)
    assert weights_hash(result.model) == weights_hash(expected.model)
    for one, other in zip(result.history, expected.history, strict=True):
        assert (one.loss, one.val, one.test) == (other.loss, other.val, other.test)
    name = embeddings_of(tmp_path).name
    assert files(tmp_path) == {
        "last.safetensors", "best.safetensors", name, name.replace("embeddings", "candidates")
    }  # fmt: skip


def test_an_interrupted_run_of_gcn_resumes_bit_by_bit(whole: GraphStore, tmp_path: Path) -> None:
    """Its embeddings go by the degrees that they were made with."""
    options = {**REUSING, "model": "gcn", "epochs": 2, "evaluate": "none"}
    wanted = fit(whole, TrainOptions(**options))
    kept = TrainOptions(**options, checkpoint_dir=str(tmp_path), checkpoint_every=1)
    with pytest.raises(KeyboardInterrupt):
        fit(whole, kept, reporter=StopAt(6))
    result = fit(whole, TrainOptions.from_dict({**kept.as_dict(), "resume": True}))
    assert weights_hash(result.model) == weights_hash(wanted.model)


def test_a_run_resumes_with_its_candidates_in_another_memory(
    whole: GraphStore, tmp_path: Path
) -> None:
    """Though memory and profile would choose others, and the profile is gone."""
    options = {**REUSING, "strategy": "outre", "history": "staleness=5:share=0.002",
               "epochs": 2, "memory": "30MB"}  # fmt: skip
    wanted = fit(whole, TrainOptions(**options))
    chosen = wanted.record.plan["embeddings"]
    kept = {**options, "checkpoint_dir": str(tmp_path), "checkpoint_every": 1}
    with pytest.raises(KeyboardInterrupt):
        fit(whole, TrainOptions(**kept), reporter=StopAt(11))
    for profile in whole.derived.folder.glob("savings-*"):
        shutil.rmtree(profile)
    more = {"memory": "200MB", "strategy": "ginex"}
    result = fit(whole, TrainOptions(**{**kept, **more, "batching": "partition", "resume": True}))
    assert weights_hash(result.model) == weights_hash(wanted.model)
    assert result.record.plan["embeddings"] == chosen
    assert not list(whole.derived.folder.glob("savings-*"))
    free = fit(whole, TrainOptions(**{**options, "memory": "200MB"}))
    assert 0 < chosen < free.record.plan["embeddings"]


def interrupted(store: GraphStore, folder: Path, stop: int = 6) -> None:
    options = TrainOptions(**REUSING, checkpoint_dir=str(folder), checkpoint_every=1)
    with pytest.raises(KeyboardInterrupt):
        fit(store, options, reporter=StopAt(stop))


def test_what_a_kill_left_goes_with_the_next_save(
    whole: GraphStore, expected: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the embeddings and the checkpoint that names them: the last ones are still there."""
    interrupted(whole, tmp_path)
    before = embeddings_of(tmp_path)

    def killed(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(loop, "save_checkpoint", killed)
        resumed(whole, tmp_path, checkpoint_every=1)
    assert before.exists()
    assert [len(list(tmp_path.glob(f"{kind}-*"))) for kind in KINDS] == [2, 2]
    for kind in KINDS:
        (tmp_path / f"{kind}-77.npy").write_bytes(b"of a run before")
    result = resumed(whole, tmp_path)
    assert weights_hash(result.model) == weights_hash(expected.model)
    assert [len(list(tmp_path.glob(f"{kind}-*"))) for kind in KINDS] == [1, 1]


@pytest.mark.parametrize("kind", KINDS)
def test_embeddings_that_are_gone_are_missed(whole: GraphStore, tmp_path: Path, kind: str) -> None:
    interrupted(whole, tmp_path)
    (file,) = tmp_path.glob(f"{kind}-*")
    file.unlink()
    with pytest.raises((StoreError, CorruptError), match=file.name):
        resumed(whole, tmp_path)


@pytest.mark.parametrize("where", ["begin", "middle", "end"])
@pytest.mark.parametrize("kind", KINDS)
def test_embeddings_that_are_damaged_are_noticed(
    whole: GraphStore, tmp_path: Path, where: str, kind: str
) -> None:
    interrupted(whole, tmp_path)
    (file,) = tmp_path.glob(f"{kind}-*")
    size = file.stat().st_size
    at = {"begin": 0, "middle": size // 2, "end": size - 1}[where]
    overwrite(file, at, bytes([file.read_bytes()[at] ^ 1]))
    with pytest.raises((StoreError, CorruptError), match=file.name):
        resumed(whole, tmp_path)


@pytest.mark.parametrize("left", [0, 100, -8])
@pytest.mark.parametrize("kind", KINDS)
def test_embeddings_that_were_cut_are_noticed(
    whole: GraphStore, tmp_path: Path, left: int, kind: str
) -> None:
    interrupted(whole, tmp_path)
    (file,) = tmp_path.glob(f"{kind}-*")
    file.write_bytes(file.read_bytes()[:left])
    with pytest.raises((StoreError, CorruptError, ReadError), match=file.name):
        resumed(whole, tmp_path)


def test_a_checkpoint_whose_embeddings_are_not_said_of_is_refused(
    whole: GraphStore, tmp_path: Path
) -> None:
    interrupted(whole, tmp_path)
    last = tmp_path / "last.safetensors"
    checkpoint = load_checkpoint(last)
    good = checkpoint.facts["embeddings"]
    for said in (
        None,
        {},
        {"width": 16},
        {name: good[name] for name in ("width", "array")},
        {**good, "width": 15},
        {**good, "candidates": good["array"]},
        {**good, "array": {**good["array"], "file": "../x.npy"}},
    ):
        checkpoint.facts["embeddings"] = said
        save_checkpoint(last, checkpoint)
        with pytest.raises(StoreError, match=r"last\.safetensors"):
            resumed(whole, tmp_path)


def test_candidates_of_a_larger_graph_are_refused(whole: GraphStore, tmp_path: Path) -> None:
    interrupted(whole, tmp_path)
    small = SynthOptions(nodes=300, edges=2400, dim=16, classes=4, train_fraction=0.13)
    synthesise(tmp_path / "small.outcrop", small, memory=100_000_000)
    with (
        GraphStore(tmp_path / "small.outcrop") as other,
        pytest.raises(StoreError, match=r"has embeddings of nodes \d+ to \d+, and there are 300"),
    ):
        resumed(other, tmp_path)


def test_a_run_with_another_history_is_not_resumed(whole: GraphStore, tmp_path: Path) -> None:
    interrupted(whole, tmp_path)
    for history in ("none", "staleness=6:nodes=1500:metric=degree"):
        with pytest.raises(OptionError, match="saved with history="):
            resumed(whole, tmp_path, history=history)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"norm": "batch"}, "batch normalisation is over all nodes of a batch"),
        ({"sampler": "shadow"}, "ShaDow's seeds share no embeddings"),
        ({"layers": 1, "num_neighbors": (5,)}, "two"),
        ({"layers": 1, "num_neighbors": (5, 5)}, "two layers at least"),
        ({"strategy": "gnndrive:order=completion"}, r"exact order \(got order=completion\)"),
        ({"strategy": "diskgnn"}, "history is not for prepared epochs"),
        ({"history": "stale=5"}, "history: no option 'stale'"),
        ({"history": "staleness=0"}, "staleness must be at least 1"),
        ({"history": "width=8"}, "history must be|width"),
        ({"history": ""}, "history"),
    ],
)
def test_options_that_have_no_history_are_refused(
    whole: GraphStore, options: dict[str, Any], told: str
) -> None:
    with pytest.raises(OptionError, match=told):
        fit(whole, TrainOptions(**{**REUSING, **options}))


def test_a_users_own_model_says_how_wide_its_embeddings_are(whole: GraphStore) -> None:
    options = TrainOptions(**{**REUSING, "epochs": 1})

    class Own(WithExchange):
        def __init__(self) -> None:
            super().__init__()
            self.convs = nn.ModuleList([SAGEConv(16, 8), SAGEConv(8, 4)])

    with pytest.raises(OptionError, match="Own has no history_width"):
        fit(whole, options, model=Own())
    model: Any = Own()
    model.history_width = 8
    assert fit(whole, options, model=model).record.epochs[0].pulled > 0
    with pytest.raises(OptionError, match="Plain has no hook"):
        fit(whole, options, model=Plain())
    with pytest.raises(OptionError, match="GAT has no hook"):
        fit(whole, options, model=GAT(16, 8, 2, 4, v2=True))


def test_outre_has_a_history_unless_it_is_told_otherwise() -> None:
    assert TrainOptions().history == "none"
    assert TrainOptions(strategy="outre").history == "staleness=100"
    assert TrainOptions(strategy="outre:superbatch=5", history="none").history == "none"
    assert strategy_named("outre").splits


def test_embeddings_are_rounded_to_half_as_many_bytes(store: GraphStore) -> None:
    """And so are the gradients that they are owed, unless one asks for all bits."""
    kept = {}
    for dtype in ("bfloat16", "float32"):
        loader = opened(store, f"{chosen(store, 3)}:dtype={dtype}")
        rows: dict[int, torch.Tensor] = {}
        assert loader.history is not None
        for t, batch in enumerate(loader):
            history = batch.history
            own, pushed = sum(batch.num_sampled_nodes[:2]), history.reuse.pushed.astype(int)
            x = torch.rand(own, 3, requires_grad=True)
            found = history.exchange(x)
            for node, row in zip(batch.n_id[own : len(found)].tolist(), found[own:], strict=True):
                wanted = rows[node].to(getattr(torch, dtype)).float()
                assert torch.equal(row.detach(), wanted)
            rows |= zip(batch.n_id[pushed].tolist(), x.detach()[pushed], strict=True)
            found.backward(torch.full_like(found, 1 + t / 1000))
            assert x.grad is not None and x.grad.dtype == torch.float32
        state = loader.history.state_dict()
        assert state["rows"].dtype == state["gradients"].dtype == getattr(torch, dtype)
        assert bool(state["gradients"].any())
        kept[dtype] = loader.record.charges["embeddings"]
        other = opened(store, f"{chosen(store, 3)}:dtype=float32")
        assert other.history is not None
        if dtype == "bfloat16":
            with pytest.raises(OptionError, match=r"are torch\.bfloat16, and should be .*float32"):
                other.history.load_state_dict(state)
        else:
            other.history.load_state_dict(state)
    assert kept["float32"] - kept["bfloat16"] == store.num_nodes * 2 * 3 * 2


def test_bf16_embeddings_are_kept_as_float32(store: GraphStore) -> None:
    loader, model = opened(store, chosen(store)), GraphSAGE(DIM, 8, 2, 4).to(torch.bfloat16)
    assert loader.history is not None
    for batch in loader:
        batch.x = batch.x.to(torch.bfloat16)
        assert outcrop.seed_logits(model, batch).dtype == torch.bfloat16
    assert loader.history.state_dict()["rows"].dtype == torch.float32


def test_a_killed_run_resumes_bit_by_bit(learnable: Path, tmp_path: Path) -> None:
    flags = [str(learnable), *FLAGS, "--epochs", "5", "--checkpoint-every", "1", "--history",
             HISTORY, "--strategy", "ginex:superbatch=5"]  # fmt: skip
    start = time.monotonic()
    assert run([*flags, "--checkpoint-dir", str(tmp_path / "whole")]).returncode == 0
    seconds = time.monotonic() - start
    wanted = load_checkpoint(tmp_path / "whole" / "last.safetensors").model
    rng = random.Random(0)
    for number in range(20 if SOAK else 1):
        folder = tmp_path / f"killed-{number}"
        folder.mkdir()
        args = [*flags, "--checkpoint-dir", str(folder), "--resume"]
        for _ in range(2 if SOAK else 1):
            process = subprocess.Popen([*OUTCROP, "train", *args], stdout=subprocess.DEVNULL,
                                       stderr=subprocess.DEVNULL)  # fmt: skip
            time.sleep(seconds * rng.uniform(0.5, 1))
            process.kill()
            process.wait()
        done = run(args)
        assert done.returncode == 0, done.stderr
        found = load_checkpoint(folder / "last.safetensors").model
        assert weights_hash(found) == weights_hash(wanted)
        assert len(list(folder.glob("embeddings-*"))) == 1
