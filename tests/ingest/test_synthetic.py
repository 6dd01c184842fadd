"""Synthetic graphs: the same for a seed whatever the memory and threads; of the promised shape."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import outcrop
from outcrop import _core
from outcrop.errors import BudgetError, OptionError
from outcrop.ingest import random_attributes, synthetic
from outcrop.ingest.build import LEAST_MEMORY_BYTES, import_graph
from outcrop.ingest.npz import npz_source
from outcrop.ingest.source import IngestOptions, RowStream
from outcrop.ingest.synthetic import SynthOptions, expand, expansion_kernel, synthesise
from tests.cage import OUTCROP, run_caged
from tests.graphs import files_of, random_graph, save_npz


@pytest.mark.parametrize("kind", ["community", "rmat"])
def test_a_seed_makes_one_store_whatever_the_memory_and_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: Any
) -> None:
    options = SynthOptions(nodes=30_001, edges=1_000_000, dim=9, kind=kind, seed=5)
    synthesise(tmp_path / "a", options)
    for threads in (1, 3):
        monkeypatch.setattr(synthetic, "cpu_count", lambda n=threads: n)
        monkeypatch.setattr(random_attributes, "cpu_count", lambda n=threads: n)
        synthesise(tmp_path / f"b{threads}", options, memory=LEAST_MEMORY_BYTES)
        assert files_of(tmp_path / f"b{threads}") == files_of(tmp_path / "a")
    synthesise(
        tmp_path / "c", SynthOptions(nodes=30_001, edges=1_000_000, dim=9, kind=kind, seed=6)
    )
    assert outcrop.open(tmp_path / "c").content != outcrop.open(tmp_path / "a").content


def test_golden_values(tmp_path: Path) -> None:
    """A seed's graph is part of the format: benchmarks on different machines mean the same one."""
    contents = {}
    for kind in ("community", "rmat"):
        synthesise(tmp_path / kind, SynthOptions(nodes=1000, edges=5000, dim=7, kind=kind))
        contents[kind] = outcrop.open(tmp_path / kind).content
    assert contents == {
        "community": "66567f1b4ad6114b1334f2b3a757dcc8",
        "rmat": "6bbb8bc4c15a903a619b64db22d4d9f0",
    }


@given(
    nodes=st.integers(1, 200),
    edges=st.integers(0, 500),
    dim=st.integers(0, 5),
    classes=st.integers(1, 20),
    kind=st.sampled_from(["community", "rmat"]),
    homophily=st.floats(0, 1),
    fraction=st.floats(0.01, 1),
)
def test_any_size_gives_a_whole_store(
    tmp_path_factory: pytest.TempPathFactory,
    nodes: int,
    edges: int,
    dim: int,
    classes: int,
    kind: Any,
    homophily: float,
    fraction: float,
) -> None:
    if kind == "community" and classes > nodes:
        return
    path = tmp_path_factory.mktemp("synth") / "s"
    synthesise(path, SynthOptions(nodes, edges, dim, classes, kind=kind, homophily=homophily,
                                  train_fraction=fraction))  # fmt: skip
    with outcrop.open(path) as store:
        assert (store.num_nodes, store.num_edges) == (nodes, edges)
        assert len(store.split("train")) == min(max(1, round(nodes * fraction)), nodes)
        assert (store.manifest.features is None) == (dim == 0)
    assert outcrop.verify(path).ok


def test_communities_have_power_law_degrees_and_tell_labels(tmp_path: Path) -> None:
    synthesise(tmp_path / "s", SynthOptions(nodes=50_000, edges=1_000_000, dim=0, classes=10))
    with outcrop.open(tmp_path / "s") as store:
        labels, indptr = np.asarray(store.labels), np.asarray(store.indptr)
        targets = np.repeat(np.arange(store.num_nodes), np.diff(indptr))
        same = (labels[targets] == labels[store.indices]).mean()
        assert 0.8 < same < 0.85  # homophily 0.8 and a tenth of the rest
        out_degrees = np.sort(np.bincount(store.indices, minlength=store.num_nodes))[::-1]
        top = out_degrees[:500].sum() / store.num_edges
        assert 0.08 < top < 0.3  # the top 1 % of sources
        hot = np.argsort(np.bincount(store.indices))[-100:]
        assert np.diff(np.sort(hot)).mean() > 200  # not neighbours on disk
        assert np.bincount(labels).min() > 4000


