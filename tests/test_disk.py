"""The disk engine from Python: right bytes, clear errors, nothing left behind."""

from __future__ import annotations

import errno
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from outcrop.disk import SIZE_BOUNDS, Disk, aligned_empty
from outcrop.errors import CancelledError, OptionError, ReadError, WriteError
from outcrop.options import DiskOptions, Faults
from tests.conftest import ENGINES


def random_file(path: Path, size: int, seed: int = 0) -> np.ndarray[Any, np.dtype[np.uint8]]:
    data = np.random.default_rng(seed).integers(0, 256, size, dtype=np.uint8)
    path.write_bytes(data.tobytes())
    return data


row_files = st.fixed_dictionaries(
    {
        "row_bytes": st.one_of(st.integers(1, 70), st.sampled_from([400, 511, 512, 4096, 5000]),
                               st.integers(60_000, 300_000)),
        "rows": st.integers(1, 60),
        "base": st.one_of(st.just(4096), st.integers(0, 5000)),
    }
)  # fmt: skip


@given(
    shape=row_files,
    picks=st.lists(st.floats(0, 1, exclude_max=True), max_size=80),
    engine=st.sampled_from(ENGINES),
    access=st.sampled_from(["auto", "buffered"]),
    unit=st.sampled_from([0, 512, 4096, 16384]),
    gap=st.sampled_from([0, 100, 8192, 1 << 20]),
    short=st.sampled_from([0, 2, 5]),
    shuffled=st.booleans(),
)
def test_rows_of_any_size_at_any_offset_equal_numpys(
    tmp_path_factory: pytest.TempPathFactory,
    shape: dict[str, int],
    picks: list[float],
    engine: str,
    access: str,
    unit: int,
    gap: int,
    short: int,
    shuffled: bool,
) -> None:
    path = tmp_path_factory.mktemp("rows") / "rows"
    base, rows, row_bytes = shape["base"], shape["rows"], shape["row_bytes"]
    data = random_file(path, base + rows * row_bytes + 3)
    table = data[base : base + rows * row_bytes].reshape(rows, row_bytes)
    ids = np.sort(np.array([int(pick * rows) for pick in picks], dtype=np.int64))
    places = np.random.default_rng(1).permutation(len(ids)) if shuffled else np.arange(len(ids))
    out = np.zeros((len(ids), row_bytes), dtype=np.uint8)
    faults = Faults(short_every=short, reorder=bool(short))
    options = DiskOptions(engine=engine, access=access, workers=2, unit_bytes=unit,  # type: ignore[arg-type]
                          gap_bytes=gap, faults=faults)  # fmt: skip
    with Disk(options) as disk, disk.open(path) as file:
        file.read_rows(ids, out, base=base, places=places if shuffled else None)
    assert np.array_equal(out[places], table[ids])


@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.uint16, np.int8, np.int64])
def test_rows_of_every_dtype(tmp_path: Path, disk: Disk, dtype: Any) -> None:
    table = np.random.default_rng(0).integers(0, 100, (500, 33)).astype(dtype)
    np.save(tmp_path / "table.npy", table)
    out = np.zeros((3, 33), dtype)
    with disk.open(tmp_path / "table.npy") as file:
        file.read_rows([0, 77, 499], out, base=128)
    assert np.array_equal(out, table[[0, 77, 499]])


def test_extents_in_any_order_even_overlapping(tmp_path: Path, disk: Disk) -> None:
    data = random_file(tmp_path / "f", 3_000_000)
    offsets, lengths = [2_999_990, 5, 4096, 0], [10, 2_000_000, 4096, 0]
    out = np.zeros(sum(lengths), np.uint8)
    with disk.open(tmp_path / "f") as file:
        file.read_extents(offsets, lengths, out)
        assert np.array_equal(file.read(7, 100), data[7:107])
    expected = [data[o : o + n] for o, n in zip(offsets, lengths, strict=True)]
    assert np.array_equal(out, np.concatenate(expected))


