"""Results in the repository: of a commit, not of what nobody can get back."""

from __future__ import annotations

import importlib
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from outcrop.tools.report import compare, load

ROOT = Path(__file__).parents[3]
RESULTS = ROOT / "benchmarks" / "results"


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module that all benchmarks share."""
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    return importlib.import_module("machine")


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """With a source file and results, both committed."""
    if shutil.which("git") is None:
        pytest.skip("no git here")
    results = tmp_path / "benchmarks" / "results" / "quick"
    results.mkdir(parents=True)
    (results / "bench.json").write_text("{}")
    (tmp_path / "code.py").write_text("fast = False\n")
    who = ("-c", "user.name=a", "-c", "user.email=a@example.org")
    for command in (["init", "-q"], ["add", "."], [*who, "commit", "-q", "-m", "all"]):
        subprocess.run(["git", "-C", str(tmp_path), *command], check=True)
    return tmp_path


def test_tracked_results_are_kept_from_a_changed_tree(checkout: Path, machine: Any) -> None:
    results = checkout / "benchmarks" / "results"
    file = results / "quick" / "bench.json"
    machine.check_results(file, results / "quick", dirty=False)
    file.write_text("[]")  # results are not what is measured
    machine.check_results(file, results / "quick", dirty=False)
    (checkout / "code.py").write_text("fast = True\n")
    for path in (file, results / "quick"):
        with pytest.raises(SystemExit, match=r"tracked by git.*--dirty"):
            machine.check_results(path, dirty=False)
    machine.check_results(file, results / "quick", dirty=True)
    machine.check_results(results / "new.md", results / "new" / "bench.json", dirty=False)


def test_results_outside_of_a_checkout_may_be_written(tmp_path: Path, machine: Any) -> None:
    (tmp_path / "old.md").write_text("")
    machine.check_results(tmp_path / "old.md", dirty=False)


@pytest.mark.parametrize("name", sorted(p.parent.name for p in RESULTS.glob("*/bench.json")))
def test_the_results_kept_here_can_be_reported(name: str) -> None:
    found = load(RESULTS / name)
    assert found.bench is not None and found.records
    named = {file for row in found.bench["rows"] for file in row["records"]}
    assert named == set(found.records)
    assert compare(found.records, found.bench).lines
