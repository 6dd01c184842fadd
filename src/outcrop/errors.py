"""Every exception that Outcrop raises on purpose.

    OutcropError
    ├── DiskError (OSError)      errno, filename, offset, length
    │   ├── ReadError
    │   └── WriteError
    ├── CancelledError           the engine was closed before the transfer was done
    │   └── ForkedError          a thing of another process, used in its forked child
    ├── StoreError               a store that is not one, or not whole
    │   ├── CorruptError         bytes differ from their checksum, or from the manifest
    │   └── LockedError          another process holds it
    ├── IngestError (ValueError) bad input: file, line or offset, and what is wrong there
    ├── BudgetError              more memory or disk is needed than was given
    ├── DivergedError            training whose gradients are no numbers any more
    ├── CageError                a memory limit that cannot be enforced here
    └── OptionError (ValueError) an argument, its value, and what would be accepted

and what it warns of:

    BudgetWarning (UserWarning)  batches take more memory than was given

A file that cannot be opened raises the built-in FileNotFoundError, PermissionError and so on.
"""

from __future__ import annotations

import os
from errno import EACCES, EDQUOT, ENOSPC, EPERM, EROFS


class OutcropError(Exception):
    """Base of all errors of this package."""


class DiskError(OutcropError, OSError):
    """An I/O request that failed: which file, which bytes, why."""

    def __init__(self, errno: int, reason: str, filename: str, offset: int, length: int) -> None:
        OSError.__init__(self, errno, reason, filename)
        self.offset = offset
        self.length = length

    def __str__(self) -> str:
        return f"{self.filename}: {self.length} B at {self.offset}: {self.strerror}"

    def __reduce__(self) -> tuple[type[DiskError], tuple[object, ...]]:
        args = (self.errno, self.strerror, self.filename, self.offset, self.length)
        return type(self), args


class ReadError(DiskError):
    """Bytes that could not be read."""


class WriteError(DiskError):
    """Bytes that could not be written."""


class CancelledError(OutcropError):
    """A transfer whose engine was closed, or that was given up, before it was done."""


class ForkedError(CancelledError):
    """A loader, engine or sampler of another process: threads do not cross a fork."""


class StoreError(OutcropError):
    """Not a store, or not one that this version reads."""


class CorruptError(StoreError):
    """A store whose bytes are not what its manifest says."""


class LockedError(StoreError):
    """Something that another process is writing or using."""


class IngestError(OutcropError, ValueError):
    """Input that cannot become a store: where, and what is wrong there."""

    def __init__(self, path: str | os.PathLike[str], where: str, what: str) -> None:
        self.path = os.fspath(path)
        self.where = where
        self.what = what
        place = f"{self.path}: {where}" if where else self.path
        super().__init__(f"{place}: {what}")

    def __reduce__(self) -> tuple[type[IngestError], tuple[object, ...]]:
        return type(self), (self.path, self.where, self.what)


class BudgetError(OutcropError):
    """The memory or disk that was given is too little; the message names what would do."""


class HistoryError(OutcropError):
    """An embedding that a batch counts on, and that was not kept when it should have been."""


class DivergedError(OutcropError):
    """Gradients that are infinite or NaN: weights would be, too, after a step with them."""


class CageError(OutcropError):
    """A memory limit that this process may not set."""


class OptionError(OutcropError, ValueError):
    """An argument that cannot be used: its value, and what would be accepted."""


class BudgetWarning(UserWarning):
    """Batches that are kept, or larger than was foreseen, take more memory than was given."""


def is_refusal_to_write(error: Exception) -> bool:
    """Whether there is no room, or no right, to write: what writes less may still work."""
    if isinstance(error, OSError):
        return error.errno in (EACCES, EDQUOT, ENOSPC, EPERM, EROFS)
    return isinstance(error, BudgetError)
