"""Dropout on the CPU from 16 random bits per value; torch's own draws a double for each.

A third of a step on two cores was spent on these draws.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.functional import dropout as torch_dropout

_STEPS = 1 << 16
"""What a probability is rounded to."""


def dropout(x: torch.Tensor, p: float, training: bool) -> torch.Tensor:
    """Zeroes each value with probability `p`, and scales the others so that the mean stays."""
    if not training or p == 0:
        return x
    if x.device.type != "cpu":
        return torch_dropout(x, p, training)
    dropped: torch.Tensor = _Dropout.apply(x, round(p * _STEPS))  # type: ignore[no-untyped-call]
    return dropped


class _Dropout(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, steps: int) -> torch.Tensor:
        draws = torch.empty(-(-x.numel() // 4), dtype=torch.int64).random_(-(1 << 63), None)
        bits = draws.view(torch.int16)[: x.numel()].view(x.shape)
        kept = bits >= steps - _STEPS // 2
        ctx.save_for_backward(kept)
        ctx.scale = _STEPS / max(_STEPS - steps, 1)
        return torch.mul(x, kept).mul_(ctx.scale)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        (kept,) = ctx.saved_tensors
        return torch.mul(gradients[0], kept).mul_(ctx.scale), None
