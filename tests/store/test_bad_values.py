"""Arrays that were written wrong, under good checksums: whoever uses them says so."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import outcrop
from outcrop.errors import CorruptError
from outcrop.ingest.synthetic import expand
from outcrop.loader.pyg import GraphAdapter
from outcrop.strategies import STRATEGIES
from outcrop.tools.bench.variants import variant_named
from tests.stores import make_random_store, rewrite_array

Values = NDArray[Any]
NODE = 41


def descend(indptr: Values) -> None:
    indptr[NODE], indptr[NODE + 1] = indptr[NODE + 1] + 1, indptr[NODE]


def go_below_zero(indptr: Values) -> None:
    indptr[NODE] = -5


def go_beyond(indptr: Values) -> None:
    indptr[NODE] = 1 << 62


def end_early(indptr: Values) -> None:
    indptr[-1] -= 1


def begin_late(indptr: Values) -> None:
    indptr[0] = 1


BAD = [descend, go_below_zero, go_beyond, end_early, begin_late]


@pytest.mark.parametrize("strategy", [*STRATEGIES, "ginex:policy=static"])
@pytest.mark.parametrize("change", BAD)
def test_no_strategy_follows_bad_offsets(
    tmp_path: Path, strategy: str, change: Callable[[Values], None]
) -> None:
    make_random_store(tmp_path / "s").close()
    rewrite_array(tmp_path / "s", "indptr", change)
    with pytest.raises(CorruptError, match=r"indptr\.npy.*(node|edge)"):
        loader = outcrop.NeighborLoader(
            tmp_path / "s",
            [-1, -1],
            batch_size=50,
            memory="200MB",
            strategy=variant_named(strategy),
        )
        with closing(loader):
            for _ in loader:
                pass


@pytest.mark.parametrize("change", BAD)
def test_a_graph_with_bad_offsets_is_not_enlarged(
    tmp_path: Path, change: Callable[[Values], None]
) -> None:
    make_random_store(tmp_path / "s").close()
    rewrite_array(tmp_path / "s", "indptr", change)
    with pytest.raises(CorruptError, match=r"indptr\.npy"):
        expand(outcrop.open(tmp_path / "s"), tmp_path / "big", factor=2)


def test_a_graph_with_a_source_that_is_no_node_is_not_enlarged(tmp_path: Path) -> None:
    make_random_store(tmp_path / "s").close()
    rewrite_array(tmp_path / "s", "indices", lambda sources: sources.__setitem__(77, 300))
    with pytest.raises(CorruptError, match=r"indices\.npy: edge 77 comes from 300, which is no no"):
        expand(outcrop.open(tmp_path / "s"), tmp_path / "big", factor=2)


def test_bad_offsets_are_not_handed_to_pyg(tmp_path: Path) -> None:
    make_random_store(tmp_path / "s").close()
    rewrite_array(tmp_path / "s", "indptr", descend)
    adapter = GraphAdapter(outcrop.open(tmp_path / "s"))
    with pytest.raises(CorruptError, match=rf"indptr\.npy: node {NODE}"):
        adapter.get_edge_index(adapter.get_all_edge_attrs()[0])


@pytest.mark.parametrize("bad", [300, -1, 1 << 40])
def test_a_split_with_an_id_that_is_no_node_is_named(tmp_path: Path, bad: int) -> None:
    make_random_store(tmp_path / "s").close()
    rewrite_array(tmp_path / "s", "train", lambda ids: ids.__setitem__(7, bad))
    with pytest.raises(CorruptError, match=rf"train\.npy: entry 7 is {bad}, .* 300 nodes"):
        outcrop.NeighborLoader(tmp_path / "s", [2], input_nodes="train")
    with pytest.raises(CorruptError, match=r"train\.npy: entry 7"):
        outcrop.open(tmp_path / "s").split("train")


@pytest.mark.parametrize("bad", [4, -2, 1 << 40])
def test_a_label_of_no_class_is_named(tmp_path: Path, bad: int) -> None:
    make_random_store(tmp_path / "s").close()
    rewrite_array(tmp_path / "s", "labels", lambda labels: labels.__setitem__(9, bad))
    with pytest.raises(CorruptError, match=rf"labels\.npy: node 9 has label {bad}, .* 4 classes"):
        outcrop.NeighborLoader(tmp_path / "s", [2], input_nodes="train", memory="200MB")


def test_the_first_and_last_good_values_are_taken(tmp_path: Path) -> None:
    make_random_store(tmp_path / "s").close()

    def extremes(labels: Values) -> None:
        labels[:2] = [-1, 3]

    rewrite_array(tmp_path / "s", "labels", extremes)
    with outcrop.open(tmp_path / "s") as store:
        assert store.load_labels()[:2].tolist() == [-1, 3]
        assert np.array_equal(np.sort(store.split("train")), np.unique(store.split("train")))
        assert store.load("indptr")[-1] == store.num_edges
