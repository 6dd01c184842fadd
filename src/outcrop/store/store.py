"""GraphStore: a store, opened. Costs milliseconds however large the graph is."""

from __future__ import annotations

import os
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from outcrop import _core
from outcrop.closing import Closing
from outcrop.disk import (
    PAGE_BYTES,
    Disk,
    DiskCounters,
    File,
    Ints,
    Pending,
    aligned_empty,
    given,
    round_up,
)
from outcrop.errors import CorruptError, OptionError, StoreError
from outcrop.options import DiskOptions
from outcrop.progress import SILENT, Progress
from outcrop.store.arrays import map_array
from outcrop.store.checks import CHECK_BYTES, ArrayChecks, Sweep
from outcrop.store.derived import DerivedLayouts
from outcrop.store.facts import ArrayFacts, GraphFacts
from outcrop.store.format import (
    SPLITS,
    ArrayEntry,
    Manifest,
    RowEncoding,
    read_manifest,
)
from outcrop.store.ids import find_nodes
from outcrop.store.labels import StoredLabels, label_read_bytes
from outcrop.store.targets import TargetKind
from outcrop.store.values import check_ends, check_offsets, first_outside

if TYPE_CHECKING:
    import torch

# What PyG's Data has, and a store does not, or not every store: why, and what to do instead.
_LACKING = {
    "x": "it was made without features",
    "y": "it was made without labels",
    **{
        f"{split}_mask": f"it was made without a {split} split; loaders take ids or a mask, too"
        for split in SPLITS
    },
    "edge_index": "edges are kept by target, as store.indptr and store.indices",
    "adj_t": "edges are kept by target, as store.indptr and store.indices",
    "edge_attr": "attributes of edges are not stored yet",
    "edge_weight": "attributes of edges are not stored yet",
    "node_ids": "its nodes have the ids that they have in its source",
    "to": "it stays on its drive; give device= to the loader, and batches arrive there",
    "cuda": "it stays on its drive; give device= to the loader, and batches arrive there",
}


