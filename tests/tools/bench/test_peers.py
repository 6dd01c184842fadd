"""Peers: who is there, what their batches count as, and what is not known of them.

Where a peer is installed, it runs; nothing here stands in for one.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import outcrop
from outcrop.errors import OptionError
from outcrop.observe.record import EpochRecord
from outcrop.tools.bench import peers, worker
from outcrop.tools.bench.compare import BenchOptions, absent_peers, limits
from outcrop.tools.bench.drive import DriveRates
from outcrop.tools.bench.peers import (
    PeerBatch,
    graphbolt_batch,
    graphbolt_fanouts,
    open_peer,
    peer_missing,
    pyg_batch,
)
from outcrop.tools.bench.worker import Job, run_job
from outcrop.tools.report.model import parse_run
from tests.stores import make_random_store


@pytest.fixture
def path(tmp_path: Path) -> Path:
    make_random_store(tmp_path / "g.outcrop", nodes=2000, edges=20_000, train=500).close()
    return tmp_path / "g.outcrop"


def job(path: Path, peer: str, **changes: Any) -> Job:
    values: dict[str, Any] = {
        "store": str(path), "strategy": peer, "memory_bytes": 200_000_000,
        "num_neighbors": [4, 3], "batch_size": 50, "batches": 6, "warmup": 2, "epochs": 2,
        "model": "none", "seed": 0, "check_batches": 0, "out": str(path.parent / "out.json"),
    }  # fmt: skip
    return Job(**{**values, **changes})


def test_batches_of_pyg_count_as_those_of_a_strategy(path: Path) -> None:
    """Outcrop's batches are PyG's, and its record says what is in them."""
    loader = outcrop.NeighborLoader(path, [4, 3], "train", batch_size=50, shuffle=True)
    entry = EpochRecord(stream="train", epoch=0)
    for batch in loader:
        pyg_batch(batch).count(entry)
    (known,) = loader.record.epochs
    names = ("batches", "seeds", "sampled_edges", "rows", "row_bytes")
    assert {n: getattr(entry, n) for n in names} == {n: getattr(known, n) for n in names}
    assert entry.seeds == 500 and entry.row_bytes == entry.rows * 32


class OwnBatches:
    """Outcrop's own batches, handed out as a peer's are, to see what the worker counts."""

    def __init__(self, path: Path) -> None:
        self._loader = outcrop.NeighborLoader(path, [4, 3], "train", batch_size=50)

    def epoch(self, batches: int) -> Iterator[PeerBatch]:
        return (pyg_batch(data) for data in self._loader.epoch(0, batches))


def test_a_peers_record_has_what_was_delivered_and_null_for_what_is_not_known(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "open_peer", lambda *_, **__: OwnBatches(path))
    record = run_job(job(path, "pyg-mmap")).as_dict()
    first, second = record["loader"]["epochs"]
    assert first["batches"] == second["batches"] == 8 and first["seeds"] == 400
    assert first["sampled_edges"] > 0 and first["rows"] >= first["distinct_rows"] > 0
    assert first["row_bytes"] == first["rows"] * 32
    assert first["seconds"] > first["timed_seconds"] > 0  # the warm-up is in the whole alone
    for name in ("stall_seconds", "read_requests", "bytes_read", "hits", "stages"):
        assert first[name] is None
    shown = parse_run(record, "out.json").epochs[0]
    assert shown.counts["rows"] == first["rows"] and shown.counts["bytes_read"] is None
    assert shown.stages == {} and shown.stall_seconds is None


def test_without_a_strategy_there_are_no_limits() -> None:
    options = BenchOptions(strategies=("pyg-mmap",))
    assert limits([{"name": "pyg-mmap"}], DriveRates("test", 1.0, 1.0), {}, options) == []


@pytest.mark.parametrize("peer", peers.PEERS)
def test_rows_that_a_peer_cannot_read_are_refused(tmp_path: Path, peer: str) -> None:
    with (
        make_random_store(tmp_path / "g.outcrop", feature_dtype="int8") as store,
        pytest.raises(OptionError, match="float32 or float16 \\(got int8\\)"),
    ):
        open_peer(peer, store, num_neighbors=[4], batch_size=8, scratch=tmp_path)


@pytest.mark.parametrize("peer", peers.PEERS)
def test_a_peer_that_is_installed_runs(path: Path, peer: str) -> None:
    missing = peer_missing(peer)
    if missing is not None:
        pytest.skip(missing)
    for epoch in run_job(job(path, peer)).loader["epochs"]:
        assert epoch["batches"] == 8 and epoch["seeds"] == 400
        assert epoch["sampled_edges"] > 400 and epoch["rows"] > 400
        assert epoch["row_bytes"] == epoch["rows"] * 32


# GraphBolt


def install(folder: Path, monkeypatch: pytest.MonkeyPatch, *torches: str) -> None:
    """What is looked at of dgl: its place, and its libraries' names."""
    (folder / "dgl" / "graphbolt").mkdir(parents=True)
    (folder / "dgl" / "__init__.py").write_text("raise ImportError('only looked at')")
    for version in torches:
        (folder / "dgl" / "graphbolt" / f"libgraphbolt_pytorch_{version}.so").touch()
    monkeypatch.syspath_prepend(folder)
    importlib.invalidate_caches()


def test_graphbolt_needs_dgl_with_a_library_for_this_torch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    this = torch.__version__.split("+")[0]
    install(tmp_path / "other", monkeypatch, "1.0.0")
    assert (
        peer_missing("graphbolt") == f"the dgl that is installed has no GraphBolt for torch {this}"
    )
    install(tmp_path / "right", monkeypatch, "1.0.0", this)
    assert peer_missing("graphbolt") is None


def test_a_peer_that_is_not_installed_is_listed_as_absent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    rows = {row["name"]: row for row in absent_peers()}
    assert set(rows) == set(peers.PEERS)
    assert all(row["status"] == "absent" and row["kind"] == "peer" for row in rows.values())
    assert "needs dgl" in rows["graphbolt"]["note"]
    assert "torch-sparse" in rows["pyg-mmap"]["note"]


def test_graphbolt_counts_hops_from_the_outside() -> None:
    assert graphbolt_fanouts([10, 5, -1]) == [-1, 5, 10]


def test_a_minibatch_counts_the_edges_of_all_its_layers() -> None:
    """The attributes that dgl 2.1 documents of MiniBatch, without their classes."""
    layers = [SimpleNamespace(sampled_csc=SimpleNamespace(indices=torch.arange(n))) for n in (9, 4)]
    batch = SimpleNamespace(
        input_nodes=torch.arange(7),
        seeds=torch.arange(2),
        sampled_subgraphs=layers,
        node_features={"feat": torch.zeros(7, 8)},
    )
    entry = EpochRecord(stream="train", epoch=0)
    graphbolt_batch(batch).count(entry)
    assert (entry.batches, entry.seeds, entry.sampled_edges) == (1, 2, 13)
    assert (entry.rows, entry.row_bytes) == (7, 7 * 32)


def test_graphbolt_is_measured_without_a_model(path: Path) -> None:
    with pytest.raises(OptionError, match="with model none \\(got sage\\)"):
        run_job(job(path, "graphbolt", model="sage"))
