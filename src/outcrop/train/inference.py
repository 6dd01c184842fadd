"""Inference: a trained model -> its output for every node, layer by layer and out of core.

The hidden states of one layer at a time lie on disk. A chunk of consecutive nodes needs the states
of its in-neighbours, all of them; they are read while the chunk before is computed. The result is
that of a full forward pass.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch_geometric.nn import GCNConv
from torch_geometric.nn.models.basic_gnn import BasicGNN

from outcrop import _core
from outcrop.errors import BudgetError, OptionError
from outcrop.options import format_size, parse_size
from outcrop.progress import SILENT, Progress
from outcrop.sample.sampler import Sampler, Sampling
from outcrop.sample.seeds import Stream, Task
from outcrop.store.arrays import ArrayWriter
from outcrop.store.checks import ArrayChecks
from outcrop.store.format import RowEncoding
from outcrop.store.locks import sync_directory
from outcrop.store.store import FeatureRows, GraphStore
from outcrop.store.workdir import WorkDirectory
from outcrop.threads.pipeline import Pipeline, Stage
from outcrop.topology.parts import PAGE_THREADS, paged_topology

# Chunks in memory at a time (two on the way, one being computed), and for each about as much again
# for messages and for results.
_CHUNKS = 3
_COPIES = 2
_NODES_AT_A_TIME = 1 << 17
_EDGES_AT_A_TIME = 1 << 19
# The most nodes of a chunk, whose offsets are read to find its end: 8 MB.
_MOST_NODES = 1 << 20


@dataclass
class _Chunk:
    """Consecutive nodes and what they need: targets first, then their other neighbours."""

    begin: int
    end: int
    nodes: NDArray[np.int64]
    edge_index: torch.Tensor
    x: torch.Tensor


def infer(
    store: GraphStore,
    model: nn.Module,
    out: str | Path,
    *,
    memory: str | int = "2GB",
    progress: Progress = SILENT,
) -> None:
    """The model's output for every node, on its device -> a float32 .npy file [N, out channels]."""
    model = as_basic_gnn(model)
    if isinstance(model.in_channels, int) and 0 < model.in_channels != store.encoding.dim:
        raise OptionError(
            f"the model takes {model.in_channels} features per node, and those of {store.path} "
            f"have {store.encoding.dim}"
        )
    was_training = model.training
    model.eval()
    try:
        # Beside the result, so that the last layer's file only needs to be renamed.
        with WorkDirectory(Path(out)) as work:
            inference = _Inference(store, model, parse_size(memory), progress)
            inference.run(work.path, work.final)
    finally:
        model.train(was_training)


def as_basic_gnn(model: nn.Module) -> BasicGNN:
    """OptionError where it is none, or one whose layers cannot be computed one by one."""
    if not isinstance(model, BasicGNN) or model.jk_mode not in (None, "last"):
        raise OptionError(
            "layer-wise inference is for PyG's BasicGNN models (GraphSAGE, GCN, GAT, GIN ...) "
            f"with jk=None or 'last' (got {type(model).__name__})"
        )
    return model


def least_memory(store: GraphStore, model: BasicGNN) -> int:
    """Bytes without which `infer` would refuse: for the node with the most in-edges."""
    most, indptr = 0, store.parts("indptr")
    for begin in range(0, store.num_nodes, _NODES_AT_A_TIME):
        bounds = indptr[begin : begin + _NODES_AT_A_TIME + 1]
        most = max(most, int(np.diff(bounds).max()))
    scale = 4 * store.num_nodes if _has_gcn(model) else 0
    return (most + 1) * _entry_bytes(model, store.encoding.dim) + scale


def _has_gcn(model: BasicGNN) -> bool:
    return any(isinstance(conv, GCNConv) for conv in model.convs)


def _entry_bytes(model: BasicGNN, dim: int) -> int:
    """What all chunks in memory take, per row, or per edge with its ids."""
    widest: int = max(dim, model.hidden_channels, model.out_channels)
    return _CHUNKS * _COPIES * (4 * widest + 32)