def test_rmat_is_skewed_as_its_quadrants_say(tmp_path: Path) -> None:
    options = SynthOptions(nodes=1 << 14, edges=400_000, dim=0, kind="rmat", rmat=(0.6, 0.2, 0.1))
    synthesise(tmp_path / "s", options)
    with outcrop.open(tmp_path / "s") as store:
        # The most likely source has all bits 0: probability (a + b)^14; as a target (a + c)^14.
        out_degree = int(np.bincount(store.indices).max())
        in_degree = int(np.diff(store.indptr).max())
        assert out_degree == pytest.approx(400_000 * 0.8**14, rel=0.15)
        assert in_degree == pytest.approx(400_000 * 0.7**14, rel=0.15)


@pytest.mark.parametrize(
    ("nodes", "rmat"), [(1 << 10, (0.0, 0.0, 0.0)), (1025, (0.01, 0.0, 0.0)), (1, (0.0, 1.0, 0.0))]
)
def test_the_most_lopsided_rmat_graphs_that_are_accepted_end(
    tmp_path: Path, nodes: int, rmat: Any
) -> None:
    options = SynthOptions(nodes, edges=2000, dim=0, classes=1, kind="rmat", rmat=rmat)
    assert synthesise(tmp_path / "s", options).num_edges == 2000


def test_features_have_unit_noise_around_their_centroids(tmp_path: Path) -> None:
    synthesise(tmp_path / "s", SynthOptions(nodes=20_000, edges=10, dim=16, classes=4))
    with outcrop.open(tmp_path / "s") as store:
        rows = store.features.gather(np.arange(20_000))
        for label in range(4):
            part = rows[store.labels == label]
            assert np.allclose(part.std(axis=0), 1, atol=0.05)
            assert np.allclose(np.abs(part.mean(axis=0)), 1.2 / 4, atol=0.05)


def test_the_permutation_is_one() -> None:
    for size in (1, 2, 3, 5, 64, 1000, 4097):
        order = np.empty(size, np.int64)
        _core.random_order(size, 7, 0, order)
        assert np.array_equal(np.sort(order), np.arange(size))
        tail = np.empty(size // 2, np.int64)
        _core.random_order(size, 7, size - len(tail), tail)
        assert np.array_equal(tail, order[size - len(tail) :])


@pytest.mark.parametrize(
    "changes",
    [
        {"nodes": 0},
        {"edges": -1},
        {"edges": 1 << 64},
        {"seed": 10**20},
        {"kind": "star"},
        {"homophily": 1.5},
        {"rmat": (0.9, 0.2, 0.1)},
        {"rmat": (0.3, float("nan"), 0.1)},
        {"kind": "rmat", "rmat": (0.0, 0.0, 0.0)},
        {"kind": "rmat", "rmat": (0.009, 0.5, 0.4)},
        {"classes": 0},
        {"communities": 5, "classes": 6},
        {"communities": 200},
        {"communities": 0},
        {"train_fraction": 0.0},
    ],
)
def test_impossible_graphs_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(OptionError, match="got"):
        SynthOptions(**{"nodes": 100, "edges": 100, **changes})


def test_expansion_keeps_degrees_communities_and_attributes(tmp_path: Path) -> None:
    synthesise(tmp_path / "s", SynthOptions(nodes=3000, edges=40_000, dim=5, classes=4))
    with outcrop.open(tmp_path / "s") as store:
        expand(store, tmp_path / "big", factor=4, edge_factor=6.0, seed=1)
        with outcrop.open(tmp_path / "big") as big:
            assert big.num_nodes == 4 * store.num_nodes
            assert big.num_edges == pytest.approx(6 * store.num_edges, rel=0.02)
            assert np.array_equal(big.labels, np.tile(store.labels, 4))
            assert len(big.split("train")) == 4 * len(store.split("train"))
            ids = np.array([5, 3005, 9005])
            assert np.array_equal(big.features.gather(ids), store.features.gather(ids % 3000))
            # Every copy holds the whole graph: each edge u -> v is there as (u, j) -> (v, j).
            for copy in (0, 3):
                for node in (0, 17, 2999):
                    small = store.indices[store.indptr[node] : store.indptr[node + 1]]
                    at = copy * 3000 + node
                    large = big.indices[big.indptr[at] : big.indptr[at + 1]]
                    inside = large[(large >= copy * 3000) & (large < (copy + 1) * 3000)]
                    assert np.array_equal(inside - copy * 3000, small)
                    assert np.isin(large % 3000, small).all()
        assert outcrop.verify(tmp_path / "big").ok


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "int8"])
def test_an_expansion_copies_rows_bit_by_bit(tmp_path: Path, dtype: str) -> None:
    x = np.random.default_rng(0).standard_normal((500, 37)).astype(np.float32)
    save_npz(tmp_path / "g.npz", random_graph(500, 1000), x=x)
    import_graph(npz_source(tmp_path / "g.npz"), tmp_path / "s", IngestOptions(feature_dtype=dtype))
    with outcrop.open(tmp_path / "s") as store:
        expand(store, tmp_path / "big", factor=2)
        with outcrop.open(tmp_path / "big") as big:
            once, twice = (np.load(opened.file("features")) for opened in (store, big))
            assert twice.tobytes() == 2 * once.tobytes()
    assert outcrop.verify(tmp_path / "big").ok


