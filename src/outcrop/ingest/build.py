"""Import: a graph source -> a store. The one way in for every format."""

from __future__ import annotations

import math
import shutil
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from outcrop import _core
from outcrop.disk import Disk
from outcrop.errors import BudgetError, IngestError, OptionError
from outcrop.ingest.compact import Compaction
from outcrop.ingest.labels import LabelReader
from outcrop.ingest.source import (
    NODES_PER_CHUNK,
    AdoptedRows,
    Attributes,
    EdgeChunk,
    GraphSource,
    Ids,
    IngestOptions,
    LabelStream,
    RowStream,
)
from outcrop.options import DiskOptions, format_size
from outcrop.progress import SILENT, Progress
from outcrop.store.arrays import map_array
from outcrop.store.build import StoreBuilder
from outcrop.store.edges import LEAST_SORT_BYTES, Block, EdgeSorter, RecordLayout
from outcrop.store.format import SPLITS, Manifest, RowEncoding
from outcrop.store.targets import TargetKind, without_target

# Besides sorting: chunks of edges, write buffers of three arrays, blocks, the engine.
_OTHER_BYTES = 16 << 20
LEAST_MEMORY_BYTES = 32 << 20
_ROW_CHUNK_BYTES = 2 << 20
# The longest row. It is held in memory several times: what a header claims is not allocated unseen.
_MOST_DIM = 1 << 20


def ingest_disk() -> Disk:
    """An engine for long sequential transfers: few workers, little memory."""
    return Disk(DiskOptions(workers=2))


def import_graph(
    source: GraphSource,
    path: Path,
    options: IngestOptions | None = None,
    progress: Progress = SILENT,
) -> Manifest:
    """Makes the store, or raises and leaves nothing."""
    options = options or IngestOptions()
    memory = sort_memory(options.memory)
    attributes = None
    if source.num_nodes is not None:
        _check_num_nodes(source.name, source.num_nodes)
        attributes = _checked_attributes(source, source.num_nodes, options)
    with ingest_disk() as disk, StoreBuilder(path, disk) as builder:
        if source.num_nodes is not None and attributes is not None:
            check_free_space(
                builder.root,
                attributes,
                num_nodes=source.num_nodes,
                num_edges=_least_edges(source, options),
                feature_dtype=options.feature_dtype,
                layout=_layout(source, options),
                sort_bytes=memory,
            )
        num_nodes, num_edges = _import_topology(builder, source, options, memory, progress)
        attributes = attributes or _checked_attributes(source, num_nodes, options)
        written = write_attributes(
            builder, source.name, attributes, num_nodes, options.feature_dtype, progress
        )
        return builder.commit(
            num_nodes=num_nodes,
            num_edges=num_edges,
            num_classes=written.num_classes,
            features=written.encoding,
            target_kind=written.target_kind,
            source=source.name,
            # What changes the result; the memory does not.
            options={key: value for key, value in asdict(options).items() if key != "memory"},
        )


def sort_memory(memory: int) -> int:
    """What is left of a budget for sorting edges; BudgetError where that is too little."""
    if memory < LEAST_MEMORY_BYTES:
        raise BudgetError(
            f"memory must be at least {format_size(LEAST_MEMORY_BYTES)} (got {format_size(memory)})"
        )
    return max(memory - _OTHER_BYTES, LEAST_SORT_BYTES)


def check_split_memory(memory: int, num_nodes: int) -> None:
    """BudgetError where a budget has no room for two bitmaps of all nodes: those of a split that
    is made, and those of all splits before it.
    """
    needed = _OTHER_BYTES + 2 * _core.IdSet.memory_bytes(num_nodes)
    if memory < needed:
        raise BudgetError(
            f"splits of {num_nodes} nodes need {format_size(needed)} of memory "
            f"(got {format_size(memory)})"
        )


