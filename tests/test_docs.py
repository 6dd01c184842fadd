"""Pages that say how things are: their code runs, and what they name is there."""

from __future__ import annotations

import ast
import importlib
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from outcrop.errors import OptionError
from outcrop.loader import NeighborLoader
from outcrop.memory.context import LENT
from outcrop.rows.device import DEVICE_CACHE
from outcrop.rows.packed import CPU_CACHE
from outcrop.store.store import GraphStore
from outcrop.strategies import STRATEGIES
from tests.conformance.contract import all_contents
from tests.stores import make_random_store, smallest_memory

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs/adding_a_strategy.md"
# What the page adds.
EXAMPLE = "strategies/hotrows.py"
# From the bottom up: each imports from those before it.
ORDER = [
    "closing", "errors", "schema", "options", "progress", "threads", "disk", "rates", "store",
    "ingest", "observe", "sample", "layout", "memory", "topology", "rows", "ahead", "plan",
    "strategies", "run", "loader", "train", "tools", "cli",
]  # fmt: skip
NAMED = {"LENT": LENT, "CPU_CACHE": CPU_CACHE, "DEVICE_CACHE": DEVICE_CACHE}


@pytest.fixture
def hotrows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The page's strategy, as a file of its own, among the others."""
    (block,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    (tmp_path / "hotrows.py").write_text(block)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(STRATEGIES, "hotrows", importlib.import_module("hotrows").HOTROWS)
    yield
    del sys.modules["hotrows"]


def loader_of(store: GraphStore, strategy: Any, memory: Any) -> NeighborLoader:
    return NeighborLoader(
        store, [4, 3], "train", batch_size=20, shuffle=True, strategy=strategy, memory=memory
    )


@pytest.mark.parametrize("encoding", ["float32", "int8"])
def test_the_strategy_of_the_page_gives_the_batches_of_memory(
    tmp_path: Path, hotrows: None, encoding: str
) -> None:
    with make_random_store(tmp_path / "g.outcrop", 2000, dim=33, feature_dtype=encoding) as store:

        def batches(strategy: str, memory: Any) -> list[dict[str, Any]]:
            loader = loader_of(store, strategy, memory)
            found = [batch for epoch in range(2) for batch in all_contents(loader.epoch(epoch))]
            for entry in loader.record.epochs:
                assert sum(entry.hits.values()) + entry.fetched_rows == entry.rows
                if memory == "20MB":  # else all rows are in the upper tier, or hardly any
                    assert entry.hits["buffer"] > 0
                    assert (entry.hits["cache"] > 0) == (strategy != "hotrows:share=0")
            loader.close()
            return found

        least = smallest_memory(lambda memory: loader_of(store, "hotrows", memory))
        expected = batches("memory", "100MB")
        for strategy, memory in (
            ("hotrows", "100MB"),
            ("hotrows", least),
            ("hotrows:share=0.005", "20MB"),
            ("hotrows:share=0", "20MB"),
            ("hotrows:device_cache=50rows:verify_rows=true", "100MB"),
        ):
            assert batches(strategy, memory) == expected, (strategy, memory)


def test_the_strategy_of_the_page_is_short(hotrows: None) -> None:
    (block,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert len(block.splitlines()) <= 40


def test_a_strategy_can_be_given_as_it_is(tmp_path: Path, hotrows: None) -> None:
    with make_random_store(tmp_path / "g.outcrop", 500) as store:
        given = loader_of(store, STRATEGIES["hotrows"], "100MB")
        assert given.record.strategy == "hotrows"
        assert all_contents(given.epoch(0)) == all_contents(
            loader_of(store, "memory", "100MB").epoch(0)
        )


def test_the_option_of_the_page_divides_the_memory(tmp_path: Path, hotrows: None) -> None:
    with make_random_store(tmp_path / "g.outcrop", 20_000, 50_000, dim=128) as store:
        least = smallest_memory(lambda memory: loader_of(store, "hotrows", memory))
        memory = int(least.removesuffix("MB")) * 10**6 + 5_000_000
        records = [
            loader_of(store, f"hotrows:share={share}", memory).record for share in (0, 0.5, 1)
        ]
        kept = [record.charges.get("feature cache", 0) for record in records]
        assert kept[0] == 0 < 1.5 * kept[1] < kept[2] < 20_000 * (128 * 4 + 8)
        buffers = [record.charges["feature buffer"] for record in records]
        assert buffers[0] > buffers[1] > buffers[2]
        with pytest.raises(OptionError, match=r"share must be 0 to 1 \(got 2"):
            loader_of(store, "hotrows:share=2", memory)


def test_the_strategy_of_the_page_does_without_features(tmp_path: Path, hotrows: None) -> None:
    with make_random_store(tmp_path / "g.outcrop", dim=None) as store:
        found = [
            all_contents(loader_of(store, name, "100MB").epoch(0)) for name in ("hotrows", "memory")
        ]
        assert found[0] == found[1] != []


@pytest.mark.parametrize("page", ["ARCHITECTURE.md", "docs/adding_a_strategy.md",
                                  "docs/decisions/composition.md"])  # fmt: skip
def test_files_that_pages_name_are_there(page: str) -> None:
    named = set(re.findall(r"`([\w/]+\.py|(?:tests|cpp|docs)/[\w/.]+)`", (ROOT / page).read_text()))
    assert named
    missing = [
        name
        for name in named - {EXAMPLE}
        if not (ROOT / name).exists() and not (ROOT / "src/outcrop" / name).exists()
    ]
    assert not missing


def test_the_page_of_the_record_has_every_charge() -> None:
    text = (ROOT / "docs/record.md").read_text()
    charges = set()
    for path in (ROOT / "src/outcrop").rglob("*.py"):
        for name in re.findall(r"\bCharge\((\w+|\".*?\")[,)]", path.read_text()):
            charges.add(NAMED[name] if name in NAMED else name.strip('"'))
    assert {"feature cache", "sampling ahead, in memory of batches", LENT} <= charges
    assert not [name for name in sorted(charges) if f"`{name}`" not in text]


def test_no_folder_imports_back() -> None:
    """For types as well, and within functions."""
    package = ROOT / "src/outcrop"
    backwards = set()
    for path in package.rglob("*.py"):
        own = path.relative_to(package).with_suffix("").parts[0]
        if own in ("__init__", "__main__", "_version"):
            continue
        assert own in ORDER, f"{own} has no place among the folders"
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("outcrop."):
                imported = str(node.module).split(".")[1]
                if imported in ORDER and ORDER.index(imported) > ORDER.index(own):
                    backwards.add((str(path.relative_to(package)), imported))
    assert not backwards


def test_the_architecture_lists_the_folders_in_their_order() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text()
    rows = re.findall(r"^\| (`[\w/.`, ]+) \|", text, re.MULTILINE)
    named = [name for row in rows for name in re.findall(r"`(\w+)(?:/|\.py)`", row)]
    assert [name for name in reversed(named) if name in ORDER] == ORDER
