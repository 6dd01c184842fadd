"""The package as a whole: its names, its version, its stub."""

from __future__ import annotations

import ast
import inspect
import subprocess
import sys
from pathlib import Path

import outcrop
from outcrop import _core
from tests.stores import make_random_store

ROOT = Path(__file__).parents[1]


def test_public_names_exist_and_are_sorted() -> None:
    assert sorted(outcrop.__all__) == outcrop.__all__
    for name in outcrop.__all__:
        assert hasattr(outcrop, name)


def test_version_is_the_same_everywhere() -> None:
    project = (ROOT / "pyproject.toml").read_text()
    assert f'version = "{outcrop.__version__}"' in project
    assert outcrop.__version__ in (ROOT / "CHANGELOG.md").read_text()


def test_stub_names_what_the_core_has() -> None:
    stub = ast.parse((ROOT / "src/outcrop/_core.pyi").read_text())
    declared = {
        node.name: node for node in stub.body if isinstance(node, ast.ClassDef | ast.FunctionDef)
    }
    present = {name for name in dir(_core) if not name.startswith("_")}
    bases = {name: node for name, node in declared.items() if name.startswith("_")}
    assert set(declared) - set(bases) == present
    for name in present:
        node = declared[name]
        if isinstance(node, ast.ClassDef) and not issubclass(getattr(_core, name), _enum()):
            shared = [bases[base.id].body for base in node.bases if isinstance(base, ast.Name)]
            members = {
                part.name if isinstance(part, ast.FunctionDef) else _assigned(part)
                for part in (*node.body, *(part for body in shared for part in body))
                if not isinstance(part, ast.Expr)
            }
            real = {m for m in vars(getattr(_core, name)) if not m.startswith("_")}
            assert members - {"__init__"} == real, name


def _enum() -> type:
    import enum

    return enum.Enum


def _assigned(part: ast.stmt) -> str:
    assert isinstance(part, ast.AnnAssign) and isinstance(part.target, ast.Name)
    return part.target.id


def test_every_function_of_the_core_says_its_arguments() -> None:
    for name, value in inspect.getmembers(_core, inspect.isbuiltin):
        assert "arg0" not in (value.__doc__ or ""), name


def test_import_does_not_load_torch() -> None:
    code = "import sys, outcrop, outcrop.cli; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_parts_that_need_torch_come_when_they_are_asked_for() -> None:
    code = """
import sys, outcrop
assert not hasattr(outcrop, "LinkNeighborLoader") and "torch" not in sys.modules
outcrop.pyg.adapters, outcrop.train.fit, outcrop.lightning.StoreDataModule
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


def test_the_readmes_example_runs(tmp_path: Path) -> None:
    make_random_store(tmp_path / "papers.outcrop").close()
    code = (ROOT / "README.md").read_text().split("```python\n")[1].split("```")[0]
    code += "print(len(loader), batch.batch_size)"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "1 150\n"
