"""A stand-in for the module `pynvml`: GPUs whose counters a test chooses."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pynvml

MIB = 1 << 20


class FakeNvml:
    """Answers for handles that are dictionaries; what a dictionary lacks, the driver does not give."""

    NVMLError = pynvml.NVMLError

    def __getattr__(self, name: str) -> Any:
        if name.startswith(("NVML_", "nvmlMemory_")):
            return getattr(pynvml, name)
        if name.startswith("nvml"):
            return lambda handle, *arguments: self._answer(name, handle, arguments)
        raise AttributeError(name)

    def _answer(self, name: str, handle: dict[Any, Any], arguments: tuple[Any, ...]) -> Any:
        if name == "nvmlDeviceGetFieldValues":
            ((number, _),) = arguments[0]
            value = handle.get(number)
            return [SimpleNamespace(nvmlReturn=int(value is None), value=SimpleNamespace(ullVal=value))]
        key = (name, *arguments) if (name, *arguments) in handle else name
        if key not in handle:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        return handle[key]


def h100(index: int = 0) -> dict[Any, Any]:
    """Return a GPU that gives every counter."""
    return {
        "nvmlDeviceGetName": "NVIDIA H100 80GB HBM3",
        "nvmlDeviceGetUUID": f"GPU-{index + 1:08x}-0000-0000-0000-000000000000",
        "nvmlDeviceGetPciInfo": SimpleNamespace(busId=f"00000000:{0x1B + index:02X}:00.0"),
        "nvmlDeviceGetMemoryInfo": SimpleNamespace(total=81559 * MIB, free=1559 * MIB, used=80000 * MIB),
        ("nvmlDeviceGetMemoryInfo", pynvml.nvmlMemory_v2): SimpleNamespace(
            total=81559 * MIB, free=1559 * MIB, used=79388 * MIB, reserved=612 * MIB
        ),
        "nvmlDeviceGetUtilizationRates": SimpleNamespace(gpu=97, memory=41),
        ("nvmlDeviceGetClockInfo", pynvml.NVML_CLOCK_SM): 1755,
        ("nvmlDeviceGetClockInfo", pynvml.NVML_CLOCK_MEM): 2619,
        "nvmlDeviceGetTemperature": 61,
        "nvmlDeviceGetPowerUsage": 642_500,
        "nvmlDeviceGetTotalEnergyConsumption": 9_876_543_210,
        "nvmlDeviceGetPcieReplayCounter": 3,
        "nvmlDeviceGetRemappedRows": (2, 1, 0, 0),
        ("nvmlDeviceGetTotalEccErrors", 0, 0): 5,
        ("nvmlDeviceGetTotalEccErrors", 1, 0): 0,
        ("nvmlDeviceGetTotalEccErrors", 0, 1): 50,
        ("nvmlDeviceGetTotalEccErrors", 1, 1): 1,
        pynvml.NVML_FI_DEV_MEMORY_TEMP: 72,
        pynvml.NVML_FI_DEV_PERF_POLICY_POWER: 10**9,
        pynvml.NVML_FI_DEV_PERF_POLICY_THERMAL: 2 * 10**9,
        pynvml.NVML_FI_DEV_PERF_POLICY_SYNC_BOOST: 0,
        pynvml.NVML_FI_DEV_PERF_POLICY_BOARD_LIMIT: 0,
        pynvml.NVML_FI_DEV_PERF_POLICY_LOW_UTILIZATION: 0,
        pynvml.NVML_FI_DEV_PERF_POLICY_RELIABILITY: 0,
        pynvml.NVML_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL: 7,
        pynvml.NVML_FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL: 0,
        pynvml.NVML_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL: 0,
        pynvml.NVML_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL: 0,
    }
