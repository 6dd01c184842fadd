"""The path of a batch: the files that it passes, as ARCHITECTURE.md lists them."""

from __future__ import annotations

import re
import sys
import threading
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import outcrop
from outcrop.loader import NeighborLoader
from tests.stores import make_random_store

PACKAGE = Path(outcrop.__file__).parent
PAGE = Path(__file__).parents[2] / "ARCHITECTURE.md"
# At most so many, meters not counted.
MOST = {"direct": 9, "diskgnn": 13}


def file_of(frame: FrameType) -> str | None:
    """Within the package; None: of others."""
    path = Path(frame.f_code.co_filename)
    return str(path.relative_to(PACKAGE)) if path.is_relative_to(PACKAGE) else None


def metered(frame: FrameType | None) -> bool:
    """Whether it is a meter's, or called by one."""
    while frame is not None:
        if (file_of(frame) or "").startswith("observe/"):
            return True
        frame = frame.f_back
    return False


def files_passed(loader: Any) -> set[str]:
    """Every file with a function that is called, on any thread, from `__iter__` to the last one."""
    found = set()

    def look(frame: FrameType, event: str, _: Any) -> None:
        name = file_of(frame) if event == "call" else None
        if name is not None and name not in found and not metered(frame):
            found.add(name)

    threading.setprofile(look)
    sys.setprofile(look)
    try:
        for batch in loader:
            del batch
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return found


def listed(strategy: str) -> list[str]:
    """As the page has them, one in a line."""
    (block,) = re.findall(rf"```\n# {strategy}\n(.*?)```", PAGE.read_text(), re.DOTALL)
    return [line.split()[0] for line in block.splitlines()]


@pytest.mark.parametrize("strategy", MOST)
@pytest.mark.parametrize("encoding", ["float32", "float16"])
def test_a_batch_passes_the_files_that_the_page_lists(
    tmp_path: Path, strategy: str, encoding: str
) -> None:
    with make_random_store(
        tmp_path / "g", 500, 4000, dim=9, feature_dtype=encoding, edge_ids=True
    ) as store:
        loader = NeighborLoader(
            store, [4, 3], "train", batch_size=20, shuffle=True, strategy=strategy, epochs=1,
            memory="100MB",
        )  # fmt: skip
        found = files_passed(loader)
        loader.close()
    assert sorted(found) == sorted(listed(strategy))
    assert len(found) <= MOST[strategy]
