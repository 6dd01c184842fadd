"""The external sort: the same order as a sort in memory, however often it spills."""

from __future__ import annotations

import errno
import os
import resource
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from outcrop.disk import Disk
from outcrop.errors import BudgetError, WriteError
from outcrop.options import DiskOptions, Faults
from outcrop.store.edges import LEAST_SORT_BYTES, EdgeSorter, RecordLayout

layouts = st.builds(RecordLayout, wide=st.booleans(), numbered=st.booleans(),
                    by_source=st.booleans())  # fmt: skip


def add(sorter: EdgeSorter, records: NDArray[Any]) -> None:
    while len(records):
        room = sorter.room().view(sorter.layout.dtype)
        count = min(len(room), len(records))
        room[:count] = records[:count]
        sorter.filled(count)
        records = records[count:]


def drain(sorter: EdgeSorter, memory: int | None = None) -> NDArray[Any]:
    dtype = sorter.layout.dtype
    parts = [
        block.records[: block.count * dtype.itemsize].view(dtype).copy()
        for block in sorter.blocks(memory)
    ]
    return np.concatenate([np.empty(0, dtype), *parts])


def expected(records: NDArray[Any], layout: RecordLayout) -> NDArray[Any]:
    if not layout.by_source:
        return records[np.argsort(records["target"], kind="stable")]
    order = np.lexsort((records["source"], records["target"]))
    ordered = records[order]
    keep = np.ones(len(ordered), dtype=bool)
    keep[1:] = (ordered["target"][1:] != ordered["target"][:-1]) | (
        ordered["source"][1:] != ordered["source"][:-1]
    )
    return ordered[keep]


def random_records(count: int, nodes: int, layout: RecordLayout, seed: int) -> NDArray[Any]:
    rng = np.random.default_rng(seed)
    records = np.zeros(count, layout.dtype)
    high = nodes if not layout.wide else nodes * (1 << 40)
    records["target"] = rng.integers(0, high, count) if high else 0
    records["source"] = rng.integers(0, nodes, count)
    if layout.numbered:
        records["number"] = np.arange(count)
    return records


@given(
    layout=layouts,
    sizes=st.lists(st.integers(0, 50), max_size=12),
    nodes=st.integers(1, 20),
    fan_in=st.integers(2, 4),
)
def test_runs_merge_to_one_stable_order(
    tmp_path_factory: pytest.TempPathFactory,
    layout: RecordLayout,
    sizes: list[int],
    nodes: int,
    fan_in: int,
) -> None:
    scratch = tmp_path_factory.mktemp("runs")
    records = random_records(sum(sizes), nodes, layout, seed=len(sizes))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(EdgeSorter, "_fan_in", fan_in)
        with (
            Disk(DiskOptions(workers=1)) as disk,
            EdgeSorter(disk, scratch, LEAST_SORT_BYTES, layout) as sorter,
        ):
            for chunk in np.split(records, np.cumsum(sizes)[:-1] if sizes else []):
                add(sorter, chunk)
                sorter.spill()
            merged = drain(sorter)
    assert np.array_equal(merged, expected(records, layout))
    assert not list(scratch.iterdir())


@pytest.mark.parametrize("memory", [LEAST_SORT_BYTES, 20 << 20, 400 << 20])
@pytest.mark.parametrize("by_source", [False, True])
def test_the_result_does_not_depend_on_memory(tmp_path: Path, memory: int, by_source: bool) -> None:
    layout = RecordLayout(wide=False, numbered=True, by_source=by_source)
    records = random_records(1_500_000, 3000, layout, seed=1)
    with Disk() as disk, EdgeSorter(disk, tmp_path, memory, layout) as sorter:
        add(sorter, records)
        merged = drain(sorter, LEAST_SORT_BYTES)
    assert np.array_equal(merged, expected(records, layout))
    assert not list(tmp_path.iterdir())


def test_a_failed_spill_is_raised_to_the_caller(tmp_path: Path) -> None:
    layout = RecordLayout(wide=False)
    faults = Faults(fail_write_at=2, error=28)
    with (
        Disk(DiskOptions(faults=faults)) as disk,
        EdgeSorter(disk, tmp_path, LEAST_SORT_BYTES, layout) as sorter,
        pytest.raises(WriteError, match="No space left"),
    ):
        add(sorter, random_records(2_000_000, 100, layout, seed=0))
        drain(sorter)


def spill_runs(sorter: EdgeSorter, count: int) -> NDArray[Any]:
    """As many runs of ten records each."""
    records = random_records(10 * count, 50, sorter.layout, seed=0)
    for run in np.split(records, count):
        add(sorter, run)
        sorter.spill()
    return records


def test_a_failed_merge_is_raised_to_the_caller_and_leaves_no_run(tmp_path: Path) -> None:
    layout = RecordLayout(wide=False)
    faults = Faults(fail_write_at=22, error=errno.ENOSPC)  # the second run of the first pass
    with (
        pytest.raises(WriteError, match="No space left"),
        Disk(DiskOptions(workers=1, faults=faults)) as disk,
        EdgeSorter(disk, tmp_path, LEAST_SORT_BYTES, layout) as sorter,
    ):
        spill_runs(sorter, 20)
        drain(sorter)
    assert not list(tmp_path.iterdir())


def test_more_runs_than_descriptors_are_merged(tmp_path: Path) -> None:
    used = len(os.listdir("/proc/self/fd"))
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = 2 * used + 32  # of which half are for runs
    layout = RecordLayout(wide=False, numbered=True)
    with Disk(DiskOptions(workers=1)) as disk:
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, before[1]))
        try:
            with EdgeSorter(disk, tmp_path, 64 << 20, layout) as sorter:
                records = spill_runs(sorter, limit)
                merged = drain(sorter)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert np.array_equal(merged, expected(records, layout))


def test_what_was_sorted_in_memory_needs_one_buffer(tmp_path: Path) -> None:
    layout = RecordLayout(wide=False)
    with Disk() as disk, EdgeSorter(disk, tmp_path, LEAST_SORT_BYTES, layout) as sorter:
        add(sorter, random_records(1000, 100, layout, seed=0))
        buffers = [weakref.ref(b) for b in (sorter._filling, sorter._sorting, sorter._spare)]
        blocks = sorter.blocks()
        next(blocks)
        assert sum(buffer() is not None for buffer in buffers) == 1


def test_too_little_memory_is_refused(tmp_path: Path) -> None:
    with Disk() as disk, pytest.raises(BudgetError, match=r"8\.4 MB.*got 1\.0 kB"):
        EdgeSorter(disk, tmp_path, 1000, RecordLayout(wide=False))
