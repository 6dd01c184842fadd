"""Options are values: frozen, comparable, printable. Sizes are written as people write them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from outcrop import schema
from outcrop.errors import OptionError
from outcrop.schema import shown

_UNITS = {"": 0, "K": 1, "M": 2, "G": 3, "B": 3, "T": 4, "P": 5}
_NUMBER = r"\s*(\d{1,30}(?:\.\d{1,30})?)\s*"
_SIZE = re.compile(rf"{_NUMBER}([KMGTP]?)(i?)B?\s*", re.IGNORECASE | re.ASCII)
_COUNT = re.compile(rf"{_NUMBER}([KMGBTP]?)()\s*", re.IGNORECASE | re.ASCII)
_WHOLE = re.compile(r"-?\d{1,20}", re.ASCII)


def parse_size(text: str | int) -> int:
    """ "8GB", "512MiB", "64 kB", 4096 -> bytes. GB is 10^9, GiB is 2^30."""
    return int(_parse(_SIZE, text, "a size such as 8GB, 512MiB or 4096"))


def parse_count(text: str | int) -> int:
    """ "1M", "20K", "1.5G", 300 -> a count. M is 10^6; B, a billion, and G are 10^9."""
    expected = "a count such as 1B, 1M, 20K or 300"
    count = _parse(_COUNT, text, expected)
    if count.denominator != 1:
        raise OptionError(f"expected {expected} (got {text!r})")
    return int(count)


def _parse(form: re.Pattern[str], text: str | int, expected: str) -> Fraction:
    value = Fraction(-1)
    if type(text) is int:
        value = Fraction(text)
    elif isinstance(text, str) and (match := form.fullmatch(text)):
        number, unit, binary = match.groups()
        base = 1024 if binary else 1000
        scale: int = base ** _UNITS[unit.upper()]
        value = Fraction(number) * scale  # exact, unlike float
    if not 0 <= value < 1 << 63:
        raise OptionError(f"expected {expected} (got {shown(text)})")
    return value


_Options = TypeVar("_Options")


def options_from_text(kind: type[_Options], given: Sequence[str], where: str) -> _Options:
    """["superbatch=100", "mode=split"] -> a dataclass; OptionError names what does not belong."""
    kinds = get_type_hints(kind)
    values = {}
    for text in given:
        name, _, value = text.partition("=")
        if name not in kinds:
            known = f"it has {', '.join(kinds)}" if kinds else "it has none"
            raise OptionError(f"{where}: no option {name!r}; {known}")
        try:
            values[name] = _from_text(kinds[name], value)
        except ValueError:
            expected = schema.expected(kinds[name])
            hint = "; options are separated by colons" if "," in value else ""
            raise OptionError(f"{where}: {name} must be {expected} (got {value!r}){hint}") from None
    return kind(**values)


def _from_text(kind: Any, text: str) -> Any:
    if get_origin(kind) is UnionType:  # as in int | None
        if text == "none":
            return None
        (kind,) = (one for one in get_args(kind) if one is not NoneType)
    if get_origin(kind) is Literal:
        if text not in get_args(kind):
            raise ValueError
        return text
    if kind is bool:
        return bool(("false", "true").index(text))
    if kind is str:
        return text
    if kind is int and not _WHOLE.fullmatch(text):
        raise ValueError
    return schema.parse(kind, kind(text), "", error=ValueError)  # of 64 bits; finite


def format_size(count: int) -> str:
    """Bytes -> "1.5 GB", in powers of ten."""
    size = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if abs(size) < 1000:
            return f"{count} B" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"


def size_of_at_least(count: float) -> str:
    """Bytes as a size that parse_size reads back to no less: "233MB"."""
    return f"{-(-int(count) // 10**6)}MB"


@dataclass(frozen=True)
class Faults:
    """Faults for tests: which requests fail, come short, late or out of order."""

    fail_read_at: int = 0
    """The n-th read (1 is the first) and the fail_count - 1 after it fail; 0: none does."""
    fail_write_at: int = 0
    fail_count: int = 1
    error: int = 5
    """errno of the failure; 5 is EIO."""
    short_every: int = 0
    """Every n-th request moves only a part of its bytes."""
    delay_us: int = 0
    """Every wait for the device lasts up to this much longer."""
    reorder: bool = False
    """Completions arrive in random order."""
    seed: int = 0


@dataclass(frozen=True)
class DiskOptions:
    """How files are read and written; defaults as measured in benchmarks/results/read_rows.md."""

    engine: Literal["auto", "uring", "pool"] = "auto"
    """io_uring, or threads with pread; auto: io_uring where the kernel allows it."""
    access: Literal["auto", "direct", "buffered"] = "auto"
    """Around the page cache (O_DIRECT) or through it; auto: direct where the file allows it."""
    workers: int | None = None
    """Threads. None: 2 with io_uring, 64 in the pool."""
    queue_depth: int = 64
    """Requests in flight per io_uring worker: 128 in all; more adds latency, not speed."""
    unit_bytes: int = 4096
    """The smallest read, and what reads are aligned to; 0: the device's own sector."""
    gap_bytes: int = 8192
    """Two wanted pieces with at most this much between them are read as one."""
    merge: bool = True
    """False: a request for each wanted piece, even within one page. For comparison."""
    max_request_bytes: int = 1 << 20
    bytes_per_second: int | None = None
    """For benchmarks: as if the drive moved no more than this, reads and writes together. Slows the
    engine alone: page faults of memory maps keep their speed."""
    requests_per_second: int | None = None
    faults: Faults | None = None
    """For tests."""

    def __post_init__(self) -> None:
        _one_of("engine", self.engine, ("auto", "uring", "pool"))
        _one_of("access", self.access, ("auto", "direct", "buffered"))
        _in_range("workers", self.workers, 1, 1024)
        _in_range("queue_depth", self.queue_depth, 1, 4096)
        _in_range("unit_bytes", self.unit_bytes, 0, 1 << 20)
        _in_range("gap_bytes", self.gap_bytes, 0, 1 << 30)
        _in_range("max_request_bytes", self.max_request_bytes, 64 << 10, 1 << 30)
        # What is in flight when a transfer is given up still lands, at this rate.
        _in_range("bytes_per_second", self.bytes_per_second, 10**6, 10**12)
        _in_range("requests_per_second", self.requests_per_second, 100, 10**9)
        if self.unit_bytes & (self.unit_bytes - 1):
            raise OptionError(f"unit_bytes must be a power of two (got {self.unit_bytes})")
        unit = max(self.unit_bytes, 4096)
        if self.max_request_bytes % unit:
            raise OptionError(
                f"max_request_bytes must be a multiple of {unit} (got {self.max_request_bytes})"
            )


def _one_of(name: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise OptionError(f"{name} must be one of {', '.join(allowed)} (got {value!r})")


def _in_range(name: str, value: int | None, low: int, high: int) -> None:
    if value is not None and not low <= value <= high:
        raise OptionError(f"{name} must be {low} to {high} (got {value})")
