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

from outcrop.store.store import GraphStore
from outcrop.train.finite import check_rows
from outcrop.train.inference import infer
from outcrop.train.models import seed_labels, seed_logits
from outcrop.train.targets import Targets

if TYPE_CHECKING:
    from outcrop.train.loop import Loader

Scores = dict[str, float]
"""By split."""

_NODES_AT_A_TIME = 1000


@torch.no_grad()
def evaluate_sampled(
    model: nn.Module, loader: Loader, splits: Sequence[str], targets: Targets
) -> Scores:
    """On sampled neighbourhoods, as in training; the same ones at every evaluation."""
    was_training = model.training
    model.eval()
    scores: Scores = {}
    for split in splits:
        score = targets.score()
        with closing(iter(loader.sibling(split, shuffle=False))) as batches:  # type: ignore[type-var]
            for batch in batches:
                score.add(seed_logits(model, batch), seed_labels(batch))
                check_rows(batch, loader.store)
                del batch
        scores[split] = score.value()
    model.train(was_training)
    return scores


def evaluate_full(
    model: nn.Module,
    store: GraphStore,
    splits: Sequence[str],
    targets: Targets,
    memory_bytes: int,
) -> Scores:
    """On full neighbourhoods, layer by layer; hidden states pass through a temporary folder."""
    with tempfile.TemporaryDirectory(dir=store.path.absolute().parent, prefix=".evaluate-") as at:
        out = Path(at) / "logits.npy"
        infer(store, model, out, memory=memory_bytes, original_order=False)
        logits: Any = np.load(out, mmap_mode="r")
        scores: Scores = {}
        for split in splits:
            score = targets.score()
            nodes = store.split(split)
            for begin in range(0, len(nodes), _NODES_AT_A_TIME):
                chunk = nodes[begin : begin + _NODES_AT_A_TIME]
                labels = torch.from_numpy(store.targets(chunk))
                score.add(torch.from_numpy(logits[chunk]), labels)
            scores[split] = score.value()
        return scores
