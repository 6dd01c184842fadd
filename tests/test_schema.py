"""The schema: what fits comes back typed; what does not is named by its place."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outcrop.errors import CorruptError, OptionError
from outcrop.schema import AtLeast, Between, Count, Made, expected, parse, parse_json, shown


def _shouted(value: Any) -> str:
    return str.upper(value)  # TypeError where it is no text


@dataclass(frozen=True)
class Part:
    name: str
    share: Annotated[float, Between(0, 1)] = 0.5


@dataclass(frozen=True)
class Whole:
    count: Count
    kind: Literal["a", "b"]
    parts: list[Part]
    named: dict[str, Part | None] = field(default_factory=dict)
    pair: tuple[int, str] = (0, "")
    seed: Annotated[int, Between(0, 2**64 - 1)] = 0
    upper: Annotated[str, Made(_shouted, "text to shout")] = ""
    maybe: int | str | None = None
    number: float = 0.0
    rest: Any = None


def test_values_come_back_typed() -> None:
    values = {
        "count": 3,
        "kind": "b",
        "parts": [{"name": "x", "share": 1}],
        "named": {"y": None, "z": {"name": "z"}},
        "pair": [1, "one"],
        "seed": 2**64 - 1,
        "upper": "loud",
        "rest": [float("nan")],
    }
    whole = parse(Whole, values, "f")
    assert whole.parts == [Part("x", 1.0)] and type(whole.parts[0].share) is float
    assert whole.named == {"y": None, "z": Part("z")}
    assert (whole.pair, whole.seed, whole.upper) == ((1, "one"), 2**64 - 1, "LOUD")


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("count", -1, "f: count must be a whole number of at least 0 (got -1)"),
        ("count", True, "f: count must be a whole number of at least 0 (got True)"),
        ("count", 1.0, "f: count must be a whole number of at least 0 (got 1.0)"),
        ("count", 2**63, f"f: count must be a whole number of at least 0 (got {2**63})"),
        (
            "count",
            2**9999,
            "count must be a whole number of at least 0 (got a whole num",
        ),
        ("kind", "c", "f: kind must be one of a, b (got 'c')"),
        ("kind", [], "f: kind must be one of a, b (got [])"),
        ("parts", {}, "f: parts must be a list (got {})"),
        ("parts", [3], "f: parts[0] must be an object (got 3)"),
        ("parts", [{}], "f: parts[0].name is missing"),
        ("parts", [{"name": "x", "nam": 1}], "f: parts[0] has no field 'nam'; there are name, sha"),
        (
            "parts",
            [{"name": "x", "share": 2}],
            "f: parts[0].share must be a number from 0 to 1",
        ),
        (
            "parts",
            [{"name": "x", "share": float("nan")}],
            "share must be a number from 0 to 1 (got",
        ),
        (
            "parts",
            [{"name": "x", "share": 10**400}],
            "f: parts[0].share must be a number from 0 to",
        ),
        ("named", {"y": {"name": 3}}, "f: named.y.name must be text (got 3)"),
        ("named", {"y\n": 3}, r"f: named.'y\n' must be an object or none (got 3)"),
        ("named", {3: None}, "f: a name in named must be text (got 3)"),
        ("pair", [1], "f: pair must have 2 entries (got [1])"),
        ("seed", 2**64, "f: seed must be a whole number from 0 to 18446744073709551615"),
        ("upper", 3, "f: upper must be text to shout (got 3)"),
        ("upper", None, "f: upper must be text to shout (got None)"),
        ("maybe", 1.5, "f: maybe must be a whole number or text or none (got 1.5)"),
        ("number", float("nan"), "f: number must be a number (got nan)"),
        ("number", float("inf"), "f: number must be a number (got inf)"),
        ("number", False, "f: number must be a number (got False)"),
        ("more", 1, "f: has no field 'more'; there are count, kind"),
    ],
)
def test_what_does_not_fit_is_named(name: str, value: Any, message: str) -> None:
    values = {"count": 1, "kind": "a", "parts": []}
    with pytest.raises(CorruptError, match=re.escape(message)):
        parse(Whole, {**values, name: value}, "f")


def test_errors_are_of_the_callers_type() -> None:
    with pytest.raises(OptionError, match=r"run.yaml: must be an object \(got 3\)"):
        parse(Part, 3, "run.yaml", error=OptionError)


def test_an_error_that_a_dataclass_raises_itself_passes() -> None:
    @dataclass
    class Even:
        number: int

        def __post_init__(self) -> None:
            if self.number % 2:
                raise OptionError("odd")

    with pytest.raises(OptionError, match=r"^odd$"):
        parse(Even, {"number": 3}, "f")


@pytest.mark.parametrize("data", [b"", b"{", b"\xff", b"[" * 10**6, b"9" * 5000])
def test_what_is_not_json_is_named(data: bytes) -> None:
    with pytest.raises(CorruptError, match="f: not readable"):
        parse_json(data, "f")


_plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.integers(), inner),
    max_leaves=10,
)


@given(values=st.dictionaries(st.sampled_from(list(Whole.__dataclass_fields__)), _plain))
def test_any_plain_value_is_parsed_or_refused(values: dict[str, Any]) -> None:
    try:
        assert isinstance(parse(Whole, values, "f"), Whole)
    except CorruptError as error:
        assert str(error).startswith("f: ") and len(str(error)) < 300 and str(error).isprintable()


@given(value=_plain)
def test_a_shown_value_is_short_and_printable(value: Any) -> None:
    assert len(shown(value)) < 200 and shown(value).isprintable()


def test_what_would_be_accepted_is_said() -> None:
    assert expected(int | None) == "a whole number or none"
    assert expected(Annotated[int, AtLeast(2)]) == "a whole number of at least 2"
    assert expected(Literal["x"]) == "'x'"
