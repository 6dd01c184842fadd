"""Imports: the same store as the slow way gives, whatever the options and the memory."""

from __future__ import annotations

import gzip
import os
import random
import shutil
import signal
import subprocess
import time
import zipfile
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import outcrop
from outcrop.errors import BudgetError, IngestError, LockedError, OptionError, StoreError
from outcrop.ingest.build import LEAST_MEMORY_BYTES, import_graph, ingest_disk
from outcrop.ingest.compact import Compaction
from outcrop.ingest.edgelist import edgelist_source
from outcrop.ingest.files import Files, file_attributes
from outcrop.ingest.npz import npz_source
from outcrop.ingest.random_attributes import random_attributes
from outcrop.ingest.source import Attributes, IngestOptions
from outcrop.store.build import StoreBuilder
from outcrop.store.edges import Block, RecordLayout
from outcrop.store.format import npy_header
from outcrop.store.store import GraphStore
from outcrop.store.workdir import WorkDirectory
from tests.cage import OUTCROP, run_caged
from tests.conftest import SOAK
from tests.graphs import (
    Graph,
    assert_topology,
    expected_csc,
    files_of,
    graphs,
    random_graph,
    save_npz,
)

flags = st.fixed_dictionaries(
    {"undirected": st.booleans(), "drop_loops": st.booleans(), "merge": st.booleans()}
)


def options_of(flags: dict[str, bool], **more: Any) -> IngestOptions:
    return IngestOptions(
        undirected=flags["undirected"],
        drop_self_loops=flags["drop_loops"],
        merge_multi_edges=flags["merge"],
        **more,
    )


@given(graph=graphs(), flags=flags, edge_ids=st.booleans(), fortran=st.booleans())
def test_npz_topology_is_what_the_format_says(
    tmp_path_factory: pytest.TempPathFactory,
    graph: Graph,
    flags: dict[str, bool],
    edge_ids: bool,
    fortran: bool,
) -> None:
    folder = tmp_path_factory.mktemp("npz")
    if fortran:
        graph = Graph(graph.num_nodes, np.asfortranarray(graph.edges))
    save_npz(folder / "g.npz", graph)
    import_graph(npz_source(folder / "g.npz"), folder / "s", options_of(flags, edge_ids=edge_ids))
    with outcrop.open(folder / "s") as store:
        assert store.num_nodes == graph.num_nodes
        assert_topology(store, expected_csc(graph, **flags), edge_ids=edge_ids)
    assert outcrop.verify(folder / "s").ok


@given(
    graph=graphs(), flags=flags, spread=st.sampled_from([1, 1000, 1 << 40]), joined=st.booleans()
)
def test_sparse_ids_are_compacted_and_kept(
    tmp_path_factory: pytest.TempPathFactory,
    graph: Graph,
    flags: dict[str, bool],
    spread: int,
    joined: bool,
) -> None:
    folder = tmp_path_factory.mktemp("edgelist")
    if graph.edges.shape[1] == 0:
        return
    lines = "".join(f"{s * spread + 7}\t{t * spread + 7}\n" for s, t in graph.edges.T.tolist())
    (folder / "g.txt").write_text("# a comment\n" + lines)
    with pytest.MonkeyPatch.context() as patch:
        if joined:  # no bitmap is large enough: take the way by sorting
            patch.setattr(Compaction, "add", lambda self, _: setattr(self, "_bitmap", None))
        import_graph(edgelist_source(folder / "g.txt"), folder / "s", options_of(flags))
    present, compact = np.unique(graph.edges, return_inverse=True)
    expected = expected_csc(Graph(len(present), compact.reshape(2, -1)), **flags)
    with outcrop.open(folder / "s") as store:
        assert np.array_equal(store.array("node_ids"), present * spread + 7)
        assert_topology(store, expected)
    assert not (folder / "s/scratch").exists()


@pytest.mark.parametrize("memory", [LEAST_MEMORY_BYTES, 64_000_000, 2_000_000_000])
@pytest.mark.parametrize("spread", [1, 1 << 36])
def test_a_store_is_the_same_byte_for_byte_for_any_memory(
    tmp_path: Path, memory: int, spread: int
) -> None:
    graph = random_graph(50_000, 300_000)
    text = "\n".join(f"{s * spread} {t * spread}" for s, t in graph.edges.T.tolist())
    (tmp_path / "g.txt").write_text(text)
    options = IngestOptions(memory=memory, undirected=True)
    import_graph(edgelist_source(tmp_path / "g.txt"), tmp_path / "s", options)
    with outcrop.open(tmp_path / "s") as store:
        assert store.num_edges > 590_000
        assert_topology(store, expected_csc(graph, undirected=True))


