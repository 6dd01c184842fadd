"""The GPU's share: asked of the driver by UUID, and no column where nobody answers."""

from __future__ import annotations

import ctypes
from typing import Any

import pytest

from outcrop.observe import gpu_meter
from outcrop.observe.gpu_meter import GpuMeter

NOT_FOUND = 6  # nvmlReturn_t
NOT_SUPPORTED = 3
UUIDS = ["first", "second"]


class FakeNvml:
    """Two GPUs, 25 and 75 % busy, behind NVML's C signatures."""

    def __init__(self) -> None:
        self.code = 0

    def nvmlDeviceGetHandleByIndex_v2(self, index: Any, device: Any) -> int:  # noqa: N802
        device._obj.value = 1000 + index.value
        return 0

    def nvmlDeviceGetHandleByUUID(self, uuid: Any, device: Any) -> int:  # noqa: N802
        name = uuid.value.decode().removeprefix("GPU-")
        if name not in UUIDS:
            return NOT_FOUND
        device._obj.value = 1000 + UUIDS.index(name)
        return 0

    def nvmlDeviceGetUtilizationRates(self, device: Any, found: Any) -> int:  # noqa: N802
        found._obj.gpu, found._obj.memory = {1000: (25, 90), 1001: (75, 10)}[device.value]
        return self.code


def test_the_gpu_is_found_by_its_uuid_else_the_first_is_taken() -> None:
    first, second = GpuMeter.find(library=FakeNvml()), GpuMeter.find("second", FakeNvml())
    assert first is not None and first.gauge() == {"gpu_share": 0.25}
    assert second is not None and second.gauge() == {"gpu_share": 0.75}
    assert GpuMeter.find("third", FakeNvml()) is None


def test_a_gpu_that_does_not_tell_is_none() -> None:
    library = FakeNvml()
    meter = GpuMeter.find(library=library)
    library.code = NOT_SUPPORTED
    assert GpuMeter.find(library=library) is None
    assert meter is not None and meter.share() is None and meter.gauge() == {}


def test_without_the_drivers_library_there_is_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_meter, "_LIBRARY", "libno-such-driver.so")
    gpu_meter._nvml.cache_clear()
    try:
        assert GpuMeter.find() is None
    finally:
        gpu_meter._nvml.cache_clear()


def test_this_machines_gpu_tells_a_share() -> None:
    try:
        ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        pytest.skip("no NVIDIA driver here")
    meter = GpuMeter.find()
    if meter is None:
        pytest.skip("no GPU here that tells")
    share = meter.share()
    assert share is not None and 0 <= share <= 1
