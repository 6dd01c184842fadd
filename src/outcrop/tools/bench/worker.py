"""One measured run, in a process of its own: python -m outcrop.tools.bench.worker JOB.json."""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Generator, Iterator
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import numpy as np

from outcrop.errors import OptionError
from outcrop.observe.gpu_meter import GpuMeter
from outcrop.observe.monitor import Monitor, Peak
from outcrop.observe.record import EpochRecord, RunRecord, drive_read_bytes, drive_written_bytes
from outcrop.options import DiskOptions
from outcrop.sample.batching import RANDOM
from outcrop.store.derived import tree_bytes
from outcrop.store.store import GraphStore
from outcrop.tools.bench.digest import digest_batches
from outcrop.tools.bench.peers import PEERS, PeerBatch, open_peer
from outcrop.tools.bench.variants import variant_named
from outcrop.tools.environment import process_facts, run_record

Access = Literal["auto", "direct", "buffered"]


@dataclass(frozen=True)
class Job:
    """What one run measures."""

    store: str
    strategy: str
    memory_bytes: int
    num_neighbors: list[int]
    batch_size: int
    batches: int
    """How many are timed per epoch."""
    warmup: int
    """Batches before them, in each epoch."""
    epochs: int
    model: str
    """none, or what is trained on the batches."""
    seed: int
    check_batches: int
    out: str
    """Where the record goes."""
    bytes_per_second: int | None = None
    """As if the drive moved no more; None: its own speed."""
    batching: str = RANDOM
    requests_per_second: int | None = None
    """As if it served no more; None: as many as it does."""
    history: str = ""
    """As loaders have it; empty: no embedding is used again."""
    access: Access = "auto"
    """Around the page cache or through it, as `DiskOptions` has it."""


# Zeros would be claims.
_NOT_KNOWN_OF_PEERS = dict.fromkeys(
    ("stall_seconds", "hits", "read_requests", "bytes_wanted", "bytes_read", "read_amplification",
     "read_sizes", "write_sizes", "stages")
)  # fmt: skip


def run_job(job: Job) -> RunRecord:
    return run_peer(job) if job.strategy in PEERS else run_strategy(job)


def run_strategy(job: Job) -> RunRecord:
    from outcrop.loader import NeighborLoader

    with ExitStack() as opened:
        disk_options = DiskOptions(
            access=job.access, bytes_per_second=job.bytes_per_second,
            requests_per_second=job.requests_per_second,
        )  # fmt: skip
        store = opened.enter_context(GraphStore(job.store, disk_options))
        whole = _WholeRun(store)
        disk = opened.enter_context(Peak(store.derived.used_bytes))
        loader = NeighborLoader(
            store, job.num_neighbors, "train", batch_size=job.batch_size, shuffle=True,
            seed=job.seed, batching=job.batching, strategy=variant_named(job.strategy),
            memory=job.memory_bytes, epochs=job.epochs, edge_ids=False,
            history=job.history or None,
        )  # fmt: skip
        opened.callback(loader.close)
        train = _trainer(job, store)
        if loader.history is not None and job.model == "none":
            train = _Exchange(loader.history.width)

        def step(batch: Any) -> None:
            whole.note_batch()
            train(batch)

        timed = []
        monitor = _monitor(store)
        monitor.add(loader.runner.queue_lengths, prefix="queue_")
        with monitor:
            for epoch in range(job.epochs):
                with closing(_epoch(loader, job, epoch)) as batches:
                    timed.append(_time(batches, step, job.warmup, store.num_nodes))
            run = whole.facts()
        # Before the check, which is not measured.
        process, layouts = process_facts(disk.now()), store.derived.used()
        values = {**loader.record.as_dict(), "run": run}
        for entry, found in zip(values["epochs"], timed, strict=True):
            entry["timed_seconds"], entry["distinct_rows"] = found
        digest = None
        if job.check_batches:
            digest = digest_batches(_in_order(loader, job.check_batches))
        return run_record(
            "bench", store, **_told(job), process=process, loader=values, layouts=layouts,
            series=monitor.series, digest=digest,
        )  # fmt: skip


def _epoch(loader: Any, job: Job, epoch: int) -> Generator[Any, None, None]:
    """What is timed of an epoch. With embeddings that are used again, it is the one after the last.

    Epochs by number go without embeddings. One that is not taken whole ends what is ahead of it.
    """
    wanted = job.warmup + job.batches
    if not job.history:
        yield from loader.epoch(epoch, wanted)
        return
    with closing(iter(loader)) as batches:
        yield from islice(batches, wanted if wanted < len(loader) else None)


class _Exchange:
    """What a model does with embeddings, and nothing else of it: they are pushed and pulled, and
    gradients come back."""

    def __init__(self, width: int) -> None:
        import torch

        self._x = torch.zeros(0, width)

    def __call__(self, batch: Any) -> None:
        if batch.history is None:
            return
        rows = sum(batch.num_sampled_nodes[:2])
        if len(self._x) < rows:
            self._x = self._x.new_zeros(rows, self._x.shape[1])
        x = batch.history.exchange(self._x[:rows].requires_grad_())
        x.backward(x.new_zeros(x.shape))


