"""Verify: a store and its derived layouts -> what is wrong with them, down to the damaged piece."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from outcrop import _core
from outcrop.disk import Disk, read_blocks
from outcrop.errors import CorruptError, DiskError, ReadError, StoreError
from outcrop.layout.kinds import KINDS
from outcrop.options import DiskOptions
from outcrop.progress import SILENT, Progress
from outcrop.store.arrays import PieceHasher
from outcrop.store.derived import Layout, derived_roots, layout_paths, way_back
from outcrop.store.format import (
    PIECE_BYTES,
    SPLITS,
    ArrayEntry,
    Manifest,
    read_manifest,
    read_npy_header,
)
from outcrop.store.targets import TargetFormat
from outcrop.store.values import first_outside


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong."""

    file: str
    where: str
    what: str

    def __str__(self) -> str:
        return (
            f"{self.file}: {self.where}: {self.what}" if self.where else f"{self.file}: {self.what}"
        )


@dataclass
class VerifyReport:
    """What was checked, and what was found."""

    path: str
    quick: bool
    files: int = 0
    layouts: int = 0
    """How many derived layouts fit this store."""
    bytes: int = 0
    problems: list[Problem] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return not self.problems


def verify(
    path: str | os.PathLike[str], *, quick: bool = False, progress: Progress = SILENT
) -> VerifyReport:
    """Checks manifest, sizes and headers; unless `quick`, every byte and the graph's structure.

    The same for derived layouts, apart from those that nobody would use: they are for `gc`.
    """
    root = Path(path)
    report = VerifyReport(str(root), quick)
    try:
        manifest = read_manifest(root)
    except CorruptError as error:
        file, _, what = str(error).partition(": ")
        report.problems.append(Problem(file, "", what))
        return report
    checks = _structure_checks(manifest)
    progress.stage("verify", sum(entry.file_bytes for entry in manifest.arrays.values()))
    with Disk(DiskOptions(workers=2)) as disk:
        for name, entry in manifest.arrays.items():
            report.files += 1
            problems = list(_check_file(root, entry))
            if not problems and not quick:
                check = checks.get(name)
                problems = list(_check_bytes(disk, root, entry, check, report, progress))
            report.problems += problems
        for folder in derived_roots(root, manifest.content):
            for layout in layout_paths(folder):
                report.problems += _check_layout(disk, layout, manifest.content, report, progress)
    return report


def _check_layout(
    disk: Disk, path: Path, content: str, report: VerifyReport, progress: Progress
) -> Iterator[Problem]:
    """At most one problem: whatever it is, the layout has to go."""
    try:
        with Layout(path) as layout:
            kind = KINDS.get(layout.record["kind"])
            if kind is None or not layout.fits(content):
                return
            report.layouts += 1
            sizes = kind.sizes(path)
            for name, wanted in sizes.items():
                found = os.stat(path / name).st_size
                if found != wanted:
                    raise CorruptError(f"{path / name}: {found} B, but should have {wanted} B")
            if not report.quick:
                kind.check(disk, path, progress)
                report.bytes += sum(sizes.values())
    except (StoreError, OSError) as error:
        if path.exists():  # else it was removed meanwhile
            file, _, what = _described(error).partition(": ")
            yield Problem(file, "", f"{what}; {way_back(path)}")


def _described(error: Exception) -> str:
    if isinstance(error, OSError) and not isinstance(error, DiskError):
        return f"{error.filename}: {error.strerror}"
    return str(error)


def _check_file(root: Path, entry: ArrayEntry) -> Iterator[Problem]:
    path = root / entry.file
    try:
        size = os.stat(path).st_size
        if size != entry.file_bytes:
            yield Problem(str(path), "", f"{size} B, but the manifest says {entry.file_bytes} B")
            return
        header = read_npy_header(path)
    except CorruptError as error:
        yield Problem(str(path), "header", str(error).removeprefix(f"{path}: "))
        return
    except OSError as error:
        yield Problem(str(path), "", str(error.strerror))
        return
    found = (header.dtype, header.shape, header.data_offset, header.fortran_order)
    if found != (entry.dtype, entry.shape, entry.data_offset, False):
        yield Problem(str(path), "header", "differs from the manifest")


