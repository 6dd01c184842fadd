"""Convolutions of PyG on one layer of a batch: the same numbers, without a message per edge.

A convolution is linear, then sums over neighbours. There are a few times more sources than targets,
so sums come first here, and the product is made for the targets alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn.functional import leaky_relu, normalize
from torch_geometric.nn import GATConv, GCNConv, GINConv, SAGEConv

from outcrop.train.dropout import dropout
from outcrop.train.layers import Layer

Convolution = Callable[[Any, torch.Tensor, Layer], torch.Tensor]


def convolution_of(conv: nn.Module) -> Convolution | None:
    """How its targets alone are computed; None: it is not known."""
    if type(conv) is SAGEConv:
        return _sage if conv.aggr == "mean" and not conv.project else _pairs
    if type(conv) is GINConv:
        return _gin if conv.aggr == "add" else _pairs
    if type(conv) is GATConv:
        usual = conv.aggr == "add" and conv.lin is not None and conv.add_self_loops
        return _gat if usual and conv.edge_dim is None else _pairs
    if type(conv) is GCNConv:
        usual = conv.aggr == "add" and conv.add_self_loops and conv.normalize
        return _gcn if usual and not (conv.improved or conv.cached) else None
    return None


def _pairs(conv: Any, x: torch.Tensor, layer: Layer) -> torch.Tensor:
    """PyG's own way for different sources and targets."""
    out: torch.Tensor = conv((x, x[: layer.targets]), layer.edge_index)
    return out


def _sage(conv: Any, x: torch.Tensor, layer: Layer) -> torch.Tensor:
    out: torch.Tensor = conv.lin_l(layer.mean(x))
    if conv.root_weight:
        out = out + conv.lin_r(x[: layer.targets])
    return normalize(out, dim=-1) if conv.normalize else out


def _gin(conv: Any, x: torch.Tensor, layer: Layer) -> torch.Tensor:
    out: torch.Tensor = conv.nn(layer.sum(x) + (1 + conv.eps) * x[: layer.targets])
    return out


def _gcn(conv: Any, x: torch.Tensor, layer: Layer) -> torch.Tensor:
    """D^-1/2 (A + I) D^-1/2, with the degrees that the nodes have in the whole batch."""
    source, target = layer.edge_index
    degrees = layer.in_degrees()[: layer.sources] + 1
    scale = degrees.to(torch.promote_types(x.dtype, torch.float32)).rsqrt().to(x.dtype)
    weights = scale[source] * scale[target] * (source != target)
    own = scale[: layer.targets].square()[:, None] * x[: layer.targets]
    out: torch.Tensor = conv.lin(layer.sum(x, weights) + own)
    return out if conv.bias is None else out + conv.bias


def _gat(conv: Any, x: torch.Tensor, layer: Layer) -> torch.Tensor:
    """Sums rows per head, before they are projected: a head's output is linear in its sum."""
    if x.is_cuda or layer.targets * conv.heads > layer.sources:
        return _pairs(conv, x, layer)  # fewer, larger steps
    own = x[: layer.targets]
    weight = conv.lin.weight.view(conv.heads, conv.out_channels, -1)
    to_edges, to_loops = _attention(conv, x, own, weight, layer)
    heads = []
    for head in range(conv.heads):
        rows = layer.sum(x, to_edges[:, head].contiguous()) + to_loops[:, head, None] * own
        heads.append(rows @ weight[head].T)
    out = torch.cat(heads, dim=-1) if conv.concat else torch.stack(heads).mean(dim=0)
    if conv.res is not None:
        out = out + conv.res(own)
    return out if conv.bias is None else out + conv.bias


def _attention(
    conv: Any, x: torch.Tensor, own: torch.Tensor, weight: torch.Tensor, layer: Layer
) -> tuple[torch.Tensor, torch.Tensor]:
    """The share of each edge, and of each target's own loop, per head: they add up to one."""
    source, target = layer.edge_index
    of_sources = x @ (conv.att_src[0, :, :, None] * weight).sum(1).T
    of_targets = own @ (conv.att_dst[0, :, :, None] * weight).sum(1).T
    edges = leaky_relu(of_sources[source] + of_targets[target], conv.negative_slope)
    edges = edges.masked_fill((source == target)[:, None], -torch.inf)
    loops = leaky_relu(of_sources[: layer.targets] + of_targets, conv.negative_slope)
    with torch.no_grad():  # the result does not depend on it
        lowest = float("-inf")
        found = torch.segment_reduce(edges, "max", offsets=layer.offsets, initial=lowest)
        largest = torch.maximum(found, loops)
    edges, loops = (edges - largest[target]).exp(), (loops - largest).exp()
    total = loops + torch.segment_reduce(edges, "sum", offsets=layer.offsets, initial=0)
    edges, loops = edges / total[target], loops / total
    return (
        dropout(edges, conv.dropout, conv.training),
        dropout(loops, conv.dropout, conv.training),
    )