class GraphStore(Closing):
    """A graph on disk: topology as CSC, feature rows, labels, splits.

    Small things (`labels`, `indptr`) are memory maps; feature rows are read by `features`.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        disk: DiskOptions | None = None,
        derived: str | os.PathLike[str] | None = None,
    ) -> None:
        """StoreError where it is none; CorruptError where a file is missing or has another size.

        `derived`: a folder for derived layouts, which other stores may share; None: what
        OUTCROP_DERIVED in the environment says, or the store itself.
        """
        if not isinstance(path, (str, os.PathLike)):
            raise OptionError(
                f"a store is named by its path (got {type(path).__name__}); "
                "outcrop.from_pyg(data, path) makes one of PyG's data"
            )
        self.path = Path(path)
        self.manifest: Manifest = read_manifest(self.path)
        self.num_nodes = self.manifest.num_nodes
        self.num_edges = self.manifest.num_edges
        self.num_classes = self.manifest.num_classes
        self.target_kind: TargetKind = self.manifest.target_kind
        self.num_targets = self.manifest.targets.count
        """Classes, labels or values, by `target_kind`: a model's out_channels."""
        self.node_types = self.manifest.node_types
        self.edge_types = self.manifest.edge_types
        for name in self.manifest.arrays:
            self._check_file(name)
        self._disk_options = disk
        self._disk: Disk | None = None
        self._more_disks: dict[DiskOptions, Disk] = {}
        self._derived_elsewhere = derived
        self._reads_checked = False
        advice = f"outcrop verify {self.path} shows all that is damaged"
        self._checks = {
            name: ArrayChecks(self.path, entry, advice)
            for name, entry in self.manifest.arrays.items()
        }
        self.closed = False

    def _check_file(self, name: str) -> None:
        entry = self.manifest.arrays[name]
        try:
            found = os.stat(self.file(name))
        except OSError as error:
            raise CorruptError(f"{self.file(name)}: {error.strerror}") from error
        if found.st_size != entry.file_bytes:
            raise CorruptError(
                f"{self.file(name)}: {found.st_size} B, but the manifest says {entry.file_bytes} B"
            )
        if entry.adopted_mtime_ns not in (None, found.st_mtime_ns):
            raise CorruptError(
                f"{self.file(name)}: adopted in place, and changed since; import it again"
            )

    # What is in it

    @property
    def content(self) -> str:
        """A digest of the content: equal for equal stores, wherever and whenever they were made."""
        return self.manifest.content

    def file(self, name: str) -> Path:
        """The path of an array's file."""
        return self.path / self._entry(name).file

    def _entry(self, name: str) -> ArrayEntry:
        entry = self.manifest.arrays.get(name)
        if entry is None:
            raise StoreError(f"{self.path}: has no {name}")
        return entry

    def array(
        self, name: str, *, random_access: bool = False, private: bool = False
    ) -> NDArray[Any]:
        """An array as a memory map: indptr, indices, labels, train ...

        Without readahead for `random_access`; read-only, unless changes may be `private`.
        """
        entry = self._entry(name)
        if self._reads_checked:
            self.checks(name).check(self.disk)
        mapped = map_array(self.path, entry, random_access=random_access, private=private)
        if name == "indptr":  # whoever follows it checks the others
            check_ends(self.file(name), mapped, self.num_edges)
        return mapped

    def load(self, name: str) -> NDArray[Any]:
        """An array in memory of its own, compared with its checksums.

        CorruptError where they differ; and where it is indptr, and descends.
        """
        loaded = self.checks(name).load(self.disk)
        if name == "indptr":
            check_offsets(self.file(name), loaded, self.num_edges)
        return loaded

    def checks(self, name: str) -> ArrayChecks:
        """Compares what is read of an array with its checksums."""
        self._entry(name)
        return self._checks[name]

    def check_reads(self, progress: Progress = SILENT) -> None:
        """From now on nothing of this store is used that was not compared with its checksums.

        The topology is compared now; of features, edge ids and labels the pieces (64 MiB) that rows
        are read from, and of what is memory-mapped all of it, when they are first used.
        CorruptError if damaged.
        """
        self._reads_checked = True
        for name in ("features", "edge_ids", "labels"):
            if self.has(name):
                self.checks(name).on_read = True
        self.check_topology(progress)

    @property
    def check_bytes(self) -> int:
        """Memory that checks of reads take."""
        return CHECK_BYTES if self._reads_checked else 0

    def check_topology(self, progress: Progress = SILENT) -> None:
        """CorruptError where a byte of it is damaged; reads all of it, once while it is open."""
        for name in ("indptr", "indices"):
            self.checks(name).check(self.disk, progress)

    def check_offsets(self) -> None:
        """A pass over indptr, for those who read it in parts; CorruptError where it descends."""
        check_offsets(self.file("indptr"), self.parts("indptr"), self.num_edges)

    def parts(self, name: str) -> ArrayParts:
        """An array of one dimension that is read where it is looked at."""
        return ArrayParts(self, name)

    def load_part(self, name: str, first: int, last: int) -> NDArray[Any]:
        """Entries [first, last) of an array of one dimension, in memory of their own."""
        entry = self._entry(name)
        with self.disk.open(self.file(name)) as file:
            size = entry.dtype.itemsize
            part = file.read(entry.data_offset + first * size, (last - first) * size)
        values: NDArray[Any] = part.view(entry.dtype)
        return values

    def array_bytes(self, name: str) -> int:
        """What an array takes in memory."""
        entry = self._entry(name)
        return entry.file_bytes - entry.data_offset

    def has(self, name: str) -> bool:
        return name in self.manifest.arrays

    @cached_property
    def facts(self) -> GraphFacts:
        """What plans are made from."""
        targets = self.manifest.targets
        return GraphFacts(
            name=str(self.path),
            num_nodes=self.num_nodes,
            num_edges=self.num_edges,
            arrays={
                name: ArrayFacts(self.array_bytes(name), entry.dtype.itemsize)
                for name, entry in self.manifest.arrays.items()
            },
            rows=self.manifest.features,
            label_bytes=self.num_nodes * targets.held_row_bytes if self.has("labels") else 0,
            y_row_bytes=targets.batch_row_bytes,
            label_read_bytes=label_read_bytes(targets),
        )

    @cached_property
    def indptr(self) -> NDArray[np.int64]:
        """Node v's in-neighbours are indices[indptr[v] : indptr[v + 1]]."""
        return self.array("indptr")

    @cached_property
    def indices(self) -> NDArray[np.int32 | np.int64]:
        return self.array("indices")

    @cached_property
    def labels(self) -> NDArray[Any]:
        """As they are stored, by `target_kind`: int64 [N], int8 [N, T] (-1: none), or floats."""
        return self.array("labels")

    def load_labels(self) -> NDArray[Any]:
        """Labels in memory, as small as they can be; CorruptError where one is of no class."""
        targets = self.manifest.targets
        labels = aligned_empty((self.num_nodes, *targets.row_shape), targets.held)
        numbers = labels.reshape(-1)
        done = 0
        for block in self.checks("labels").blocks(self.disk):
            chunk = block.view(targets.stored)
            bad = targets.first_wrong(chunk)
            if bad is not None:
                what = targets.describe_wrong(done + bad, chunk[bad])
                raise CorruptError(f"{self.file('labels')}: {what}")
            numbers[done : done + len(chunk)] = chunk
            done += len(chunk)
        return given(labels)

    def stored_labels(self) -> StoredLabels:
        """Labels on disk, for those who read them batch by batch."""
        return StoredLabels(self.disk, self.checks("labels"), self.manifest.targets)

    def targets(self, nodes: Ints | slice) -> NDArray[Any]:
        """Labels of these nodes as batches have them: int64, or float32 where NaN is none."""
        return self.manifest.targets.take(self.labels, nodes)

    def split(self, name: str) -> NDArray[np.int64]:
        """Node ids of "train", "val" or "test"; CorruptError where one is of no node."""
        if name not in SPLITS:
            raise OptionError(f"a split is one of {', '.join(SPLITS)} (got {name!r})")
        if not self.has(name):
            raise StoreError(f"{self.path}: has no {name} split; loaders take ids or a mask, too")
        nodes = self.load(name)
        bad = first_outside(nodes, 0, self.num_nodes)
        if bad is not None:
            raise CorruptError(
                f"{self.file(name)}: entry {bad} is {nodes[bad]}, "
                f"but there are {self.num_nodes} nodes"
            )
        nodes.flags.writeable = False
        return nodes

    # Whose ids they are

    @cached_property
    def node_ids(self) -> NDArray[np.int64]:
        """The user's id of each node, as a memory map. AttributeError: they are the nodes' own."""
        self._check_present("node_ids", "node_ids")
        return self.array("node_ids")

    def to_original(self, nodes: Ints) -> NDArray[np.int64]:
        """Nodes, `batch.n_id` say -> the user's ids: those of the source that was imported."""
        nodes = np.asarray(nodes, dtype=np.int64)
        return np.asarray(self.node_ids[nodes]) if self.has("node_ids") else nodes

    def to_internal(self, ids: Ints) -> NDArray[np.int64]:
        """The user's ids -> nodes, as loaders take them; OptionError where no node has one.

        A pass over all ids of the store, however few are asked for.
        """
        ids = np.asarray(ids, dtype=np.int64)
        if self.has("node_ids"):
            return find_nodes(self.parts("node_ids"), ids, str(self.path))
        bad = first_outside(ids.reshape(-1), 0, self.num_nodes)
        if bad is not None:
            raise OptionError(f"{self.path}: no node has the id {ids.reshape(-1)[bad]}")
        return ids

    @property
    def encoding(self) -> RowEncoding:
        """How feature rows are stored."""
        if self.manifest.features is None:
            raise StoreError(f"{self.path}: has no features")
        return self.manifest.features

    # As PyG's Data has them. Importing torch takes seconds: only those who ask for tensors do.

    @property
    def num_features(self) -> int:
        """Features per node."""
        return self.encoding.dim

    num_node_features = num_features

    @property
    def x(self) -> torch.Tensor:
        """Feature rows, [N, F], as a memory map: for a look at some. AttributeError: has none."""
        self._check_present("x", "features")
        if self.encoding.name != "float32":
            raise StoreError(
                f"{self.path}: rows are stored as {self.encoding.name}, so there is no raw x to "
                "look at; use outcrop infer, or store.features.gather(ids)"
            )
        return self._tensor("features")

    @property
    def y(self) -> torch.Tensor:
        """Labels as batches have them. AttributeError: the store has none.

        Classes [N] (-1: none) and values (NaN: none) as a memory map; labels [N, T] of 0, 1 and NaN
        in memory, 4 bytes each, made anew whenever asked for.
        """
        self._check_present("y", "labels")
        if self.target_kind != "multilabel":
            return self._tensor("labels")
        import torch

        return torch.from_numpy(self.targets(slice(None)))

    @property
    def train_mask(self) -> torch.Tensor:
        """Whether each node is in "train": a byte per node, made anew whenever asked for."""
        return self._mask("train")

    @property
    def val_mask(self) -> torch.Tensor:
        return self._mask("val")

    @property
    def test_mask(self) -> torch.Tensor:
        return self._mask("test")

    def _mask(self, split: str) -> torch.Tensor:
        self._check_present(f"{split}_mask", split)
        import torch

        mask = np.zeros(self.num_nodes, dtype=bool)
        mask[self.split(split)] = True
        return torch.from_numpy(mask)

    def _tensor(self, name: str) -> torch.Tensor:
        """Over a private memory map: torch wants writable memory, and the file stays as it is."""
        import torch

        return torch.from_numpy(self.array(name, private=True))

    def _check_present(self, name: str, array: str) -> None:
        if not self.has(array):
            raise AttributeError(name)  # becomes the sentence of __getattr__

    if not TYPE_CHECKING:  # mypy is to find attributes that do not exist

        def __getattr__(self, name: str) -> Any:
            """Names that are not there: of those that PyG's Data has, why, and what instead."""
            if name in _LACKING:
                raise AttributeError(f"{self.path} has no {name}: {_LACKING[name]}")
            kind = type(self).__name__
            message = f"{kind!r} object has no attribute {name!r}"
            raise AttributeError(message, name=name, obj=self)

    @cached_property
    def features(self) -> FeatureRows:
        return self._features_of(self.disk)

    def features_by(self, *, unit_bytes: int, merge: bool) -> FeatureRows:
        """The same rows, read by an engine of their own."""
        options = replace(self.disk.options, unit_bytes=unit_bytes, merge=merge)
        if options not in self._more_disks:
            self._more_disks[options] = Disk(options, beside=self.disk)
        return self._features_of(self._more_disks[options])

    def _features_of(self, disk: Disk) -> FeatureRows:
        return FeatureRows(disk, self.checks("features"), self.encoding)

    @property
    def counters(self) -> DiskCounters:
        """The counters of all engines that read this store, added up."""
        first = self.disk if self._disk is None else self._disk  # also of a closed one
        return sum((disk.counters for disk in self._more_disks.values()), first.counters)

    @cached_property
    def derived(self) -> DerivedLayouts:
        """What strategies keep beside the store's own arrays."""
        return DerivedLayouts(self.path, self.content, self._derived_elsewhere)

    @property
    def disk(self) -> Disk:
        """The engine that reads this store; made when first used. StoreError after `close`."""
        if self.closed:
            raise self.closed_error()
        if self._disk is None:
            self._disk = Disk(self._disk_options)
        return self._disk

    def closed_error(self) -> StoreError:
        return StoreError(f"{self.path}: this store is closed: open it again")

    def close(self) -> None:
        """Ends its engines; closed twice is closed."""
        self.closed = True
        self.__dict__.pop("features", None)
        for disk in (self._disk, *self._more_disks.values()):
            if disk is not None:
                disk.close()

    def __repr__(self) -> str:
        return f"GraphStore({str(self.path)!r}, nodes={self.num_nodes}, edges={self.num_edges})"


