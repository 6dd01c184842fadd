"""An epoch of training on the CPU: this checkout, an older one, and PyG's own loader and model.

    python benchmarks/train_epoch.py --old ../before --models sage,gcn,gat --pyg

The checkouts run `outcrop train` with everything in memory; PyG its NeighborLoader over the same
graph, and its GraphSAGE with its own trimming (it needs torch-sparse or pyg-lib). Each run is a
process of its own, and which goes first changes from round to round. The graph is that of the quick
benchmark with a tenth of its training nodes' batches. Writes benchmarks/results/train-epoch.md.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import outcrop
from machine import add_dirty, check_results, provenance, rmat_store

RESULTS = Path(__file__).parent / "results" / "train-epoch.md"
_MODEL = re.compile(r"([\d.]+) (kB|MB|GB) model")
_UNITS = {"kB": 1e-3, "MB": 1.0, "GB": 1e3}

_PYG = """
import json, sys, time
import numpy as np, torch
from torch.nn.functional import cross_entropy
from torch_geometric.data import Data
from torch_geometric.loader import NeighborLoader
from torch_geometric.nn.models import GAT, GCN, GraphSAGE
import outcrop

def hops(batch):
    # Without pyg-lib, batches do not say how many nodes and edges each hop found.
    sources, targets = batch.edge_index
    nodes, edges, known = [batch.batch_size], [], batch.batch_size
    for _ in range(3):
        end = int((targets < known).sum())
        edges.append(end - sum(edges))
        nodes.append(int(sources[:end].max()) + 1 - known)
        known += nodes[-1]
    assert known == batch.num_nodes and sum(edges) == batch.num_edges
    return nodes, edges

job = json.loads(sys.argv[1])
store = outcrop.open(job["store"])
targets = np.repeat(np.arange(store.num_nodes), np.diff(store.indptr))
data = Data(x=torch.from_numpy(np.array(store.x)), y=torch.from_numpy(np.array(store.y)),
            edge_index=torch.from_numpy(np.stack([store.indices.astype(np.int64), targets])))
del targets
loader = NeighborLoader(data, [10, 10, 10], torch.from_numpy(np.array(store.split("train"))),
                        batch_size=1000, shuffle=True, num_workers=job["workers"],
                        persistent_workers=job["workers"] > 0, is_sorted=True)
kind = {"sage": GraphSAGE, "gcn": GCN, "gat": GAT}[job["model"]]
more = {"heads": 4} if job["model"] == "gat" else {}
model = kind(store.num_features, 256, 3, store.num_classes, dropout=0.5, **more)
optimizer = torch.optim.Adam(model.parameters(), lr=0.003)
seconds, nodes = [], []
for epoch in range(job["epochs"]):
    start = time.perf_counter()
    for batch in loader:
        nodes_per_hop, edges_per_hop = hops(batch)
        optimizer.zero_grad()
        out = model(batch.x, batch.edge_index,
                    num_sampled_nodes_per_hop=nodes_per_hop,
                    num_sampled_edges_per_hop=edges_per_hop)
        loss = cross_entropy(out[: batch.batch_size], batch.y[: batch.batch_size])
        loss.backward()
        optimizer.step()
        loss.item()
        nodes.append(batch.num_nodes)
    seconds.append(time.perf_counter() - start)
