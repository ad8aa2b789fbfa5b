"""Read the values of `nvidia-smi -q` from NVML, under the same names, if that tool is missing; `-m` prints JSON.

In: the driver through `nvidia-ml-py`. Out: `{"driver": .., "cuda": .., "gpus": [{"address": .., "values": {path:
text}}]}`. A value that the driver does not give is absent. Nothing is changed on the GPUs.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

from flatout.probe.device_memory import device_memory

_ON = {0: "Disabled", 1: "Enabled"}
_YES = {0: "No", 1: "Yes"}
_COMPUTE_MODES = {0: "Default", 1: "Exclusive_Thread", 2: "Prohibited", 3: "Exclusive_Process"}
# nvmlClocksEventReasons, by their names in nvidia-smi.
_REASONS = {
    "SW Power Cap": 0x4,
    "HW Slowdown": 0x8,
    "SW Thermal Slowdown": 0x20,
    "HW Thermal Slowdown": 0x40,
    "HW Power Brake Slowdown": 0x80,
}
# nvmlMemoryErrorType, nvmlEccCounterType, nvmlMemoryLocation.
_ECC = {
    f"ECC Errors/{period}/{place} {kind}": (kind_number, period_number, place_number)
    for period, period_number in (("Volatile", 0), ("Aggregate", 1))
    for place, place_number in (("SRAM", 7), ("DRAM", 2))
    for kind, kind_number in (("Correctable", 0), ("Uncorrectable", 1))
}


def gpu_values(nvml: Any) -> dict[str, Any]:
    """Read the values through `nvml`, the module `pynvml`. Raises its NVMLError if there is no driver."""
    nvml.nvmlInit()
    handles = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]
    return {
        "driver": _read(nvml, lambda: _text(nvml.nvmlSystemGetDriverVersion())),
        "cuda": _read(nvml, lambda: _version(nvml.nvmlSystemGetCudaDriverVersion())),
        "gpus": [
            {"address": _text(nvml.nvmlDeviceGetPciInfo(handle).busId).lower(), "values": _values(nvml, handle)}
            for handle in handles
        ],
    }


def _values(nvml: Any, handle: Any) -> dict[str, str]:
    reads: dict[str, Callable[[], str]] = {
        "Product Name": lambda: _text(nvml.nvmlDeviceGetName(handle)),
        "VBIOS Version": lambda: _text(nvml.nvmlDeviceGetVbiosVersion(handle)),
        "Persistence Mode": lambda: _ON[nvml.nvmlDeviceGetPersistenceMode(handle)],
        "MIG Mode/Current": lambda: _ON[nvml.nvmlDeviceGetMigMode(handle)[0]],
        "Compute Mode": lambda: _COMPUTE_MODES[nvml.nvmlDeviceGetComputeMode(handle)],
        "PCI/GPU Link Info/PCIe Generation/Max": lambda: str(nvml.nvmlDeviceGetMaxPcieLinkGeneration(handle)),
        "PCI/GPU Link Info/PCIe Generation/Current": lambda: str(nvml.nvmlDeviceGetCurrPcieLinkGeneration(handle)),
        "PCI/GPU Link Info/Link Width/Max": lambda: f"{nvml.nvmlDeviceGetMaxPcieLinkWidth(handle)}x",
        "PCI/GPU Link Info/Link Width/Current": lambda: f"{nvml.nvmlDeviceGetCurrPcieLinkWidth(handle)}x",
        "PCI/Replays Since Reset": lambda: str(nvml.nvmlDeviceGetPcieReplayCounter(handle)),
        "FB Memory Usage/Total": lambda: _mib(nvml.nvmlDeviceGetMemoryInfo(handle).total),
        "FB Memory Usage/Used": lambda: _mib(device_memory(nvml, handle).used),
        "Utilization/GPU": lambda: f"{nvml.nvmlDeviceGetUtilizationRates(handle).gpu} %",
        "Temperature/GPU Current Temp": lambda: f"{nvml.nvmlDeviceGetTemperature(handle, 0)} C",
        "Temperature/GPU Slowdown Temp": lambda: f"{nvml.nvmlDeviceGetTemperatureThreshold(handle, 1)} C",
        "Temperature/GPU Shutdown Temp": lambda: f"{nvml.nvmlDeviceGetTemperatureThreshold(handle, 0)} C",
        "GPU Power Readings/Current Power Limit": lambda: _watts(nvml.nvmlDeviceGetEnforcedPowerLimit(handle)),
        "GPU Power Readings/Default Power Limit": lambda: _watts(
            nvml.nvmlDeviceGetPowerManagementDefaultLimit(handle)
        ),
        "Clocks/SM": lambda: f"{nvml.nvmlDeviceGetClockInfo(handle, 1)} MHz",
        "Applications Clocks/Graphics": lambda: f"{nvml.nvmlDeviceGetApplicationsClock(handle, 0)} MHz",
        "Default Applications Clocks/Graphics": lambda: f"{nvml.nvmlDeviceGetDefaultApplicationsClock(handle, 0)} MHz",
    }  # fmt: skip
    for path, (kind, period, place) in _ECC.items():
        reads[path] = _counter(nvml, handle, kind, period, place)
    found = {path: text for path, read in reads.items() if (text := _read(nvml, read)) is not None}
    return found | _reasons(nvml, handle) | _remapped(nvml, handle)


def _counter(nvml: Any, handle: Any, kind: int, period: int, place: int) -> Callable[[], str]:
    return lambda: str(nvml.nvmlDeviceGetMemoryErrorCounter(handle, kind, period, place))


def _reasons(nvml: Any, handle: Any) -> dict[str, str]:
    bits = _read(nvml, lambda: int(nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle)))
    if bits is None:
        return {}
    return {f"Clocks Event Reasons/{name}": "Active" if bits & bit else "Not Active" for name, bit in _REASONS.items()}


def _remapped(nvml: Any, handle: Any) -> dict[str, str]:
    rows = _read(nvml, lambda: nvml.nvmlDeviceGetRemappedRows(handle))
    if rows is None:
        return {}
    correctable, uncorrectable, is_pending, has_failed = rows
    return {
        "Remapped Rows/Correctable Error": str(correctable),
        "Remapped Rows/Uncorrectable Error": str(uncorrectable),
        "Remapped Rows/Pending": _YES[int(is_pending)],
        "Remapped Rows/Remapping Failure Occurred": _YES[int(has_failed)],
    }


def _read(nvml: Any, read: Callable[[], Any]) -> Any:
    """Return the value; None if the driver or an old `nvidia-ml-py` does not provide it, or if the value is unknown."""
    try:
        return read()
    except (nvml.NVMLError, AttributeError, KeyError, UnicodeDecodeError):
        return None


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def _version(number: int) -> str:
    """Format a CUDA version: 12040 is 12.4."""
    return f"{number // 1000}.{number % 1000 // 10}"


def _mib(num_bytes: int) -> str:
    return f"{num_bytes >> 20} MiB"


def _watts(milliwatts: int) -> str:
    return f"{milliwatts / 1e3:.2f} W"


def main() -> int:
    """Print the values; without any, print the reason on standard error and return 1."""
    try:
        import pynvml
    except ImportError:
        print("the package nvidia-ml-py is not installed", file=sys.stderr)
        return 1
    try:
        print(json.dumps(gpu_values(pynvml)))
    except pynvml.NVMLError as error:
        print(f"NVML reports nothing: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
