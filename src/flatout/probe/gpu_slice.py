"""Find out what share of a GPU this process was given. In: the environment and NVML. Out: a `GpuSlice`.

Each sharing says itself what was asked for: MIG by the device's UUID, MPS and HAMi by variables. Without any of them,
the GPU is whole, and processes on it take turns. Nothing is changed.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flatout.records.sharing import GpuSlice

_MPS_PERCENT = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"
_MPS_PIPE = "CUDA_MPS_PIPE_DIRECTORY"
_HAMI_PERCENT = ("CUDA_DEVICE_SM_LIMIT", "CUDA_DEVICE_SM_LIMIT_0")


def gpu_slice(environment: Mapping[str, str] = os.environ, nvml: Any = None) -> GpuSlice:
    """Return the slice of the first visible GPU."""
    for name in ("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES"):
        first = environment.get(name, "").split(",")[0]
        if first.startswith("MIG-"):
            return GpuSlice(kind="mig", asked_share=_mig_share(first, nvml), source=f"{name}={first}")
    for name in _HAMI_PERCENT:
        share = _percent(environment.get(name))
        if share is not None:
            return GpuSlice(kind="hami", asked_share=share, source=f"{name}={environment[name]}")
    share = _percent(environment.get(_MPS_PERCENT))
    if share is not None:
        return GpuSlice(kind="mps", asked_share=share, source=f"{_MPS_PERCENT}={environment[_MPS_PERCENT]}")
    pipe = environment.get(_MPS_PIPE, "/tmp/nvidia-mps")
    if (Path(pipe) / "control").exists():
        return GpuSlice(kind="mps", asked_share=None, source=f"an MPS daemon at {pipe}")
    return GpuSlice(kind="whole", asked_share=None, source="neither MIG, MPS nor HAMi")


def _percent(text: str | None) -> float | None:
    """Return a percentage as a share; None if there is none, or it limits nothing."""
    try:
        share = float(text or "") / 100
    except ValueError:
        return None
    return share if 0 < share < 1 else None


def _mig_share(uuid: str, nvml: Any) -> float | None:
    """Return the instance's share of the GPU's slices; None if NVML does not give it."""
    try:
        if nvml is None:
            import pynvml

            nvml = pynvml
        nvml.nvmlInit()
        handle = nvml.nvmlDeviceGetHandleByUUID(uuid)
        whole = nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(handle)
        slices = nvml.nvmlDeviceGetAttributes(handle).gpuInstanceSliceCount
        most = nvml.nvmlDeviceGetMaxMigDeviceCount(whole)
    except ImportError:
        return None
    except nvml.NVMLError:
        return None
    return slices / most if most else None
