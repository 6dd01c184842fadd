"""Order: input nodes and how they are batched -> the seeds of every batch.

Partitions that batching needs are found, or made.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import xxhash

from outcrop.errors import OptionError
from outcrop.layout.partitions import PartitionOptions, Partitions, default_parts, open_partitions
from outcrop.progress import SILENT, Progress
from outcrop.sample.batching import RANDOM, PartitionBatching, SeedGroups, batching_named
from outcrop.sample.seeds import SeedOrder, Stream, seed_nodes
from outcrop.store.store import GraphStore


def seed_order(
    store: GraphStore,
    input_nodes: Any,
    *,
    batch_size: int,
    seed: int,
    stream: Stream | None = None,
    shuffle: bool = True,
    drop_last: bool = False,
    batching: Any = RANDOM,
    memory: str | int = "2GB",
    disk: str | int | None = None,
    progress: Progress = SILENT,
) -> SeedOrder:
    """`stream`: None: as the nodes say. `batching`: a name, options, or the partition of each node.

    `memory`, `disk`: what making partitions may use.
    """
    nodes, usual = seed_nodes(store, input_nodes)
    order = SeedOrder(
        nodes,
        batch_size=batch_size,
        stream=usual if stream is None else stream,
        seed=seed,
        shuffle=shuffle,
        drop_last=drop_last,
    )
    if not shuffle:
        return order
    wanted = batching_named(batching) if isinstance(batching, str) else batching
    if isinstance(wanted, PartitionBatching):
        order.groups = _made_groups(store, order, wanted, memory, disk, progress)
    elif wanted is not None:
        order.groups = _given_groups(store, order, wanted)
    return order


def check_batching(batching: Any, *, shuffle: bool) -> None:
    """OptionError where the order of seeds is given twice."""
    if not shuffle and not (isinstance(batching, str) and batching_named(batching) is None):
        raise OptionError(
            "batching orders the seeds: give shuffle=True (without it, they come as they are given)"
        )


def _made_groups(
    store: GraphStore,
    seeds: SeedOrder,
    wanted: PartitionBatching,
    memory: str | int,
    disk: str | int | None,
    progress: Progress,
) -> SeedGroups:
    parts = wanted.parts or default_parts(store.num_nodes, len(seeds.nodes), seeds.batch_size)
    options = PartitionOptions(parts=parts, seed=wanted.seed)
    layout = open_partitions(store, options, progress, memory=memory, disk=disk)
    with Partitions(store.disk, layout) as partitions:
        groups = SeedGroups.of(
            len(seeds.nodes),
            seeds.seeds,
            partitions.parts,
            partitions.assignment_of,
            wanted.macro,
            partitions.digest,
        )
    groups.batching = replace(wanted, parts=parts)
    return groups


def _given_groups(store: GraphStore, seeds: SeedOrder, given: Any) -> SeedGroups:
    parts = np.asarray(given)
    whole = parts.shape == (store.num_nodes,) and np.issubdtype(parts.dtype, np.integer)
    if not whole or (parts.size and not 0 <= parts.min() <= parts.max() < 2**32):
        raise OptionError(
            f"batching is a name, or the partition of each of the {store.num_nodes} nodes, from 0 "
            f"on (got {parts.dtype}, {list(parts.shape)})"
        )
    parts = np.ascontiguousarray(parts, np.uint32)
    digest = xxhash.xxh3_128_hexdigest(parts.data)
    count = int(parts.max()) + 1 if parts.size else 1
    return SeedGroups.of(
        len(seeds.nodes), seeds.seeds, count, parts.__getitem__, PartitionBatching().macro, digest
    )
