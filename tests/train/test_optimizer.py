"""Optimizer: as torch's own optimizers, schedules and clipping, and resumed bit by bit."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler
from torch_geometric.nn import GraphSAGE

from outcrop.errors import DivergedError, OptionError, StoreError
from outcrop.store.store import GraphStore
from outcrop.train import TrainOptions, TrainReporter, fit, load_checkpoint, save_checkpoint
from outcrop.train.optimizer import Plateau, clip_gradients, learning_rate, make_optimizer
from tests.stores import make_random_store
from tests.train.test_finite import spoil

SMALL: dict[str, Any] = {
    "layers": 2, "hidden": 8, "num_neighbors": (4, 3), "batch_size": 20, "epochs": 4, "lr": 0.01,
    "memory": "200MB", "device": "cpu", "strategy": "memory",
}  # fmt: skip
BATCHES = 5
"""Of an epoch of the store."""


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GraphStore]:
    with make_random_store(tmp_path_factory.mktemp("optimizer") / "g.outcrop", train=100) as made:
        yield made


def weights_hash(model: nn.Module) -> str:
    digest = hashlib.sha256()
    for name, value in sorted(model.state_dict().items()):
        digest.update(name.encode() + value.numpy().tobytes())
    return digest.hexdigest()


class Steps(TrainReporter):
    """What was told of each step; interrupts after `stop` of them."""

    def __init__(self, stop: int | None = None) -> None:
        self.stop = stop
        self.lrs: list[float] = []
        self.norms: list[float | None] = []
        self.numbers: list[int] = []

    def stepped(self, step: int, lr: float, gradient_norm: float | None) -> None:
        self.numbers.append(step)
        self.lrs.append(lr)
        self.norms.append(gradient_norm)

    def batch(self, epoch: int, batch: int, loss: float, seeds: int, bytes_read: int) -> None:
        if len(self.lrs) == self.stop:
            raise KeyboardInterrupt


def told(store: GraphStore, **options: Any) -> Steps:
    steps = Steps()
    fit(store, TrainOptions(**{**SMALL, **options}), reporter=steps)
    return steps


# Kinds and weight decay


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, lambda p: torch.optim.Adam(p, lr=0.01)),
        ({"optimizer": "adamw"}, lambda p: torch.optim.AdamW(p, lr=0.01, weight_decay=0.1)),
        ({"optimizer": "sgd"}, lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.9)),
        (
            {"optimizer": "sgd", "momentum": 0.5, "weight_decay": 0.2},
            lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.5, weight_decay=0.2),
        ),
    ],
)
def test_the_optimizer_is_torchs_own(options: dict[str, Any], expected: Any) -> None:
    if options.get("optimizer") == "adamw":
        options = {**options, "weight_decay": 0.1}
    models = [nn.Linear(3, 2), nn.Linear(3, 2)]
    models[1].load_state_dict(models[0].state_dict())
    made = [make_optimizer(models[0], TrainOptions(lr=0.01, **options)),
            expected(models[1].parameters())]  # fmt: skip
    assert type(made[0]) is type(made[1]) and len(made[0].param_groups) == 1
    x = torch.randn(5, 3)
    for _ in range(4):
        for model, optimizer in zip(models, made, strict=True):
            optimizer.zero_grad()
            model(x).square().sum().backward()
            optimizer.step()
    assert torch.equal(models[0].weight, models[1].weight)


@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
def test_biases_and_normalisations_do_not_decay_with_weights_alone(optimizer: Any) -> None:
    model = GraphSAGE(4, 6, num_layers=2, out_channels=3, norm="batch_norm")
    nn.init.constant_(model.convs[0].lin_l.bias, 1.0)
    before = {name: value.clone() for name, value in model.named_parameters()}
    for decay, shrinks in (("weights", {2}), ("all", {1, 2})):
        model.load_state_dict(before, strict=False)
        options = TrainOptions(optimizer=optimizer, weight_decay=0.5, lr=0.1, decay=decay)  # type: ignore[arg-type]
        made = make_optimizer(model, options)
        for parameter in model.parameters():
            parameter.grad = torch.zeros_like(parameter)
        made.step()
        for name, value in model.named_parameters():
            shrunk = value.norm() < before[name].norm()
            assert shrunk == (value.ndim in shrinks and bool(before[name].any())), (decay, name)


def test_a_model_without_biases_has_one_group() -> None:
    options = TrainOptions(decay="weights", weight_decay=0.1)
    assert len(make_optimizer(nn.Linear(3, 2, bias=False), options).param_groups) == 1
    lazy = nn.LazyLinear(2)
    groups = make_optimizer(lazy, options).param_groups
    assert [group["weight_decay"] for group in groups] == [0.1, 0.0]
    assert groups[1]["params"][0] is lazy.bias


# Learning rates


def torchs_rates(make: Any, steps: int) -> list[float]:
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.01)
    schedule, rates = make(optimizer), []
    for _ in range(steps):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    return rates


SCHEDULES: list[tuple[dict[str, Any], Any]] = [
    ({}, lambda o: lr_scheduler.ConstantLR(o, 1.0)),
    (
        {"schedule": "cosine", "lr_min": 0.001},
        lambda o: lr_scheduler.CosineAnnealingLR(o, 4 * BATCHES, eta_min=0.001),
    ),
    (
        {"schedule": "linear", "lr_min": 0.001},
        lambda o: lr_scheduler.LinearLR(o, 1.0, 0.1, total_iters=4 * BATCHES),
    ),
    (
        {"schedule": "step", "lr_epochs": 2, "lr_factor": 0.5},
        lambda o: lr_scheduler.StepLR(o, 2 * BATCHES, 0.5),
    ),
    (
        {"warmup_epochs": 1.4},
        lambda o: lr_scheduler.LinearLR(o, 1 / 7, 1.0, total_iters=6),
    ),
    (
        {"schedule": "cosine", "warmup_epochs": 1.0},
        lambda o: lr_scheduler.SequentialLR(
            o,
            [
                lr_scheduler.LinearLR(o, 1 / BATCHES, 1.0, total_iters=BATCHES - 1),
                lr_scheduler.CosineAnnealingLR(o, 3 * BATCHES),
            ],
            [BATCHES],
        ),
    ),
]


@pytest.mark.parametrize(("options", "torchs"), SCHEDULES)
@pytest.mark.filterwarnings("ignore:The epoch parameter in `scheduler.step")
def test_every_step_has_the_rate_of_torchs_schedule(
    store: GraphStore, options: dict[str, Any], torchs: Any
) -> None:
    steps = told(store, **options)
    assert steps.numbers == list(range(1, 4 * BATCHES + 1))
    assert steps.lrs == pytest.approx(torchs_rates(torchs, 4 * BATCHES), rel=1e-9)


def test_rates_do_not_fall_below_the_least() -> None:
    options = TrainOptions(schedule="step", lr=0.1, lr_epochs=1, lr_min=0.004)
    rates = [learning_rate(options, 3 * epoch, 3) for epoch in range(4)]
    assert rates == pytest.approx([0.1, 0.01, 0.004, 0.004])
    plateau = TrainOptions(schedule="plateau", lr=0.1, lr_min=0.05)
    assert learning_rate(plateau, 7, 3, Plateau(share=0.01)) == 0.05


def test_plateau_is_torchs() -> None:
    scores = [0.1, 0.3, 0.3, 0.2, 0.3, 0.4, 0.4, 0.1, 0.39, 0.2, 0.5, 0.5]
    options = TrainOptions(schedule="plateau", lr=0.01, lr_patience=3, lr_factor=0.5)
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.01)
    schedule = lr_scheduler.ReduceLROnPlateau(
        optimizer, "max", factor=0.5, patience=2, threshold=0.0, threshold_mode="abs"
    )
    plateau, best = Plateau(), -1.0
    for score in scores:
        schedule.step(score)
        plateau.evaluated(score > best, options)
        best = max(score, best)
        rate = learning_rate(options, 10, 5, plateau)
        assert rate == pytest.approx(optimizer.param_groups[0]["lr"])
    assert plateau.share == 0.25


def test_plateau_lowers_the_rate_of_a_run(store: GraphStore) -> None:
    """With a rate of 0 no evaluation is better than the first."""
    options = {"schedule": "plateau", "lr_patience": 2, "epochs": 6, "lr_factor": 0.5}
    steps = told(store, **options, lr=1e-30)
    rates = [steps.lrs[epoch * BATCHES] for epoch in range(6)]
    assert rates == pytest.approx([1e-30, 1e-30, 1e-30, 5e-31, 5e-31, 2.5e-31])


def test_plateau_needs_validation(tmp_path: Path, store: GraphStore) -> None:
    class NoVal:
        path = store.path

        def has(self, name: str) -> bool:
            return name != "val"

    with pytest.raises(StoreError, match="schedule=plateau needs val"):
        fit(NoVal(), TrainOptions(schedule="plateau"))  # type: ignore[arg-type]


# Resuming


@pytest.mark.parametrize(
    "options",
    [
        {"schedule": "cosine", "warmup_epochs": 1.6, "optimizer": "adamw", "decay": "weights",
         "weight_decay": 0.1},
        {"schedule": "plateau", "lr_patience": 1, "optimizer": "sgd", "clip": 0.5},
        {"schedule": "step", "lr_epochs": 1, "clip": 0.1, "warmup_epochs": 0.5},
        {"optimizer": "sgd", "momentum": 0.0, "schedule": "linear"},
    ],
)  # fmt: skip
@pytest.mark.parametrize("stop", [2, 7, 13])
def test_a_run_is_resumed_in_the_middle_of_an_epoch_bit_by_bit(
    store: GraphStore, tmp_path: Path, options: dict[str, Any], stop: int
) -> None:
    options = {**SMALL, **options}
    whole, first, rest = Steps(), Steps(stop), Steps()
    expected = fit(store, TrainOptions(**options), reporter=whole)
    kept: dict[str, Any] = {"checkpoint_dir": str(tmp_path), "checkpoint_every": 1}
    with pytest.raises(KeyboardInterrupt):
        fit(store, TrainOptions(**options, **kept), reporter=first)
    result = fit(store, TrainOptions(**options, **kept, resume=True), reporter=rest)
    assert weights_hash(result.model) == weights_hash(expected.model)
    # The step that was interrupted had not been saved.
    assert first.lrs[:-1] + rest.lrs == whole.lrs and first.norms[:-1] + rest.norms == whole.norms


def test_epochs_may_change_where_the_schedule_does_not_end_with_them(
    store: GraphStore, tmp_path: Path
) -> None:
    for schedule, may in (("constant", True), ("step", True), ("cosine", False), ("linear", False)):
        options = {**SMALL, "schedule": schedule, "checkpoint_dir": str(tmp_path / schedule)}
        fit(store, TrainOptions(**{**options, "epochs": 1}))
        longer = TrainOptions(**{**options, "epochs": 2}, resume=True)
        if may:
            assert len(fit(store, longer).history) == 2
            continue
        with pytest.raises(OptionError, match=f"epochs=1, at which its {schedule} schedule ends"):
            fit(store, longer)


def test_a_checkpoint_without_the_newer_options_is_resumed(
    store: GraphStore, tmp_path: Path
) -> None:
    options = {**SMALL, "checkpoint_dir": str(tmp_path), "checkpoint_every": 1}
    with pytest.raises(KeyboardInterrupt):
        fit(store, TrainOptions(**options), reporter=Steps(8))
    path = tmp_path / "last.safetensors"
    old = load_checkpoint(path)
    for name in ("optimizer", "momentum", "decay", "clip", "schedule", "warmup_epochs", "lr_min",
                 "lr_factor", "lr_epochs", "lr_patience", "min_delta"):  # fmt: skip
        del old.facts["options"][name]
    for name in ("reference", "plateau"):
        del old.facts["progress"][name]
    save_checkpoint(path, old)
    result = fit(store, TrainOptions(**options, resume=True))
    assert weights_hash(result.model) == weights_hash(fit(store, TrainOptions(**SMALL)).model)
    with pytest.raises(OptionError, match=r"saved with clip=0\.0 "):
        fit(store, TrainOptions(**options, resume=True, clip=1.0))


# Gradients


@pytest.mark.parametrize("most", [0.01, 1e9])
def test_gradients_are_clipped_as_torch_does(most: float) -> None:
    models = [nn.Linear(3, 2), nn.Linear(3, 2)]
    models[1].load_state_dict(models[0].state_dict())
    x = torch.randn(5, 3)
    for model in models:
        model(x).square().sum().backward()
    norm = clip_gradients(models[0], most)
    assert norm == float(nn.utils.clip_grad_norm_(models[1].parameters(), most))
    for one, other in zip(models[0].parameters(), models[1].parameters(), strict=True):
        assert one.grad is not None and other.grad is not None
        assert torch.equal(one.grad, other.grad)


def test_clipping_changes_a_run_and_tells_the_norm(store: GraphStore) -> None:
    plain, free, short = told(store), told(store, clip=1e9), told(store, clip=1e-3)
    assert set(plain.norms) == {None}
    assert all(norm is not None and math.isfinite(norm) and norm > 1e-3 for norm in free.norms)
    options = [TrainOptions(**SMALL, optimizer="sgd", clip=clip) for clip in (0.0, 1e9, 1e-3)]
    hashes = [weights_hash(fit(store, one).model) for one in options]
    assert hashes[0] == hashes[1] != hashes[2]
    assert short.norms[0] == free.norms[0], "the norm before it was clipped"


class Exploding(nn.Module):
    """Its gradient is infinite from the given forward pass on."""

    def __init__(self, at: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(10, 4))
        self.left = at

    def forward(self, x: torch.Tensor, edge_index: torch.Tensor) -> torch.Tensor:
        self.left -= self.training
        out = x[:, :1] * self.weight[:1] + self.weight.sum()
        return out * float("nan") if self.left < 0 else out


def test_a_gradient_that_is_no_number_ends_the_run_before_it_reaches_the_weights(
    store: GraphStore, tmp_path: Path
) -> None:
    model = Exploding(BATCHES + 2)
    options = TrainOptions(**SMALL, clip=1.0, checkpoint_dir=str(tmp_path), checkpoint_every=1)
    with pytest.raises(DivergedError, match=r"^epoch 2, batch 3: the norm of the gradients is nan"):
        fit(store, options, model=model)
    assert torch.isfinite(model.weight).all()
    saved = load_checkpoint(tmp_path / "last.safetensors")
    assert torch.equal(saved.model["weight"], model.weight)


def test_a_damaged_row_is_named_before_the_gradient(tmp_path: Path) -> None:
    with make_random_store(tmp_path / "s", train=30) as store:
        node = spoil(store, float("nan"))
        with pytest.raises(StoreError, match=f"the row of node {node} is not finite"):
            fit(store, TrainOptions(**{**SMALL, "strategy": "direct"}, clip=1.0))
