"""Degrees of nodes, by a pass over the topology."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from outcrop import _core
from outcrop.errors import CorruptError
from outcrop.store.degrees import out_degrees
from tests.stores import make_random_store


def test_out_degrees(tmp_path: Path) -> None:
    with make_random_store(tmp_path / "s") as store:
        expected = np.bincount(store.indices, minlength=store.num_nodes)
        assert out_degrees(store).tolist() == expected.tolist()


def test_an_edge_from_no_node_is_refused(tmp_path: Path) -> None:
    with make_random_store(tmp_path / "s", nodes=300) as store:
        entry = store.manifest.arrays["indices"]
        with store.file("indices").open("r+b") as file:
            file.seek(entry.data_offset + 7 * entry.dtype.itemsize)
            file.write(np.array(300, entry.dtype).tobytes())
        with pytest.raises(CorruptError, match=r"indices\.npy: edge 7 comes from 300"):
            out_degrees(store)


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_counts_end_at_the_largest_number(dtype: type[np.signedinteger]) -> None:
    counts = np.array([2**32 - 2, 0], np.uint32)
    assert _core.count_ids(np.array([0, 0, 0, 1], dtype), counts) == 4
    assert counts.tolist() == [2**32 - 1, 1]
    assert _core.count_ids(np.array([1, -1, 1], dtype), counts) == 1