def test_transfers_overlap_and_are_waited_for_in_any_order(tmp_path: Path, disk: Disk) -> None:
    data = random_file(tmp_path / "f", 1 << 20)
    outs = [np.zeros(1 << 16, np.uint8) for _ in range(16)]
    with disk.open(tmp_path / "f") as file:
        pending = [file.start_read_extents([i << 16], [1 << 16], out) for i, out in enumerate(outs)]
        for one in reversed(pending):
            one.wait()
            assert one.done
    assert np.array_equal(np.concatenate(outs), data)


def test_written_extents_are_read_back(tmp_path: Path, disk: Disk) -> None:
    rng = np.random.default_rng(3)
    data = rng.integers(0, 256, 1_000_003, dtype=np.uint8)
    cuts = np.unique(np.concatenate([[0, len(data)], rng.integers(0, len(data), 40)]))
    with disk.create(tmp_path / "f", len(data)) as file:
        assert file.size == len(data)
        file.write_extents(cuts[:-1], np.diff(cuts), data, places=cuts[:-1])
        file.sync()
        assert np.array_equal(file.read(0, len(data)), data)
    assert disk.counters.bytes_written >= len(data)
    assert (tmp_path / "f").read_bytes() == data.tobytes()


def test_a_missing_file_is_a_file_not_found_error(tmp_path: Path, disk: Disk) -> None:
    with pytest.raises(FileNotFoundError):
        disk.open(tmp_path / "nothing")
    with pytest.raises(IsADirectoryError):
        disk.open(tmp_path)
    (tmp_path / "there").touch()
    with pytest.raises(FileExistsError):
        disk.create(tmp_path / "there", 10)


def test_a_failed_read_names_file_offset_length_and_errno(tmp_path: Path, engine: str) -> None:
    random_file(tmp_path / "f", 1 << 20)
    options = DiskOptions(engine=engine, faults=Faults(fail_read_at=1))  # type: ignore[arg-type]
    with Disk(options) as disk, disk.open(tmp_path / "f") as file:
        with pytest.raises(ReadError, match=r"f: 4096 B at 8192: Input/output error") as caught:
            file.read(8192, 4096)
        assert caught.value.errno == errno.EIO
        assert caught.value.filename == str(tmp_path / "f")
        assert (caught.value.offset, caught.value.length) == (8192, 4096)
        assert isinstance(caught.value, OSError)
        again = pickle.loads(pickle.dumps(caught.value))
        assert str(again) == str(caught.value)
        file.read(8192, 4096)  # the engine lives on


def test_a_failed_write_is_a_write_error(tmp_path: Path, engine: str) -> None:
    options = DiskOptions(engine=engine, faults=Faults(fail_write_at=1, error=errno.ENOSPC))  # type: ignore[arg-type]
    with (
        Disk(options) as disk,
        disk.create(tmp_path / "f", 8192) as file,
        pytest.raises(WriteError, match="No space left"),
    ):
        file.write(0, np.zeros(8192, np.uint8))


def test_more_than_the_disk_has_is_refused_before_anything_is_written(
    tmp_path: Path, disk: Disk
) -> None:
    with pytest.raises(OSError) as caught:
        disk.create(tmp_path / "f", 1 << 50)
    assert caught.value.errno in (errno.ENOSPC, errno.EFBIG)
    assert not (tmp_path / "f").exists()


@pytest.mark.parametrize("ids", [[10], [0, 1 << 60]])
def test_reading_past_the_end_is_an_error(tmp_path: Path, disk: Disk, ids: list[int]) -> None:
    random_file(tmp_path / "f", 1000)
    with disk.open(tmp_path / "f") as file:
        with pytest.raises(ReadError, match="beyond the end of the file, which has 10 rows"):
            file.read_rows(ids, np.zeros((2, 100), np.uint8))
        with pytest.raises(ReadError, match="beyond the end"):
            file.read(900, 101)


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda f: f.read_rows([3, 2], np.zeros((2, 10), np.uint8)), "ascending"),
        (lambda f: f.read_rows([-1, 2], np.zeros((2, 10), np.uint8)), r"got -1"),
        (lambda f: f.read_rows([1, 2], np.zeros((1, 10), np.uint8)), "room for 1 rows"),
        (lambda f: f.read_rows([1], np.zeros((1, 10), np.uint8), places=[1]), r"got 1"),
        (lambda f: f.read_rows([1, 2], np.zeros((2, 10), np.uint8), places=[1]), "one entry"),
        (lambda f: f.read_extents([0], [11], np.zeros(10, np.uint8)), "does not fit"),
        (lambda f: f.read_extents([-1], [1], np.zeros(10, np.uint8)), r"got -1"),
        (lambda f: f.read_extents([0], [1], np.zeros((10, 10), np.uint8)[:, 0]), "contiguous"),
        (lambda f: f.write(0, np.zeros(10, np.uint8)), "open for reading only"),
    ],
)
def test_bad_arguments_are_refused(tmp_path: Path, call: Any, match: str) -> None:
    random_file(tmp_path / "f", 1000)
    with Disk() as disk, disk.open(tmp_path / "f") as file, pytest.raises(ValueError, match=match):
        call(file)


