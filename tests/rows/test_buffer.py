"""The feature buffer: rows are loaded once, shared, and never stale."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from numpy.typing import NDArray

from outcrop import _core
from outcrop.errors import CancelledError
from outcrop.rows.buffer import FeatureBuffer

Ids = NDArray[np.int64]


class Loader:
    """Writes each node's id into its slot, and remembers what it was asked for."""

    def __init__(self, buffer: FeatureBuffer) -> None:
        self._rows = buffer.rows.view(np.int64)
        self.loaded: list[int] = []

    def __call__(self, nodes: Ids, slots: Ids) -> None:
        self.loaded += nodes.tolist()
        self._rows[slots, 0] = nodes


def make(slots: int, nodes: int = 100, *, counted: bool = False) -> FeatureBuffer:
    return FeatureBuffer(nodes, slots, 8, counted=counted)


def ids(*nodes: int) -> Ids:
    return np.array(nodes, dtype=np.int64)


def never() -> bool:
    return False


def held(buffer: FeatureBuffer, claim: _core.Claim) -> list[int]:
    found: list[int] = buffer.rows.view(np.int64)[claim.slots, 0].tolist()
    return found


def test_rows_stay_until_their_slots_are_needed() -> None:
    buffer = make(4)
    load = Loader(buffer)
    for nodes in (ids(1, 2, 2, 3), ids(1, 3, 7), ids(2, 7, 8)):
        claim = buffer.claim(nodes, load, never)
        assert held(buffer, claim) == nodes.tolist()
        claim.release()
    assert load.loaded == [1, 2, 3, 7, 8], "each once: 1 made room for 8, the least recently used"
    claim = buffer.claim(ids(1, 2, 7, 8), load, never)
    assert load.loaded[5:] == [1] and claim.found == 3 and claim.shared == 0
    assert held(buffer, claim) == [1, 2, 7, 8]
    assert buffer.num_standby == 0
    del claim
    assert buffer.num_standby == 4, "a claim that is dropped is released"


@pytest.mark.parametrize("counted", [False, True])
def test_counted_rows_stay_while_others_pass_by(counted: bool) -> None:
    buffer = make(4, counted=counted)
    load = Loader(buffer)
    for nodes in (ids(1, 2), ids(1, 2), ids(3), ids(4), ids(5), ids(6), ids(1, 2)):
        claim = buffer.claim(nodes, load, never)
        assert held(buffer, claim) == nodes.tolist()
        claim.release()
    assert load.loaded == [1, 2, 3, 4, 5, 6] + ([] if counted else [1, 2])


def test_a_failed_load_leaves_nothing_behind() -> None:
    buffer = make(4)

    def fail(nodes: Ids, slots: Ids) -> None:
        raise OSError(5, "Input/output error")

    with pytest.raises(OSError, match="Input/output") as kept:
        buffer.claim(ids(1, 2), fail, never)
    assert buffer.num_standby == 4, "though the error is kept"
    del kept
    load = Loader(buffer)
    claim = buffer.claim(ids(1, 2), load, never)
    assert load.loaded == [1, 2] and held(buffer, claim) == [1, 2]


def test_who_waits_for_a_failed_load_reads_it_himself() -> None:
    buffer = make(8)
    begun, waits = threading.Event(), threading.Event()

    def fail_late(nodes: Ids, slots: Ids) -> None:
        begun.set()
        assert waits.wait(10)
        raise OSError(5, "Input/output error")

    def first() -> None:
        with pytest.raises(OSError, match="Input/output"):
            buffer.claim(ids(1, 2, 3), fail_late, never)

    thread = threading.Thread(target=first)
    thread.start()
    assert begun.wait(10)
    load = Loader(buffer)

    def load_and_wake(nodes: Ids, slots: Ids) -> None:
        load(nodes, slots)
        waits.set()

    claim = buffer.claim(ids(2, 3, 4), load_and_wake, never)
    thread.join()
    assert load.loaded == [4, 2, 3]
    assert held(buffer, claim) == [2, 3, 4] and claim.shared == 2


@pytest.mark.parametrize("wanted", [ids(1, 2), ids(4, 5)], ids=["for rows", "for slots"])
def test_waiting_can_be_cancelled(wanted: Ids) -> None:
    buffer = make(3)
    load = Loader(buffer)

    def load_and_want_more(nodes: Ids, slots: Ids) -> None:
        load(nodes, slots)
        with pytest.raises(CancelledError):
            buffer.claim(wanted, load, lambda: True)

    buffer.claim(ids(1, 2), load_and_want_more, never).release()
    assert buffer.num_standby == 3


def test_nodes_that_cannot_be_are_refused() -> None:
    buffer = make(3, nodes=10)
    for nodes, message in [
        (ids(2, 1), "ascending"),
        (ids(10), "not of the graph"),
        (ids(-1), "not of the graph"),
        (ids(1, 2, 3, 4), "more nodes than slots"),
    ]:
        with pytest.raises(ValueError, match=message):
            buffer.claim(nodes, Loader(buffer), never)
    claim = buffer.claim(ids(1, 1, 2, 3), Loader(buffer), never)
    claim.release()
    claim.release()
    with pytest.raises(ValueError, match="released"):
        claim.loaded()


def test_a_small_buffer_is_small_whatever_the_graph() -> None:
    assert FeatureBuffer.memory_bytes(10**9, 1000, 512) < 620_000
    assert FeatureBuffer.memory_bytes(1000, 1000, 512) >= 516_000
