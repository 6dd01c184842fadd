"""Facts of a graph: what is known of a store without opening it, for those who plan.

A graph that is not there yet has them as well.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from outcrop.store.format import RowEncoding


@dataclass(frozen=True)
class ArrayFacts:
    """One array of a store."""

    bytes: int
    """What it takes in memory."""
    item_bytes: int


@dataclass(frozen=True)
class GraphFacts:
    """How large a graph and its arrays are."""

    name: str
    """For messages: its path."""
    num_nodes: int
    num_edges: int
    arrays: Mapping[str, ArrayFacts]
    rows: RowEncoding | None
    """How feature rows are stored; None: there are none."""
    label_bytes: int
    """What the labels of all nodes take in memory."""
    y_row_bytes: int = 8
    """What a node's labels take in a batch."""
    label_read_bytes: int = 0
    """What reading them from disk takes meanwhile, beside the batch."""

    def has(self, array: str) -> bool:
        return array in self.arrays

    def array_bytes(self, array: str) -> int:
        """What an array takes in memory; 0 where there is none."""
        return self.arrays[array].bytes if array in self.arrays else 0

    def item_bytes(self, array: str) -> int:
        return self.arrays[array].item_bytes

    @property
    def row_bytes(self) -> int:
        """What a row takes as it is stored; 0 where there are none."""
        return 0 if self.rows is None else self.rows.row_bytes

    @property
    def x_row_bytes(self) -> int:
        """What a row takes in x: decoded, as float32."""
        return 4 * self.dim

    @property
    def dim(self) -> int:
        return 0 if self.rows is None else self.rows.dim

    @property
    def topology_bytes(self) -> int:
        return self.array_bytes("indptr") + self.array_bytes("indices")
