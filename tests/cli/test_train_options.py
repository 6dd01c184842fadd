"""Options of outcrop train: each field of TrainOptions is one, in its panel; YAML has the same."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any, get_args

import pytest
import typer
import yaml
from typer.testing import CliRunner

from outcrop.cli import app
from outcrop.cli.train import train
from outcrop.errors import OptionError
from outcrop.train import TrainOptions, loop
from outcrop.train.option_field import Panel, Shown
from tests.stores import make_random_store

# For each option a value that is not its default, and what must be given with it.
OTHERS: dict[str, Any] = {
    "model": "gcn", "model_args": {"width": 64, "skip": [1, 2]}, "epochs": 3, "lr": 0.1,
    "batch_size": 7, "num_neighbors": [4, -1, 2],
    "memory": "1GB", "strategy": "mmap", "device": "cpu", "checkpoint_dir": "runs/1",
    "resume": True, "layers": 2, "hidden": 12, "heads": 2, "dropout": 0.25, "precision": "bf16",
    "residual": True, "norm": "layer", "jk": "cat", "normalize_rows": True,
    "sampler": "shadow", "batching": "partition:macro=3", "history": "staleness=10:nodes=100",
    "replace": True, "seed": 5,
    "deterministic": True, "weight_decay": 0.01,
    "optimizer": "adamw", "momentum": 0.5, "decay": "weights", "clip": 1.5, "schedule": "cosine",
    "warmup_epochs": 0.5, "lr_min": 0.001, "lr_factor": 0.5, "lr_epochs": 4, "lr_patience": 2,
    "loss": "huber", "label_smoothing": 0.1, "class_weights": [1.0, 2.5], "metric": "roc_auc",
    "evaluate": "none", "evaluate_every": 2, "patience": 3, "min_delta": 0.01,
    "strict_memory": True, "disk": "5GB", "check": True, "checkpoint_every": 9,
}  # fmt: skip
WITH: dict[str, dict[str, Any]] = {
    "resume": {"checkpoint_dir": "runs/1"},
    "model_args": {"model": "my.models:make"},
}
NAMES = [field.name for field in fields(TrainOptions)]

Ask = Callable[..., TrainOptions]


@pytest.fixture
def ask(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Ask:
    """The options that a command line comes to."""
    make_random_store(tmp_path / "s").close()
    asked: list[TrainOptions] = []

    def fit(store: Any, options: TrainOptions, **_: Any) -> None:
        asked.append(options)
        raise KeyboardInterrupt

    monkeypatch.setattr(loop, "fit", fit)
    monkeypatch.setenv("THP_MEM_ALLOC_ENABLE", "")  # put back afterwards
    monkeypatch.chdir(tmp_path)

    def of(*flags: str) -> TrainOptions:
        done = CliRunner().invoke(app, ["train", "s", *flags])
        if done.exit_code != 130:
            raise OptionError(done.stderr)
        return asked[-1]

    return of


def flags_of(values: dict[str, Any]) -> list[str]:
    flags = []
    for name, value in values.items():
        flags.append(f"--{name.replace('_', '-')}")
        if isinstance(value, list):
            flags.append(",".join(map(str, value)))
        elif isinstance(value, dict):
            flags.append(json.dumps(value))
        elif value is not True:
            flags.append(str(value))
    return flags


@pytest.mark.parametrize("name", NAMES)
def test_python_yaml_and_the_command_line_say_the_same(ask: Ask, name: str) -> None:
    values = {**WITH.get(name, {}), name: OTHERS[name]}
    options = TrainOptions.from_dict(values)
    assert options.as_dict()[name] != TrainOptions().as_dict()[name]
    assert ask(*flags_of(values)) == options
    dashed = {name.replace("_", "-"): value for name, value in values.items()}
    for content in (values, dashed):
        Path("run.yaml").write_text(yaml.safe_dump(content))
        assert ask("--config", "run.yaml") == options


def test_the_command_line_wins_over_yaml(ask: Ask) -> None:
    Path("run.yaml").write_text("epochs: 7\nhidden: 8\nnum-neighbors: 5,5,5\n")
    options = ask("--config", "run.yaml", "--epochs", "2")
    assert (options.epochs, options.hidden, options.num_neighbors) == (2, 8, (5, 5, 5))


def test_without_options_all_are_as_in_python(ask: Ask) -> None:
    assert ask() == TrainOptions()


def parameters() -> dict[str, Any]:
    """The command's parameters: names of options and their panels."""
    [command] = [one for one in app.registered_commands if one.callback.__name__ == "train"]  # type: ignore[union-attr]
    made: Any = typer.main.get_command_from_info(
        command, pretty_exceptions_short=False, rich_markup_mode="rich"
    )
    return {one.name: one for one in made.params}


def test_every_field_is_an_option_in_its_panel_with_a_short_sentence() -> None:
    found = parameters()
    assert set(found) == {"store", *NAMES, "config", "record", "report", "log"}
    for field in fields(TrainOptions):
        shown: Shown = field.metadata["shown"]
        option = found[field.name]
        assert option.opts == [f"--{field.name.replace('_', '-')}"]
        assert option.rich_help_panel == (None if shown.panel == "Options" else shown.panel)
        assert shown.panel in get_args(Panel)
        assert shown.text.endswith(".") and len(shown.text) < 90, "one short sentence"
        if field.default not in (None, (), False, MISSING) or type(field.default) in (int, float):
            assert option.show_default, field.name
    assert {found[name].rich_help_panel for name in ("record", "report", "log")} == {"Output"}


def test_a_newcomer_sees_about_ten_options_first() -> None:
    first = [one for one in parameters().values() if one.rich_help_panel is None]
    options = [one.name for one in first if one.param_type_name == "option"]
    assert 8 <= len(options) <= 12
    assert {"model", "epochs", "lr", "memory", "strategy", "checkpoint_dir", "config"} <= {*options}
    help_text = CliRunner().invoke(app, ["train", "--help"]).stdout
    panels = ["Options", *get_args(Panel)[1:], "Output"]
    places = [help_text.index(f"─ {panel} ─") for panel in panels]
    assert places == sorted(places)


def test_choices_are_those_of_the_type(ask: Ask) -> None:
    assert "gcn, gat or gin" in parameters()["model"].help
    with pytest.raises(OptionError, match="precision must be one of fp32, bf16"):
        ask("--precision", "fp8")


def test_the_signature_says_what_can_be_given() -> None:
    assert set(NAMES) < set(inspect.signature(train).parameters)
