"""Forks: a child is told what is its parent's, harms none of it, and reads the batches it got."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import numpy as np

import outcrop
from outcrop.disk import Disk, aligned_empty, given
from outcrop.memory.batches import RowRequest
from outcrop.rows.source import RowFill, RowWorker
from tests.processes import program
from tests.stores import make_random_store

STRATEGIES = [
    "memory",
    "mmap",
    "direct",
    "gnndrive",
    "gnndrive:x=slots",
    "ginex",
    "pagraph",
    "diskgnn",
]

_FORKED_LOADERS = """
import os, signal, sys, warnings
import torch
from outcrop.errors import ForkedError
from outcrop.loader import NeighborLoader
warnings.simplefilter("ignore")  # newer Pythons warn of a fork beside threads

torch.set_num_threads(1)  # its own do not cross a fork

def loader_of(strategy):
    return NeighborLoader(sys.argv[1], [5, 5], "train", batch_size=10, strategy=strategy,
                          memory="256MB", epochs=1)

def rows(batch):
    return batch.x.clone() if "x" in batch else batch.x_buffer[batch.x_index]

def refused(use):
    try:
        use()
    except ForkedError as error:
        return "fork" in str(error)
    return False

def child(loader, iterator, batch, expected):
    signal.alarm(30)  # instead of a hang
    same = torch.equal(rows(batch), expected)
    told = [refused(lambda: next(iterator)), refused(lambda: next(iter(loader))),
            refused(lambda: loader([0, 1])), refused(lambda: loader.sibling("val"))]
    iterator.close()
    loader.close()
    sys.exit(0 if same and all(told) else f"{same} {told}")  # and ends as any Python does

expected = [rows(batch) for batch in loader_of("memory")]
for strategy in sys.argv[2:]:
    loader = loader_of(strategy)
    iterator = iter(loader)
    found = []
    for number, batch in enumerate(iterator):
        found.append(rows(batch))
        if number == 2:
            pid = os.fork()
            if pid == 0:
                child(loader, iterator, batch, expected[number])
            status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            assert status == 0, (strategy, number, status)
        del batch
    assert len(found) == len(expected), strategy
    assert all(map(torch.equal, found, expected)), strategy
    assert all(torch.equal(rows(batch), rows(again)) for batch, again in
               zip(loader.epoch(0, 3), loader.epoch(0, 3))), strategy
    loader.close()
"""


def test_forked_children_are_told_that_a_loader_is_the_parents_and_do_it_no_harm(
    tmp_path: Path,
) -> None:
    make_random_store(tmp_path / "s.outcrop", 400, 6000, dim=128, train=150).close()
    command = program(_FORKED_LOADERS, str(tmp_path / "s.outcrop"), *STRATEGIES)
    done = subprocess.run(command, capture_output=True, text=True, timeout=400)
    assert (done.returncode, done.stderr) == (0, "")


def test_children_that_drop_what_they_inherited_end(tmp_path: Path) -> None:
    make_random_store(tmp_path / "s.outcrop", 400, 6000, dim=128, train=150).close()
    code = """
import gc, os, signal, sys, warnings
from outcrop.loader import NeighborLoader
warnings.simplefilter("ignore")
for strategy in sys.argv[2:]:
    loader = NeighborLoader(sys.argv[1], [5, 5], "train", batch_size=2, strategy=strategy,
                            memory="256MB", epochs=1)
    iterator = iter(loader)
    for _ in range(4):  # at moments when threads hold locks, or wait
        batch = next(iterator)
        pid = os.fork()
        if pid == 0:
            signal.alarm(30)
            del batch, iterator, loader
            gc.collect()
            sys.exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0, strategy
    assert len(list(iterator)) == 75 - 4, strategy
