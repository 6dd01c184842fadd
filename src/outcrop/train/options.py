"""Options of training: the same names in Python, on the command line and in YAML."""

from __future__ import annotations

import types
import typing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from outcrop.errors import OptionError

_CHOICES = {
    "model": ("sage", "gcn", "gat", "gin"),
    "sampler": ("neighbor", "shadow"),
    "precision": ("fp32", "bf16"),
    "evaluate": ("sampled", "full", "none"),
    "metric": ("accuracy", "roc_auc"),
}
_USUAL_NEIGHBORS = 10
_AT_LEAST = {"layers": 1, "hidden": 1, "heads": 1, "epochs": 0, "batch_size": 1, "seed": 0,
             "patience": 0, "checkpoint_every": 0, "evaluate_every": 1}  # fmt: skip


@dataclass(frozen=True)
class TrainOptions:
    """How a model is trained."""

    model: Literal["sage", "gcn", "gat", "gin"] = "sage"
    layers: int = 3
    hidden: int = 256
    heads: int = 4
    """Attention heads of gat."""
    dropout: float = 0.5
    sampler: Literal["neighbor", "shadow"] = "neighbor"
    num_neighbors: tuple[int, ...] = ()
    """Per hop; -1 takes all. Empty: 10 per layer. One hop more than layers shows gcn the degrees of
    all that it uses."""
    replace: bool = False
    batch_size: int = 1000
    strategy: str = "auto"
    memory: str | int = "8GB"
    strict_memory: bool = False
    """Ends where a batch needs more memory than is left, instead of serving it with a warning."""
    disk: str | int | None = None
    epochs: int = 10
    lr: float = 0.003
    weight_decay: float = 0.0
    seed: int = 0
    device: str = "auto"
    precision: Literal["fp32", "bf16"] = "fp32"
    metric: Literal["accuracy", "roc_auc"] = "accuracy"
    evaluate: Literal["sampled", "full", "none"] = "sampled"
    """Validation on sampled neighbourhoods, or on full ones, layer by layer from disk."""
    evaluate_every: int = 1
    """Epochs between evaluations."""
    patience: int = 0
    """Ends after so many evaluations without a better one; 0: never."""
    checkpoint_dir: str | None = None
    checkpoint_every: int = 0
    """Batches between checkpoints; 0: after each epoch only."""
    resume: bool = False
    deterministic: bool = False
    """The same weights whatever the number of threads."""
    check: bool = False
    """Whether whatever is read of the store is compared with its checksums first."""

    def __post_init__(self) -> None:
        for name, allowed in _CHOICES.items():
            if getattr(self, name) not in allowed:
                raise OptionError(
                    f"{name} must be one of {', '.join(allowed)} (got {getattr(self, name)!r})"
                )
        for name, least in _AT_LEAST.items():
            if getattr(self, name) < least:
                raise OptionError(f"{name} must be at least {least} (got {getattr(self, name)})")
        if not 0 <= self.dropout < 1:
            raise OptionError(f"dropout must be 0 to 1 (got {self.dropout})")
        if not self.num_neighbors:
            object.__setattr__(self, "num_neighbors", (_USUAL_NEIGHBORS,) * self.layers)
        hops = len(self.num_neighbors)
        if self.sampler == "neighbor" and hops not in (self.layers, self.layers + 1):
            raise OptionError(
                f"num_neighbors needs an entry per layer: {self.layers}, or one more "
                f"(got {list(self.num_neighbors)})"
            )
        if self.model == "gat" and self.hidden % self.heads:
            raise OptionError(
                f"hidden must be a multiple of heads (got {self.hidden} and {self.heads})"
            )
        if self.sampler == "shadow" and self.evaluate == "full":
            raise OptionError(
                "evaluate=full is for neighbor sampling; shadow has its own subgraphs"
            )
        if self.resume and self.checkpoint_dir is None:
            raise OptionError("resume needs checkpoint_dir")

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {**asdict(self), "num_neighbors": list(self.num_neighbors)}

    @classmethod
    def from_dict(cls, values: dict[str, Any], where: str = "options") -> TrainOptions:
        """OptionError names what does not belong there."""
        kinds = typing.get_type_hints(cls)
        for name, value in values.items():
            if name not in kinds:
                raise OptionError(f"{where}: no option {name!r}; there are {', '.join(kinds)}")
            if not _fits(value, kinds[name]):
                raise OptionError(f"{where}: {name} cannot be {value!r}")
        given = dict(values)
        if "num_neighbors" in given:
            given["num_neighbors"] = tuple(given["num_neighbors"])
        return cls(**given)


def read_config(path: Path) -> dict[str, Any]:
    """A YAML file -> the options that it gives; names may be written with - or _."""
    import yaml

    try:
        loaded = yaml.safe_load(path.read_text())
    except yaml.YAMLError as error:
        raise OptionError(f"{path}: {error}") from error
    if loaded is None:
        return {}
    if not isinstance(loaded, dict):
        raise OptionError(f"{path}: expected names and values, as in 'epochs: 10'")
    return {str(name).replace("-", "_"): value for name, value in loaded.items()}


def _fits(value: Any, kind: Any) -> bool:
    """Whether a value from outside is of an annotated type."""
    origin = typing.get_origin(kind)
    if origin in (typing.Union, types.UnionType):
        return any(_fits(value, one) for one in typing.get_args(kind))
    if origin is Literal:
        return type(value) is str  # which, is checked with a better message
    if origin is tuple:
        return isinstance(value, (list, tuple)) and all(type(v) is int for v in value)
    if kind is float:
        return type(value) in (int, float)
    return type(value) is kind or (value is None and kind is type(None))