@pytest.mark.parametrize("moved", [False, True])
def test_edges_in_the_order_of_the_store_need_no_ids(tmp_path: Path, moved: bool) -> None:
    graph = random_graph(1000, 300_000)
    edges = graph.edges[:, np.argsort(graph.edges[1], kind="stable")]
    if moved:  # the last two of all: what was written of the others before is nothing
        edges[1, -2:] = 999, 998
    graph = Graph(1000, edges)
    import_graph(npz_source(save_npz(tmp_path / "g.npz", graph)), tmp_path / "s")
    with outcrop.open(tmp_path / "s") as store:
        assert_topology(store, expected_csc(graph))
        assert store.has("edge_ids") == moved == (tmp_path / "s/topology/edge_ids.npy").exists()
    assert outcrop.verify(tmp_path / "s").ok


def test_edge_ids_of_many_edges_have_64_bits(tmp_path: Path) -> None:
    """Of so many that most were merged or dropped: the store's own are few."""
    layout = RecordLayout(wide=False, numbered=True)
    records = np.array([(0, 1, 2**31), (1, 0, 0)], layout.dtype).view(np.uint8)
    for source_edges, dtype in ((2**31, np.int32), (2**31 + 1, np.int64)):
        records.view(layout.dtype)["number"][0] = source_edges - 1
        path = tmp_path / str(source_edges)
        with ingest_disk() as disk, StoreBuilder(path, disk) as builder:
            builder.write_topology([Block(records, 2)], 2, layout, source_edges=source_edges)
            builder.commit(
                num_nodes=2, num_edges=2, num_classes=0, features=None, source="", options={}
            )
        with outcrop.open(path) as store:
            assert store.array("edge_ids").tolist() == [source_edges - 1, 0]
            assert store.array("edge_ids").dtype == dtype


def test_attributes_of_every_kind_arrive(tmp_path: Path) -> None:
    graph = random_graph(500, 3000)
    rng = np.random.default_rng(0)
    x = rng.standard_normal((500, 33)).astype(np.float32)
    y = rng.integers(-1, 7, 500)
    parts = np.array_split(rng.permutation(np.flatnonzero(y >= 0)), 3)
    masks: dict[str, Any] = {f"{name}_mask": np.isin(np.arange(500), part)
             for name, part in zip(("train", "val", "test"), parts, strict=True)}  # fmt: skip
    save_npz(tmp_path / "g.npz", graph, x=x, y=y, **masks)
    for dtype in (None, "float16", "bfloat16", "int8"):
        path = tmp_path / f"s-{dtype}"
        import_graph(npz_source(tmp_path / "g.npz"), path, IngestOptions(feature_dtype=dtype))
        with outcrop.open(path) as store:
            assert np.array_equal(store.labels, y) and store.num_classes == 7
            for name, part in zip(("train", "val", "test"), parts, strict=True):
                assert np.array_equal(store.split(name), np.sort(part))
            ids = rng.integers(0, 500, 100)
            assert store.features.encoding.name == dtype or dtype is None
            tolerance = {None: 0, "float16": 2e-3, "bfloat16": 2e-2, "int8": 2e-2}[dtype]
            assert np.abs(store.features.gather(ids) - x[ids]).max() <= tolerance
            rows = np.load(store.file("features"), mmap_mode="r")
            assert len(rows) == 500
        assert outcrop.verify(path).ok


