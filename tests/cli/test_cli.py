"""The command line: help with examples, JSON, exit statuses, messages."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

from outcrop.cli.app import app
from outcrop.cli.output import guarded
from tests.cage import OUTCROP
from tests.graphs import random_graph, save_npz
from tests.processes import running
from tests.stores import make_random_store

COMMANDS = [["import", "npz"], ["import", "edgelist"], ["synth"], ["reorder"], ["info"],
            ["profile"], ["partition"], ["prepare"], ["train"], ["infer"], ["bench"], ["report"],
            ["verify"], ["gc"], ["doctor"], ["demo"]]  # fmt: skip


def outcrop(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [*OUTCROP, *(str(argument) for argument in arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_every_command_has_an_example(command: list[str]) -> None:
    done = outcrop(*command, "--help")
    assert done.returncode == 0
    assert f"Example: outcrop {' '.join(command)}" in " ".join(done.stdout.split())


def test_synth_info_verify_gc(tmp_path: Path) -> None:
    store = tmp_path / "s"
    made = outcrop(
        "synth", store, "--nodes", "2K", "--edges", "10K", "--dim", "5", "--kind", "rmat"
    )
    assert made.returncode == 0, made.stderr
    assert "2,000 nodes, 10,000 edges" in made.stdout
    facts = json.loads(outcrop("info", store, "--json").stdout)
    assert (facts["nodes"], facts["edges"], facts["features"]["dim"]) == (2000, 10_000, 5)
    assert "2,000" in outcrop("info", store).stdout
    assert json.loads(outcrop("verify", store, "--json").stdout)["ok"] is True
    assert "whole" in outcrop("verify", store, "--quick").stdout
    assert json.loads(outcrop("gc", store, "--json").stdout)["removed"] == []
    big = outcrop("synth", tmp_path / "big", "--expand", store, "--factor", "2")
    assert big.returncode == 0 and "4,000 nodes" in big.stdout


def test_partition_says_what_it_made_and_finds_it_again(tmp_path: Path) -> None:
    store = tmp_path / "s"
    outcrop("synth", store, "--nodes", "20K", "--edges", "200K", "--dim", "0", "--train-fraction",
            "0.1")  # fmt: skip
    done = outcrop("partition", store, "--parts", "10")
    assert done.returncode == 0, done.stderr
    shown = " ".join(done.stdout.split())
    assert "parts 10 " in shown and "(parts at random: 90.0%)" in shown
    assert "training nodes (largest part / mean)" in shown and "found" not in shown
    assert "found; made earlier" in outcrop("partition", store, "--parts", "10").stdout
    facts = json.loads(outcrop("partition", store, "--parts", "10", "--json").stdout)
    assert facts["found"] is True and facts["random_cut"] == pytest.approx(0.9)
    assert facts["cut"] < 0.5 and 1 <= facts["balance"] <= 1.1 and facts["train_balance"] < 1.2
    assert Path(facts["path"]).name.startswith("partitions-")
    other = json.loads(outcrop("partition", store, "--seed", "5", "--json").stdout)
    assert other["parts"] == 20 and other["found"] is False and other["digest"] != facts["digest"]
    assert "whole" in outcrop("verify", store).stdout
    assert len(json.loads(outcrop("gc", store, "--all", "--json").stdout)["removed"]) == 2


@pytest.mark.parametrize(
    "options,status,message",
    [
        (["--parts", "0"], 2, "parts must be 1 to"),
        (["--counting", "bloom"], 2, "needs passes=1"),
        (["--levels", "3"], 2, "--levels"),
        (["--memory", "1MB"], 1, "memory=1.0 MB is too little"),
    ],
)
def test_partition_refuses_what_cannot_be(
    tmp_path: Path, options: list[str], status: int, message: str
) -> None:
    with make_random_store(tmp_path / "s"):
        pass
    done = outcrop("partition", tmp_path / "s", *options)
    assert done.returncode == status
    assert message in " ".join(done.stderr.split())


def test_names_in_brackets_are_shown_as_they_are(tmp_path: Path) -> None:
    store = tmp_path / "a[b].oc"
    made = outcrop("synth", store, "--nodes", "20", "--edges", "10", "--dim", "0")
    assert f"{store}: 20 nodes" in made.stdout
    shown = "".join(outcrop("doctor", store).stdout.split())
    assert f"{store}(" in shown
    np.save(tmp_path / "x[y].npy", np.ones((9, 2), np.float32))
    (tmp_path / "g.txt").write_text("0 1\n")
    outcrop("import", "edgelist", tmp_path / "g.txt", tmp_path / "s", "--num-nodes", "9",
            "--features", tmp_path / "x[y].npy", "--adopt-features")  # fmt: skip
    assert "x[y].npy" in "".join(outcrop("info", tmp_path / "s").stdout.split())


def test_verify_fails_with_status_1_and_names_the_piece(tmp_path: Path) -> None:
    store = tmp_path / "s"
    outcrop("synth", store, "--nodes", "200", "--edges", "1000", "--dim", "5")
    with open(store / "labels.npy", "r+b") as file:
        file.seek(4100)
        file.write(b"\xff")
    done = outcrop("verify", store)
    assert done.returncode == 1
    assert "labels.npy: piece 0" in done.stdout and "damaged (1 problems)" in done.stdout
    assert json.loads(outcrop("verify", store, "--json").stdout)["ok"] is False


def test_imports(tmp_path: Path) -> None:
    save_npz(tmp_path / "g.npz", random_graph(100, 400), x=np.ones((100, 3), np.float32))
    done = outcrop("import", "npz", tmp_path / "g.npz", tmp_path / "a", "--feature-dtype", "int8",
                   "--memory", "64MB", "--undirected", "--merge-multi-edges")  # fmt: skip
    assert done.returncode == 0, done.stderr
    facts = json.loads(outcrop("info", tmp_path / "a", "--json").stdout)
    assert facts["features"]["encoding"] == "int8"
    assert facts["provenance"]["options"]["undirected"] is True
    (tmp_path / "g.txt").write_text("5 900\n900 7\n")
    done = outcrop("import", "edgelist", tmp_path / "g.txt", tmp_path / "b",
                   "--random-features", "4", "--random-classes", "2",
                   "--train-fraction", "0.4")  # fmt: skip
    assert done.returncode == 0, done.stderr
    facts = json.loads(outcrop("info", tmp_path / "b", "--json").stdout)
    assert facts["nodes"] == 3 and facts["splits"] == {"train": 1, "val": 1, "test": 1}
    np.save(tmp_path / "x.npy", np.ones((1000, 2), np.float32))
    done = outcrop("import", "edgelist", tmp_path / "g.txt", tmp_path / "c", "--num-nodes", "1K",
                   "--features", tmp_path / "x.npy", "--adopt-features")  # fmt: skip
    assert done.returncode == 0, done.stderr
    facts = json.loads(outcrop("info", tmp_path / "c", "--json").stdout)
    assert facts["features"]["adopted"] and facts["features"]["file"] == str(tmp_path / "x.npy")


MISTAKES: list[tuple[list[str], int, str]] = [
    (["info", "nothing"], 1, "nothing: not an Outcrop store (no such directory)"),
    (["verify", "nothing"], 1, "not an Outcrop store"),
    (["synth", "s"], 2, "give --nodes and --edges, or --expand STORE"),
    (["synth", "s", "--nodes", "many", "--edges", "1"], 2, "expected a count such as 1B"),
    (["synth", "s", "--nodes", "10", "--edges", "1", "--memory", "lots"], 2, "a size such as 8GB"),
    (["synth", "s", "--nodes", "99", "--edges", "1", "--memory", "1MB"], 1, "at least 33.6 MB"),
    (["synth", "s", "--nodes", "99", "--edges", "9", "--homophily", "2"], 2, "homophily must be"),
    (
        ["synth", "s", "--nodes", "99", "--edges", "9", "--seed", "9" * 20],
        2,
        "than or equal to 9223372036854775807",
    ),
    (["synth", "s", "--nodes", "99", "--edges", "10P"], 1, "needs at least 120000.0 TB of disk"),
    (["import", "npz", "nothing.npz", "s"], 1, "nothing.npz: No such file or directory"),
    (["import", "edgelist", "nothing.txt", "s"], 1, "nothing.txt: No such file"),
    (["import", "edgelist", "/dev/null", "s", "--labels", "y.npy"], 2, "need --num-nodes"),
    (["import", "edgelist", "/dev/null", "s", "--adopt-features"], 2, "needs --features"),
    (["import", "edgelist", "/dev/null", "s"], 1, "/dev/null: no nodes"),
    (
        ["import", "edgelist", "/dev/null", "s", "--num-nodes", "9", "--labels", "y.npy"],
        1,
        "y.npy: No such file or directory",
    ),
    (["import", "edgelist", "/dev/null", "s", "--num-nodes=-5"], 2, "a count such as 1B"),
    (
        ["import", "edgelist", "/dev/null", "s", "--random-classes", "2", "--train-fraction", "7"],
        2,
        "train_fraction must be above 0 and at most 1 (got 7.0)",
    ),
    (["import", "csv", "a", "b"], 2, "No such command"),
    (["doctor", "/nowhere/at/all"], 1, "/nowhere/at/all: No such file or directory"),
    (["doctor", "typo"], 1, "typo: No such file or directory"),
]


@pytest.mark.parametrize(("arguments", "status", "message"), MISTAKES)
def test_what_users_type_wrong_first(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    status: int,
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    done = outcrop(*arguments)
    assert done.returncode == status, done.stderr
    text = " ".join(done.stderr.replace("│", " ").split())
    assert message in text
    assert "Traceback" not in text
    assert os.listdir(tmp_path) == []


def test_an_error_that_nobody_foresaw_is_one_line_and_a_traceback_on_demand(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    @guarded
    def command() -> None:
        raise KeyError("surprise")

    monkeypatch.delenv("OUTCROP_DEBUG", raising=False)
    with pytest.raises(typer.Exit) as ended:
        command()
    assert ended.value.exit_code == 1
    assert capsys.readouterr().err.startswith("Error: KeyError: 'surprise' (a mistake in Outcrop")
    monkeypatch.setenv("OUTCROP_DEBUG", "1")
    with pytest.raises(KeyError):
        command()


def test_ctrl_c_leaves_nothing_and_exits_with_130(tmp_path: Path) -> None:
    command = [*OUTCROP, "synth", str(tmp_path / "s"), "--nodes", "1M", "--edges", "30M"]
    with running(command) as process:
        deadline = time.monotonic() + 60
        while not list(tmp_path.glob(".s.building/topology/*")) and time.monotonic() < deadline:
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        start = time.monotonic()
        _, errors = process.communicate(timeout=60)
    assert time.monotonic() - start < 10
    assert process.returncode == 130
    assert "Interrupted" in errors and "Traceback" not in errors
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(("batching", "layouts"), [("random", 2), ("partition:parts=50", 3)])
def test_what_is_prepared_is_found_by_training(tmp_path: Path, batching: str, layouts: int) -> None:
    store = tmp_path / "s"
    assert outcrop("synth", store, "--nodes", "3K", "--edges", "20K", "--dim", "9").returncode == 0
    settings = ["--strategy", "diskgnn", "--num-neighbors", "4,3", "--batch-size", "10",
                "--epochs", "2", "--memory", "50MB", "--seed", "3",
                "--batching", batching]  # fmt: skip
    made = outcrop("prepare", store, *settings)
    assert made.returncode == 0, made.stderr
    assert "distinct epochs" in made.stdout and "trace bytes" in made.stdout
    before = sorted(os.listdir(store / "derived"))
    assert len(before) == layouts
    found = json.loads(outcrop("prepare", store, *settings, "--json").stdout)
    assert found["distinct_epochs"] == 2 and found["rows_cached"] + found["rows_packed"] > 0
    done = outcrop("train", store, *settings, "--layers", "2", "--hidden", "4")
    assert done.returncode == 0, done.stderr
    assert "preparing" not in done.stdout
    assert sorted(os.listdir(store / "derived")) == before
    refused = outcrop("prepare", store, "--disk", "1kB", "--memory", "50MB")
    assert refused.returncode == 1 and "disk=1.0 kB is too little" in refused.stderr


def test_version() -> None:
    assert outcrop("--version").stdout.startswith("outcrop 0.")


def test_demo_trains_twice_and_compares(tmp_path: Path) -> None:
    done = outcrop("demo", tmp_path, "--nodes", "20k")
    assert done.returncode == 0, done.stderr
    assert "test accuracy" in done.stdout and "read from the drive" in done.stdout
    assert "The batches are the same bit by bit" in done.stdout
    assert list(tmp_path.iterdir()) == [], "the graph is removed"


def test_derived_layouts_go_where_the_command_line_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OUTCROP_DERIVED", "")  # put back afterwards
    make_random_store(tmp_path / "s").close()
    elsewhere = ["--derived", str(tmp_path / "elsewhere")]
    prepare = ["prepare", str(tmp_path / "s"), "--epochs", "1", "--batch-size", "50"]
    assert CliRunner().invoke(app, [*elsewhere, *prepare]).exit_code == 0
    assert not (tmp_path / "s" / "derived").exists()
    verified = CliRunner().invoke(app, [*elsewhere, "verify", str(tmp_path / "s")])
    assert "2 derived layouts" in verified.output
    collected = CliRunner().invoke(app, [*elsewhere, "gc", "--all", str(tmp_path / "s")])
    assert collected.exit_code == 0 and "elsewhere" in collected.output
