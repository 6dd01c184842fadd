"""Stopping: a score and the best so far -> whether it is better."""

from __future__ import annotations

import math


def is_better(
    score: float, best: float | None, *, higher_is_better: bool, min_delta: float = 0.0
) -> bool:
    """By more than `min_delta`. All is better than nothing, any number better than NaN."""
    if best is None or math.isnan(best):
        return best is None or not math.isnan(score)
    gain = score - best if higher_is_better else best - score
    return gain > min_delta