@pytest.mark.parametrize("name", ["cora", "coauthor_cs", "wordnet31", "cnr_2000"])
def test_real_graphs_arrive_whole(tmp_path: Path, shared_data: Path, name: str) -> None:
    import_graph(npz_source(shared_data / f"{name}.npz"), tmp_path / "s")
    data = dict(np.load(shared_data / f"{name}.npz"))
    with outcrop.open(tmp_path / "s") as store:
        order = np.argsort(data["edge_index"][1], kind="stable")
        assert np.array_equal(store.indices, data["edge_index"][0][order])
        if "y" in data:
            assert np.array_equal(store.labels, data["y"])
            assert np.array_equal(store.split("train"), np.flatnonzero(data["train_mask"]))
        ids = np.random.default_rng(0).integers(0, store.num_nodes, 300)
        if "x" in data:
            assert np.array_equal(store.features.gather(ids), data["x"][ids].astype(np.float32))
        elif "x_data" in data:
            dense = np.zeros((len(ids), data["x_shape"][1]), np.float32)
            for row, node in enumerate(ids):
                span = slice(*data["x_indptr"][node : node + 2])
                dense[row, data["x_indices"][span]] = data["x_data"][span]
            assert np.array_equal(store.features.gather(ids), dense)


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_text_as_people_write_it(tmp_path: Path, pack: Any) -> None:
    text = b"src,dst,weight\r\n% other comment\r\n\r\n0,1,0.5\r\n  1 ; 2\r\n# c\n2\t0\textra\n0 0"
    (tmp_path / "g").write_bytes(pack(text))
    source = edgelist_source(tmp_path / "g", num_nodes=4, skip_lines=1)
    import_graph(source, tmp_path / "s")
    with outcrop.open(tmp_path / "s") as store:
        graph = Graph(4, np.array([[0, 1, 2, 0], [1, 2, 0, 0]]))
        assert_topology(store, expected_csc(graph))


def _given(attributes: Attributes, _: int) -> Attributes:
    return attributes


def test_files_of_attributes_copied_or_adopted(tmp_path: Path) -> None:
    (tmp_path / "g.txt").write_text("0 1\n1 2\n")
    x = np.random.default_rng(0).standard_normal((5, 9)).astype(np.float16)
    np.save(tmp_path / "x.npy", x)
    np.save(tmp_path / "y.npy", np.array([0, 1, np.nan, 1, 0]))
    np.save(tmp_path / "train.npy", np.array([3, 0]))
    for adopt in (False, True):
        files = Files(
            tmp_path / "x.npy", adopt, tmp_path / "y.npy", {"train": tmp_path / "train.npy"}
        )
        attributes = file_attributes(files, nan_is_missing=True)
        source = edgelist_source(
            tmp_path / "g.txt", num_nodes=5, attributes=partial(_given, attributes)
        )
        import_graph(source, tmp_path / f"s{adopt}")
        with outcrop.open(tmp_path / f"s{adopt}") as store:
            assert np.array_equal(store.features.gather([4, 0]), x[[4, 0]].astype(np.float32))
            assert store.labels.tolist() == [0, 1, -1, 1, 0]
            assert store.split("train").tolist() == [3, 0]
            assert (store.path / "features.npy").exists() != adopt
    os.utime(tmp_path / "x.npy", (1, 1))
    outcrop.open(tmp_path / "sFalse")
    with pytest.raises(StoreError, match="changed since"):
        outcrop.open(tmp_path / "sTrue")


def npy(path: Path, array: Any) -> Path:
    np.save(path, array)
    return path


BAD_FILES = [
    ("features", np.asfortranarray(np.ones((5, 2), np.float32)), "in C order"),
    ("features", np.ones((4, 2), np.float32), "features: 4 rows for 5 nodes"),
    ("features", np.ones((5, 0), np.float32), "features: rows without values"),
    ("features", np.ones((5, 2), int), "needs floats"),
    ("labels", np.zeros(4, int), "labels: 4 labels for 5 nodes"),
    ("labels", np.array(["a"] * 5), "labels: must be numbers"),
    ("train", np.zeros(2), "needs node ids"),
]


@pytest.mark.parametrize("adopt", [False, True])
@pytest.mark.parametrize(("role", "array", "match"), BAD_FILES)
def test_bad_files_of_attributes_are_refused_before_edges_are_read(
    tmp_path: Path, role: str, array: Any, match: str, adopt: bool
) -> None:
    (tmp_path / "g.txt").write_text("not an edge")
    path = npy(tmp_path / "a.npy", array)
    files = Files(
        path if role == "features" else None,
        adopt,
        path if role == "labels" else None,
        {"train": path if role == "train" else None},
    )
    source = edgelist_source(
        tmp_path / "g.txt", num_nodes=5, attributes=lambda _: file_attributes(files)
    )
    with pytest.raises(IngestError, match=match):
        import_graph(source, tmp_path / "s")


def test_a_cut_off_file_of_features_is_refused(tmp_path: Path) -> None:
    path = npy(tmp_path / "x.npy", np.ones((5, 9), np.float32))
    path.write_bytes(path.read_bytes()[:-7])
    for adopt in (False, True):
        with pytest.raises(IngestError, match=r"x\.npy: byte 301: the file is cut off"):
            file_attributes(Files(path, adopt))


