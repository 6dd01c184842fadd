"""Options of training: the same names in Python, on the command line and in YAML.

A field of TrainOptions is the one home of an option: `outcrop train` makes its own of them.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Annotated, Any, Literal

from outcrop.errors import OptionError
from outcrop.sample.batching import PARTITION, RANDOM, batching_named
from outcrop.sample.history import history_named
from outcrop.schema import AtLeast, Between, Count, Made, check_fields, shown
from outcrop.strategies import STRATEGIES
from outcrop.train.option_field import option

_USUAL_NEIGHBORS = 10

# Files of a checkpoint_dir.
LAST = "last.safetensors"
BEST = "best.safetensors"

Positive = Annotated[int, AtLeast(1)]
Rate = Annotated[float, AtLeast(0)]


def _factory_name(value: Any) -> str:
    module, _, factory = value.partition(":") if isinstance(value, str) else ("", "", "")
    if not all(part.isidentifier() for part in [*module.split("."), factory]):
        raise ValueError
    return str(value)


OwnModel = Annotated[str, Made(_factory_name, "module:factory")]


def _plain_mapping(value: Any) -> dict[str, Any]:
    """As it will be when it comes back from a checkpoint."""
    if not isinstance(value, dict) or not all(isinstance(n, str) for n in value):
        raise ValueError
    try:
        return dict(json.loads(json.dumps(value, allow_nan=False)))
    except RecursionError:
        raise ValueError from None


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

    model: Literal["sage", "gcn", "gat", "gin"] | OwnModel = option(
        "sage", "What is trained (module:factory for your own)."
    )
    epochs: Count = option(10, "Passes over the training nodes.", may_change=True)
    lr: Rate = option(0.003, "Learning rate.")
    batch_size: Positive = option(1000, "Seeds per batch.")
    num_neighbors: tuple[Annotated[int, Between(-1, (1 << 31) - 1)], ...] = option(
        (),
        "Neighbours per hop; -1: all. A hop per layer, or one more.",
        metavar="N,N,...",
        shown_default=f"{_USUAL_NEIGHBORS} per layer",
    )
    memory: str | int = option("8GB", "Memory of the data path.", metavar="SIZE", may_change=True)
    strategy: str = option("auto", f"Who reads: auto, {', '.join(STRATEGIES)}.", may_change=True)
    device: str = option("auto", "auto, cpu, cuda, cuda:1 ...")
    checkpoint_dir: str | None = option(
        None, "Where the last and the best checkpoint are kept.", metavar="DIR", may_change=True
    )
    resume: bool = option(
        False, "Go on where --checkpoint-dir, which must exist, was left.", may_change=True
    )

    layers: Annotated[int, Between(1, 1000)] = option(3, "Layers.", "Model")
    hidden: Annotated[int, Between(1, 1 << 20)] = option(256, "Width of hidden layers.", "Model")
    heads: Annotated[int, Between(1, 1 << 20)] = option(4, "Attention heads of gat.", "Model")
    dropout: float = option(0.5, "Share of values dropped.", "Model")
    residual: bool = option(False, "Blocks that add to their input: for deep models.", "Model")
    norm: Literal["none", "layer", "batch"] = option(
        "none", "Normalisation between layers; residual models have their own.", "Model"
    )
    jk: Literal["none", "last", "cat", "max", "lstm"] = option(
        "none", "Jumping knowledge, what of all layers the output is made of.", "Model"
    )
    normalize_rows: bool = option(
        False, "Scale each node's features to a sum of one, as bags of words are.", "Model"
    )
    model_args: Annotated[dict[str, Any], Made(_plain_mapping, "names and plain values")] = option(
        {}, "Keyword arguments of your own model's factory.", "Model", metavar="JSON"
    )
    precision: Literal["fp32", "bf16"] = option(
        "fp32", "What the forward pass computes in.", "Model"
    )

    sampler: Literal["neighbor", "shadow"] = option(
        "neighbor", "One graph around all seeds, or one per seed.", "Sampling"
    )
    replace: bool = option(False, "Draw neighbours with replacement.", "Sampling")
    seed: Annotated[int, Between(0, (1 << 64) - 1)] = option(
        0, "Seed of weights, batches and dropout.", "Sampling"
    )
    batching: str = option(
        "auto",
        "Seeds of a batch: random, or partition (neighbours).",
        "Sampling",
        shown_default="partition for outre, else random",
    )
    history: str = option(
        "auto",
        "Embeddings used again: none, or options as staleness=100:share=0.3.",
        "Sampling",
        shown_default="staleness=100 for outre, else none",
    )
    deterministic: bool = option(False, "The same weights for any number of threads.", "Sampling")

    optimizer: Literal["adam", "adamw", "sgd"] = option("adam", "Which of torch's.", "Optimizer")
    momentum: Annotated[float, Between(0, 1)] = option(0.9, "Momentum of sgd.", "Optimizer")
    weight_decay: Rate = option(0.0, "Weight decay.", "Optimizer")
    decay: Literal["all", "weights"] = option(
        "all", "What decays (weights: no biases, no normalisations).", "Optimizer"
    )
    clip: Rate = option(0.0, "The most that the norm of gradients may be; 0: any.", "Optimizer")
    schedule: Literal["constant", "cosine", "linear", "step", "plateau"] = option(
        "constant", "How the learning rate goes on after warm-up.", "Optimizer"
    )
    warmup_epochs: Rate = option(
        0.0, "Epochs, or a part of one, in which the learning rate rises.", "Optimizer"
    )
    lr_min: Rate = option(0.0, "The learning rate that schedules end at.", "Optimizer")
    lr_factor: Annotated[float, Between(0, 1)] = option(
        0.1, "What step and plateau multiply the learning rate by.", "Optimizer"
    )
    lr_epochs: Positive = option(10, "Epochs between the drops of step.", "Optimizer")
    lr_patience: Positive = option(
        5, "Evaluations without a better one before plateau drops.", "Optimizer"
    )

    loss: Literal["auto", "mse", "mae", "huber"] = option(
        "auto", "Loss of values (auto: mse; classes have cross entropy).", "Targets and metrics"
    )
    label_smoothing: Annotated[float, Between(0, 1)] = option(
        0.0, "Share of each class that is spread over all.", "Targets and metrics"
    )
    class_weights: ClassWeights = option(
        "none",
        "none, balanced by how often classes occur, or a weight for each.",
        "Targets and metrics",
        metavar="W,W,...",
    )
    metric: Literal[
        "auto", "accuracy", "f1", "f1_micro", "roc_auc", "ap", "mae", "mse", "rmse", "r2"
    ] = option("auto", "What evaluations measure, as fits the targets.", "Targets and metrics")

    evaluate: Literal["sampled", "full", "none"] = option(
        "sampled", "On which neighbourhoods (full: out of core).", "Evaluation"
    )
    evaluate_every: Positive = option(1, "Epochs between evaluations.", "Evaluation")
    patience: Count = option(
        0,
        "End after so many evaluations without a better one; 0: never.",
        "Evaluation",
        may_change=True,
    )
    min_delta: Rate = option(
        0.0, "What a score must gain to count as better, for patience and plateau.", "Evaluation"
    )

    strict_memory: bool = option(
        False,
        "End where a batch needs more memory than is left.",
        "Memory and data",
        may_change=True,
    )
    disk: str | int | None = option(
        None, "Disk space for derived data.", "Memory and data", metavar="SIZE", may_change=True
    )
    check: bool = option(
        False,
        "Compare whatever is read with its checksums first: docs/training.md.",
        "Memory and data",
        may_change=True,
    )

    checkpoint_every: Count = option(
        0, "Batches between checkpoints; 0: after each epoch only.", "Checkpoints", may_change=True
    )

    def __post_init__(self) -> None:
        check_fields(self, OptionError)
        if not 0 <= self.dropout < 1:
            raise OptionError(f"dropout must be 0 to 1 (got {self.dropout})")
        as_outre = self.strategy.partition(":")[0] == "outre"
        if self.batching == "auto":
            object.__setattr__(self, "batching", PARTITION if as_outre else RANDOM)
        batching_named(self.batching)
        if self.history == "auto":
            object.__setattr__(self, "history", "staleness=100" if as_outre else "none")
        if self.history != "none":
            history_named(f"width=1:{self.history}")
        if not self.num_neighbors:
            object.__setattr__(self, "num_neighbors", (_USUAL_NEIGHBORS,) * self.layers)
        hops = len(self.num_neighbors)
        if self.model_args and not self.is_own_model:
            raise OptionError(
                f"model_args are for a model of your own, module:factory (got model={self.model!r})"
            )
        wanted = (hops,) if self.is_own_model else (self.layers, self.layers + 1)
        if self.sampler == "neighbor" and hops not in wanted:
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
        if self.lr_min > self.lr:
            raise OptionError(f"lr_min must be at most lr (got {self.lr_min} and {self.lr})")
        if self.schedule == "plateau" and self.evaluate == "none":
            raise OptionError("schedule=plateau needs evaluations (got evaluate='none')")
        if self.resume and self.checkpoint_dir is None:
            raise OptionError("resume needs checkpoint_dir")

    @property
    def is_own_model(self) -> bool:
        """Whether `model` names a factory of the user's."""
        return ":" in self.model

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        values = asdict(self)
        return {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in values.items()
        }

    def check_resumes(self, saved: TrainOptions, where: str) -> None:
        """OptionError where a run that was saved with other options would not be the same run."""
        before = saved.as_dict()
        may_change = {one.name for one in fields(self) if one.metadata["may_change"]}
        for name, value in self.as_dict().items():
            if name not in may_change and before[name] != value:
                raise OptionError(f"{where}: saved with {name}={before[name]!r} (got {value!r})")
        if self.schedule in ("cosine", "linear") and self.epochs != saved.epochs:
            raise OptionError(
                f"{where}: saved with epochs={saved.epochs}, at which its {self.schedule} schedule "
                f"ends (got {self.epochs})"
            )

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
