"""Tiers: the hottest rows, and every row of a batch in exactly one tier."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from outcrop import _core
from outcrop.disk import Disk
from outcrop.layout.pack.tiers import hottest_of_each, split_batches
from outcrop.layout.trace import Trace
from tests.layout.pack.traces import write_trace

batches = st.lists(st.lists(st.integers(0, 30), max_size=40), max_size=12)


def hottest(counts: Counter[int], slots: int) -> list[int]:
    return sorted(sorted(counts, key=lambda node: (-counts[node], node))[:slots])


@pytest.mark.parametrize("num_nodes", [31, 1 << 40])  # a table of all nodes, or of those touched
@given(batches=batches, slots=st.integers(0, 40))
def test_the_hottest_are_those_that_most_batches_want(
    num_nodes: int, batches: list[list[int]], slots: int
) -> None:
    stride = num_nodes // 31
    table = _core.AccessCounts(num_nodes, 40)
    counts: Counter[int] = Counter()
    for batch in batches:
        table.add(np.array(batch, np.int64) * stride)
        counts.update({node * stride for node in batch})  # once, however often it has it
    assert table.hottest(slots).tolist() == hottest(counts, slots)


@given(batch=st.lists(st.integers(0, 30), max_size=60), cached=st.sets(st.integers(0, 30)))
def test_every_row_is_in_one_tier(batch: list[int], cached: set[int]) -> None:
    slots = np.array(sorted(cached), np.int64)
    splitter = _core.TierSplitter(31, slots)
    splitter.split(np.arange(31))  # results of an earlier batch are forgotten
    splitter.split(np.array(batch, np.int64))
    rows = np.full(len(batch), -1)
    rows[splitter.cached_rows] = slots[splitter.cached_slots]
    rows[splitter.packed_rows] = splitter.packed_nodes
    rows[splitter.copied_rows] = rows[splitter.copied_from]
    assert rows.tolist() == batch
    parts = (splitter.cached_rows, splitter.packed_rows, splitter.copied_rows)
    assert sum(map(len, parts)) == len(batch)
    packed = splitter.packed_nodes.tolist()
    assert packed == sorted(set(batch) - cached)
    assert (np.diff(splitter.cached_rows.astype(np.int64)) > 0).all()


def test_nodes_beyond_the_graph_are_refused() -> None:
    with pytest.raises(ValueError, match="node ids must be 0 to 4"):
        _core.AccessCounts(5, 5).add(np.array([5]))
    with pytest.raises(ValueError, match="node ids must be 0 to 4"):
        _core.TierSplitter(5, np.array([-1]))


def test_a_trace_is_counted_and_split(tmp_path: Path) -> None:
    batches = [[4, 2, 9], [2, 9, 9], [], [9, 7]]
    with Disk() as disk:
        write_trace(disk, tmp_path, batches, num_nodes=10)
        with Trace(disk, tmp_path) as trace:
            none, cached = hottest_of_each(trace, 10, [0, 2])
            assert cached.tolist() == [2, 9]
            assert none.tolist() == []
            assert hottest_of_each(trace, 10, [0])[0].tolist() == []
            packed = [nodes.tolist() for nodes, _ in split_batches(trace, 10, cached)]
    assert packed == [[4], [], [], [7]]
