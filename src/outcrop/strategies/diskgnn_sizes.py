"""Memory of diskgnn: what is needed, by name, and what of the spare part its caches get."""

from __future__ import annotations

import shutil
from dataclasses import replace

from outcrop import _core
from outcrop.cache.tiers import tiers_bytes
from outcrop.errors import BudgetError, OptionError
from outcrop.options import format_size, size_of_at_least
from outcrop.pack.batched import PackMemory
from outcrop.pack.chunks import block_bytes
from outcrop.pack.partial import (
    ASSEMBLY_PIECE_BYTES,
    DEVICE_CACHE,
    device_row_bytes,
    slots_bytes,
)
from outcrop.pack.plan import ROW
from outcrop.pack.prepare import PackSpec, SamplesSpec
from outcrop.pack.segments.rows import shared_memory_bytes
from outcrop.pack.segments.sizes import sharing_bytes
from outcrop.pack.tables import round_up
from outcrop.sample.edge_ids import edge_id_limit
from outcrop.sample.imported import ImportedSamples, find_samples
from outcrop.sample.trace import trace_bytes
from outcrop.store.arrays import WRITE_BUFFER_BYTES
from outcrop.strategies.base import MIN_BATCHES, Means, preparation_bytes
from outcrop.strategies.offline import Source, source_bytes

# Chunks that are read at a time, where there is memory for their batches: while one is at its end,
# the next keeps the drive busy.
_MOST_WORKERS = 2
# What a batch without a table takes per node while its rows are looked up, in each cache.
_LOOKUP_BYTES = 32
_CACHED_ID_BYTES = 8
# Of the memory that is spare, the part that preparing beside training may take to be fast.
_REFRESH_SHARE = 4
CPU_CACHE = "cpu cache"


