"""Derived layouts: what strategies make from a store and keep under it, by the hash of its inputs.

A layout is a directory `derived/<kind>-<key>`. The key hashes everything that the content depends
on, the store's content included, so a layout that is found is a layout that fits.
"""

from __future__ import annotations

import errno
import json
import os
import re
import secrets
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from outcrop.closing import Closing
from outcrop.errors import CorruptError, LockedError, OptionError, StoreError
from outcrop.progress import SILENT, Progress
from outcrop.schema import parse
from outcrop.store.format import DERIVED, LOCK, digest, read_manifest, seal, unseal
from outcrop.store.locks import DirectoryLock, write_synced
from outcrop.store.workdir import WorkDirectory, leftovers, work_path

_RECORD = "layout.json"
_SCRATCH = "scratch-"
_REMOVED = re.compile(r"\.removed(-[0-9a-f]+)?$")
# What users give and nobody reads from the store: it was never in doubt.
_GIVEN = "samples"
# The environment's name of a folder for layouts of stores that cannot be written to.
ELSEWHERE = "OUTCROP_DERIVED"
# How often a process that waits for a layout looks for it, and for Ctrl-C.
_POLL_SECONDS = 0.1


def advised(error: CorruptError, *layouts: Path) -> CorruptError:
    """The error; where it names one of these layouts, with what to do about it."""
    for path in layouts:
        if str(path) in str(error):
            return CorruptError(f"{error}; remove {path}, and the next run makes it again")
    return error


@contextmanager
def advising(*layouts: Path) -> Iterator[None]:
    """Says what to do about a damaged layout of these, which the error names."""
    try:
        yield
    except CorruptError as error:
        raise advised(error, *layouts) from error


class Layout(Closing):
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


def derived_root(
    store: Path, content: str, elsewhere: str | os.PathLike[str] | None = None
) -> Path:
    """Where the layouts of a store of this content are kept: in it, or in a folder elsewhere.

    `elsewhere`: that folder, which stores may share; None: what the environment says.
    """
    folder = elsewhere or os.environ.get(ELSEWHERE)
    return Path(folder).absolute() / content if folder else store / DERIVED


class DerivedLayouts:
    """The derived layouts of one store."""

    def __init__(
        self, store: Path, content: str, elsewhere: str | os.PathLike[str] | None = None
    ) -> None:
        """`elsewhere`: as in `derived_root`."""
        self.root = derived_root(store, content, elsewhere)
        """The folder that they are in, which need not exist."""
        self._content = content
        self._used: dict[Path, tuple[float | None, bool]] = {}  # seconds to make, made here
        self._written: set[Path] = set()  # work directories, which come and go

    def path(self, kind: str, inputs: Mapping[str, Any]) -> Path:
        """Where the layout of this kind and these inputs is, or would be."""
        if not kind.isidentifier():
            raise OptionError(f"the kind of a layout must be a plain word (got {kind!r})")
        return self.root / f"{kind}-{layout_key(self._content, inputs)}"

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
        for path in sorted(self.root.glob(f"{kind}-*")):
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
        progress: Progress = SILENT,
    ) -> Layout:
        """The layout; made by build(directory) where it is missing.

        Where somebody else is making it, `progress` is told, and this waits: for the result, or to
        take over if they fail or die.

        `build` syncs what it writes, and compares what it reads of the store with its checksums. If
        it fails nothing remains; but if it is killed or interrupted and `resumable`, the next one
        finds what it left, and must know what of it is good. A BudgetError leaves what was found.
        """
        found = self.find(kind, inputs)
        if found is not None:
            return found
        path = self.path(kind, inputs)
        if path.exists():
            remove(Garbage(path, "not trusted", 0))
        try:
            with self._work_directory(path, resumable, progress) as work:
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

    def _work_directory(self, path: Path, resumable: bool, progress: Progress) -> WorkDirectory:
        """StoreError where the layout is there by now, or cannot be made."""
        told = False
        while True:
            try:
                with self._advising():
                    return WorkDirectory(path, resumable=resumable)
            except LockedError:
                if not told:
                    progress.note(f"{path}: another process is making it; waiting")
                    told = True
            progress.advance(0)  # a report is a chance to be stopped
            time.sleep(_POLL_SECONDS)

    @contextmanager
    def _advising(self) -> Iterator[None]:
        """Says what to do where the store's media cannot be written to."""
        try:
            yield
        except OSError as error:
            if error.errno not in (errno.EROFS, errno.EACCES, errno.EPERM):
                raise
            raise StoreError(
                f"{self.root}: cannot be written to ({error.strerror}), and layouts belong there; "
                f"name a folder for them: {ELSEWHERE}=FOLDER in the environment, outcrop --derived "
                "FOLDER, or outcrop.open(..., derived=FOLDER)"
            ) from error

    @property
    def folder(self) -> Path:
        """The nearest folder that exists: where its free space and permissions are asked for."""
        return next(path for path in (self.root, *self.root.absolute().parents) if path.is_dir())

    @property
    def writable(self) -> bool:
        return os.access(self.folder, os.W_OK)

    def disk_bytes(self) -> int:
        """What all of them take, whoever made them."""
        return tree_bytes(self.root)

    def scratch(self) -> WorkDirectory:
        """A folder for what lives as long as a run; what killed runs left is removed first."""
        for path in leftovers(self.root):
            if path.name.startswith(f".{_SCRATCH}"):
                remove(Garbage(path, "left by a killed run", 0))
        with self._advising():
            work = WorkDirectory(self.root / f"{_SCRATCH}{secrets.token_hex(8)}")
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
    for root in derived_roots(store, content):
        yield from _garbage_in(root, content, everything=everything)


def derived_roots(store: Path, content: str) -> list[Path]:
    """All folders that may have layouts of a store: its own, and the one elsewhere."""
    return sorted({store / DERIVED, derived_root(store, content)})


def _garbage_in(root: Path, content: str, *, everything: bool) -> Iterator[Garbage]:
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
    try:
        os.rename(path, aside)
    except FileNotFoundError:  # somebody else is removing it
        return False
    finally:
        if lock is not None:
            lock.release()
    while os.path.lexists(aside):
        # Another gc may take this for an interrupted removal, and be faster with a part of it.
        with suppress(FileNotFoundError):
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
