"""Samples of others: PyG's `Data` from any sampler -> a trace, found again by its name.

Features and labels come from the store: of a sample only its ids and edges are kept.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from outcrop.errors import OptionError, StoreError
from outcrop.layout.trace import TRACE_VERSION, Trace, TraceWriter
from outcrop.progress import SILENT, Progress
from outcrop.sample.edge_ids import edge_id_limit
from outcrop.sample.sampler import Subgraph
from outcrop.sample.seeds import Ids, Stream, Task
from outcrop.schema import shown
from outcrop.store.derived import Layout
from outcrop.store.store import GraphStore

_KIND = "samples"


@dataclass(frozen=True)
class ImportedSamples:
    """What was imported."""

    name: str
    epochs: int
    batches: int
    """Per epoch."""
    nodes: int
    """In the largest batch, as are edges and seeds."""
    edges: int
    seeds: int
    digest: str
    """The digest of all that is in them."""
    bytes: int


def import_samples(
    store: GraphStore,
    samples: Iterable[Any],
    name: str,
    *,
    epochs: int = 1,
    progress: Progress = SILENT,
) -> ImportedSamples:
    """Batches of PyG's `Data` -> samples that strategy="diskgnn:samples=NAME" trains from.

    A batch has `n_id` (the store's node ids, seeds first), `edge_index` (local ids) and
    `batch_size` (how many are seeds); and, where they are known, `input_id`, `e_id` (columns of the
    `edge_index` that the store was made from, as PyG's own loaders give them), `num_sampled_nodes`
    and `num_sampled_edges`. Edges are put in the order of their targets.
    `samples` are those of `epochs` epochs one after the other, all of the same number of batches.

    OptionError names the batch that cannot be used, and nothing remains of the others.
    """
    if not re.fullmatch(r"[A-Za-z0-9_.-]+", name):
        raise OptionError(f"a name of samples has letters, digits, _ . and - (got {name!r})")
    if epochs < 1:
        raise OptionError(f"epochs must be at least 1 (got {epochs})")
    inputs = _inputs(name)
    if (there := store.derived.path(_KIND, inputs)).exists():
        raise _exists(name, there)
    made = False

    def build(folder: Path) -> None:
        nonlocal made
        made = True
        progress.stage("import samples", None, "batches")
        batches = _write(store, folder, samples, {"samples": name, "epochs": epochs}, progress)
        if batches == 0 or batches % epochs:
            raise OptionError(f"{batches} batches are not {epochs} epochs of equal length")

    with store.derived.get_or_build(_KIND, inputs, build, progress=progress) as layout:
        if not made:  # waited for, and not of these batches
            raise _exists(name, layout.path)
        return find_samples(store, name)


def _exists(name: str, there: Path) -> StoreError:
    return StoreError(f"samples {name!r} are there already: remove {there}, or use another name")


def find_samples(store: GraphStore, name: str) -> ImportedSamples:
    """StoreError where there are none of this name."""
    with open_samples(store, name) as layout, Trace(store.disk, layout.path) as trace:
        epochs = int(trace.identity["epochs"])
        nodes, edges, seeds = trace.largest
        batches = len(trace) // epochs
        return ImportedSamples(
            name, epochs, batches, nodes, edges, seeds, trace.digest, trace.bytes
        )


def open_samples(store: GraphStore, name: str) -> Layout:
    """The folder of a trace."""
    layout = store.derived.find(_KIND, _inputs(name))
    if layout is None:
        raise StoreError(
            f"{store.path}: no samples {name!r}; outcrop.import_samples(store, batches, {name!r}) "
            "makes them"
        )
    return layout


def _inputs(name: str) -> dict[str, Any]:
    return {"version": TRACE_VERSION, "name": name}


def _write(
    store: GraphStore,
    folder: Path,
    samples: Iterable[Any],
    identity: dict[str, Any],
    progress: Progress,
) -> int:
    """Batches that were written."""
    writer: TraceWriter | None = None
    number = 0
    try:
        for number, data in enumerate(samples, 1):
            sample = _Sample(data, number - 1, store)
            if writer is None:
                writer = TraceWriter(
                    store.disk,
                    folder,
                    num_nodes=store.num_nodes,
                    num_edges=edge_id_limit(store.facts, kept=store.has("edge_ids")),
                    identity=identity,
                    edge_ids=sample.has_edge_ids,
                )
                kept = sample.has_edge_ids
            if sample.has_edge_ids != kept:
                raise sample.error("either all batches have e_id or none has")
            writer.append(sample.task(), sample.subgraph())
            progress.advance(1)
        if writer is not None:
            writer.finish()
    finally:
        if writer is not None:
            writer.close()
    return number


class _Sample:
    """A batch, checked."""

    def __init__(self, data: Any, number: int, store: GraphStore) -> None:
        self._data = data
        self._number = number
        self._n_id = self._ids("n_id", store.num_nodes)
        self._seeds = self._seed_count()
        self._input_id = self._ids("input_id", None, self._n_id[: self._seeds])
        if len(self._input_id) != self._seeds:
            raise self.error(f"input_id has {len(self._input_id)} entries for {self._seeds} seeds")
        self._edges = self._ids("edge_index", len(self._n_id), dims=2)
        if len(self._edges) != 2:
            raise self.error(f"edge_index must be of shape [2, E] (got {list(self._edges.shape)})")
        limit = edge_id_limit(store.facts, kept=store.has("edge_ids"))
        self._e_id = self._ids("e_id", limit, np.empty(0, np.int64))
        self.has_edge_ids = getattr(data, "e_id", None) is not None
        if self.has_edge_ids and len(self._e_id) != self._edges.shape[1]:
            raise self.error(f"e_id has {len(self._e_id)} entries for {self._edges.shape[1]} edges")
        self._hops = self._counts("num_sampled_nodes", len(self._n_id))
        self._edge_hops = self._counts("num_sampled_edges", self._edges.shape[1])
        self._check_hops()

    def task(self) -> Task:
        """Numbered as they come: its epoch follows from the place."""
        return Task(Stream.TRAIN, 0, self._number, self._input_id, self._n_id[: self._seeds])

    def subgraph(self) -> Subgraph:
        sources, targets = self._edges
        order = np.argsort(targets, kind="stable")
        return Subgraph(
            nodes=self._n_id,
            sources=sources[order].astype(np.uint32),
            counts=np.bincount(targets).astype(np.uint32),
            edge_ids=self._e_id[order] if self.has_edge_ids else None,
            nodes_per_hop=self._hops,
            edges_per_hop=self._edge_hops,
            roots=[],
        )

    def error(self, what: str) -> OptionError:
        return OptionError(f"batch {self._number} of the samples: {what}")

    def _seed_count(self) -> int:
        count = getattr(self._data, "batch_size", None)
        if count is None:
            raise self.error("has no batch_size: how many of its first nodes are seeds")
        (number,) = self._integers("batch_size", [count])
        if not 1 <= number <= len(self._n_id):
            raise self.error(f"batch_size must be 1 to {len(self._n_id)}, its nodes (got {number})")
        return number

    def _integers(self, name: str, values: Any) -> list[int]:
        try:
            return [operator.index(value) for value in values]
        except (TypeError, ValueError):
            raise self.error(f"{name} must be whole numbers (got {shown(values)})") from None

    def _ids(self, name: str, bound: int | None, default: Ids | None = None, dims: int = 1) -> Ids:
        value = getattr(self._data, name, None)
        if value is None:
            if default is None:
                raise self.error(f"has no {name}")
            return default
        try:
            array = np.asarray(value.cpu() if hasattr(value, "cpu") else value)
        except (ValueError, OverflowError):  # lists of several lengths
            raise self.error(f"{name} must be an array (got {shown(value)})") from None
        if array.ndim != dims or (array.size and not np.issubdtype(array.dtype, np.integer)):
            shape = f"{array.dtype} {list(array.shape)}"
            raise self.error(f"{name} must be integers of {dims} dimension(s) (got {shape})")
        ids: Ids = array.astype(np.int64)
        high = np.iinfo(np.int64).max if bound is None else bound
        if ids.size and not 0 <= ids.min() <= ids.max() < high:
            raise self.error(f"{name} must be 0 to {high - 1} (got {ids.min()} to {ids.max()})")
        return ids

    def _counts(self, name: str, total: int) -> list[int]:
        value = getattr(self._data, name, None)
        if value is None:
            return []
        counts = self._integers(name, value)
        if min(counts, default=0) < 0 or sum(counts) != total:
            raise self.error(f"{name} must add up to {total} (got {counts})")
        return counts

    def _check_hops(self) -> None:
        """Models leave out the last hops by their counts: these must hold in our order too."""
        if bool(self._hops) != bool(self._edge_hops):
            raise self.error("num_sampled_nodes and num_sampled_edges: give both, or neither")
        first, highest = 0, -1
        for count in self._edge_hops:
            targets = self._edges[1, first : first + count]
            if count and targets.min() <= highest:
                raise self.error(
                    "num_sampled_edges: the edges of a hop must end at later nodes than those of "
                    "the hop before; leave both counts out where that is not so"
                )
            first, highest = first + count, max(highest, int(targets.max(initial=-1)))
