"""Hyperbatches: many tasks at once -> the subgraph of each, the same as if it was sampled alone.

Lists come from the blocks of a topology, which are read in their order, once per hop for all tasks.
What was drawn waits in memory of a given size, and the rest of it in a scratch file.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from outcrop import _core
from outcrop.errors import OptionError
from outcrop.sample.sampler import EdgeIds, FirstHopGate, Reuse, Sampling, Subgraph
from outcrop.sample.seeds import Task

# What a pick takes, with the position of its edge; a node that is expanded, while they are sorted.
_PICK_BYTES, _POSITION_BYTES, _SORTED_BYTES = 8, 8, 40
_LEAST_BUFFERS_BYTES = 6 * (64 << 10)


def least_hyperbatch_bytes(batches: int) -> int:
    """The least memory in which so many batches can be sampled at once."""
    return _core.HyperbatchSampler.least_bytes(batches)


def relabelling_bytes(sampling: Sampling, targets: int, edges: int) -> int:
    """What one batch of these sizes takes while it is relabelled, beside what a sampler takes."""
    pick = _PICK_BYTES + (_POSITION_BYTES if sampling.edge_ids else 0)
    wanted = pick * edges + _SORTED_BYTES * targets
    return _LEAST_BUFFERS_BYTES + wanted + wanted // 2  # a buffer grows by half


class HyperbatchSampler:
    """Samples tasks by blocks. Not thread-safe: one per thread; several may share the blocks."""

    def __init__(
        self,
        sampling: Sampling,
        blocks: _core.GraphBlocks,
        seed: int,
        *,
        memory_bytes: int,
        scratch: Path,
        threads: int = 1,
        edge_ids: EdgeIds | None = None,
        gate: FirstHopGate | None = None,
    ) -> None:
        """`memory_bytes`: for what was drawn, and is not relabelled yet. `scratch`: a new file for
        what has no room there, removed with this object. `edge_ids`: as in `Sampler`."""
        check_by_blocks(sampling)
        self._core = _core.HyperbatchSampler(
            blocks,
            list(sampling.num_neighbors),
            replace=sampling.replace,
            edge_ids=sampling.edge_ids,
            threads=threads,
            memory_bytes=memory_bytes,
            scratch=os.fspath(scratch),
        )
        self._seed = seed
        self._edge_ids = edge_ids
        self._has_edge_ids = sampling.edge_ids
        self._gate = gate

    def sample_all(self, tasks: Sequence[Task]) -> Iterator[Subgraph]:
        """The subgraph of each task, in their order.

        The arrays are views, valid until the next one is asked for; `edge_ids` is None unless they
        are wanted.
        """
        core = self._core
        core.begin(len(tasks))
        for task in tasks:
            core.add(
                task.seeds, seed=self._seed, stream=task.stream, epoch=task.epoch, batch=task.batch
            )
        reuses = self._decided(tasks)
        for number, reuse in enumerate(reuses):
            core.load(number)
            yield self._subgraph(reuse)

    def _decided(self, tasks: Sequence[Task]) -> Sequence[Reuse | None]:
        """Samples the tasks that were added -> what was decided for each."""
        core, gate = self._core, self._gate
        if gate is None or tasks[0].iteration is None:
            core.sample()
            return [None] * len(tasks)
        core.sample_first()
        reuses = []
        for number, task in enumerate(tasks):
            assert task.iteration is not None
            core.load_first(number)
            deferred, reuse = gate.decide(task.iteration, core.nodes, len(task.seeds))
            core.go_on(number, deferred)
            reuses.append(reuse)
        core.sample_others()
        return reuses

    def sample(self, task: Task) -> Subgraph:
        """As a `Sampler` does: the arrays are valid until the next call."""
        return next(self.sample_all([task]))

    def _subgraph(self, reuse: Reuse | None) -> Subgraph:
        core, edge_ids = self._core, None
        if self._has_edge_ids:
            edge_ids = core.edge_ids
            if self._edge_ids is not None:
                edge_ids = self._edge_ids.look_up(edge_ids)
        return Subgraph(
            nodes=core.nodes,
            sources=core.sources,
            counts=core.counts,
            edge_ids=edge_ids,
            nodes_per_hop=core.nodes_per_hop,
            edges_per_hop=core.edges_per_hop,
            roots=[],
            reuse=reuse,
        )

    @property
    def memory_bytes(self) -> int:
        """What it holds, beside the blocks, and what looking edges up takes."""
        return self._core.memory_bytes

    @property
    def spilled_bytes(self) -> int:
        """What was written to the scratch file."""
        return self._core.spilled_bytes

    def cancel(self) -> None:
        """What is under way, and all that comes later, raises CancelledError. From any thread."""
        self._core.cancel()
        if self._edge_ids is not None:
            self._edge_ids.cancel()
        if self._gate is not None:
            self._gate.cancel()


def check_by_blocks(sampling: Sampling) -> None:
    """OptionError where such a sampling is not made by blocks."""
    if sampling.kind != "neighbor":
        raise OptionError(
            "only neighbour sampling draws from blocks: ShaDow also needs the whole lists of all "
            "nodes that it found; use another strategy for it"
        )
