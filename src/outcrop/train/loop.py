"""The loop: batches -> gradient steps, evaluations, checkpoints; resumed, it goes on bit by bit."""

from __future__ import annotations

import copy
import math
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from outcrop.errors import DivergedError, OptionError, StoreError
from outcrop.loader import NeighborLoader, ShaDowLoader
from outcrop.observe.gpu_meter import GpuMeter
from outcrop.observe.monitor import Monitor
from outcrop.observe.record import LoaderRecord, rss_bytes
from outcrop.progress import SILENT, Progress
from outcrop.store.format import LOCK
from outcrop.store.locks import DirectoryLock
from outcrop.store.store import GraphStore
from outcrop.train.checkpoint import (
    Checkpoint,
    check_weights,
    load_checkpoint,
    restore_checkpoint,
    save_checkpoint,
    take_checkpoint,
)
from outcrop.train.embeddings import (
    load_candidates,
    load_embeddings,
    remove_others,
    save_embeddings,
)
from outcrop.train.evaluate import Scores, evaluate_full, evaluate_sampled
from outcrop.train.facts import RunFacts, RunProgress, saved_options
from outcrop.train.finite import check_rows
from outcrop.train.inference import layered_alone, least_memory
from outcrop.train.layered import as_layered
from outcrop.train.memory import MemoryUse, PeakMeter
from outcrop.train.models import (
    check_reuses,
    choose_device,
    make_model,
    seed_labels,
    seed_logits,
)
from outcrop.train.optimizer import (
    clip_gradients,
    learning_rate,
    make_optimizer,
    set_learning_rate,
)
from outcrop.train.options import BEST, LAST, TrainOptions
from outcrop.train.reporter import EpochResult, TrainReporter
from outcrop.train.stopping import is_better
from outcrop.train.targets import Targets

Loader = NeighborLoader | ShaDowLoader


@dataclass
class FitResult:
    """How training ended."""

    model: nn.Module
    """With the weights of the best validation, or the last ones where there is none."""
    history: list[EpochResult]
    best_epoch: int | None
    val: float | None
    test: float | None
    """At the best validation."""
    record: LoaderRecord
    memory: MemoryUse | None
    stopped_early: bool
    series: dict[str, list[float]]
    """What the machine did, second by second."""
    metric: str = "accuracy"
    """What `val` and `test` are."""


def fit(
    store: GraphStore,
    options: TrainOptions | None = None,
    *,
    model: nn.Module | None = None,
    reporter: TrainReporter | None = None,
) -> FitResult:
    """Trains `model` (by default the one that the options name) on the store's "train" nodes."""
    options = options or TrainOptions()
    for name in ("features", "labels", "train"):
        if not store.has(name):
            raise StoreError(f"{store.path}: training needs {name}")
    if options.schedule == "plateau" and not store.has("val"):
        raise StoreError(f"{store.path}: schedule=plateau needs val")
    with _checkpoint_lock(options), _determinism(options), Monitor(store.path) as monitor:
        return _Run(store, options, model, reporter or TrainReporter(), monitor).fit()