def check_free_space(
    folder: Path,
    attributes: Attributes,
    *,
    num_nodes: int,
    num_edges: int,
    feature_dtype: str | None = None,
    layout: RecordLayout | None = None,
    sort_bytes: int = 0,
) -> None:
    """BudgetError where the disk is too small for what is known to come: the topology, and beside
    it first the records that do not fit the memory for sorting, then features and labels.
    """
    edge_bytes = 4 if num_nodes <= 1 << 31 else 8
    record_bytes = 0
    if layout is not None and num_edges * layout.bytes > sort_bytes:
        record_bytes = layout.bytes
    node_bytes = 0 if attributes.labels is None else attributes.labels.stored_row_bytes
    if isinstance(attributes.features, RowStream):
        node_bytes += _encoding(attributes.features, feature_dtype).row_bytes
    topology = 8 * num_nodes + num_edges * edge_bytes
    needed = topology + max(num_edges * record_bytes, num_nodes * node_bytes)
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise BudgetError(
            f"{folder.parent}: needs at least {format_size(needed)} of disk space "
            f"({format_size(free)} are free)"
        )


def _least_edges(source: GraphSource, options: IngestOptions) -> int:
    """How many edges the store has at least, as far as the source tells."""
    if source.unit != "edges" or options.drop_self_loops or options.merge_multi_edges:
        return 0
    return source.total or 0


def _layout(source: GraphSource, options: IngestOptions) -> RecordLayout:
    return RecordLayout(
        wide=source.num_nodes is None or source.num_nodes > 1 << 32,
        numbered=options.edge_ids,
        by_source=options.merge_multi_edges,
    )


def _import_topology(
    builder: StoreBuilder,
    source: GraphSource,
    options: IngestOptions,
    memory: int,
    progress: Progress,
) -> tuple[int, int]:
    """Writes the topology; returns the numbers of nodes and edges."""
    sparse = source.num_nodes is None
    layout = _layout(source, options)
    bitmap_memory = memory // 4 if sparse else 0
    compaction = None
    if sparse:
        compaction = Compaction(
            builder.disk, builder.scratch, bitmap_memory, drop_loops=options.drop_self_loops
        )
    runs = builder.scratch / "runs"
    runs.mkdir()
    with EdgeSorter(builder.disk, runs, memory - bitmap_memory, layout) as sorter:
        progress.stage("read edges", source.total, source.unit)
        packing = _Packing(
            limit=int(np.iinfo(np.int64).max) if sparse else _required(source.num_nodes),
            undirected=options.undirected,
            drop_loops=options.drop_self_loops and not sparse,
        )
        number = 0
        for chunk in source.edges:
            if compaction is not None:
                _refuse_negative(source.name, chunk)
                compaction.add(chunk)
            _add_edges(sorter, source.name, chunk, packing, number)
            number += len(chunk.sources)
            progress.advance(chunk.consumed)
        progress.stage("sort edges", sorter.records, "edges")
        if compaction is not None:
            compaction.prepare(sorter, memory)
            blocks = compaction.blocks(sorter)
            num_nodes = compaction.num_nodes
        else:
            blocks = sorter.blocks()
            num_nodes = _required(source.num_nodes)
        _check_num_nodes(source.name, num_nodes)
        told = counted(blocks, progress)
        dropped_later = options.merge_multi_edges or (sparse and options.drop_self_loops)
        known = None if dropped_later else sorter.records
        num_edges = builder.write_topology(told, num_nodes, layout, known, source_edges=number)
    if compaction is not None:
        builder.write("node_ids", compaction.node_ids(), np.int64, rows=num_nodes)
    runs.rmdir()
    return num_nodes, num_edges


def _check_num_nodes(name: str, num_nodes: int) -> None:
    if num_nodes == 0:
        raise IngestError(name, "", "no nodes")
    if not 0 < num_nodes < 1 << 63:
        raise IngestError(name, "num_nodes", f"must be 1 to 2^63 - 1 (got {num_nodes})")


def _required(num_nodes: int | None) -> int:
    assert num_nodes is not None
    return num_nodes