def test_expansion_does_not_depend_on_memory(tmp_path: Path) -> None:
    graph = random_graph(20_000, 600_000)
    graph.edges[1, :400_000] = 17  # a list that does not fit a block at once
    save_npz(tmp_path / "g.npz", graph)
    import_graph(npz_source(tmp_path / "g.npz"), tmp_path / "s")
    with outcrop.open(tmp_path / "s") as store:
        expand(store, tmp_path / "a", factor=3)
        expand(store, tmp_path / "b", factor=3, memory=LEAST_MEMORY_BYTES)
    assert files_of(tmp_path / "a") == files_of(tmp_path / "b")


def synth_caged(*arguments: str | Path) -> None:
    command = [*OUTCROP, "synth", *(str(argument) for argument in arguments), "--memory", "34MB"]
    done = run_caged(command, 34_000_000 + 60_000_000)
    assert done.returncode == 0, done.output


def test_splits_keep_to_their_memory_in_a_cage(tmp_path: Path) -> None:
    """6 million ids are 48 MB: more than the budget."""
    synth_caged(tmp_path / "s", "--nodes", "6M", "--edges", "1K", "--dim", "0",
                "--train-fraction", "1")  # fmt: skip
    synth_caged(tmp_path / "big", "--expand", tmp_path / "s", "--factor", "2")


def test_a_long_list_keeps_to_its_memory_in_a_cage(tmp_path: Path) -> None:
    """8 million edges, kept from both copies, are 64 MB: more than the budget."""
    np.savez(tmp_path / "g.npz", edge_index=np.zeros((2, 8_000_000), np.int32), num_nodes=1)
    import_graph(npz_source(tmp_path / "g.npz"), tmp_path / "s")
    synth_caged(tmp_path / "big", "--expand", tmp_path / "s", "--factor", "2", "--edge-factor", "4")


def test_more_nodes_than_the_memory_has_bits_for_are_refused(tmp_path: Path) -> None:
    options = SynthOptions(nodes=10**9, edges=1, dim=0)
    with pytest.raises(BudgetError, match=r"splits of 1000000000 nodes need 329\.3 MB of memory"):
        synthesise(tmp_path / "s", options, memory=LEAST_MEMORY_BYTES)


def test_rows_are_made_by_as_many_threads_as_the_memory_has_room_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(random_attributes, "cpu_count", lambda: 64)
    used = []
    monkeypatch.setattr(random_attributes, "ordered_map",
                        lambda *_, threads: used.append(threads))  # fmt: skip
    for memory in (LEAST_MEMORY_BYTES, 2_000_000_000):
        rows = random_attributes.random_attributes(
            10, dim=1024, classes=2, train_fraction=0.1, seed=0, memory=memory
        ).features
        assert isinstance(rows, RowStream)
        rows.chunks(512)  # 2 MiB
    assert used == [3, 64]


def test_the_kernel_sums_to_the_edge_factor_and_is_a_probability() -> None:
    kernel = expansion_kernel(5, 9.0)
    assert kernel.sum() == pytest.approx(9.0)
    assert kernel.min() >= 0 and kernel.max() <= 1 and (np.diag(kernel) == 1).all()
    for factor, edge_factor in ((1, 2.0), (4, 3.0), (4, 100.0)):
        with pytest.raises(OptionError, match="got"):
            expansion_kernel(factor, edge_factor)
