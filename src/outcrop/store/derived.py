"""Derived layouts: what strategies make from a store and keep under it, by the hash of its inputs.

A layout is a directory `derived/<kind>-<key>`. The key hashes everything that the content depends
on, the store's content included, so a layout that is found is a layout that fits.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, fields
from pathlib import Path
from types import TracebackType
from typing import Any

from outcrop.errors import CorruptError, LockedError, OptionError, StoreError
from outcrop.schema import parse
from outcrop.store.format import DERIVED, LOCK, digest, read_manifest, seal, unseal
from outcrop.store.locks import DirectoryLock, write_synced
from outcrop.store.workdir import WorkDirectory, leftovers, work_path

_RECORD = "layout.json"
_SCRATCH = "scratch-"
_REMOVED = re.compile(r"\.removed(-[0-9a-f]+)?$")
# What users give and nobody reads from the store: it was never in doubt.
_GIVEN = "samples"


class Layout:
    """A layout that is there, held by a lease: it is not removed while this object is open."""

    def __init__(self, path: Path) -> None:
        """FileNotFoundError where there is none."""
        self.path = path
        self._lease = DirectoryLock(path, shared=True, follow=True)
        self.record = _read_record(path)
        """kind, key, the inputs that the key hashes, and the seconds that making it took."""

    @property
    def trusted(self) -> bool:
        """Whether all that it was made from was compared with its checksums."""
        return _is_trusted(self.record)

    def fits(self, content: str) -> bool:
        """Whether a store of this content would use it."""
        return self.trusted and bool(self.record["store"] == content)

    def close(self) -> None:
        self._lease.release()

    def __enter__(self) -> Layout:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


@dataclass(frozen=True)
class _Record:
    """layout.json: what it must have; its maker may add more."""

    kind: str
    key: str
    store: str
    inputs: dict[str, Any]


def _read_record(folder: Path) -> dict[str, Any]:
    path = folder / _RECORD
    record = unseal(path.read_bytes(), str(path))
    names = [field.name for field in fields(_Record) if field.name in record]
    parse(_Record, {name: record[name] for name in names}, str(path))
    return record


def _is_trusted(record: Mapping[str, Any]) -> bool:
    return bool(record.get("checked")) or record["kind"] == _GIVEN


def layout_key(content: str, inputs: Mapping[str, Any]) -> str:
    """The hash of a store's content and of all other inputs, which must be plain JSON values."""
    text = json.dumps({"store": content, "inputs": inputs}, sort_keys=True)
    return digest(text.encode())


class DerivedLayouts:
    """The derived layouts of one store."""

    def __init__(self, store: Path, content: str) -> None:
        self._root = store / DERIVED
        self._content = content
        self._used: dict[Path, tuple[float | None, bool]] = {}  # seconds to make, made here
        self._written: set[Path] = set()  # work directories, which come and go

    def path(self, kind: str, inputs: Mapping[str, Any]) -> Path:
        """Where the layout of this kind and these inputs is, or would be."""
        if not kind.isidentifier():
            raise OptionError(f"the kind of a layout must be a plain word (got {kind!r})")
        return self._root / f"{kind}-{layout_key(self._content, inputs)}"

    def find(self, kind: str, inputs: Mapping[str, Any]) -> Layout | None:
        """The layout, or None where it was never made, or by a version that checked nothing."""
        try:
            layout = Layout(self.path(kind, inputs))
        except FileNotFoundError:
            return None
        if not layout.trusted:
            layout.close()
            return None
        return self._opened(layout, made=False)

    def _opened(self, layout: Layout, *, made: bool) -> Layout:
        self._used.setdefault(layout.path, (layout.record.get("seconds"), made))
        return layout

    def used(self) -> list[dict[str, Any]]:
        """Layouts that this object opened: name, bytes now, seconds that making it took (of the
        process that finished it; None: not known), and whether it was made here."""
        return [
            {"name": path.name, "bytes": tree_bytes(path), "seconds": seconds, "made": made}
            for path, (seconds, made) in list(self._used.items())
        ]

    def used_bytes(self) -> int:
        """What all that this object opened or writes takes now. On any thread."""
        return sum(map(tree_bytes, [*self._used, *self._written]))

    def begun(self, kind: str, inputs: Mapping[str, Any]) -> bool:
        """Whether somebody is making the layout, or was interrupted."""
        return work_path(self.path(kind, inputs)).exists()

    def records(self, kind: str) -> list[tuple[Path, dict[str, Any]]]:
        """All layouts of a kind, with their inputs; damaged ones are left out."""
        found = []
        for path in sorted(self._root.glob(f"{kind}-*")):
            try:
                with Layout(path) as layout:
                    if layout.trusted:
                        found.append((path, layout.record["inputs"]))
            except (OSError, CorruptError):
                continue
        return found

    def get_or_build(
        self,
        kind: str,
        inputs: Mapping[str, Any],
        build: Callable[[Path], None],
        *,
        resumable: bool = False,
    ) -> Layout:
        """The layout; made by build(directory) where it is missing.

        `build` syncs what it writes, and compares what it reads of the store with its checksums. If
        it fails nothing remains; but if it is killed or interrupted and `resumable`, the next one
        finds what it left, and must know what of it is good. A BudgetError leaves what was found.
        LockedError where another process is making the same layout.
        """
        found = self.find(kind, inputs)
        if found is not None:
            return found
        path = self.path(kind, inputs)
        if path.exists():
            remove(Garbage(path, "not trusted", 0))
        try:
            with WorkDirectory(path, resumable=resumable) as work:
                self._written.add(work.path)
                start = time.perf_counter()
                build(work.path)
                record = {
                    "kind": kind,
                    "key": path.name.removeprefix(f"{kind}-"),
                    "store": self._content,
                    "checked": True,
                    "inputs": dict(inputs),
                    "seconds": round(time.perf_counter() - start, 3),
                }
                write_synced(work.path / _RECORD, seal(record))
                work.commit()
        except StoreError as error:
            found = self.find(kind, inputs)  # made by someone else in the meantime?
            if found is None or isinstance(error, CorruptError):
                raise
            return found
        return self._opened(Layout(path), made=True)

    def disk_bytes(self) -> int:
        """What all of them take, whoever made them."""
        return tree_bytes(self._root)

    def scratch(self) -> WorkDirectory:
        """A folder for what lives as long as a run; what killed runs left is removed first."""
        for path in leftovers(self._root):
            if path.name.startswith(f".{_SCRATCH}"):
                remove(Garbage(path, "left by a killed run", 0))
        work = WorkDirectory(self._root / f"{_SCRATCH}{secrets.token_hex(8)}")
        self._written.add(work.path)
        return work


