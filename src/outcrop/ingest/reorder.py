"""Reorder: a store -> one with the same graph, its nodes in another order, in bounded memory.

What is used together should lie together: a block of the drive that has one wanted row then has
others. The user's ids stay what they were, in `node_ids.npy`.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from outcrop import _core
from outcrop.disk import aligned_empty
from outcrop.errors import BudgetError, CorruptError, IngestError
from outcrop.ingest.build import LEAST_MEMORY_BYTES, counted, ingest_disk, sort_memory
from outcrop.ingest.orders import NodeOrder, OrderWork, node_order
from outcrop.ingest.source import Ids
from outcrop.options import format_size, parse_size
from outcrop.progress import SILENT, Progress
from outcrop.store.build import StoreBuilder
from outcrop.store.edges import EdgeSorter, RecordLayout
from outcrop.store.format import SPLITS, Manifest
from outcrop.store.permute import PermutePlan, Places, permuted, places_dtype
from outcrop.store.store import GraphStore
from outcrop.store.values import first_outside

_NODES_AT_A_TIME = 1 << 17
_EDGES_AT_A_TIME = 1 << 18


def reorder(
    source: GraphStore,
    path: str | os.PathLike[str],
    order: str | os.PathLike[str] | NodeOrder,
    memory: str | int = "2GB",
    *,
    edge_ids: bool = True,
    progress: Progress = SILENT,
) -> Manifest:
    """Makes the store, or raises and leaves nothing.

    `order`: degree, bfs, a .npy file whose entry i is the node that becomes node i, or an order of
    others, such as community_order of outcrop.layout.partitions. `edge_ids`: keep, for each edge,
    the id that it has in `source`, unless that has none.
    """
    chosen = order if isinstance(order, NodeOrder) else node_order(order)
    reordering = _Reordering(source, chosen, parse_size(memory), progress)
    keep = edge_ids and _has_edge_ids(source)
    with ingest_disk() as disk, StoreBuilder(Path(path), disk) as builder:
        reordering.check_free_space(builder.root, keep)
        places = reordering.write_node_ids(builder)
        reordering.write_topology(builder, places, keep)
        reordering.write_attributes(builder, places)
        manifest = source.manifest
        return builder.commit(
            num_nodes=manifest.num_nodes,
            num_edges=manifest.num_edges,
            num_classes=manifest.num_classes,
            features=manifest.features,
            target_kind=manifest.target_kind,
            source=f"reordering of {source.content}",
            options={"order": chosen.name, "edge_ids": keep},
        )


def _has_edge_ids(source: GraphStore) -> bool:
    """Without the array, ids are places, unless the user wanted none."""
    if source.has("edge_ids"):
        return True
    options = source.manifest.provenance.get("options")
    return not isinstance(options, dict) or options.get("edge_ids") is not False


class _Reordering:
    def __init__(
        self, source: GraphStore, order: NodeOrder, memory: int, progress: Progress
    ) -> None:
        """BudgetError where the memory does not hold what is kept for every node."""
        self._source = source
        self._order = order
        self._progress = progress
        nodes = source.num_nodes
        # Where each node goes, and, while that is found out, which have been told already.
        self._places_bytes = nodes * places_dtype(nodes).itemsize
        found = self._places_bytes + _core.IdSet.memory_bytes(nodes)
        self._order_bytes = order.node_bytes(nodes) + found
        needed = LEAST_MEMORY_BYTES + self._order_bytes
        if memory < needed:
            raise BudgetError(
                f"putting {nodes} nodes into the order {order.name} needs {format_size(needed)} "
                f"of memory (got {format_size(memory)})"
            )
        self._memory = sort_memory(memory)
        source.check_offsets()

    @property
    def _room(self) -> int:
        """Memory beside the places of all nodes."""
        return self._memory - self._places_bytes

    def _layout(self, *, numbered: bool) -> RecordLayout:
        return RecordLayout(wide=self._source.num_nodes > 1 << 32, numbered=numbered)

    def check_free_space(self, folder: Path, keep_edge_ids: bool) -> None:
        """BudgetError where the disk is too small for the store and what is beside it meanwhile."""
        arrays = self._source.manifest.arrays
        edges = self._source.num_edges
        size = sum(entry.data_bytes for entry in arrays.values())
        size += 0 if "node_ids" in arrays else 8 * self._source.num_nodes
        size += 4 * edges if keep_edge_ids and "edge_ids" not in arrays else 0
        records = edges * self._layout(numbered=keep_edge_ids).bytes
        later = arrays["features"].data_bytes if "features" in arrays else 0
        beside = max(records - later if records > self._room else 0, 0)
        if self._source.manifest.features is not None:
            row_bytes = self._source.encoding.row_bytes
            plan = PermutePlan.of(self._source.num_nodes, row_bytes, self._room)
            beside = max(beside, plan.scratch_bytes)
        free = shutil.disk_usage(folder).free
        if free < size + beside:
            raise BudgetError(
                f"{folder.parent}: needs at least {format_size(size + beside)} of disk space "
                f"({format_size(free)} are free)"
            )

    # The order

    def write_node_ids(self, builder: StoreBuilder) -> Places:
        """The user's ids in the new order; returns where each node goes."""
        nodes = self._source.num_nodes
        places: Places = aligned_empty(nodes, places_dtype(nodes))
        work = OrderWork(
            self._source,
            builder.disk,
            builder.scratch,
            self._memory - self._order_bytes,
            self._progress,
        )
        told = self._told(self._order.nodes(work), places)
        if self._source.has("node_ids"):
            for _ in told:
                pass
            self._write_permuted(builder, "node_ids", places)
        else:
            builder.write("node_ids", told, np.int64, rows=nodes)
        return places

    def _told(self, chunks: Iterable[Ids], places: Places) -> Iterator[Ids]:
        """The nodes as they come, each once; where they go is written to `places`."""
        nodes = len(places)
        met = _core.IdSet(nodes)
        done = 0
        for chunk in chunks:
            new = met.add_new(chunk)
            if new < len(chunk):
                node = int(chunk[new])
                beyond = not 0 <= node < nodes
                what = f"but there are only {nodes} nodes" if beyond else "for the second time"
                raise IngestError(self._order.name, f"entry {done + new}", f"node {node}, {what}")
            places[chunk] = np.arange(done, done + len(chunk), dtype=places.dtype)
            done += len(chunk)
            yield chunk

    # Topology

    def write_topology(self, builder: StoreBuilder, places: Places, keep_edge_ids: bool) -> None:
        """Each node's list as it is, with its nodes' new ids, at the node's new place."""
        source = self._source
        source.check_topology(self._progress)
        if source.has("edge_ids"):
            source.checks("edge_ids").check(source.disk, self._progress)
        layout = self._layout(numbered=keep_edge_ids)
        runs = builder.scratch / "runs"
        runs.mkdir()
        with EdgeSorter(builder.disk, runs, self._room, layout) as sorter:
            self._progress.stage("read edges", source.num_edges, "edges")
            for targets, first in self._targets(places):
                self._add(sorter, targets, first, places)
                self._progress.advance(len(targets))
            self._progress.stage("sort edges", source.num_edges, "edges")
            blocks = counted(sorter.blocks(), self._progress)
            builder.write_topology(
                blocks, source.num_nodes, layout, source.num_edges, self._source_edges()
            )
        runs.rmdir()

    def _source_edges(self) -> int:
        """Above every edge id, as far as the width of the ids tells."""
        entry = self._source.manifest.arrays.get("edge_ids")
        if entry is None:
            return self._source.num_edges
        return 1 << (8 * entry.dtype.itemsize - 1)

    def _targets(self, places: Places) -> Iterator[tuple[NDArray[Any], int]]:
        """(New ids of the targets of some edges, the first of these edges), in sequence."""
        indptr = self._source.parts("indptr")
        for first in range(0, self._source.num_nodes, _NODES_AT_A_TIME):
            bounds = indptr[first : first + _NODES_AT_A_TIME + 1]
            new = places[first : first + len(bounds) - 1]
            for begin in range(int(bounds[0]), int(bounds[-1]), _EDGES_AT_A_TIME):
                end = min(begin + _EDGES_AT_A_TIME, int(bounds[-1]))
                yield np.repeat(new, np.diff(np.clip(bounds, begin, end))), begin

    def _add(self, sorter: EdgeSorter, targets: NDArray[Any], first: int, places: Places) -> None:
        last = first + len(targets)
        sources = self._source.load_part("indices", first, last)
        bad = first_outside(sources, 0, len(places))
        if bad is not None:
            raise CorruptError(
                f"{self._source.file('indices')}: edge {first + bad} comes from {sources[bad]}, "
                "which is no node"
            )
        numbers: NDArray[Any] | None = None
        if sorter.layout.numbered:
            numbers = np.arange(first, last)
            if self._source.has("edge_ids"):
                numbers = self._source.load_part("edge_ids", first, last)
        done = 0
        while done < len(targets):
            room = sorter.room().view(sorter.layout.dtype)
            upto = min(done + len(room), len(targets))
            filled = room[: upto - done]
            filled["target"] = targets[done:upto]
            filled["source"] = places[sources[done:upto]]
            if numbers is not None:
                filled["number"] = numbers[done:upto]
            sorter.filled(upto - done)
            done = upto

    # Attributes

    def write_attributes(self, builder: StoreBuilder, places: Places) -> None:
        """Labels, splits and features; adopted features are copied as well."""
        for name in ("labels", "features"):
            if self._source.has(name):
                self._write_permuted(builder, name, places)
        for split in SPLITS:
            if self._source.has(split):
                builder.write(split, self._moved(split, places), np.int64)

    def _write_permuted(self, builder: StoreBuilder, name: str, places: Places) -> None:
        checks = self._source.checks(name)
        rows = permuted(builder.disk, checks, places, builder.scratch, self._room, self._progress)
        entry = checks.entry
        builder.write(name, rows, entry.dtype, entry.shape[1:], entry.shape[0])

    def _moved(self, split: str, places: Places) -> Iterator[Ids]:
        """A split's nodes by their new ids, in its own order: seeds come in the order they did."""
        done = 0
        for block in self._source.checks(split).blocks(self._source.disk):
            nodes = block.view(np.int64)
            bad = first_outside(nodes, 0, len(places))
            if bad is not None:
                raise CorruptError(
                    f"{self._source.file(split)}: entry {done + bad} is {nodes[bad]}, "
                    f"but there are {len(places)} nodes"
                )
            done += len(nodes)
            yield places[nodes].astype(np.int64)
