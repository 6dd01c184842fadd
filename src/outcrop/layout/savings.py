"""Savings: what each node would save as a cached row or a cached embedding -> rankings and curves.

docs/format.md has the bytes. A row that is always cached saves one read for each batch that has its
node; a cache that knows what comes saves more with as many rows (*planned*). An embedding that is
used again (a *history*) saves what the last hop would have drawn and found below its node; of that,
rows that are cached anyway are not saved twice, so that there is a ranking of histories for each of
several sizes, *levels*, of the cache of rows. All is counted in rows of an epoch.
`ahead/profiling.py` makes the layout.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray

from outcrop.closing import Closing
from outcrop.disk import Disk
from outcrop.errors import CorruptError, OptionError
from outcrop.layout.ranking import Curve, curve_of, places_of, scores_of
from outcrop.progress import Progress
from outcrop.sample.identity import SamplingIdentity
from outcrop.sample.sampler import Sampling
from outcrop.sample.seeds import Ids, SeedOrder
from outcrop.schema import AtLeast, Count
from outcrop.store.arrays import ArrayWriter
from outcrop.store.checks import ArrayChecks
from outcrop.store.derived import Layout, advising
from outcrop.store.format import PIECE_BYTES, ArrayEntry, seal, unseal_as
from outcrop.store.locks import write_synced

SAVINGS_VERSION = 1
KIND = "savings"
LEVELS = (0.0, 1 / 64, 1 / 16, 1 / 8, 1 / 4, 1 / 2, 1.0)
"""How many rows the cache of rows has, as parts of all: one ranking of histories for each."""
MOST_NODES = 1 << 32
_FORMAT = "outcrop-savings"
_HEADER = "savings.json"
_UINT32 = np.dtype("<u4")
_FEATURES = "features.npy"


# Facts


@dataclass(frozen=True)
class SavingsFacts:
    """What a profile says of caches: all that planning needs."""

    path: str
    """The layout's, for messages."""
    hops: int
    staleness: int
    batches: int
    rows: int
    """Nodes of all batches."""
    neighbours: int
    """Edges of all batches."""
    sampling_seconds: float
    requests_per_second: float
    """Rows that the drive was taken to gather."""
    beta: float
    """What a drawn neighbour costs, in rows."""
    seconds: float
    """What the profile took."""
    levels: tuple[int, ...]
    """Cached rows, one number for each ranking of histories, ascending from 0."""
    features: Curve
    """Rows that are always cached."""
    planned: Curve
    """Rows that are cached from one batch that wants them to the next."""
    histories: tuple[Curve, ...]

    def history_at(self, embeddings: int, cached_rows: int) -> float:
        """What so many histories save beside so many cached rows; linear between levels."""
        low = bisect_right(self.levels, cached_rows) - 1
        found = self.histories[low].at(embeddings)
        if low + 1 == len(self.levels):
            return found
        begin, end = self.levels[low : low + 2]
        part = (cached_rows - begin) / (end - begin)
        return found + part * (self.histories[low + 1].at(embeddings) - found)

    @property
    def most_histories(self) -> int:
        """More would save nothing."""
        return max(curve.length for curve in self.histories)


# On disk


@dataclass(frozen=True)
class RankedNodes:
    """A ranking: the file of its nodes, and what they save."""

    nodes: ArrayEntry
    curve: Curve


@dataclass(frozen=True)
class SavingsFile:
    """What a layout holds: the facts, but for the names of curves."""

    hops: Annotated[int, AtLeast(2)]
    staleness: Annotated[int, AtLeast(1)]
    batches: Count
    rows: Count
    neighbours: Count
    sampling_seconds: float
    requests_per_second: float
    beta: float
    seconds: float
    levels: tuple[Count, ...]
    features: RankedNodes
    planned: Curve
    histories: tuple[RankedNodes, ...]

    def rankings(self) -> dict[str, RankedNodes]:
        """By the names of their files."""
        named = {history_file(q): ranking for q, ranking in enumerate(self.histories)}
        return {_FEATURES: self.features, **named}


def history_file(level: int) -> str:
    return f"histories{level}.npy"


class RankingsWriter:
    """Rankings -> the files of a layout, and at the end its header."""

    def __init__(self, disk: Disk, folder: Path) -> None:
        self._disk, self._folder = disk, folder
        self._rankings: dict[str, dict[str, Any]] = {}

    def features(self, keys: NDArray[np.uint64]) -> None:
        """Places are node ids, scores the batches that have them."""
        curve = curve_of(scores_of(keys), len(keys))
        self._write(_FEATURES, (nodes for _, nodes in places_of(keys)), curve)

    def history(self, level: int, keys: NDArray[np.uint64], candidates: NDArray[np.uint32]) -> None:
        """Places are those of candidates, scores the bits of what they save."""
        values = ((first, bits.view(np.float32)) for first, bits in scores_of(keys))
        nodes = (candidates[places] for _, places in places_of(keys))
        self._write(history_file(level), nodes, curve_of(values, len(keys)))

    def _write(self, file: str, nodes: Iterator[NDArray[np.uint32]], curve: Curve) -> None:
        with ArrayWriter(self._disk, self._folder, file, _UINT32, rows=curve.length) as writer:
            for piece in nodes:
                writer.append(piece)
            self._rankings[file] = {"nodes": writer.close().to_json(), "curve": asdict(curve)}

    def finish(self, levels: Sequence[int], planned: Curve, values: dict[str, Any]) -> None:
        """`values`: whatever else the header has."""
        header = {
            "format": _FORMAT,
            "version": SAVINGS_VERSION,
            **values,
            "levels": list(levels),
            "features": self._rankings[_FEATURES],
            "planned": asdict(planned),
            "histories": [self._rankings[history_file(q)] for q in range(len(levels))],
        }
        write_synced(self._folder / _HEADER, seal(header))


