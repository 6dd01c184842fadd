"""Options of training: the same names in Python, on the command line and in YAML."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from outcrop.errors import OptionError
from outcrop.schema import AtLeast, Between, Count, Made, check_fields, shown

_USUAL_NEIGHBORS = 10

# Files of a checkpoint_dir.
LAST = "last.safetensors"
BEST = "best.safetensors"

Positive = Annotated[int, AtLeast(1)]
Rate = Annotated[float, AtLeast(0)]


def _class_weights(given: Any) -> str | tuple[float, ...]:
    """Names and lists, and text as the command line has it: "1,2.5"."""
    if given in ("none", "balanced"):
        return str(given)
    weights = given.split(",") if isinstance(given, str) else given
    if not isinstance(weights, (list, tuple)) or not weights:
        raise ValueError
    numbers = tuple(map(float, weights))
    if not all(0 <= number < float("inf") for number in numbers):
        raise ValueError
    return numbers


ClassWeights = Annotated[
    str | tuple[float, ...],
    Made(_class_weights, "none, balanced, or a list of numbers of at least 0"),
]


@dataclass(frozen=True)
class TrainOptions:
    """How a model is trained."""

    model: Literal["sage", "gcn", "gat", "gin"] = "sage"
    layers: Annotated[int, Between(1, 1000)] = 3
    hidden: Annotated[int, Between(1, 1 << 20)] = 256
    heads: Annotated[int, Between(1, 1 << 20)] = 4
    """Attention heads of gat."""
    dropout: float = 0.5
    residual: bool = False
    """Blocks that add to their input, each after a layer normalisation: for deep models."""
    norm: Literal["none", "layer", "batch"] = "none"
    """Between layers; residual models have layer normalisation."""
    jk: Literal["none", "last", "cat", "max", "lstm"] = "none"
    """Jumping knowledge: what of all layers the output is made of."""
    normalize_rows: bool = False
    """Scales each node's features to a sum of one, as bags of words are."""
    sampler: Literal["neighbor", "shadow"] = "neighbor"
    num_neighbors: tuple[Annotated[int, Between(-1, (1 << 31) - 1)], ...] = ()
    """Per hop; -1 takes all. Empty: 10 per layer. One hop more than layers shows gcn the degrees of
    all that it uses."""
    replace: bool = False
    batch_size: Positive = 1000
    strategy: str = "auto"
    memory: str | int = "8GB"
    strict_memory: bool = False
    """Ends where a batch needs more memory than is left, instead of serving it with a warning."""
    disk: str | int | None = None
    epochs: Count = 10
    lr: Rate = 0.003
    weight_decay: Rate = 0.0
    seed: Annotated[int, Between(0, (1 << 64) - 1)] = 0
    device: str = "auto"
    precision: Literal["fp32", "bf16"] = "fp32"
    loss: Literal["auto", "mse", "mae", "huber"] = "auto"
    """Of values; auto: mse. Classes have cross entropy, labels its binary form."""
    label_smoothing: Annotated[float, Between(0, 1)] = 0.0
    """Of classes: the share of each target that is spread over all of them."""
    class_weights: ClassWeights = "none"
    """What a class counts in the loss: none (all alike), balanced (the inverse of how often it
    occurs among training nodes), or a weight for each."""
    metric: Literal[
        "auto", "accuracy", "f1", "f1_micro", "roc_auc", "ap", "mae", "mse", "rmse", "r2"
    ] = "auto"
    """auto: accuracy of classes, roc_auc of labels, mae of values."""
    evaluate: Literal["sampled", "full", "none"] = "sampled"
    """Validation on sampled neighbourhoods, or on full ones, layer by layer from disk."""
    evaluate_every: Positive = 1
    """Epochs between evaluations."""
    patience: Count = 0
    """Ends after so many evaluations without a better one; 0: never."""
    checkpoint_dir: str | None = None
    checkpoint_every: Count = 0
    """Batches between checkpoints; 0: after each epoch only."""
    resume: bool = False
    deterministic: bool = False
    """The same weights whatever the number of threads."""
    check: bool = False
    """Whether whatever is read of the store is compared with its checksums first."""

    def __post_init__(self) -> None:
        check_fields(self, OptionError)
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
        if self.residual and (self.norm, self.jk) not in (("none", "none"), ("layer", "none")):
            raise OptionError("residual models have layer normalisation, and no jk")
        if self.evaluate == "full" and self.jk not in ("none", "last"):
            raise OptionError(f"evaluate=full computes layer by layer, and jk={self.jk} needs all")
        if self.sampler == "shadow" and self.evaluate == "full":
            raise OptionError(
                "evaluate=full is for neighbor sampling; shadow has its own subgraphs"
            )
        if self.resume and self.checkpoint_dir is None:
            raise OptionError("resume needs checkpoint_dir")

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        values = asdict(self)
        return {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in values.items()
        }

    @classmethod
    def from_dict(cls, values: dict[str, Any], where: str = "options") -> TrainOptions:
        """OptionError names what does not belong there."""
        for name in values:
            if name not in cls.__dataclass_fields__:
                known = ", ".join(cls.__dataclass_fields__)
                raise OptionError(f"{where}: no option {shown(name)}; there are {known}")
        try:
            return cls(**values)
        except OptionError as error:
            raise OptionError(f"{where}: {error}") from error


def read_config(path: Path) -> dict[str, Any]:
    """A YAML file -> the options that it gives; names may be written with - or _."""
    import yaml

    try:
        loaded = yaml.safe_load(path.read_bytes())
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        # ValueError: not UTF-8, no such date, a number of more digits than Python reads.
        raise OptionError(f"{path}: not YAML that can be read: {error}") from error
    if loaded is None:
        return {}
    if not isinstance(loaded, dict):
        raise OptionError(f"{path}: expected names and values, as in 'epochs: 10'")
    values: dict[str, Any] = {}
    for given, value in loaded.items():
        name = str(given).replace("-", "_")
        if name in values:
            raise OptionError(f"{path}: {name} is given twice, with - and with _")
        values[name] = value
    return values
