"""Mutate: good values or bytes and a random generator -> ones with something wrong in them."""

from __future__ import annotations

import copy
import random
from typing import Any

Rng = random.Random

_ODD: list[Any] = [
    None, True, False, 0, 1, -1, 255, 2**31, 2**32 + 1, 2**53, 2**63 - 1, 2**63, -(2**63), 2**64,
    10**40, 0.5, -0.0, 1e308, float("nan"), float("inf"), "", "x", "x" * 5000, "\0", "\ud800",
    "\x1b[2J", "../../x", "/dev/zero", "/proc/self/mem", "none", "<f4", "<i8", ">i8", "|O", "V0",
    "<U9", [], {}, [[]], [None], [-1], [2**62, 2**62], ["x"], {"": None}, {"a": {"b": []}},
    [["a", "<f4"]], [["a", "|O"]], [["", "<f4", [2**31]]],
]  # fmt: skip


def odd_value(rng: Rng) -> Any:
    """A value that is wrong in most places."""
    if rng.random() < 0.05:
        deep: Any = 1
        for _ in range(rng.choice((10, 200))):
            deep = [deep]
        return deep
    return copy.deepcopy(rng.choice(_ODD))


def altered(values: Any, rng: Rng) -> Any:
    """A copy of JSON-like values with one to three changes."""
    values = copy.deepcopy(values)
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        places = list(_places(values))
        if not places:
            return odd_value(rng)
        holder, key = rng.choice(places)
        change = rng.random()
        if change < 0.15:
            del holder[key]
        elif change < 0.25 and isinstance(holder, dict):
            holder[rng.choice(("", "x", "dtype", "\0", "9"))] = odd_value(rng)
        elif change < 0.4:  # of the right type, and wrong here
            other_holder, other_key = rng.choice(places)
            holder[key] = copy.deepcopy(other_holder[other_key])
        elif change < 0.6 and isinstance(holder[key], int):
            holder[key] = rng.choice(
                (holder[key] + 1, holder[key] - 1, -holder[key], 2 * holder[key])
            )
        else:
            holder[key] = odd_value(rng)
    return values


def _places(values: Any) -> Any:
    items: Any = ()
    if isinstance(values, dict):
        items = values.items()
    elif isinstance(values, list):
        items = enumerate(values)
    for key, value in items:
        yield values, key
        yield from _places(value)


def altered_bytes(data: bytes, rng: Rng, tokens: tuple[bytes, ...] = ()) -> bytes:
    """A copy with one to eight changes; `tokens` are put in here and there."""
    changed = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 8))):
        at = rng.randrange(len(changed) + 1)
        what = rng.randrange(6)
        if what == 0 and at < len(changed):
            changed[at] ^= 1 << rng.randrange(8)
        elif what == 1:
            del changed[at : at + rng.choice((1, 2, 8, 100, 10**6))]
        elif what == 2:
            changed[at:at] = rng.randbytes(rng.choice((1, 4, 60)))
        elif what == 3:
            begin = rng.randrange(len(changed) + 1)
            changed[at:at] = changed[begin : begin + rng.randrange(1, 200)]
        elif what == 4 and tokens:
            token = rng.choice(tokens)
            changed[at : at + rng.choice((0, len(token)))] = token
        else:
            number = rng.choice((0, 1, 2**31, 2**32 - 1, 2**63 - 1, 2**64 - 1))
            changed[at : at + 8] = number.to_bytes(8, "little")
    return bytes(changed)
