"""Checkpoints: model, optimizer, random state and position -> one file, whole or not at all.

A safetensors file: tensors by name, and the rest as JSON in its header, with a digest of both.
Nothing in it is executed when it is read.
"""

from __future__ import annotations

import json
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import xxhash
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import nn
from torch.nn.parameter import is_lazy

from outcrop.errors import CorruptError, StoreError
from outcrop.schema import parse, parse_json
from outcrop.store.locks import replace_synced

_FORMAT = "outcrop-checkpoint"
_VERSION = 2
# Written before there were digests.
_UNCHECKED_VERSION = 1
_DIGEST = "outcrop-digest"


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
    name: str = "the checkpoint"
    """In messages: where it was read from."""


@dataclass(frozen=True)
class _Header:
    """What the file says beside its tensors."""

    format: str
    version: int
    facts: dict[str, Any]
    optimizer_groups: list[dict[str, Any]]
    optimizer_plain: dict[str, dict[str, bool | int | float | None]]


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
    """StoreError, with what does not fit, where it is of another model or optimizer."""
    load_weights(checkpoint, model)
    _load_optimizer(checkpoint, optimizer)
    if "cpu" not in checkpoint.random:
        raise StoreError(f"{checkpoint.name}: has no random state")
    try:
        torch.set_rng_state(checkpoint.random["cpu"])
        if "cuda" in checkpoint.random and torch.cuda.is_available():
            torch.cuda.set_rng_state(checkpoint.random["cuda"])
    except (RuntimeError, TypeError) as error:
        raise StoreError(f"{checkpoint.name}: its random state is none: {error}") from error


def load_weights(checkpoint: Checkpoint, model: nn.Module) -> None:
    """StoreError, with what does not fit, where they are of another model."""
    check_weights(checkpoint, model)
    model.load_state_dict(checkpoint.model)


def check_weights(checkpoint: Checkpoint, model: nn.Module) -> None:
    """StoreError, with what does not fit, where they are of another model."""
    own = model.state_dict()
    for name in sorted({*own, *checkpoint.model}):
        there, wanted = checkpoint.model.get(name), own.get(name)
        if wanted is not None and there is not None and is_lazy(wanted):
            continue
        if _described(there) != _described(wanted):
            raise StoreError(
                f"{checkpoint.name}: of another model: {name} is {_described(there)} there, and "
                f"{_described(wanted)} here"
            )


def _described(tensor: torch.Tensor | None) -> str:
    if tensor is None:
        return "nothing"
    return f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"


def _load_optimizer(checkpoint: Checkpoint, optimizer: torch.optim.Optimizer) -> None:
    own = optimizer.state_dict()["param_groups"]
    groups = checkpoint.optimizer.get("param_groups", [])
    if [group.get("params") for group in groups] != [group["params"] for group in own]:
        raise StoreError(f"{checkpoint.name}: its optimizer is one of other parameters")
    # What an earlier torch did not write has its default.
    groups = [{**mine, **saved} for mine, saved in zip(own, groups, strict=True)]
    for mine, saved in zip(own, groups, strict=True):
        for name in mine:
            if not _alike(mine[name], saved[name]):
                raise StoreError(
                    f"{checkpoint.name}: the optimizer's {name} cannot be {saved[name]!r}"
                )
    state = checkpoint.optimizer.get("state", {})
    _check_state(checkpoint.name, state, optimizer)
    optimizer.load_state_dict({"state": state, "param_groups": groups})


def _check_state(
    name: str, state: dict[int, dict[str, Any]], optimizer: torch.optim.Optimizer
) -> None:
    """The state of each parameter has the same parts: numbers, and tensors of its own shape."""
    parameters = [one for group in optimizer.param_groups for one in group["params"]]
    parts = set(next(iter(state.values()), {}))
    for index, values in state.items():
        if index >= len(parameters) or set(values) != parts:
            raise StoreError(f"{name}: the optimizer's state {index} is not one of its parameters")
        for part, value in values.items():
            if not isinstance(value, torch.Tensor) or value.numel() == 1:
                continue
            if value.shape != parameters[index].shape or not value.is_floating_point():
                raise StoreError(
                    f"{name}: the optimizer's {part} {index} is {_described(value)} there, and its "
                    f"parameter {_described(parameters[index])}"
                )


