"""Fixtures that all tests share."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from outcrop import _core
from outcrop.disk import Disk
from outcrop.options import DiskOptions

_COMMON = {"deadline": None, "suppress_health_check": list(HealthCheck)}
settings.register_profile("ci", max_examples=20, derandomize=True, **_COMMON)  # type: ignore[arg-type]
settings.register_profile("soak", max_examples=2000, **_COMMON)  # type: ignore[arg-type]
SOAK = os.environ.get("OUTCROP_SOAK") == "1"
"""Whether tests with a number of rounds should take many (make soak)."""
settings.load_profile("soak" if SOAK else "ci")

SHARED_DATA = Path(__file__).parents[2] / "shared" / "data"

ENGINES = ["pool"] if _core.uring_refusal() else ["uring", "pool"]


@pytest.fixture(params=["uring", "pool"])
def engine(request: pytest.FixtureRequest) -> str:
    """Each engine that can run here."""
    if request.param not in ENGINES:
        pytest.skip(f"no io_uring here: {_core.uring_refusal()}")
    return str(request.param)


@pytest.fixture
def disk(engine: str) -> Iterator[Disk]:
    with Disk(DiskOptions(engine=engine)) as made:  # type: ignore[arg-type]
        yield made


@pytest.fixture
def shared_data() -> Path:
    """The folder of small real graphs."""
    if not SHARED_DATA.is_dir():
        pytest.skip(f"no real graphs: {SHARED_DATA} is absent")
    return SHARED_DATA
