"""Prepare: a schedule of seeds -> a trace of its samples and their pack, as derived layouts.

Both are found again by everything that they depend on. The memory that is given is for this work
alone: nothing of it is kept.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from outcrop.ahead.sampling import SamplingAhead
from outcrop.disk import Disk
from outcrop.errors import BudgetError, CorruptError
from outcrop.layout.pack.batched import pack_batched
from outcrop.layout.pack.plan import PackPlan, load_plan, make_plan
from outcrop.layout.pack.reader import PACK_VERSION, Checksums, pack_bytes
from outcrop.layout.pack.segments.plan import make_segmented
from outcrop.layout.pack.segments.search import PackedLists, search
from outcrop.layout.pack.writer import tidy_finished, write_pack
from outcrop.layout.trace import TRACE_VERSION, Trace, TraceWriter
from outcrop.options import format_size, size_of_at_least
from outcrop.progress import SILENT, Progress
from outcrop.sample.edge_ids import edge_id_limit
from outcrop.sample.identity import SamplingIdentity
from outcrop.sample.sampler import Sampling, TaskSampler
from outcrop.sample.seeds import SeedOrder, Task
from outcrop.store.derived import Layout
from outcrop.store.store import GraphStore
from outcrop.store.workdir import empty

# Beside a plan with segments, while it is made: the plan without them.
_WHOLE = "whole"


@dataclass(frozen=True)
class PackSpec:
    """What is prepared."""

    sampling: Sampling
    seeds: SeedOrder
    epochs: int
    """How many are sampled: the first ones, unless `first_epoch` says others."""
    cache_rows: int
    packed: bool = True
    """Whether rows that are not cached are packed."""
    first_epoch: int | None = None
    """Where a run refreshes its samples: the pack is for [first_epoch, first_epoch + epochs)."""
    device_rows: int = 0
    """Cached on the device of batches, beside those in memory."""
    edge_ids: bool = False
    """Whether the samples have edge ids that the store keeps; else places of edges."""

    @property
    def trace_inputs(self) -> dict[str, Any]:
        """All that the trace depends on, beside the store."""
        generation = {} if self.first_epoch is None else {"first_epoch": self.first_epoch}
        return {
            **generation,
            "version": TRACE_VERSION,
            **SamplingIdentity.of(self.sampling, self.seeds, keeps_edge_ids=self.edge_ids).values(),
            "epochs": self.epochs,
        }

    @property
    def pack_inputs(self) -> dict[str, Any]:
        rows = {"cache_rows": self.cache_rows, "packed": self.packed}
        if self.device_rows:
            rows["device_rows"] = self.device_rows
        return {"version": PACK_VERSION, "trace": self.trace_inputs, **rows}

    def tasks(self) -> Iterator[Task]:
        first = self.first_epoch or 0
        for epoch in range(first, first + self.epochs):
            yield from self.seeds.tasks(epoch)


@dataclass(frozen=True)
class SamplesSpec(PackSpec):
    """Imported samples: packed as they are, and found by what is in them."""

    name: str = ""
    digest: str = ""

    @property
    def trace_inputs(self) -> dict[str, Any]:
        return {"samples": self.name, "digest": self.digest}


def prepare_trace(
    store: GraphStore,
    spec: PackSpec,
    samplers: Sequence[TaskSampler],
    disk_bytes: int | None = None,
    progress: Progress = SILENT,
    enough_disk: str = "",
) -> Layout:
    """The trace, found or sampled. BudgetError where it alone is more than `disk_bytes`.

    `enough_disk`: what would do for all that is made, for that message.
    """

    def build(folder: Path) -> None:
        store.check_topology(progress)
        if spec.edge_ids:
            store.checks("edge_ids").check(store.disk, progress)
        total = spec.epochs * len(spec.seeds)
        progress.stage("sample", total, "batches")
        with TraceWriter(
            store.disk,
            folder,
            num_nodes=store.num_nodes,
            num_edges=edge_id_limit(store.facts, kept=spec.edge_ids),
            identity={"store": store.content, **spec.trace_inputs},
        ) as writer:
            sampling = SamplingAhead(spec.tasks(), samplers, writer)
            with closing(sampling.run()) as steps:
                for done, _ in enumerate(steps, 1):
                    if disk_bytes is not None and writer.bytes > disk_bytes:
                        least = size_of_at_least(writer.bytes / done * total)
                        raise BudgetError(
                            f"disk={format_size(disk_bytes)} is too little: the samples alone will "
                            f"take about {least}; what will do in all is {enough_disk}"
                        )
                    progress.advance(1)
            writer.finish()

    return store.derived.get_or_build("trace", spec.trace_inputs, build, progress=progress)


def prepare_pack(
    store: GraphStore,
    spec: PackSpec,
    trace: Trace,
    memory_bytes: int,
    disk_bytes: int | None = None,
    progress: Progress = SILENT,
) -> Layout:
    """The pack of a trace, found, made, or made to the end where an earlier call was killed.

    `disk_bytes` is for the trace and the pack together. Where it does not suffice for all rows of
    all batches, batches share rows; BudgetError where that does not suffice either.
    """
    making = _Making(store, spec, trace, memory_bytes, disk_bytes, progress)
    if disk_bytes is None or not spec.packed:
        return store.derived.get_or_build(
            "pack", spec.pack_inputs, making.whole, resumable=True, progress=progress
        )
    found = store.derived.find("pack", spec.pack_inputs)
    if found is not None:
        if _fits(found, disk_bytes - trace.bytes):
            return found
        found.close()
    inputs = {**spec.pack_inputs, "disk_bytes": disk_bytes}
    known = found is not None or store.derived.begun("pack", inputs)
    if not known and not store.derived.path("pack", inputs).exists():
        try:
            return store.derived.get_or_build(
                "pack", spec.pack_inputs, making.whole, resumable=True, progress=progress
            )
        except _DiskTooSmallError:
            pass  # what an interrupted call has made of it is kept
    return store.derived.get_or_build(
        "pack", inputs, making.segmented, resumable=True, progress=progress
    )


def _fits(layout: Layout, room: int) -> bool:
    try:
        return pack_bytes(layout.path) <= room
    except CorruptError:
        return True  # opening it says what to do


class _DiskTooSmallError(BudgetError):
    """The disk has no room for a chunk of all its rows for each batch."""


@dataclass(frozen=True)
class _Making:
    """What one pack is made from."""

    store: GraphStore
    spec: PackSpec
    trace: Trace
    memory_bytes: int
    disk_bytes: int | None
    progress: Progress

    def whole(self, folder: Path) -> None:
        """Every batch has a chunk of all its rows."""
        if tidy_finished(folder):
            return
        plan = load_plan(folder)
        if plan is None:
            plan = self._plan(folder)
        check_disk(folder, plan, self.trace.bytes, self.disk_bytes)
        self._write(folder, plan)

    def segmented(self, folder: Path) -> None:
        """Batches of a segment share rows."""
        if tidy_finished(folder):
            return
        plan = load_plan(folder)
        if plan is None:
            plan = self._plan_segments(folder)
        if (folder / _WHOLE).exists():  # the plan has reached the device
            shutil.rmtree(folder / _WHOLE)
        check_disk(folder, plan, self.trace.bytes, None)
        self._write(folder, plan)

    def _plan_segments(self, folder: Path) -> PackPlan:
        store = self.store
        beside = folder / _WHOLE
        beside.mkdir(exist_ok=True)
        whole = load_plan(beside)
        if whole is None:
            whole = self._plan(beside)
        assert self.disk_bytes is not None
        with PackedLists(store.disk, beside, whole, store.num_nodes) as lists:
            chosen = search(lists, self.disk_bytes, self.trace.bytes, self.progress)
            return make_segmented(store.disk, folder, beside, lists, chosen, self.progress)

    def _plan(self, folder: Path) -> PackPlan:
        empty(folder)
        return make_plan(
            self.store.disk,
            folder,
            self.trace,
            num_nodes=self.store.num_nodes,
            row_bytes=self.store.encoding.row_bytes,
            cache_rows=self.spec.cache_rows,
            packed=self.spec.packed,
            device_rows=self.spec.device_rows,
            progress=self.progress,
        )

    def _write(self, folder: Path, plan: PackPlan) -> None:
        def fill(disk: Disk, at: Path, of: PackPlan) -> Checksums:
            features = self.store.features
            return pack_batched(disk, at, features, of, self.memory_bytes, self.progress)

        write_pack(self.store.disk, folder, plan, fill, self.progress)


def check_disk(folder: Path, plan: PackPlan, trace_bytes: int, disk_bytes: int | None) -> None:
    """BudgetError where the budget, or the file system, has no room for what is to be made."""
    needed = trace_bytes + plan.most_bytes
    if disk_bytes is not None and needed > disk_bytes:
        raise _DiskTooSmallError(
            f"disk={format_size(disk_bytes)} is too little: samples {format_size(trace_bytes)}, "
            f"packed rows {format_size(plan.chunk_bytes)}, tables "
            f"{format_size(plan.most_bytes - plan.chunk_bytes)}; the smallest that would do is "
            f"{size_of_at_least(needed)}"
        )
    system = os.statvfs(folder)
    there = sum(path.stat().st_blocks * 512 for path in folder.iterdir())
    free = system.f_bavail * system.f_frsize + there
    if plan.most_bytes > free:
        raise BudgetError(
            f"{folder.parent}: packing needs {format_size(plan.most_bytes)} there, and "
            f"{format_size(free)} are free"
        )