def counted(blocks: Iterable[Block], progress: Progress) -> Iterator[Block]:
    """The blocks, with progress told as each is done."""
    for block in blocks:
        yield block
        progress.advance(block.count)


def _refuse_negative(name: str, chunk: EdgeChunk) -> None:
    """Before ids enter the bitmap."""
    for ids in (chunk.sources, chunk.targets):
        if len(ids) and ids.min() < 0:
            index = int(np.argmax(ids < 0))
            raise IngestError(name, chunk.place(index), f"node id {ids[index]} is negative")


@dataclass(frozen=True)
class _Packing:
    limit: int
    """Ids are below it."""
    undirected: bool
    drop_loops: bool


def _add_edges(
    sorter: EdgeSorter, name: str, chunk: EdgeChunk, packing: _Packing, first_number: int
) -> None:
    done = 0
    while done < len(chunk.sources):
        room = sorter.room()
        if len(room) < 2 * sorter.layout.bytes:  # an edge and its reverse
            sorter.spill()
            continue
        records, edges, bad = _core.pack_edges(
            chunk.sources[done:],
            chunk.targets[done:],
            packing.limit,
            packing.undirected,
            packing.drop_loops,
            first_number + done,
            room,
            sorter.layout.wide,
            sorter.layout.numbered,
        )
        sorter.filled(records)
        done += edges
        if bad:
            _raise_bad_id(name, chunk, done, packing.limit)


def _raise_bad_id(name: str, chunk: EdgeChunk, index: int, limit: int) -> None:
    for node in (int(chunk.sources[index]), int(chunk.targets[index])):
        if node < 0:
            raise IngestError(name, chunk.place(index), f"node id {node} is negative")
        if node >= limit:
            raise IngestError(
                name, chunk.place(index), f"node id {node}, but there are only {limit} nodes"
            )


# Attributes


def _checked_attributes(source: GraphSource, num_nodes: int, options: IngestOptions) -> Attributes:
    """What the streams promise fits the graph and the options."""
    attributes = source.attributes(num_nodes)
    if attributes.features is not None:
        _check_rows(source.name, attributes.features, num_nodes, options.feature_dtype)
    labels = attributes.labels
    if labels is not None:
        _check_labels(source.name, labels, num_nodes)
    if attributes.splits:
        check_split_memory(options.memory, num_nodes)
    return attributes


def _check_labels(name: str, labels: LabelStream, num_nodes: int) -> None:
    if labels.dtype.kind not in "iufb":
        raise IngestError(name, "labels", f"must be numbers (got {labels.dtype})")
    if labels.count != num_nodes:
        raise IngestError(name, "labels", f"{labels.count} labels for {num_nodes} nodes")
    width = labels.width
    if width is not None and not 0 < width <= _MOST_DIM:
        raise IngestError(name, "labels", f"{width} per node; 1 to {_MOST_DIM} are taken")
    if labels.kind == "classes" and width not in (None, 1):
        raise IngestError(name, "labels", f"a node has one class (got {width} per node)")


def _check_rows(
    name: str, features: RowStream | AdoptedRows, num_nodes: int, feature_dtype: str | None
) -> None:
    if features.rows != num_nodes:
        raise IngestError(name, "features", f"{features.rows} rows for {num_nodes} nodes")
    if features.dim < 1:
        raise IngestError(name, "features", "rows without values")
    if features.dim > _MOST_DIM:
        raise IngestError(
            name, "features", f"rows of {features.dim} values; at most {_MOST_DIM} are taken"
        )
    if isinstance(features, AdoptedRows) and feature_dtype not in (None, features.encoding):
        raise OptionError(
            f"{features.path}: features that are adopted stay {features.encoding} "
            f"(got feature_dtype {feature_dtype})"
        )


@dataclass(frozen=True)
class WrittenAttributes:
    """What the manifest says of features and labels."""

    encoding: RowEncoding | None
    num_classes: int
    target_kind: TargetKind