class _Run:
    """One call of fit."""

    def __init__(
        self,
        store: GraphStore,
        options: TrainOptions,
        model: nn.Module | None,
        reporter: TrainReporter,
        monitor: Monitor,
    ) -> None:
        self.monitor = monitor
        self.store = store
        self.options = options
        self.reporter = reporter
        self.device = choose_device(options.device)
        if options.precision == "bf16" and self.device.type == "cpu":
            _check_bf16()
        self.runtime_bytes = rss_bytes()
        torch.manual_seed(options.seed)
        self.targets = Targets.of(store, options)
        self.model = model or make_model(options, store.encoding.dim, self.targets.out_channels)
        self.model.to(self.device)
        self.optimizer = make_optimizer(self.model, options)
        lent = 0
        if options.evaluate == "full":
            lent = least_memory(store, layered_alone(self.model))
        self.before = self._last_checkpoint() if options.resume else None
        history = self._history()
        self.loader = make_loader(store, options, self.device, reporter.progress, lent, history)
        monitor.add(self.loader.runner.queue_lengths, prefix="queue_")
        gpu = _gpu_meter(self.device)
        if gpu is not None:
            monitor.add(gpu.gauge)
        self.progress = RunProgress()
        self.best_weights: dict[str, torch.Tensor] | None = None
        self.memory: MemoryUse | None = None

    # Checkpoints

    @property
    def _directory(self) -> Path | None:
        directory = self.options.checkpoint_dir
        return None if directory is None else Path(directory)

    def _save(self, name: str) -> None:
        if self._directory is None:
            return
        checkpoint, history = self._checkpoint(), self.loader.history
        if history is None or name != LAST:
            save_checkpoint(self._directory / name, checkpoint)
            return
        said = save_embeddings(self.store.disk, self._directory, history)
        checkpoint.facts["embeddings"] = said
        save_checkpoint(self._directory / name, checkpoint)
        remove_others(self._directory, said)

    def _checkpoint(self) -> Checkpoint:
        facts = {
            "options": self.options.as_dict(),
            "in_channels": self.store.encoding.dim,
            "out_channels": self.targets.out_channels,
            "loader": self.loader.state_dict(),
            "order": self.loader.record.order,
            "progress": asdict(self.progress),
        }
        return take_checkpoint(self.model, self.optimizer, facts)

    def _last_checkpoint(self) -> Checkpoint | None:
        """What the run goes on from; OptionError where that is one of other options."""
        assert self._directory is not None
        path = self._directory / LAST
        if not path.exists():  # killed before its first checkpoint, or a mistyped directory
            self.reporter.progress.note(
                f"{self._directory} has no checkpoint: training starts from the beginning"
            )
            return None
        checkpoint = load_checkpoint(path)
        saved = self.targets.settled(saved_options(RunFacts.of(checkpoint), checkpoint.name))
        self.targets.settled(self.options).check_resumes(saved, str(path))
        return checkpoint

    def _history(self) -> Any:
        """As a loader has it: of the nodes that the checkpoint has, if there is one."""
        history = history_of(self.options, self.model)
        if history is None or self.before is None:
            return history
        assert self._directory is not None
        return history, load_candidates(self.store, self._directory, self.before)

    def _resume(self, checkpoint: Checkpoint) -> None:
        assert self._directory is not None
        path, facts = self._directory / LAST, RunFacts.of(checkpoint)
        self._take_up(facts, path)
        restore_checkpoint(checkpoint, self.model, self.optimizer)
        if self.loader.history is not None:
            load_embeddings(self.store.disk, self._directory, checkpoint, self.loader.history)
        self.progress = facts.progress
        if self.progress.best_epoch is not None:
            best = load_checkpoint(self._directory / BEST)
            check_weights(best, self.model)
            self.best_weights = best.model
        position = self.loader.state_dict()
        done = position["batch"] + len(position["ahead"])
        self.reporter.progress.note(
            f"resumed from {path}: epoch {position['epoch'] + 1} of {self.options.epochs}"
            + (f", after {done} of {len(self.loader)} batches" if done else "")
        )

    def _take_up(self, facts: RunFacts, path: Path) -> None:
        """Takes up the position. The strategy may differ, if weights do not depend on it."""
        try:
            self.loader.load_state_dict(facts.loader)
        except OptionError as error:
            raise OptionError(f"{path}: {error}") from error
        order = self.loader.record.order
        if facts.order not in (None, order):
            raise OptionError(
                f"{path}: saved by a run whose batches came in {facts.order} order "
                f"(got strategy={self.options.strategy!r}, whose order is {order})"
            )

    # Training

    def fit(self) -> FitResult:
        try:
            return self._fit()
        finally:
            self.loader.close()

    def _fit(self) -> FitResult:
        if self.before is not None:
            self._resume(self.before)
            self.before = None
        done = self.loader.state_dict()["epoch"]
        self.reporter.begin(self.options, len(self.loader), done)
        if done >= self.options.epochs:
            self._say_that_nothing_is_left(done)
        elif not self._stopped():
            for epoch in range(done, self.options.epochs):
                self._train_epoch(epoch)
                if self._stopped():
                    break
        return self._finish()

    def _say_that_nothing_is_left(self, done: int) -> None:
        had = f"the run has had {done}"
        if not done:
            had = "the model has its first weights"
            if self._directory is not None:
                had += f", and no checkpoint was written to {self._directory}"
        self.reporter.progress.note(f"epochs={self.options.epochs}: nothing was trained; {had}")

    def _stopped(self) -> bool:
        return 0 < self.options.patience <= self.progress.worse

    def _train_epoch(self, epoch: int) -> None:
        start = time.perf_counter() - self.progress.seconds
        self.model.train()
        with closing(iter(self.loader)) as batches:  # type: ignore[type-var]
            for batch in batches:
                self._step(epoch, batch)
                del batch  # its memory is free for the next one
                self.progress.seconds = time.perf_counter() - start
                every = self.options.checkpoint_every
                if every and self.progress.steps % every == 0:
                    self._save(LAST)
        self._end_epoch(epoch)

    def _step(self, epoch: int, batch: Any) -> None:
        meter = PeakMeter() if self.memory is None else None
        step = epoch * len(self.loader) + self.progress.steps
        lr = learning_rate(self.options, step, len(self.loader), self.progress.plateau)
        set_learning_rate(self.optimizer, lr)
        self.optimizer.zero_grad()
        with self._autocast():
            logits = seed_logits(self.model, batch)
            loss = self.targets.loss(logits.float(), seed_labels(batch))
        loss.backward()  # type: ignore[no-untyped-call]
        norm = self._clip(epoch, batch, loss)
        self.optimizer.step()
        value = loss.item()
        check_rows(batch, self.store)
        self.progress.loss_sum += value
        self.progress.steps += 1
        if meter is not None:
            self.memory = MemoryUse(
                self.loader.record.memory_bytes, meter.grown_bytes(), self.runtime_bytes
            )
            self.reporter.memory(self.memory)
        self.reporter.stepped(step + 1, lr, norm)
        position = self.loader.state_dict()
        self.reporter.batch(
            position["epoch"],
            position["batch"] + len(position["ahead"]),
            value,
            len(batch.input_id),
            self.store.disk.counters.bytes_read,
        )

    def _clip(self, epoch: int, batch: Any, loss: torch.Tensor) -> float | None:
        """The norm of the gradients, where they are clipped. DivergedError before a bad step."""
        if not self.options.clip:
            return None
        norm = clip_gradients(self.model, self.options.clip)
        if not math.isfinite(norm):
            check_rows(batch, self.store)
            raise DivergedError(
                f"epoch {epoch + 1}, batch {self.progress.steps + 1}: the norm of the gradients is "
                f"{norm} (the loss {loss.item():.3g}), and no step was made with them; a lower lr, "
                "warmup_epochs or precision=fp32 may help"
            )
        return norm

    def _autocast(self) -> torch.autocast:
        enabled = self.options.precision == "bf16"
        return torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=enabled)

    def _end_epoch(self, epoch: int) -> None:
        progress = self.progress
        loss = progress.loss_sum / max(progress.steps, 1)
        result = EpochResult(epoch, loss, progress.seconds)
        last = epoch + 1 == self.options.epochs
        if self.options.evaluate != "none" and (
            (epoch + 1) % self.options.evaluate_every == 0 or last
        ):
            self._evaluate(result)
        progress.history.append(result)
        progress.loss_sum, progress.steps, progress.seconds = 0.0, 0, 0.0
        if progress.best_epoch == epoch:
            # Before LAST, which refers to it: a crash in between repeats this epoch's end.
            self._save(BEST)
        self._save(LAST)
        self.reporter.epoch(result)

    def _evaluate(self, result: EpochResult) -> None:
        scores = self._scores()
        result.val, result.test = scores.get("val"), scores.get("test")
        value = result.val
        if value is None:
            return
        progress, higher = self.progress, self.targets.higher_is_better
        if is_better(value, progress.best, higher_is_better=higher):
            progress.best, progress.best_test = value, result.test
            progress.best_epoch = result.epoch
            self.best_weights = copy.deepcopy(self.model.state_dict())
        least = self.options.min_delta
        better = is_better(value, progress.reference, higher_is_better=higher, min_delta=least)
        if better:
            progress.reference = value
        progress.worse = 0 if better else progress.worse + 1
        progress.plateau.evaluated(better, self.options)

    def _scores(self) -> Scores:
        splits = [name for name in ("val", "test") if self.store.has(name)]
        if self.options.evaluate == "full":
            # Batches wait meanwhile, and lend their memory: there is one budget.
            with self.loader.runner.lend() as memory:
                return evaluate_full(self.model, self.store, splits, self.targets, memory)
        with self._autocast():
            return evaluate_sampled(self.model, self.loader, splits, self.targets)

    def _finish(self) -> FitResult:
        if self.best_weights is not None:
            self.model.load_state_dict(self.best_weights)
        result = FitResult(
            model=self.model,
            history=self.progress.history,
            best_epoch=self.progress.best_epoch,
            val=self.progress.best,
            test=self.progress.best_test,
            record=self.loader.record,
            memory=self.memory,
            stopped_early=self._stopped(),
            series=self.monitor.series,
            metric=self.targets.metric,
        )
        self.reporter.end(result)
        return result


