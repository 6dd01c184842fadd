"""What the check for leaks finds, and what it takes for none."""

from __future__ import annotations

import pytest

from tests.descriptors import MOST_PAGES, Descriptors
from tests.soak.leaks import Held, check

_FIRST = [Held(100 << 20, 3, Descriptors(12, 4)), Held(101 << 20, 3, Descriptors(12, 5))]


def test_pages_that_a_topology_keeps_are_no_leak() -> None:
    check(Held(102 << 20, 3, Descriptors(12, MOST_PAGES)), _FIRST)


@pytest.mark.parametrize(
    ("last", "problem"),
    [
        (Held(101 << 20, 3, Descriptors(13, 5)), "13 open files, 12 at first"),
        (Held(101 << 20, 3, Descriptors(12, MOST_PAGES + 1)), "17 pages"),
        (Held(101 << 20, 4, Descriptors(12, 5)), "4 threads, 3 at first"),
        (Held(120 << 20, 3, Descriptors(12, 5)), "B more"),
    ],
    ids=["a file", "a page", "a thread", "memory"],
)
def test_one_more_than_at_first_is_a_leak(last: Held, problem: str) -> None:
    with pytest.raises(AssertionError, match=problem):
        check(last, _FIRST)
