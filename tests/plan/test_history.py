"""Embeddings in a plan: where they are charged, and how many there are."""

from __future__ import annotations

from typing import Any

import pytest

from outcrop.errors import OptionError
from outcrop.layout.ranking import Curve
from outcrop.layout.savings import SavingsFacts
from outcrop.memory.context import HistoryFacts
from outcrop.plan.history import HistoryPart, with_history
from outcrop.sample.history import HistoryOptions
from tests.plan.test_refusals import MB, context


def kept(device: str, **options: Any) -> dict[str, int]:
    """What embeddings are charged, with 500 MB in all."""
    history = HistoryFacts(HistoryOptions(width=100, metric="degree", **options))
    _, known = context("memory", 500 * MB, device=device, history=history)
    planned = with_history(known)
    charges = {charge.name: charge.bytes for charge in planned.beside}
    return {"nodes": planned.embeddings, "rows": charges["embeddings"],
            "tables": charges["tables of embeddings"]}  # fmt: skip


def test_a_device_that_is_the_host_has_them_in_the_hosts_memory() -> None:
    assert kept("cpu", place="device") == kept("cpu", place="host")
    found = kept("cpu", place="device", nodes=1000)
    assert found["nodes"] == 1000
    assert found["rows"] == 1000 * (2 * 2 * 100 + 4)
    assert kept("cpu", nodes=10, dtype="float32")["rows"] == 10 * (2 * 4 * 100 + 4)


def test_another_device_has_the_rows_and_the_host_the_tables() -> None:
    host, device = kept("cuda:0", nodes=1000), kept("cuda:0", place="device", nodes=1000)
    assert device == {**host, "rows": 0} and host["rows"] and device["tables"]


@pytest.mark.parametrize("share", [None, 0.5])
def test_memory_says_nothing_of_another_device(share: float | None) -> None:
    with pytest.raises(OptionError, match=r"place=device needs a number, nodes=N: .* cuda:0 may"):
        kept("cuda:0", place="device", share=share)
    assert kept("cpu", place="device", share=share)["nodes"]


def test_late_gradients_are_charged_as_much_as_embeddings() -> None:
    late, none = kept("cpu", nodes=10), kept("cpu", nodes=10, gradients="none")
    assert late["rows"] - none["rows"] == 10 * 2 * 100


def test_none_take_nothing() -> None:
    _, known = context("memory", 500 * MB, history=HistoryFacts(HistoryOptions(width=100)))
    assert HistoryPart.bytes(known, 0) == 0


@pytest.mark.parametrize("share", [None, 0.3, 1.0])
def test_what_embeddings_may_have_leaves_rows_what_they_need(share: float | None) -> None:
    """A little more memory than the least is enough as well."""
    curve = Curve((0, 100_000, 5_000_000), (0.0, 2e5, 3e6))
    savings = SavingsFacts("s", 2, 100, 100, 10**7, 10**7, 1.0, 1e5, 0.01, 1.0, (0, 10**7), curve,
                           curve, (curve, curve))  # fmt: skip
    history = HistoryFacts(HistoryOptions(width=100, share=share))
    made, known = context("outre", 10**9, history=history, savings=savings)

    def fits(memory: int) -> bool:
        return made.plan(known.with_memory(memory)).fits(known.with_memory(memory))

    least = next(memory for memory in range(1, 1000) if fits(memory * MB))
    assert all(fits(least * MB + more) for more in range(0, 40 * MB, 10**5))
    found = made.plan(known.with_memory(1000 * MB)).history
    assert found is not None and found.nodes > 100_000
