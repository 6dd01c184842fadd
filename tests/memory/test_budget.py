"""One memory number: what is charged, what is refused, and when memory comes back."""

from __future__ import annotations

import gc
import re
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from outcrop import _core
from outcrop.errors import BudgetError, CancelledError, OptionError
from outcrop.memory.batches import (
    Batch,
    BatchMaker,
    BatchShape,
    OwnRows,
    RowShape,
)
from outcrop.memory.budget import Budget, Demand, Demands, exact_slabs
from outcrop.options import format_size, parse_size
from outcrop.sample.sampler import Subgraph
from outcrop.sample.seeds import Stream, Task
from outcrop.store.targets import TargetFormat

PAGE = 4096
MB = 10**6


# The accountant


def always(**needs: int) -> Callable[[int], dict[str, int]]:
    """The same needs whatever the total."""
    return lambda _: needs


def demands(needs: Callable[[int], dict[str, int]], batch_bytes: int, batches: int) -> Demands:
    """At all times the same."""
    said = f"{batches} batches of {format_size(batch_bytes)}"
    return lambda total: [Demand(needs(total), batches * batch_bytes, said)]


def named(refused: pytest.ExceptionInfo[BudgetError]) -> str:
    found = re.search(r"the smallest that would do is (\w+)$", str(refused.value))
    assert found is not None
    return found[1]


def test_what_is_charged_is_gone() -> None:
    budget = Budget("10MB")
    budget.settle(demands(always(topology=3 * MB, features=4 * MB, labels=0), MB, 2))
    assert budget.charges == {"topology": 3 * MB, "features": 4 * MB}  # nothing for nothing
    assert budget.left_bytes == 3 * MB
    assert budget.slabs().limit_bytes == 3 * MB


def test_all_of_it_may_be_used() -> None:
    budget = Budget(10 * MB)
    budget.settle(demands(always(topology=6 * MB), 2 * MB, 2))
    assert budget.left_bytes == 4 * MB


def test_a_refusal_names_the_parts_and_charges_nothing() -> None:
    budget = Budget("10MB")
    with pytest.raises(BudgetError) as refused:
        budget.settle(demands(always(labels=MB, topology=7 * MB), MB + 1, 2))
    assert str(refused.value) == (
        "memory=10.0 MB is too little: labels 1.0 MB, topology 7.0 MB, 2 batches of 1.0 MB; "
        "the smallest that would do is 11MB"
    )
    assert budget.charges == {}


