"""diskgnn: prepared batches are the reference's, found again, and safe against kills and damage."""

from __future__ import annotations

import errno
import gc
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import textwrap
import weakref
from collections.abc import Iterator
from itertools import repeat
from pathlib import Path
from typing import Any, Literal

import pytest

from outcrop.disk import Recycled
from outcrop.errors import BudgetError, CorruptError, OptionError, WriteError
from outcrop.loader import NeighborLoader, ShaDowLoader
from outcrop.options import DiskOptions, Faults, parse_size
from outcrop.plan.settle import _PROBED_PLACES
from outcrop.progress import Progress
from outcrop.rows.packed import PackedRows
from outcrop.sample.sampler import Sampler
from outcrop.store.locks import DirectoryLock
from outcrop.store.store import GraphStore
from outcrop.strategies.diskgnn import in_steps
from outcrop.tools.bench.variants import variant_named
from outcrop.topology.lists import NeighborCache
from outcrop.train import TrainOptions, fit
from tests.conformance.contract import all_contents
from tests.conformance.test_strategies import check, loader_of
from tests.conftest import SOAK
from tests.graphs import files_of
from tests.stores import make_random_store, smallest_memory

BASE: dict[str, Any] = {"num_neighbors": [4, 3], "input_nodes": "train", "batch_size": 25}
# Of the small store
SMALL: dict[str, Any] = {**BASE, "num_neighbors": [4, 4]}
VARIANTS = [
    "diskgnn:distinct_epochs=2",
    "diskgnn:distinct_epochs=2:packing=false",
    "diskgnn:distinct_epochs=2:cpu_cache=false",
    "diskgnn:distinct_epochs=2:cpu_cache=false:packing=false",
    "diskgnn:distinct_epochs=2:pipeline=off",
    "diskgnn:distinct_epochs=2:cache_share=0.5:verify_rows=true",
    "diskgnn:verify_rows=true",
    "diskgnn:distinct_epochs=2:raw=true",
    "diskgnn:distinct_epochs=2:topology=cache",
    "diskgnn:distinct_epochs=2:topology=memory",
]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("diskgnn") / "g.outcrop"
    make_random_store(path, 2000, 12_000, dim=100, train=203).close()
    return path