"""
    command = program(code, str(tmp_path / "s.outcrop"), *STRATEGIES)
    done = subprocess.run(command, capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stderr


def _kept(array: np.ndarray) -> bool:
    """Whether the kernel leaves the array's memory out of forks."""
    address, inside = array.ctypes.data, False
    with open("/proc/self/smaps") as maps:
        for line in maps:
            first = line.split()[0]
            if "-" in first and not first.endswith(":"):
                begin, end = (int(part, 16) for part in first.split("-"))
                inside = begin <= address < end
            elif inside and first == "VmFlags:":
                return "dc" in line.split()
    raise AssertionError("not mapped")


def test_memory_that_a_drive_may_write_to_is_not_forked(tmp_path: Path) -> None:
    reading = aligned_empty(8192)
    assert _kept(reading)
    assert not _kept(given(reading))
    store = make_random_store(tmp_path / "s.outcrop", 400, 6000, dim=16)
    assert not _kept(store.load("indices"))
    assert not _kept(store.load_labels())
    assert not _kept(store.features.gather(range(300)))


def test_batches_are_kept_from_children_until_they_are_complete(tmp_path: Path) -> None:
    store = make_random_store(tmp_path / "s.outcrop", 400, 6000, dim=16)
    loader = outcrop.NeighborLoader(store, [5], "train", batch_size=20, strategy="direct")
    seen = []
    rows = loader.runner.parts.rows
    assert rows is not None
    make = rows.worker

    def watched(*given: Any) -> RowWorker:
        worker = make(*given)
        start = worker.start

        def look(request: RowRequest) -> RowFill:
            seen.append(_kept(request.x))
            return start(request)

        worker.start = look  # type: ignore[method-assign]
        return worker

    rows.worker = watched  # type: ignore[method-assign,assignment]
    for _ in range(2):  # the second time in memory that was given before
        for batch in loader:
            assert not _kept(batch.x.numpy()) and not _kept(batch.edge_index.numpy())
            del batch
    assert seen and all(seen)


def test_bytes_are_right_where_children_are_forked_while_they_are_read(tmp_path: Path) -> None:
    data = np.random.default_rng(0).integers(0, 256, 8 << 20, dtype=np.uint8)
    data.tofile(tmp_path / "f")
    code = """
import os, sys, threading, numpy as np
from outcrop.disk import Disk, aligned_empty
data = np.fromfile(sys.argv[1], np.uint8)
ended = threading.Event()

def fork():
    while not ended.is_set():
        pid = os.fork()
        if pid == 0:
            os._exit(0)
        os.waitpid(pid, 0)

forking = threading.Thread(target=fork)
forking.start()
try:
    with Disk() as disk, disk.open(sys.argv[1]) as file:
        ids = np.arange(0, len(data) // 512, 3)
        rows = data[: len(data) // 512 * 512].reshape(-1, 512)[ids]
        for _ in range(15):
            whole, some = aligned_empty(len(data)), np.zeros((len(ids), 512), np.uint8)
            file.read_extents([0], [len(data)], whole)
            file.read_rows(ids, some)
            assert np.array_equal(whole, data) and np.array_equal(some, rows)
finally:
    ended.set()
    forking.join()
"""
    done = subprocess.run(
        program("import warnings; warnings.simplefilter('ignore')\n" + code, str(tmp_path / "f")),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr


def test_reads_into_memory_that_children_have_arrive_with_a_copy(tmp_path: Path) -> None:
    data = np.random.default_rng(0).integers(0, 256, 1 << 20, dtype=np.uint8)
    data.tofile(tmp_path / "f")
    with Disk() as disk, disk.open(tmp_path / "f") as file:
        counts = []
        for out in (aligned_empty(len(data)), given(aligned_empty(len(data)))):
            before = disk.counters.read_requests
            file.read_extents([0], [len(data)], out)
            counts.append(disk.counters.read_requests - before)
            assert np.array_equal(out, data)
        if file.direct:  # bounce memory is smaller than what goes straight
            assert counts[0] < counts[1]