def make_loader(
    store: GraphStore,
    options: TrainOptions,
    device: torch.device,
    progress: Progress = SILENT,
    lent_bytes: int = 0,
    history: Any = None,
) -> Loader:
    """The loader of the training nodes; its siblings serve the other splits."""
    common: dict[str, Any] = {
        "batch_size": options.batch_size,
        "strategy": options.strategy,
        "memory": options.memory,
        "strict_memory": options.strict_memory,
        "disk": options.disk,
        "epochs": options.epochs,
        "progress": progress,
        "seed": options.seed,
        "replace": options.replace,
        "shuffle": True,
        "batching": options.batching,
        "device": device,
        "check": options.check,
        "edge_ids": False,
        "history": history,
    }
    if options.sampler == "neighbor":
        return NeighborLoader(
            store, options.num_neighbors, "train", lent_bytes=lent_bytes, **common
        )
    if len(set(options.num_neighbors)) != 1:
        raise OptionError(
            f"shadow takes the same number of neighbours at each hop "
            f"(got {list(options.num_neighbors)})"
        )
    depth = len(options.num_neighbors)
    return ShaDowLoader(store, depth, options.num_neighbors[0], "train", **common)


def history_of(options: TrainOptions, model: nn.Module) -> str | None:
    """What a loader is told; OptionError where the model does not use embeddings again."""
    if options.history == "none":
        return None
    check_reuses(model)
    layered = as_layered(model)
    if layered is not None:
        return f"width={layered.widths[-2]}:{options.history}"
    width = getattr(model, "history_width", None)
    if width is None:
        raise OptionError(
            f"history: {type(model).__name__} has no history_width, the width of the input of its "
            "last layer"
        )
    return f"width={width}:{options.history}"