def test_adopted_features_keep_their_dtype(tmp_path: Path) -> None:
    (tmp_path / "g.txt").write_text("not an edge")
    for dtype, error, match in (
        ("<f4", OptionError, r"x\.npy: features that are adopted stay float32 .got .* int8"),
        ("<f8", IngestError, "to be adopted, must be float32 or float16 .got float64"),
        (">f4", IngestError, "to be adopted, must be float32 or float16 .got >f4"),
    ):
        files = Files(npy(tmp_path / "x.npy", np.ones((5, 2), dtype)), adopt_features=True)
        with pytest.raises(error, match=match):
            attributes = partial(_given, file_attributes(files))
            source = edgelist_source(tmp_path / "g.txt", num_nodes=5, attributes=attributes)
            import_graph(source, tmp_path / "s", IngestOptions(feature_dtype="int8"))


def test_an_unknown_feature_dtype_is_refused() -> None:
    with pytest.raises(OptionError, match=r"feature_dtype must be one of .*got 'float8'"):
        IngestOptions(feature_dtype="float8")


def test_random_attributes_are_learnable_and_splits_disjoint(tmp_path: Path) -> None:
    graph = random_graph(3000, 9000)
    (tmp_path / "g.txt").write_text("".join(f"{s} {t}\n" for s, t in graph.edges.T.tolist()))

    def attributes(count: int) -> Any:
        return random_attributes(count, dim=64, classes=5, train_fraction=0.1, seed=3)

    import_graph(edgelist_source(tmp_path / "g.txt", attributes=attributes), tmp_path / "s")
    with outcrop.open(tmp_path / "s") as store:
        splits = [store.split(name) for name in ("train", "val", "test")]
        assert [len(split) for split in splits] == [round(store.num_nodes * 0.1)] * 3
        assert len(np.unique(np.concatenate(splits))) == sum(len(split) for split in splits)
        rows = store.features.gather(np.arange(store.num_nodes))
        labels = np.asarray(store.labels)
        centroids = np.stack([rows[labels == c].mean(axis=0) for c in range(5)])
        guess = np.argmax(rows @ centroids.T, axis=1)
        assert 0.3 < (guess == labels).mean() < 0.95  # chance is 0.2


BAD_TEXT = [
    (b"0 1\n-4 2\n", "line 2: a node id is negative .got '-4 2'"),
    (b"0 1\n# c\n5\n", "line 3: needs two node ids .got '5'"),
    (b"0 1\n1 x\n", "line 2: a node id is not a whole number"),
    (b"0 1\n1 2.5\n", "line 2: a node id is not a whole number"),
    (b"0 99999999999999999999\n", r"line 1: a node id is 2\^63 or more"),
    (b"0 1\n\n#\n0 9\n", "line 4: node id 9, but there are only 5 nodes"),
    (gzip.compress(b"0 1\n" * 1000)[:-20], "cut off"),
    (b"0 1\r1 2\r2 3\r", "line 1: a carriage return inside a line"),
    (b"0 1\n# c\r0 1\r", "line 2: a carriage return inside a line"),
    (b"0 1\n1 2 0.5\r2 3 0.5\n", "line 2: a carriage return inside a line"),
    (b"0 1\n,1,2\n", "line 2: an empty column; .* .got ',1,2'"),
    (b"0 1\n1,,2\n", "line 2: an empty column"),
    (b"0 1\n1\x00 2\n", r"line 2: no text .it begins with 31 00 20 32\)"),
    (b"0 1\n\x1b[2J\n", "line 2: no text .it begins with 1b 5b 32 4a"),
    (b"PK\x03\x04" + bytes(range(256)), "line 1: a zip archive; an .npz file is imported by"),
    (b"\x93NUMPY\x01\x00", "line 1: a .npy file, not an edge list"),
    (b"BZh9" + bytes(range(200)), "line 1: packed by bzip2; unpack it"),
    ("0 1\n".encode("utf-16"), "line 1: text in UTF-16; write it in UTF-8"),
    (b"src,dst\n0,1\n", r"line 1: .* .got 'src,dst'\); if it is a header, .*--skip-lines 1 "),
    (b"# c\n\nsource\ttarget\n0 1", "line 3: .* if it is a header, pass over it: --skip-lines 3"),
    (b'"a";"b"\n0;1', "line 1: .*; if it is a header, pass over it"),
    (b"0 1\n0 " + b"1" * (2 << 20) + b"\n", "line 2: has 1048576 bytes or more"),
]