def write_attributes(
    builder: StoreBuilder,
    name: str,
    attributes: Attributes,
    num_nodes: int,
    feature_dtype: str | None = None,
    progress: Progress = SILENT,
) -> WrittenAttributes:
    """Writes features, labels and splits."""
    num_classes = 0
    target_kind: TargetKind = "classes"
    if attributes.labels is not None:
        progress.stage("labels", num_nodes, "nodes")
        reader = LabelReader(name, attributes.labels, progress)
        builder.write("labels", reader.chunks(), reader.dtype, reader.row_shape, num_nodes)
        num_classes, target_kind = reader.num_classes, reader.kind
    _write_splits(builder, name, attributes.splits, num_nodes)
    encoding = None
    features = attributes.features
    if features is not None:
        encoding = _encoding(features, feature_dtype)
        if isinstance(features, AdoptedRows):
            progress.stage("hash features", None)
            builder.adopt("features", features.path)
        else:
            _write_features(builder, name, features, encoding, progress)
    return WrittenAttributes(encoding, num_classes, target_kind)


def _encoding(features: RowStream | AdoptedRows, feature_dtype: str | None) -> RowEncoding:
    return RowEncoding(feature_dtype or features.encoding, features.dim)


def _write_splits(
    builder: StoreBuilder, name: str, splits: Mapping[str, Iterable[Ids]], num_nodes: int
) -> None:
    taken = _core.IdSet(num_nodes)
    labels = None
    if "labels" in builder.arrays:
        labels = map_array(builder.root, builder.arrays["labels"])

    def checked(split: str, chunks: Iterable[Ids]) -> Iterator[Ids]:
        for chunk in chunks:
            ids = np.ascontiguousarray(chunk, dtype=np.int64)
            new = taken.add_new(ids)
            if new < len(ids):
                node = int(ids[new])
                beyond = not 0 <= node < num_nodes
                what = f"but there are only {num_nodes} nodes" if beyond else "for the second time"
                raise IngestError(name, f"split {split}", f"node {node}, {what}")
            if labels is not None and (node_without := _first_without(labels, ids)) is not None:
                raise IngestError(name, f"split {split}", f"node {node_without} has no label")
            yield ids

    for split in SPLITS:
        if split in splits:
            builder.write(split, checked(split, splits[split]), np.int64)


def _first_without(labels: NDArray[Any], ids: Ids) -> int | None:
    """The first of these nodes that has no label at all."""
    at_a_time = max(1, NODES_PER_CHUNK // math.prod(labels.shape[1:]))
    for first in range(0, len(ids), at_a_time):
        some = ids[first : first + at_a_time]
        missing = without_target(labels[some])
        if missing.any():
            return int(some[np.argmax(missing)])
    return None


def _write_features(
    builder: StoreBuilder,
    name: str,
    features: RowStream,
    encoding: RowEncoding,
    progress: Progress,
) -> None:
    progress.stage("features", features.rows * encoding.row_bytes)
    chunks = features.chunks(max(1, _ROW_CHUNK_BYTES // (4 * features.dim)))
    stored = chunks if features.stored else _encoded(name, chunks, encoding)

    def told() -> Iterator[NDArray[Any]]:
        for chunk in stored:
            progress.advance(chunk.nbytes)
            yield chunk

    builder.write("features", told(), encoding.dtype, encoding.shape(0)[1:], rows=features.rows)


def _encoded(
    name: str, chunks: Iterable[NDArray[Any]], encoding: RowEncoding
) -> Iterator[NDArray[Any]]:
    row = 0
    for chunk in chunks:
        stored = encoding.encode(chunk)
        lost = encoding.lost(chunk, stored)
        if lost.any():
            node = row + int(np.argmax(lost))
            raise IngestError(
                name, f"features of node {node}", f"not finite, or not as {encoding.name}"
            )
        row += len(chunk)
        yield stored
