"""Models: options -> one of PyG's."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch_geometric.data import Data
from torch_geometric.nn.models import GAT, GCN, GIN, GraphSAGE
from torch_geometric.nn.models.basic_gnn import BasicGNN

from outcrop.errors import OptionError
from outcrop.train.checkpoint import Checkpoint, check_weights
from outcrop.train.facts import ModelFacts, saved_options
from outcrop.train.options import TrainOptions


def make_model(options: TrainOptions, in_channels: int, out_channels: int) -> nn.Module:
    common = {
        "in_channels": in_channels,
        "hidden_channels": options.hidden,
        "num_layers": options.layers,
        "out_channels": out_channels,
        "dropout": options.dropout,
    }
    kinds: dict[str, Any] = {"sage": GraphSAGE, "gcn": GCN, "gat": GAT, "gin": GIN}
    if options.model == "gat":
        common["heads"] = options.heads
    model: nn.Module = kinds[options.model](**common)
    return model


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


def load_model(checkpoint: Checkpoint) -> nn.Module:
    """The model of a checkpoint that `outcrop train` wrote, with its weights.

    StoreError, with the field or weight, where it has no such model.
    """
    facts = ModelFacts.of(checkpoint)
    options = saved_options(facts, checkpoint.name)
    with torch.device("meta"):  # its shapes alone: those of a damaged file may be of any size
        check_weights(checkpoint, make_model(options, facts.in_channels, facts.out_channels))
    model = make_model(options, facts.in_channels, facts.out_channels)
    model.load_state_dict(checkpoint.model)
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
    """What the model says of a batch's seeds."""
    x = take_rows(batch)
    if "root_n_id" in batch:
        out = model(x, batch.edge_index)[batch.root_n_id]
    elif (
        not isinstance(model, BasicGNN)
        or model.jk_mode is not None
        or "num_sampled_nodes" not in batch
    ):
        out = model(x, batch.edge_index)[: batch.batch_size]
    else:
        # Each layer leaves out the nodes and edges that no later layer needs.
        out = model(
            x,
            batch.edge_index,
            num_sampled_nodes_per_hop=batch.num_sampled_nodes,
            num_sampled_edges_per_hop=batch.num_sampled_edges,
        )[: batch.batch_size]
    logits: torch.Tensor = out
    return logits


def seed_labels(batch: Data) -> torch.Tensor:
    labels: torch.Tensor = batch.y if "root_n_id" in batch else batch.y[: batch.batch_size]
    return labels