def test_a_bad_line_after_the_first_edge_is_no_header(tmp_path: Path) -> None:
    (tmp_path / "g.txt").write_text("0 1\nsrc dst\n")
    with pytest.raises(IngestError, match=r"line 2: .*\(got 'src dst'\)$"):
        import_graph(edgelist_source(tmp_path / "g.txt"), tmp_path / "s")


@pytest.mark.parametrize(("content", "match"), BAD_TEXT)
def test_bad_text_is_refused_by_line_and_leaves_nothing(
    tmp_path: Path, content: bytes, match: str
) -> None:
    (tmp_path / "g.txt").write_bytes(content)
    with pytest.raises(IngestError, match=match) as caught:
        import_graph(edgelist_source(tmp_path / "g.txt", num_nodes=5), tmp_path / "s")
    assert str(caught.value).startswith(str(tmp_path / "g.txt"))
    assert str(caught.value).isprintable() and len(caught.value.what) < 200
    assert os.listdir(tmp_path) == ["g.txt"]


@pytest.mark.parametrize(
    ("content", "match"),
    [
        (gzip.compress(b"source target")[:-9], "cut off"),
        (b"#" * (2 << 20), "line 1: has 1048576 bytes or more"),
    ],
)
def test_bad_text_is_refused_in_skipped_lines_too(
    tmp_path: Path, content: bytes, match: str
) -> None:
    (tmp_path / "g.txt").write_bytes(content)
    with pytest.raises(IngestError, match=match):
        import_graph(edgelist_source(tmp_path / "g.txt", skip_lines=1), tmp_path / "s")


def bad_npz(**changes: Any) -> dict[str, Any]:
    arrays: dict[str, Any] = {
        "edge_index": np.array([[0, 1, 2], [1, 2, 3]]),
        "num_nodes": 4,
        "x": np.ones((4, 2), np.float32),
        "y": np.array([0, 1, -1, 1]),
        "train_mask": np.array([True, False, False, False]),
        "val_mask": np.array([False, True, False, False]),
    }
    arrays.update(changes)
    return {name: value for name, value in arrays.items() if value is not None}


def csr(**changes: Any) -> dict[str, Any]:
    arrays: dict[str, Any] = {
        "x": None,
        "x_data": np.ones(3, np.float32),
        "x_indices": np.array([0, 1, 0]),
        "x_indptr": np.array([0, 2, 2, 3, 3]),
        "x_shape": np.array([4, 2]),
    }
    return {**arrays, **changes}