class Sizes:
    """What memory is needed, and what of it the cache gets."""

    def __init__(self, means: Means) -> None:
        store, options = means.store, means.options
        self._means = means
        self.row_bytes = store.encoding.row_bytes if store.has("features") else 0
        # With the next ones on their way, one is enough.
        known = 1 if options.refresh == "background" else means.epochs
        epochs = options.distinct_epochs or max(1, known or 1)
        self._samples = None if options.samples is None else _samples_for(means)
        if self._samples is not None:
            epochs = self._samples.epochs
        self._batches = epochs * len(means.seeds)
        self.workers = 1
        self.device_rows: int = options.device_rows(store)
        per_row = self.row_bytes + _CACHED_ID_BYTES + (1 if self.device_rows else 0)
        self.cache_rows = min(store.num_nodes, means.spare_bytes // per_row)  # at most
        self.refresh_bytes = self._refresh_bytes() if options.refresh == "background" else 0
        spare = max(0, means.spare_bytes - sum(self._fixed().values()))
        # Packs depend on the cache: its size must not depend on which engine there is, nor on
        # whether batches have edge ids.
        alike = spare + store.disk.memory_bytes - store.disk.most_memory_bytes
        if not means.sampling.edge_ids:
            alike -= MIN_BATCHES * _core.SlabPool.charged_bytes(8 * means.sizes.edges)
        alike = max(0, alike)
        rows = int(options.cache_share * alike) // per_row
        used = options.cpu_cache and self.row_bytes
        most = store.num_nodes - self.device_rows
        rows = in_steps(rows) if rows < most else most
        self.cache_rows = rows if used else 0
        self.cache_bytes = self.cache_rows * per_row
        if spare - self.cache_bytes >= means.sizes.batch_bytes + self._worker_bytes():
            self.workers = _MOST_WORKERS
        self.spec = PackSpec(
            means.sampling,
            means.seeds,
            epochs,
            self.cache_rows,
            options.packing,
            device_rows=self.device_rows,
            edge_ids=means.keeps_edge_ids,
        )
        if self._samples is not None:
            digest = self._samples.digest
            self.spec = SamplesSpec(**vars(self.spec), name=self._samples.name, digest=digest)

    @property
    def disk_bytes(self) -> int | None:
        """Of one generation."""
        given = self._means.disk_bytes
        return given // 2 if given is not None and self.refresh_bytes else given

    @property
    def written_bytes(self) -> int:
        """Traces and packs, at most: as if no row were cached, and with what only packing needs."""
        nodes = self._means.sizes.nodes
        rows = round_up(nodes * self.row_bytes) + (8 + 8) * nodes if self.row_bytes else 0
        generations = 2 if self.refresh_bytes else 1
        return generations * self._batches * (self._record_bytes() + int(rows))

    def check_disk(self) -> None:
        """BudgetError before anything is sampled, where that would surely be in vain.

        Surely: half of what batches take by the mean of those that were seen is too much.
        """
        means = self._means
        record = self._record_bytes(means.sizes.mean_nodes, means.sizes.mean_edges)
        tables = 8 * means.sizes.mean_nodes if self.row_bytes else 0
        least = self._batches * (record + tables) // 2
        if self.disk_bytes is not None and least > self.disk_bytes:
            raise BudgetError(
                f"disk={format_size(self.disk_bytes)} is too little: the samples alone of "
                f"{self._batches} batches need more; what will do in all is {self.enough_disk}"
            )
        free = shutil.disk_usage(means.store.path).free
        if least > free:
            raise BudgetError(
                f"{means.store.path}: the samples alone of {self._batches} batches need more than "
                f"the {format_size(free)} that are free there; what will do in all is "
                f"{self.enough_disk}"
            )

    @property
    def enough_disk(self) -> str:
        """Disk that will do, as far as the batches that were seen tell."""
        return size_of_at_least(self.written_bytes)

    def generation(self, epoch: int) -> PackSpec:
        """That has this epoch."""
        count, of_run = self.spec.epochs, self._means.epochs
        first = epoch // count * count
        if of_run is not None and epoch < of_run:
            count = min(count, of_run - first)
        return replace(self.spec, first_epoch=first, epochs=count)

    def needs(self) -> dict[str, int]:
        resident = {**self._fixed(), CPU_CACHE: self.cache_bytes}
        most = self._prepare_bytes(self._means.options.topology)
        return {**resident, "preparation": preparation_bytes(self._means, most, resident)}

    def _fixed(self) -> dict[str, int]:
        sizes = self._means.sizes
        # One record at a time: the thread that loads it copies it into the batch.
        return {
            "disk engine for rows": self._means.store.disk.memory_bytes if self._raw else 0,
            DEVICE_CACHE: self._device_bytes(),
            "sampler": sizes.scratch_bytes,
            "graphs": self._record_bytes() + 8 * self._seeds,
            "chunks": self.workers * self._worker_bytes(),
            "indexes": (2 if self.refresh_bytes else 1) * self._batches * (80 + ROW.itemsize),
            "refresh": self.refresh_bytes,
        }

    def _device_bytes(self) -> int:
        """Of the host: ids of rows on the device, and the rows themselves where that is the CPU."""
        if not self.device_rows:
            return 0
        ids = self.device_rows * (_CACHED_ID_BYTES + 1)
        if self._means.device != "cpu":
            return ids
        row_bytes = device_row_bytes(self._means.store)
        piece = min(ASSEMBLY_PIECE_BYTES, self._means.sizes.nodes * row_bytes)
        return ids + self.device_rows * row_bytes + piece

    def _worker_bytes(self) -> int:
        """Who gathers a batch: blocks of its chunk, and its table or what replaces it."""
        if not self.row_bytes:
            return 0
        nodes = self._means.sizes.nodes
        table = 8 * nodes
        lookups = 2 if self.device_rows else 1
        own = block_bytes(nodes * self.row_bytes) + lookups * _LOOKUP_BYTES * nodes
        if self.device_rows and self._means.options.verify_rows:  # x comes back from there
            own += nodes * device_row_bytes(self._means.store)
        if self._means.disk_bytes is None:
            return own + table
        return max(own, shared_memory_bytes(nodes, self.row_bytes)) + table

    @property
    def _raw(self) -> bool:
        return bool(self._means.options.raw and self.row_bytes)

    @property
    def _seeds(self) -> int:
        """Of a batch, at most."""
        imported = 0 if self._samples is None else self._samples.seeds
        return max(self._means.seeds.batch_size, imported)

    def _record_bytes(self, nodes: int | None = None, edges: int | None = None) -> int:
        """Of a batch in the trace: of the largest, unless its size is given."""
        sizes, seeds = self._means.sizes, self._seeds
        nodes = sizes.nodes if nodes is None else nodes
        lists = seeds + 2 * len(self._means.sampling.num_neighbors) + 2
        store = self._means.store
        return trace_bytes(
            nodes,
            sizes.edges if edges is None else edges,
            seeds,
            targets=nodes,
            lists=lists,
            num_nodes=store.num_nodes,
            # Imported samples have ids even where batches are to have none.
            num_edges=edge_id_limit(store, kept=store.has("edge_ids")),
        )

    def sampling_bytes(self, source: Source) -> int:
        """The least that sampling ahead takes: the sampler, what it draws from, the writer."""
        own = self._means.sizes.scratch_bytes + self._record_bytes() * 5 // 4
        return own + source_bytes(self._means, source) + 2 * WRITE_BUFFER_BYTES

    @property
    def _cached(self) -> int:
        """Rows of both caches."""
        return self.device_rows + self.cache_rows

    def _refresh_bytes(self) -> int:
        """What is kept for preparing beside training: for packing in one pass, if that is little
        beside the cache; else the least."""
        least = self._prepare_bytes("mmap")
        if not self.row_bytes:
            return least
        chunks, rows = self._batches + 1, self._means.store.num_nodes
        wanted = PackMemory.one_pass_bytes(chunks, self.row_bytes, rows)
        return max(least, min(wanted, self._means.spare_bytes // _REFRESH_SHARE))

    def _prepare_bytes(self, source: Source) -> int:
        """The most of any step of preparation."""
        sizes = self._means.sizes
        if not self.row_bytes:
            return self.sampling_bytes(source)
        segments = 0
        if self._means.disk_bytes is not None:  # then batches may have to share rows
            segments = sharing_bytes(self._means.store, self._batches, sizes.nodes)
        tiers = tiers_bytes(self._means.store.num_nodes, self._batches, sizes.nodes, self._cached)
        if self.device_rows:
            tiers += slots_bytes(self._cached, sizes.nodes)
        planning = tiers + 8 * sizes.nodes + 4 * WRITE_BUFFER_BYTES
        packing = PackMemory.least_bytes(self.row_bytes, self._means.store.num_nodes)
        return max(self.sampling_bytes(source), planning, packing, segments)


def _samples_for(means: Means) -> ImportedSamples:
    """The imported samples; OptionError where the loader's epochs are not theirs."""
    samples = find_samples(means.store, means.options.samples)
    if means.sampling.kind != "neighbor":
        raise OptionError("diskgnn: imported samples are for a NeighborLoader")
    if samples.batches != len(means.seeds):
        raise OptionError(
            f"diskgnn: samples {samples.name!r} have {samples.batches} batches per epoch, and the "
            f"loader {len(means.seeds)}: give it the input_nodes and the batch_size that they were "
            "sampled with"
        )
    return samples


def in_steps(count: int) -> int:
    """Less by at most 1/32, so that a few bytes of memory more or less change nothing."""
    step = 1 << max(0, count.bit_length() - 6)
    return count // step * step
