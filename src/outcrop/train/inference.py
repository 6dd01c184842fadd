"""Inference: a trained model -> its output for every node, layer by layer and out of core.

The hidden states of one layer at a time lie on disk. A chunk of consecutive nodes needs the states
of its in-neighbours, all of them; they are read while the chunk before is computed. The result is
that of a full forward pass.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from outcrop import _core
from outcrop.errors import BudgetError, OptionError
from outcrop.options import format_size, parse_size
from outcrop.progress import SILENT, Progress
from outcrop.sample.sampler import Sampler, Sampling
from outcrop.sample.seeds import Stream, Task
from outcrop.store.arrays import ArrayWriter
from outcrop.store.checks import ArrayChecks
from outcrop.store.format import ArrayEntry, RowEncoding
from outcrop.store.ids import in_original_order, original_places
from outcrop.store.locks import sync_directory
from outcrop.store.permute import permuted, places_dtype
from outcrop.store.store import FeatureRows, GraphStore
from outcrop.store.workdir import WorkDirectory
from outcrop.threads.pipeline import Pipeline, Stage
from outcrop.topology.parts import PAGE_THREADS, paged_topology
from outcrop.train.layered import Layered, as_layered
from outcrop.train.layers import Layer

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
    original_order: bool = True,
    progress: Progress = SILENT,
) -> None:
    """The model's output for every node, on its device -> a float32 .npy file [N, out channels].

    `original_order`: by the user's ids, ascending, as before the store was reordered; else row i is
    that of node i of the store.
    """
    layered = layered_alone(model)
    if 0 < layered.widths[0] != store.encoding.dim:
        raise OptionError(
            f"the model takes {layered.widths[0]} features per node, and those of {store.path} "
            f"have {store.encoding.dim}"
        )
    memory_bytes = parse_size(memory)
    moved = original_order and not in_original_order(store)
    if moved and memory_bytes < _places_bytes(store):
        raise BudgetError(
            f"rows in their original order need {format_size(_places_bytes(store))} of memory "
            f"(got {format_size(memory_bytes)}); original_order=False leaves them in the store's"
        )
    was_training = model.training
    model.eval()
    try:
        # Beside the result, so that the last layer's file only needs to be renamed.
        with WorkDirectory(Path(out)) as work:
            device = next(model.parameters()).device
            inference = _Inference(store, layered, device, memory_bytes, progress)
            last = inference.run(work.path)
            if moved:
                last = _in_original_order(store, work.path, last, memory_bytes, progress)
            (work.path / last.file).rename(work.final)
            sync_directory(work.final.parent)
    finally:
        model.train(was_training)


def layered_alone(model: nn.Module) -> Layered:
    """OptionError where its layers cannot be computed one by one."""
    layered = as_layered(model)
    if layered is None or layered.jumps:
        raise OptionError(
            "layer-wise inference is for PyG's BasicGNN models (GraphSAGE, GCN, GAT, GIN) with "
            "jk=None or 'last' and norms of one node at a time, and for models with as_layered() "
            f"(got {type(model).__name__})"
        )
    return layered


def least_memory(store: GraphStore, model: Layered) -> int:
    """Bytes without which `infer` would refuse: for the node with the most in-edges."""
    most, indptr = 0, store.parts("indptr")
    for begin in range(0, store.num_nodes, _NODES_AT_A_TIME):
        bounds = indptr[begin : begin + _NODES_AT_A_TIME + 1]
        most = max(most, int(np.diff(bounds).max()))
    degrees = 4 * store.num_nodes if model.uses_degrees else 0
    return (most + 1) * _entry_bytes(model, store.encoding.dim) + degrees


def _entry_bytes(model: Layered, dim: int) -> int:
    """What all chunks in memory take, per row, or per edge with its ids."""
    return _CHUNKS * _COPIES * (4 * max(dim, *model.widths) + 32)


class _Inference:
    def __init__(
        self,
        store: GraphStore,
        model: Layered,
        device: torch.device,
        memory_bytes: int,
        progress: Progress,
    ) -> None:
        store.check_offsets()
        self._store = store
        self._model = model
        self._device = device
        self._progress = progress
        self._degrees: NDArray[np.float32] | None = None
        if model.uses_degrees:
            self._degrees = _in_degrees(store)
            memory_bytes -= self._degrees.nbytes
        self._memory_bytes = memory_bytes

    @torch.no_grad()
    def run(self, work: Path) -> ArrayEntry:
        """The file in `work` that has the last layer's."""
        rows = self._store.features
        for layer in range(self._model.num_layers):
            self._progress.stage(f"layer {layer + 1}", self._store.num_nodes, "nodes")
            name = f"layer-{layer}.npy"
            rows = self._run_layer(layer, rows, work, name)
            if layer:
                (work / f"layer-{layer - 1}.npy").unlink()
        return rows.checks.entry

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

    def _forward(self, index: int, chunk: _Chunk) -> torch.Tensor:
        model, x = self._model, chunk.x.to(self._device)
        edges = chunk.edge_index.to(self._device)
        layer = Layer(len(x), chunk.end - chunk.begin, edges, lambda: self._degrees_of(chunk))
        x = model.layer(index, model.enter(x) if index == 0 else x, layer)
        return model.leave([x]) if index == model.num_layers - 1 else x

    def _degrees_of(self, chunk: _Chunk) -> torch.Tensor:
        """In the graph, not in the chunk, which has the edges of its targets alone."""
        assert self._degrees is not None
        return torch.from_numpy(self._degrees[chunk.nodes]).to(self._device)


def _places_bytes(store: GraphStore) -> int:
    return store.num_nodes * places_dtype(store.num_nodes).itemsize


def _in_original_order(
    store: GraphStore, work: Path, entry: ArrayEntry, memory_bytes: int, progress: Progress
) -> ArrayEntry:
    """A file in `work` that has the same rows by the user's ids, ascending."""
    room = memory_bytes - _places_bytes(store)
    places = original_places(store, store.disk, work, room)
    rows = permuted(store.disk, ArrayChecks(work, entry), places, work, room, progress)
    with ArrayWriter(
        store.disk, work, "ordered.npy", entry.dtype, entry.shape[1:], store.num_nodes
    ) as writer:
        for part in rows:
            writer.append(part)
        return writer.close()


def _in_degrees(store: GraphStore) -> NDArray[np.float32]:
    """In-edges of every node, loops not counted: what GCN scales rows by."""
    indptr, indices = store.parts("indptr"), store.parts("indices")
    degree = np.empty(store.num_nodes, np.float32)
    for first in range(0, store.num_nodes, _NODES_AT_A_TIME):
        some = degree[first : first + _NODES_AT_A_TIME]
        bounds = indptr[first : first + len(some) + 1]
        some[:] = np.diff(bounds)
        for begin in range(bounds[0], bounds[-1], _EDGES_AT_A_TIME):
            sources = indices[begin : min(begin + _EDGES_AT_A_TIME, int(bounds[-1]))]
            here = np.diff(np.clip(bounds, begin, begin + len(sources)))
            targets = np.repeat(np.arange(len(some)), here)
            np.subtract.at(some, targets[targets + first == sources], 1)
    return degree
