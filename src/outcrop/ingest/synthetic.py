"""Synthetic graphs -> stores: communities, R-MAT, and expansions of real graphs.

Every edge, label and feature is a pure function of its number and the seed, so the result does not
depend on memory or threads.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from outcrop import _core
from outcrop.disk import aligned_empty
from outcrop.errors import CorruptError, OptionError
from outcrop.ingest.build import (
    check_free_space,
    check_split_memory,
    counted,
    ingest_disk,
    sort_memory,
    write_attributes,
)
from outcrop.ingest.random_attributes import check_train_fraction, random_attributes
from outcrop.ingest.source import (
    NODES_PER_CHUNK,
    Attributes,
    Ids,
    LabelStream,
    RowStream,
    in_chunks,
)
from outcrop.progress import SILENT, Progress
from outcrop.store.build import StoreBuilder
from outcrop.store.edges import EdgeSorter, RecordLayout
from outcrop.store.format import SPLITS, Manifest
from outcrop.store.store import ArrayParts, GraphStore
from outcrop.store.values import first_outside
from outcrop.threads.parallel import cpu_count

_EDGES_PER_SLICE = 1 << 16
# Where nodes is no power of two, R-MAT draws an edge again until both ends exist, which they do at
# least whenever the first quadrant is a: at most 100 times on average.
_LEAST_A = 0.01


@dataclass(frozen=True)
class SynthOptions:
    """A synthetic graph."""

    nodes: int
    edges: int
    dim: int = 128
    classes: int = 16
    seed: int = 0
    kind: Literal["community", "rmat"] = "community"
    train_fraction: float = 0.01
    homophily: float = 0.8
    """community: the share of edges whose ends are in one community."""
    communities: int | None = None
    """community: how many; None: one for about 1000 nodes, but no fewer than classes."""
    rmat: tuple[float, float, float] = (0.45, 0.22, 0.22)
    """rmat: a, b and c; a at least 0.01 unless nodes is a power of two."""

    def __post_init__(self) -> None:
        if self.kind not in ("community", "rmat"):
            raise OptionError(f"kind must be community or rmat (got {self.kind!r})")
        for name, least in (("nodes", 1), ("edges", 0), ("dim", 0), ("classes", 1), ("seed", 0)):
            if not least <= getattr(self, name) < 1 << 63:
                raise OptionError(f"{name} must be {least} to 2^63 - 1 (got {getattr(self, name)})")
        if not 0 <= self.homophily <= 1:
            raise OptionError(f"homophily must be 0 to 1 (got {self.homophily})")
        check_train_fraction(self.train_fraction)
        # So written that NaN is refused too.
        if not (min(self.rmat) >= 0 and sum(self.rmat) <= 1):
            raise OptionError(
                f"rmat's a, b, c must be 0 or more, at most 1 together (got {self.rmat})"
            )
        if self.kind == "rmat" and self.rmat[0] < _LEAST_A and self.nodes & (self.nodes - 1):
            raise OptionError(
                f"rmat's a must be at least {_LEAST_A} unless nodes is a power of two "
                f"(got {self.rmat[0]} for {self.nodes} nodes)"
            )
        if self.kind == "community" and not self.classes <= self.num_communities <= self.nodes:
            raise OptionError(
                f"needs classes <= communities <= nodes "
                f"(got {self.classes}, {self.num_communities}, {self.nodes})"
            )

    @property
    def num_communities(self) -> int:
        if self.communities is not None:
            return self.communities
        return min(max(self.classes, self.nodes // 1000), self.nodes)


class _Graph(Protocol):
    def edges(self, first: int, count: int, out: NDArray[np.uint8], wide: bool) -> None: ...


def synthesise(
    path: Path,
    options: SynthOptions,
    memory: int = 2_000_000_000,
    progress: Progress = SILENT,
) -> Manifest:
    """Makes the store, or raises and leaves nothing."""
    sorting = sort_memory(memory)
    check_split_memory(memory, options.nodes)
    graph: _Graph
    labels = None
    if options.kind == "rmat":
        graph = _core.RmatGraph(options.nodes, *options.rmat, options.seed)
    else:
        graph = _core.CommunityGraph(
            options.nodes, options.num_communities, options.classes, options.homophily,
            options.seed,
        )  # fmt: skip
        labels = graph.labels
    layout = RecordLayout(wide=options.nodes > 1 << 32)
    attributes = random_attributes(
        options.nodes,
        dim=options.dim,
        classes=options.classes,
        train_fraction=options.train_fraction,
        seed=options.seed,
        memory=memory,
        labels=labels,
    )
    with ingest_disk() as disk, StoreBuilder(path, disk) as builder:
        check_free_space(
            builder.root,
            attributes,
            num_nodes=options.nodes,
            num_edges=options.edges,
            layout=layout,
            sort_bytes=sorting,
        )
        with EdgeSorter(disk, builder.scratch, sorting, layout) as sorter:
            progress.stage("make edges", options.edges, "edges")
            _make_edges(graph, options.edges, sorter, progress)
            progress.stage("sort edges", options.edges, "edges")
            blocks = counted(sorter.blocks(), progress)
            builder.write_topology(blocks, options.nodes, layout, options.edges)
        written = write_attributes(builder, str(path), attributes, options.nodes, progress=progress)
        return builder.commit(
            num_nodes=options.nodes,
            num_edges=options.edges,
            num_classes=options.classes,
            features=written.encoding,
            source=f"synthetic {options.kind}",
            options=asdict(options),
        )


def _make_edges(graph: _Graph, edges: int, sorter: EdgeSorter, progress: Progress) -> None:
    """Fills the sorter's memory, in slices, with all threads."""
    layout = sorter.layout
    with ThreadPoolExecutor(cpu_count()) as pool:
        done = 0
        while done < edges:
            room = sorter.room()
            count = min(len(room) // layout.bytes, edges - done)
            slices = [
                pool.submit(
                    graph.edges,
                    done + at,
                    min(_EDGES_PER_SLICE, count - at),
                    room[at * layout.bytes :],
                    layout.wide,
                )
                for at in range(0, count, _EDGES_PER_SLICE)
            ]
            for at, future in enumerate(slices):
                future.result()
                progress.advance(min(_EDGES_PER_SLICE, count - at * _EDGES_PER_SLICE))
            sorter.filled(count)
            done += count


# Expansion


def expansion_kernel(factor: int, edge_factor: float) -> NDArray[np.float64]:
    """The kernel of an expansion: ones on the diagonal, so that each copy keeps its communities,
    and beyond it entries that fall as 1 / ((i + 1)(j + 1)), so that degrees stay skewed; scaled so
    that all sum up to `edge_factor`.
    """
    if factor < 2:
        raise OptionError(f"factor must be at least 2 (got {factor})")
    ranks = 1.0 / np.arange(1, factor + 1)
    between = np.outer(ranks, ranks)
    np.fill_diagonal(between, 0)
    most = factor + between.sum() / between.max()
    if not factor <= edge_factor <= most:
        raise OptionError(
            f"edge_factor must be {factor} to {most:.4g} for factor {factor} (got {edge_factor})"
        )
    kernel: NDArray[np.float64] = between * (edge_factor - factor) / between.sum()
    np.fill_diagonal(kernel, 1)
    return kernel


def expand(
    source: GraphStore,
    path: Path,
    factor: int,
    edge_factor: float | None = None,
    seed: int = 0,
    memory: int = 2_000_000_000,
    progress: Progress = SILENT,
) -> Manifest:
    """A graph `factor` times as large, of the same shape: Kronecker expansion, as Ginex has it.

    Copies of a node have its features, its label and its place in the splits. `edge_factor` (how
    many times as many edges; default: 1.5 x factor) is reached on average.
    """
    edge_factor = 1.5 * factor if edge_factor is None else edge_factor
    kernel = expansion_kernel(factor, edge_factor)
    num_nodes = source.num_nodes * factor
    source.check_offsets()
    sort_memory(memory)  # a check
    check_split_memory(memory, num_nodes)
    wanted = min(memory // 4, 64 << 20)
    attributes = _copied_attributes(source, factor)
    with ingest_disk() as disk, StoreBuilder(path, disk) as builder:
        # At least the edges of the kernel's diagonal; the others are random.
        least_edges = source.num_edges * factor
        check_free_space(builder.root, attributes, num_nodes=num_nodes, num_edges=least_edges)
        expansion = _Expansion(source, kernel, seed, wanted)
        progress.stage("expand edges", source.num_edges * factor, "edges")
        num_edges = expansion.write(builder, progress)
        written = write_attributes(builder, str(path), attributes, num_nodes, progress=progress)
        return builder.commit(
            num_nodes=num_nodes,
            num_edges=num_edges,
            num_classes=written.num_classes,
            features=written.encoding,
            target_kind=written.target_kind,
            source=f"expansion of {source.content}",
            options={"factor": factor, "edge_factor": edge_factor, "seed": seed},
        )


class _Expansion:
    """Writes the expanded topology: the lists come in order, so nothing has to be sorted."""

    def __init__(
        self, source: GraphStore, kernel: NDArray[np.float64], seed: int, memory: int
    ) -> None:
        self._source = source
        self._copies = len(kernel)
        self._core = _core.Expansion(source.num_nodes, self._copies, kernel.reshape(-1), seed)
        num_nodes = source.num_nodes * self._copies
        self._index = np.int32 if num_nodes <= 1 << 31 else np.int64
        # A block's edges may all be kept from every copy.
        self._edges_per_block = max(1, memory // (8 * (self._copies + 1)))

    def write(self, builder: StoreBuilder, progress: Progress) -> int:
        degrees = builder.scratch / "degrees"
        num_edges = 0

        def indices() -> Iterator[NDArray[Any]]:
            nonlocal num_edges
            with open(degrees, "wb") as file:
                for copy in range(self._copies):
                    cut = 0  # of a list whose end is yet to come
                    for indptr, whole in self._blocks():
                        kept, lengths = self._expand(copy, indptr)
                        lengths[0] += cut
                        cut = 0 if whole else int(lengths[0])
                        if whole:
                            lengths.tofile(file)
                        num_edges += len(kept)
                        progress.advance(int(indptr[-1] - indptr[0]))
                        yield kept

        builder.write("indices", indices(), self._index)
        builder.write("indptr", _offsets(degrees), np.int64)
        degrees.unlink()
        return num_edges

    def _expand(
        self, copy: int, indptr: NDArray[np.int64]
    ) -> tuple[NDArray[Any], NDArray[np.int64]]:
        """(in-neighbours, list lengths) of consecutive nodes of a copy."""
        indices = np.ascontiguousarray(self._source.indices[indptr[0] : indptr[-1]])
        bad = first_outside(indices, 0, self._source.num_nodes)
        if bad is not None:
            raise CorruptError(
                f"{self._source.file('indices')}: edge {indptr[0] + bad} comes from "
                f"{indices[bad]}, which is no node"
            )
        out = aligned_empty(len(indices) * self._copies, self._index)
        lengths = np.empty(len(indptr) - 1, np.int64)
        kept = self._core.expand(copy, indptr, indices, out, lengths)
        return out[:kept], lengths

    def _blocks(self) -> Iterator[tuple[NDArray[np.int64], bool]]:
        """Offsets of consecutive lists with few enough edges; whether the last one is whole.

        A list that is longer comes in parts, each alone.
        """
        indptr = self._source.indptr
        most = self._edges_per_block
        first = 0
        while first < self._source.num_nodes:
            end = int(np.searchsorted(indptr, indptr[first] + most, "right")) - 1
            last = min(max(end, first + 1), first + (1 << 20), self._source.num_nodes)
            offsets = np.array(indptr[first : last + 1])
            while offsets[-1] - offsets[0] > most:
                yield np.array([offsets[0], offsets[0] + most]), False
                offsets[0] += most
            yield offsets, True
            first = last


def _offsets(degrees: Path) -> Iterator[NDArray[np.int64]]:
    yield np.zeros(1, np.int64)
    total = 0
    with open(degrees, "rb") as file:
        while len(block := np.fromfile(file, np.int64, 1 << 17)):
            offsets = total + np.cumsum(block)
            total = int(offsets[-1])
            yield offsets


def _copied_attributes(source: GraphStore, factor: int) -> Attributes:
    arrays = source.manifest.arrays
    labels = None
    if "labels" in arrays:
        labels = LabelStream(
            factor * source.num_nodes,
            source.labels.dtype,
            (chunk for _ in range(factor) for chunk in in_chunks(source.labels)),
            kind=source.target_kind,
            width=source.labels.shape[1] if source.labels.ndim > 1 else None,
        )
    splits = {
        split: _copied_ids(source.parts(split), factor, source.num_nodes)
        for split in SPLITS
        if split in arrays
    }
    features = None
    if source.manifest.features is not None:
        features = _copied_features(source, factor)
    return Attributes(features, labels, splits)


def _copied_ids(ids: ArrayParts, factor: int, num_nodes: int) -> Iterator[Ids]:
    for copy in range(factor):
        for first in range(0, len(ids), NODES_PER_CHUNK):
            yield ids[first : first + NODES_PER_CHUNK] + copy * num_nodes


def _copied_features(source: GraphStore, factor: int) -> RowStream:
    rows = source.features
    encoding = rows.encoding

    def chunks(count: int) -> Iterator[NDArray[Any]]:
        """Rows as they are stored: int8 rows would not survive decoding and encoding."""
        for _ in range(factor):
            for first in range(0, source.num_nodes, count):
                ids = np.arange(first, min(first + count, source.num_nodes))
                stored = np.empty(encoding.shape(len(ids)), encoding.dtype)
                rows.start_read(ids, stored).wait()
                yield stored

    return RowStream(factor * source.num_nodes, rows.dim, encoding.name, chunks, stored=True)
