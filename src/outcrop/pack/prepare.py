"""Prepare: a schedule of seeds -> a trace of its samples and their pack, as derived layouts.

Both are found again by everything that they depend on. The memory that is given is for this work
alone: nothing of it is kept.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import xxhash

from outcrop.errors import BudgetError
from outcrop.options import format_size, size_of_at_least
from outcrop.pack.batched import pack_batched
from outcrop.pack.chunks import PACK_VERSION, tidy_finished, write_pack
from outcrop.pack.plan import PackPlan, load_plan, make_plan
from outcrop.progress import SILENT, Progress
from outcrop.sample.sampler import SAMPLING_VERSION, Sampler, Sampling
from outcrop.sample.seeds import SeedOrder, Task
from outcrop.sample.trace import TRACE_VERSION, Trace, TraceWriter
from outcrop.store.derived import Layout
from outcrop.store.store import GraphStore
from outcrop.store.workdir import empty


@dataclass(frozen=True)
class PackSpec:
    """What is prepared."""

    sampling: Sampling
    seeds: SeedOrder
    epochs: int
    """That are sampled: [0, epochs)."""
    cache_rows: int
    packed: bool = True
    """Whether rows that are not cached are packed."""

    @property
    def trace_inputs(self) -> dict[str, Any]:
        """All that the trace depends on, beside the store."""
        return {
            "version": TRACE_VERSION,
            "sampling_version": SAMPLING_VERSION,
            "sampler": self.sampling.kind,
            "num_neighbors": list(self.sampling.num_neighbors),
            "replace": self.sampling.replace,
            "seed": self.seeds.seed,
            "stream": int(self.seeds.stream),
            "seeds": _seeds_digest(self.seeds),
            "batch_size": self.seeds.batch_size,
            "shuffle": self.seeds.shuffle,
            "drop_last": self.seeds.drop_last,
            "epochs": self.epochs,
        }

    @property
    def pack_inputs(self) -> dict[str, Any]:
        rows = {"cache_rows": self.cache_rows, "packed": self.packed}
        return {"version": PACK_VERSION, "trace": self.trace_inputs, **rows}

    def tasks(self) -> Iterator[Task]:
        for epoch in range(self.epochs):
            yield from self.seeds.tasks(epoch)


@dataclass(frozen=True)
class SamplesSpec(PackSpec):
    """Imported samples: packed as they are, and found by what is in them."""

    name: str = ""
    digest: str = ""

    @property
    def trace_inputs(self) -> dict[str, Any]:
        return {"samples": self.name, "digest": self.digest}


def _seeds_digest(seeds: SeedOrder) -> str:
    if isinstance(seeds.nodes, range):
        return f"{seeds.nodes.start} to {seeds.nodes.stop}"
    return xxhash.xxh3_128_hexdigest(seeds.nodes.data)


def prepare_trace(
    store: GraphStore,
    spec: PackSpec,
    sampler: Sampler,
    disk_bytes: int | None = None,
    progress: Progress = SILENT,
) -> Layout:
    """The trace, found or sampled. BudgetError where it alone is more than `disk_bytes`."""

    def build(folder: Path) -> None:
        total = spec.epochs * len(spec.seeds)
        progress.stage("sample", total, "batches")
        with TraceWriter(
            store.disk,
            folder,
            num_nodes=store.num_nodes,
            num_edges=store.num_edges,
            identity={"store": store.content, **spec.trace_inputs},
        ) as writer:
            for done, task in enumerate(spec.tasks(), 1):
                writer.append(task, sampler.sample(task))
                if disk_bytes is not None and writer.bytes > disk_bytes:
                    least = size_of_at_least(writer.bytes / done * total)
                    raise BudgetError(
                        f"disk={format_size(disk_bytes)} is too little: the samples alone will "
                        f"take about {least}, and the packed rows come on top"
                    )
                progress.advance(1)
            writer.finish()

    return store.derived.get_or_build("trace", spec.trace_inputs, build)


def prepare_pack(
    store: GraphStore,
    spec: PackSpec,
    trace: Trace,
    memory_bytes: int,
    disk_bytes: int | None = None,
    progress: Progress = SILENT,
) -> Layout:
    """The pack of a trace, found, made, or made to the end where an earlier call was killed.

    `disk_bytes` is for the trace and the pack together: BudgetError where it does not suffice.
    """

    def build(folder: Path) -> None:
        if tidy_finished(folder):
            return
        plan = load_plan(folder)
        if plan is None:
            empty(folder)
            plan = make_plan(
                store.disk,
                folder,
                trace,
                num_nodes=store.num_nodes,
                row_bytes=store.encoding.row_bytes,
                cache_rows=spec.cache_rows,
                packed=spec.packed,
                progress=progress,
            )
        check_disk(folder, plan, trace.bytes, disk_bytes)
        write_pack(
            store.disk,
            folder,
            plan,
            lambda disk, at, of: pack_batched(disk, at, store.features, of, memory_bytes, progress),
        )

    return store.derived.get_or_build("pack", spec.pack_inputs, build, resumable=True)


def check_disk(folder: Path, plan: PackPlan, trace_bytes: int, disk_bytes: int | None) -> None:
    """BudgetError where the budget, or the file system, has no room for what is to be made."""
    needed = trace_bytes + plan.most_bytes
    if disk_bytes is not None and needed > disk_bytes:
        raise BudgetError(
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
