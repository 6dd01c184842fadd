"""Fields: values of a JSON file that somebody else wrote -> values of known types, or an error.

The error names the file, the place in it and what was found: `run.json: loader.epochs[2].rows: a
number was expected (got "x")`.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable, Iterator
from dataclasses import MISSING
from types import UnionType
from typing import Any, Literal, TypeVar, cast, get_args, get_origin, get_type_hints

from outcrop.errors import StoreError

Value = TypeVar("Value")
Event = tuple[str, int, float, float]

_TOO_LARGE = 1 << 63  # for a count; beyond some more digits not even a float can tell


class Fields:
    """The members of one JSON object. What is absent or null is None, or empty."""

    def __init__(self, values: Any, file: str, place: str = "") -> None:
        self._file, self._place = file, place
        if not isinstance(values, dict):
            raise self._error("", "an object", values)
        self._values = values

    def get(self, name: str, kind: Any, *, needed: bool = False) -> Any:
        """A member: one of _KINDS, a list of these, or a Literal, which must always be there."""
        if isinstance(kind, UnionType):  # with None, which is what is absent anyway
            kind = get_args(kind)[0]
        if get_origin(kind) is list:
            return self._list(name, *_KINDS[get_args(kind)[0]])
        known = get_args(kind) if get_origin(kind) is Literal else ()
        expected, convert = _KINDS[str if known else kind]
        found = self._get(name, expected, convert)
        if known and found not in known:
            raise self._error(name, "one of " + ", ".join(known), found)
        if needed and found is None:
            raise self._error(name, expected, found)
        return found

    def read(self, kind: type[Value]) -> Value:
        """A dataclass of such members; one without a default must be there."""
        values, hints = {}, get_type_hints(kind)
        for each in dataclasses.fields(cast(Any, kind)):
            needed = each.default is MISSING and each.default_factory is MISSING
            value = self.get(each.name, hints[each.name], needed=needed)
            if value is not None:
                values[each.name] = value
        return kind(**values)

    def part(self, name: str) -> Fields:
        return Fields(self._values.get(name) or {}, self._file, self._join(name))

    def parts(self, name: str) -> list[Fields]:
        found = self._get(name, "a list", _sequence) or []
        return [
            Fields(value, self._file, f"{self._join(name)}[{index}]")
            for index, value in enumerate(found)
        ]

    def members(self, name: str) -> Iterator[tuple[str, Fields]]:
        """An object of objects."""
        part = self.part(name)
        for key in part._values:
            yield clean(key), Fields(part._values[key], self._file, part._join(key))

    def counts(self, name: str) -> dict[str, int | None]:
        """An object of whole numbers."""
        part = self.part(name)
        return {clean(key): part.get(key, int) for key in part._values}

    def columns(self, name: str) -> dict[str, list[float]]:
        """An object of lists of numbers, all as long as each other."""
        part = self.part(name)
        found = {clean(key): part.get(key, list[float]) for key in part._values}
        lengths = {key: len(column) for key, column in found.items()}
        if len(set(lengths.values())) > 1:
            raise self._error(name, "columns of equal length", lengths)
        return found

    def _list(
        self, name: str, expected: str, convert: Callable[[Any], Value | None]
    ) -> list[Value]:
        found = self._get(name, "a list", _sequence) or []
        made = []
        for index, value in enumerate(found):
            converted = convert(value)
            if converted is None:
                raise self._error(f"{name}[{index}]", expected, value)
            made.append(converted)
        return made

    def _get(
        self, name: str, expected: str, convert: Callable[[Any], Value | None]
    ) -> Value | None:
        value = self._values.get(name)
        if value is None:
            return None
        converted = convert(value)
        if converted is None:
            raise self._error(name, expected, value)
        return converted

    def _join(self, name: str) -> str:
        return f"{self._place}.{name}" if self._place else name

    def _error(self, name: str, expected: str, found: object) -> StoreError:
        place = self._join(name) if name else self._place or "the whole"
        shown = clean(json.dumps(found, default=str))
        shown = shown if len(shown) <= 60 else shown[:57] + "..."
        return StoreError(f"{self._file}: {clean(place)}: {expected} was expected (got {shown})")


def clean(text: str) -> str:
    """Without what would move a terminal's cursor or turn the direction of writing."""
    return "".join(char if char.isprintable() else "\ufffd" for char in text)


def _plain(value: Any) -> Any:
    """Texts without control characters, and no number that is too large to be one."""
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {clean(key): _plain(item) for key, item in value.items()}
    return str(value) if isinstance(value, int) and abs(value) >= _TOO_LARGE else value


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value)
    except OverflowError:
        return math.inf


def _count(value: Any) -> int | None:
    if isinstance(value, bool) or not isinstance(value, int) or abs(value) >= _TOO_LARGE:
        return None
    return value


def _sequence(value: Any) -> list[Any] | None:
    # A record that has not been to a file yet has tuples.
    return list(value) if isinstance(value, list | tuple) else None


def _text(value: Any) -> str | None:
    return clean(value) if isinstance(value, str) else None


def _flag(value: Any) -> bool | None:
    return value if isinstance(value, bool) else None


def _object(value: Any) -> dict[str, Any] | None:
    return _plain(value) if isinstance(value, dict) else None


def _event(value: Any) -> Event | None:
    if not isinstance(value, list | tuple) or len(value) != 4:
        return None
    stage, batch, begin, end = _text(value[0]), _count(value[1]), *map(_number, value[2:])
    if stage is None or batch is None or begin is None or end is None:
        return None
    if not (math.isfinite(begin) and math.isfinite(end)):
        return None
    return stage, batch, begin, end


_KINDS: dict[Any, tuple[str, Callable[[Any], Any]]] = {
    float: ("a number", _number),
    int: ("a whole number", _count),
    str: ("a text", _text),
    bool: ("true or false", _flag),
    dict[str, Any]: ("an object", _object),
    Event: ("[stage, batch, begin, end]", _event),
}
"""What was expected, where it returns None; a dict's members are only shown."""