class _Inference:
    def __init__(
        self,
        store: GraphStore,
        model: BasicGNN,
        memory_bytes: int,
        progress: Progress,
    ) -> None:
        store.check_offsets()
        self._store = store
        self._model = model
        self._device = next(model.parameters()).device
        self._progress = progress
        self._gcn_scale = None
        if _has_gcn(model):
            self._gcn_scale = _gcn_scale(store)
            memory_bytes -= self._gcn_scale.nbytes
        self._memory_bytes = memory_bytes

    @torch.no_grad()
    def run(self, work: Path, out: Path) -> None:
        rows = self._store.features
        for layer in range(self._model.num_layers):
            self._progress.stage(f"layer {layer + 1}", self._store.num_nodes, "nodes")
            name = f"layer-{layer}.npy"
            rows = self._run_layer(layer, rows, work, name)
            if layer:
                (work / f"layer-{layer - 1}.npy").unlink()
        (work / name).rename(out)
        sync_directory(out.parent)

    def _run_layer(self, layer: int, rows: FeatureRows, work: Path, name: str) -> FeatureRows:
        store = self._store
        chunks = iter(self._pipeline(rows))
        writer: ArrayWriter | None = None
        try:
            for chunk in chunks:
                states = self._forward(layer, chunk).float().cpu().numpy()
                if writer is None:  # the width is known now, and the space is allocated
                    shape = states.shape[1:]
                    dtype = np.dtype(np.float32)
                    writer = ArrayWriter(store.disk, work, name, dtype, shape, store.num_nodes)
                writer.append(states)
                self._progress.advance(chunk.end - chunk.begin)
                del chunk
            assert writer is not None
            with writer:
                entry = writer.close()
        finally:
            chunks.close()
        checks = ArrayChecks(work, entry)
        return FeatureRows(store.disk, checks, RowEncoding("float32", entry.shape[1]))

    def _pipeline(self, rows: FeatureRows) -> Pipeline:
        """Chunks of all nodes with their rows, read ahead."""
        sampler = Sampler(Sampling((-1,)), paged_topology(self._store), 0, PAGE_THREADS)

        def sample(span: tuple[int, int]) -> _Chunk:
            seeds = np.arange(*span)
            subgraph = sampler.sample(Task(Stream.DIRECT, 0, 0, seeds, seeds))
            edges = np.empty((2, len(subgraph.sources)), np.int64)
            _core.expand_edges(subgraph.sources, subgraph.counts, edges)
            nodes = np.array(subgraph.nodes)
            return _Chunk(*span, nodes, torch.from_numpy(edges), torch.empty(0))

        def read(chunk: _Chunk) -> _Chunk:
            chunk.x = torch.from_numpy(rows.gather(chunk.nodes))
            return chunk

        stages = [Stage("sample", sample), Stage("read", read)]
        return Pipeline(self._spans(rows.dim), stages, depth=_CHUNKS - 1)

    def _spans(self, dim: int) -> Iterator[tuple[int, int]]:
        """Ranges of nodes whose chunks fit into memory."""
        entry_bytes = _entry_bytes(self._model, dim)
        most = self._memory_bytes // entry_bytes
        begin, indptr = 0, self._store.parts("indptr")
        while begin < self._store.num_nodes:
            offsets = indptr[begin : begin + _MOST_NODES + 1]
            # Entries of [begin, begin + i): i nodes and all their edges; ascending in i.
            entries = offsets - offsets[0] + np.arange(len(offsets))
            end = begin + int(np.searchsorted(entries, most, side="right")) - 1
            if end <= begin:
                needed = int(entries[1]) * entry_bytes
                raise BudgetError(
                    f"node {begin} with all its neighbours needs {format_size(needed)}; "
                    f"give at least memory={-(-needed // 10**6) + 1}MB"
                )
            yield begin, end
            begin = end

    def _forward(self, layer: int, chunk: _Chunk) -> torch.Tensor:
        count = chunk.end - chunk.begin
        x, edges = chunk.x.to(self._device), chunk.edge_index.to(self._device)
        model, conv = self._model, self._model.convs[layer]
        inputs: torch.Tensor | tuple[torch.Tensor, torch.Tensor] = (x, x[:count])
        if isinstance(conv, GCNConv):  # takes no pairs; its weights need the degrees of sources
            edges, weights = self._gcn_edges(chunk, count)
            inputs, model = x, _WithConv(model, _Weighted(conv, weights))
        states: torch.Tensor = BasicGNN.inference_per_layer(model, layer, inputs, edges, count)
        return states

    def _gcn_edges(self, chunk: _Chunk, count: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Edges and their weights in D^-1/2 (A + I) D^-1/2, with the graph's own degrees."""
        assert self._gcn_scale is not None
        source, target = chunk.edge_index
        kept = source != target
        loops = torch.arange(count)
        edges = torch.stack([torch.cat([source[kept], loops]), torch.cat([target[kept], loops])])
        scale = torch.from_numpy(self._gcn_scale[chunk.nodes])
        weights = scale[edges[0]] * scale[edges[1]]
        return edges.to(self._device), weights.to(self._device)


class _WithConv:
    """A model whose every layer is the given convolution; the rest of it as it was."""

    def __init__(self, model: BasicGNN, conv: _Weighted) -> None:
        self._model = model
        self.convs: defaultdict[int, _Weighted] = defaultdict(lambda: conv)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)


class _Weighted:
    """A GCN layer with given edge weights in place of its own normalisation."""

    def __init__(self, conv: GCNConv, weights: torch.Tensor) -> None:
        self._conv, self._weights = conv, weights

    def __call__(self, x: torch.Tensor, edge_index: torch.Tensor) -> torch.Tensor:
        normalize, self._conv.normalize = self._conv.normalize, False
        try:
            states: torch.Tensor = self._conv(x, edge_index, self._weights)
        finally:
            self._conv.normalize = normalize
        return states


def _gcn_scale(store: GraphStore) -> NDArray[np.float32]:
    """1 / sqrt(in-degree + 1) of every node, self loops not counted: what GCN weights edges by."""
    indptr, indices = store.parts("indptr"), store.parts("indices")
    degree = np.empty(store.num_nodes, np.float32)
    for first in range(0, store.num_nodes, _NODES_AT_A_TIME):
        some = degree[first : first + _NODES_AT_A_TIME]
        bounds = indptr[first : first + len(some) + 1]
        some[:] = np.diff(bounds)
        some += 1
        for begin in range(bounds[0], bounds[-1], _EDGES_AT_A_TIME):
            sources = indices[begin : min(begin + _EDGES_AT_A_TIME, int(bounds[-1]))]
            here = np.diff(np.clip(bounds, begin, begin + len(sources)))
            targets = np.repeat(np.arange(len(some)), here)
            np.subtract.at(some, targets[targets + first == sources], 1)
    return np.power(degree, np.float32(-0.5), out=degree)
