"""Embeddings beside a checkpoint: those of a history -> files that the checkpoint names.

They may be as large as all other memory, so they are written and read some at a time. Whose they
may be, the candidates, is in a file of its own: a run goes on with these, whatever memory and
profile would choose now. Both are whole before the checkpoint that names them is renamed into
place; those of earlier checkpoints go after that. A kill in between leaves files that nobody names,
which the next save removes.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from outcrop.disk import Disk
from outcrop.errors import CorruptError, StoreError
from outcrop.loader.history import Embeddings, History
from outcrop.sample.seeds import Ids
from outcrop.schema import parse
from outcrop.store.arrays import ArrayWriter
from outcrop.store.checks import ArrayChecks
from outcrop.store.format import ArrayEntry
from outcrop.store.store import GraphStore
from outcrop.train.checkpoint import Checkpoint

_EMBEDDINGS, _CANDIDATES = "embeddings-{}.npy", "candidates-{}.npy"
"""By a number that no file there has yet: the last checkpoint's stay until the next is there."""
_WHOSE, _NODE = "candidates", np.dtype("<i8")
_NUMBERS = {torch.bfloat16: "<u2", torch.float32: "<u4"}
"""What embeddings are in, as bits that numpy has."""
_BITS = {torch.bfloat16: torch.int16, torch.float32: torch.int32}
# Before an embedding and its gradient: its node, its iteration, the in-degree it was made with.
_LEADING = np.dtype([("node", "<i8"), ("pushed", "<i4"), ("degree", "<f4")])


def save_embeddings(disk: Disk, directory: Path, history: History) -> dict[str, Any]:
    """-> what the checkpoint has to say of the files, in JSON's values."""
    names = ((_EMBEDDINGS.format(number), _CANDIDATES.format(number)) for number in count())
    name, whose = next(
        pair for pair in names if not any((directory / one).exists() for one in pair)
    )
    nodes, dtype = history.table.nodes, _row(history)
    with ArrayWriter(disk, directory, whose, _NODE, rows=len(nodes)) as writer:
        writer.append(nodes)
        candidates = writer.close().to_json()
    with ArrayWriter(disk, directory, name, np.dtype(np.uint8), (dtype.itemsize,),
                     rows=history.stored) as writer:  # fmt: skip
        for some in history.embeddings():
            rows = np.empty(len(some.nodes), dtype)
            rows["node"], rows["pushed"] = some.nodes, some.pushed
            rows["degree"] = some.degrees.cpu().numpy()
            rows["row"], rows["gradient"] = _stored(some.rows), _stored(some.gradients)
            writer.append(rows.view(np.uint8).reshape(len(rows), -1))
        return {"width": history.width, "array": writer.close().to_json(), _WHOSE: candidates}


def load_candidates(store: GraphStore, directory: Path, checkpoint: Checkpoint) -> Ids:
    """Whose embeddings a checkpoint has, ascending; StoreError if it is not what it says."""
    checks = _checks(directory, checkpoint, _WHOSE, _NODE, ())
    nodes: Ids = checks.load(store.disk)
    if len(nodes) and not 0 <= nodes.min() <= nodes.max() < store.num_nodes:
        raise StoreError(
            f"{checkpoint.name}: has embeddings of nodes {nodes.min()} to {nodes.max()}, and there "
            f"are {store.num_nodes}"
        )
    return nodes


def load_embeddings(disk: Disk, directory: Path, checkpoint: Checkpoint, history: History) -> None:
    """What save_embeddings kept; StoreError if it is not what the checkpoint says of it."""
    width = _said(checkpoint).get("width")
    if width != history.width:
        raise StoreError(f"{checkpoint.name}: has embeddings of width {width}, not {history.width}")
    dtype = _row(history)
    checks = _checks(directory, checkpoint, "array", np.dtype(np.uint8), (dtype.itemsize,))
    history.restore(_read(checks, disk, dtype, history.dtype))


def _said(checkpoint: Checkpoint) -> dict[str, Any]:
    said = checkpoint.facts.get("embeddings")
    if not isinstance(said, dict):
        raise StoreError(f"{checkpoint.name}: has no embeddings, but {said}")
    return said


def _checks(
    directory: Path, checkpoint: Checkpoint, name: str, dtype: np.dtype[Any], row: tuple[int, ...]
) -> ArrayChecks:
    """The file that is said to have this; CorruptError where it is not there, or is cut."""
    where = checkpoint.name
    entry = parse(ArrayEntry, _said(checkpoint).get(name), where, error=StoreError)
    is_such = entry.dtype == dtype and entry.shape[1:] == row
    if Path(entry.file).name != entry.file or not is_such:
        raise StoreError(f"{where}: its embeddings are not in a file of such rows")
    path = directory / entry.file
    try:
        size = path.stat().st_size
    except OSError as error:
        raise CorruptError(f"{path}: {error.strerror}") from error
    if size != entry.file_bytes:
        raise CorruptError(f"{path}: {size} B, but should have {entry.file_bytes} B")
    return ArrayChecks(directory, entry)


def remove_others(directory: Path, said: dict[str, Any]) -> None:
    """Files of checkpoints that are no longer there."""
    kept = {said[name]["file"] for name in ("array", _WHOSE)}
    for pattern in (_EMBEDDINGS, _CANDIDATES):
        for path in directory.glob(pattern.format("*")):
            if path.name not in kept:
                with suppress(FileNotFoundError):
                    path.unlink()


def _row(history: History) -> np.dtype[Any]:
    number, gradient = _NUMBERS[history.dtype], history.width if history.late else 0
    return np.dtype(
        [*_LEADING.descr, ("row", number, (history.width,)), ("gradient", number, (gradient,))]
    )


def _stored(values: torch.Tensor) -> NDArray[Any]:
    """Their bits, in numbers that numpy has."""
    own = values.cpu().contiguous()
    return own.view(_BITS[own.dtype]).numpy().view(_NUMBERS[own.dtype])


def _loaded(numbers: NDArray[Any], dtype: torch.dtype) -> torch.Tensor:
    """The inverse; a copy."""
    return torch.from_numpy(numbers.copy().view(f"i{numbers.itemsize}")).view(dtype)


def _read(
    checks: ArrayChecks, disk: Disk, dtype: np.dtype[Any], of: torch.dtype
) -> Iterator[Embeddings]:
    """CorruptError before the end where a byte differs. `of`: embeddings."""
    left: NDArray[np.uint8] = np.empty(0, np.uint8)
    for block in checks.blocks(disk):
        left = np.concatenate([left, block])
        whole = len(left) // dtype.itemsize * dtype.itemsize
        rows, left = left[:whole].view(dtype), left[whole:]
        yield Embeddings(
            rows["node"].copy(),
            rows["pushed"].copy(),
            torch.from_numpy(rows["degree"].copy()),
            _loaded(rows["row"], of),
            _loaded(rows["gradient"], of),
        )
