"""Deep models: residual blocks of a convolution and a small network, each after a normalisation.

As in "A critical look at the evaluation of GNNs under heterophily" (Platonov et al., 2023): the
input is projected, each block adds to it, and a normalisation and a product make the output.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn
from torch_geometric.nn import GCNConv, MessagePassing

from outcrop.train.convolve import convolution_of
from outcrop.train.dropout import dropout
from outcrop.train.layered import Layered, run_layers
from outcrop.train.layers import Layer, whole


class ResidualGNN(nn.Module):
    """Any number of layers of one kind of convolution."""

    jumps = False

    def __init__(
        self,
        in_channels: int,
        hidden: int,
        out_channels: int,
        convs: Sequence[MessagePassing],
        dropout: float,
    ) -> None:
        """convs: from and to `hidden` channels."""
        super().__init__()
        self.num_layers = len(convs)
        self.in_channels, self.out_channels = in_channels, out_channels
        self.widths = [in_channels, *[hidden] * self.num_layers, out_channels]
        self.uses_degrees = any(isinstance(conv, GCNConv) for conv in convs)
        self.encoder = nn.Linear(in_channels, hidden)
        self.norms = nn.ModuleList(nn.LayerNorm(hidden) for _ in convs)
        self.convs = nn.ModuleList(convs)
        self.mixers = nn.ModuleList(nn.Linear(hidden, hidden) for _ in convs)
        self.norm = nn.LayerNorm(hidden)
        self.decoder = nn.Linear(hidden, out_channels)
        self._p = dropout

    def forward(self, x: torch.Tensor, edge_index: torch.Tensor) -> torch.Tensor:
        return run_layers(self, x, [whole(edge_index, len(x))] * self.num_layers)

    def as_layered(self) -> Layered:
        return self

    def enter(self, x: torch.Tensor) -> torch.Tensor:
        return self._drop(self.encoder(x)).relu()

    def layer(self, index: int, x: torch.Tensor, layer: Layer) -> torch.Tensor:
        conv = self.convs[index]
        convolve = convolution_of(conv)
        assert convolve is not None
        made = convolve(conv, self.norms[index](x), layer)
        made = self._drop(self.mixers[index](self._drop(made).relu()))
        return x[: layer.targets] + made

    def drop(self, _: int, x: torch.Tensor) -> torch.Tensor:
        return x

    def leave(self, states: Sequence[torch.Tensor]) -> torch.Tensor:
        out: torch.Tensor = self.decoder(self.norm(states[-1]))
        return out

    def _drop(self, x: torch.Tensor) -> torch.Tensor:
        return dropout(x, self._p, self.training)