def read_header(folder: Path) -> SavingsFile:
    """What RankingsWriter wrote; CorruptError where it is damaged."""
    path = folder / _HEADER
    try:
        data = path.read_bytes()
    except OSError as error:
        raise CorruptError(f"{path}: {error.strerror}") from error
    file = unseal_as(SavingsFile, data, str(path), _FORMAT, SAVINGS_VERSION)
    levels = np.array(file.levels, np.int64)
    if len(levels) != len(file.histories) or not len(levels):
        raise CorruptError(f"{path}: a ranking of histories per level is expected")
    if levels[0] != 0 or (np.diff(levels) < 0).any():
        raise CorruptError(f"{path}: levels must ascend from 0 (got {list(file.levels)})")
    if not _is_curve(file.planned, file.planned.length if file.planned.counts else 0):
        raise CorruptError(f"{path}: what is planned is no curve")
    for name, ranking in file.rankings().items():
        ranking.nodes.check_is(f"{path}: {name}", name, _UINT32)
        if not _is_curve(ranking.curve, ranking.nodes.shape[0]):
            raise CorruptError(f"{path}: {name}: its curve is none of so many nodes")
    return file


def _is_curve(curve: Curve, length: int) -> bool:
    if not curve.counts or len(curve.counts) != len(curve.sums):
        return False
    ends = (curve.counts[0], curve.counts[-1], curve.sums[0]) == (0, length, 0)
    return ends and bool((np.diff(curve.counts) > 0).all() and (np.diff(curve.sums) >= 0).all())


def read_facts(folder: Path) -> SavingsFacts:
    """What planning needs of a layout; CorruptError where its header is damaged."""
    with advising(folder):
        file = read_header(folder)
    names = [name for name in SavingsFacts.__dataclass_fields__ if name != "path"]
    values = {name: getattr(file, name) for name in names}
    values["features"] = file.features.curve
    values["histories"] = tuple(ranking.curve for ranking in file.histories)
    return SavingsFacts(path=str(folder), **values)


def savings_sizes(folder: Path) -> dict[str, int]:
    """The files of a layout that its header speaks of, and their bytes."""
    rankings = read_header(folder).rankings()
    return {name: ranking.nodes.file_bytes for name, ranking in rankings.items()}


def check_savings(disk: Disk, folder: Path, progress: Progress) -> None:
    """CorruptError where a byte differs."""
    for ranking in read_header(folder).rankings().values():
        ArrayChecks(folder, ranking.nodes).check(disk, progress)


# Found again


def savings_inputs(sampling: Sampling, seeds: SeedOrder, staleness: int) -> dict[str, Any]:
    """All that a profile depends on, beside the store and how fast things are."""
    identity = SamplingIdentity.of(sampling, seeds).values()
    return {**identity, "version": SAVINGS_VERSION, "staleness": staleness}


class Savings(Closing):
    """A layout, opened. Nothing but its facts is in memory. Thread-safe, apart from `close`.

    What is read is compared with checksums, by pieces of 64 MiB; CorruptError where a byte differs.
    """

    def __init__(self, disk: Disk, layout: Layout) -> None:
        """Takes the layout: closing this closes it."""
        self._disk = disk
        self._layout = layout
        self.facts = read_facts(layout.path)
        self._rankings = read_header(layout.path).rankings()

    def feature_nodes(self, count: int) -> Ids:
        """The nodes whose rows save most, at most `count`, ascending."""
        return self._best(_FEATURES, count)

    def history_nodes(self, count: int, cached_rows: int) -> Ids:
        """The nodes whose histories save most beside about so many rows, ascending."""
        levels = self.facts.levels
        level = min(range(len(levels)), key=lambda q: abs(levels[q] - cached_rows))
        return self._best(history_file(level), count)

    def _best(self, name: str, count: int) -> Ids:
        if count < 0:
            raise OptionError(f"a count of nodes must be at least 0 (got {count})")
        entry = self._rankings[name].nodes
        count = min(count, entry.shape[0])
        if not count:
            return np.empty(0, np.int64)
        size = entry.dtype.itemsize
        with advising(self._layout.path):
            try:
                checks = ArrayChecks(self._layout.path, entry)
            except OSError as error:
                raise CorruptError(f"{error.filename}: {error.strerror}") from error
            touched = np.append(np.arange(0, count, PIECE_BYTES // size), count - 1)
            checks.check_rows(self._disk, touched, size)
        with self._disk.open(checks.path) as file:
            nodes = file.read(entry.data_offset, count * size).view(entry.dtype)
        nodes.sort()
        return nodes.astype(np.int64)

    def close(self) -> None:
        self._layout.close()
