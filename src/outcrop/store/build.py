"""Build: arrays in chunks -> a store, made beside its final name and renamed when it is whole."""

from __future__ import annotations

import datetime
from collections.abc import Iterable
from contextlib import nullcontext
from pathlib import Path
from types import TracebackType
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
from outcrop.store.workdir import WorkDirectory

_OFFSETS_PER_BLOCK = 1 << 17


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
    ) -> int:
        """Sorted records -> indptr, indices and, if they are numbered, edge_ids; counts edges."""
        index = np.int32 if num_nodes <= 1 << 31 else np.int64
        csc = _core.CscWriter(num_nodes)
        offsets = aligned_empty(_OFFSETS_PER_BLOCK, np.int64)
        with (
            self._writer("indptr", np.int64, rows=num_nodes + 1) as indptr_writer,
            self._writer("indices", index, rows=num_edges) as indices_writer,
            (
                self._writer("edge_ids", np.int64, rows=num_edges)
                if layout.numbered
                else nullcontext()
            ) as numbers_writer,
        ):
            indices = np.empty(0, index)
            numbers = np.empty(0, np.int64)
            for block in blocks:
                if len(indices) < block.count:
                    indices = aligned_empty(block.count, index)
                    numbers = aligned_empty(block.count if numbers_writer else 0, np.int64)
                done = 0
                while done < block.count:
                    taken, written = csc.write(
                        block.records[done * layout.bytes :],
                        block.count - done,
                        indices,
                        numbers if numbers_writer else None,
                        offsets,
                        layout.wide,
                        layout.numbered,
                    )
                    indices_writer.append(indices[:taken])
                    if numbers_writer:
                        numbers_writer.append(numbers[:taken])
                    indptr_writer.append(offsets[:written])
                    done += taken
            while written := csc.finish(offsets):
                indptr_writer.append(offsets[:written])
            self.arrays["indptr"] = indptr_writer.close()
            self.arrays["indices"] = indices_writer.close()
            if numbers_writer:
                self.arrays["edge_ids"] = numbers_writer.close()
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
        )
        self.scratch.rmdir()
        write_synced(self.root / MANIFEST, manifest.to_bytes())
        self._work.commit()
        return manifest

    def __enter__(self) -> StoreBuilder:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._work.abandon()
