"""Locks that die with their process: flock on a file inside the directory that they guard."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from outcrop.errors import LockedError, WriteError
from outcrop.store.format import LOCK

# gc locks what it looks at for microseconds; a busy machine may keep it from letting go.
_PATIENCE_SECONDS = 0.1


class DirectoryLock:
    """Holds a directory, for itself (a writer) or together with others (readers: a lease).

    The lock file may be renamed or removed between opening and locking it; then the lock would
    guard nothing, so it is checked afterwards.
    """

    def __init__(self, directory: Path, *, shared: bool, follow: bool = False) -> None:
        """FileNotFoundError where it is gone; LockedError where someone else holds it.

        Writers hold a directory that has readers only for moments: a reader waits for them.
        `follow`: whether it may be a link, as one that a user names; NotADirectoryError else.
        """
        self._fd: int | None = None
        flags = os.O_RDONLY if shared else os.O_RDWR | os.O_CREAT
        folder = open_directory(directory, follow=follow)
        try:
            self._fd = os.open(LOCK, flags | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666, dir_fd=folder)
        finally:
            os.close(folder)
        try:
            if shared:
                fcntl.flock(self._fd, fcntl.LOCK_SH)
            else:
                _lock_exclusively(self._fd)
            path = directory / LOCK
            if not os.path.samestat(os.fstat(self._fd), os.lstat(path)):
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


def _lock_exclusively(fd: int) -> None:
    """BlockingIOError where it is held for longer than it takes to see whether it is in use."""
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while True:
        try:
            return fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise
            time.sleep(_PATIENCE_SECONDS / 50)


def open_directory(path: Path, *, follow: bool = False) -> int:
    """A descriptor of it; NotADirectoryError where it is none, or a link that is not followed."""
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
    return os.open(path, flags if follow else flags | os.O_NOFOLLOW)


def sync_directory(path: Path) -> None:
    """On return, the directory's entries have reached the device."""
    fd = open_directory(path, follow=True)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def write_synced(path: Path, data: bytes) -> None:
    """Writes a small file whole, and to the device; WriteError names it where that fails."""
    with _named(path, len(data)), open(path, "wb") as file:
        _write_through(file, data)


def replace_synced(path: Path, *parts: bytes | memoryview) -> None:
    """Writes a file beside its name, and to the device: a crash or a full drive leaves the old one,
    or the new one.

    A link that lies where it is written is removed, not followed. Where the name is that of a pipe
    or a device, there is nothing to replace, and the bytes go there. WriteError names the file.
    """
    with _named(path, sum(memoryview(part).nbytes for part in parts)):
        if path.exists() and not path.is_file():
            path.write_bytes(b"".join(parts))
            return
        aside = path.with_name(f".{path.name}.writing")
        aside.unlink(missing_ok=True)
        try:
            with open(aside, "xb") as file:
                _write_through(file, *parts)
            aside.rename(path)
        finally:
            aside.unlink(missing_ok=True)
        sync_directory(path.parent)


def _write_through(file: BinaryIO, *parts: bytes | memoryview) -> None:
    for part in parts:
        file.write(part)
    file.flush()
    os.fsync(file.fileno())


@contextmanager
def _named(path: Path, size: int) -> Iterator[None]:
    """Errors of writing have no name, those of opening that of the file beside."""
    try:
        yield
    except OSError as error:
        if error.errno is None:
            raise
        reason = error.strerror or "cannot be written"
        if error.filename is not None:
            raise OSError(error.errno, reason, str(path)) from error
        raise WriteError(error.errno, reason, str(path), 0, size) from error