@dataclass(frozen=True)
class Garbage:
    """Something under a store that could be removed."""

    path: Path
    why: str
    bytes: int


def find_garbage(store: Path, *, everything: bool = False) -> Iterator[Garbage]:
    """What nobody uses: leftovers of killed processes, layouts of other contents of this store.

    With `everything`, also good layouts that nobody holds now; they can be made again.
    """
    imports = list(_left_by_imports(store.absolute()))
    yield from imports
    if imports and not store.exists():
        return  # the first import of this name was interrupted
    content = read_manifest(store).content
    root = store / DERIVED
    if not root.is_dir():
        return
    for path in leftovers(root):
        yield Garbage(path, "left by an interrupted preparation", tree_bytes(path))
    for path in sorted(root.iterdir()):
        if path.is_symlink():
            continue  # whoever made it, we did not
        if _REMOVED.search(path.name):
            yield Garbage(path, "removal was interrupted", tree_bytes(path))
        elif (path / LOCK).exists() and not path.name.startswith("."):
            why = _why_useless(path, content) or ("can be made again" if everything else None)
            if why and not _in_use(path):
                yield Garbage(path, why, tree_bytes(path))


def layout_paths(root: Path) -> list[Path]:
    """Finished layouts in a folder of them, whether or not anybody would use them."""
    if not root.is_dir():
        return []
    return [
        path
        for path in sorted(root.iterdir())
        if not path.name.startswith(".")
        and not _REMOVED.search(path.name)
        and (path / LOCK).exists()
    ]


def way_back(path: Path) -> str:
    """What to do about a damaged layout."""
    if path.name.startswith(f"{_GIVEN}-"):
        return f"remove {path} and import the samples again"
    return f"to remove {path} is enough: it is made again when it is needed"


def _left_by_imports(store: Path) -> Iterator[Garbage]:
    interrupted = {*leftovers(store.parent), *store.parent.glob(".*.building.removed*")}
    for path in sorted(interrupted):
        ours = _REMOVED.sub("", path.name) == f".{store.name}.building"
        if ours and not path.is_symlink():
            yield Garbage(path, "left by an interrupted import", tree_bytes(path))


def _why_useless(path: Path, content: str) -> str | None:
    try:
        record = _read_record(path)
    except (OSError, CorruptError):
        return "its record is damaged"
    if record["store"] != content:
        return "made from other content of this store"
    return None if _is_trusted(record) else "made by a version that did not check what it read"


def _in_use(path: Path) -> bool:
    try:
        DirectoryLock(path, shared=False).release()
    except LockedError:
        return True
    except OSError:
        return False
    return False


def remove(garbage: Garbage) -> bool:
    """Removes it; False where somebody has begun to use it in the meantime."""
    path = garbage.path
    if path.is_symlink():
        return False
    try:
        lock = DirectoryLock(path, shared=False) if (path / LOCK).exists() else None
    except (LockedError, FileNotFoundError):
        return False
    # Renamed first: a reader that comes now finds nothing rather than half of it. To a name of its
    # own: what was interrupted here before may still stand aside.
    aside = path.with_name(f"{_REMOVED.sub('', path.name)}.removed-{secrets.token_hex(4)}")
    os.rename(path, aside)
    if lock is not None:
        lock.release()
    shutil.rmtree(aside)
    return True


def tree_bytes(path: Path) -> int:
    """What the files below a path take on disk; those that vanish meanwhile take nothing."""
    total = 0
    for folder, _, names in os.walk(path):
        for name in names:
            with suppress(FileNotFoundError):
                total += os.lstat(os.path.join(folder, name)).st_blocks * 512
    return total
