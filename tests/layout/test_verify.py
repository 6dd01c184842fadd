"""Verify: a flipped byte, a cut, a missing file, a wrong value: each is found and named."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import outcrop
from outcrop.disk import Disk
from outcrop.errors import CorruptError, StoreError
from outcrop.ingest.synthetic import SynthOptions, synthesise
from outcrop.store.build import StoreBuilder
from outcrop.store.format import RowEncoding


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("store") / "good"
    synthesise(path, SynthOptions(nodes=500, edges=4000, dim=9))
    return path


def files(store: Path) -> list[Path]:
    return sorted(path for path in store.rglob("*") if path.is_file() and path.name != ".lock")


@given(data=st.data())
def test_any_flipped_bit_of_any_file_is_found_and_named(
    tmp_path_factory: pytest.TempPathFactory, good: Path, data: st.DataObject
) -> None:
    store = tmp_path_factory.mktemp("flip") / "s"
    shutil.copytree(good, store)
    victim = data.draw(st.sampled_from(files(store)))
    content = bytearray(victim.read_bytes())
    at = data.draw(st.integers(0, len(content) - 1))
    content[at] ^= 1 << data.draw(st.integers(0, 7))
    victim.write_bytes(content)
    try:
        report = outcrop.verify(store)
    except StoreError:  # the manifest no longer says that this is a store
        assert victim.name == "manifest.json"
        return
    assert not report.ok
    assert {problem.file for problem in report.problems} == {str(victim)}


def test_a_whole_store_has_no_problems(good: Path) -> None:
    for quick in (True, False):
        report = outcrop.verify(good, quick=quick)
        assert report.ok and report.files == 7
        assert (report.bytes > 0) == (not quick)


def test_the_damaged_piece_is_named(good: Path, tmp_path: Path) -> None:
    shutil.copytree(good, tmp_path / "s")
    path = tmp_path / "s/features.npy"
    content = bytearray(path.read_bytes())
    content[5000] ^= 1
    path.write_bytes(content)
    [problem] = outcrop.verify(tmp_path / "s").problems
    assert str(problem) == (
        f"{path}: piece 0 (bytes 0 to {len(content) - 1}): differs from its checksum"
    )
    assert outcrop.verify(tmp_path / "s", quick=True).ok


def test_cut_and_missing_files_are_found_when_opening_and_by_quick(
    good: Path, tmp_path: Path
) -> None:
    shutil.copytree(good, tmp_path / "s")
    path = tmp_path / "s/topology/indices.npy"
    path.write_bytes(path.read_bytes()[:-1])
    assert "but the manifest says" in str(outcrop.verify(tmp_path / "s", quick=True).problems[0])
    with pytest.raises(CorruptError, match=r"indices\.npy: 20095 B, but the manifest says 20096 B"):
        outcrop.open(tmp_path / "s")
    path.unlink()
    assert "No such file" in str(outcrop.verify(tmp_path / "s").problems[0])
    with pytest.raises(CorruptError, match="No such file"):
        outcrop.open(tmp_path / "s")


@pytest.mark.parametrize("where", ["nothing", "folder", "file"])
def test_what_is_no_store_is_called_so(tmp_path: Path, where: str) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").touch()
    for action in (outcrop.open, outcrop.verify):
        with pytest.raises(StoreError, match="not an Outcrop store"):
            action(tmp_path / where)


WRONG = [
    ({"indptr": [0, 2, 1, 3]}, "indptr.npy: descends"),
    ({"indptr": [1, 2, 2, 3]}, "indptr.npy: begins with 1"),
    ({"indptr": [0, 1, 2, 2]}, "indptr.npy: ends with 2, but there are 3 edges"),
    ({"indices": [0, 3, 1]}, "indices.npy: entry 1 is 3, not 0 to 2"),
    ({"indices": [0, -1, 1]}, "indices.npy: entry 1 is -1"),
    ({"labels": [0, 2, -1]}, "labels.npy: node 1 has label 2, but there are 2 classes"),
    ({"train": [0, 3]}, "train.npy: node 3 does not exist"),
    ({"train": [0], "val": [1, 0]}, "val.npy: node 0 is in a split twice"),
]


@pytest.mark.parametrize(("changes", "message"), WRONG)
def test_wrong_values_with_right_checksums_are_found(
    tmp_path: Path, changes: dict[str, list[int]], message: str
) -> None:
    values: dict[str, list[int]] = {
        "indptr": [0, 1, 2, 3],
        "indices": [0, 1, 2],
        "labels": [0, 1, 0],
        **changes,
    }
    with Disk() as disk, StoreBuilder(tmp_path / "s", disk) as builder:
        for name, array in values.items():
            dtype = np.int32 if name == "indices" else np.int64
            builder.write(name, [np.array(array, dtype)], dtype)
        builder.write("features", [np.zeros((3, 2), np.float32)], np.float32, (2,))
        builder.commit(num_nodes=3, num_edges=3, num_classes=2, features=RowEncoding("float32", 2),
                       source="test", options={})  # fmt: skip
    [problem] = outcrop.verify(tmp_path / "s").problems
    assert message in str(problem)
