"""Build: arrays in chunks -> a store, made beside its final name and renamed when it is whole."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from outcrop import _core
from outcrop._version import __version__
from outcrop.disk import Disk, aligned_empty
from outcrop.store.arrays import ArrayWriter, adopt_array
from outcrop.store.edges import Block, RecordLayout
from outcrop.store.format import FILES, MANIFEST, ArrayEntry, Manifest, RowEncoding
from outcrop.store.locks import write_synced
from outcrop.store.targets import TargetKind
from outcrop.store.workdir import WorkDirectory

_OFFSETS_PER_BLOCK = 1 << 17
_IDS_PER_BLOCK = 1 << 17


class StoreBuilder:
    """Collects the arrays of a new store. Without `commit`, nothing of it remains."""

    def __init__(self, path: Path, disk: Disk) -> None:
        self._work = WorkDirectory(path)
        self.disk = disk
        self.root = self._work.path
        self.scratch = self.root / "scratch"
        """For files that do not become part of the store."""
        self.scratch.mkdir()
        self.arrays: dict[str, ArrayEntry] = {}

    def write(
        self,
        name: str,
        chunks: Iterable[NDArray[Any]],
        dtype: np.dtype[Any] | type,
        row_shape: tuple[int, ...] = (),
        rows: int | None = None,
    ) -> None:
        """Writes one array, chunk by chunk."""
        with self._writer(name, dtype, row_shape, rows) as writer:
            for chunk in chunks:
                writer.append(chunk)
            self.arrays[name] = writer.close()

    def _writer(
        self,
        name: str,
        dtype: np.dtype[Any] | type,
        row_shape: tuple[int, ...] = (),
        rows: int | None = None,
    ) -> ArrayWriter:
        return ArrayWriter(self.disk, self.root, FILES[name], np.dtype(dtype), row_shape, rows)

    def adopt(self, name: str, path: Path) -> None:
        """Takes an existing .npy file as an array, where it is."""
        self.arrays[name] = adopt_array(self.disk, path)

    def write_topology(
        self,
        blocks: Iterable[Block],
        num_nodes: int,
        layout: RecordLayout,
        num_edges: int | None = None,
        source_edges: int = 0,
    ) -> int:
        """Sorted records -> indptr, indices and, where numbers differ from places, edge_ids.

        `source_edges`: above every number. Returns how many edges there are.
        """
        index = np.int32 if num_nodes <= 1 << 31 else np.int64
        csc = _core.CscWriter(num_nodes)
        offsets = aligned_empty(_OFFSETS_PER_BLOCK, np.int64)
        with (
            self._writer("indptr", np.int64, rows=num_nodes + 1) as indptr_writer,
            self._writer("indices", index, rows=num_edges) as indices_writer,
            _EdgeIdWriter(
                lambda dtype: self._writer("edge_ids", dtype, rows=num_edges), source_edges
            ) as numbers_writer,
        ):
            indices = np.empty(0, index)
            numbers = np.empty(0, np.int64)
            for block in blocks:
                if len(indices) < block.count:
                    indices = aligned_empty(block.count, index)
                    numbers = aligned_empty(block.count if layout.numbered else 0, np.int64)
                done = 0
                while done < block.count:
                    taken, written = csc.write(
                        block.records[done * layout.bytes :],
                        block.count - done,
                        indices,
                        numbers if layout.numbered else None,
                        offsets,
                        layout.wide,
                        layout.numbered,
                    )
                    indices_writer.append(indices[:taken])
                    if layout.numbered:
                        numbers_writer.append(numbers[:taken])
                    indptr_writer.append(offsets[:written])
                    done += taken
            while written := csc.finish(offsets):
                indptr_writer.append(offsets[:written])
            self.arrays["indptr"] = indptr_writer.close()
            self.arrays["indices"] = indices_writer.close()
            if (edge_ids := numbers_writer.close()) is not None:
                self.arrays["edge_ids"] = edge_ids
        return csc.num_edges

    def commit(
        self,
        *,
        num_nodes: int,
        num_edges: int,
        num_classes: int,
        features: RowEncoding | None,
        source: str,
        options: dict[str, Any],
        target_kind: TargetKind = "classes",
    ) -> Manifest:
        """Seals the manifest and gives the store its name."""
        manifest = Manifest(
            num_nodes=num_nodes,
            num_edges=num_edges,
            num_classes=num_classes,
            features=features,
            arrays={name: self.arrays[name] for name in FILES if name in self.arrays},
            provenance={
                "source": source,
                "options": options,
                "created": datetime.datetime.now(datetime.timezone.utc).isoformat(),
                "outcrop": __version__,
            },
            target_kind=target_kind,
        )
        self.scratch.rmdir()
        write_synced(self.root / MANIFEST, manifest.to_bytes())
        self._work.commit()
        return manifest

    def __enter__(self) -> StoreBuilder:
        return self

    def __exit__(self, *_: object) -> None:
        self._work.abandon()


class _EdgeIdWriter:
    """Numbers of edges -> an array of them, begun at the first that is not its own place."""

    def __init__(self, begin: Callable[[np.dtype[Any]], ArrayWriter], source_edges: int) -> None:
        self._begin = begin
        # The width says how large an id may be: more than the store's edges, if some were dropped.
        self._dtype = np.dtype(np.int32 if source_edges <= 1 << 31 else np.int64)
        self._in_place = 0
        """Numbers so far, while each is its place."""
        self._writer: ArrayWriter | None = None

    def append(self, numbers: NDArray[np.int64]) -> None:
        if self._writer is None:
            places = np.arange(self._in_place, self._in_place + len(numbers))
            if np.array_equal(numbers, places):
                self._in_place += len(numbers)
                return
            self._writer = self._begin(self._dtype)
            for first in range(0, self._in_place, _IDS_PER_BLOCK):
                last = min(first + _IDS_PER_BLOCK, self._in_place)
                self._writer.append(np.arange(first, last, dtype=self._dtype))
        self._writer.append(numbers.astype(self._dtype))

    def close(self) -> ArrayEntry | None:
        """None where every number was its place: nothing was written."""
        return None if self._writer is None else self._writer.close()

    def __enter__(self) -> _EdgeIdWriter:
        return self

    def __exit__(self, *_: object) -> None:
        if self._writer is not None:
            self._writer.__exit__()
