"""Optimizer: options -> torch's own, the learning rate of every step, gradients of a bounded norm.

The learning rate depends on the step's number, and on what `plateau` made of the evaluations so
far, which checkpoints keep: a run that is resumed goes on with the rates that it would have had.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from outcrop.schema import Between, Count
from outcrop.train.options import TrainOptions


def make_optimizer(model: nn.Module, options: TrainOptions) -> torch.optim.Optimizer:
    parameters = _parameters(model, options)
    if options.optimizer == "sgd":
        return torch.optim.SGD(
            parameters,
            lr=options.lr,
            momentum=options.momentum,
            weight_decay=options.weight_decay,
        )
    kind = torch.optim.AdamW if options.optimizer == "adamw" else torch.optim.Adam
    return kind(parameters, lr=options.lr, weight_decay=options.weight_decay)


def _parameters(model: nn.Module, options: TrainOptions) -> Any:
    """All in one group, or those without weight decay in a second one."""
    if options.decay == "all":
        return model.parameters()
    groups: tuple[list[nn.Parameter], list[nn.Parameter]] = ([], [])
    for name, parameter in model.named_parameters():
        groups[_is_bias_or_norm(name, parameter)].append(parameter)
    made = [{"params": groups[0]}, {"params": groups[1], "weight_decay": 0.0}]
    return [of for of, parameters in zip(made, groups, strict=True) if parameters]


def _is_bias_or_norm(name: str, parameter: nn.Parameter) -> bool:
    """By its shape: weights that multiply features have two dimensions at least."""
    if is_lazy(parameter):
        return name.endswith("bias")
    return parameter.ndim < 2


# Learning rate


@dataclass
class Plateau:
    """What the evaluations so far have made of the learning rate."""

    share: Annotated[float, Between(0, 1)] = 1.0
    """The learning rate is so much of what it would be."""
    worse: Count = 0
    """Evaluations without a better one since the last drop."""

    def evaluated(self, better: bool, options: TrainOptions) -> None:
        self.worse = 0 if better else self.worse + 1
        if options.schedule == "plateau" and self.worse >= options.lr_patience:
            self.share *= options.lr_factor
            self.worse = 0


def learning_rate(
    options: TrainOptions, step: int, epoch_steps: int, plateau: Plateau | None = None
) -> float:
    """The learning rate of a step; steps count from 0 over all epochs."""
    lr, least = options.lr, options.lr_min
    if options.schedule == "plateau" and plateau is not None:
        lr = max(lr * plateau.share, least)
    elif options.schedule == "step":
        lr = max(lr * options.lr_factor ** (step // (options.lr_epochs * epoch_steps)), least)
    warmup = round(options.warmup_epochs * epoch_steps)
    if step < warmup:
        return lr * (step + 1) / warmup
    done = (step - warmup) / max(options.epochs * epoch_steps - warmup, 1)
    if options.schedule == "cosine":
        return least + (lr - least) * (1 + math.cos(math.pi * done)) / 2
    if options.schedule == "linear":
        return lr + (least - lr) * done
    return lr


def set_learning_rate(optimizer: torch.optim.Optimizer, lr: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = lr


# Gradients


def clip_gradients(model: nn.Module, most: float) -> float:
    """Scales all gradients so that their norm is at most that -> their norm before.

    Where it is infinite or NaN, so are the gradients now: no step must be made with them.
    """
    return float(nn.utils.clip_grad_norm_(model.parameters(), most))