def _check_bytes(
    disk: Disk,
    root: Path,
    entry: ArrayEntry,
    check: _Check | None,
    report: VerifyReport,
    progress: Progress,
) -> Iterator[Problem]:
    """Reads the file once: checksums of its pieces, and the check of its values."""
    path = root / entry.file
    hasher = PieceHasher()
    offset = 0
    try:
        with disk.open(path) as file:
            for block in read_blocks(file, 0, entry.file_bytes):
                hasher.update(block)
                # Blocks and headers are multiples of 8 bytes, so no value is cut.
                values = block[max(entry.data_offset - offset, 0) :]
                if check is not None:
                    check.feed(values.view(entry.dtype))
                offset += len(block)
                report.bytes += len(block)
                progress.advance(len(block))
    except ReadError as error:
        yield Problem(str(path), f"{error.length} B at {error.offset}", str(error.strerror))
        return
    damaged = [
        piece
        for piece, (found, wanted) in enumerate(
            zip(hasher.checksums(), entry.checksums, strict=True)
        )
        if found != wanted
    ]
    for piece in damaged:
        first = piece * PIECE_BYTES
        last = min(first + PIECE_BYTES, entry.file_bytes)
        yield Problem(
            str(path), f"piece {piece} (bytes {first} to {last - 1})", "differs from its checksum"
        )
    if not damaged and check is not None and (what := check.problem()):
        yield Problem(str(path), "", what)


# Structure: what must hold of values whose checksums are right, i.e. that were written wrong


class _Check(ABC):
    _problem: str | None = None

    @abstractmethod
    def feed(self, values: NDArray[Any]) -> None: ...

    def problem(self) -> str | None:
        """What is wrong, once all values were fed."""
        return self._problem


class _RangeCheck(_Check):
    """Every value is within [low, high)."""

    def __init__(self, low: int, high: int) -> None:
        self._low, self._high = low, high
        self._seen = 0

    def feed(self, values: NDArray[Any]) -> None:
        at = first_outside(values, self._low, self._high) if self._problem is None else None
        if at is not None:
            self._problem = (
                f"entry {self._seen + at} is {values[at]}, not {self._low} to {self._high - 1}"
            )
        self._seen += len(values)


class _OffsetsCheck(_Check):
    """Offsets ascend from 0 to the number of edges."""

    def __init__(self, num_edges: int) -> None:
        self._num_edges = num_edges
        self._last: int | None = None

    def feed(self, values: NDArray[Any]) -> None:
        if not len(values):
            return
        if self._last is None and int(values[0]) != 0:
            self._problem = f"begins with {values[0]}, not 0"
        before = self._last if self._last is not None else 0
        if int(values[0]) < before or (np.diff(values) < 0).any():
            self._problem = self._problem or "descends"
        self._last = int(values[-1])

    def problem(self) -> str | None:
        if self._problem is None and self._last != self._num_edges:
            return f"ends with {self._last}, but there are {self._num_edges} edges"
        return self._problem


class _SplitCheck(_Check):
    """Nodes that exist, none of them twice in all splits together."""

    def __init__(self, num_nodes: int, taken: _core.IdSet) -> None:
        self._num_nodes = num_nodes
        self._taken = taken

    def feed(self, values: NDArray[Any]) -> None:
        new = self._taken.add_new(np.ascontiguousarray(values))
        if new < len(values) and self._problem is None:
            node = int(values[new])
            known = 0 <= node < self._num_nodes
            self._problem = f"node {node} " + ("is in a split twice" if known else "does not exist")


class _TargetsCheck(_Check):
    """Every number is a label, or a value."""

    def __init__(self, targets: TargetFormat) -> None:
        self._targets = targets
        self._seen = 0

    def feed(self, values: NDArray[Any]) -> None:
        at = self._targets.first_wrong(values) if self._problem is None else None
        if at is not None:
            self._problem = self._targets.describe_wrong(self._seen + at, values[at])
        self._seen += len(values)


def _structure_checks(manifest: Manifest) -> dict[str, _Check]:
    taken = _core.IdSet(manifest.num_nodes)
    checks: dict[str, _Check] = {
        "indptr": _OffsetsCheck(manifest.num_edges),
        "indices": _RangeCheck(0, manifest.num_nodes),
        "labels": _TargetsCheck(manifest.targets),
    }
    for split in SPLITS:
        checks[split] = _SplitCheck(manifest.num_nodes, taken)
    return checks
