"""Read how much memory of a GPU is used, as `nvidia-smi` and DCGM say it."""

from __future__ import annotations

from typing import Any


def device_memory(nvml: Any, handle: Any) -> Any:
    """Return NVML's `total`, `free`, `used` and `reserved` bytes of a GPU.

    The second version of the call does not count what the driver reserves as used: 615 MiB of an H200. An old driver or
    an old `nvidia-ml-py` only has the first one, which does, and has no `reserved`.
    """
    try:
        return nvml.nvmlDeviceGetMemoryInfo(handle, nvml.nvmlMemory_v2)
    except (nvml.NVMLError, AttributeError, TypeError):
        return nvml.nvmlDeviceGetMemoryInfo(handle)
