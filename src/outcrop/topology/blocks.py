"""Blocks: a topology whose lists are read block by block, for many batches at once.

In memory are the last node of each block and a buffer of some blocks; nothing grows with the nodes.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import count
from pathlib import Path
from typing import ClassVar

from outcrop import _core
from outcrop.closing import Closing
from outcrop.errors import CorruptError, OptionError
from outcrop.layout.blocks import (
    DEFAULT_BLOCK_BYTES,
    check_block_bytes,
    index_bytes,
    load_index,
    making_bytes,
    open_blocks,
    read_header,
    usual_blocks_bytes,
)
from outcrop.memory.charges import PREPARATION, Charge, Phase
from outcrop.memory.context import Context
from outcrop.options import format_size
from outcrop.progress import SILENT, Progress
from outcrop.sample.hyperbatch import HyperbatchSampler, check_by_blocks, relabelling_bytes
from outcrop.sample.sampler import (
    EDGE_IDS,
    FirstHopGate,
    Sampling,
    StoredEdgeIds,
    TaskSampler,
    Topology,
)
from outcrop.store.derived import Layout
from outcrop.store.store import GraphStore
from outcrop.store.workdir import WorkDirectory
from outcrop.threads.parallel import cpu_count
from outcrop.topology.parts import Opening, TopologyPart

LEAST_BLOCKS = 2
"""The least that a buffer has: one is drawn from while the next is read."""
# For a batch that is sampled alone: what is beyond it goes to the scratch file.
_ALONE_BYTES = 8 << 20


class GraphBlocks(Closing):
    """The blocks of a store's topology, some of them in memory. Samplers of many threads may draw
    from them, one after the other."""

    def __init__(self, store: GraphStore, layout: Layout, buffer_bytes: int) -> None:
        self._layout = layout
        header = read_header(layout.path)
        self.block_bytes = header.block_bytes
        buffer_blocks = buffer_bytes // header.block_bytes
        if buffer_blocks < LEAST_BLOCKS:
            least = format_size(LEAST_BLOCKS * header.block_bytes)
            raise OptionError(
                f"a buffer needs {LEAST_BLOCKS} blocks: {least} (got {format_size(buffer_bytes)})"
            )
        index = load_index(store.disk, layout.path, header)
        path = layout.path / header.blocks.file
        try:
            with store.disk.open(path) as file:
                engine, core = file.core
                self.core: _core.GraphBlocks = _core.graph_blocks(
                    index,
                    engine,
                    core,
                    header.blocks.data_offset,
                    num_nodes=store.num_nodes,
                    num_edges=store.num_edges,
                    block_bytes=header.block_bytes,
                    entry_bytes=header.entry_bytes,
                    buffer_blocks=buffer_blocks,
                )
        except FileNotFoundError as error:
            raise CorruptError(f"{path}: {error.strerror}") from error
        except ValueError as error:
            raise CorruptError(f"{path}: {error}") from error

    @staticmethod
    def open(
        store: GraphStore,
        buffer_bytes: int,
        block_bytes: int = DEFAULT_BLOCK_BYTES,
        progress: Progress = SILENT,
    ) -> GraphBlocks:
        """The layout is made where it is missing."""
        layout = open_blocks(store, block_bytes, progress)
        try:
            return GraphBlocks(store, layout, buffer_bytes)
        except BaseException:
            layout.close()
            raise

    @property
    def memory_bytes(self) -> int:
        """What it holds: the index and the buffer."""
        return self.core.memory_bytes

    @property
    def found(self) -> int:
        """Blocks that were wanted and in the buffer."""
        return self.core.counts()[0]

    @property
    def read(self) -> int:
        """Blocks that were read."""
        return self.core.counts()[1]

    def close(self) -> None:
        """Gives up the lease on the layout."""
        self._layout.close()


class BlockTopology(Topology):
    """An open topology of blocks. Batches that are sampled alone are hyperbatches of one."""

    def __init__(self, on: Opening, blocks: GraphBlocks) -> None:
        self.blocks = blocks
        self._store, self._edge_ids = on.store, on.edge_ids
        self._numbers = count()

    @cached_property
    def _scratch(self) -> WorkDirectory:
        """For batches that are sampled alone."""
        scratch = self._store.derived.scratch()
        # Where nobody closes it; at the end of the program the runner does.
        weakref.finalize(self, scratch.abandon).atexit = False
        return scratch

    @property
    def read_bytes(self) -> int:
        """What was read of blocks so far."""
        return self.blocks.read * self.blocks.block_bytes

    def sampler(
        self, sampling: Sampling, seed: int, gate: FirstHopGate | None = None
    ) -> TaskSampler:
        scratch = self._scratch.path / f"picks-{next(self._numbers)}.bin"
        return self.hyperbatch_sampler(sampling, seed, _ALONE_BYTES, scratch, gate)

    def hyperbatch_sampler(
        self,
        sampling: Sampling,
        seed: int,
        memory_bytes: int,
        scratch: Path,
        gate: FirstHopGate | None = None,
    ) -> HyperbatchSampler:
        """For one thread. `memory_bytes` and `scratch`: as the sampler has them."""
        edge_ids = None
        if self._edge_ids:
            edge_ids = StoredEdgeIds(self._store.disk, self._store.checks(EDGE_IDS))
        return HyperbatchSampler(
            sampling,
            self.blocks.core,
            seed,
            memory_bytes=memory_bytes,
            scratch=scratch,
            threads=cpu_count(),
            edge_ids=edge_ids,
            gate=gate,
        )

    def close(self) -> None:
        self.blocks.close()
        if "_scratch" in self.__dict__:
            self._scratch.abandon()


def hyperbatch_bytes(context: Context, batches: int, memory_bytes: int) -> int:
    """What sampling so many batches at once takes beside the blocks, with so much for their picks:
    also their seeds, a window of each one's nodes, and one batch that is relabelled."""
    seeds = 16 * batches * context.seeds.batch_size
    return memory_bytes + memory_bytes // 12 + seeds + _one_batch_bytes(context)


