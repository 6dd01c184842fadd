"""Layered models: what is computed layer by layer, for the nodes that are wanted alone.

Training runs the layers of a batch (`run_layers`), inference one layer over all nodes at a time;
PyG's models (BasicGNN) and our own are run by the same steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import nn
from torch.nn.functional import normalize
from torch.nn.modules.batchnorm import _NormBase
from torch_geometric.nn import GCNConv
from torch_geometric.nn.models.basic_gnn import BasicGNN

from outcrop.train.convolve import convolution_of
from outcrop.train.dropout import dropout
from outcrop.train.layers import Layer


class Layered(Protocol):
    """A model as steps."""

    num_layers: int
    widths: list[int]
    """Numbers per node in the input of each layer, and in the output."""
    jumps: bool
    """Whether the output depends on more than the last layer's states."""
    uses_degrees: bool

    def enter(self, x: torch.Tensor) -> torch.Tensor:
        """Features -> the input of the first layer."""

    def layer(self, index: int, x: torch.Tensor, layer: Layer) -> torch.Tensor:
        """Rows of a layer's sources -> those of its targets, before what `drop` does."""

    def drop(self, index: int, x: torch.Tensor) -> torch.Tensor:
        """What a layer made -> what is read of it: dropout, where there is any between layers."""

    def leave(self, states: Sequence[torch.Tensor]) -> torch.Tensor:
        """What each layer made of the same nodes (without jumps: the last) -> the output."""


def run_layers(model: Layered, x: torch.Tensor, layers: Sequence[Layer]) -> torch.Tensor:
    """The output of the last layer's targets."""
    wanted = layers[-1].targets
    x = model.enter(x[: layers[0].sources])
    states = []
    for index, (layer, following) in enumerate(zip(layers, [*layers[1:], None], strict=True)):
        x = model.layer(index, x, layer)
        if following is not None:
            x = following.exchange(x, degrees=model.uses_degrees)
        x = model.drop(index, x)
        states.append(x)
    return model.leave([one[:wanted] for one in states] if model.jumps else states[-1:])


def as_layered(model: nn.Module) -> Layered | None:
    """None: a model that is not known to make a node's output of its in-neighbours alone."""
    if isinstance(model, BasicGNN):
        known = all(convolution_of(conv) is not None for conv in model.convs)
        return _Basic(model) if known and not model.supports_norm_batch else None
    make = getattr(model, "as_layered", None)
    made: Layered | None = None if make is None else make()
    return made


def mixes_nodes(model: nn.Module) -> bool:
    """Whether all nodes of a batch count, those included that no seed needs: norms over them."""
    return any(isinstance(part, _NormBase) and part.training for part in model.modules())


class _Basic:
    """The steps of BasicGNN.forward."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self._convolutions = [convolution_of(conv) for conv in model.convs]
        self.num_layers: int = model.num_layers
        hidden = [model.hidden_channels] * model.num_layers
        self.widths = [model.in_channels, *hidden[1:], max(hidden[0], model.out_channels)]
        self.jumps = hasattr(model, "jk")
        self.uses_degrees = any(isinstance(conv, GCNConv) for conv in model.convs)

    def enter(self, x: torch.Tensor) -> torch.Tensor:
        return x

    def layer(self, index: int, x: torch.Tensor, layer: Layer) -> torch.Tensor:
        model, convolve = self._model, self._convolutions[index]
        assert convolve is not None
        x = convolve(model.convs[index], x, layer)
        if index == self.num_layers - 1 and model.jk_mode is None:
            return x
        if model.act is not None and model.act_first:
            x = model.act(x)
        x = model.norms[index](x)
        if model.act is not None and not model.act_first:
            x = model.act(x)
        return x

    def drop(self, index: int, x: torch.Tensor) -> torch.Tensor:
        model = self._model
        if index == self.num_layers - 1 and model.jk_mode is None:
            return x
        return dropout(x, model.dropout.p, model.dropout.training)

    def leave(self, states: Sequence[torch.Tensor]) -> torch.Tensor:
        x = self._model.jk(list(states)) if self.jumps else states[-1]
        return self._model.lin(x) if hasattr(self._model, "lin") else x


class RowNormalized(nn.Module):
    """A model over rows that are scaled first, to absolute values that add up to one.

    As bags of words are: PyG's NormalizeFeatures, for rows that have nothing negative.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: torch.Tensor, edge_index: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.model(normalize(x, p=1.0), edge_index)
        return out

    def as_layered(self) -> Layered | None:
        inner = as_layered(self.model)
        return None if inner is None else _Normalized(inner)


class _Normalized:
    """The steps of a model, but for the first."""

    def __init__(self, inner: Layered) -> None:
        self.num_layers, self.widths = inner.num_layers, inner.widths
        self.jumps, self.uses_degrees = inner.jumps, inner.uses_degrees
        self.layer, self.drop, self.leave = inner.layer, inner.drop, inner.leave
        self._enter = inner.enter

    def enter(self, x: torch.Tensor) -> torch.Tensor:
        return self._enter(normalize(x, p=1.0))
