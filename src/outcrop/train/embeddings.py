"""Embeddings beside a checkpoint: those of a history -> a file that the checkpoint names.

They may be as large as all other memory, so they are written and read some at a time. The file is
whole before the checkpoint that names it is renamed into place; those of earlier checkpoints go
after that. A kill in between leaves a file that nobody names, which the next save removes.
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
from outcrop.schema import parse
from outcrop.store.arrays import ArrayWriter
from outcrop.store.checks import ArrayChecks
from outcrop.store.format import ArrayEntry

_NAME = "embeddings-{}.npy"
"""By a number that no file there has yet: the last checkpoint's stays until the next is there."""
# Before an embedding and its gradient: its node, its iteration, the in-degree it was made with.
_LEADING = np.dtype([("node", "<i8"), ("pushed", "<i4"), ("degree", "<f4")])


def save_embeddings(disk: Disk, directory: Path, history: History) -> dict[str, Any]:
    """-> what the checkpoint has to say of the file, in JSON's values."""
    names = (_NAME.format(number) for number in count())
    name = next(name for name in names if not (directory / name).exists())
    dtype = _row(history)
    with ArrayWriter(disk, directory, name, np.dtype(np.uint8), (dtype.itemsize,),
                     rows=history.stored) as writer:  # fmt: skip
        for some in history.embeddings():
            rows = np.empty(len(some.nodes), dtype)
            rows["node"], rows["pushed"] = some.nodes, some.pushed
            rows["degree"], rows["row"] = some.degrees.cpu().numpy(), some.rows.cpu().numpy()
            rows["gradient"] = some.gradients.cpu().numpy()
            writer.append(rows.view(np.uint8).reshape(len(rows), -1))
        return {"width": history.width, "array": writer.close().to_json()}


def load_embeddings(disk: Disk, directory: Path, said: Any, history: History, where: str) -> None:
    """What save_embeddings kept; StoreError, with `where`, if it is not what was said of it."""
    if not isinstance(said, dict) or said.get("width") != history.width:
        found = said.get("width") if isinstance(said, dict) else said
        raise StoreError(f"{where}: has embeddings of width {found}, not {history.width}")
    entry = parse(ArrayEntry, said.get("array"), where, error=StoreError)
    dtype = _row(history)
    if Path(entry.file).name != entry.file or entry.shape[1:] != (dtype.itemsize,):
        raise StoreError(f"{where}: its embeddings are not in a file of such rows")
    path = directory / entry.file
    try:
        size = path.stat().st_size
    except OSError as error:
        raise CorruptError(f"{path}: {error.strerror}") from error
    if size != entry.file_bytes:
        raise CorruptError(f"{path}: {size} B, but should have {entry.file_bytes} B")
    checks = ArrayChecks(directory, entry)
    history.restore(_read(checks, disk, dtype))


def remove_others(directory: Path, said: Any) -> None:
    """Files of checkpoints that are no longer there."""
    kept = said["array"]["file"] if said else None
    for path in directory.glob(_NAME.format("*")):
        if path.name != kept:
            with suppress(FileNotFoundError):
                path.unlink()


def _row(history: History) -> np.dtype[Any]:
    gradient = history.width if history.late else 0
    return np.dtype(
        [*_LEADING.descr, ("row", "<f4", (history.width,)), ("gradient", "<f4", (gradient,))]
    )


def _read(checks: ArrayChecks, disk: Disk, dtype: np.dtype[Any]) -> Iterator[Embeddings]:
    """CorruptError before the end where a byte differs."""
    left: NDArray[np.uint8] = np.empty(0, np.uint8)
    for block in checks.blocks(disk):
        left = np.concatenate([left, block])
        whole = len(left) // dtype.itemsize * dtype.itemsize
        rows, left = left[:whole].view(dtype), left[whole:]
        yield Embeddings(
            rows["node"].copy(),
            rows["pushed"].copy(),
            torch.from_numpy(rows["degree"].copy()),
            torch.from_numpy(rows["row"].copy()),
            torch.from_numpy(rows["gradient"].copy()),
        )
