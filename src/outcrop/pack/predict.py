"""Predict: a plan -> what training will read, by the paper's equation 2."""

from __future__ import annotations

from dataclasses import dataclass

from outcrop.pack.plan import PackPlan
from outcrop.pack.tables import PAGE_BYTES
from outcrop.schema import Count


@dataclass(frozen=True)
class Predicted:
    """What all batches read, each once."""

    chunk_bytes: Count
    segment_bytes: Count
    """What pages of segments take, each once for a batch."""
    wanted_bytes: Count
    """What rows that are not cached take."""

    @property
    def bytes(self) -> int:
        return self.chunk_bytes + self.segment_bytes

    @property
    def amplification(self) -> float:
        return self.bytes / self.wanted_bytes if self.wanted_bytes else 1.0


def predict(plan: PackPlan) -> Predicted:
    own = plan.index[: plan.batches]
    rows = int((own["packed"] + own["shared"]).sum())
    chunks = int(plan.sizes[: plan.batches].sum())
    return Predicted(chunks, plan.pages * PAGE_BYTES, rows * plan.row_bytes)
