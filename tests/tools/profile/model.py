"""What a profile means, computed the slow way: batches are lists of node ids, one by one."""

from __future__ import annotations

from collections import Counter
from itertools import combinations

Batches = list[list[int]]


def distinct(batch: list[int]) -> list[int]:
    """In the order of last appearances."""
    return list(reversed(dict.fromkeys(reversed(batch))))


def counts(batches: Batches) -> Counter[int]:
    return Counter(row for batch in batches for row in set(batch))


def reuse_batches(batches: Batches) -> Counter[int]:
    last: dict[int, int] = {}
    found: Counter[int] = Counter()
    for t, batch in enumerate(batches):
        found.update(t - last[row] for row in set(batch) if row in last)
        last.update((row, t) for row in batch)
    return found


def reuse_rows(batches: Batches) -> Counter[int]:
    """Rows that were used after a row's last use and before the batch that uses it again."""
    history: list[int] = []
    found: Counter[int] = Counter()
    for batch in batches:
        for row in set(batch):
            if row in history:
                after = history[len(history) - history[::-1].index(row) :]
                found[len(set(after))] += 1
        history += batch
    return found


def static_misses(batches: Batches, kept: set[int]) -> int:
    return sum(len(set(batch) - kept) for batch in batches)


def best_static_misses(batches: Batches, slots: int) -> int:
    rows = sorted(counts(batches))
    sets = combinations(rows, min(slots, len(rows)))
    return min(static_misses(batches, set(kept)) for kept in sets)


def lru_misses(batches: Batches, slots: int) -> int:
    cached: list[int] = []  # the last used is last
    misses = 0
    for batch in batches:
        misses += len(set(batch) - set(cached))
        rows = distinct(batch)
        cached = [row for row in cached if row not in rows] + rows
        cached = cached[len(cached) - min(slots, len(cached)) :]
    return misses


def belady_misses(batches: Batches, slots: int, cached: set[int]) -> int:
    """Row by row: after each batch, the rows whose next use is farthest go."""
    misses = 0
    for t, batch in enumerate(batches):
        misses += len(set(batch) - cached)
        cached = nearest(cached | set(batch), batches[t + 1 :], slots)
    return misses


def nearest(rows: set[int], future: Batches, slots: int) -> set[int]:
    def next_use(row: int) -> int:
        return next((t for t, batch in enumerate(future) if row in batch), len(future))

    return set(sorted(rows, key=next_use)[:slots])


def least_misses(batches: Batches, slots: int, cached: frozenset[int]) -> int:
    """Of all that a cache could do: it keeps any `slots` of what it holds and of the batch."""
    if not batches:
        return 0
    batch = set(batches[0])
    rows = sorted(cached | batch)
    choices = combinations(rows, min(slots, len(rows)))
    rest = min(least_misses(batches[1:], slots, frozenset(kept)) for kept in choices)
    return len(batch - cached) + rest


def requests(batch: list[int], base: int, row_bytes: int, gap_bytes: int) -> list[int]:
    """Pages of each request for the rows of a batch."""
    first, last = base // 4096, 0
    pages = set()
    for row in batch:
        first = (base + row * row_bytes) // 4096
        last = (base + (row + 1) * row_bytes - 1) // 4096
        pages |= set(range(first, last + 1))
    runs: list[list[int]] = []
    for page in sorted(pages):
        if runs and (page - runs[-1][1] - 1) * 4096 <= gap_bytes:
            runs[-1][1] = page
        else:
            runs.append([page, page])
    return [end - begin + 1 for begin, end in runs]
