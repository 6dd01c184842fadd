"""Checkpoints: everything comes back, and a file that is not whole is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from outcrop.errors import StoreError
from outcrop.train.checkpoint import (
    Checkpoint,
    load_checkpoint,
    restore_checkpoint,
    save_checkpoint,
    take_checkpoint,
)


def step(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    model(torch.randn(5, 3)).square().sum().backward()
    optimizer.step()


def make() -> tuple[nn.Module, torch.optim.Optimizer]:
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(), nn.Linear(4, 2))
    return model, torch.optim.Adam(model.parameters(), lr=0.01)


def test_a_restored_run_goes_on_bit_by_bit(tmp_path: Path) -> None:
    torch.manual_seed(1)
    model, optimizer = make()
    for _ in range(3):
        step(model, optimizer)
    save_checkpoint(tmp_path / "c", take_checkpoint(model, optimizer, {"epoch": 2}))
    for _ in range(3):
        step(model, optimizer)

    torch.manual_seed(99)
    other, other_optimizer = make()
    checkpoint = load_checkpoint(tmp_path / "c")
    restore_checkpoint(checkpoint, other, other_optimizer)
    assert checkpoint.facts == {"epoch": 2}
    for _ in range(3):
        step(other, other_optimizer)
    for name, value in model.state_dict().items():
        assert torch.equal(value, other.state_dict()[name]), name


def test_an_older_checkpoint_is_replaced_whole(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "c"
    for value in (1.0, 2.0):
        save_checkpoint(path, Checkpoint({"w": torch.tensor([value])}))
    assert load_checkpoint(path).model["w"].item() == 2.0
    assert [file.name for file in path.parent.iterdir()] == ["c"]


def test_what_a_killed_writer_left_is_no_checkpoint_and_no_hindrance(tmp_path: Path) -> None:
    save_checkpoint(tmp_path / "c", Checkpoint({"w": torch.tensor([1.0])}))
    (tmp_path / ".c.writing").write_bytes(b"half")
    assert load_checkpoint(tmp_path / "c").model["w"].item() == 1.0
    save_checkpoint(tmp_path / "c", Checkpoint({"w": torch.tensor([2.0])}))
    assert [file.name for file in tmp_path.iterdir()] == ["c"]


@pytest.mark.parametrize("keep", [0, 7, 100, -1])
def test_a_truncated_file_is_refused(tmp_path: Path, keep: int) -> None:
    save_checkpoint(tmp_path / "c", Checkpoint({"w": torch.arange(100.0)}))
    data = (tmp_path / "c").read_bytes()
    (tmp_path / "c").write_bytes(data[:keep])
    with pytest.raises(StoreError, match="not a checkpoint"):
        load_checkpoint(tmp_path / "c")


def test_files_of_other_programs_are_refused(tmp_path: Path) -> None:
    torch.save({"w": torch.ones(1)}, tmp_path / "c")
    with pytest.raises(StoreError, match="not a checkpoint"):
        load_checkpoint(tmp_path / "c")
    with pytest.raises(FileNotFoundError):
        load_checkpoint(tmp_path / "none")
