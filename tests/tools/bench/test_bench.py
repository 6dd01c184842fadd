"""The benchmark: records are whole, digests notice a single byte, failures are shown."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner, Result

from outcrop import strategies
from outcrop.cli import app
from outcrop.errors import OptionError, OutcropError
from outcrop.loader.history import BatchHistory
from outcrop.memory.batches import RowRequest
from outcrop.observe.monitor import Monitor, Peak
from outcrop.observe.record import read_record
from outcrop.plan.plan import Plan, Strategy
from outcrop.rows.array import ArrayRows
from outcrop.rows.source import Resources, RowFill, RowSource, RowWorker
from outcrop.store.store import GraphStore
from outcrop.tools.bench import compare, worker
from outcrop.tools.bench.compare import (
    BenchOptions,
    _Runs,
    check_digests,
    plan_memory,
    run_bench,
)
from outcrop.tools.bench.drive import DriveRates, measure_drive
from outcrop.tools.bench.worker import Job, run_job
from outcrop.topology.parts import Resident
from tests.stores import make_random_store


@pytest.fixture
def path(tmp_path: Path) -> Path:
    make_random_store(tmp_path / "g.outcrop", nodes=2000, edges=20_000, train=500).close()
    return tmp_path / "g.outcrop"


def job(path: Path, strategy: str = "memory", **changes: Any) -> Job:
    whole = Job(
        store=str(path), strategy=strategy, memory_bytes=200_000_000, num_neighbors=[4, 3],
        batch_size=50, batches=6, warmup=2, epochs=2, model="none", seed=0, check_batches=3,
        out=str(path.parent / f"{strategy}.json"),
    )  # fmt: skip
    return replace(whole, **changes)


@dataclass(frozen=True)
class OneBitOff(ArrayRows):
    """Alters the lowest bit of one value of the third batch of every run."""

    def open(self, on: Resources) -> RowSource:
        source = super().open(on)
        make = source.worker

        def worker(*given: Any) -> RowWorker:
            made, requests = make(*given), count()
            start = made.start

            def altered(request: RowRequest) -> RowFill:
                fill = start(request)
                if next(requests) == 2:
                    request.x.view("uint8")[-1, 0] ^= 1
                return fill

            made.start = altered  # type: ignore[method-assign]
            return made

        source.worker = worker  # type: ignore[method-assign,assignment]
        return source


ONE_BIT_OFF = Strategy("one_byte_off", lambda _: Plan(Resident(), OneBitOff(loaded=True)))


def test_a_record_says_what_was_measured(path: Path) -> None:
    record = run_job(job(path, "direct"))
    record.write(path.parent / "direct.json")
    values = read_record(path.parent / "direct.json")
    assert (path.parent / "direct.json").read_bytes().count(b"\n") == len(values)
    first, second = values["loader"]["epochs"]
    assert first["batches"] == 8 and first["seeds"] == 400 and second["epoch"] == 1
    assert 0 < first["timed_seconds"] <= first["seconds"]
    assert 0 < first["distinct_rows"] <= first["rows"]
    assert first["bytes_wanted"] == first["rows"] * 32
    assert first["read_amplification"] == first["bytes_read"] / first["bytes_wanted"]
    assert values["loader"]["events"] and values["digest"]
    whole, prepared = values["loader"]["run"], values["loader"]["prepare_seconds"]
    assert whole["seconds"] >= prepared + first["seconds"] + second["seconds"]
    assert prepared <= whole["first_batch_seconds"] < whole["seconds"]
    assert whole["read_requests"] >= first["read_requests"] + second["read_requests"]
    assert whole["drive_bytes"] >= 0 and whole["drive_written_bytes"] >= 0
    assert values["store"]["feature_bytes"] == 2000 * 32
    assert values["process"]["peak_rss_bytes"] > 0


def test_preparation_and_disk_are_the_same_whoever_prepared(path: Path) -> None:
    first = run_job(job(path, "diskgnn", check_batches=0)).as_dict()
    again = run_job(job(path, "diskgnn", check_batches=0)).as_dict()
    plan = first["loader"]["plan"]
    files = plan["trace_bytes"] + plan["pack_bytes"]
    assert first["process"]["disk_used_bytes"] >= files > 400_000
    assert again["process"]["disk_used_bytes"] >= files
    assert [layout["made"] for layout in first["layouts"]] == [True, True]
    assert [layout["made"] for layout in again["layouts"]] == [False, False]
    assert [layout["seconds"] for layout in again["layouts"]] == [
        layout["seconds"] for layout in first["layouts"]
    ]
    spent = sum(layout["seconds"] for layout in first["layouts"])
    assert 0 < spent <= first["loader"]["prepare_seconds"]
    assert plan["batches"] == 2 * 10  # epochs of 500 training nodes


def test_scratch_of_a_run_is_disk_that_it_used(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "Peak", partial(Peak, every=0.001))
    record = run_job(job(path, "ginex", check_batches=0)).as_dict()
    kept = sum(layout["bytes"] for layout in record["layouts"])
    batch = 4 * record["loader"]["epochs"][0]["rows"] / 8  # node ids of one, of those in the trace
    assert record["process"]["disk_used_bytes"] > kept + 6 * batch > kept > 0
    assert not [p for p in (path / "derived").iterdir() if "scratch" in p.name]


def test_the_series_has_the_queues_of_the_pipeline(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "Monitor", partial(Monitor, every=0.002))
    series = run_job(job(path, "direct", model="sage", check_batches=0)).series
    assert {"queue_sample", "queue_gather", "queue_consumer"} <= set(series)
    assert max(series["queue_consumer"]) > 0


def test_the_check_fails_when_one_byte_of_one_batch_is_altered(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(strategies.STRATEGIES, ONE_BIT_OFF.name, ONE_BIT_OFF)
    names = ("memory", "mmap", "direct", "gnndrive:x=slots")
    records = [run_job(job(path, name)).as_dict() for name in names]
    check = check_digests(records, 3)
    assert check is not None and check["equal"]
    records.append(run_job(job(path, ONE_BIT_OFF.name)).as_dict())
    check = check_digests(records, 3)
    assert check is not None and not check["equal"]
    assert check["digests"]["one_byte_off"] != check["digests"]["memory"]


HISTORY = "width=16:staleness=4:nodes=1000"


def counted_copies(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """How many rows come from and go to embeddings, from now on."""
    copied = {"pulled": 0, "pushed": 0}
    exchange = BatchHistory.exchange

    def counting(self: BatchHistory, x: torch.Tensor, degrees: Any = None) -> torch.Tensor:
        found = exchange(self, x, degrees)
        copied["pulled"] += len(found) - len(x)
        copied["pushed"] += len(self.reuse.pushed)
        return found

    monkeypatch.setattr(BatchHistory, "exchange", counting)
    return copied


@pytest.mark.parametrize("strategy", ["memory", "ginex", "outre"])
@pytest.mark.parametrize("model", ["none", "sage"])
def test_embeddings_are_used_again_with_a_model_and_without(
    path: Path, strategy: str, model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    copied = counted_copies(monkeypatch)
    history = HISTORY.replace("width=16", "width=256") if model == "sage" else HISTORY
    given = job(path, strategy, model=model, history=history, batches=8, warmup=2, epochs=3)
    record = run_job(given).as_dict()
    epochs = record["loader"]["epochs"][:3]
    assert [epoch["epoch"] for epoch in epochs] == [0, 1, 2]
    assert [epoch["batches"] for epoch in epochs] == [10, 10, 10]
    assert record["loader"]["plan"]["embeddings"] > 0
    for name, rows in copied.items():
        assert rows == sum(epoch[name] for epoch in epochs) > 0
    without = run_job(job(path, strategy, model="none", batches=8, warmup=2, epochs=3)).as_dict()
    assert record["digest"] == without["digest"]  # batches are checked without
    assert epochs[1]["rows"] < without["loader"]["epochs"][1]["rows"]


def test_epochs_that_are_cut_short_go_on_with_the_next_one(path: Path) -> None:
    record = run_job(job(path, "ginex", history=HISTORY, batches=3, warmup=1)).as_dict()
    epochs = record["loader"]["epochs"][:2]
    assert [(epoch["epoch"], epoch["batches"]) for epoch in epochs] == [(0, 4), (1, 4)]
    assert all(epoch["timed_seconds"] > 0 for epoch in epochs)


def test_reads_may_go_through_the_page_cache(path: Path) -> None:
    direct = run_job(job(path, "direct", epochs=1)).as_dict()
    buffered = run_job(job(path, "direct", epochs=1, access="buffered")).as_dict()
    assert buffered["configuration"]["access"] == "buffered"
    assert buffered["digest"] == direct["digest"]


@pytest.mark.parametrize("model", ["sage", "gat"])
def test_models_are_trained_on_the_batches(path: Path, model: str) -> None:
    record = run_job(job(path, model=model, epochs=1)).as_dict()
    (epoch,) = record["loader"]["epochs"]
    assert epoch["stages"]["compute"]["busy_seconds"] > 0


def test_the_command_compares_and_checks(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compare, "measure_drive", lambda _: DriveRates("test", 1e5, 1e9))
    out = tmp_path / "out"
    flags = ["bench", str(path), "--strategies", "memory,direct", "--cache", "50%",
             "--num-neighbors", "4,3", "--batch-size", "50", "--batches", "4", "--warmup", "1",
             "--repeat", "1", "--out", str(out)]  # fmt: skip
    done = CliRunner().invoke(app, flags)
    assert done.exit_code == 0, done.output
    summary = json.loads((out / "bench.json").read_text())
    rows = {row["name"]: row for row in summary["rows"]}
    assert rows["memory"]["status"] == rows["direct"]["status"] == "measured"
    assert rows["direct"]["bound_seconds"] > 0 and len(rows["direct"]["seconds"]) == 1
    assert rows["memory"]["bound_seconds"] is None
    assert rows["wanted bytes in sequence"]["kind"] == "limit"
    assert summary["check"]["equal"] and set(summary["check"]["digests"]) == {"memory", "direct"}
    assert sorted(file.name for file in out.glob("*.json")) == [
        "bench.json", "direct-1.json", "memory-1.json",
    ]  # fmt: skip
    again = CliRunner().invoke(app, flags)
    assert again.exit_code == 2 and "has a benchmark already" in again.stderr


def test_a_run_that_dies_is_a_row_that_failed(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compare, "measure_drive", lambda _: DriveRates("none", 1.0, 1.0))
    options = BenchOptions(strategies=("mmap",), cage="30MB", num_neighbors=(4, 3), batch_size=50,
                           batches=4, repeat=1)  # fmt: skip
    said: list[str] = []
    summary = run_bench(path, options, tmp_path / "out", said.append)
    if summary["configuration"]["cage"] != "cgroup":
        pytest.skip("no memory limit can be set here")
    assert summary["rows"][0]["status"] == "failed"
    assert "killed" in summary["rows"][0]["note"] and any("killed" in line for line in said)
    assert summary["check"] is None


def bench(path: Path, out: Path, *flags: str) -> Result:
    """The command, on few batches."""
    few = ["--num-neighbors", "4,3", "--batch-size", "50", "--batches", "4", "--repeat", "1"]
    return CliRunner().invoke(app, ["bench", str(path), *few, "--out", str(out), *flags])


def test_the_command_takes_a_history(path: Path, tmp_path: Path) -> None:
    done = bench(path, tmp_path / "out", "--strategies", "memory,direct", "--batches", "10",
                 "--history", HISTORY, "--epochs", "2", "--memory", "200MB")  # fmt: skip
    assert done.exit_code == 0, done.output
    for name in ("memory", "direct"):
        record = read_record(tmp_path / "out" / f"{name}-1.json")
        assert record["configuration"]["history"] == HISTORY
        assert record["loader"]["epochs"][1]["pulled"] > 0


def dies(record: list[str]) -> Callable[..., None]:
    """In place of running workers: those whose strategy is named here are killed."""
    run = _Runs._run

    def run_or_die(self: _Runs, strategy: str, command: list[str]) -> None:
        if strategy in record:
            raise OutcropError("killed: more than the limit of 1.0 MB")
        run(self, strategy, command)

    return run_or_die


def test_the_command_fails_when_every_strategy_did(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_Runs, "_run", dies(["mmap", "direct"]))
    done = bench(path, tmp_path / "out", "--strategies", "mmap,direct")
    assert done.exit_code == 1
    assert "Error: nothing was measured: mmap: killed: more than the limit" in done.stderr
    rows = json.loads((tmp_path / "out" / "bench.json").read_text())["rows"]
    assert [row["status"] for row in rows[:2]] == ["failed", "failed"]


def test_a_failure_among_others_is_a_result_and_said_at_the_end(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_Runs, "_run", dies(["mmap"]))
    done = bench(path, tmp_path / "out", "--strategies", "mmap,direct")
    assert done.exit_code == 0, done.output
    assert done.stderr.strip().splitlines()[-1] == (
        "1 of 2 strategies failed: mmap (killed: more than the limit of 1.0 MB)"
    )


def test_memory_is_that_of_the_data_path_and_cache_what_caches_get_of_it(path: Path) -> None:
    with GraphStore(path) as store:
        options = BenchOptions(strategies=("mmap",), num_neighbors=(4, 3), cache="25%")
        plan = plan_memory(store, options)
        assert plan.cache_bytes == 2000 * 32 // 4
        assert plan.memory_bytes == plan.cache_bytes + plan.base_bytes
        assert plan_memory(store, replace(options, cache="1MB")).cache_bytes == 1_000_000
        whole = plan_memory(store, replace(options, cache=None, memory="80MB"))
        assert whole.memory_bytes == 80_000_000
        assert whole.cache_bytes == 80_000_000 - plan.base_bytes
        with pytest.raises(OptionError, match=r"cache must be like 10% or 1GB \(got 'some%'\)"):
            plan_memory(store, replace(options, cache="some%"))
        with pytest.raises(OptionError, match=r"memory must be at least .* tables \(got 1MB\)"):
            plan_memory(store, replace(options, cache=None, memory="1MB"))


def test_partitions_are_made_before_anything_is_measured_or_by_the_run(path: Path) -> None:
    options = BenchOptions(
        ("memory",), batching="partition:parts=4:macro=1", batch_size=50, partition_first=False
    )
    with GraphStore(path) as store:
        plan_memory(store, options)
        assert not store.derived.records("partitions")
        plan_memory(store, replace(options, partition_first=True))
        assert len(store.derived.records("partitions")) == 1
    shutil.rmtree(path / "derived")
    found = run_job(job(path, batching=options.batching)).as_dict()["layouts"]
    assert [layout["made"] for layout in found if layout["name"].startswith("partitions-")] == [
        True
    ]


def test_a_share_of_the_features_is_no_memory_but_a_cache(path: Path, tmp_path: Path) -> None:
    done = bench(path, tmp_path / "out", "--memory", "10%")
    assert done.exit_code == 2 and "for caches beside them, say --cache 10%" in done.stderr


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"strategies": ("magic",)}, "a strategy is one of"),
        ({"strategies": ("mmap",), "model": "mlp"}, "model must be"),
        ({"strategies": ("mmap",), "repeat": 0}, "repeat must be"),
        ({"strategies": ("mmap",), "memory": "1GB", "cache": "1GB"}, "memory or cache, not both"),
        ({"strategies": ("pyg-mmap",), "bytes_per_second": 10**9}, "peers read by themselves"),
        ({"strategies": ("pyg-mmap",), "requests_per_second": 9}, "requests_per_second does not"),
        ({"strategies": ("pyg-mmap",), "history": "16"}, "peers use no embeddings again"),
        ({"strategies": ("mmap",), "history": "width=0"}, "width must be at least 1"),
        ({"strategies": ("pyg-mmap",), "access": "buffered"}, "access does not change how"),
    ],
)
def test_bad_options_are_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        BenchOptions(**options)


def test_too_few_training_nodes_are_refused(path: Path, tmp_path: Path) -> None:
    options = BenchOptions(strategies=("mmap",), batch_size=400, batches=2)
    with pytest.raises(OptionError, match="500 training nodes"):
        run_bench(path, options, tmp_path / "out", print)


def test_the_drive_is_measured_by_fio(tmp_path: Path) -> None:
    if shutil.which("fio") is None:
        pytest.skip("no fio here; on Debian: apt-get install fio")
    (tmp_path / "file").write_bytes(bytes(32 << 20))
    rates = measure_drive(tmp_path / "file", seconds=0.5)
    assert rates.source.startswith("fio 3")
    assert rates.random_reads_per_second > 100
    assert rates.sequential_bytes_per_second > 1_000_000


def test_the_drive_is_measured_without_fio_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_bytes(bytes(32 << 20))
    monkeypatch.setenv("PATH", "")
    rates = measure_drive(tmp_path / "file")
    assert rates.source == "outcrop doctor" and rates.random_reads_per_second > 0
    assert measure_drive(Path(__file__)).random_reads_per_second == 0
