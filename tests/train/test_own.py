"""Own models: trained, saved, made again; and what is wrong with them is said in one line."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from outcrop.cli import app
from outcrop.errors import OptionError, StoreError
from outcrop.store.store import GraphStore
from outcrop.train import TrainOptions, fit, load_checkpoint, load_model, save_checkpoint
from tests.cage import OUTCROP
from tests.stores import make_random_store

SMALL: dict[str, Any] = {
    "num_neighbors": (4, 3), "batch_size": 20, "epochs": 2, "memory": "200MB", "device": "cpu",
}  # fmt: skip
FLAGS = ["--num-neighbors", "4,3", "--batch-size", "20", "--epochs", "2", "--memory", "200MB",
         "--device", "cpu"]  # fmt: skip

MINE = """
import torch
from torch import nn
from torch_geometric.nn import GCNConv, GraphSAGE

class Skip(nn.Module):
    def __init__(self, in_channels, width, out_channels):
        super().__init__()
        self.conv = GCNConv(in_channels, width)
        self.out = nn.Linear(in_channels + width, out_channels)

    def forward(self, x, edge_index):
        return self.out(torch.cat([x, self.conv(x, edge_index).relu()], dim=1))

def make(in_channels, out_channels, options, width=5):
    return Skip(in_channels, width, out_channels)

def layered(in_channels, out_channels, options):
    return GraphSAGE(in_channels, options.hidden, options.layers, out_channels)

def divides(in_channels, out_channels, options):
    return 1 / 0

def returns_none(in_channels, out_channels, options):
    pass

def without_arguments():
    pass

class Fails(Skip):
    def forward(self, x, edge_index):
        return self.out(x)

def fails(in_channels, out_channels, options):
    return Fails(in_channels, 3, out_channels)

number = 3
"""


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[GraphStore]:
    """In the current folder, with modules beside it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "mine.py").write_text(MINE)
    (tmp_path / "broken.py").write_text("import nowhere_at_all\n")
    (tmp_path / "wrong.py").write_text("def make(:\n")
    (tmp_path / "quits.py").write_text("import sys\n\nsys.exit(3)\n")
    before = set(sys.modules)
    with make_random_store(tmp_path / "s", train=100) as made:
        yield made
    for name in {"mine", "broken", "wrong", "quits"} - before:
        sys.modules.pop(name, None)


def test_a_model_of_the_current_folder_is_trained_and_made_again(store: GraphStore) -> None:
    options = TrainOptions(**SMALL, model="mine:make", model_args={"width": 7}, checkpoint_dir="c")
    result = fit(store, options)
    assert result.model.state_dict()["conv.bias"].shape == (7,)
    saved = load_checkpoint(Path("c/best.safetensors"))
    assert saved.facts["options"]["model"] == "mine:make"
    assert saved.facts["options"]["model_args"] == {"width": 7}
    again = load_model(saved, trust=True)
    assert type(again).__name__ == "Skip"
    for name, value in result.model.state_dict().items():
        assert torch.equal(again.state_dict()[name], value), name


def test_rows_are_normalized_for_own_models_too(store: GraphStore) -> None:
    options = TrainOptions(**SMALL, model="mine:make", normalize_rows=True, checkpoint_dir="c")
    result = fit(store, options)
    again = load_model(load_checkpoint(Path("c/best.safetensors")), trust=True)
    assert type(again) is type(result.model) and type(again).__name__ == "RowNormalized"


def test_what_a_checkpoint_names_is_not_run_unless_it_is_trusted(store: GraphStore) -> None:
    fit(store, TrainOptions(**SMALL, model="mine:make", checkpoint_dir="c"))
    saved = load_checkpoint(Path("c/last.safetensors"))
    saved.facts["options"]["model"] = "evil:make"
    Path("evil.py").write_text("open('was_run', 'w')\n")
    with pytest.raises(OptionError, match=r"made by evil:make, code that would be .*trust=True"):
        load_model(saved)
    save_checkpoint(Path("evil.safetensors"), saved)
    done = CliRunner().invoke(app, ["infer", "s", "evil.safetensors", "--out", "o.npy"])
    assert done.exit_code == 2 and "--trust" in done.stderr
    assert not Path("was_run").exists() and not Path("o.npy").exists()


def test_weights_of_another_model_are_refused(store: GraphStore) -> None:
    fit(store, TrainOptions(**SMALL, model="mine:make", checkpoint_dir="c"))
    saved = load_checkpoint(Path("c/last.safetensors"))
    saved.facts["options"]["model_args"] = {"width": 9}
    with pytest.raises(StoreError, match=r"of another model: conv\.bias"):
        load_model(saved, trust=True)


