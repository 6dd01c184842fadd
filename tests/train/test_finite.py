"""Rows that are no numbers end training, whatever they would become on their way to the loss."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch_geometric.data import Data
from typer.testing import CliRunner

import outcrop
from outcrop.cli.app import app
from outcrop.errors import StoreError
from outcrop.loader import NeighborLoader
from outcrop.store.store import GraphStore
from outcrop.train.finite import check_rows
from tests.damage import overwrite
from tests.stores import make_random_store


def spoil(store: GraphStore, value: float) -> int:
    """-> the node whose row has it."""
    node = int(store.split("train")[1])
    offset = store.manifest.arrays["features"].data_offset + node * store.encoding.row_bytes
    overwrite(store.file("features"), offset + 8, np.float32(value).tobytes())
    return node


@pytest.mark.parametrize("value", [float("nan"), float("-inf"), float("inf")])
def test_training_stops_and_names_the_node_the_file_and_what_to_do(
    tmp_path: Path, value: float
) -> None:
    with make_random_store(tmp_path / "s") as store:
        node = spoil(store, value)
        command = ["train", str(store.path), "--strategy", "direct", "--layers", "1", "--hidden",
                   "4", "--num-neighbors", "2", "--epochs", "1", "--device", "cpu"]  # fmt: skip
        result = CliRunner().invoke(app, command)
        assert result.exit_code == 1, result.output
        assert f"features.npy: the row of node {node} is not finite ({value} at 2)" in result.output
        assert f"outcrop verify {store.path}" in result.output


@pytest.mark.parametrize("strategy", ["gnndrive:x=slots", "diskgnn:device_cache=50rows", "direct"])
@pytest.mark.parametrize("value", [float("nan"), float("-inf")])
def test_batches_of_every_form_are_looked_at(tmp_path: Path, strategy: str, value: float) -> None:
    with make_random_store(tmp_path / "s") as store:
        good = NeighborLoader(store, [3], "train", batch_size=64, strategy=strategy, epochs=1)
        for batch in good:
            check_rows(batch, store)
            del batch
        good.close()
    data = Data(
        x=torch.randn(40, 4), edge_index=torch.randint(0, 40, (2, 90)), y=torch.zeros(40).long()
    )
    data.x[7, 1] = value
    with outcrop.from_pyg(data, tmp_path / "nan") as store:
        loader = NeighborLoader(store, [-1], [7, 8], batch_size=2, strategy=strategy, epochs=1)
        with pytest.raises(StoreError, match=r"node 7 is not finite"):
            for batch in loader:
                check_rows(batch, store)
                del batch
        loader.close()


def test_finite_rows_whose_sum_is_not_are_good() -> None:
    x = torch.full((3, 2), 3e38)
    assert not torch.isfinite(x.sum())
    check_rows(Data(x=x, n_id=torch.arange(3)), None)  # type: ignore[arg-type]
