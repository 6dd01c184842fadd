"""Files that shrink, or fail, while they are read: an error that names the file, never a signal."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from tests.processes import program
from tests.stores import make_random_store

STRATEGIES = [
    "memory",
    "direct",
    "gnndrive:topology=mmap",
    "gnndrive:topology=cache",
    "ginex:topology=mmap",
    "ginex",
    "pagraph",
    "diskgnn",
]
# They read these files for each batch, whatever they keep in memory.
READS_INDICES = ["direct", "gnndrive:topology=mmap", "ginex:topology=mmap", "diskgnn"]
READS_FEATURES = ["direct"]
_HEADER_BYTES = 4096


def _outcome(name: str, use: Callable[[], None]) -> str:
    """In a child: "done", "refused" (an error of ours that names the file), or what else came."""
    from outcrop.errors import OutcropError

    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        signal.alarm(60)
        try:
            use()
            result = "done"
        except OutcropError as error:
            result = "refused" if f"/{name}.npy: " in str(error) else repr(error)
        except BaseException:
            result = traceback.format_exc()
        os.write(write, result.encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        found = pipe.read()
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return found if status == 0 else f"ended by {signal.Signals(-status).name}"


def _truncate(path: Path, name: str) -> None:
    (file,) = path.rglob(f"{name}.npy")
    os.truncate(file, _HEADER_BYTES)


def _truncated_while_open(path: Path, strategy: str, name: str) -> None:
    from outcrop.loader import NeighborLoader

    loader = NeighborLoader(
        path, [5, 5], "train", batch_size=20, strategy=strategy, memory="64MB", epochs=1
    )
    val = loader.sibling("val")
    next(iter(loader))
    _truncate(path, name)
    for batches in (loader, val):
        for _ in batches:
            pass


def _truncated_before_the_loader(path: Path, strategy: str, name: str) -> None:
    import outcrop
    from outcrop.loader import NeighborLoader

    store = outcrop.open(path)
    _truncate(path, name)
    NeighborLoader(store, [5, 5], "train", batch_size=20, strategy=strategy, memory="64MB")


def _truncated_before_a_profile(path: Path, _: str, name: str) -> None:
    import outcrop
    from outcrop.sample.sampler import Sampling
    from outcrop.tools.profile.measure import ProfileOptions, sample_trace

    store = outcrop.open(path)
    _truncate(path, name)
    options = ProfileOptions(Sampling((5, 5)), batch_size=20, batches=5)
    sample_trace(store, options, path / "profile")


def _truncated_before_inference(path: Path, _: str, name: str) -> None:
    from torch_geometric.nn import GCN

    import outcrop
    from outcrop.train.inference import infer

    store = outcrop.open(path)
    model = GCN(store.encoding.dim, 8, 2, store.num_classes)
    _truncate(path, name)
    infer(store, model, path / "logits.npy", memory="64MB")


SCENES = {
    "open": _truncated_while_open,
    "loader": _truncated_before_the_loader,
    "profile": _truncated_before_a_profile,
    "infer": _truncated_before_inference,
}


def _play(folder: Path, cases: list[list[str]]) -> dict[str, str]:
    # torch is imported once, and used in children alone: its threads would not cross a fork
    import outcrop.loader.neighbor
    import outcrop.train.inference  # noqa: F401

    found = {}
    for number, (scene, strategy, name) in enumerate(cases):
        path = folder / f"{number}.outcrop"
        shutil.copytree(folder / "whole.outcrop", path)
        use = SCENES[scene]
        found[f"{scene} {strategy} {name}"] = _outcome(name, partial(use, path, strategy, name))
    return found


def outcomes(folder: Path, cases: list[tuple[str, str, str]]) -> dict[str, str]:
    """What happens in each of (scene, strategy, array), each in a process of its own."""
    make_random_store(folder / "whole.outcrop", 3000, 60_000, dim=64).close()
    code = (
        "import json, pathlib, sys\n"
        "from tests.strategies.test_truncation import _play\n"
        "print(json.dumps(_play(pathlib.Path(sys.argv[1]), json.loads(sys.argv[2]))))\n"
    )
    done = subprocess.run(
        program(code, str(folder), json.dumps(cases)), capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    result: dict[str, str] = json.loads(done.stdout.splitlines()[-1])
    return result


@pytest.mark.parametrize(
    ("name", "always_read"), [("indices", READS_INDICES), ("features", READS_FEATURES)]
)
def test_a_file_truncated_while_a_loader_is_open_is_an_error(
    tmp_path: Path, name: str, always_read: list[str]
) -> None:
    found = outcomes(tmp_path, [("open", strategy, name) for strategy in STRATEGIES])
    for strategy in STRATEGIES:
        allowed = ("refused",) if strategy in always_read else ("refused", "done")
        assert found[f"open {strategy} {name}"] in allowed, (strategy, found)


def test_a_topology_truncated_before_the_first_batch_is_an_error(tmp_path: Path) -> None:
    cases = [
        ("loader", strategy, name) for strategy in STRATEGIES for name in ("indptr", "indices")
    ]
    cases += [(scene, "", name) for scene in ("profile", "infer") for name in ("indptr", "indices")]
    found = outcomes(tmp_path, cases)
    assert set(found.values()) == {"refused"}, found