def test_a_run_of_an_own_model_is_resumed_with_the_same_arguments_only(store: GraphStore) -> None:
    options: dict[str, Any] = {**SMALL, "model": "mine:make", "checkpoint_dir": "c"}
    fit(store, TrainOptions(**{**options, "epochs": 1}))
    with pytest.raises(OptionError, match=r"saved with model_args=\{\} \(got \{'width': 6\}"):
        fit(store, TrainOptions(**options, model_args={"width": 6}, resume=True))
    assert len(fit(store, TrainOptions(**options, resume=True)).history) == 2


def test_hops_are_free_for_own_models() -> None:
    assert len(TrainOptions(model="mine:make", num_neighbors=(5,)).num_neighbors) == 1
    assert len(TrainOptions(model="mine:make").num_neighbors) == 3


def test_layered_models_are_inferred_and_evaluated_in_full_and_others_refused(
    store: GraphStore,
) -> None:
    layered = TrainOptions(
        **SMALL, model="mine:layered", layers=2, hidden=4, evaluate="full", checkpoint_dir="c"
    )
    assert fit(store, layered).val is not None
    command = ["infer", "s", "c/last.safetensors", "--out", "o.npy", "--trust"]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 0, done.output
    assert len(np.load("o.npy")) == store.num_nodes
    with pytest.raises(OptionError, match=r"layer-wise inference is for .*got Skip"):
        fit(store, TrainOptions(**SMALL, model="mine:make", evaluate="full"))
    fit(store, TrainOptions(**SMALL, model="mine:make", checkpoint_dir="d"))
    done = CliRunner().invoke(app, ["infer", "s", "d/last.safetensors", "--out", "p", "--trust"])
    assert done.exit_code == 2 and "got Skip" in done.stderr


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("nowhere:make", "model nowhere:make: there is no module nowhere in "),
        ("mine.deeper:make", "there is no module mine.deeper in "),
        ("broken:make", "broken cannot be imported: ModuleNotFoundError: No module named 'nowhere"),
        ("broken:make", "broken.py, line 1)"),
        ("wrong:make", "SyntaxError: invalid syntax"),
        ("wrong:make", "wrong.py, line 1)"),
        ("quits:make", "quits cannot be imported: SystemExit: 3"),
        ("mine:nothing", "model mine:nothing: mine has no nothing"),
        ("mine:number", "model mine:number: must be callable (got int)"),
        ("mine:divides", "model mine:divides: ZeroDivisionError: division by zero ("),
        ("mine:divides", "mine.py, line 22)"),
        ("mine:returns_none", "must return an nn.Module (got NoneType)"),
        ("mine:without_arguments", "TypeError: without_arguments() takes 0 positional arguments"),
        ("mine:fails", "training mine:fails: RuntimeError: mat1 and mat2"),
        ("mine:fails", "mine.py, line 32)"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(store: GraphStore, model: str, message: str) -> None:
    done = CliRunner().invoke(app, ["train", "s", *FLAGS, "--model", model])
    assert done.exit_code == 2
    assert message in done.stderr and len(done.stderr.strip().splitlines()) == 1


def test_wrong_arguments_name_the_factory(store: GraphStore) -> None:
    flags = ["--model", "mine:make", "--model-args"]
    done = CliRunner().invoke(app, ["train", "s", *FLAGS, *flags, '{"depth": 3}'])
    assert done.exit_code == 2 and "unexpected keyword argument 'depth'" in done.stderr
    done = CliRunner().invoke(app, ["train", "s", *FLAGS, *flags, "width=3"])
    assert done.exit_code == 2 and "model_args must be JSON" in done.stderr


def test_the_command_finds_a_model_beside_it(store: GraphStore) -> None:
    Path("run.yaml").write_text("model: mine:make\nmodel_args:\n  width: 6\n")
    command = [*OUTCROP, "train", "s", *FLAGS, "--config", "run.yaml", "--checkpoint-dir", "c"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    assert load_checkpoint(Path("c/last.safetensors")).model["conv.bias"].shape == (6,)


def test_the_examples_of_the_page_are_trained(store: GraphStore) -> None:
    page = (Path(__file__).parents[2] / "docs/training.md").read_text().split("## outcrop train")[1]
    [example] = [
        block.split("```")[0] for block in page.split("```python\n")[1:] if "make" in block
    ]
    Path("theirs.py").write_text(example)
    flags = ["--model", "theirs:make", "--model-args", '{"width": 6}']
    assert " ".join(flags[2:3]) in example
    done = CliRunner().invoke(app, ["train", "s", *FLAGS, *flags])
    sys.modules.pop("theirs", None)
    assert done.exit_code == 0, done.output
    Path("run.yaml").write_text(page.split("```yaml\n")[1].split("```")[0])
    done = CliRunner().invoke(
        app, ["train", "s", "--config", "run.yaml", "--epochs", "1", "--hidden", "4"]
    )
    assert done.exit_code == 0, done.output
