"""Training options: checked at the door, the same from Python, YAML and the command line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from outcrop.errors import OptionError
from outcrop.train.options import TrainOptions, read_config


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"model": "mlp"}, "sage, gcn, gat, gin or module:factory .got 'mlp'"),
        ({"model": "a-b:c"}, "or module:factory"),
        ({"model": "a:"}, "or module:factory"),
        ({"model": "a..b:c"}, "or module:factory"),
        ({"model": 3}, "or module:factory"),
        ({"model_args": {"width": 3}}, "model_args are for a model of your own"),
        ({"model": "a:b", "model_args": [3]}, "model_args must be names and plain values"),
        ({"model": "a:b", "model_args": {3: 4}}, "model_args must be"),
        ({"model": "a:b", "model_args": {"x": float("nan")}}, "model_args must be"),
        ({"model": "a:b", "model_args": {"x": {1, 2}}}, "model_args must be"),
        ({"layers": 4, "num_neighbors": [10] * 3}, "an entry per layer: 4"),
        ({"layers": 2, "num_neighbors": [10] * 4}, "or one more"),
        ({"layers": 0, "num_neighbors": []}, "layers must be a whole number from 1"),
        ({"model": "gat", "hidden": 10, "heads": 4}, "multiple of heads"),
        ({"dropout": 1.0}, "dropout"),
        ({"resume": True}, "checkpoint_dir"),
        ({"sampler": "shadow", "evaluate": "full"}, "evaluate=full"),
        ({"epoch": 3}, "no option 'epoch'"),
        ({"epochs": "3"}, "epochs must be a whole number of at least 0 .got '3'"),
        ({"epochs": True}, "epochs must be .*True"),
        ({"num_neighbors": [1, "x", 2]}, r"num_neighbors\[1\] must be"),
        ({"num_neighbors": [1, 1 << 40, 2]}, r"num_neighbors\[1\] must be"),
        ({"num_neighbors": 10}, "num_neighbors must be a list"),
        ({"lr": float("nan")}, "lr must be a number"),
        ({"lr": float("inf")}, "lr must be"),
        ({"lr": -0.1}, "lr must be a number of at least 0"),
        ({"weight_decay": float("nan")}, "weight_decay must be"),
        ({"dropout": float("nan")}, "dropout must be"),
        ({"hidden": 10**12}, "hidden must be a whole number from 1 to"),
        ({"layers": 10**9}, "layers must be"),
        ({"epochs": 10**400}, "epochs must be .*a whole number of 1329 bits"),
        ({"seed": 1 << 64}, "seed must be"),
        ({"memory": 1 << 70}, "memory must be"),
        ({"memory": float("nan")}, "memory must be text or a whole number"),
        ({"checkpoint_dir": ["runs"]}, "checkpoint_dir must be"),
        ({3: 4}, "no option 3"),
        ({"lr": 0.1, "lr_min": 0.2}, "lr_min must be at most lr .got 0.2 and 0.1"),
        ({"schedule": "plateau", "evaluate": "none"}, "plateau needs evaluations"),
        ({"lr_factor": 1.5}, "lr_factor must be a number from 0 to 1"),
        ({"batching": "parts"}, r"batching is random or partition .got 'parts'"),
        ({"batching": "partition:part=3"}, "batching: no option 'part'; it has parts, macro, seed"),
        ({"history": "stale=3"}, "history: no option 'stale'; it has"),
        ({"clip": -1}, "clip must be a number of at least 0"),
    ],
)
def test_bad_options_are_named(values: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=rf"^here: .*{message}"):
        TrainOptions.from_dict(values, "here")


def test_options_that_python_gives_are_held_to_the_same() -> None:
    with pytest.raises(OptionError, match=r"^epochs must be"):
        TrainOptions(epochs="3")  # type: ignore[arg-type]
    assert TrainOptions(layers=2, num_neighbors=[5, 5]).num_neighbors == (5, 5)  # type: ignore[arg-type]


def test_without_num_neighbors_every_layer_samples_ten() -> None:
    assert TrainOptions(layers=2).num_neighbors == (10, 10)
    assert TrainOptions(layers=2, num_neighbors=(5, 5, 5)).num_neighbors == (5, 5, 5)


def test_plain_values_and_back() -> None:
    options = TrainOptions(model="gat", layers=2, num_neighbors=(5, -1), lr=1e-3)
    assert TrainOptions.from_dict(options.as_dict()) == options


def test_yaml_has_the_names_of_the_command_line(tmp_path: Path) -> None:
    config = tmp_path / "run.yaml"
    config.write_text("batch-size: 64\nnum-neighbors: [5, 5, 5]\nlr: 0.01\nmemory: 1GB\n")
    options = TrainOptions.from_dict(read_config(config), str(config))
    assert (options.batch_size, options.num_neighbors, options.lr) == (64, (5, 5, 5), 0.01)


@pytest.mark.parametrize(
    "text",
    [
        b"- 1\n- 2\n",
        b"a: [",
        b"epochs: 3\nunknown: 1\n",
        "device: café".encode("latin-1"),
        b"lr: \xff\xfe",
        b"\x00",
        b"lr: .nan",
        b"lr: .inf",
        b"lr: 1.0e+400",
        b"epochs: " + b"9" * 5000,
        b"epochs: 99999999999999999999999999",
        b"epochs: 2020-13-45",
        b"epochs: 2020-01-05",
        b"a: " + b"[" * 5000,
        b"batch-size: 3\nbatch_size: 4\n",
        b"? [1, 2]\n: 3",
        b"epochs: {a: 1}",
    ],
)
def test_a_bad_file_is_named(tmp_path: Path, text: bytes) -> None:
    config = tmp_path / "run.yaml"
    config.write_bytes(text)
    with pytest.raises(OptionError, match=r"run\.yaml"):
        TrainOptions.from_dict(read_config(config), str(config))
