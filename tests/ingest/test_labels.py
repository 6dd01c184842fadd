"""Labels of three kinds become a store's targets: told by dtype, shape and values, or said."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch_geometric.data import Data, TensorAttr
from typer.testing import CliRunner

import outcrop
from outcrop.cli.app import app
from outcrop.errors import IngestError, OptionError
from outcrop.ingest import files as files_module
from outcrop.ingest.build import import_graph
from outcrop.ingest.files import Files, file_attributes
from outcrop.ingest.labels import file_labels
from outcrop.ingest.npz import npz_source
from outcrop.ingest.source import NODES_PER_CHUNK
from outcrop.ingest.synthetic import expand
from outcrop.loader.pyg import adapters
from tests.graphs import random_graph
from tests.stores import make_random_store

NAN = float("nan")


def data_with(y: Any, nodes: int = 4) -> Data:
    edges = torch.tensor([[0, 1, 2], [1, 2, 3]])
    return Data(edge_index=edges, num_nodes=nodes, y=torch.as_tensor(y))


def kept(y: Any, path: Path, **options: Any) -> tuple[str, int, tuple[int, ...], str]:
    """Kind, count, shape and dtype of what is made of y."""
    with outcrop.from_pyg(data_with(y), path / "s", **options) as store:
        return store.target_kind, store.num_targets, store.labels.shape, str(store.labels.dtype)


@pytest.mark.parametrize(
    ("y", "expected"),
    [
        ([0, 1, 2, -1], ("classes", 3, (4,), "int64")),
        ([[0], [1], [2], [-1]], ("classes", 3, (4,), "int64")),
        ([True, False, True, False], ("classes", 2, (4,), "int64")),
        ([0.0, 1.0, 2.0, 1.0], ("classes", 3, (4,), "int64")),
        ([[0, 1], [1, -1], [1, 1], [0, 0]], ("multilabel", 2, (4, 2), "int8")),
        ([[True, False]] * 4, ("multilabel", 2, (4, 2), "int8")),
        ([[0.0, 1.0], [NAN, 1.0], [1.0, NAN], [0.0, 0.0]], ("multilabel", 2, (4, 2), "int8")),
        ([0.5, 1.0, NAN, 2.0], ("values", 1, (4,), "float32")),
        ([[0.5], [1.0], [NAN], [2.0]], ("values", 1, (4, 1), "float32")),
        ([[0.5, 1.0], [NAN, 2.0], [3.0, 4.0], [-1.0, 0.0]], ("values", 2, (4, 2), "float32")),
    ],
)
def test_the_kind_of_pyg_labels_is_told_from_them(tmp_path: Path, y: Any, expected: Any) -> None:
    assert kept(y, tmp_path) == expected


@pytest.mark.parametrize(
    ("y", "targets", "expected"),
    [
        ([0, 1, 2, 3], "values", ("values", 1, (4,), "float32")),
        ([[0, 1], [1, 1], [1, 1], [0, 0]], "values", ("values", 2, (4, 2), "float32")),
        ([0, 1, 1, -1], "multilabel", ("multilabel", 1, (4, 1), "int8")),
        ([1.0, 0.0, 1.0, 2.0], "auto", ("classes", 3, (4,), "int64")),
    ],
)
def test_the_kind_may_be_said(tmp_path: Path, y: Any, targets: str, expected: Any) -> None:
    assert kept(y, tmp_path, targets=targets) == expected


@pytest.mark.parametrize(
    ("y", "options", "message"),
    [
        ([[0, 1], [1, 0], [2, 0], [0, 0]], {}, r"label of node 2: 2 is neither 0 nor 1.*values"),
        ([[0.0, 0.5]] * 4, {"targets": "multilabel"}, "label of node 0: 0.5 is neither 0 nor 1"),
        ([[0.0, 1.0]] * 4, {"targets": "classes"}, r"a node has one class \(got 2 per node\)"),
        ([0.5, 1, 0, 1], {"targets": "classes"}, "node 0: 0.5 is not a whole number.*--targets va"),
        ([0.5, float("inf"), 0, 1], {}, "label of node 1: inf is not finite as float32"),
        (
            torch.tensor([[0.5, 0], [0, 1e300], [0, 0], [0, 0]], dtype=torch.float64),
            {},
            r"label of node 1: 1e\+300 is not finite",
        ),
        (torch.zeros(4, 0), {}, "labels: 0 per node; 1 to"),
        (torch.zeros(3, 2), {}, "labels: 3 labels for 4 nodes"),
    ],
)
def test_labels_that_do_not_fit_are_named_by_node(
    tmp_path: Path, y: Any, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(IngestError, match=message):
        outcrop.from_pyg(data_with(y), tmp_path / "s", **options)
    assert not (tmp_path / "s").exists()


def test_a_kind_that_is_none_is_named(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"targets must be auto or one of classes, mul.*'floats'"):
        outcrop.from_pyg(data_with([0, 1, 2, 3]), tmp_path / "s", targets="floats")


@pytest.mark.parametrize("y", [[[NAN, NAN], [0.0, 1.0]], [NAN, 0.5]])
def test_a_node_of_a_split_has_a_target(tmp_path: Path, y: Any) -> None:
    data = Data(edge_index=torch.tensor([[0], [1]]), num_nodes=2, y=torch.tensor(y))
    data.train_mask = torch.tensor([True, True])
    with pytest.raises(IngestError, match="split train: node 0 has no label"):
        outcrop.from_pyg(data, tmp_path / "s")


numbers = st.floats(width=32, allow_infinity=False)


@given(
    nodes=st.integers(4, 40),
    width=st.sampled_from([None, 1, 2, 9]),
    targets=st.sampled_from(["multilabel", "values"]),
    draw=st.data(),
)
def test_whatever_is_stored_comes_back(
    nodes: int, width: int | None, targets: str, draw: st.DataObject
) -> None:
    each = numbers if targets == "values" else st.sampled_from([0.0, 1.0, NAN])
    count = nodes * (width or 1)
    flat = np.array(draw.draw(st.lists(each, min_size=count, max_size=count)), np.float32)
    y = flat.reshape((nodes,) if width is None else (nodes, width))
    expected = y.reshape(nodes, 1) if targets == "multilabel" and width is None else y
    with (
        tempfile.TemporaryDirectory() as folder,
        outcrop.from_pyg(data_with(y, nodes), Path(folder) / "s", targets=targets) as store,
    ):
        assert outcrop.verify(store.path).ok
        assert store.num_targets == (width or 1)
        chosen = np.array([nodes - 1, 0, 0])
        features, _ = adapters(store)
        assert features._get_tensor_size(TensorAttr("node", "y")) == expected.shape
        for found, wanted in (
            (store.y.numpy(), expected),
            (store.targets(chosen), expected[chosen]),
            (features["node", "y", None].numpy(), expected),
        ):
            assert found.dtype == np.float32
            np.testing.assert_array_equal(found, wanted)


# Files


def save(folder: Path, y: NDArray[Any]) -> None:
    edges = random_graph(len(y), 3 * len(y)).edges
    np.savez(folder / "g.npz", edge_index=edges, num_nodes=len(y), y=y)
    np.save(folder / "y.npy", y)
    np.savetxt(folder / "g.txt", edges.T, fmt="%d")


def both(folder: Path, nodes: int, *more: str) -> list[dict[str, Any]]:
    """What `outcrop info` says of the same labels, by npz and by files."""
    for arguments in (
        ["npz", folder / "g.npz", folder / "a"],
        ["edgelist", folder / "g.txt", folder / "b", "--num-nodes", nodes,
         "--labels", folder / "y.npy"],
    ):  # fmt: skip
        done = CliRunner().invoke(app, ["import", *map(str, arguments), *more])
        assert done.exit_code == 0, done.output
    return [
        json.loads(CliRunner().invoke(app, ["info", str(folder / name), "--json"]).stdout)
        for name in "ab"
    ]


@pytest.mark.parametrize(
    ("y", "more", "kind"),
    [
        (np.arange(20) % 3, [], "classes"),
        ((np.arange(40) % 2).reshape(20, 2), [], "multilabel"),
        ((np.arange(60) % 2 == 0).reshape(20, 3), [], "multilabel"),
        ((np.arange(40) % 2.0).reshape(20, 2), ["--targets", "multilabel"], "multilabel"),
        (np.arange(20) / 7, ["--targets", "values"], "values"),
        (np.arange(40).reshape(20, 2) / 7, ["--targets", "values"], "values"),
    ],
)
def test_files_bring_all_kinds(tmp_path: Path, y: NDArray[Any], more: list[str], kind: str) -> None:
    save(tmp_path, y)
    for facts in both(tmp_path, 20, *more):
        assert facts["targets"] == kind
        assert facts["arrays"]["labels"]["shape"] == list(y.shape)
    with outcrop.open(tmp_path / "a") as one, outcrop.open(tmp_path / "b") as other:
        np.testing.assert_array_equal(one.y.numpy(), y.astype(one.y.numpy().dtype))
        assert one.y.equal(other.y)


@pytest.mark.parametrize(
    ("y", "message"),
    [
        (np.zeros((4, 2)), r"floats \[4, 2\] may be labels of 0 and 1, or values: give --targets"),
        (np.array([0, 1.5, 0, 0]), "node 1: 1.5 is not a whole number; .*give --targets values"),
        (np.asfortranarray(np.zeros((4, 2), int)), "must be in C order"),
        (np.zeros((4, 2, 2), int), r"must be \[N\] or \[N, T\] .got \[4, 2, 2\]"),
        (np.array([[0, 1], [0, 3], [0, 0], [0, 0]]), "label of node 1: 3 is neither 0 nor 1"),
    ],
)
def test_files_that_do_not_say_it_are_refused(
    tmp_path: Path, y: NDArray[Any], message: str
) -> None:
    save(tmp_path, y)
    with pytest.raises(IngestError, match=message):
        import_graph(npz_source(tmp_path / "g.npz"), tmp_path / "s")
    attributes = None
    with pytest.raises(IngestError, match=message):
        attributes = file_attributes(Files(labels=tmp_path / "y.npy"))
        source = npz_source(tmp_path / "g.npz")
        import_graph(
            type(source)(source.name, source.edges, 4, lambda _: attributes), tmp_path / "s"
        )


def test_a_row_of_classes_is_one_per_node(tmp_path: Path) -> None:
    save(tmp_path, np.array([0, 1, 2, 1]))
    np.save(tmp_path / "y.npy", np.array([[0, 1, 2, 1]]))
    stream = file_attributes(Files(labels=tmp_path / "y.npy")).labels
    assert stream is not None and (stream.count, stream.width, stream.kind) == (4, None, "classes")


def test_labels_of_a_file_are_read_in_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    np.save(tmp_path / "y.npy", np.zeros((30_000, 40), np.int8))
    asked: list[int] = []
    plain = files_module.npy_items

    def watched(path: Path, count: int) -> Iterator[NDArray[Any]]:
        asked.append(count)
        return plain(path, count)

    monkeypatch.setattr(files_module, "npy_items", watched)
    stream = file_attributes(Files(labels=tmp_path / "y.npy")).labels
    assert stream is not None
    sizes = [chunk.size for chunk in stream.chunks]
    assert asked == [NODES_PER_CHUNK // 40 * 40] and max(sizes) <= NODES_PER_CHUNK
    assert all(size % 40 == 0 for size in sizes) and sum(sizes) == 30_000 * 40


def test_nothing_is_read_to_tell_the_kind() -> None:
    def items(count: int) -> Any:
        raise AssertionError("read")
        yield

    stream = file_labels("f", "y", dtype=np.dtype("i1"), shape=(5, 3), fortran_order=False,
                         items=items, num_nodes=5, nan_is_missing=False, targets=None)  # fmt: skip
    assert (stream.kind, stream.width, stream.stored_row_bytes) == ("multilabel", 3, 3)


# Copies


@pytest.mark.parametrize(("targets", "width"), [("multilabel", 3), ("values", None), ("values", 2)])
def test_an_expansion_copies_targets(tmp_path: Path, targets: str, width: int | None) -> None:
    with make_random_store(tmp_path / "s", targets=targets, width=width) as store:
        expand(store, tmp_path / "big", factor=3)
        with outcrop.open(tmp_path / "big") as big:
            assert (big.target_kind, big.num_targets) == (targets, store.num_targets)
            assert np.array_equal(
                big.labels, np.concatenate([store.labels] * 3), equal_nan=targets == "values"
            )
            assert outcrop.verify(big.path).ok
