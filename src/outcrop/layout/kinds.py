"""Layouts: the kinds of derived layouts -> their files, and a check of every byte in them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from outcrop.disk import Disk
from outcrop.layout.blocks import block_sizes, check_blocks
from outcrop.layout.neighbors import check_lists, list_sizes
from outcrop.layout.pack.reader import check_pack, pack_sizes
from outcrop.layout.partitions import check_partitions, partition_sizes
from outcrop.layout.savings import check_savings, savings_sizes
from outcrop.layout.trace import check_trace, trace_sizes
from outcrop.progress import Progress


@dataclass(frozen=True)
class Kind:
    """What is known of all layouts of a kind. Both raise StoreError where one is damaged."""

    sizes: Callable[[Path], Mapping[str, int]]
    """A layout -> its files, and how many bytes its header says that each has."""
    check: Callable[[Disk, Path, Progress], None]
    """Compares every byte with its checksum."""


KINDS: Mapping[str, Kind] = {
    "blocks": Kind(block_sizes, check_blocks),
    "neighbors": Kind(list_sizes, check_lists),
    "partitions": Kind(partition_sizes, check_partitions),
    "savings": Kind(savings_sizes, check_savings),
    "trace": Kind(trace_sizes, check_trace),
    "samples": Kind(trace_sizes, check_trace),
    "pack": Kind(pack_sizes, check_pack),
}
