"""Loaders' arguments, as PyG users give them -> what ours take, or a sentence that says what to do.

Arguments of PyG's and torch's loaders that would mean nothing here are in every script: those that
only change speed are ignored, with one warning; those that would change batches are refused.
"""

from __future__ import annotations

import operator
import os
import warnings
from enum import Enum
from typing import Any

import torch
from torch_geometric.data import Data, Dataset, HeteroData

from outcrop.errors import OptionError
from outcrop.store.store import GraphStore

# Batches are the same with and without.
_IGNORED = (
    "num_workers",
    "pin_memory",
    "persistent_workers",
    "prefetch_factor",
    "pin_memory_device",
    "multiprocessing_context",
    "worker_init_fn",
    "timeout",
    "filter_per_worker",
    "in_order",
)
# True of every store.
_ACCEPTED = ("is_sorted",)

_DIRECTIONAL = "batches have the sampled edges alone; ShaDowLoader has all edges among their nodes"
_TEMPORAL = "temporal sampling is not there yet"
_OWN_ORDER = "seeds are ordered by shuffle= and seed=; with Lightning use outcrop.loader.lightning"
# What else PyG and torch take, and what to do instead.
_REFUSED = {
    "subgraph_type": _DIRECTIONAL,
    "directed": _DIRECTIONAL,
    "disjoint": "the seeds of a batch share their nodes; ShaDowLoader has a subgraph per seed",
    "temporal_strategy": _TEMPORAL,
    "time_attr": _TEMPORAL,
    "input_time": _TEMPORAL,
    "weight_attr": "weighted sampling is not there yet",
    "sampler": _OWN_ORDER,
    "batch_sampler": _OWN_ORDER,
    "generator": "randomness comes from seed=",
    "collate_fn": "use transform=",
    "transform_sampler_output": "use transform=",
    "custom_cls": "use transform=",
    "neighbor_sampler": "the store's own sampler is used",
    "node_sampler": "the store's own sampler is used",
    "node_idx": "give input_nodes=",
    "input_id": "input ids are positions among input_nodes",
    "dataset": "the store is the first argument",
}
# Values that say nothing: PyG's and torch's defaults. None is one of every argument.
_USUAL: dict[str, tuple[Any, ...]] = {
    "subgraph_type": ("directional",),
    "directed": (True,),
    "temporal_strategy": ("uniform",),
    "in_order": (True,),
}
_NOTHING = (False, 0, "")

_told: set[str] = set()


def as_store(data: Any) -> GraphStore:
    """A store, or its path -> the store. What PyG's loaders take is told how to become one."""
    if isinstance(data, GraphStore):
        return data
    if isinstance(data, str | os.PathLike):
        return GraphStore(data)
    expected = f"expected a store, or the path of one (got {type(data).__name__})"
    if isinstance(data, HeteroData):
        raise OptionError(f"{expected}: graphs of several node types are not there yet")
    if isinstance(data, Data | Dataset):
        raise OptionError(
            f'{expected}: make one once, store = outcrop.from_pyg(data, "graph.outcrop"), and give '
            "the store in place of the data"
        )
    raise OptionError(expected)


def sort_out(loader: str, rest: dict[str, Any], stacklevel: int) -> None:
    """Ignores, with a warning, or refuses arguments that a loader does not have.

    `stacklevel`: as warnings.warn takes it, seen from the caller.
    """
    given = [name for name, value in rest.items() if not _says_nothing(name, value)]
    for name in rest:
        if name not in (*_IGNORED, *_ACCEPTED, *_REFUSED):
            raise TypeError(f"{loader} has no argument {name!r}")
    for name in given:
        if name in _REFUSED:
            raise OptionError(f"{name}={_shown(rest[name])} cannot be used: {_REFUSED[name]}")
    news = [name for name in _IGNORED if name in given and name not in _told]
    if news:
        _told.update(news)
        warnings.warn(
            f"{loader} ignores {', '.join(news)}: threads prepare batches ahead, as many as "
            "memory= allows, and with device= they arrive there",
            stacklevel=stacklevel + 1,
        )


def _says_nothing(name: str, value: Any) -> bool:
    """Whether it is the default. Only plain values are compared: a tensor has no truth value."""
    plain = value.value if isinstance(value, Enum) else value
    if plain is None:
        return True
    return isinstance(plain, bool | int | float | str) and plain in _USUAL.get(name, _NOTHING)


def _shown(value: Any) -> str:
    plain = value.value if isinstance(value, Enum) else value
    if isinstance(plain, bool | int | float | str):
        return repr(plain)
    return f"a {type(value).__name__}"


def whole_number(name: str, value: Any) -> int:
    """Counts of Python, numpy or torch."""
    try:
        return operator.index(value)
    except TypeError:
        raise OptionError(f"{name} must be a whole number (got {value!r})") from None


def as_device(device: Any) -> torch.device:
    try:
        return torch.device(device)
    except (RuntimeError, TypeError):
        raise OptionError(
            f"device must be one that torch knows, such as 'cuda' (got {device!r})"
        ) from None
