"""The ledger is kept: the same batches, nothing that costs more, and old things are still read."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import outcrop
from tests.ledger.cases import (
    BY_NAME,
    DISK,
    GRAPHS,
    Case,
    make_graph,
    observe,
    observe_auto,
    observe_least,
)
from tests.ledger.record import LEDGER

# Layouts that have another name than in the ledger, by their old name. Stores that have one under
# the old name make it anew, unless the code looks for both.
RENAMED: dict[str, tuple[str, str]] = {}
"""Old name -> new name, and why."""
REBUILT: dict[str, str] = {}
"""Old name -> why what replaces it has a name that depends on more."""
# Of the ledger's graphs.
_EPOCH_BATCHES = 10
# What one cached row more may take.
_CHARGE_SLACK = 8192
# What one epoch has; of others the machine decides in which of them a thing is read.
_SAME = ("stream", "epoch", "batches", "seeds", "sampled_edges", "rows", "row_bytes")
_READ = ("read_requests", "bytes_wanted", "bytes_read")

_KEPT: dict[str, Any] = json.loads(LEDGER.read_text())


@pytest.fixture(scope="session")
def graphs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the graphs' stores."""
    folder = tmp_path_factory.mktemp("ledger")
    for name in GRAPHS:
        make_graph(folder / f"{name}.outcrop", name)
    return folder


def test_the_ledger_has_every_case() -> None:
    assert list(_KEPT["cases"]) == list(BY_NAME)


@pytest.mark.parametrize("name", GRAPHS)
def test_a_store_has_the_content_that_it_had(graphs: Path, name: str) -> None:
    with outcrop.open(graphs / f"{name}.outcrop", DISK) as store:
        assert store.content == _KEPT["graphs"][name]


@pytest.mark.parametrize("name", BY_NAME)
def test_a_strategy_does_what_it_did(graphs: Path, name: str) -> None:
    case, kept = at_the_same_length(BY_NAME[name]), _KEPT["cases"][name]
    found = observe(graphs / f"{case.graph}.outcrop", case, kept["memory"])
    assert found["digests"] == kept["digests"]
    assert found["order"] == kept["order"]
    assert found["left"] == kept["left"]
    check_layouts(found["layouts"], kept["layouts"])
    assert found["charged_bytes"] <= kept["charged_bytes"] + _CHARGE_SLACK
    for place, (now, before) in enumerate(zip(found["epochs"], kept["epochs"], strict=True)):
        assert [now[part] for part in _SAME] == [before[part] for part in _SAME]
        assert now["unprepared_batches"] <= before["unprepared_batches"]
        if not case.raced:
            check_counts(case, kept, f"epochs.{place}.", now, before, _READ)
            assert hits([now]) >= 0.99 * hits([before]), f"epochs.{place}: hits"
    check_counts(case, kept, "whole.", found["whole"], kept["whole"], tuple(kept["whole"]))
    if case.raced:
        rows = sum(epoch["rows"] for epoch in kept["epochs"])
        assert hits(found["epochs"]) >= 0.7 * least_hits(kept) - 0.01 * rows


def at_the_same_length(case: Case) -> Case:
    """Superbatches were as long as an epoch, where nothing else was said: now they grow."""
    if not case.strategy.startswith("ginex") or "superbatch" in case.strategy:
        return case
    return replace(case, strategy=f"{case.strategy}:superbatch={_EPOCH_BATCHES}")


def check_counts(
    case: Case,
    kept: dict[str, Any],
    prefix: str,
    now: dict[str, Any],
    before: dict[str, Any],
    names: tuple[str, ...],
) -> None:
    """Nothing is more than it was, by more than it may be."""
    for name in names:
        place = prefix + name
        most = max([before[name], *kept["raced"].get(place, [])])
        assert now[name] <= case.limit(place, most), place


def hits(epochs: list[dict[str, Any]]) -> int:
    return sum(sum(epoch["hits"].values()) for epoch in epochs)


def least_hits(kept: dict[str, Any]) -> int:
    """Of all epochs, where each had the fewest that were seen of it."""
    places = {
        f"epochs.{number}.hits.{tier}": count
        for number, epoch in enumerate(kept["epochs"])
        for tier, count in epoch["hits"].items()
    }
    return sum(min([count, *kept["raced"].get(at, [])]) for at, count in places.items())


def check_layouts(found: list[str], kept: list[str]) -> None:
    """The names are the same, but for those that are listed as changed."""
    expected = Counter(RENAMED[name][0] if name in RENAMED else name for name in kept)
    gone = expected - Counter(found)
    new = Counter(found) - expected
    assert set(gone) <= set(REBUILT), f"not found: {sorted(gone)}, but {sorted(new)}"
    kinds = (Counter(name.partition("-")[0] for name in names.elements()) for names in (gone, new))
    assert next(kinds) == next(kinds)


@pytest.mark.parametrize("name", BY_NAME)
def test_the_least_memory_is_no_more_than_it_was(graphs: Path, name: str) -> None:
    case, kept = BY_NAME[name], _KEPT["cases"][name]
    found = observe_least(graphs / f"{case.graph}.outcrop", case, kept["least"])
    assert found == kept["least_digest"]


@pytest.mark.parametrize("memory", _KEPT["auto"])
def test_auto_takes_what_it_took(graphs: Path, memory: str) -> None:
    assert observe_auto(graphs / "wide.outcrop", memory) == _KEPT["auto"][memory]
