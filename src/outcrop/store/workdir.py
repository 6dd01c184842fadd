"""Work directories: whatever is made is made beside its final name, synced, and renamed."""

from __future__ import annotations

import os
import shutil
import stat
from pathlib import Path

from outcrop.errors import BudgetError, LockedError, StoreError
from outcrop.store.format import LOCK
from outcrop.store.locks import DirectoryLock, open_directory, sync_directory

_PREFIX, _SUFFIX = ".", ".building"


class WorkDirectory:
    """A directory in the making: `commit` gives it its name, anything else removes it.

    At most one process works on a name. What a killed process left is removed by the next one. A
    `resumable` one finds it instead, and leaves it for the next where it is interrupted itself, or
    refused by its budget. What is not ours, a link above all, is refused and stays.
    """

    def __init__(self, final: Path, *, resumable: bool = False) -> None:
        """StoreError where `final` exists; LockedError where another process is making it."""
        self._resumable = resumable
        self.final = final.absolute()
        self.path = work_path(self.final)
        self._refuse_existing()
        self.path.parent.mkdir(parents=True, exist_ok=True)
        try:
            self.path.mkdir()
        except FileExistsError:
            self._refuse_foreign()
        self._lock: DirectoryLock | None
        try:
            self._lock = DirectoryLock(self.path, shared=False)
        except (LockedError, FileNotFoundError):
            raise LockedError(f"{self.final}: another process is making it") from None
        try:
            self._refuse_existing()
            if resumable:
                self._refuse_links()
            else:
                empty(self.path)
            self._resumed = any(path.name != LOCK for path in self.path.iterdir())
        except BaseException:
            self._lock.release()
            raise

    def _refuse_existing(self) -> None:
        if os.path.lexists(self.final):
            raise StoreError(f"{self.final}: exists already; remove it or choose another name")

    def _refuse_foreign(self) -> None:
        """Whatever is here would be emptied: it has our lock, or nothing at all."""
        why = _why_foreign(self.path)
        if why is not None:
            raise StoreError(
                f"{self.path}: {why}, where {self.final.name} is to be made; remove or rename it"
            )

    def _refuse_links(self) -> None:
        """Work that is resumed is written to, and must not lead elsewhere."""
        for path in self.path.iterdir():
            if path.is_symlink():
                raise StoreError(f"{path}: is a link, which no maker leaves; remove it")

    def commit(self) -> None:
        """Everything in the directory must have been synced by whoever wrote it."""
        assert self._lock is not None, "committed or abandoned already"
        for folder, _, _ in os.walk(self.path):
            sync_directory(Path(folder))
        os.rename(self.path, self.final)
        sync_directory(self.final.parent)
        self._lock.release()
        self._lock = None

    def abandon(self) -> None:
        if self._lock is not None:
            shutil.rmtree(self.path, ignore_errors=True)
            self._lock.release()
            self._lock = None

    def _leave(self) -> None:
        """Leaves it as it is, for the next one who works on it."""
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def __enter__(self) -> WorkDirectory:
        return self

    def __exit__(self, _: object, error: BaseException | None, trace: object) -> None:
        interrupted = error is not None and not isinstance(error, Exception)
        refused = self._resumed and isinstance(error, BudgetError)  # more memory or disk may follow
        if self._resumable and (interrupted or refused):
            self._leave()
        else:
            self.abandon()


def work_path(final: Path) -> Path:
    """Where a directory that will have this name is made."""
    return final.parent / f"{_PREFIX}{final.name}{_SUFFIX}"


def leftovers(parent: Path) -> list[Path]:
    """Work directories in `parent` that no process works on: what killed ones left."""
    found = []
    for path in sorted(parent.glob(f"{_PREFIX}*{_SUFFIX}")):
        if _why_foreign(path) is not None or not (path / LOCK).exists():
            continue
        try:
            DirectoryLock(path, shared=False).release()
        except (LockedError, OSError):
            continue
        found.append(path)
    return found


def _why_foreign(path: Path) -> str | None:
    """Why it cannot be a work directory; None where it can, or where it is gone."""
    try:
        folder = open_directory(path)
    except FileNotFoundError:
        return None
    except NotADirectoryError:
        return "is a link" if path.is_symlink() else "is a file"
    try:
        if not os.listdir(folder):
            return None
        lock = os.stat(LOCK, dir_fd=folder, follow_symlinks=False)
        ours = stat.S_ISREG(lock.st_mode) and lock.st_size == 0
    except FileNotFoundError:
        ours = False
    finally:
        os.close(folder)
    return None if ours else "is not a work directory of Outcrop's"


def empty(path: Path) -> None:
    """Removes all that is in a work directory but its lock; follows no link, not even `path`."""
    folder = open_directory(path)
    try:
        for name in os.listdir(folder):
            if stat.S_ISDIR(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
                shutil.rmtree(path / name)
            elif name != LOCK:
                os.unlink(name, dir_fd=folder)
    finally:
        os.close(folder)