def _alike(mine: Any, saved: Any) -> bool:
    """Whether a value may take the place of an optimizer's own: JSON has lists for tuples."""
    if isinstance(mine, (list, tuple)):
        return (
            isinstance(saved, (list, tuple))
            and len(saved) == len(mine)
            and all(map(_alike, mine, saved))
        )
    if mine is None or isinstance(mine, bool):
        return saved is None or isinstance(saved, bool)
    return isinstance(saved, (int, float)) and not isinstance(saved, bool)


# The file


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
    text = json.dumps(header)
    data = save(tensors, {_FORMAT: text, _DIGEST: _digest(text, tensors)})
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_synced(path, data)


def load_checkpoint(path: Path) -> Checkpoint:
    """StoreError where it is none, or damaged; FileNotFoundError where nothing is there."""
    if not path.exists():
        raise FileNotFoundError(f"no checkpoint at {path}")
    text, digest, tensors = _read(path)
    if digest is not None and digest != _digest(text, tensors):
        raise CorruptError(f"{path}: its content differs from its checksum: it is damaged")
    header = _parse_header(path, text)
    if digest is None:
        if header.version != _UNCHECKED_VERSION:
            raise CorruptError(f"{path}: has no checksum: it is damaged")
        warnings.warn(
            f"{path}: saved by an earlier version, without a checksum: if it is damaged, nobody "
            "will notice",
            stacklevel=2,
        )
    checkpoint = Checkpoint(model={}, facts=header.facts, name=str(path))
    state: dict[int, dict[str, Any]] = {}
    for index, values in header.optimizer_plain.items():
        state[_index(path, index)] = dict(values)
    for name, value in tensors.items():
        part, _, rest = name.partition(".")
        if part == "model":
            checkpoint.model[rest] = value
        elif part == "random":
            checkpoint.random[rest] = value
        elif part == "optimizer":
            index, _, key = rest.partition(".")
            state.setdefault(_index(path, index), {})[key] = value
        else:
            raise CorruptError(f"{path}: has a tensor {name!r}, which checkpoints do not have")
    checkpoint.optimizer = {"state": state, "param_groups": header.optimizer_groups}
    return checkpoint


def _read(path: Path) -> tuple[str, str | None, dict[str, torch.Tensor]]:
    """The header's text, the digest (None: it has none) and the tensors; nothing is checked."""
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            # Copies: else they are of a map of the file, and change, or end the process, with it.
            tensors = {n: file.get_tensor(n).clone() for n in file.keys()}  # noqa: SIM118
        return metadata[_FORMAT], metadata.get(_DIGEST), tensors
    except (SafetensorError, KeyError, ValueError, TypeError, RuntimeError) as error:
        raise StoreError(f"{path}: not a checkpoint of Outcrop, or damaged: {error}") from error


def _parse_header(path: Path, text: str) -> _Header:
    values = parse_json(text.encode(), str(path))
    version = values.get("version") if isinstance(values, dict) else None
    if isinstance(values, dict) and version not in (_UNCHECKED_VERSION, _VERSION):
        raise StoreError(
            f"{path}: a checkpoint of version {version!r}; this reads {_UNCHECKED_VERSION} and "
            f"{_VERSION}"
        )
    return parse(_Header, values, str(path))


def _index(path: Path, text: str) -> int:
    if not text.isdecimal() or len(text) > 9:
        raise CorruptError(f"{path}: optimizer state of a parameter {text!r}, which is no number")
    return int(text)


def _digest(text: str, tensors: dict[str, torch.Tensor]) -> str:
    """The digest of the header and of every tensor, with its name, type and shape."""
    digest = xxhash.xxh3_128(text.encode())
    for name in sorted(tensors):
        value = tensors[name]
        digest.update(json.dumps([name, str(value.dtype), list(value.shape)]).encode())
        digest.update(value.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
