"""GPU: how busy it is, from the driver's own library (NVML); no Python package is needed for it."""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

_LIBRARY = "libnvidia-ml.so.1"
_SUCCESS = 0


class _Utilization(ctypes.Structure):
    """nvmlUtilization_t, in percent."""

    _fields_ = [("gpu", ctypes.c_uint), ("memory", ctypes.c_uint)]


class GpuMeter:
    """One GPU, as the driver sees it. Thread-safe, as NVML is."""

    def __init__(self, library: Any, device: ctypes.c_void_p) -> None:
        self._library = library
        self._device = device

    @classmethod
    def find(cls, uuid: str | None = None, library: Any = None) -> GpuMeter | None:
        """The GPU of this UUID, else the machine's first; None where none can be asked.

        By UUID, since CUDA and the driver may number GPUs differently. `library`: NVML's functions,
        in place of the driver's.
        """
        nvml = library or _nvml()
        if nvml is None:
            return None
        device = ctypes.c_void_p()
        if uuid is None:
            code = nvml.nvmlDeviceGetHandleByIndex_v2(ctypes.c_uint(0), ctypes.byref(device))
        else:
            name = ctypes.c_char_p(f"GPU-{uuid}".encode())
            code = nvml.nvmlDeviceGetHandleByUUID(name, ctypes.byref(device))
        meter = cls(nvml, device)
        # Some GPUs do not tell: parts of one (MIG), some virtual ones.
        return meter if code == _SUCCESS and meter.share() is not None else None

    def share(self) -> float | None:
        """The share of the last moment (up to a second) in which a kernel ran; None: not known."""
        found = _Utilization()
        code = self._library.nvmlDeviceGetUtilizationRates(self._device, ctypes.byref(found))
        return found.gpu / 100 if code == _SUCCESS else None

    def gauge(self) -> dict[str, float]:
        """For the monitor."""
        share = self.share()
        return {} if share is None else {"gpu_share": share}


@cache
def _nvml() -> Any:
    """The library, ready for use; None where there is none, or no driver behind it."""
    try:
        library = ctypes.CDLL(_LIBRARY)
        return library if library.nvmlInit_v2() == _SUCCESS else None
    except (OSError, AttributeError):  # AttributeError: too old to have these functions
        return None
