"""Environment: where a run runs, for its record."""

from __future__ import annotations

import datetime
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

from outcrop._version import __version__
from outcrop.observe.record import RunRecord, drive_read_bytes, peak_rss_bytes
from outcrop.store.store import GraphStore
from outcrop.tools.cage import group_limit_bytes, group_peak_bytes
from outcrop.tools.doctor import diagnose, package_versions


def now() -> str:
    """ISO 8601, UTC."""
    return datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")


def machine_facts(path: Path) -> dict[str, Any]:
    """CPU, memory, GPU, system and drive; nothing is measured."""
    found = diagnose(path, measure=False)
    names = ("cpu", "cpus", "memory_bytes", "gpus", "system", "file_system", "block_bytes")
    return {name: getattr(found, name) for name in names}


def versions() -> dict[str, str]:
    found = {"outcrop": __version__, "python": platform.python_version(), **package_versions()}
    found["commit"] = _commit()
    return {name: version for name, version in found.items() if version}


def git(folder: Path, *arguments: str) -> str:
    """What git says in a folder; OSError or CalledProcessError where it has nothing to say."""
    # It looks and leaves nothing: status would write the index anew.
    command = ["git", "--no-optional-locks", "-C", str(folder), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def tree_differs(folder: Path) -> bool:
    """Whether the checkout around a folder differs from its commit.

    Results apart: a benchmark that writes them does not change what it measures.
    """
    paths = (":(top)", ":(top,exclude)benchmarks/results")
    return bool(git(folder, "status", "--porcelain", "--untracked-files=no", "--", *paths))


def _commit() -> str | None:
    """The commit of the checkout that this package runs from; marked where its tree differs."""
    folder = Path(__file__).parents[1]
    try:
        top = Path(git(folder, "rev-parse", "--show-toplevel"))
        if not (top / "src" / "outcrop").samefile(folder):
            return None  # installed below somebody else's repository
        commit = git(folder, "rev-parse", "--short", "HEAD")
        return commit + ("+changes" if tree_differs(folder) else "")
    except (OSError, subprocess.CalledProcessError):
        return None


def store_facts(store: GraphStore) -> dict[str, Any]:
    features = store.manifest.features
    return {
        "path": str(store.path),
        "content": store.content,
        "nodes": store.num_nodes,
        "edges": store.num_edges,
        "dim": features.dim if features else 0,
        "encoding": features.name if features else None,
        "row_bytes": features.row_bytes if features else 0,
        "feature_bytes": store.array_bytes("features") if features else 0,
        "topology_bytes": store.array_bytes("indptr") + store.array_bytes("indices"),
    }


def process_facts(disk_used_bytes: int) -> dict[str, int | None]:
    """Peaks so far; `disk_used_bytes`: of what it wrote, or found written, beside the store."""
    return {
        "peak_rss_bytes": peak_rss_bytes(),
        "cgroup_peak_bytes": group_peak_bytes(),
        "cgroup_limit_bytes": group_limit_bytes(),
        "read_bytes": drive_read_bytes(),
        "disk_used_bytes": disk_used_bytes,
    }


def run_record(kind: str, store: GraphStore, **told: Any) -> RunRecord:
    """The record of a run that ends now, here; `told`: what is not of the environment."""
    return RunRecord(
        kind=kind,
        created=now(),
        store=store_facts(store),
        machine=machine_facts(store.path),
        versions=versions(),
        **told,
    )


def command_line() -> list[str]:
    return ["outcrop", *sys.argv[1:]]