BAD_NPZ = [
    ({"edge_index": None}, "no edge_index"),
    ({"edge_index": np.zeros((3, 2), int)}, r"must be integers of shape \[2, E\]"),
    ({"edge_index": np.array([[0, 1], [1, -2]])}, "edge 1: node id -2 is negative"),
    ({"edge_index": np.array([[0, 4], [1, 1]])}, "edge 1: node id 4, but there are only 4"),
    ({"x": np.ones((5, 2))}, "features: 5 rows for 4 nodes"),
    ({"x": np.ones((3, 2))}, "features: 3 rows for 4 nodes"),
    ({"x": np.ones(4)}, r"x: must be \[N, F\]"),
    ({"x": np.ones((4, 0))}, "features: rows without values"),
    ({"y": np.array([0, 1])}, "labels: 2 labels for 4 nodes"),
    ({"y": np.zeros(9, int)}, "labels: 9 labels for 4 nodes"),
    ({"y": np.array(["a", "b", "c", "d"])}, "labels: must be numbers .got <U1"),
    ({"y": np.array([0.0, 1, np.nan, 1])}, "label of node 2: NaN"),
    ({"y": np.array([0.0, 1.5, 0, 1])}, "label of node 1: 1.5 is not a whole number"),
    ({"y": np.array([0, 1, -7, 1])}, "label of node 2: -7 is negative"),
    ({"y": np.array([-1, 1, 0, 1])}, "split train: node 0 has no label"),
    ({"val_mask": np.array([True, True, False, False])}, "split val: node 0, for the second"),
    ({"val_mask": np.zeros(4, int)}, r"val_mask: must be bool \[4\] .got int64 \[4\]"),
    ({"val_mask": np.zeros(6, bool)}, r"val_mask: must be bool \[4\] .got bool \[6\]"),
    ({"val_mask": np.zeros(3, bool)}, r"val_mask: must be bool \[4\] .got bool \[3\]"),
    ({"num_nodes": -1}, r"num_nodes: must be 1 to 2\^63 - 1 .got -1"),
    ({"num_nodes": 0}, "no nodes"),
    ({"num_nodes": np.array([], int)}, r"num_nodes: needs integers, 1 in all .got int64 \[0\]"),
    ({"num_nodes": 4.5}, r"num_nodes: needs integers, 1 in all .got float64 \[\]"),
    ({"num_nodes": None, "x": np.array(1.0), "y": None}, "needs num_nodes, x or y"),
    (
        {"x": None, "x_data": np.ones(3), "x_shape": np.array([4])},
        "x_shape: needs integers, 2 in all",
    ),
    ({"num_nodes": None, "x": None, "y": None}, "needs num_nodes, x or y"),
    ({"y": np.array([0.0, np.inf, 0, 1])}, "label of node 1: inf is not a whole number"),
    ({"x": np.array([["a", "b"]] * 4)}, r"x: must be \[N, F\] in C order .got <U1"),
    (csr(x_indptr=None), "no x_indptr; CSR is x_data, x_indices, x_indptr and x_shape"),
    (csr(x_indices=None), "no x_indices; CSR is"),
    (csr(x_data=np.array(["a", "b", "c"])), r"x_data: needs numbers .got <U1 \[3\]"),
    (csr(x_indices=np.ones(3)), r"x_indices: needs integers, 3 in all .got float64 \[3\]"),
    (csr(x_indices=np.array([0, 1])), r"x_indices: needs integers, 3 in all .got int64 \[2\]"),
    (csr(x_indptr=np.array([0, 3])), r"x_indptr: needs integers, 5 in all .got int64 \[2\]"),
    (csr(x_indptr=np.array([0, 2, 1, 3, 3])), "x_indptr: descends"),
    (csr(x_indptr=np.array([0, 2, 1, 3, 3], np.uint64)), "x_indptr: descends"),
    (csr(x_indptr=np.array([0, 3, 3, 3, 3])), "x_indptr: row 0 has more than 2 values"),
    (csr(x_indices=np.array([0, 2, 1])), "x_indices: a column is not below 2"),
    (csr(x_shape=np.array([4, 1 << 40])), "features: rows of 1099511627776 values; at most"),
    (csr(x_shape=np.array([1 << 40, 2])), "x_indptr: needs integers, 1099511627777 in all"),
]


@pytest.mark.parametrize(("changes", "match"), BAD_NPZ)
def test_bad_npz_is_refused_by_member_and_leaves_nothing(
    tmp_path: Path, changes: dict[str, Any], match: str
) -> None:
    np.savez_compressed(tmp_path / "g.npz", **bad_npz(**changes))
    with pytest.raises(IngestError, match=match):
        import_graph(npz_source(tmp_path / "g.npz"), tmp_path / "s")
    assert os.listdir(tmp_path) == ["g.npz"]


def test_a_header_that_claims_more_than_its_member_has_is_refused_unread(tmp_path: Path) -> None:
    np.savez(tmp_path / "g.npz", **bad_npz(x=None))
    with zipfile.ZipFile(tmp_path / "g.npz", "a") as archive:
        archive.writestr("x.npy", npy_header(np.dtype("<f4"), (4, 1 << 50)))
    with pytest.raises(
        IngestError, match=r"x, byte 4096: the array is cut off here: float32 \[4, "
    ):
        import_graph(npz_source(tmp_path / "g.npz"), tmp_path / "s")


def test_an_encrypted_npz_is_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "g.npz", **bad_npz())
    data = bytearray((tmp_path / "g.npz").read_bytes())
    for magic, flags in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        at = -1
        while (at := data.find(magic, at + 1)) >= 0:
            data[at + flags] |= 1
    (tmp_path / "g.npz").write_bytes(data)
    with pytest.raises(IngestError, match=r"damaged or cut off: .* is encrypted"):
        npz_source(tmp_path / "g.npz")


def test_nan_may_mean_no_label_but_never_inside_a_split(tmp_path: Path) -> None:
    np.savez(tmp_path / "g.npz", **bad_npz(y=np.array([0.0, 1, np.nan, 1])))
    import_graph(npz_source(tmp_path / "g.npz", nan_is_missing=True), tmp_path / "s")
    assert outcrop.open(tmp_path / "s").labels.tolist() == [0, 1, -1, 1]
    np.savez(tmp_path / "g.npz", **bad_npz(y=np.array([np.nan, 1, 0, 1])))
    with pytest.raises(IngestError, match="split train: node 0 has no label"):
        import_graph(npz_source(tmp_path / "g.npz", nan_is_missing=True), tmp_path / "t")