def test_a_closed_file_says_so(tmp_path: Path, disk: Disk) -> None:
    random_file(tmp_path / "f", 1000)
    file = disk.open(tmp_path / "f")
    file.close()
    with pytest.raises(ValueError, match="is closed"):
        file.read(0, 10)


def test_a_throttled_disk_takes_at_least_its_time(tmp_path: Path, engine: str) -> None:
    data = random_file(tmp_path / "f", 1 << 20)
    options = DiskOptions(engine=engine, bytes_per_second=10_000_000)  # type: ignore[arg-type]
    with Disk(options) as disk, Disk(options, beside=disk) as other:
        for one in (disk, other):
            with one.open(tmp_path / "f") as file:
                start = time.perf_counter()
                assert file.read(0, 1 << 20).tobytes() == data.tobytes()
                assert time.perf_counter() - start >= (1 << 20) / 1e7
        with disk.create(tmp_path / "new", 1 << 20) as file:
            start = time.perf_counter()
            file.write(0, data)
            assert time.perf_counter() - start >= (1 << 20) / 1e7
    assert (tmp_path / "new").read_bytes() == data.tobytes()


def test_a_throttled_disk_still_raises_and_can_be_closed(tmp_path: Path, engine: str) -> None:
    random_file(tmp_path / "f", 4 << 20)
    options = DiskOptions(
        engine=engine,  # type: ignore[arg-type]
        requests_per_second=1000,
        gap_bytes=0,
        faults=Faults(fail_read_at=2),
    )
    disk = Disk(options)
    file = disk.open(tmp_path / "f")
    with pytest.raises(ReadError, match="Input/output error"):
        file.read_rows(np.arange(50) * 2, np.zeros((50, 4096), np.uint8))
    pending = file.start_read_rows(np.arange(500) * 2, np.zeros((500, 4096), np.uint8))
    disk.close()
    with pytest.raises(CancelledError):
        pending.wait()


def slow_options(engine: str, delay_us: int = 20_000) -> DiskOptions:
    return DiskOptions(
        engine=engine,  # type: ignore[arg-type]
        workers=1,
        queue_depth=2,
        gap_bytes=0,
        faults=Faults(delay_us=delay_us),
    )


def test_closing_with_reads_in_flight_cancels_the_rest(tmp_path: Path, engine: str) -> None:
    random_file(tmp_path / "f", 4 << 20)
    disk = Disk(slow_options(engine))
    file = disk.open(tmp_path / "f")
    out = np.zeros((500, 4096), np.uint8)
    pending = file.start_read_rows(np.arange(500) * 2, out)
    disk.close()
    with pytest.raises(CancelledError):
        pending.wait()
    with pytest.raises(CancelledError):
        file.read(0, 10)


def test_a_dropped_transfer_waits_for_what_is_in_flight(tmp_path: Path, engine: str) -> None:
    random_file(tmp_path / "f", 4 << 20)
    with Disk(slow_options(engine, 3000)) as disk, disk.open(tmp_path / "f") as file:
        for _ in range(20):
            file.start_read_rows(np.arange(500) * 2, np.zeros((500, 4096), np.uint8))
        requests = disk.counters.read_requests
        time.sleep(0.05)
        assert disk.counters.read_requests == requests < 20 * 500