def test_a_cache_that_grows_with_the_memory_is_named_as_it_will_be() -> None:
    """A table of half the total: at 10 MB it is 5, at what is named it is more."""
    with pytest.raises(BudgetError, match=r"table 11\.5 MB.* is 24MB$"):
        Budget("10MB").settle(demands(lambda total: {"index": 10 * MB, "table": total // 2}, MB, 2))


def test_needs_that_no_memory_meets_are_refused() -> None:
    with pytest.raises(BudgetError, match="so is any other"):
        Budget("10MB").settle(demands(lambda total: {"table": total + 1}, 0, 0))


def test_the_time_that_needs_most_is_the_one_that_is_named() -> None:
    loop, before = Demand({"cache": 5 * MB}, MB, "2 batches of 0.5 MB"), Demand({"sorting": 9 * MB})
    with pytest.raises(BudgetError, match=r"too little: sorting 9\.0 MB; .* is 9MB$"):
        Budget("8MB").settle(lambda _: [loop, before])
    budget = Budget("9MB")
    budget.settle(lambda _: [loop, before])
    assert budget.charges == {"cache": 5 * MB}


@given(st.integers(1, 10**12))
def test_what_is_lent_is_charged_to_the_page(size: int) -> None:
    sizes = exact_slabs(size)
    charged = sum(map(_core.SlabPool.charged_bytes, sizes))
    assert size - PAGE < charged == sum(sizes) <= size


sizes = st.integers(0, 10**13)


@given(sizes, sizes, st.integers(0, 10**11), st.integers(0, 5))
def test_the_smallest_budget_that_is_named_is_accepted(
    topology: int, cache: int, batch_bytes: int, batches: int
) -> None:
    needs = always(topology=topology, cache=cache, something=1)
    with pytest.raises(BudgetError) as refused:
        Budget(0).settle(demands(needs, batch_bytes, batches))
    budget = Budget(named(refused))
    budget.settle(demands(needs, batch_bytes, batches))
    assert budget.left_bytes >= batches * batch_bytes
    too_little = Budget(parse_size(named(refused)) - MB)
    with pytest.raises(BudgetError):
        too_little.settle(demands(needs, batch_bytes, batches))


@given(
    st.lists(st.tuples(sizes, st.integers(0, 10**10)), min_size=1, max_size=6),
    st.floats(0, 0.95),
    st.integers(0, 10**11),
)
def test_what_is_named_is_accepted_where_more_memory_needs_more(
    steps: list[tuple[int, int]], share: float, given: int
) -> None:
    """Caches that take a share, and tables that appear where there is memory for their use."""

    def needs(total: int) -> dict[str, int]:
        tables = sum(table for start, table in steps if total >= start)
        return {"fixed": 1, "cache": int(total * share), "tables": tables}

    try:
        Budget(given).settle(demands(needs, 1000, 2))
    except BudgetError as error:
        least = parse_size(str(error).rsplit(" ", 1)[1])
        Budget(least).settle(demands(needs, 1000, 2))
        if least - MB > given:
            with pytest.raises(BudgetError):
                Budget(least - MB).settle(demands(needs, 1000, 2))


def test_a_size_that_is_none_is_refused() -> None:
    for memory in ("lots", -1, "8 bananas"):
        with pytest.raises(OptionError, match="a size such as"):
            Budget(memory)


# Slabs


def take(pool: _core.SlabPool, *sizes: int) -> list[Any]:
    arrays = pool.take(list(sizes), 0.0)
    assert arrays is not None
    return arrays


@given(st.integers(0, 2**50))
def test_sizes_are_rounded_up_by_an_eighth_at_most(size: int) -> None:
    charged = _core.SlabPool.charged_bytes(size)
    assert max(size, 1) <= charged < size + max(size / 8, 1) + PAGE
    assert charged % PAGE == 0
    assert _core.SlabPool.charged_bytes(charged) == charged


def test_arrays_are_page_aligned_and_have_the_wanted_size() -> None:
    pool = _core.SlabPool(MB)
    for size, array in zip((0, 1, 5000, 100_000), take(pool, 0, 1, 5000, 100_000), strict=True):
        assert (array.shape, array.dtype) == ((size,), np.uint8)
        assert array.ctypes.data % PAGE == 0
        assert array.flags.writeable
        array[:] = 7


def test_a_slab_is_charged_while_an_array_lives() -> None:
    pool = _core.SlabPool(10 * PAGE)
    arrays = take(pool, PAGE, 3 * PAGE)
    assert pool.held_bytes == 4 * PAGE
    arrays.pop()
    assert pool.held_bytes == PAGE
    arrays.clear()
    assert pool.held_bytes == 0
    assert pool.peak_bytes == 4 * PAGE


def test_a_slab_is_charged_while_a_view_lives() -> None:
    pool = _core.SlabPool(10 * PAGE)
    view = take(pool, PAGE)[0].view(np.int64).reshape(2, -1)[1, 5:9]
    view[:] = 3
    gc.collect()
    assert pool.held_bytes == PAGE
    assert view.tolist() == [3] * 4
    del view
    assert pool.held_bytes == 0


def test_a_slab_is_charged_while_a_tensor_lives() -> None:
    pool = _core.SlabPool(10 * PAGE)
    tensor = torch.from_numpy(take(pool, PAGE)[0].view(np.float32).reshape(-1, 4))
    part = tensor[3:5].t()
    del tensor
    gc.collect()
    assert pool.held_bytes == PAGE
    copy = part.clone()
    del part
    assert pool.held_bytes == 0
    assert copy.shape == (4, 2)


def test_a_slab_in_a_cycle_comes_back_with_garbage_collection() -> None:
    pool = _core.SlabPool(10 * PAGE)
    cycle: list[Any] = take(pool, PAGE)
    cycle.append(cycle)
    del cycle
    gc.collect()
    assert pool.held_bytes == 0


def test_a_slab_outlives_the_pool() -> None:
    pool = _core.SlabPool(10 * PAGE)
    (array,) = take(pool, PAGE)
    del pool
    gc.collect()
    array[:] = 9
    assert int(array.sum()) == 9 * PAGE


def test_slabs_come_all_at_once_or_not_at_all() -> None:
    pool = _core.SlabPool(10 * PAGE)
    held = take(pool, 6 * PAGE)
    assert pool.take([PAGE, PAGE, 3 * PAGE], 0.0) is None
    assert pool.held_bytes == 6 * PAGE
    assert len(take(pool, PAGE, PAGE, PAGE)) == 3
    del held


def test_more_than_the_limit_is_never_given() -> None:
    pool = _core.SlabPool(10 * PAGE)
    assert pool.take([11 * PAGE], 0.0) is None
    assert pool.take([PAGE] * 11, 0.0) is None
    assert _core.SlabPool(0).take([0], 0.0) is None
    assert pool.peak_bytes == 0


def test_memory_is_used_again() -> None:
    pool = _core.SlabPool(10 * PAGE)
    (array,) = take(pool, 5 * PAGE)
    address = array.ctypes.data
    del array
    (array,) = take(pool, 5 * PAGE)
    assert array.ctypes.data == address


@pytest.mark.parametrize("pages", [40, 48])
def test_memory_of_nearly_the_size_is_used_again(pages: int) -> None:
    pool = _core.SlabPool(48 * PAGE)
    (array,) = take(pool, 44 * PAGE)
    array[:] = 7
    del array
    (array,) = take(pool, pages * PAGE)
    common = min(pages, 44) * PAGE
    assert np.all(array[:common] == 7), "the same pages"
    assert np.all(array[common:] == 0)
    assert pool.held_bytes == pages * PAGE


def test_kept_memory_of_other_sizes_makes_room() -> None:
    pool = _core.SlabPool(10 * PAGE)
    del take(pool, *[PAGE] * 10)[:]
    assert take(pool, 10 * PAGE)


def test_take_waits_until_memory_is_returned() -> None:
    pool = _core.SlabPool(PAGE)
    held = take(pool, PAGE)
    timer = threading.Timer(0.1, held.clear)
    timer.start()
    start = time.perf_counter()
    arrays = pool.take([PAGE], 30.0)  # without the GIL: the timer could not run
    assert arrays is not None
    assert 0.05 < time.perf_counter() - start < 20
    timer.join()


def test_take_gives_up_in_time() -> None:
    pool = _core.SlabPool(PAGE)
    held = take(pool, PAGE)
    start = time.perf_counter()
    assert pool.take([PAGE], 0.1) is None
    assert 0.09 < time.perf_counter() - start < 5
    del held


def test_memory_that_the_system_refuses_is_not_charged() -> None:
    pool = _core.SlabPool(2**60)
    with pytest.raises(MemoryError):
        pool.take([PAGE, 2**50], 0.0)
    assert pool.held_bytes == 0


# Batches


def subgraph(nodes: int, edges: int) -> Subgraph:
    """A star: all edges end at node 0."""
    return Subgraph(
        nodes=np.arange(nodes, dtype=np.int64) * 2,
        sources=np.arange(edges, dtype=np.uint32) % nodes,
        counts=np.array([edges], np.uint32),
        edge_ids=np.arange(edges, dtype=np.int64) + 100,
        nodes_per_hop=[1, nodes - 1],
        edges_per_hop=[edges],
        roots=[],
    )


TASK = Task(Stream.TRAIN, 0, 0, np.array([0]), np.array([0]))
ROWS = RowShape(dim=3, labels=True, staged_bytes=12)
LABELS = np.arange(10_000, dtype=np.int64) + 7
TARGETS = TargetFormat("classes", 10_007)


def maker(limit: int, *, strict: bool = False) -> BatchMaker:
    return BatchMaker(_core.SlabPool(limit), ROWS, TARGETS, LABELS, strict=strict)


def make(of: BatchMaker, graph: Subgraph, *, closed: bool = False, awaited: bool = False) -> Batch:
    return of.make(TASK, graph, lambda: closed, lambda: awaited)


def charged(graph: Subgraph) -> int:
    return BatchShape(len(graph.nodes), len(graph.sources), ROWS).charged_bytes()


def test_a_batch_has_what_its_subgraph_says() -> None:
    batch = make(maker(MB), subgraph(4, 6))
    assert batch.n_id.tolist() == [0, 2, 4, 6]
    assert batch.edge_index.tolist() == [[0, 1, 2, 3, 0, 1], [0] * 6]
    assert batch.e_id is not None and batch.e_id.tolist() == list(range(100, 106))
    assert batch.y is not None
    assert batch.y.tolist() == [7, 9, 11, 13]
    assert isinstance(batch.rows, OwnRows) and batch.rows.x.shape == (4, 3)


def test_a_batch_is_charged_while_any_part_of_it_lives() -> None:
    made = maker(MB)
    graph = subgraph(1000, 3000)
    batch = make(made, graph)
    assert made.pool.held_bytes == charged(graph)
    labels = torch.from_numpy(batch.y)
    del batch
    assert made.pool.held_bytes == _core.SlabPool.charged_bytes(8 * 1000)
    del labels
    assert made.pool.held_bytes == 0


def test_an_empty_batch_can_be_made() -> None:
    graph = Subgraph(
        nodes=np.zeros(0, np.int64),
        sources=np.zeros(0, np.uint32),
        counts=np.zeros(0, np.uint32),
        edge_ids=np.zeros(0, np.int64),
        nodes_per_hop=[0, 0],
        edges_per_hop=[0],
        roots=[],
    )
    batch = make(maker(MB), graph)
    assert (batch.n_id.shape, batch.edge_index.shape) == ((0,), (2, 0))


def test_a_batch_larger_than_everything_is_refused_at_once_if_strict() -> None:
    graph = subgraph(1000, 3000)
    made = maker(charged(graph) - 1, strict=True)
    with pytest.raises(BudgetError, match=r"needs 1\d\d\.\d kB, more than the 1\d\d\.\d kB"):
        make(made, graph)
    assert made.pool.held_bytes == 0
    assert make(maker(charged(graph)), graph).n_id.size == 1000  # and one byte more would do


def test_a_batch_that_the_loop_waits_for_is_served_beyond_the_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("outcrop.memory.batches._GRACE_SECONDS", 0.2)
    graph = subgraph(1000, 3000)
    made = maker(2 * charged(graph) - PAGE)
    kept = [make(made, graph)]
    assert made.overdraft.peak_bytes == 0
    kept.append(make(made, graph, awaited=True))
    assert made.overdraft.peak_bytes == PAGE
    excuse = made.overdraft.take_excuse()
    assert excuse is not None
    assert excuse.startswith("batches take 4.1 kB more than memory= allows: the next batch needs ")
    assert made.overdraft.take_excuse() is None
    start = time.perf_counter()
    kept += [make(made, graph, awaited=True) for _ in range(20)]
    assert time.perf_counter() - start < 10, "the grace is given once"
    assert made.overdraft.take_excuse() is None
    assert made.pool.held_bytes == 22 * charged(graph)
    del kept
    assert made.pool.held_bytes == 0


def test_of_memory_beyond_the_limit_nothing_is_kept() -> None:
    pool = _core.SlabPool(10 * PAGE)
    beyond = pool.take([64 * PAGE], 0.0, beyond_limit=True)
    assert beyond is not None
    address = beyond[0].ctypes.data
    beyond[0][:] = 7
    del beyond
    (array,) = take(pool, 10 * PAGE)
    assert array.ctypes.data != address or not array.any(), "these are other pages"
    assert (pool.held_bytes, pool.peak_bytes) == (10 * PAGE, 64 * PAGE)


def test_what_waits_for_a_larger_batch_is_not_what_the_loop_waits_for() -> None:
    graph = subgraph(1000, 3000)
    made = maker(charged(graph) - 1)
    closed = threading.Event()
    threading.Timer(0.3, closed.set).start()
    with pytest.raises(CancelledError):
        made.make(TASK, graph, closed.is_set, lambda: False)
    assert make(made, graph, awaited=True).n_id.size == 1000


def test_memory_that_the_user_holds_is_an_error_not_a_deadlock_if_strict(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("outcrop.memory.batches._GRACE_SECONDS", 0.2)
    graph = subgraph(1000, 3000)
    made = maker(2 * charged(graph) - 1, strict=True)
    kept = make(made, graph)
    start = time.perf_counter()
    with pytest.raises(BudgetError, match=r"the next batch needs .* are held .* batch\.y\.clone"):
        make(made, graph, awaited=True)
    assert time.perf_counter() - start < 5
    assert made.pool.held_bytes == charged(graph)
    del kept
    assert make(made, graph, awaited=True).n_id.size == 1000  # and it goes on


def test_batches_in_a_cycle_are_collected_before_anything_is_refused() -> None:
    graph = subgraph(1000, 3000)
    made = maker(2 * charged(graph) - 1, strict=True)
    cycle: list[Any] = [make(made, graph)]
    cycle.append(cycle)
    gc.disable()
    try:
        del cycle
        assert make(made, graph, awaited=True).n_id.size == 1000
    finally:
        gc.enable()


def test_a_batch_that_nobody_awaits_yet_waits_for_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("outcrop.memory.batches._GRACE_SECONDS", 0.0)
    graph = subgraph(1000, 3000)
    made = maker(2 * charged(graph) - 1)
    kept = [make(made, graph)]
    timer = threading.Timer(0.3, kept.clear)
    timer.start()
    assert make(made, graph).n_id.size == 1000
    timer.join()


def test_a_batch_that_waits_gives_up_when_closed() -> None:
    graph = subgraph(1000, 3000)
    made = maker(2 * charged(graph) - 1)
    kept = make(made, graph)
    with pytest.raises(CancelledError, match="closed while a batch waited"):
        make(made, graph, closed=True)
    del kept