print(json.dumps({"seconds": seconds, "nodes": sum(nodes) / len(nodes)}))
"""


class Runs:
    """What each side took, by model."""

    def __init__(self, store: Path, epochs: int, workers: int) -> None:
        self._store, self._epochs, self._workers = store, epochs, workers
        self.seconds: dict[tuple[str, str], list[float]] = {}
        """Per epoch, by model and side; the first epoch of a process is among them."""
        self.step_mb: dict[tuple[str, str], list[float]] = {}

    def checkout(self, model: str, side: str, source: Path) -> None:
        with tempfile.TemporaryDirectory() as folder:
            record = Path(folder) / "record.json"
            command = [sys.executable, "-m", "outcrop", "train", str(self._store)]
            command += ["--model", model, "--strategy", "memory", "--memory", "8GB"]
            command += ["--epochs", str(self._epochs), "--evaluate", "none", "--device", "cpu"]
            command += ["--record", str(record)]
            printed = self._run(command, str(source))
            history = json.loads(record.read_text())["history"]
        found = _MODEL.search(printed)
        assert found is not None, printed
        self._keep(model, side, [epoch["seconds"] for epoch in history])
        self.step_mb.setdefault((model, side), []).append(float(found[1]) * _UNITS[found[2]])

    def pyg(self, model: str, source: Path) -> None:
        job = {"store": str(self._store), "model": model, "epochs": self._epochs,
               "workers": self._workers}  # fmt: skip
        # torch-sparse may be in a folder of its own: it changes what PyG does elsewhere.
        path = os.pathsep.join([str(source), os.environ.get("PYTHONPATH", "")])
        printed = self._run([sys.executable, "-c", _PYG, json.dumps(job)], path)
        found = json.loads(printed.strip().splitlines()[-1])
        self._keep(model, "PyG", found["seconds"])
        print("PyG's batches have", found["nodes"], "nodes", flush=True)

    def _run(self, command: list[str], path: str) -> str:
        environment = {**os.environ, "PYTHONPATH": path}
        done = subprocess.run(command, capture_output=True, text=True, env=environment)
        if done.returncode:
            sys.exit(f"{done.stdout}{done.stderr}")
        return done.stdout

    def _keep(self, model: str, side: str, seconds: list[float]) -> None:
        print(model, side, [round(one, 2) for one in seconds], flush=True)
        self.seconds.setdefault((model, side), []).extend(seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--old", type=Path, help="a checkout to compare with, its core built")
    parser.add_argument("--models", default="sage,gcn,gat", help="with commas")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=2, help="per run")
    parser.add_argument("--pyg", default="", help="models to train with PyG's own loader as well")
    parser.add_argument("--workers", type=int, default=0, help="num_workers of PyG's loader")
    add_dirty(parser)
    given = parser.parse_args()
    check_results(RESULTS, dirty=given.dirty)
    own = Path(outcrop.__file__).parents[1]
    sides = {"new": own} if given.old is None else {"old": given.old / "src", "new": own}
    store = rmat_store("quick-10", 4_000_000, 60_000_000, train_fraction=0.0025)
    runs = Runs(store.absolute(), given.epochs, given.workers)
    models = given.models.split(",")
    for number in range(given.rounds):
        for model in models:
            for side in list(sides)[:: -1 if number % 2 else 1]:
                runs.checkout(model, side, sides[side])
            if model in given.pyg.split(","):
                runs.pyg(model, own)
    text = report(runs, models, given, store)
    RESULTS.write_text(text)
    print(text)


def report(runs: Runs, models: list[str], given: argparse.Namespace, store: Path) -> str:
    lines = ["# An epoch of training on the CPU", ""]
    lines += [f"- {name}: {value}" for name, value in provenance(store).items()]
    if given.old is not None:
        lines.append(f"- old: commit {_commit(given.old)}")
    lines += [
        "- 10 batches of 1000 seeds, fanouts 10,10,10, of a graph of 4M nodes, 60M edges and 128 "
        "float32; 3 layers, hidden 256, dropout 0.5; `outcrop train --strategy memory`, everything "
        "that it does in an epoch counted, loading into memory before it not (nor PyG's)",
        f"- {given.rounds} rounds in turn of {given.epochs} epochs a process; medians, in brackets "
        "the spread; a step's memory is its peak above what there was before, as `outcrop train` "
        "prints it",
        "",
        "| model | | epoch, s | times as long as new | peak of a step, MB |",
        "|---|---|--:|--:|--:|",
    ]
    for model in models:
        new = statistics.median(runs.seconds[model, "new"])
        for side in ("old", "PyG", "new"):
            seconds = runs.seconds.get((model, side))
            if seconds is None:
                continue
            median = statistics.median(seconds)
            spread = f"({min(seconds):.2f} to {max(seconds):.2f})"
            peaks = runs.step_mb.get((model, side))
            peak = f"{statistics.median(peaks):.0f}" if peaks else ""
            lines.append(
                f"| {model} | {side} | {median:.2f} {spread} | {median / new:.1f} | {peak} |"
            )
    return "\n".join(lines) + "\n"


def _commit(checkout: Path) -> str:
    command = ["git", "-C", str(checkout), "rev-parse", "--short", "HEAD"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


if __name__ == "__main__":
    main()
