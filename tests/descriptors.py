"""Descriptors: what a process has open -> how many files, and how many pages of memory."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

# Of a topology through the page cache at rest: kKeptPages (cpp/disk/guarded_map.h) for each of its
# two arrays.
MOST_PAGES = 2 * 8


class Descriptors(NamedTuple):
    files: int
    pages: int
    """Pages of memory that a topology has for its threads: it makes one when more of them copy at a
    time than ever before, which may be in any epoch, and keeps it."""


def descriptors() -> Descriptors:
    """Those of this process."""
    opened = [os.readlink(path) for path in Path("/proc/self/fd").iterdir() if path.exists()]
    pages = sum(path.startswith("/memfd:outcrop") for path in opened)
    return Descriptors(len(opened) - pages, pages)
