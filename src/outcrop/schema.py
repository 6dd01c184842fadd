"""Schema: plain values that somebody else wrote (JSON, YAML) -> typed ones, or what is wrong where.

A dataclass declares what belongs there; its annotations are all that is checked:

    Count = Annotated[int, AtLeast(0)]

    @dataclass(frozen=True)
    class Header:
        version: Literal[1]
        shape: tuple[Count, ...]
        note: str | None = None

    parse(Header, {"version": 1, "shape": [2, -1]}, "a.json")
    CorruptError: a.json: shape[1] must be a whole number of at least 0 (got -1)

Known are bool, int, float, str, None, Any, Literal, `|`, list, tuple, dict[str, ...], dataclasses,
and Annotated with AtLeast, Between or Made. Nothing is converted but lists to tuples and whole
numbers to floats: "3" is no number, 3.0 is no whole one, true is neither, NaN and infinity are no
numbers. Whole numbers have 64 bits unless a range says otherwise.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import reprlib
import typing
from collections.abc import Callable
from dataclasses import dataclass
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin

from outcrop.errors import CorruptError

T = TypeVar("T")

_SCALARS = {bool: "true or false", int: "a whole number", float: "a number", str: "text",
            NoneType: "none"}  # fmt: skip
_INT64 = range(-(1 << 63), 1 << 63)


@dataclass(frozen=True)
class AtLeast:
    """The least that an annotated number may be."""

    low: int

    def __contains__(self, value: float) -> bool:
        return self.low <= value < 1 << 63

    def __str__(self) -> str:
        return f" of at least {self.low}"


@dataclass(frozen=True)
class Between:
    """The least and the most that an annotated number may be."""

    low: float
    high: float

    def __contains__(self, value: float) -> bool:
        return self.low <= value <= self.high

    def __str__(self) -> str:
        return f" from {self.low} to {self.high}"


@dataclass(frozen=True)
class Made:
    """An annotated value is made from the plain one; `by` raises ValueError or TypeError."""

    by: Callable[[Any], Any]
    expected: str


Count = Annotated[int, AtLeast(0)]
"""A number of things, or of bytes."""


def parse(kind: type[T], value: Any, where: str, *, error: type[Exception] = CorruptError) -> T:
    """The value as a dataclass (or any other kind of the above).

    An `error` of the given type says `where` (a file), the field, and what would be accepted.
    """
    try:
        made: T = _read(kind, value, "")
    except _MismatchError as mismatch:
        raise error(f"{where}: {mismatch}") from None
    return made


def check_fields(made: Any, error: type[Exception]) -> None:
    """Holds the fields of a dataclass that was made in Python to their annotations.

    For __post_init__; an `error` of the given type says the field and what would be accepted.
    """
    of: Any = type(made)
    for name, kind in _fields(of).items():
        try:
            object.__setattr__(made, name, _read(kind, getattr(made, name), name))
        except _MismatchError as mismatch:
            raise error(str(mismatch)) from None


def parse_json(data: bytes, where: str, *, error: type[Exception] = CorruptError) -> Any:
    """JSON -> plain values, still to be parsed; `error` where it is not JSON."""
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as found:
        raise error(f"{where}: not readable: {found}") from found


def expected(kind: Any) -> str:
    """What would be accepted: "a whole number of at least 1 or none"."""
    origin, args = get_origin(kind), get_args(kind)
    if origin is Annotated:
        (rule,) = args[1:]
        return rule.expected if isinstance(rule, Made) else f"{expected(args[0])}{rule}"
    if origin in (typing.Union, UnionType):
        return " or ".join(map(expected, args))
    if origin is Literal:
        return f"one of {', '.join(map(str, args))}" if len(args) > 1 else repr(args[0])
    if origin in (list, tuple):
        return "a list"
    return _SCALARS.get(kind, "an object")


def shown(value: Any) -> str:
    """A value for a message: on one line, printable, short whatever it is."""
    if isinstance(value, int) and value.bit_length() > 128:  # Python refuses to write some
        return f"a whole number of {value.bit_length()} bits"
    return _REPR.repr(value)


_REPR = reprlib.Repr()
_REPR.maxstring = _REPR.maxother = _REPR.maxlong = 60


class _MismatchError(Exception):
    def __init__(self, place: str, what: str) -> None:
        super().__init__(f"{place} {what}" if place else what)


def _wrong(place: str, kind: Any, value: Any) -> _MismatchError:
    return _MismatchError(place, f"must be {expected(kind)} (got {shown(value)})")


def _read(kind: Any, value: Any, place: str) -> Any:
    origin = get_origin(kind)
    if kind is Any:
        return value
    if dataclasses.is_dataclass(kind):
        return _read_dataclass(kind, value, place)
    if origin is Annotated:
        return _read_annotated(kind, value, place)
    if origin in (typing.Union, UnionType):
        return _read_union(kind, value, place)
    if origin in (list, tuple) and isinstance(value, (list, tuple)):
        return _read_items(kind, value, place)
    if origin is dict and isinstance(value, dict):
        names, items = get_args(kind)
        return {
            _read(names, name, f"a name in {place}"): _read(items, item, _joined(place, name))
            for name, item in value.items()
        }
    if origin is Literal and any(type(value) is type(a) and value == a for a in get_args(kind)):
        return value
    if kind is float:
        if type(value) in (int, float) and _is_finite(value):
            return float(value)
    elif kind in _SCALARS and type(value) is kind and (kind is not int or value in _INT64):
        return value
    raise _wrong(place, kind, value)


def _read_dataclass(kind: Any, value: Any, place: str) -> Any:
    if not isinstance(value, dict):
        raise _wrong(place, kind, value)
    kinds = _fields(kind)
    for name in value:
        if name not in kinds:
            known = ", ".join(kinds)
            raise _MismatchError(place, f"has no field {shown(name)}; there are {known}")
    values = {}
    for field in dataclasses.fields(kind):
        if field.name in value:
            place_of = _joined(place, field.name)
            values[field.name] = _read(kinds[field.name], value[field.name], place_of)
        elif field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            raise _MismatchError(_joined(place, field.name), "is missing")
    return kind(**values)


@functools.cache
def _fields(kind: Any) -> dict[str, Any]:
    hints = typing.get_type_hints(kind, include_extras=True)
    return {field.name: hints[field.name] for field in dataclasses.fields(kind)}


def _read_annotated(kind: Any, value: Any, place: str) -> Any:
    base, rule = get_args(kind)
    if isinstance(rule, Made):
        try:
            return rule.by(value)
        except (ValueError, TypeError):
            raise _wrong(place, kind, value) from None
    # Its own range, and not that of 64 bits.
    whole = base is int and type(value) is int
    if not (whole or _accepts(base, value)) or value not in rule:
        raise _wrong(place, kind, value)
    return value if whole else _read(base, value, place)


def _read_union(kind: Any, value: Any, place: str) -> Any:
    kinds = get_args(kind)
    for one in kinds:
        if _accepts(one, value):
            return _read(one, value, place)
    # What is wrong with its members says more than that no kind fits.
    for one in kinds:
        if isinstance(value, dict) and (dataclasses.is_dataclass(one) or get_origin(one) is dict):
            return _read(one, value, place)
    raise _wrong(place, kind, value)


def _accepts(kind: Any, value: Any) -> bool:
    try:
        _read(kind, value, "")
    except _MismatchError:
        return False
    return True


def _read_items(kind: Any, value: Any, place: str) -> Any:
    args = get_args(kind)
    if get_origin(kind) is tuple and args[-1] is not Ellipsis:
        if len(value) != len(args):
            raise _MismatchError(place, f"must have {len(args)} entries (got {shown(value)})")
        kinds: Any = args
    else:
        kinds = [args[0]] * len(value)
    items = [
        _read(one, item, f"{place}[{index}]")
        for index, (one, item) in enumerate(zip(kinds, value, strict=True))
    ]
    return items if get_origin(kind) is list else tuple(items)


def _joined(place: str, name: Any) -> str:
    shown_name = name if isinstance(name, str) and name.isidentifier() else shown(name)
    return f"{place}.{shown_name}" if place else shown_name


def _is_finite(value: float) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:
        return False
