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
        ({"model": "mlp"}, "sage, gcn, gat, gin"),
        ({"layers": 4, "num_neighbors": [10] * 3}, "an entry per layer: 4"),
        ({"layers": 2, "num_neighbors": [10] * 4}, "or one more"),
        ({"layers": 0, "num_neighbors": []}, "layers must be at least 1"),
        ({"model": "gat", "hidden": 10, "heads": 4}, "multiple of heads"),
        ({"dropout": 1.0}, "dropout"),
        ({"resume": True}, "checkpoint_dir"),
        ({"sampler": "shadow", "evaluate": "full"}, "evaluate=full"),
        ({"epoch": 3}, "no option 'epoch'"),
        ({"epochs": "3"}, "epochs cannot be '3'"),
        ({"epochs": True}, "epochs cannot be True"),
        ({"num_neighbors": [1, "x", 2]}, "num_neighbors cannot be"),
    ],
)
def test_bad_options_are_named(values: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        TrainOptions.from_dict(values)


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


@pytest.mark.parametrize("text", ["- 1\n- 2\n", "a: [", "epochs: 3\nunknown: 1\n"])
def test_a_bad_file_is_named(tmp_path: Path, text: str) -> None:
    config = tmp_path / "run.yaml"
    config.write_text(text)
    with pytest.raises(OptionError, match=r"run\.yaml"):
        TrainOptions.from_dict(read_config(config), str(config))