def _one_batch_bytes(context: Context) -> int:
    batch = context.batch
    more = relabelling_bytes(context.sampling, batch.targets, batch.edges)
    return context.sampler_bytes() + more


@dataclass(frozen=True)
class Blocks(TopologyPart):
    """Whole blocks are read, and some kept; neither indptr nor a table of the nodes is."""

    buffer_bytes: int
    block_bytes: int = DEFAULT_BLOCK_BYTES
    name: ClassVar[str] = "blocks"

    def __post_init__(self) -> None:
        check_block_bytes(self.block_bytes)

    @property
    def least_buffer_bytes(self) -> int:
        return LEAST_BLOCKS * self.block_bytes

    def charges(self, context: Context) -> Sequence[Charge]:
        graph = context.graph
        making = making_bytes(graph, self.block_bytes)
        return [
            Charge("index of blocks", index_bytes(graph, self.block_bytes)),
            Charge("graph buffer", max(self.buffer_bytes, self.least_buffer_bytes)),
            Charge("making blocks", making, Phase.PREPARE, PREPARATION),
        ]

    def sampler_bytes(self, context: Context) -> int:
        check_by_blocks(context.sampling)
        return hyperbatch_bytes(context, 1, _ALONE_BYTES)

    def kept_bytes(self, _: Context) -> int:
        return self.buffer_bytes

    def written_bytes(self, context: Context) -> int:
        return usual_blocks_bytes(context.graph, self.block_bytes)

    def open(self, on: Opening) -> Topology:
        size = max(self.buffer_bytes, self.least_buffer_bytes)
        blocks = GraphBlocks.open(on.store, size, self.block_bytes, on.progress)
        try:
            return BlockTopology(on, blocks)
        except BaseException:
            blocks.close()
            raise
