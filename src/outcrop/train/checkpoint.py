"""Checkpoints: model, optimizer, random state and position -> one file, whole or not at all.

A safetensors file: tensors by name, and the rest as JSON in its header. Nothing in it is executed
when it is read.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import nn

from outcrop.errors import StoreError
from outcrop.store.locks import replace_synced

_FORMAT = "outcrop-checkpoint"
_VERSION = 1


@dataclass
class Checkpoint:
    """What a run is made of, at one instant."""

    model: dict[str, torch.Tensor]
    optimizer: dict[str, Any] = field(default_factory=dict)
    """As the optimizer's own state_dict."""
    random: dict[str, torch.Tensor] = field(default_factory=dict)
    """States of torch's generators, by device."""
    facts: dict[str, Any] = field(default_factory=dict)
    """Plain values: options, loader position, history ..."""


def take_checkpoint(
    model: nn.Module, optimizer: torch.optim.Optimizer, facts: dict[str, Any]
) -> Checkpoint:
    """The current state; tensors are not copied, so save it before the next step."""
    random = {"cpu": torch.get_rng_state()}
    if torch.cuda.is_available():
        random["cuda"] = torch.cuda.get_rng_state()
    return Checkpoint(model.state_dict(), optimizer.state_dict(), random, facts)


def restore_checkpoint(
    checkpoint: Checkpoint, model: nn.Module, optimizer: torch.optim.Optimizer
) -> None:
    model.load_state_dict(checkpoint.model)
    optimizer.load_state_dict(checkpoint.optimizer)
    torch.set_rng_state(checkpoint.random["cpu"])
    if "cuda" in checkpoint.random and torch.cuda.is_available():
        torch.cuda.set_rng_state(checkpoint.random["cuda"])


def save_checkpoint(path: Path, checkpoint: Checkpoint) -> None:
    """Written beside its name, synced and renamed: a crash leaves the old one or the new one."""
    tensors = {f"model.{name}": value for name, value in checkpoint.model.items()}
    tensors |= {f"random.{name}": value for name, value in checkpoint.random.items()}
    plain_state: dict[str, dict[str, Any]] = {}
    for index, state in checkpoint.optimizer.get("state", {}).items():
        for name, value in state.items():
            if isinstance(value, torch.Tensor):
                tensors[f"optimizer.{index}.{name}"] = value
            else:
                plain_state.setdefault(str(index), {})[name] = value
    header = {
        "format": _FORMAT,
        "version": _VERSION,
        "optimizer_groups": checkpoint.optimizer.get("param_groups", []),
        "optimizer_plain": plain_state,
        "facts": checkpoint.facts,
    }
    tensors = {name: value.detach().cpu().contiguous() for name, value in tensors.items()}
    data = save(tensors, {_FORMAT: json.dumps(header)})
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_synced(path, data)


def load_checkpoint(path: Path) -> Checkpoint:
    """StoreError where it is none; FileNotFoundError where nothing is there."""
    if not path.exists():
        raise FileNotFoundError(f"no checkpoint at {path}")
    try:
        with safe_open(path, framework="pt") as file:
            header = json.loads((file.metadata() or {})[_FORMAT])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, KeyError, ValueError) as error:
        raise StoreError(f"{path}: not a checkpoint of Outcrop, or damaged: {error}") from error
    if header.get("version") != _VERSION:
        raise StoreError(f"{path}: a checkpoint of version {header.get('version')}, not {_VERSION}")
    checkpoint = Checkpoint(model={}, facts=header["facts"])
    state: dict[int, dict[str, Any]] = {
        int(index): values for index, values in header["optimizer_plain"].items()
    }
    for name, value in tensors.items():
        part, rest = name.split(".", 1)
        if part == "model":
            checkpoint.model[rest] = value
        elif part == "random":
            checkpoint.random[rest] = value
        else:
            index, key = rest.split(".", 1)
            state.setdefault(int(index), {})[key] = value
    checkpoint.optimizer = {"state": state, "param_groups": header["optimizer_groups"]}
    return checkpoint