@pytest.fixture(scope="module")
def small_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A graph of which batches have two thirds, again and again."""
    path = tmp_path_factory.mktemp("small") / "g.outcrop"
    make_random_store(path, 2000, 8000, dim=300, train=103).close()
    return path


@pytest.fixture
def small(small_path: Path) -> Iterator[GraphStore]:
    with GraphStore(small_path) as opened:
        yield opened
    shutil.rmtree(small_path / "derived", ignore_errors=True)


@pytest.fixture
def store(path: Path) -> Iterator[GraphStore]:
    with GraphStore(path) as opened:
        yield opened
    shutil.rmtree(path / "derived", ignore_errors=True)


def loader(store: GraphStore, strategy: str, **options: Any) -> NeighborLoader:
    options = {"memory": "1GB", "shuffle": True, **BASE, **options}
    return NeighborLoader(store, strategy=variant_named(strategy), **options)


def derived(store: GraphStore, kind: str) -> list[Path]:
    return sorted((store.path / "derived").glob(f"{kind}-*"))


@pytest.mark.parametrize("strategy", VARIANTS)
@pytest.mark.parametrize("budget", ["least", "1GB"])
def test_every_variant_gives_the_reference_batches(
    store: GraphStore, strategy: str, budget: str
) -> None:
    check(store, strategy, budget, epochs=3, shuffle=True, **BASE)


@pytest.mark.parametrize("replace", [False, True])
def test_shadow_subgraphs_repeat_nodes(store: GraphStore, replace: bool) -> None:
    options = {**BASE, "num_neighbors": [4, 4], "kind": "shadow", "replace": replace}
    check(store, "diskgnn:distinct_epochs=2", "least", shuffle=True, **options)


def test_prepared_epochs_are_not_sampled_again(
    store: GraphStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = loader(store, "diskgnn", epochs=2)
    monkeypatch.setattr(Sampler, "sample", None)
    for epoch in range(2):
        assert len(list(made.epoch(epoch))) == 9
    with pytest.raises(TypeError):
        list(made.epoch(2))
    made.close()


@pytest.mark.parametrize("kind", ["neighbor", "shadow"])
def test_every_topology_gives_the_same_trace_and_none_is_kept(
    store: GraphStore, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    caches: list[weakref.ref[NeighborCache]] = []
    opened = NeighborCache.made

    def watched(*args: Any, **options: Any) -> NeighborCache:
        cache = opened(*args, **options)
        caches.append(weakref.ref(cache))
        return cache

    monkeypatch.setattr(NeighborCache, "made", watched)
    traces = []
    for topology in ("mmap", "cache", "memory"):
        options = {**BASE, "num_neighbors": [4, 4], "kind": kind, "memory": "60MB"}
        made = loader_of(store, strategy=f"diskgnn:topology={topology}", **options)
        assert [cache() for cache in caches] == ([None] if topology == "cache" else [])
        caches.clear()
        assert sum(made.record.charges.values()) <= made.record.memory_bytes
        [trace] = derived(store, "trace")
        traces.append((trace / "batches.bin").read_bytes())
        made.close()
        shutil.rmtree(trace)
    assert traces[0] == traces[1] == traces[2]


def test_packed_reads_are_sequential_and_little_more_than_wanted(tmp_path: Path) -> None:
    with make_random_store(tmp_path / "g", 20_000, 200_000, dim=128, train=3000) as store:
        made = NeighborLoader(
            store, [10, 10], "train", batch_size=1000, strategy="diskgnn:cache_share=0.1",
            memory="60MB",
        )  # fmt: skip
        rows = sum(len(batch.n_id) for batch in made)
        [epoch] = made.record.epochs
        made.close()
    assert epoch.rows == rows and 0 < epoch.hits["cpu cache"] < rows
    packed = made.record.plan["rows_packed"]
    assert packed + epoch.hits["cpu cache"] == rows
    assert epoch.bytes_read <= 1.05 * (512 * packed + made.record.plan["trace_bytes"] + 8 * rows)
    assert epoch.read_amplification is not None and epoch.read_amplification <= 1.05
    assert epoch.read_requests < rows / 50


def test_each_tier_that_is_added_reads_less(tmp_path: Path) -> None:
    """Raw, the engine's merging, the cache, packing: Figure 18 of the paper."""
    tiers = ["raw=true", "cpu_cache=false:packing=false", "cache_share=0.01:packing=false",
             "cache_share=0.01"]  # fmt: skip
    requests = []
    with make_random_store(tmp_path / "g", 20_000, 200_000, dim=128, train=60) as store:
        for tier in tiers:
            made = NeighborLoader(
                store, [5, 5], "train", batch_size=20, memory="60MB",
                strategy=variant_named(f"diskgnn:{tier}"),
            )  # fmt: skip
            for _ in made:
                pass
            [epoch] = made.record.epochs
            made.close()
            requests.append(epoch.read_requests)
            if tier == "raw=true":
                rows, graphs = epoch.rows, 3 * 10  # tables and graphs come in a few requests
                assert rows <= epoch.read_requests <= rows + graphs
                assert epoch.bytes_read >= 4096 * rows
    assert requests == sorted(requests, reverse=True) and len(set(requests)) == 4


def test_layouts_are_found_again(store: GraphStore, monkeypatch: pytest.MonkeyPatch) -> None:
    first = loader(store, "diskgnn")
    before = all_contents(first)
    first.close()
    monkeypatch.setattr("outcrop.ahead.prepare.make_plan", None)
    monkeypatch.setattr(Sampler, "sample", _only_probed(Sampler.sample))
    again = loader(store, "diskgnn")
    assert all_contents(again) == before
    again.close()


