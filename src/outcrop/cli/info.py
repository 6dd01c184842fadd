"""outcrop info: what a store holds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from outcrop.cli.arguments import Json, Store
from outcrop.cli.output import print_facts, print_json
from outcrop.options import format_size
from outcrop.store.format import SPLITS, Manifest
from outcrop.store.store import GraphStore


def info(store: Store, as_json: Json = False) -> None:
    """Show what a store holds.

    Example: outcrop info papers.outcrop
    """
    with GraphStore(store) as opened:
        facts = _facts(opened)
    if as_json:
        print_json(facts)
        return
    features = facts["features"]
    shown = {
        "nodes": f"{facts['nodes']:,}",
        "edges": f"{facts['edges']:,}",
        opened.manifest.targets.noun: f"{opened.num_targets:,}",
        "features": "none"
        if features is None
        else f"{features['dim']} x {features['encoding']}, {format_size(features['bytes'])}"
        + (f", adopted: {features['file']}" if features["adopted"] else ""),
        "order": facts["order"] or "as imported",
        "splits": ", ".join(f"{name} {size:,}" for name, size in facts["splits"].items()) or "none",
        "size": format_size(facts["bytes"]),
        "derived": ", ".join(facts["derived"]) or "none",
        "source": facts["provenance"]["source"],
        "created": facts["provenance"]["created"],
        "content": facts["content"],
    }
    print_facts(shown)


def _facts(store: GraphStore) -> dict[str, Any]:
    manifest = store.manifest
    arrays = manifest.arrays
    features = None
    if manifest.features is not None:
        entry = arrays["features"]
        features = {
            "dim": manifest.features.dim,
            "encoding": manifest.features.name,
            "row_bytes": manifest.features.row_bytes,
            "bytes": entry.file_bytes,
            "adopted": entry.adopted_mtime_ns is not None,
            "file": str(store.file("features")),
        }
    return {
        "path": str(store.path),
        "nodes": manifest.num_nodes,
        "edges": manifest.num_edges,
        "classes": manifest.num_classes,
        "targets": manifest.target_kind,
        "features": features,
        "order": _order(manifest),
        "splits": {name: arrays[name].shape[0] for name in SPLITS if name in arrays},
        "arrays": {name: {"dtype": str(entry.dtype), "shape": entry.shape}
                   for name, entry in arrays.items()},
        "bytes": sum(entry.file_bytes for entry in arrays.values()),
        "derived": _derived(store.derived.root),
        "content": store.content,
        "provenance": manifest.provenance,
    }  # fmt: skip


def _order(manifest: Manifest) -> str | None:
    """That of outcrop reorder; None where the nodes are as they were imported."""
    options = manifest.provenance.get("options")
    order = options.get("order") if isinstance(options, dict) else None
    return order if isinstance(order, str) else None


def _derived(root: Path) -> list[str]:
    if not root.is_dir():
        return []
    return sorted(path.name for path in root.iterdir() if not path.name.startswith("."))