@pytest.mark.parametrize("compressed", [True, False])
def test_a_cut_off_or_damaged_npz_is_refused(tmp_path: Path, compressed: bool) -> None:
    rng = np.random.default_rng(0)
    save_npz(tmp_path / "g.npz", random_graph(1000, 20_000), compressed=compressed,
             x=rng.standard_normal((1000, 8)).astype(np.float32))  # fmt: skip
    data = (tmp_path / "g.npz").read_bytes()
    for bad in (data[: len(data) // 2], b"", data[:5000] + bytes(3000) + data[8000:]):
        (tmp_path / "g.npz").write_bytes(bad)
        with pytest.raises(IngestError, match=r"g\.npz"):
            import_graph(npz_source(tmp_path / "g.npz"), tmp_path / "s")
        assert os.listdir(tmp_path) == ["g.npz"]


def test_damage_that_is_only_passed_over_is_refused(tmp_path: Path) -> None:
    """Targets are read beside sources, so they seek over sources that were not read yet."""
    save_npz(tmp_path / "g.npz", random_graph(1000, 300_000))
    data = (tmp_path / "g.npz").read_bytes()
    at = len(data) * 35 // 100
    (tmp_path / "g.npz").write_bytes(data[:at] + bytes(3000) + data[at + 3000 :])
    with pytest.raises(IngestError, match="edge_index: damaged or cut off"):
        import_graph(npz_source(tmp_path / "g.npz"), tmp_path / "s")


def test_what_is_no_array_in_an_npz_is_refused(tmp_path: Path) -> None:
    header = b"{'fortran_order': False, 'shape': (2, 3), }\n"
    for name, match in (("edge_index.npy", "edge_index: not an array"), ("edge_index", "no edge_")):
        with zipfile.ZipFile(tmp_path / "g.npz", "w") as archive:
            archive.writestr(name, b"\x93NUMPY\x01\x00" + bytes([len(header), 0]) + header)
        with pytest.raises(IngestError, match=match):
            npz_source(tmp_path / "g.npz")


@pytest.mark.parametrize(
    ("dtype", "value"),
    [("int8", np.inf), ("int8", 1e39), ("float16", 1e5), ("bfloat16", 1e39), (None, -1e39)],
)
def test_features_that_do_not_fit_their_dtype_are_refused_by_node(
    tmp_path: Path, dtype: str | None, value: float
) -> None:
    x = np.ones((4, 2))
    x[2, 1] = value
    np.savez(tmp_path / "g.npz", **bad_npz(x=x))
    with pytest.raises(IngestError, match="features of node 2: not finite, or not as"):
        import_graph(npz_source(tmp_path / "g.npz"), tmp_path / "s",
                     IngestOptions(feature_dtype=dtype))  # fmt: skip


def test_an_existing_destination_is_never_touched(tmp_path: Path) -> None:
    save_npz(tmp_path / "g.npz", random_graph(10, 20))
    (tmp_path / "s").mkdir()
    with pytest.raises(StoreError, match="exists already"):
        import_graph(npz_source(tmp_path / "g.npz"), tmp_path / "s")
    assert sorted(os.listdir(tmp_path)) == ["g.npz", "s"]


def test_two_writers_of_one_store_do_not_meet(tmp_path: Path) -> None:
    save_npz(tmp_path / "g.npz", random_graph(10, 20))
    with WorkDirectory(tmp_path / "s"), pytest.raises(LockedError, match="another process"):
        import_graph(npz_source(tmp_path / "g.npz"), tmp_path / "s")
    import_graph(npz_source(tmp_path / "g.npz"), tmp_path / "s")


def test_too_little_memory_names_what_would_do(tmp_path: Path) -> None:
    save_npz(tmp_path / "g.npz", random_graph(10, 20))
    with pytest.raises(BudgetError, match=r"at least 33\.6 MB .got 1\.0 MB"):
        import_graph(npz_source(tmp_path / "g.npz"), tmp_path / "s",
                     IngestOptions(memory=1_000_000))  # fmt: skip


def test_an_import_killed_at_any_instant_leaves_no_store_or_a_whole_one(tmp_path: Path) -> None:
    rng = random.Random(0)
    save_npz(tmp_path / "g.npz", random_graph(20_000, 400_000), x=np.ones((20_000, 64), np.float32))
    command = [*OUTCROP, "import", "npz", str(tmp_path / "g.npz"), str(tmp_path / "s")]
    start = time.monotonic()
    subprocess.run(command, check=True, capture_output=True)
    whole = time.monotonic() - start
    reference = files_of(tmp_path / "s")
    survived = 0
    for _ in range(100 if SOAK else 8):
        subprocess.run(["rm", "-rf", str(tmp_path / "s")], check=True)
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        time.sleep(rng.uniform(0.3, 1.1) * whole)
        process.send_signal(signal.SIGKILL)
        process.wait()
        if (tmp_path / "s").exists():
            assert outcrop.verify(tmp_path / "s").ok
            survived += 1
    subprocess.run(["rm", "-rf", str(tmp_path / "s")], check=True)
    subprocess.run(command, check=True, capture_output=True)  # over what the killed ones left
    assert files_of(tmp_path / "s") == reference
    assert sorted(os.listdir(tmp_path)) == ["g.npz", "s"]


@pytest.mark.parametrize("dtype", ["float32", "int8"])
def test_what_is_known_not_to_fit_the_disk_is_refused_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dtype: str
) -> None:
    save_npz(tmp_path / "g.npz", random_graph(1000, 3000), x=np.ones((1000, 40), np.float32))
    # Edge ids are not known to be needed before edges are sorted.
    options = IngestOptions(feature_dtype=dtype, edge_ids=False)
    import_graph(npz_source(tmp_path / "g.npz"), tmp_path / "s", options)
    made = sum(len(data) for data in files_of(tmp_path / "s").values())
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=made))
    import_graph(npz_source(tmp_path / "g.npz"), tmp_path / "t", options)
    headers = 3 * 4096
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=made - headers - 9))
    with pytest.raises(BudgetError, match="of disk space"):
        import_graph(npz_source(tmp_path / "g.npz"), tmp_path / "u", options)
    assert sorted(os.listdir(tmp_path)) == ["g.npz", "s", "t"]