def test_layouts_are_found_again_with_another_disk_engine(path: Path) -> None:
    found = []
    engines: list[Literal["auto", "pool"]] = ["auto", "pool"]
    for engine in engines:
        with GraphStore(path, DiskOptions(engine=engine)) as store:
            for memory in ("40MB", "40.01MB"):
                made = loader(store, "diskgnn:cache_share=0.02", memory=memory)
                found.append(made.record.plan["cache_rows"])
                made.close()
            assert len(derived(store, "pack")) == 1
    assert len(set(found)) == 1 and 0 < found[0] < 2000
    shutil.rmtree(path / "derived")


def test_steps_are_small() -> None:
    for count in (0, 1, 63, 64, 1000, 123_456_789):
        assert count * 31 / 32 <= in_steps(count) <= count
    assert in_steps(123_456_789) == in_steps(123_456_000)


def _only_probed(sample: Any) -> Any:
    """As many samples as show how large batches are."""
    calls = repeat(sample, len(_PROBED_PLACES))
    return lambda *args: next(calls)(*args)


def test_what_a_layout_depends_on_is_in_its_key(store: GraphStore) -> None:
    loader(store, "diskgnn").close()
    assert (len(derived(store, "trace")), len(derived(store, "pack"))) == (1, 1)
    loader(store, "diskgnn:packing=false").close()
    assert (len(derived(store, "trace")), len(derived(store, "pack"))) == (1, 2)
    changes: list[dict[str, Any]] = [
        {"seed": 1},
        {"batch_size": 26},
        {"shuffle": False},
        {"drop_last": True},
        {"replace": True},
        {"num_neighbors": [4, 4]},
        {"input_nodes": [1, 2, 3]},
        {"input_nodes": [3, 2, 1]},
        {"input_nodes": None, "batch_size": 1000},
        {"epochs": 2},
    ]
    for number, change in enumerate(changes, 2):
        loader(store, "diskgnn", **change).close()
        assert len(derived(store, "trace")) == number, change


def test_later_epochs_cycle_through_the_prepared_ones_in_another_order(store: GraphStore) -> None:
    made = loader(store, "diskgnn:distinct_epochs=2:cycle=true")
    epochs = [[batch["n_id"] for batch in all_contents(made.epoch(e))] for e in range(6)]
    made.close()
    assert made.record.plan["cycle"] and made.record.plan["distinct_epochs"] == 2
    for e in (2, 3, 4, 5):
        assert sorted(epochs[e]) == sorted(epochs[e % 2])
        assert epochs[e] != epochs[e % 2]
    assert epochs[2] != epochs[4]


def test_siblings_and_direct_calls_are_exact(store: GraphStore) -> None:
    found = []
    for strategy in ("memory", "diskgnn:cache_share=0.01"):
        made = loader(store, strategy)
        val = made.sibling("val", shuffle=False)
        other = made.sibling("train", batch_size=10)  # the same stream, other batches
        found.append([all_contents(loop) for loop in (made, val, other)])
        found[-1].append(all_contents([made([3, 3, 1])]))
        made.close()
    assert found[0] == found[1]


