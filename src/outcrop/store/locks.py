"""Locks that die with their process: flock on a file inside the directory that they guard."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from outcrop.errors import LockedError
from outcrop.store.format import LOCK


class DirectoryLock:
    """Holds a directory, for itself (a writer) or together with others (readers: a lease).

    The lock file may be renamed or removed between opening and locking it; then the lock would
    guard nothing, so it is checked afterwards.
    """

    def __init__(self, directory: Path, *, shared: bool) -> None:
        """LockedError where someone else holds it; FileNotFoundError where it is gone."""
        self._fd: int | None = None
        path = directory / LOCK
        flags = os.O_RDONLY | os.O_CLOEXEC if shared else os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
        self._fd = os.open(path, flags, 0o666)
        try:
            fcntl.flock(self._fd, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
            if not os.path.samestat(os.fstat(self._fd), os.stat(path)):
                raise FileNotFoundError(path)
        except BlockingIOError:
            self.release()
            raise LockedError(f"{directory}: in use by another process") from None
        except BaseException:
            self.release()
            raise

    def release(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def __del__(self) -> None:
        self.release()


def sync_directory(path: Path) -> None:
    """On return, the directory's entries have reached the device."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def write_synced(path: Path, data: bytes) -> None:
    """Writes a small file whole, and to the device."""
    with open(path, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
