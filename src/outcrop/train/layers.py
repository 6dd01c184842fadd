"""Layers of a batch: for each layer of a model, the nodes and edges that its seeds still need.

A batch has its nodes in the order in which hops found them, and its edges by hop, sorted by target.
The last layer of a model is wanted for the seeds alone, the one before it for their neighbours as
well, and so on. PyG's own trimming leaves out edges, but computes all nodes that a layer reads, not
the few that it is wanted for.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cache, cached_property, partial
from itertools import accumulate

import torch
from torch.nn.functional import embedding_bag
from torch_geometric.data import Data

from outcrop.errors import OptionError
from outcrop.loader.history import BatchHistory


@dataclass(frozen=True)
class Layer:
    """One layer: the rows of a batch's first nodes -> those of fewer, the first among these."""

    sources: int
    """Nodes whose rows it reads, the targets among them."""
    targets: int
    """Nodes whose rows it makes."""
    edge_index: torch.Tensor
    """[2, E] in local ids: all edges that end at its targets, sorted by target."""
    in_degrees: Callable[[], torch.Tensor] = field(repr=False)
    """In-edges of the sources at least, loops not counted: what GCN scales rows by."""
    history: BatchHistory | None = field(default=None, repr=False)
    """Of the last layer: the embeddings that it uses again; None: none."""

    def exchange(self, x: torch.Tensor, *, degrees: bool = False) -> torch.Tensor:
        """Call it on a layer's input, before dropout, once per batch: where embeddings are used
        again, those of this batch are kept, and others come behind them. Else x itself.

        `degrees`: whether embeddings depend on in-degrees, as GCN's do.
        """
        if self.history is None:
            return x
        return self.history.exchange(x, self.in_degrees if degrees else None)

    @cached_property
    def offsets(self) -> torch.Tensor:
        """Where the edges of each target begin, and where the last one's end."""
        targets = self.edge_index[1].contiguous()
        if targets.device.type == "cpu" and bool((targets[1:] < targets[:-1]).any()):
            raise OptionError("sums over neighbours need edges that are sorted by target")
        nodes = torch.arange(self.targets + 1, device=targets.device)
        return torch.searchsorted(targets, nodes)

    def mean(self, x: torch.Tensor) -> torch.Tensor:
        """The mean row of each target's sources, zero where it has none; no message is made."""
        return self._reduce(x, "mean")

    def sum(self, x: torch.Tensor, weights: torch.Tensor | None = None) -> torch.Tensor:
        """The sum of each target's sources' rows, times a weight per edge where given."""
        return self._reduce(x, "sum", weights)

    def _reduce(
        self, x: torch.Tensor, mode: str, weights: torch.Tensor | None = None
    ) -> torch.Tensor:
        sources = self.edge_index[0].contiguous()
        weights = None if weights is None else weights.to(x.dtype)
        if x.is_cuda and x.requires_grad:  # where a sorted gradient takes longer than messages
            messages = x.index_select(0, sources)
            messages = messages if weights is None else messages * weights[:, None]
            return torch.segment_reduce(messages, mode, offsets=self.offsets, initial=0)
        return embedding_bag(
            sources,
            x.contiguous(),
            self.offsets,
            mode=mode,
            per_sample_weights=weights,
            include_last_offset=True,
        )


def layers_of(batch: Data, num_layers: int | None = None) -> list[Layer]:
    """The layers of a model over a batch of NeighborLoader, the first one first.

    A model needs three lines to compute what its seeds need, and no more:

        for conv, layer in zip(self.convs, outcrop.layers_of(batch), strict=True):
            x = conv((x, x[: layer.targets]), layer.edge_index).relu()
        return x  # of the seeds: batch.y[: batch.batch_size] are their labels

    num_layers: as many as there were hops, unless given. With fewer, the first layer reads fewer
    rows than the batch has: x[: layer.sources]. With history=, `x = layer.exchange(x)` stands
    before each layer but the first, and before dropout.
    """
    if "num_sampled_nodes" not in batch:
        raise OptionError("layers are those of NeighborLoader's batches, which come hop by hop")
    nodes = list(accumulate(int(count) for count in batch.num_sampled_nodes))
    edges = [0, *accumulate(int(count) for count in batch.num_sampled_edges)]
    hops = len(nodes) - 1
    degrees = cache(partial(_in_degrees, batch.edge_index, nodes[-1]))
    layers = []
    for left in range(hops if num_layers is None else num_layers, 0, -1):
        hop = min(left, hops)
        wanted = nodes[min(left - 1, hops)]
        layers.append(Layer(nodes[hop], wanted, batch.edge_index[:, : edges[hop]], degrees))
    if batch.get("history") is not None:
        layers[-1] = _with_pulled(layers, batch.history)
    return layers


def _with_pulled(layers: list[Layer], history: BatchHistory) -> Layer:
    """The last layer, which reads rows of pulled nodes as well: they follow those of the first hop.

    Its edges are as they are: the second hop found pulled nodes first, in this order.
    """
    if len(layers) < 2:
        raise OptionError("history is for models of two layers at least")
    last = layers[-1]
    own, count = last.in_degrees, last.sources
    return replace(
        last,
        sources=count + history.pulled,
        in_degrees=lambda: history.degrees(own()[:count]),
        history=history,
    )


def whole(edge_index: torch.Tensor, num_nodes: int) -> Layer:
    """A layer that makes the rows of all nodes; edges are sorted here."""
    order = edge_index[1].argsort(stable=True)
    degrees = cache(partial(_in_degrees, edge_index, num_nodes))
    return Layer(num_nodes, num_nodes, edge_index[:, order], degrees)


def _in_degrees(edge_index: torch.Tensor, num_nodes: int) -> torch.Tensor:
    source, target = edge_index
    zeros = torch.zeros(num_nodes, device=target.device)
    return zeros.index_add_(0, target, (source != target).float())