class _WholeRun:
    """What a run took and moved since just before its loader was made: preparation and all."""

    def __init__(self, store: GraphStore) -> None:
        self._store = store
        self._first_batch_seconds: float | None = None
        self._before = self._moved()
        self._start = time.perf_counter()

    def note_batch(self) -> None:
        """A batch is there."""
        if self._first_batch_seconds is None:
            self._first_batch_seconds = time.perf_counter() - self._start

    def facts(self) -> dict[str, Any]:
        """So far, as docs/record.md has it."""
        seconds = time.perf_counter() - self._start
        moved = {name: after - self._before[name] for name, after in self._moved().items()}
        return {"seconds": seconds, "first_batch_seconds": self._first_batch_seconds, **moved}

    def _moved(self) -> dict[str, int]:
        counters = self._store.counters
        return {
            "read_requests": counters.read_requests,
            "write_requests": counters.write_requests,
            "drive_bytes": drive_read_bytes(),
            "drive_written_bytes": drive_written_bytes(),
        }


def run_peer(job: Job) -> RunRecord:
    """The loader of others: its time, and what is in the batches that it delivers."""
    if job.strategy == "graphbolt" and job.model != "none":
        raise OptionError(
            f"graphbolt's batches have a graph per layer, which PyG's models do not take: its data "
            f"path is measured alone, with model none (got {job.model})"
        )
    with GraphStore(job.store) as store, tempfile.TemporaryDirectory(dir=store.path.parent) as at:
        start = time.perf_counter()
        peer = open_peer(
            job.strategy, store, num_neighbors=job.num_neighbors, batch_size=job.batch_size,
            scratch=Path(at),
        )  # fmt: skip
        loader: dict[str, Any] = {
            "strategy": job.strategy,
            "prepare_seconds": time.perf_counter() - start,
            "epochs": [],
        }
        train = _trainer(job, store)
        with _monitor(store) as monitor:
            for epoch in range(job.epochs):
                entry = EpochRecord(stream="train", epoch=epoch)

                def step(batch: PeerBatch, entry: EpochRecord = entry) -> None:
                    batch.count(entry)
                    train(batch.data)

                before, start = drive_read_bytes(), time.perf_counter()
                batches = peer.epoch(job.warmup + job.batches)
                seconds, rows = _time(batches, step, job.warmup, store.num_nodes)
                entry.seconds = time.perf_counter() - start
                entry.drive_bytes = drive_read_bytes() - before
                facts = {"timed_seconds": seconds, "distinct_rows": rows}
                loader["epochs"].append({**asdict(entry), **_NOT_KNOWN_OF_PEERS, **facts})
        return run_record(
            "bench", store, **_told(job), process=process_facts(tree_bytes(Path(at))),
            loader=loader, series=monitor.series,
        )  # fmt: skip


def _told(job: Job) -> dict[str, Any]:
    """What a record has of its job."""
    command = ["python", "-m", "outcrop.tools.bench.worker"]
    return {"name": job.strategy, "command": command, "configuration": asdict(job)}


def _monitor(store: GraphStore) -> Monitor:
    monitor = Monitor(store.path)
    gpu = GpuMeter.find()
    if gpu is not None:
        monitor.add(gpu.gauge)
    return monitor


def _time(batches: Iterator[Any], step: Any, warmup: int, num_nodes: int) -> tuple[float, int]:
    """Seconds from the end of the warm-up to the end; distinct rows of all."""
    seen = np.zeros(num_nodes, dtype=bool)
    start = time.perf_counter()
    number = 0  # not enumerate(), which would keep a batch while the next one is awaited
    for batch in batches:
        step(batch)
        seen[batch.n_id.numpy()] = True
        del batch
        number += 1  # noqa: SIM113
        if number == warmup:
            start = time.perf_counter()
    return time.perf_counter() - start, int(np.count_nonzero(seen))


def _in_order(loader: Any, batches: int) -> Iterator[Any]:
    """The first batches of epoch 0; one by one where the strategy would give them in any order."""
    if loader.record.order == "exact":
        yield from loader.epoch(0, batches)
        return
    for number in range(batches):
        yield from loader.epoch(0, 1, number)


def _trainer(job: Job, store: GraphStore) -> Any:
    """What is done with each batch."""
    if job.model == "none":
        return lambda _: None
    import torch

    from outcrop.train.models import make_model, seed_labels, seed_logits
    from outcrop.train.options import TrainOptions
    from outcrop.train.targets import Targets

    torch.manual_seed(job.seed)
    layers = len(job.num_neighbors)
    options = TrainOptions.from_dict(
        {"model": job.model, "layers": layers, "num_neighbors": job.num_neighbors}
    )
    targets = Targets.of(store, options)
    model = make_model(options, store.encoding.dim, targets.out_channels)
    optimizer = torch.optim.Adam(model.parameters(), lr=options.lr)

    def step(batch: Any) -> None:
        optimizer.zero_grad()
        loss = targets.loss(seed_logits(model, batch), seed_labels(batch))
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    return step


def main() -> None:
    job = Job(**json.loads(Path(sys.argv[1]).read_text()))
    run_job(job).write(Path(job.out))


if __name__ == "__main__":
    main()
