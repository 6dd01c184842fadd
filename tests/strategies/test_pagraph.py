"""pagraph: which rows it keeps, and that they are counted."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest

from outcrop.errors import OptionError
from outcrop.ingest.synthetic import SynthOptions, synthesise
from outcrop.loader import NeighborLoader
from outcrop.options import parse_size
from outcrop.store.degrees import most_out_edges, out_degrees
from outcrop.store.store import GraphStore
from tests.stores import make_random_store, smallest_memory


def loader_of(store: GraphStore, memory: str | int, neighbors: float = 0.0) -> NeighborLoader:
    return NeighborLoader(store, [4, 3], "train", batch_size=20, memory=memory,
                          strategy=f"pagraph:neighbors={neighbors}")  # fmt: skip


def test_it_keeps_the_rows_of_the_nodes_with_most_out_edges(tmp_path: Path) -> None:
    with make_random_store(tmp_path / "g.outcrop", 20_000, 100_000, dim=128) as store:
        least = smallest_memory(lambda memory: loader_of(store, memory))
        loader = loader_of(store, parse_size(least) + 3_000_000)
        slots = loader.record.charges["feature cache"] // (128 * 4 + 8)
        assert 1000 < slots < 20_000
        kept = most_out_edges(out_degrees(store), slots)
        hits = 0
        for batch in loader.epoch(0):
            hits += int(np.isin(batch.n_id.numpy(), kept).sum())
        assert loader.record.epochs[0].hits == {"cache": hits}
        assert hits > 0


def test_memory_goes_to_lists_or_to_rows_as_the_share_says(tmp_path: Path) -> None:
    with make_random_store(tmp_path / "g.outcrop", 1000, 15_000, dim=32) as store:
        charges = [loader_of(store, "10MB", share).record.charges for share in (0.0, 1.0)]
    assert "neighbour cache" not in charges[0] and "feature cache" not in charges[1]
    assert charges[1]["neighbour cache"] > 15_000 * 4
    assert charges[0]["feature cache"] == 1000 * (32 * 4 + 8)


PROGRAM = """
    import sys
    from outcrop.errors import BudgetError
    from outcrop.loader import NeighborLoader
    from outcrop.observe.record import peak_rss_bytes, rss_bytes
    from outcrop.options import parse_size
    from outcrop.store.store import GraphStore
    from outcrop.tools.bench.variants import variant_named

    def make(store, strategy, memory):
        return NeighborLoader(
            store, [5], "train", batch_size=50, strategy=variant_named(strategy), memory=memory
        )

    with GraphStore(sys.argv[1]) as store:
        for strategy in ("pagraph", "ginex:policy=static"):
            try:
                make(store, strategy, 1)
            except BudgetError as error:
                least = parse_size(str(error).rsplit(" ", 1)[1])
            open("/proc/self/clear_refs", "w").write("5")  # the peak is counted from now
            before = rss_bytes()
            loader = make(store, strategy, least)
            assert peak_rss_bytes() - before < least, (strategy, peak_rss_bytes() - before, least)
            loader.close()
            del loader
"""


def test_choosing_rows_and_lists_keeps_to_the_budget(tmp_path: Path) -> None:
    """Degrees of all nodes are most of what there is where rows are small."""
    path = tmp_path / "g.outcrop"
    options = SynthOptions(nodes=4_000_000, edges=4_000_000, dim=4, classes=2)
    synthesise(path, options, memory=1_000_000_000)
    command = [sys.executable, "-c", textwrap.dedent(PROGRAM), str(path)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_wrong_share_is_named(tmp_path: Path) -> None:
    with (
        make_random_store(tmp_path / "g.outcrop") as store,
        pytest.raises(OptionError, match="neighbors must be 0 to 1"),
    ):
        loader_of(store, "10MB", -1.0)
