"""On a GPU: batches arrive there, equal to those on the CPU, and models train."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from outcrop.errors import BudgetError
from outcrop.loader import NeighborLoader
from outcrop.memory.batches import PartialRows
from outcrop.rows.device import DeviceRows, _room
from outcrop.strategies import STRATEGIES
from outcrop.tools.bench.variants import variant_named
from outcrop.train import TrainOptions, fit, infer, make_model
from outcrop.train.models import seed_logits
from tests.conformance.contract import contents
from tests.stores import make_random_store

TIERED = ["direct", "pagraph", "ginex:superbatch=3", "ginex:mode=split", "gnndrive", "diskgnn"]

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_batches_on_the_gpu_equal_those_on_the_cpu(tmp_path: Path, strategy: str) -> None:
    with make_random_store(tmp_path / "g.outcrop", train=100) as store:
        on_cpu = NeighborLoader(store, [4, 3], "train", batch_size=16, shuffle=True)
        on_gpu = NeighborLoader(store, [4, 3], "train", batch_size=16, shuffle=True,
                                strategy=strategy, device="cuda")  # fmt: skip
        for expected, found in zip(on_cpu, on_gpu, strict=True):
            assert found.x.is_cuda and found.edge_index.is_cuda
            assert contents(found.cpu()) == contents(expected)


@pytest.mark.parametrize("variant", ["1rows", "100rows:cpu_cache=false", "100rows:raw=true", "1GB"])
def test_a_device_cache_changes_no_batch(tmp_path: Path, variant: str) -> None:
    with make_random_store(tmp_path / "g.outcrop", train=100) as store:
        options: dict[str, Any] = {"batch_size": 16, "shuffle": True, "epochs": 1}
        strategy = variant_named(f"diskgnn:device_cache={variant}:verify_rows=true")
        on_cpu = NeighborLoader(store, [4, 3], "train", **options)
        on_gpu = NeighborLoader(store, [4, 3], "train", strategy=strategy, device="cuda", **options)
        for epoch in range(2):  # the second one is not prepared
            for expected, found in zip(on_cpu.epoch(epoch), on_gpu.epoch(epoch), strict=True):
                assert found.x.is_cuda
                assert contents(found.cpu()) == contents(expected)
        counted = on_gpu.record.epochs[0]
        assert 0 < counted.hits["device cache"] <= counted.rows
        on_gpu.close()


@pytest.mark.parametrize("strategy", TIERED)
def test_a_device_cache_serves_every_strategy(tmp_path: Path, strategy: str) -> None:
    with make_random_store(tmp_path / "g.outcrop", 1000, 9000, dim=33, train=200) as store:
        options: dict[str, Any] = {"batch_size": 16, "shuffle": True, "epochs": 2}
        on_cpu = NeighborLoader(store, [4, 3], "train", **options)
        on_gpu = NeighborLoader(
            store, [4, 3], "train", device="cuda",
            strategy=f"{strategy}:device_cache=300rows:verify_rows=true", **options,
        )  # fmt: skip
        for _ in range(2):
            for expected, found in zip(on_cpu, on_gpu, strict=True):
                assert found.x.is_cuda
                assert contents(found.cpu()) == contents(expected)
        for counted in on_gpu.record.epochs:
            assert 0 < counted.hits["device cache"] < counted.rows
            assert sum(counted.hits.values()) + counted.fetched_rows == counted.rows
            assert counted.stages["transfer"].busy_seconds > 0
        on_gpu.close()


@pytest.mark.parametrize("strategy", TIERED)
def test_a_loop_in_a_stream_of_its_own_finds_whole_rows(tmp_path: Path, strategy: str) -> None:
    with make_random_store(tmp_path / "g.outcrop", 1000, 9000, dim=33, train=400) as store:
        loader = NeighborLoader(
            store, [4, 3], "train", device="cuda", batch_size=16, shuffle=True, epochs=1,
            strategy=f"{strategy}:device_cache=300rows",
        )  # fmt: skip
        stream: Any = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        found = []
        with torch.cuda.stream(stream):
            for batch in loader:
                torch.cuda._sleep(10_000_000)  # type: ignore[no-untyped-call]
                # It reads long after the batch was dropped.
                found.append((batch.n_id.clone(), batch.x.clone()))
                del batch
        stream.synchronize()
        for nodes, x in found:
            assert np.array_equal(store.features.gather(nodes.cpu().numpy()), x.cpu().numpy())
        loader.close()


def test_a_batch_is_put_together_when_the_loop_gets_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever stream the loop reads it in, and however late the transfer's own is."""
    assemble = DeviceRows._assemble

    def late(source: DeviceRows, left: PartialRows) -> torch.Tensor:
        torch.cuda._sleep(100_000_000)  # type: ignore[no-untyped-call]
        return assemble(source, left)

    monkeypatch.setattr(DeviceRows, "_assemble", late)
    with make_random_store(tmp_path / "g.outcrop", 1000, 9000, dim=33, train=160) as store:
        loader = NeighborLoader(store, [4, 3], "train", device="cuda", batch_size=16, epochs=1,
                                strategy="direct:device_cache=300rows")  # fmt: skip
        with torch.cuda.stream(torch.cuda.Stream()):  # type: ignore[no-untyped-call]
            for batch in loader:
                x = batch.x.cpu().numpy()
                assert np.array_equal(store.features.gather(batch.n_id.cpu().numpy()), x)
        loader.close()


