"""Batched packing: one pass over the features -> all chunks at once, found again after a kill.

What has been done is saved every few seconds: up to which row of which episode (a pass over the
features, for as many chunks as there is memory for), and the checksums of all pieces written. The
pieces that were begun are not: their rows are read again.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from xxhash import xxh3_64_intdigest

from outcrop.disk import Disk
from outcrop.errors import CorruptError
from outcrop.layout.pack.plan import IDS, PackPlan
from outcrop.layout.pack.reader import CHUNKS, Checksums, chunk_checksum
from outcrop.layout.pack.scatter import PackMemory, Pass, Scattering, WholeFeatures
from outcrop.progress import SILENT, Progress
from outcrop.sample.seeds import Ids
from outcrop.store.locks import replace_synced
from outcrop.store.store import FeatureRows

PROGRESS = "progress.bin"
# A sync costs the drive some 10 ms; so much work is lost by a kill.
SAVE_SECONDS = 5.0


def pack_batched(
    disk: Disk,
    folder: Path,
    features: FeatureRows,
    plan: PackPlan,
    memory_bytes: int,
    progress: Progress = SILENT,
    save_seconds: float = SAVE_SECONDS,
) -> Checksums:
    """Fills the file of chunks, which is there and has its size -> the checksum of each chunk.

    On return all of it has reached the device. Goes on where an earlier call was interrupted.
    CorruptError where the features are damaged: every byte is compared as it is read.
    """
    memory = PackMemory.divide(memory_bytes, len(plan.index), plan.row_bytes, features.num_rows)
    saved = _Saved.load(folder, len(plan.index))
    with disk.open_for_update(folder / CHUNKS) as chunks, disk.open(folder / IDS) as ids:
        reader = WholeFeatures(features)
        rows = features.num_rows
        scattering = Scattering(chunks, ids, reader, plan, rows, memory, progress)
        episodes = list(_episodes(plan, memory, saved))
        progress.stage("pack", rows * plan.row_bytes * len(episodes) + int(plan.sizes.sum()))
        for episode in episodes:
            _run(scattering, features, episode, saved, folder, save_seconds)
        chunks.sync()
    return saved.chunks


@dataclass
class _Saved:
    """What has been done, as it is kept in PROGRESS."""

    chunks: Checksums
    """One for each chunk of the plan; where one is not finished, as if it had no rows."""
    first: int = 0
    """The episode under way: chunks [first, last), and the first row that it has yet to see."""
    last: int = 0
    row: int = 0
    pieces: Checksums | None = None
    """One for each piece of the chunks under way."""

    @classmethod
    def load(cls, folder: Path, chunks: int) -> _Saved:
        """Nothing done, where nothing was saved."""
        path = folder / PROGRESS
        try:
            data = np.fromfile(path, "<u8")
        except FileNotFoundError:
            return cls(np.full(chunks, chunk_checksum(np.empty(0, "<u8")), "<u8"))
        if len(data) < chunks + 4 or xxh3_64_intdigest(data[:-1].data) != data[-1]:
            raise CorruptError(f"{path}: differs from its checksum")
        first, last, row = (int(value) for value in data[:3])
        return cls(data[3 : 3 + chunks].copy(), first, last, row, data[3 + chunks : -1].copy())

    def save(self, folder: Path) -> None:
        """On return it has reached the device."""
        position = np.array([self.first, self.last, self.row], "<u8")
        pieces = np.empty(0, "<u8") if self.pieces is None else self.pieces
        data = np.concatenate([position, self.chunks, pieces])
        checksum = np.array([xxh3_64_intdigest(data.data)], "<u8")
        replace_synced(folder / PROGRESS, data.data, checksum.data)


@dataclass(frozen=True)
class _Episode:
    """Chunks [first, last), over the rows from `row` on."""

    first: int
    last: int
    row: int


def _episodes(plan: PackPlan, memory: PackMemory, saved: _Saved) -> Iterator[_Episode]:
    """What is left to do. Chunks without rows are nobody's work, so episodes go around them."""
    begin = saved.first
    if saved.row and saved.last - saved.first <= memory.open_chunks:
        yield _Episode(saved.first, saved.last, saved.row)
        begin = saved.last
    for first in range(begin, len(plan.index), memory.open_chunks):
        last = min(first + memory.open_chunks, len(plan.index))
        if plan.rows[first:last].any():
            yield _Episode(first, last, 0)


def _run(
    scattering: Scattering,
    features: FeatureRows,
    episode: _Episode,
    saved: _Saved,
    folder: Path,
    save_seconds: float,
) -> None:
    first, last, plan = episode.first, episode.last, scattering.plan
    filling = scattering.begin(first, last, episode.row)
    if episode.row:
        assert saved.pieces is not None
        filling.writer.checksums[:] = saved.pieces
        _restore(scattering, features, filling, episode)
        scattering.progress.advance(episode.row * plan.row_bytes)
    saved_at = time.monotonic()
    sweep = features.sweep(episode.row)
    for end, stored in filling:
        sweep.feed(stored)
        scattering.progress.advance(len(stored))
        if time.monotonic() - saved_at >= save_seconds and end < scattering.num_rows:
            filling.writer.settle()
            sweep.settle()  # who goes on from here does not read these rows again
            scattering.chunks.sync()
            saved.first, saved.last, saved.row = first, last, end
            saved.pieces = filling.writer.checksums
            saved.save(folder)
            saved_at = time.monotonic()
    sweep.settle()
    saved.chunks[first:last] = filling.finish()
    scattering.chunks.sync()
    saved.first, saved.last, saved.row, saved.pieces = last, last, 0, None
    saved.save(folder)


def _restore(
    scattering: Scattering, features: FeatureRows, filling: Pass, episode: _Episode
) -> None:
    """Pieces that were begun before the interruption: their rows are read again."""
    row_bytes, step, writer = scattering.plan.row_bytes, scattering.step, filling.writer
    done: Ids = filling.bounds[0]
    for chunk, rows in zip(range(episode.first, episode.last), done.tolist(), strict=True):
        first, last = writer.resume(chunk, rows)
        for begin in range(first, last, step):
            count = min(step, last - begin)
            ids = scattering.ids.read(chunk, begin, count)
            stored = scattering.partitions[0][: count * row_bytes]
            features.check(ids)
            features.start_read(ids, stored.reshape(count, row_bytes)).wait()
            writer.append(stored, 0, np.array([chunk]), np.array([count]), np.arange(count))