def test_transfers_and_files_dropped_at_any_time_do_not_deadlock(
    tmp_path: Path, engine: str
) -> None:
    """Workers drop the last references to files and transfers, and must not need the GIL for it."""
    random_file(tmp_path / "f", 1 << 20)
    options = DiskOptions(engine=engine, workers=2)  # type: ignore[arg-type]
    with Disk(options) as disk:
        stop = time.monotonic() + 1.0
        while time.monotonic() < stop:
            file = disk.open(tmp_path / "f")
            kept = [file.start_read_extents([0], [4096], np.zeros(4096, np.uint8))
                    for _ in range(20)]  # fmt: skip
            del file
            kept.clear()


def test_arrays_of_ids_and_places_may_be_used_again_once_a_read_has_started(
    tmp_path: Path, engine: str
) -> None:
    data = random_file(tmp_path / "f", 200 * 4096).reshape(200, 4096)
    wanted = np.arange(100) * 2
    with Disk(slow_options(engine, 1000)) as disk, disk.open(tmp_path / "f") as file:
        out = np.zeros((100, 4096), np.uint8)
        ids, places = wanted.copy(), np.arange(100)
        pending = file.start_read_rows(ids, out, places=places)
        ids[:] = places[:] = 0
        pending.wait()
        assert np.array_equal(out, data[wanted])
        out = np.zeros((100, 4096), np.uint8)
        offsets, lengths, places = wanted * 4096, np.full(100, 4096), np.arange(100) * 4096
        pending = file.start_read_extents(offsets, lengths, out, places)
        offsets[:] = lengths[:] = places[:] = 0
        pending.wait()
        assert np.array_equal(out, data[wanted])


def test_waiting_does_not_hold_the_gil(tmp_path: Path, engine: str) -> None:
    random_file(tmp_path / "f", 4 << 20)
    with Disk(slow_options(engine, 10_000)) as disk, disk.open(tmp_path / "f") as file:
        out = np.zeros((50, 4096), np.uint8)
        reader = threading.Thread(target=file.read_rows, args=(np.arange(50) * 2, out))
        reader.start()
        turns = 0
        while reader.is_alive():
            turns += 1
            time.sleep(0)
        assert turns > 100


def test_ctrl_c_ends_a_wait(tmp_path: Path, engine: str) -> None:
    random_file(tmp_path / "f", 16 << 20)
    with Disk(slow_options(engine, 50_000)) as disk, disk.open(tmp_path / "f") as file:
        timer = threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT))
        timer.start()
        start = time.monotonic()
        with pytest.raises(KeyboardInterrupt):
            file.read_rows(np.arange(2000) * 2, np.zeros((2000, 4096), np.uint8))
        assert time.monotonic() - start < 5  # all of it would take a minute


def test_nothing_is_left_behind(tmp_path: Path, engine: str) -> None:
    random_file(tmp_path / "f", 1 << 20)

    def once() -> None:
        with Disk(DiskOptions(engine=engine)) as disk, disk.open(tmp_path / "f") as file:  # type: ignore[arg-type]
            file.read(0, 1 << 20)

    def left() -> tuple[int, int]:
        return len(os.listdir("/proc/self/task")), len(os.listdir("/proc/self/fd"))

    once()
    time.sleep(0.1)
    before = left()
    for _ in range(5):
        once()
    deadline = time.monotonic() + 5  # a thread that was joined leaves /proc a moment later
    while left() != before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert left() == before


