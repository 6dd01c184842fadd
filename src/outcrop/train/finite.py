"""Finite rows: a batch whose features are no numbers ends the run, and says which node's they are.

The loss would not tell: a ReLU makes minus infinity a zero.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.functional import embedding_bag

from outcrop.errors import StoreError
from outcrop.store.store import GraphStore


def check_rows(batch: Any, store: GraphStore) -> None:
    """StoreError where a feature row of the batch is not finite; names the node and the file.

    One sum over the rows: best called where the step has waited for the device anyway.
    """
    if bool(torch.isfinite(_total(batch)).all()):
        return
    nodes, rows = batch.n_id, _rows(batch)
    bad = ~torch.isfinite(rows).all(dim=1)
    if not bool(bad.any()):
        return  # finite, and too large for their sum
    row = int(bad.nonzero()[0])
    column = int((~torch.isfinite(rows[row])).nonzero()[0])
    raise StoreError(
        f"{store.file('features')}: the row of node {int(nodes[row])} is not finite "
        f"({float(rows[row, column])} at {column}); outcrop verify {store.path} tells whether the "
        "file is damaged, or was imported so"
    )


def _total(batch: Any) -> torch.Tensor:
    """Not finite if any value is not."""
    if "x_buffer" not in batch:
        return batch.x.sum()  # type: ignore[no-any-return]
    first = batch.x_index.new_zeros(1)
    return embedding_bag(batch.x_index, batch.x_buffer, first, mode="sum")


def _rows(batch: Any) -> torch.Tensor:
    if "x_buffer" not in batch:
        return batch.x  # type: ignore[no-any-return]
    return batch.x_buffer.index_select(0, batch.x_index)  # type: ignore[no-any-return]
