"""Reordering: the same graph under other ids, whatever the order, the memory and the moment."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from typer.testing import CliRunner

import outcrop
from outcrop.cli import app
from outcrop.errors import BudgetError, CorruptError, IngestError, OptionError, StoreError
from outcrop.ingest import orders
from outcrop.ingest.build import import_graph, ingest_disk
from outcrop.ingest.edgelist import edgelist_source
from outcrop.ingest.files import Files, file_attributes
from outcrop.ingest.reorder import reorder
from outcrop.layout.partitions import Partitions, community_order, open_partitions
from outcrop.store import permute
from outcrop.store.arrays import ArrayWriter
from outcrop.store.checks import ArrayChecks
from outcrop.store.format import SPLITS
from outcrop.store.permute import PermutePlan, permuted, places_dtype
from outcrop.store.store import GraphStore
from tests.cage import OUTCROP, run_caged
from tests.conftest import SOAK
from tests.graphs import Graph, files_of, graphs, random_graph
from tests.stores import make_random_store, make_store, rewrite_array

MEMORY = 64_000_000


def expected_degree(graph: Graph) -> NDArray[np.int64]:
    degrees = np.bincount(graph.edges[0], minlength=graph.num_nodes)
    return np.argsort(-degrees, kind="stable")


def expected_bfs(store: GraphStore, graph: Graph) -> list[int]:
    """The slow way."""
    queue: list[int] = []
    met = set()

    def meet(node: int) -> None:
        if node not in met:
            met.add(node)
            queue.append(node)

    head = 0
    for root in expected_degree(graph).tolist():
        meet(root)
        while head < len(queue):
            node = queue[head]
            for source in store.indices[store.indptr[node] : store.indptr[node + 1]].tolist():
                meet(source)
            head += 1
    return queue


def assert_same_graph(found: GraphStore, source: GraphStore, order: Any) -> None:
    """Every array of `found` is that of `source`, node order[i] being node i."""
    order = np.asarray(order)
    places = np.empty(len(order), np.int64)
    places[order] = np.arange(len(order))
    edges = np.concatenate([np.arange(source.indptr[v], source.indptr[v + 1]) for v in order])
    assert np.array_equal(found.indptr, np.cumsum([0, *np.diff(source.indptr)[order]]))
    assert np.array_equal(found.indices, places[source.indices[edges]])
    wanted = source.manifest.provenance["options"].get("edge_ids", True)
    ids = source.array("edge_ids")[edges] if source.has("edge_ids") else edges
    moved = not np.array_equal(ids, np.arange(source.num_edges))
    assert found.has("edge_ids") == (wanted and moved)
    if found.has("edge_ids"):
        assert np.array_equal(found.array("edge_ids"), ids)
    assert np.array_equal(found.node_ids, source.to_original(order))
    for name in ("features", "labels"):
        assert found.has(name) == source.has(name)
        if source.has(name):
            assert found.array(name).dtype == source.array(name).dtype
            assert found.array(name).tobytes() == source.array(name)[order].tobytes()
    for split in SPLITS:
        assert found.has(split) == source.has(split)
        if source.has(split):
            assert np.array_equal(order[found.split(split)], source.split(split))
    assert found.manifest.target_kind == source.manifest.target_kind
    assert found.num_classes == source.num_classes


@given(
    graph=graphs(),
    name=st.sampled_from(["degree", "bfs", "file"]),
    fit=st.sampled_from([None, 0, 2]),
)
def test_a_reordered_store_is_what_the_order_says(
    tmp_path_factory: pytest.TempPathFactory, graph: Graph, name: str, fit: int | None
) -> None:
    folder = tmp_path_factory.mktemp("reorder")
    with (
        pytest.MonkeyPatch.context() as patch,
        make_store(folder / "s", graph, edge_ids=True) as store,
    ):
        order: Any = expected_degree(graph)
        if name == "bfs":
            order = expected_bfs(store, graph)
            if fit is not None:  # memory for two lists, or for less than one
                patch.setattr(orders._Lists, "fit", lambda _, nodes: min(fit, len(nodes)))
        elif name == "file":
            order = np.random.default_rng(0).permutation(graph.num_nodes)
            np.save(folder / "order.npy", order.astype(np.int64 if fit is None else np.int32))
        given = folder / "order.npy" if name == "file" else name
        reorder(store, folder / "t", given, MEMORY)
        with outcrop.open(folder / "t") as found:
            assert_same_graph(found, store, order)
    assert outcrop.verify(folder / "t").ok
    assert not (folder / "t/scratch").exists()


def test_the_order_by_communities_is_that_of_parts(tmp_path: Path) -> None:
    with make_random_store(tmp_path / "s", 25_000, 60_000, edge_ids=True) as store:
        reorder(store, tmp_path / "t", community_order(), "33.9MB")
        with Partitions(store.disk, open_partitions(store)) as partitions:
            assert partitions.parts == 130
            order = np.argsort(partitions.load_assignment(), kind="stable")
        with outcrop.open(tmp_path / "t") as found:
            assert_same_graph(found, store, order)
            assert found.manifest.provenance["options"]["order"] == "community"
    command = ["reorder", str(tmp_path / "s"), str(tmp_path / "u"), "--order", "community"]
    assert CliRunner().invoke(app, command).exit_code == 0
    assert files_of(tmp_path / "u") == files_of(tmp_path / "t")


@pytest.mark.parametrize("targets, width", [("classes", None), ("multilabel", 3), ("values", None),
                                            ("values", 2)])  # fmt: skip
@pytest.mark.parametrize("encoding", ["float32", "int8"])
def test_attributes_of_every_kind_follow_their_nodes(
    tmp_path: Path, targets: str, width: int | None, encoding: str
) -> None:
    graph = random_graph(500, 4000)
    more: dict[str, Any] = {"targets": targets, "width": width, "edge_ids": True}
    with make_store(tmp_path / "s", graph, dim=7, feature_dtype=encoding, **more) as store:
        reorder(store, tmp_path / "t", "degree", MEMORY)
        with outcrop.open(tmp_path / "t") as found:
            assert_same_graph(found, store, expected_degree(graph))
            assert found.has("edge_ids")


def test_ids_are_composed_with_those_that_are_there(tmp_path: Path) -> None:
    """Compacted at first, then reordered twice."""
    edges = np.random.default_rng(0).integers(0, 200, (1000, 2)) * 1000 + 7
    (tmp_path / "g.txt").write_text("\n".join(f"{s} {t}" for s, t in edges.tolist()))
    import_graph(edgelist_source(tmp_path / "g.txt"), tmp_path / "a")
    with outcrop.open(tmp_path / "a") as a:
        reorder(a, tmp_path / "b", "bfs", MEMORY)
        with outcrop.open(tmp_path / "b") as b:
            reorder(b, tmp_path / "c", "degree", MEMORY)
            with outcrop.open(tmp_path / "c") as c:
                ids = np.array([[207, 7], [5007, 207 + 99_800]]) // 1000 * 1000 + 7
                nodes = c.to_internal(ids)
                assert np.array_equal(c.to_original(nodes), ids)
                assert np.array_equal(c.node_ids[nodes], ids)
                targets = np.repeat(c.node_ids, np.diff(c.indptr))
                found = sorted(zip(c.node_ids[c.indices], targets, strict=True))
                assert found == sorted(map(tuple, edges.tolist()))
                # Edge ids are still the lines of the file.
                sources = c.node_ids[c.indices]
                assert np.array_equal(edges[c.array("edge_ids"), 0], sources)
                assert np.array_equal(edges[c.array("edge_ids"), 1], targets)
                with pytest.raises(OptionError, match=r"no node has the id 8$"):
                    c.to_internal([7, 8])
                assert len(c.to_internal([])) == 0


def test_a_store_without_a_mapping_has_its_own_ids(tmp_path: Path) -> None:
    with make_random_store(tmp_path / "s") as store:
        assert np.array_equal(store.to_internal([3, 299]), [3, 299])
        assert np.array_equal(store.to_original([3, 299]), [3, 299])
        with pytest.raises(OptionError, match="no node has the id 300"):
            store.to_internal([3, 300])
        with pytest.raises(AttributeError, match="the ids that they have in its source"):
            _ = store.node_ids


@pytest.mark.parametrize("edge_ids", [True, False])
def test_edge_ids_that_were_places_are_kept_unless_nobody_wants_them(
    tmp_path: Path, edge_ids: bool
) -> None:
    outcrop_options = ["--nodes", "1000", "--edges", "9000", "--dim", "4"]
    assert CliRunner().invoke(app, ["synth", str(tmp_path / "s"), *outcrop_options]).exit_code == 0
    with outcrop.open(tmp_path / "s") as store:
        reorder(store, tmp_path / "t", "degree", MEMORY, edge_ids=edge_ids)
        with outcrop.open(tmp_path / "t") as found:
            assert found.has("edge_ids") == edge_ids
            if edge_ids:
                order = found.node_ids
                assert_same_graph(found, store, order)
            else:  # nor are they made again of what became places
                reorder(found, tmp_path / "u", "bfs", MEMORY)
                with outcrop.open(tmp_path / "u") as again:
                    assert not again.has("edge_ids")


def test_adopted_features_are_copied(tmp_path: Path) -> None:
    graph = random_graph(300, 2000)
    (tmp_path / "g.txt").write_text("\n".join(f"{s} {t}" for s, t in graph.edges.T.tolist()))
    np.save(tmp_path / "x.npy", np.random.default_rng(0).random((300, 5), np.float32))
    files = Files(tmp_path / "x.npy", True, None, {})
    graph_source = edgelist_source(
        tmp_path / "g.txt", num_nodes=300, attributes=lambda _: file_attributes(files)
    )
    import_graph(graph_source, tmp_path / "s")
    with outcrop.open(tmp_path / "s") as store:
        assert store.manifest.arrays["features"].adopted_mtime_ns is not None
        reorder(store, tmp_path / "t", "degree", MEMORY)
        with outcrop.open(tmp_path / "t") as found:
            assert_same_graph(found, store, expected_degree(graph))
            assert found.manifest.arrays["features"].adopted_mtime_ns is None


# The way by parts


@pytest.mark.parametrize("row_bytes", [1, 24, 4096, 70_000])
@pytest.mark.parametrize("memory, files", [(1 << 20, 3), (200_000, 2), (1 << 30, 100)])
def test_rows_are_permuted_by_sweeps_and_by_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, row_bytes: int, memory: int, files: int
) -> None:
    monkeypatch.setattr(permute, "LEAST_PERMUTE_BYTES", 1)
    monkeypatch.setattr(permute, "_FILE_BYTES", max(1, memory // files))
    rows = 3_000_000 // row_bytes
    rng = np.random.default_rng(0)
    array = rng.integers(0, 256, (rows, row_bytes), np.uint8)
    places = rng.permutation(rows).astype(places_dtype(rows))
    with ingest_disk() as disk:
        with ArrayWriter(disk, tmp_path, "a.npy", np.dtype(np.uint8), (row_bytes,)) as writer:
            writer.append(array)
            entry = writer.close()
        plan = PermutePlan.of(rows, row_bytes, memory)
        assert (plan.files > 0) == (plan.parts > -(-plan.parts // files) + 2)
        parts = permuted(disk, ArrayChecks(tmp_path, entry), places, tmp_path, memory)
        found = np.concatenate([part.copy() for part in parts])
    expected = np.empty_like(array)
    expected[places] = array
    assert np.array_equal(found, expected)
    assert os.listdir(tmp_path) == ["a.npy"]


def test_the_way_that_moves_less_is_taken() -> None:
    rows, row_bytes = 1_000_000, 512
    whole = rows * row_bytes
    assert PermutePlan.of(rows, row_bytes, whole) == PermutePlan(rows, row_bytes, rows, 0)
    for memory, sweeps in ((whole // 3 + 512, 3), (whole // 4 + 512, None)):
        plan = PermutePlan.of(rows, row_bytes, memory)
        assert plan.bytes_read == (2 if sweeps is None else sweeps) * whole
        assert (plan.scratch_bytes == 0) == (sweeps is not None)


@pytest.mark.parametrize("name", ["degree", "bfs"])
def test_the_same_store_byte_for_byte_for_any_memory(tmp_path: Path, name: str) -> None:
    with make_random_store(tmp_path / "s", 20_000, 400_000, dim=1000, edge_ids=True) as store:
        for memory in ("35MB", "1GB"):
            reorder(store, tmp_path / memory, name, memory)
    assert files_of(tmp_path / "35MB") == files_of(tmp_path / "1GB")
    with outcrop.open(tmp_path / "35MB") as small, outcrop.open(tmp_path / "1GB") as large:
        assert small.content == large.content


def test_reordering_keeps_to_its_memory_in_a_cage(tmp_path: Path) -> None:
    """Records of 48 MB and features of 200 MB: neither fits."""
    made = ["synth", str(tmp_path / "s"), "--nodes", "400K", "--edges", "3M", "--dim", "128"]
    assert CliRunner().invoke(app, made).exit_code == 0
    for order in ("degree", "bfs"):
        command = [*OUTCROP, "reorder", str(tmp_path / "s"), str(tmp_path / order),
                   "--order", order, "--memory", "42MB"]  # fmt: skip
        done = run_caged(command, 42_000_000 + 60_000_000)
        assert done.returncode == 0, done.output
        assert outcrop.verify(tmp_path / order).ok
    with outcrop.open(tmp_path / "s") as store, outcrop.open(tmp_path / "bfs") as found:
        assert np.array_equal(found.labels, store.labels[found.node_ids])


# What goes wrong


@pytest.mark.parametrize("values, message", [
    (np.array([0, 1, 1, 2]), "entry 2: node 1, for the second time"),
    (np.array([0, 1, 4, 2]), "entry 2: node 4, but there are only 4 nodes"),
    (np.array([0, -1, 3, 2]), "entry 1: node -1, but"),
    (np.array([0, 1, 2]), r"must be int32 or int64 \[4\] .got int64 \[3\]"),
    (np.array([0.0, 1, 2, 3]), r"must be int32 or int64 \[4\] .got float64"),
    (np.array([[0, 1], [2, 3]]), r"must be int32 or int64 \[4\]"),
])  # fmt: skip
def test_what_is_no_order_of_all_nodes_is_refused(
    tmp_path: Path, values: NDArray[Any], message: str
) -> None:
    np.save(tmp_path / "order.npy", values)
    with (
        make_store(tmp_path / "s", Graph(4, np.array([[0, 1], [1, 2]]))) as store,
        pytest.raises(IngestError, match=message),
    ):
        reorder(store, tmp_path / "t", tmp_path / "order.npy", MEMORY)
    assert sorted(os.listdir(tmp_path)) == ["order.npy", "s"]


def test_errors_name_what_is_wrong_and_leave_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with make_random_store(tmp_path / "s", 2000) as store:
        with pytest.raises(OptionError, match=r"one of degree, bfs, or a .npy file .*'community'"):
            reorder(store, tmp_path / "t", "community", MEMORY)
        with pytest.raises(BudgetError, match=r"2000 nodes into the order bfs needs .* of memory"):
            reorder(store, tmp_path / "t", "bfs", "10MB")
        with pytest.raises(StoreError, match="exists already"):
            reorder(store, tmp_path / "s", "bfs", MEMORY)
        usage = shutil.disk_usage(tmp_path)
        with monkeypatch.context() as patch:
            patch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=100_000))
            with pytest.raises(BudgetError, match="of disk space"):
                reorder(store, tmp_path / "t", "bfs", MEMORY)
    (tmp_path / "order.npy").write_text("no array")
    with GraphStore(tmp_path / "s") as store, pytest.raises(StoreError, match=r"order\.npy"):
        reorder(store, tmp_path / "t", tmp_path / "order.npy", MEMORY)
    assert sorted(os.listdir(tmp_path)) == ["order.npy", "s"]


@pytest.mark.parametrize("name", ["indptr", "indices", "features", "labels", "train", "edge_ids"])
def test_a_damaged_store_is_not_copied(tmp_path: Path, name: str) -> None:
    make_random_store(tmp_path / "s", 2000, edge_ids=True).close()
    with GraphStore(tmp_path / "s") as store:
        path = store.file(name)
    with path.open("r+b") as file:
        file.seek(-3, os.SEEK_END)
        file.write(b"\x05")
    with GraphStore(tmp_path / "s") as store, pytest.raises(CorruptError):
        reorder(store, tmp_path / "t", "bfs", MEMORY)
    assert os.listdir(tmp_path) == ["s"]


@pytest.mark.parametrize("name", ["indices", "train"])
def test_what_was_written_wrong_is_refused(tmp_path: Path, name: str) -> None:
    def change(values: NDArray[Any]) -> None:
        values[17] = 2000

    make_random_store(tmp_path / "s", 2000).close()
    rewrite_array(tmp_path / "s", name, change)
    np.save(tmp_path / "order.npy", np.arange(2000))
    for order in (tmp_path / "order.npy", "bfs"):
        with GraphStore(tmp_path / "s") as store, pytest.raises(CorruptError, match="17 "):
            reorder(store, tmp_path / "t", order, MEMORY)
    assert sorted(os.listdir(tmp_path)) == ["order.npy", "s"]


def test_killed_at_any_instant_it_leaves_no_store_or_a_whole_one(tmp_path: Path) -> None:
    rng = random.Random(0)
    make_random_store(tmp_path / "s", 20_000, 400_000, dim=1000).close()
    command = [*OUTCROP, "reorder", str(tmp_path / "s"), str(tmp_path / "t"), "--order", "bfs",
               "--memory", "35MB"]  # fmt: skip
    start = time.monotonic()
    subprocess.run(command, check=True, capture_output=True)
    whole = time.monotonic() - start
    reference = files_of(tmp_path / "t")
    for _ in range(60 if SOAK else 6):
        shutil.rmtree(tmp_path / "t", ignore_errors=True)
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        time.sleep(rng.uniform(0.3, 1.1) * whole)
        process.send_signal(signal.SIGKILL)
        process.wait()
        if (tmp_path / "t").exists():
            assert outcrop.verify(tmp_path / "t").ok
    shutil.rmtree(tmp_path / "t", ignore_errors=True)
    subprocess.run(command, check=True, capture_output=True)  # over what the killed ones left
    assert files_of(tmp_path / "t") == reference
    assert sorted(os.listdir(tmp_path)) == ["s", "t"]


def test_info_says_the_order(tmp_path: Path) -> None:
    make_random_store(tmp_path / "s").close()
    for source, made, order in (("s", "t", "degree"), ("t", "u", "bfs")):
        command = ["reorder", str(tmp_path / source), str(tmp_path / made), "--order", order]
        assert CliRunner().invoke(app, command).exit_code == 0
        assert (
            f"order     {order}" in CliRunner().invoke(app, ["info", str(tmp_path / made)]).output
        )
    assert "as imported" in CliRunner().invoke(app, ["info", str(tmp_path / "s")]).output