def test_a_full_disk_is_an_error_and_leaves_nothing(tmp_path: Path) -> None:
    small = tmp_path / "small"
    small.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=12m", "tmpfs", str(small)]
    if subprocess.run(mount, capture_output=True).returncode != 0:
        pytest.skip("cannot mount a small file system")
    try:
        save_npz(tmp_path / "g.npz", random_graph(1000, 3000), x=np.ones((1000, 4000), np.float32))
        with pytest.raises(
            BudgetError, match=r"needs at least 16\.0 MB of disk space .12\.6 MB are"
        ):
            import_graph(npz_source(tmp_path / "g.npz"), small / "s")
        assert os.listdir(small) == []
        (tmp_path / "g.txt").write_text("".join(f"{node} {node}\n" for node in range(1000)))
        attributes = partial(
            random_attributes, dim=4000, classes=2, train_fraction=0.1, seed=0
        )  # whose size shows only when the nodes are counted
        with pytest.raises(OSError, match="No space left"):
            import_graph(edgelist_source(tmp_path / "g.txt", attributes=attributes), small / "s")
        assert os.listdir(small) == []
    finally:
        subprocess.run(["umount", str(small)], check=True)


def test_an_import_keeps_to_its_memory_in_a_cage(tmp_path: Path) -> None:
    """1.5 million edges both ways are 48 MB as records: more than the budget, so it spills."""
    edges = np.random.default_rng(0).integers(0, 1 << 33, (1_500_000, 2))
    text = "\n".join(f"{s} {t}" for s, t in edges.tolist())
    (tmp_path / "g.txt").write_text(text)
    command = [*OUTCROP, "import", "edgelist", str(tmp_path / "g.txt"), str(tmp_path / "s"),
               "--memory", "34MB", "--undirected"]  # fmt: skip
    # 250 MB are promised for Python and its libraries; this much is what they really need.
    done = run_caged(command, 34_000_000 + 60_000_000)
    assert done.returncode == 0, done.output
    with GraphStore(tmp_path / "s") as store:
        assert store.num_edges == 3_000_000 - np.count_nonzero(edges[:, 0] == edges[:, 1])
        assert np.array_equal(store.array("node_ids"), np.unique(edges))