def test_batches_do_not_keep_the_records_of_their_graphs(
    store: GraphStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    lent: list[weakref.ref[Any]] = []
    take = Recycled.take

    def taken(self: Recycled, size: int) -> Any:
        memory = take(self, size)
        lent.append(weakref.ref(memory.base))
        return memory

    made = loader(store, "diskgnn:distinct_epochs=1:cycle=true")
    monkeypatch.setattr(Recycled, "take", taken)
    for epoch in range(2):  # the second one repeats the first
        kept = list(made.schedule.epoch(epoch))
        assert len(kept) == 9 and lent
        assert not [memory for memory in lent if memory() is not None]
    made.close()


@pytest.mark.parametrize("pipeline", ["on", "off"])
def test_closing_frees_the_cache_without_garbage_collection(
    store: GraphStore, pipeline: str
) -> None:
    made = loader(store, f"diskgnn:pipeline={pipeline}")
    cache = weakref.ref(cache_of(made))
    gc.collect()
    gc.disable()
    try:
        assert len(list(made.epoch(0))) == 9
        begun = made.epoch(1)
        next(begun)
        begun.close()  # type: ignore[attr-defined]
        made.close()
        assert cache() is None
    finally:
        gc.enable()


# Disk


@pytest.mark.parametrize("packing", [True, False])
def test_a_disk_budget_is_kept_or_refused_with_what_would_do(
    store: GraphStore, packing: bool
) -> None:
    strategy = f"diskgnn:cpu_cache=false:packing={packing}".lower()
    with pytest.raises(BudgetError, match=r"disk=10.0 kB is too little: the samples alone"):
        loader(store, strategy, disk="10kB")
    with pytest.raises(BudgetError, match="packed rows") as refused:
        loader(store, strategy, disk="80kB")
    assert derived(store, "pack") == [] and list(store.path.glob("derived/.pack*")) == []
    least = str(refused.value).rsplit(" ", 1)[1]
    made = loader(store, strategy, disk=least)
    assert len(list(made)) == 9
    made.close()
    layouts = [*derived(store, "pack"), *derived(store, "trace")]
    used = sum(p.stat().st_blocks * 512 for layout in layouts for p in layout.iterdir())
    assert used <= parse_size(least) + 10 * 4096  # headers and indexes


def disk_of(store: GraphStore, times: float) -> str:
    """As many times the features."""
    return str(int(times * store.array_bytes("features")))


# All rows of all batches take 5.7 times the features.
@pytest.mark.parametrize("times", [1, 3, 10])
@pytest.mark.parametrize(
    ("budget", "options"),
    [
        ("least", ":cpu_cache=false"),
        ("1GB", ":cpu_cache=false:pipeline=off"),
        ("40MB", ":cache_share=0.01:verify_rows=true"),
    ],
)
def test_any_disk_budget_gives_the_reference_batches(
    small: GraphStore, times: int, budget: str, options: str
) -> None:
    strategy = f"diskgnn:distinct_epochs=8{options}"
    more = {**SMALL, "disk": disk_of(small, times)}
    check(small, strategy, budget, epochs=9, shuffle=True, **more)
    [pack] = derived(small, "pack")
    segments = json.loads((pack / "pack.json").read_bytes())["segments"]
    assert (segments is None) == (times == 10)


def test_the_record_has_what_is_read_of_segments_as_it_was_predicted(small: GraphStore) -> None:
    with GraphStore(small.path, DiskOptions(gap_bytes=0)) as store:
        made = loader(store, "diskgnn:cpu_cache=false", epochs=8, **SMALL, disk=disk_of(store, 1))
        for epoch in range(8):
            list(made.epoch(epoch))
        made.close()
    plan, epochs = made.record.plan, made.record.epochs
    assert plan["segment_batches"] > 1 and plan["segment_above"] >= 1
    assert plan["rows_shared"] > 0 and plan["segment_bytes"] > 0
    read = sum(epoch.tier_bytes["chunks"] + epoch.tier_bytes["segments"] for epoch in epochs)
    assert read == plan["predicted_bytes"]
    wanted = (plan["rows_packed"] + plan["rows_shared"]) * small.encoding.row_bytes
    assert plan["predicted_amplification"] == read / wanted
    # The engine read just these pages, samples and tables.
    beside = sum(epoch.bytes_read for epoch in epochs) - read
    assert 0 < beside <= plan["trace_bytes"] + plan["pack_bytes"] - plan["segment_bytes"]
    padding = sum(epoch.bytes_read - epoch.bytes_wanted for epoch in epochs)
    assert padding == pytest.approx(read - wanted, rel=0.1)


def test_a_pack_of_all_rows_is_used_where_it_fits_and_found_again_without_a_budget(
    small: GraphStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {"strategy": "diskgnn:cpu_cache=false", "epochs": 8, **SMALL}
    loader(small, **options, disk=disk_of(small, 10)).close()
    [whole] = derived(small, "pack")
    loader(small, **options).close()
    assert derived(small, "pack") == [whole]
    loader(small, **options, disk=disk_of(small, 2)).close()
    assert len(derived(small, "pack")) == 2
    monkeypatch.setattr("outcrop.ahead.prepare.make_plan", None)
    for times in (2, 9):
        loader(small, **options, disk=disk_of(small, times)).close()
    assert len(derived(small, "pack")) == 2


def test_a_flipped_byte_of_a_segment_is_named_with_what_to_do(small: GraphStore) -> None:
    made = loader(small, "diskgnn:cpu_cache=false", epochs=8, **SMALL, disk=disk_of(small, 2))
    [pack] = derived(small, "pack")
    segments = json.loads((pack / "pack.json").read_bytes())["segments"]
    with (pack / "chunks.bin").open("r+b") as file:
        file.seek(segments["first"])
        byte = file.read(1)
        file.seek(segments["first"])
        file.write(bytes([byte[0] ^ 1]))
    with pytest.raises(CorruptError, match=r"chunks\.bin: batch \d+: .*segment .*remove .*pack-"):
        for epoch in range(8):
            list(made.epoch(epoch))
    made.close()


def test_a_drive_that_fills_up_or_fails_while_rows_are_shared(small_path: Path) -> None:
    seen = 0
    for fault, code in (("fail_write_at", errno.ENOSPC), ("fail_read_at", errno.EIO)):
        for at in range(1, 200, 23):
            faults = Faults(error=code, fail_count=1, **{fault: at})  # type: ignore[arg-type]
            with GraphStore(small_path, DiskOptions(faults=faults)) as store:
                try:
                    loader(
                        store, "diskgnn:cpu_cache=false", epochs=8, **SMALL, disk=disk_of(store, 1)
                    ).close()
                except OSError as error:
                    assert error.errno == code
                    assert list(small_path.glob("derived/.*.building")) == []
                    seen += 1
            shutil.rmtree(small_path / "derived", ignore_errors=True)
    assert seen > 8


def test_a_file_system_without_room_is_refused_before_anything_is_packed(
    store: GraphStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.statvfs

    def full(where: Any) -> Any:
        values = list(real(where))
        values[4] = 1  # f_bavail
        return os.statvfs_result(values)

    monkeypatch.setattr("outcrop.ahead.prepare.os.statvfs", full)
    with pytest.raises(BudgetError, match="are free"):
        loader(store, "diskgnn:cpu_cache=false")
    assert list(store.path.glob("derived/.pack*")) == []


def test_a_drive_that_fills_up_leaves_the_store_as_it_was(path: Path) -> None:
    seen = 0
    for at in range(1, 40, 3):
        faults = Faults(fail_write_at=at, error=errno.ENOSPC)
        with GraphStore(path, DiskOptions(faults=faults)) as store:
            try:
                made = loader(store, "diskgnn:cpu_cache=false")
            except WriteError as error:
                assert error.errno == errno.ENOSPC
                assert list(path.glob("derived/.*.building")) == []
                seen += 1
                continue
            made.close()
            shutil.rmtree(path / "derived")
    assert seen > 3
    with GraphStore(path) as store:
        check(store, "diskgnn", "1GB", shuffle=True, **BASE)
    shutil.rmtree(path / "derived")


# Damage


def test_a_flipped_byte_is_named_and_the_layout_can_be_made_again(store: GraphStore) -> None:
    strategy = "diskgnn:cpu_cache=false"
    made = loader(store, strategy)
    before = all_contents(made.epoch(0))
    [pack] = derived(store, "pack")
    with (pack / "chunks.bin").open("r+b") as file:
        file.seek(-4097, os.SEEK_END)
        byte = file.read(1)
        file.seek(-4097, os.SEEK_END)
        file.write(bytes([byte[0] ^ 1]))
    batches = made.epoch(0)
    for _ in range(8):
        next(batches)
    with pytest.raises(CorruptError, match=r"chunks\.bin: batch 8: \d+ B at \d+ .*remove .*pack-"):
        next(batches)
    made.close()
    shutil.rmtree(pack)
    made = loader(store, strategy)
    assert all_contents(made.epoch(0)) == before
    made.close()


def test_a_damaged_trace_is_named_and_not_the_pack(store: GraphStore) -> None:
    made = loader(store, "diskgnn")
    [trace] = derived(store, "trace")
    with (trace / "batches.bin").open("r+b") as file:
        file.write(b"damaged")
    with pytest.raises(CorruptError, match=r"batches\.bin: batch 0: .*remove .*trace-"):
        next(made.epoch(0))
    made.close()
    (trace / "index.npy").write_bytes(b"short")
    with pytest.raises(CorruptError, match=r"index\.npy: .*remove .*trace-"):
        loader(store, "diskgnn")


def test_a_loader_that_cannot_be_made_holds_nothing(store: GraphStore) -> None:
    strategy = "diskgnn:cache_share=0.01"
    loader(store, strategy).close()
    [trace], [pack] = derived(store, "trace"), derived(store, "pack")
    with (pack / "chunks.bin").open("r+b") as file:
        file.seek(-1, os.SEEK_END)
        file.write(b"x")  # of the cache
    with pytest.raises(CorruptError) as raised:
        loader(store, strategy)
    assert raised.traceback  # which keeps all frames, and what they hold
    for path in (trace, pack):
        DirectoryLock(path, shared=False).release()


def cache_of(made: NeighborLoader) -> Any:
    rows = made.runner.parts.rows
    assert isinstance(rows, PackedRows)
    return rows._cache


def test_verify_rows_finds_a_wrong_row_in_memory(store: GraphStore) -> None:
    made = loader(store, "diskgnn:verify_rows=true")
    assert len(list(made.epoch(0))) == 9
    cache_of(made)[:] ^= 1
    with pytest.raises(CorruptError, match="batch 0 of epoch 0: the row of node"):
        next(made.epoch(0))
    made.close()


def test_failing_reads_are_raised_in_the_loop(path: Path) -> None:
    with GraphStore(path) as store:
        loader(store, "diskgnn:cpu_cache=false").close()
    raised = 0
    for at in range(1, 60, 7):
        faults = Faults(fail_read_at=at, fail_count=1)
        with GraphStore(path, DiskOptions(faults=faults)) as store:
            try:
                made = loader(store, "diskgnn:cpu_cache=false")
                list(made)
                made.close()
            except OSError as error:
                assert error.filename and error.errno == errno.EIO
                raised += 1
    assert raised > 3
    shutil.rmtree(path / "derived")


PREPARES = """
    import os, signal, sys
    import numpy as np
    from outcrop.disk import File
    from outcrop.ahead import prepare
    from outcrop.layout.pack import batched, scatter
    from outcrop.sample.sampler import Sampler, Sampling
    from outcrop.sample.seeds import SeedOrder, Stream
    from outcrop.layout.trace import Trace
    from outcrop.store.store import GraphStore
    from outcrop.topology.parts import mapped_topology

    scatter._LEAST_PARTITION_BYTES = scatter.MOST_PARTITION_BYTES = 16 << 10
    batched.pack_batched.__defaults__ = (*batched.pack_batched.__defaults__[:-1], 0.0)
    left = int(sys.argv[2])

    def dying(call):
        def counted(*args, **options):
            global left
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return call(*args, **options)
        return counted

    for owner, name in ((File, "start_write_extents"), (File, "sync"), (os, "rename"),
                        (os, "fsync"), (os, "unlink")):
        setattr(owner, name, dying(getattr(owner, name)))
    store = GraphStore(sys.argv[1])
    nodes = np.array(store.split("train"))
    seeds = SeedOrder(nodes, batch_size=25, stream=Stream.TRAIN, seed=0, shuffle=True)
    spec = prepare.PackSpec(Sampling.of([4, 3]), seeds, epochs=8, cache_rows=0)
    sampler = Sampler(spec.sampling, mapped_topology(store), 0)
    trace = Trace(store.disk, prepare.prepare_trace(store, spec, [sampler]).path)
    prepare.prepare_pack(store, spec, trace, 12_000_000, *map(int, sys.argv[3:]))
    print("calls", int(sys.argv[2]) - left)
"""


def prepare_and_die(store: GraphStore, at: int, *disk: str) -> subprocess.CompletedProcess[str]:
    """Prepares in a process that is killed at its n-th write, sync or rename."""
    program = textwrap.dedent(PREPARES)
    command = [sys.executable, "-c", program, str(store.path), str(at), *disk]
    return subprocess.run(command, capture_output=True, text=True)


@pytest.mark.parametrize(
    "times", [None, pytest.param(4, marks=pytest.mark.soak)]
)  # of the features, on disk: rows are shared
def test_a_preparation_that_is_killed_again_and_again_ends_well(
    store: GraphStore, times: float | None
) -> None:
    disk = [] if times is None else [disk_of(store, times)]
    whole = prepare_and_die(store, 10**6, *disk)
    assert whole.returncode == 0, whole.stderr
    calls = int(whole.stdout.split()[1])
    expected = files_of(derived(store, "pack")[0])
    shutil.rmtree(store.path / "derived")
    rng = random.Random(5)
    resumed = 0
    for _ in range(60 if SOAK else 8):
        done = prepare_and_die(store, rng.randrange(1, calls // 3), *disk)
        resumed += bool(list(store.path.glob("derived/.pack-*/progress.bin")))
        if done.returncode == 0:
            break
        assert done.returncode == -signal.SIGKILL, done.stderr
    done = prepare_and_die(store, 10**6, *disk)
    assert done.returncode == 0, done.stderr
    assert resumed
    assert list(store.path.glob("derived/.*.building")) == []
    [pack] = derived(store, "pack")
    assert files_of(pack) == expected
    strategy = "diskgnn:distinct_epochs=8:cpu_cache=false:verify_rows=true"
    found = []
    for name in ("memory", strategy):
        made = loader(store, name, memory="60MB", disk=disk[0] if disk else None)
        found.append([all_contents(made.epoch(e)) for e in range(8)])
        made.close()
    assert found[0] == found[1]
    assert derived(store, "pack") == [pack], "and it is what a loader looks for"


class Killed(BaseException):
    """As a kill: nothing is tidied up."""


def test_a_preparation_that_is_killed_at_its_end_is_not_done_again(
    store: GraphStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At each of the last calls: the last save, the header, what is removed, the record."""
    calls = ("fsync", "rename", "unlink")
    left = 0

    def dying(call: Any) -> Any:
        def counted(*args: Any, **options: Any) -> Any:
            nonlocal left
            left -= 1
            if left == 0:
                raise Killed
            return call(*args, **options)

        return counted

    loader(store, "diskgnn").close()
    [pack] = derived(store, "pack")
    expected = files_of(pack)
    for name in calls:
        monkeypatch.setattr(os, name, dying(getattr(os, name)))
    shutil.rmtree(pack)
    left = before = 10**6
    loader(store, "diskgnn").close()
    total = before - left
    assert total > 8
    for at in range(1, total + 1):
        shutil.rmtree(pack, ignore_errors=True)
        left = at
        with pytest.raises(Killed):
            loader(store, "diskgnn")
        headers = [p.read_bytes() for p in store.path.glob("derived/.pack-*/pack.json")]
        left = 0
        with monkeypatch.context() as patch:
            if headers == [expected["pack.json"]]:
                patch.setattr("outcrop.ahead.prepare.make_plan", None)
                patch.setattr("outcrop.ahead.prepare.pack_batched", None)
            loader(store, "diskgnn").close()
        assert files_of(pack) == expected, at


@pytest.mark.parametrize("left", [0, 100])
def test_a_plan_that_was_torn_is_made_again(
    store: GraphStore, monkeypatch: pytest.MonkeyPatch, left: int
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("outcrop.ahead.prepare.pack_batched", _raises(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            loader(store, "diskgnn")
    [plan] = store.path.glob("derived/.pack-*/plan.json")
    os.truncate(plan, left)
    made = loader(store, "diskgnn:verify_rows=true")
    assert len(list(made)) == 9
    made.close()


def test_an_interrupt_keeps_the_work_and_an_error_does_not(
    store: GraphStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    for error, kept in ((KeyboardInterrupt, True), (RuntimeError, False)):
        monkeypatch.setattr("outcrop.ahead.prepare.pack_batched", _raises(error))
        with pytest.raises(error):
            loader(store, "diskgnn")
        assert bool(list(store.path.glob("derived/.pack-*.building"))) is kept


def test_a_refusal_leaves_the_work_of_an_interrupted_run(
    store: GraphStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    strategy = "diskgnn:cpu_cache=false"
    with monkeypatch.context() as patch:
        patch.setattr("outcrop.ahead.prepare.pack_batched", _raises(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            loader(store, strategy)
    with pytest.raises(BudgetError, match="packed rows"):
        loader(store, strategy, disk="200kB")
    monkeypatch.setattr("outcrop.ahead.prepare.make_plan", None)
    made = loader(store, strategy)
    assert len(list(made)) == 9
    made.close()


def _raises(error: type[BaseException]) -> Any:
    def fail(*_: object) -> None:
        raise error

    return fail


# Options and use


def test_options_are_checked(store: GraphStore) -> None:
    for text in ("distinct_epochs=0", "cache_share=2", "cache_share=-1", "pipeline=maybe"):
        with pytest.raises(OptionError, match=text.split("=")[0]):
            loader(store, f"diskgnn:{text}")


def test_training_prepares_all_its_epochs(store: GraphStore) -> None:
    options = TrainOptions(
        strategy="diskgnn", epochs=3, layers=2, hidden=8, num_neighbors=(4, 3), batch_size=50
    )
    result = fit(store, options)
    assert result.record.plan["distinct_epochs"] == 3
    reference = fit(store, TrainOptions(**{**vars(options), "strategy": "memory"}))
    assert [e.loss for e in result.history] == [e.loss for e in reference.history]


def test_a_store_without_features_is_sampled_ahead_all_the_same(tmp_path: Path) -> None:
    with make_random_store(tmp_path / "g", dim=None) as store:
        check(store, "diskgnn:distinct_epochs=2", "least", shuffle=True, **BASE)


def test_the_least_memory_is_named(store: GraphStore) -> None:
    least = smallest_memory(lambda memory: loader(store, "diskgnn", memory=memory))
    made = loader(store, "diskgnn", memory=least)
    assert sum(made.record.charges.values()) <= made.record.memory_bytes
    made.close()
    shadow = ShaDowLoader(store, 2, 4, "train", batch_size=20, strategy="diskgnn", memory="30MB")
    assert len(list(shadow)) == 11
    shadow.close()


class Notes(Progress):
    def __init__(self) -> None:
        self.texts: list[str] = []

    def note(self, text: str) -> None:
        self.texts.append(text)


def test_a_look_before_training_costs_no_prepared_epoch(store: GraphStore) -> None:
    notes = Notes()
    made = loader(store, "diskgnn", epochs=2, progress=notes)
    next(iter(made))
    for _ in range(2):
        assert len([None for _ in made]) == len(made)
    assert [entry.unprepared_batches for entry in made.record.epochs] == [0, 0, 0]
    assert notes.texts == []


def test_an_epoch_that_was_not_prepared_is_announced_and_counted(store: GraphStore) -> None:
    notes = Notes()
    made = loader(store, "diskgnn", epochs=2, progress=notes)
    for _ in zip(range(2), made, strict=False):  # given up in the middle
        pass
    for _ in range(3):  # epochs 1, 2 and 3
        for _ in made:
            pass
    counted = [entry.unprepared_batches for entry in made.record.epochs]
    assert counted == [0, 0, len(made), len(made)]
    (said,) = notes.texts
    assert "epoch 2 was not prepared (0 to 1 were)" in said and "epochs= (got 2)" in said
    validation = made.sibling("val", shuffle=False)
    assert len(list(validation)) and made.record.epochs[-1].unprepared_batches == 0
