"""Commands of this environment, caged or not."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from outcrop.errors import CageError
from outcrop.tools.cage import Caged
from outcrop.tools.cage import run_caged as run

OUTCROP = [str(Path(sys.executable).parent / "outcrop")]
"""The command line of this environment."""


def run_caged(command: list[str], limit_bytes: int) -> Caged:
    """The test is skipped where this process may not make control groups."""
    try:
        return run(command, limit_bytes)
    except CageError as error:
        pytest.skip(str(error))
