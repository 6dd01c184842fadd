"""Models: options -> one of PyG's, or a deeper one of its convolutions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch_geometric.data import Data
from torch_geometric.nn import GATConv, GCNConv, GINConv, MessagePassing, SAGEConv
from torch_geometric.nn.models import GAT, GCN, GIN, MLP, GraphSAGE
from torch_geometric.nn.models.basic_gnn import BasicGNN

from outcrop.errors import OptionError
from outcrop.train.checkpoint import Checkpoint, check_weights, load_weights
from outcrop.train.facts import ModelFacts, saved_options
from outcrop.train.layered import RowNormalized, as_layered, mixes_nodes, run_layers
from outcrop.train.layers import layers_of
from outcrop.train.options import TrainOptions
from outcrop.train.own import check_trusted, make_own_model
from outcrop.train.residual import ResidualGNN

_KINDS: dict[str, Any] = {"sage": GraphSAGE, "gcn": GCN, "gat": GAT, "gin": GIN}


def make_model(options: TrainOptions, in_channels: int, out_channels: int) -> nn.Module:
    """One of PyG's models, one of residual blocks of its convolutions, or one of the user's own."""
    make = _make_residual if options.residual else _make_basic
    if options.is_own_model:
        make = make_own_model
    model = make(options, in_channels, out_channels)
    return RowNormalized(model) if options.normalize_rows else model


def _make_basic(options: TrainOptions, in_channels: int, out_channels: int) -> nn.Module:
    norms = {"none": None, "batch": "batch_norm", "layer": nn.LayerNorm(options.hidden)}
    more = {"heads": options.heads} if options.model == "gat" else {}
    model: nn.Module = _KINDS[options.model](
        in_channels,
        options.hidden,
        options.layers,
        out_channels,
        dropout=options.dropout,
        norm=norms[options.norm],
        jk=None if options.jk == "none" else options.jk,
        **more,
    )
    return model


def _make_residual(options: TrainOptions, in_channels: int, out_channels: int) -> nn.Module:
    hidden = options.hidden
    convs: dict[str, Callable[[], MessagePassing]] = {
        "sage": lambda: SAGEConv(hidden, hidden),
        "gcn": lambda: GCNConv(hidden, hidden),
        "gat": lambda: GATConv(
            hidden, hidden // options.heads, options.heads, dropout=options.dropout
        ),
        "gin": lambda: GINConv(MLP([hidden, hidden, hidden], norm=None)),
    }
    made = [convs[options.model]() for _ in range(options.layers)]
    return ResidualGNN(in_channels, hidden, out_channels, made, options.dropout)


def choose_device(name: str) -> torch.device:
    """ "auto" is the GPU where there is one."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise OptionError(f"device must be auto, cpu, cuda or cuda:N (got {name!r})") from error
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        found = torch.cuda.device_count()
        raise OptionError(f"device {name!r} is not there: torch sees {found} GPUs")
    return device


def load_model(checkpoint: Checkpoint, *, trust: bool = False) -> nn.Module:
    """The model of a checkpoint that `outcrop train` wrote, with its weights.

    StoreError, with the field or weight, where it has no such model. One that was made by a factory
    of the user's own is made by it again only with `trust`: it is code that the checkpoint names.
    """
    facts = ModelFacts.of(checkpoint)
    options = saved_options(facts, checkpoint.name)
    if options.is_own_model:
        check_trusted(checkpoint, options, trust=trust)
    else:
        with torch.device("meta"):  # its shapes alone: those of a damaged file may be of any size
            check_weights(checkpoint, make_model(options, facts.in_channels, facts.out_channels))
    model = make_model(options, facts.in_channels, facts.out_channels)
    load_weights(checkpoint, model)
    return model


def take_rows(batch: Data) -> torch.Tensor:
    """The batch's x; where its rows are in slots of a buffer, a copy, and the slots are free again.

    A copy since layers need all rows at once for a matrix product: torch makes it with all threads,
    from memory that is given back before the forward pass begins.
    """
    if "x_buffer" in batch:
        batch.x = batch.x_buffer.index_select(0, batch.x_index)
        del batch.x_buffer, batch.x_index
    rows: torch.Tensor = batch.x
    return rows


def seed_logits(model: nn.Module, batch: Data) -> torch.Tensor:
    """What the model says of a batch's seeds; of other nodes only what that needs, if possible."""
    if not isinstance(batch, Data) or not ("batch_size" in batch or "root_n_id" in batch):
        raise OptionError(
            f"seed_logits takes a batch of a loader, which has seeds (got {type(batch).__name__})"
        )
    x = take_rows(batch)
    out: torch.Tensor
    if "root_n_id" in batch:
        out = model(x, batch.edge_index)[batch.root_n_id]
        return out
    own: Any = getattr(model, "forward_layers", None)
    layered = None if mixes_nodes(model) else as_layered(model)
    if batch.get("history") is not None:
        check_reuses(model)
    if batch.get("num_sampled_nodes") is None:
        out = model(x, batch.edge_index)
    elif own is not None:
        out = own(x, layers_of(batch, getattr(model, "num_layers", None)))
        if batch.get("history") is not None and not batch.history.exchanged:
            raise OptionError(
                "history: forward_layers does not call x = layer.exchange(x), so that no embedding "
                "is used again (docs/outre.md)"
            )
    elif layered is not None:
        out = run_layers(layered, x, layers_of(batch, layered.num_layers))
    elif isinstance(model, BasicGNN) and model.jk_mode is None:
        out = model(
            x,
            batch.edge_index,
            num_sampled_nodes_per_hop=batch.num_sampled_nodes,
            num_sampled_edges_per_hop=batch.num_sampled_edges,
        )
    else:
        out = model(x, batch.edge_index)
    return out[: batch.batch_size]


def check_reuses(model: nn.Module) -> None:
    """OptionError where the model does not push and pull embeddings."""
    if mixes_nodes(model):
        raise OptionError(
            "history: batch normalisation is over all nodes of a batch, those included whose "
            "embeddings are used again; use norm=layer"
        )
    layered = as_layered(model)
    if layered is None and not hasattr(model, "forward_layers"):
        raise OptionError(
            f"history: {type(model).__name__} has no hook between its layers: sage, gcn, gat, gin "
            "have, and models of your own whose forward_layers(x, layers) calls layer.exchange(x)"
        )
    if layered is not None and layered.num_layers < 2:
        raise OptionError("history is for models of two layers at least")


def seed_labels(batch: Data) -> torch.Tensor:
    labels: torch.Tensor = batch.y if "root_n_id" in batch else batch.y[: batch.batch_size]
    return labels