def _gpu_meter(device: torch.device) -> GpuMeter | None:
    """A meter of the GPU that trains, else of the machine's first."""
    if device.type != "cuda":
        return GpuMeter.find()
    # torch before 2.4 does not know UUIDs: the first GPU must do.
    uuid = getattr(torch.cuda.get_device_properties(device), "uuid", None)
    return GpuMeter.find(None if uuid is None else str(uuid))


def _check_bf16() -> None:
    """Some virtual machines advertise instructions for bf16 that they do not have: torch dies."""
    program = "import torch; a = torch.ones(64, 64, dtype=torch.bfloat16); a @ a"
    code = subprocess.run([sys.executable, "-c", program], stderr=subprocess.DEVNULL).returncode
    if code:
        raise OptionError(
            f"precision=bf16 does not work on this CPU (torch ends with {code}); use fp32, or set "
            "ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16 in the environment"
        )


@contextmanager
def _checkpoint_lock(options: TrainOptions) -> Iterator[None]:
    """Two runs must not write one directory."""
    if options.checkpoint_dir is None:
        yield
        return
    directory = Path(options.checkpoint_dir)
    if options.resume and not directory.is_dir():
        raise OptionError(
            f"there is no directory {directory} to resume from; to start a run there, leave resume "
            "out, or make the directory"
        )
    directory.mkdir(parents=True, exist_ok=True)
    (directory / LOCK).touch()
    lock = DirectoryLock(directory, shared=False, follow=True)
    try:
        if not options.resume and (directory / LAST).exists():
            raise OptionError(
                f"{directory} has a checkpoint already: give resume, or another directory"
            )
        yield
    finally:
        lock.release()


@contextmanager
def _determinism(options: TrainOptions) -> Iterator[None]:
    """torch's own switch, and one thread: MKL's products depend on their number, on some CPUs even
    where it is told that they must not."""
    if not options.deterministic:
        yield
        return
    before, threads = torch.are_deterministic_algorithms_enabled(), torch.get_num_threads()
    torch.use_deterministic_algorithms(True)
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before)
        torch.set_num_threads(threads)