def test_a_forked_child_is_told_to_make_its_own_engine(tmp_path: Path) -> None:
    random_file(tmp_path / "f", 4096)
    code = (
        "import os, sys, outcrop\n"
        "from outcrop.errors import CancelledError\n"
        "disk = outcrop.Disk(); file = disk.open(sys.argv[1])\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    try: file.read(0, 10)\n"
        "    except CancelledError as error: os._exit(0 if 'fork' in str(error) else 2)\n"
        "    os._exit(1)\n"
        "sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path / "f")], timeout=60)
    assert done.returncode == 0


def test_a_transfer_of_another_process_is_dropped_at_once_and_not_waited_for(
    tmp_path: Path, engine: str
) -> None:
    random_file(tmp_path / "f", 4 << 20)
    code = (
        "import os, signal, sys, numpy as np\n"
        "from outcrop.disk import Disk\n"
        "from outcrop.errors import CancelledError\n"
        "from outcrop.options import DiskOptions, Faults\n"
        "options = DiskOptions(engine=sys.argv[2], workers=1, queue_depth=1, gap_bytes=0,\n"
        "                      faults=Faults(delay_us=100_000))\n"
        "disk = Disk(options); file = disk.open(sys.argv[1])\n"
        "pending = file.start_read_rows(np.arange(20) * 2, np.zeros((20, 4096), np.uint8))\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    signal.alarm(20)\n"
        "    refused = 0\n"
        "    for use in (pending.wait, lambda: pending.done):\n"
        "        try: use()\n"
        "        except CancelledError as error: refused += 'fork' in str(error)\n"
        "    del use, pending\n"
        "    os._exit(0 if refused == 2 else 1)\n"
        "status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])\n"
        "pending.wait()\n"
        "sys.exit(status)\n"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "f"), engine]
    assert subprocess.run(command, timeout=60).returncode == 0


def test_files_without_o_direct_are_read_through_the_page_cache(tmp_path: Path) -> None:
    with Disk(DiskOptions(access="direct")) as disk, pytest.raises(OSError, match="O_DIRECT"):
        disk.open("/proc/self/maps")
    with Disk() as disk:
        file = disk.open("/proc/self/maps")
        assert not file.direct
    data = random_file(tmp_path / "f", 10_000)
    with Disk(DiskOptions(access="buffered")) as disk, disk.open(tmp_path / "f") as file:
        assert not file.direct and file.block_bytes == 1
        assert np.array_equal(file.read(1, 9_999), data[1:])


def test_an_engine_that_is_not_there_is_refused_or_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("outcrop._core.uring_refusal", lambda: "the kernel refuses")
    with pytest.raises(OptionError, match="engine='uring' cannot be used: the kernel refuses"):
        Disk(DiskOptions(engine="uring"))
    with Disk() as disk:
        assert (disk.engine, disk.refusal) == ("pool", "the kernel refuses")


def test_counters_and_latencies(tmp_path: Path, disk: Disk) -> None:
    random_file(tmp_path / "f", 1 << 20)
    with disk.open(tmp_path / "f") as file:
        file.read_rows([0, 100, 200], np.zeros((3, 512), np.uint8))
    counters = disk.counters
    assert counters.bytes_wanted == 3 * 512
    assert counters.bytes_read >= 3 * 512
    assert counters.read_requests == sum(counters.latency) > 0
    assert 0 < counters.latency_us(0.5) <= counters.latency_us(0.99)
    assert counters.wait_seconds > 0


def test_requests_are_counted_by_size(tmp_path: Path, disk: Disk) -> None:
    with disk.create(tmp_path / "f", 1 << 20) as file:
        file.write(0, aligned_empty(1 << 20))
    with disk.open(tmp_path / "f") as file:
        file.read(0, 4096)
        file.read(0, 8192)
        file.read(4096, 1 << 19)
    counters, both = disk.counters, disk.counters + disk.counters
    assert sum(counters.read_sizes) == counters.read_requests
    assert sum(counters.write_sizes) == counters.write_requests
    assert len(counters.read_sizes) == len(counters.write_sizes) == len(SIZE_BOUNDS) + 1
    assert both.read_sizes == tuple(2 * count for count in counters.read_sizes)
    most = sum(n * size for n, size in zip(counters.read_sizes, SIZE_BOUNDS, strict=False))
    assert counters.bytes_read <= most
    if disk.options.faults is None:
        found = {size: n for size, n in zip(SIZE_BOUNDS, counters.read_sizes, strict=False) if n}
        assert found == {4096: 1, 8192: 1, 1 << 19: 1}
        assert counters.write_sizes[SIZE_BOUNDS.index(1 << 20)] == 1


def test_aligned_arrays() -> None:
    array = aligned_empty((3, 5), np.float32)
    assert array.shape == (3, 5) and not array.any() and array.ctypes.data % 4096 == 0
    assert aligned_empty(0).shape == (0,)
