"""Stopping: a score and the best so far -> whether it is better."""

from __future__ import annotations

import math


def is_better(
    score: float, best: float | None, *, higher_is_better: bool, min_delta: float = 0.0
) -> bool:
    """By more than `min_delta`. Any number is better than none, and than NaN."""
    if best is None or math.isnan(best):
        return True
    gain = score - best if higher_is_better else best - score
    return gain > min_delta
