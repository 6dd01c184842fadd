"""Targets: what the kind of a store's labels means for training: outputs, loss and metric.

Targets that are missing (-1 of classes, NaN of others) are left out of both.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch
from torch.nn import functional
from torchmetrics import MeanAbsoluteError, MeanSquaredError, Metric, R2Score
from torchmetrics.classification import (
    BinaryAccuracy,
    BinaryAUROC,
    BinaryAveragePrecision,
    BinaryF1Score,
    MulticlassAccuracy,
    MulticlassF1Score,
    MultilabelF1Score,
)

from outcrop.errors import OptionError
from outcrop.store.targets import TargetKind

if TYPE_CHECKING:
    from outcrop.store.store import GraphStore
    from outcrop.train.options import TrainOptions

_NONE = -1
_NODES_AT_A_TIME = 1 << 18

_Loss = Callable[..., torch.Tensor]
_LOSSES: dict[str, _Loss] = {
    "mse": functional.mse_loss,
    "mae": functional.l1_loss,
    "huber": functional.huber_loss,
}
_LOWER_IS_BETTER = ("mae", "mse", "rmse")


class Targets:
    """What a model learns from a store, and how that is scored."""

    def __init__(self, kind: TargetKind, count: int, options: TrainOptions) -> None:
        """`count`: classes, labels or values. OptionError where an option does not fit them."""
        self.kind = kind
        self.out_channels = count
        self.metric = _fitting_metric(kind, count, options.metric)
        """Its name."""
        self.higher_is_better = self.metric not in _LOWER_IS_BETTER
        self._loss_name = _fitting_loss(kind, options)
        self._label_smoothing = options.label_smoothing
        self._weights = _given_weights(options, count)

    @classmethod
    def of(cls, store: GraphStore, options: TrainOptions) -> Targets:
        """Class weights that are to be balanced are counted now, over the training nodes."""
        made = cls(store.target_kind, store.num_targets, options)
        if options.class_weights == "balanced":
            made._weights = balanced_weights(_class_counts(store))
        return made

    def settled(self, options: TrainOptions) -> TrainOptions:
        """Options for these targets, maybe of another run, with names in place of "auto"."""
        made: Any = Targets(self.kind, self.out_channels, options)
        return replace(options, loss=made._loss_name, metric=made.metric)

    # Loss

    def loss(self, logits: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """The mean over all targets that are there; 0, with a graph, where none is."""
        if self.kind == "classes":
            return self._cross_entropy(logits, y)
        y = y.reshape(logits.shape)
        present = ~y.isnan()
        known = torch.where(present, y, 0.0)
        if self.kind == "multilabel":
            each = functional.binary_cross_entropy_with_logits(logits, known, reduction="none")
        else:
            each = _LOSSES[self._loss_name](logits, known, reduction="none")
        return torch.where(present, each, 0.0).sum() / present.sum().clamp(min=1)

    def _cross_entropy(self, logits: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        mean = functional.cross_entropy(
            logits,
            y,
            weight=None if self._weights is None else self._weights.to(logits),
            ignore_index=_NONE,
            label_smoothing=self._label_smoothing,
        )
        return torch.where((y != _NONE).any(), mean, 0.0)

    # Scores

    def score(self) -> Score:
        """A score of the metric, of nothing yet."""
        made = _METRICS[self.kind][self.metric](self.out_channels)
        return Score(made.metric, made.inputs)


class Score:
    """Outputs of a model and what they should be, batch by batch -> a number."""

    def __init__(self, metric: _Metric, inputs: _Inputs) -> None:
        self._metric = metric
        self._inputs = inputs
        self._empty = True

    def add(self, logits: torch.Tensor, y: torch.Tensor) -> None:
        predicted, wanted = self._inputs(logits.float().cpu(), y.cpu())
        if len(wanted):
            self._metric.update(predicted, wanted)
            self._empty = False

    def value(self) -> float:
        """NaN where nothing could be scored."""
        return float("nan") if self._empty else float(self._metric.compute())


# Metrics


class _Metric(Protocol):
    """What a score needs of torchmetrics' metrics."""

    def update(self, predicted: torch.Tensor, wanted: torch.Tensor) -> None: ...

    def compute(self) -> Any: ...


_Inputs = Callable[[torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor]]


@dataclass(frozen=True)
class _Made:
    metric: _Metric
    inputs: _Inputs
    """(logits, y) -> what the metric is updated with."""


class _MeanOverTargets:
    """The mean of a metric over labels or values.

    Those whose targets are all alike are left out: there is nothing to tell apart. (OGB's evaluator
    of ogbn-proteins does so, too.)
    """

    def __init__(self, make: Callable[[], Metric], count: int) -> None:
        self._metrics = [make() for _ in range(count)]
        self._least = torch.full((count,), torch.inf)
        self._most = torch.full((count,), -torch.inf)

    def update(self, predicted: torch.Tensor, wanted: torch.Tensor) -> None:
        for column, metric in enumerate(self._metrics):
            present = ~wanted[:, column].isnan()
            there = wanted[present, column]
            if not len(there):
                continue
            self._least[column] = torch.minimum(self._least[column], there.min())
            self._most[column] = torch.maximum(self._most[column], there.max())
            # torchmetrics wants classes as integers, and values as they are.
            labels = there if isinstance(metric, R2Score) else there.long()
            metric.update(predicted[present, column], labels)

    def compute(self) -> torch.Tensor:
        differ = (self._least < self._most).tolist()
        scores = [m.compute() for m, differs in zip(self._metrics, differ, strict=True) if differs]
        return torch.stack(scores).mean() if scores else torch.tensor(torch.nan)


