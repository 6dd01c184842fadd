"""Targets in a store: what its manifest says of them, their memory, and damage that is found."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import outcrop
from outcrop.errors import CorruptError
from outcrop.store.format import Manifest, read_manifest
from outcrop.store.store import GraphStore
from tests.stores import make_random_store, rewrite_array

KINDS = [("classes", None), ("multilabel", 5), ("values", None), ("values", 3)]


def make(path: Path, targets: str, width: int | None) -> GraphStore:
    return make_random_store(path, targets=targets, width=width)


@pytest.mark.parametrize(("targets", "width"), KINDS)
def test_the_manifest_says_what_labels_are(tmp_path: Path, targets: str, width: int | None) -> None:
    with make(tmp_path / "s", targets, width) as store:
        values = json.loads((store.path / "manifest.json").read_bytes())
        assert values.get("targets", "classes") == targets
        assert ("targets" in values) == (targets != "classes")
        made = read_manifest(store.path)
        assert Manifest.from_bytes(made.to_bytes(), "m") == made
        assert made.targets.kind == targets
    if targets == "values":
        assert replace(made, target_kind="classes").content != made.content


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_classes": 0}, "num_classes must be at least 1, as targets are multilabel"),
        ({"num_classes": 6}, r"arrays\.labels\.shape must be \[300, 6\]"),
        ({"target_kind": "values"}, "num_classes must be 0, as targets are values"),
        ({"target_kind": "values", "num_classes": 0}, r"arrays\.labels\.dtype must be <f4"),
        ({"target_kind": "classes"}, r"arrays\.labels\.dtype must be <i8"),
        ({"arrays": None}, r"arrays\.labels is missing"),
        ({"target_kind": "other"}, "targets must be one of classes, multilabel, values"),
    ],
)
def test_a_manifest_that_contradicts_itself_is_refused(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    with make(tmp_path / "s", "multilabel", 5) as store:
        made = store.manifest
    if "arrays" in changes:
        changes = {"arrays": {n: entry for n, entry in made.arrays.items() if n != "labels"}}
    with pytest.raises(CorruptError, match=message):
        Manifest.from_bytes(replace(made, **changes).to_bytes(), "m")


@pytest.mark.parametrize(("targets", "width"), KINDS)
def test_labels_take_what_was_foreseen(tmp_path: Path, targets: str, width: int | None) -> None:
    with make(tmp_path / "s", targets, width) as store:
        labels = store.load_labels()
        assert labels.nbytes == store.facts.label_bytes
        assert np.array_equal(labels, store.labels, equal_nan=targets == "values")
        given = store.targets(np.arange(store.num_nodes))
        assert given.nbytes == store.facts.y_row_bytes * store.num_nodes
        loader = outcrop.NeighborLoader(store, [2], "train", batch_size=10, memory="64MB")
        assert loader.record.charges["labels"] == labels.nbytes


@pytest.mark.parametrize(
    ("targets", "width", "bad", "message"),
    [
        ("multilabel", 5, 2, "node 9 has 2 for label 3, which is neither 0, 1 nor -1"),
        ("multilabel", 5, -2, "node 9 has -2 for label 3"),
        ("values", 5, np.inf, "node 9 has inf for value 3, which is not finite"),
        ("values", None, -np.inf, "node 48 has -inf for value 0, which is not finite"),
    ],
)
def test_a_number_that_is_no_target_is_found(
    tmp_path: Path, targets: str, width: int | None, bad: float, message: str
) -> None:
    make(tmp_path / "s", targets, width).close()

    def change(labels: Any) -> None:
        labels.reshape(-1)[48] = bad

    rewrite_array(tmp_path / "s", "labels", change)
    [problem] = outcrop.verify(tmp_path / "s").problems
    assert f"labels.npy: {message}" in str(problem)
    with (
        outcrop.open(tmp_path / "s") as store,
        pytest.raises(CorruptError, match=rf"labels\.npy: {message}"),
    ):
        outcrop.NeighborLoader(store, [2], "train", memory="64MB")


def test_a_flipped_bit_of_a_label_is_found(tmp_path: Path) -> None:
    make(tmp_path / "s", "multilabel", 5).close()
    with open(tmp_path / "s" / "labels.npy", "r+b") as file:
        file.seek(4096 + 7)
        byte = file.read(1)[0]
        file.seek(4096 + 7)
        file.write(bytes([byte ^ 1]))
    [problem] = outcrop.verify(tmp_path / "s").problems
    assert "labels.npy" in problem.file and "checksum" in problem.what
