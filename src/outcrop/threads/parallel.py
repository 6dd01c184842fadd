"""Ordered parallel map: work on several threads, results in order, a bounded number in memory."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


def cpu_count() -> int:
    """CPUs that this process may use."""
    return len(os.sched_getaffinity(0))


def ordered_map(
    function: Callable[[Item], Result], items: Iterable[Item], *, threads: int | None = None
) -> Iterator[Result]:
    """function(item) for each item, in order; at most threads + 1 results exist at a time.

    For functions that release the GIL. An exception ends the map; nothing is left running.
    """
    threads = threads or cpu_count()
    with ThreadPoolExecutor(threads) as pool:
        pending: deque[Future[Result]] = deque()
        try:
            for item in items:
                pending.append(pool.submit(function, item))
                if len(pending) > threads:
                    yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()
        finally:
            for future in pending:
                future.cancel()