def _as_they_are(logits: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return logits, y


def _second_class(logits: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return logits.softmax(-1)[:, 1], y


def _probabilities(logits: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return logits.sigmoid(), y


def _integers(logits: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """With -1 for none."""
    return logits.sigmoid(), y.nan_to_num(_NONE).long()


def _columns(logits: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return logits.reshape(len(y), -1), y.reshape(len(y), -1)


def _present(logits: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """All that are there, in one dimension."""
    logits, y = _columns(logits, y)
    present = ~y.isnan()
    return logits[present], y[present]


_METRICS: dict[str, dict[str, Callable[[int], _Made]]] = {
    "classes": {
        "accuracy": lambda count: _Made(
            MulticlassAccuracy(count, average="micro", ignore_index=_NONE), _as_they_are
        ),
        "f1": lambda count: _Made(
            MulticlassF1Score(count, average="macro", ignore_index=_NONE), _as_they_are
        ),
        "f1_micro": lambda count: _Made(
            MulticlassF1Score(count, average="micro", ignore_index=_NONE), _as_they_are
        ),
        "roc_auc": lambda _: _Made(BinaryAUROC(ignore_index=_NONE), _second_class),
        "ap": lambda _: _Made(BinaryAveragePrecision(ignore_index=_NONE), _second_class),
    },
    "multilabel": {
        "roc_auc": lambda count: _Made(_MeanOverTargets(BinaryAUROC, count), _probabilities),
        "ap": lambda count: _Made(_MeanOverTargets(BinaryAveragePrecision, count), _probabilities),
        "f1": lambda count: _Made(
            MultilabelF1Score(count, average="macro", ignore_index=_NONE), _integers
        ),
        "f1_micro": lambda _: _Made(BinaryF1Score(ignore_index=_NONE), _integers),
        "accuracy": lambda _: _Made(BinaryAccuracy(ignore_index=_NONE), _integers),
    },
    "values": {
        "mae": lambda _: _Made(MeanAbsoluteError(), _present),
        "mse": lambda _: _Made(MeanSquaredError(), _present),
        "rmse": lambda _: _Made(MeanSquaredError(squared=False), _present),
        "r2": lambda count: _Made(_MeanOverTargets(R2Score, count), _columns),
    },
}
"""By the kind of targets and by name; the first of a kind is "auto"."""


# Options


def _fitting_metric(kind: TargetKind, count: int, name: str) -> str:
    fitting = list(_METRICS[kind])
    if name == "auto":
        return fitting[0]
    if name not in fitting:
        raise OptionError(
            f"metric={name} does not fit targets that are {kind}; there are {', '.join(fitting)}"
        )
    if kind == "classes" and name in ("roc_auc", "ap") and count != 2:
        raise OptionError(
            f"metric={name} is for two classes (the store has {count}); there are accuracy, f1, "
            "f1_micro"
        )
    return name


def _fitting_loss(kind: TargetKind, options: TrainOptions) -> str:
    if kind != "classes":
        for name, usual in (("label_smoothing", 0), ("class_weights", "none")):
            if getattr(options, name) != usual:
                raise OptionError(
                    f"{name} is for classes, and the store's targets are {kind} "
                    f"(got {getattr(options, name)!r})"
                )
    if kind == "values":
        return "mse" if options.loss == "auto" else options.loss
    if options.loss != "auto":
        own = "cross entropy" if kind == "classes" else "binary cross entropy"
        raise OptionError(
            f"loss={options.loss} is for values, and the store's targets are {kind}, whose loss is "
            f"{own}: give auto"
        )
    return "auto"


def _given_weights(options: TrainOptions, count: int) -> torch.Tensor | None:
    weights = options.class_weights
    if isinstance(weights, str):
        return None
    if len(weights) != count:
        raise OptionError(
            f"class_weights needs a weight for each of {count} classes (got {len(weights)})"
        )
    return torch.tensor(weights)


def balanced_weights(counts: np.ndarray[Any, np.dtype[np.int64]]) -> torch.Tensor:
    """How often each class occurs -> the inverse, with a mean of 1; 1 for those that never do."""
    weights = np.ones(len(counts))
    seen = counts > 0
    if seen.any():
        inverse = 1 / counts[seen]
        weights[seen] = inverse / inverse.mean()
    return torch.from_numpy(weights.astype(np.float32))


def _class_counts(store: GraphStore) -> np.ndarray[Any, np.dtype[np.int64]]:
    """How many training nodes have each class."""
    nodes = store.split("train")
    counts = np.zeros(store.num_classes, np.int64)
    for first in range(0, len(nodes), _NODES_AT_A_TIME):
        labels = store.labels[nodes[first : first + _NODES_AT_A_TIME]]
        counts += np.bincount(labels[labels >= 0], minlength=len(counts))
    return counts
