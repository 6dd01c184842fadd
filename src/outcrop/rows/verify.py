"""Verify: the rows of a batch against the store's, bit by bit."""

from __future__ import annotations

import numpy as np

from outcrop.disk import READ_BLOCK_BYTES
from outcrop.errors import CorruptError
from outcrop.memory.batches import Batch
from outcrop.store.store import FeatureRows


def verify_rows(batch: Batch, features: FeatureRows) -> None:
    """CorruptError where a row is not, bit by bit, the one of its node."""
    if batch.rows is None:
        return
    x = batch.rows.values()
    step = max(1, READ_BLOCK_BYTES // max(1, features.encoding.row_bytes))
    for begin in range(0, len(batch.n_id), step):
        ids = batch.n_id[begin : begin + step]
        expected, found = features.gather(ids), x[begin : begin + step]
        wrong = (expected.view(np.uint32) != found.view(np.uint32)).any(axis=1)
        if wrong.any():
            node = int(ids[np.argmax(wrong)])
            raise CorruptError(
                f"batch {batch.task.batch} of epoch {batch.task.epoch}: the row of node {node} is "
                "not the store's"
            )