class ArrayParts:
    """An array of one dimension on disk: each slice of it is read, into memory of its own.

    Unlike with a memory map, what cannot be read is an error.
    """

    def __init__(self, store: GraphStore, name: str) -> None:
        self._store = store
        self._name = name
        self._entries = store.manifest.arrays[name].shape[0]

    def __len__(self) -> int:
        return self._entries

    def __getitem__(self, at: slice | int) -> NDArray[Any]:
        """As in numpy; slices have no step."""
        if isinstance(at, int):
            first = at % len(self)
            return self._store.load_part(self._name, first, first + 1)[0]  # type: ignore[no-any-return]
        first, last, _ = at.indices(len(self))
        return self._store.load_part(self._name, first, max(first, last))


class FeatureRows:
    """The feature rows of a store, read from disk by node id."""

    def __init__(self, disk: Disk, checks: ArrayChecks, encoding: RowEncoding) -> None:
        """`checks`: of their file."""
        self.file: File = disk.open(checks.path)
        self.checks = checks
        self.base = checks.entry.data_offset
        """The byte of the file at which they begin."""
        self._disk = disk
        self.encoding = encoding
        self.dim = encoding.dim
        self.num_rows = checks.entry.shape[0]

    @property
    def layout(self) -> _core.RowLayout | None:
        """Tells which rows are read with others; None where each has a request of its own."""
        options = self._disk.options
        if not options.merge:
            return None
        return _core.RowLayout(
            base_bytes=self.base,
            row_bytes=self.encoding.row_bytes,
            unit_bytes=options.unit_bytes or 1,
            gap_bytes=options.gap_bytes,
        )

    def start_read(self, ids: Ints, out: NDArray[Any], places: Ints | None = None) -> Pending:
        """Rows of `ids` (ascending) as they are stored -> out[places]."""
        if self.checks.on_read:
            self.check(ids)
        return self.file.start_read_rows(ids, out, base=self.base, places=places)

    def start_scan(
        self, first: int, last: int, memory: NDArray[np.uint8]
    ) -> tuple[Pending, NDArray[np.uint8]]:
        """Rows [first, last) as they are stored, in sequence -> where they will be in `memory`.

        It is page-aligned and has room for two pages more than the rows: whole pages are read.
        """
        begin = self.base + first * self.encoding.row_bytes
        end = self.base + last * self.encoding.row_bytes
        start, stop = begin - begin % PAGE_BYTES, min(round_up(end), self.file.size)
        pending = self.file.start_read_extents([start], [stop - start], memory[: stop - start])
        return pending, memory[begin - start : end - start]

    def sweep(self, row: int) -> Sweep:
        """Compares all rows from `row` on with their checksums, as they come from `start_scan`."""
        return self.checks.sweep(self.file, self.base + row * self.encoding.row_bytes)

    def check(self, ids: Ints) -> None:
        """CorruptError where a piece that one of these rows lies in is damaged."""
        self.checks.check_rows(self._disk, ids, self.encoding.row_bytes)

    def gather(self, ids: Ints) -> NDArray[np.float32]:
        """Rows of `ids`, in any order and as often as wanted -> float32 [len(ids), dim]."""
        wanted = np.ascontiguousarray(ids, dtype=np.int64)
        order = np.argsort(wanted, kind="stable")
        stored = aligned_empty((len(wanted), self.encoding.row_bytes))
        self.start_read(wanted[order], stored, order).wait()
        return decode(given(stored), self.encoding)


def decode(stored: NDArray[np.uint8], encoding: RowEncoding) -> NDArray[np.float32]:
    """Rows as they are stored, [n, row_bytes] -> float32 [n, dim]."""
    if encoding.name == "float32":
        return stored.view(np.float32)
    out = np.empty((len(stored), encoding.dim), dtype=np.float32)
    decode_into(stored, encoding, out)
    return out


def decode_into(stored: NDArray[np.uint8], encoding: RowEncoding, out: NDArray[np.float32]) -> None:
    """Rows as they are stored, [n, row_bytes] -> out, [n, dim]. Not for float32."""
    if encoding.name == "int8":
        _core.decode_int8(stored.reshape(-1), out)
    elif encoding.name == "float16":
        _core.decode_float16(stored.reshape(-1).view(np.uint16), out)
    else:
        _core.decode_bfloat16(stored.reshape(-1).view(np.uint16), out)