def test_a_device_cache_that_does_not_fit_is_refused_before_work_starts(tmp_path: Path) -> None:
    _, there = torch.cuda.mem_get_info()
    with (
        make_random_store(tmp_path / "g.outcrop", dim=2) as store,
        pytest.raises(BudgetError, match=r"on cuda, where .* are free; give less"),
    ):
        _room(there // 4, store.encoding.dim, "cuda")  # twice as much as there is


def test_a_model_trains_and_infers_on_the_gpu(tmp_path: Path) -> None:
    with make_random_store(tmp_path / "g.outcrop") as store:
        options = TrainOptions(layers=2, num_neighbors=(5, 5), hidden=16, epochs=3, batch_size=32,
                               strategy="direct", memory="1GB", device="cuda",
                               evaluate="full", precision="bf16")  # fmt: skip
        result = fit(store, options)
        assert next(result.model.parameters()).is_cuda
        infer(store, result.model, tmp_path / "out.npy")


@pytest.mark.parametrize("model", ["sage", "gcn", "gat", "gin"])
@pytest.mark.parametrize("residual", [False, True])
def test_layers_on_the_gpu_say_what_the_whole_forward_pass_says(
    tmp_path: Path, model: Any, residual: bool
) -> None:
    torch.manual_seed(0)
    options = TrainOptions(model=model, hidden=16, dropout=0, residual=residual)
    with make_random_store(tmp_path / "g.outcrop", 3000, 20_000, train=100) as store:
        made = make_model(options, store.encoding.dim, 4).double().cuda()
        for batch in NeighborLoader(store, [4, 3, 2], "train", batch_size=40, device="cuda"):
            batch.x = batch.x.double()
            found = []
            for logits in (
                seed_logits(made, batch),
                made(batch.x, batch.edge_index)[: batch.batch_size],
            ):
                made.zero_grad()
                logits.square().mean().backward()
                gradients = [one.grad.clone() for one in made.parameters() if one.grad is not None]
                found.append([logits, *gradients])
            for one, other in zip(*found, strict=True):
                torch.testing.assert_close(one, other, atol=1e-9, rtol=1e-7)


@pytest.mark.parametrize("place", ["host", "device"])
@pytest.mark.parametrize("strategy", ["direct", "outre:device_cache=100rows"])
def test_embeddings_on_the_gpu_are_the_nodes_own(tmp_path: Path, place: str, strategy: str) -> None:
    with make_random_store(tmp_path / "g.outcrop", 1000, 9000, train=400) as store:
        loader = NeighborLoader(
            store, [4, 3], "train", batch_size=16, shuffle=True, strategy=strategy, device="cuda",
            batching="random",
            history=f"width=2:staleness=9:nodes=500:metric=degree:dtype=float32:place={place}",
        )  # fmt: skip
        t = pulled = 0
        for _ in range(2):
            for batch in loader:
                own = sum(batch.num_sampled_nodes[:2])
                times = torch.full((own,), t, dtype=torch.float32, device="cuda")
                found = batch.history.exchange(torch.stack([batch.n_id[:own].float(), times], 1))
                assert found.is_cuda
                assert torch.equal(found[:, 0], batch.n_id[: len(found)].float())
                assert bool((t - found[:, 1] < 9).all())
                pulled += len(found) - own
                t += 1
        assert pulled > 500
        loader.close()


@pytest.mark.parametrize("model", ["sage", "gcn", "gat", "gin"])
def test_a_model_uses_embeddings_again_on_the_gpu(tmp_path: Path, model: Any) -> None:
    with make_random_store(tmp_path / "g.outcrop", 1000, 9000, train=400) as store:
        options = TrainOptions(model=model, layers=2, num_neighbors=(5, 5), hidden=16, epochs=2,
                               batch_size=32, strategy="outre", memory="1GB", device="cuda",
                               history="staleness=20:nodes=500:place=device")  # fmt: skip
        result = fit(store, options)
        assert sum(epoch.pulled for epoch in result.record.epochs) > 100
