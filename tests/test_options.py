"""Sizes as people write them, and options that are checked at the door."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Literal

import pytest

from outcrop.errors import OptionError
from outcrop.options import DiskOptions, format_size, options_from_text, parse_count, parse_size
from outcrop.strategies import strategy_named


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("8GB", 8_000_000_000),
        ("512MiB", 512 << 20),
        ("64 kB", 64_000),
        ("1.5G", 1_500_000_000),
        ("4096", 4096),
        ("10b", 10),
        (4096, 4096),
        ("0", 0),
        ("2TiB", 2 << 40),
    ],
)
def test_sizes(text: str | int, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize(
    "text",
    [
        "",
        "GB",
        "8XB",
        "-1",
        "1e9",
        "8 GB please",
        "9" * 5000,
        "9999P",
        "1\u212a",
        1 << 63,
        True,
        -5,
        1.5,
        None,
    ],
)
def test_what_is_no_size_is_refused_with_its_value(text: Any) -> None:
    with pytest.raises(OptionError, match="got"):
        parse_size(text)


def test_counts() -> None:
    assert parse_count("1M") == 1_000_000
    assert parse_count("20K") == 20_000
    assert parse_count("1.5G") == 1_500_000_000
    assert parse_count("1B") == parse_count("1 b") == parse_count("1G") == 10**9
    assert parse_count("2T") == 2 * 10**12
    assert parse_count("9007199254740993") == 9007199254740993  # no float holds it


@pytest.mark.parametrize("text", ["8GB", "1KB", "1GiB", "1.5", "1.0001K", "9" * 60])
def test_what_is_no_whole_count_is_refused(text: str) -> None:
    with pytest.raises(OptionError, match="got"):
        parse_count(text)


def test_format_size() -> None:
    assert [format_size(n) for n in (0, 999, 1500, 2_400_000_000, 3 * 10**12)] == [
        "0 B",
        "999 B",
        "1.5 kB",
        "2.4 GB",
        "3.0 TB",
    ]


@pytest.mark.parametrize(
    "options",
    [
        {"engine": "aio"},
        {"access": "mmap"},
        {"workers": 0},
        {"queue_depth": 5000},
        {"unit_bytes": 1000},
        {"gap_bytes": -1},
        {"max_request_bytes": 100_000},
        {"max_request_bytes": 64 << 10, "unit_bytes": 1 << 20},
    ],
)
def test_impossible_disk_options_are_refused(options: dict[str, object]) -> None:
    with pytest.raises(OptionError, match="got"):
        DiskOptions(**options)  # type: ignore[arg-type]


@dataclass(frozen=True)
class Some:
    count: int = 1
    share: float = 0.5
    most: int | None = None
    mode: Literal["one", "two"] = "one"
    on: bool = False
    text: str = ""


def test_options_in_a_strategys_name() -> None:
    given = ["count=3", "share=0.25", "most=7", "mode=two", "on=true", "text=4KiB"]
    assert options_from_text(Some, given, "x") == Some(3, 0.25, 7, "two", True, "4KiB")
    assert options_from_text(Some, ["most=none", "on=false"], "x") == Some()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("speed=3", "x: no option 'speed'; it has count, share"),
        ("count=many", "x: count must be a whole number (got 'many')"),
        ("count", "x: count must be a whole number (got '')"),
        ("share=half", "x: share must be a number (got 'half')"),
        ("share=nan", "x: share must be a number (got 'nan')"),
        ("share=1e999", "x: share must be a number (got '1e999')"),
        ("count=9223372036854775808", "x: count must be a whole number (got '92"),
        ("count=1_000", "x: count must be a whole number (got '1_000')"),
        ("most=all", "x: most must be a whole number or none (got 'all')"),
        ("mode=three", "x: mode must be one of one, two (got 'three')"),
        ("on=maybe", "x: on must be true or false (got 'maybe')"),
        ("count=3,mode=two", "(got '3,mode=two'); options are separated by colons"),
    ],
)
def test_wrong_options_are_named(text: str, message: str) -> None:
    with pytest.raises(OptionError, match=re.escape(message)):
        options_from_text(Some, [text], "x")


def test_a_strategy_names_the_options_that_it_has() -> None:
    every = "device_cache, cache, verify_rows"
    with pytest.raises(OptionError, match=f"memory: no option 'threads'; it has {every}"):
        strategy_named("memory:threads=3")
    with pytest.raises(OptionError, match="threads must be 1 to 1024"):
        strategy_named("mmap:threads=0")
