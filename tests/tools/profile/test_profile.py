"""outcrop profile, end to end: samples, traces, figures, pictures, mistakes."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from typer.testing import CliRunner

from outcrop.cli import app
from outcrop.ingest.synthetic import SynthOptions, synthesise
from outcrop.run.order import seed_order
from outcrop.sample.sampler import Sampler, Sampling
from outcrop.sample.seeds import SeedOrder, seed_nodes
from outcrop.store.store import GraphStore
from outcrop.tools.profile import profile_store
from outcrop.tools.profile.measure import ProfileOptions, redundancy_ratio, sample_trace
from outcrop.tools.profile.pictures import pictures
from outcrop.topology.parts import mapped_topology
from tests.graphs import random_graph, save_npz
from tests.tools.profile import model

NODES = 600
SAMPLED = ["--num-neighbors", "3,2", "--batch-size", "40", "--batches", "9"]
OPTIONS = ProfileOptions(Sampling((3, 2)), batch_size=40, batches=9)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("stores") / "s"
    graph = SynthOptions(
        nodes=NODES, edges=4000, dim=100, classes=3, kind="rmat", train_fraction=0.2
    )
    synthesise(made, graph, 1 << 30)
    return made


def test_batches_of_partitions_beside_those_by_chance(tmp_path: Path) -> None:
    made = SynthOptions(nodes=20_000, edges=200_000, dim=2, classes=40, train_fraction=0.5)
    synthesise(tmp_path / "s", made, 1 << 30)
    options = ["--num-neighbors", "5,5", "--batch-size", "100", "--batches", "100"]
    done = outcrop(tmp_path / "s", *options, "--batching", "partition:parts=40:macro=2", "--json")
    found = json.loads(done.stdout)
    assert found["trace"]["batching"].startswith("partition:macro=2:")
    assert found["redundancy_ratio"] < 0.8 * found["random_redundancy_ratio"]
    plain = json.loads(outcrop(tmp_path / "s", *options, "--json").stdout)
    assert plain["random_redundancy_ratio"] is None
    assert plain["redundancy_ratio"] == found["random_redundancy_ratio"]
    told = outcrop(tmp_path / "s", *options, "--batching", "partition:parts=40:macro=2").stdout
    assert "by chance" in told and "by partitions" in told
    refused = outcrop(tmp_path / "s", "--batching", "metis")
    assert refused.exit_code and "batching is random or partition" in refused.stderr


def test_the_ratio_of_an_order_that_is_given(path: Path) -> None:
    with GraphStore(path) as store:
        order = seed_order(store, "val", batch_size=40, seed=0)
        found = redundancy_ratio(store, OPTIONS, order=order)
        sampler = Sampler(OPTIONS.sampling, mapped_topology(store), 0)
        tasks = [order.task(*divmod(number, len(order))) for number in range(9)]
        wanted = sum(len(sampler.sample(task).nodes) for task in tasks)
        assert found == wanted / sum(len(task.seeds) for task in tasks)
        assert found != redundancy_ratio(store, OPTIONS)


@pytest.fixture(scope="module")
def trace(path: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("traces") / "t"
    with GraphStore(path) as store:
        sample_trace(store, OPTIONS, folder)
    return folder


@dataclass
class Done:
    exit_code: int
    stdout: str
    stderr: str


def outcrop(*arguments: str | Path) -> Done:
    done = CliRunner().invoke(app, ["profile", *map(str, arguments)])
    return Done(done.exit_code, done.stdout, done.stderr)


def profiled(*arguments: str | Path) -> dict[str, Any]:
    done = outcrop(*arguments, "--json")
    assert done.exit_code == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def sampled_batches(path: Path, kind: Any = "neighbor") -> model.Batches:
    """As a loader samples them."""
    with GraphStore(path) as store:
        nodes, stream = seed_nodes(store, "train")
        seeds = SeedOrder(nodes, batch_size=40, stream=stream, seed=0)
        sampler = Sampler(Sampling((3, 2), kind=kind), mapped_topology(store), 0)
        tasks = [seeds.task(*divmod(t, len(seeds))) for t in range(9)]
        return [sampler.sample(task).nodes.tolist() for task in tasks]


def test_the_figures_are_those_of_the_batches_that_training_has(path: Path) -> None:
    found = profiled(path, *SAMPLED)
    batches = sampled_batches(path)
    counts = model.counts(batches)
    largest = sorted(counts.values(), reverse=True)
    assert (found["format"], found["version"]) == ("outcrop-profile", 1)
    assert found["store"]["nodes"] == NODES and found["trace"]["num_neighbors"] == [3, 2]
    assert (found["batches"], found["seeds"]) == (9, 360)
    assert found["accesses"] == found["rows_wanted"] == counts.total()
    assert found["distinct_rows"] == len(counts)
    assert found["redundancy_ratio"] == counts.total() / 360
    assert [top["rows"] for top in found["top"]] == [6, 30, 60, 120]
    assert [top["accesses"] for top in found["top"]] == [sum(largest[:k]) for k in (6, 30, 60, 120)]
    assert found["cumulative"][-1] == {
        "percent": 100.0, "rows": NODES, "accesses": counts.total(), "share": 1.0
    }  # fmt: skip
    reuses = counts.total() - len(counts)
    for name in ("reuse_batches", "reuse_rows"):
        assert sum(b["count"] for b in found[name]) == reuses
    slots = [size["rows"] for size in found["cache_sizes"]]
    assert slots == [6, 12, 30, 60, 120, 300]
    misses = {policy["name"]: policy["misses"] for policy in found["policies"]}
    assert misses["lru"] == [model.lru_misses(batches, k) for k in slots]
    assert misses["belady"] == [model.belady_misses(batches, k, set()) for k in slots]
    assert [plan["gap_bytes"] for plan in found["reads"]] == [0, 8192]
    runs = [model.requests(batch, 4096, 400, 0) for batch in batches]
    assert found["reads"][0]["requests"] == sum(map(len, runs))


def test_shadow_repeats_rows_and_each_counts_once_per_batch(path: Path) -> None:
    found = profiled(path, *SAMPLED, "--sampler", "shadow")
    batches = sampled_batches(path, "shadow")
    assert found["rows_wanted"] == sum(map(len, batches))
    assert found["accesses"] == model.counts(batches).total() < found["rows_wanted"]


def test_a_trace_gives_the_same_profile_as_its_options(path: Path, trace: Path) -> None:
    found = profiled(path, "--trace", trace)
    assert found == profiled(path, *SAMPLED)
    assert profiled(path, "--trace", trace, "--batches", "4")["batches"] == 4


def test_nothing_of_the_temporary_trace_remains(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    profiled(path, *SAMPLED)
    assert outcrop(path, "--input-nodes", "all", "--batch-size", "0").exit_code == 2
    assert not list(tmp_path.iterdir())


def test_the_terminal_shows_every_table(path: Path) -> None:
    done = outcrop(path, *SAMPLED)
    assert done.exit_code == 0, done.stderr
    for text in ("redundancy", "top 10 %", "belady filled", "static by out degree", "8 KiB",
                 "Batches since", "Other rows used", "per byte wanted"):  # fmt: skip
        assert text in done.stdout


def test_a_store_without_features_has_no_reads(tmp_path: Path) -> None:
    graph = SynthOptions(nodes=50, edges=200, dim=0, classes=2, train_fraction=0.3)
    synthesise(tmp_path / "s", graph, 1 << 30)
    assert profiled(tmp_path / "s", "--batch-size", "5", "--batches", "2")["reads"] == []
    done = outcrop(tmp_path / "s", "--batch-size", "5", "--batches", "1")
    assert done.exit_code == 0 and "per byte wanted" not in done.stdout


def test_out_holds_the_json_and_pictures_that_need_nothing_else(path: Path, tmp_path: Path) -> None:
    out = tmp_path / "new" / "out"
    found = profiled(path, *SAMPLED, "--out", out)
    assert json.loads((out / "profile.json").read_text()) == found
    names = ["cumulative.svg", "misses.svg", "reuse_batches.svg", "reuse_rows.svg"]
    assert sorted(file.name for file in out.glob("*.svg")) == names
    for name in names:
        text = (out / name).read_text()
        assert ElementTree.fromstring(text).tag == "{http://www.w3.org/2000/svg}svg"
        assert "href" not in text and "url(" not in text and "script" not in text
    assert outcrop(path, *SAMPLED, "--out", out).exit_code == 0  # written again


def test_the_label_of_an_axis_is_at_its_middle(path: Path) -> None:
    with GraphStore(path) as store:
        found = profile_store(store, OPTIONS)
    for text in pictures(found).values():
        (label,) = (e for e in ElementTree.fromstring(text) if "transform" in e.attrib)
        assert label.attrib["y"] == "190.0"  # whatever share is at the top


def test_points_of_a_picture_lie_where_their_values_say(path: Path) -> None:
    with GraphStore(path) as store:
        found = profile_store(store, OPTIONS)
    svg = ElementTree.fromstring(pictures(found)["misses.svg"])
    lines = svg.findall("{http://www.w3.org/2000/svg}polyline")
    assert len(lines) == len(found.policies)
    for line, policy in zip(lines, found.policies, strict=True):
        heights = [float(point.split(",")[1]) for point in line.attrib["points"].split()]
        shares = [(336 - height) / 292 for height in heights]  # the axis is from 336 up to 44
        assert shares == pytest.approx(policy.miss_ratio, abs=0.001)


MISTAKES: list[tuple[list[str], int, str]] = [
    (["--num-neighbors", "ten"], 2, "num_neighbors must be like 10,10,5 (got 'ten')"),
    (["--num-neighbors", "-2"], 2, "counts, or -1 for all (got [-2])"),
    (["--sampler", "other"], 2, "a sampler is neighbor or shadow (got 'other')"),
    (["--batch-size", "0"], 2, "batch_size must be at least 1 (got 0)"),
    (["--batches", "0"], 2, "greater than or equal to 1"),
    (["--input-nodes", "some"], 2, "one of train, val, test, all (got 'some')"),
    (["--trace", "nothing"], 1, "nothing: not a trace, or one that was never finished"),
    (["--trace", "TRACE", "--seed", "1", "--batch-size", "2"], 2,
     "leave out --batch-size, --seed, or --trace"),
    (["--trace", "TRACE", "--batches", "10"], 2, "1 to 9, as many as the trace has (got 10)"),
    (["--out", "FILE"], 1, "FILE: File exists"),
]  # fmt: skip


@pytest.mark.parametrize(("arguments", "status", "message"), MISTAKES)
def test_mistakes_are_named(
    path: Path,
    trace: Path,
    tmp_path: Path,
    arguments: list[str],
    status: int,
    message: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "FILE").write_text("")
    done = outcrop(path, *(str(trace) if word == "TRACE" else word for word in arguments))
    assert done.exit_code == status
    assert message in done.stderr


def test_a_trace_of_another_store_or_a_damaged_one_is_refused(
    path: Path, trace: Path, tmp_path: Path
) -> None:
    synthesise(tmp_path / "other", SynthOptions(nodes=NODES, edges=100, dim=3), 1 << 30)
    done = outcrop(tmp_path / "other", "--trace", trace)
    assert done.exit_code == 1 and "the trace is of another store" in done.stderr
    shutil.copytree(trace, tmp_path / "damaged")
    with (tmp_path / "damaged" / "batches.bin").open("r+b") as file:
        file.write(b"\xff\xff")
    done = outcrop(path, "--trace", tmp_path / "damaged")
    assert done.exit_code == 1 and "batch 0" in done.stderr


def test_a_split_that_is_missing_or_empty_is_named(tmp_path: Path) -> None:
    graph = random_graph(20, 50)
    save_npz(tmp_path / "without.npz", graph)
    save_npz(tmp_path / "empty.npz", graph, train_mask=np.zeros(20, bool))
    messages = {"without": "has no train", "empty": "there are no train nodes to sample around"}
    for name, message in messages.items():
        words = ["import", "npz", str(tmp_path / f"{name}.npz"), str(tmp_path / name)]
        assert CliRunner().invoke(app, words).exit_code == 0
        done = outcrop(tmp_path / name)
        assert done.exit_code == 1
        assert f"{name}: {message}" in done.stderr
