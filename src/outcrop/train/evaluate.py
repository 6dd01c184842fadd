"""Evaluation: a model on the nodes of a split -> its score."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn
from torchmetrics import Metric
from torchmetrics.classification import BinaryAUROC, MulticlassAccuracy

from outcrop.store.store import GraphStore
from outcrop.train.finite import check_rows
from outcrop.train.inference import infer
from outcrop.train.models import seed_labels, seed_logits
from outcrop.train.options import TrainOptions

if TYPE_CHECKING:
    from outcrop.train.loop import Loader

Scores = dict[str, float]
"""By split."""


def make_metric(options: TrainOptions, num_classes: int) -> Metric:
    if options.metric == "roc_auc":
        return BinaryAUROC(ignore_index=-1)
    return MulticlassAccuracy(num_classes, average="micro", ignore_index=-1)


def add_batch(metric: Metric, logits: torch.Tensor, labels: torch.Tensor) -> None:
    if isinstance(metric, BinaryAUROC):
        logits = logits.softmax(-1)[:, 1]
    metric.update(logits.float().cpu(), labels.cpu())


@torch.no_grad()
def evaluate_sampled(
    model: nn.Module, loader: Loader, splits: Sequence[str], options: TrainOptions
) -> Scores:
    """On sampled neighbourhoods, as in training; the same ones at every evaluation."""
    was_training = model.training
    model.eval()
    scores: Scores = {}
    for split in splits:
        metric = make_metric(options, loader.store.num_classes)
        with closing(iter(loader.sibling(split, shuffle=False))) as batches:  # type: ignore[type-var]
            for batch in batches:
                add_batch(metric, seed_logits(model, batch), seed_labels(batch))
                check_rows(batch, loader.store)
                del batch
        scores[split] = float(metric.compute())
    model.train(was_training)
    return scores


def evaluate_full(
    model: nn.Module,
    store: GraphStore,
    splits: Sequence[str],
    options: TrainOptions,
    memory_bytes: int,
) -> Scores:
    """On full neighbourhoods, layer by layer; hidden states pass through a temporary folder."""
    with tempfile.TemporaryDirectory(dir=store.path.absolute().parent, prefix=".evaluate-") as at:
        out = Path(at) / "logits.npy"
        infer(store, model, out, memory=memory_bytes)
        logits: Any = np.load(out, mmap_mode="r")
        scores: Scores = {}
        for split in splits:
            metric = make_metric(options, store.num_classes)
            nodes = store.split(split)
            for begin in range(0, len(nodes), options.batch_size):
                chunk = nodes[begin : begin + options.batch_size]
                labels = torch.from_numpy(np.array(store.labels[chunk]))
                add_batch(metric, torch.from_numpy(logits[chunk]), labels)
            scores[split] = float(metric.compute())
        return scores
