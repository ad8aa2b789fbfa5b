"""Read NVIDIA GPUs through NVML (`nvidia-ml-py`); counters that the driver does not give are absent.

In: the driver. Out: plain dictionaries for the sampler's lines. Without the package, a driver or a GPU there is no
entry at all. Nothing is changed on the GPUs.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

from flatout.probe.device_memory import device_memory
from flatout.probe.gpu_counters import GpuCounters, read_gpu_counters
from flatout.probe.gpu_health import read_gpu_health
from flatout.probe.peer_paths import slowest_peer_path
from flatout.probe.xids import Xids
from flatout.records.gpu_health import GpuHealth

# NVML's bits for the reasons why clocks are lower than requested (nvmlClocksEventReasons); "idle" is not throttling.
THROTTLE_REASONS = {
    0x2: "application_clocks",
    0x4: "power_cap",
    0x8: "hardware_slowdown",
    0x10: "sync_boost",
    0x20: "software_thermal",
    0x40: "hardware_thermal",
    0x80: "power_brake",
    0x100: "display_clocks",
}
# The default PCIe query monitors the bus for 20 ms per direction, so only every tenth sample includes it.
_SLOW_EVERY = 10


class Gpus:
    """All GPUs of this host that NVML shows, by their NVML index."""

    def __init__(self) -> None:
        self._nvml: Any = None
        self._handles: list[Any] = []
        self._links: dict[tuple[int, str], tuple[float, int]] = {}
        self._num_reads = 0
        try:
            import pynvml
        except ImportError:
            self.problem: str | None = "the package nvidia-ml-py is not installed"
            return
        try:
            pynvml.nvmlInit()
            self._handles = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())]
        except pynvml.NVMLError as error:
            self.problem = f"NVML reports nothing: {error}"
            return
        self._nvml = pynvml
        self.problem = None

    def xids(self) -> Xids:
        """Return a source of the errors that are logged from now on."""
        return Xids(self._nvml, self._handles)

    def counters(self) -> list[GpuCounters]:
        """Return each GPU's counters under dcgm-exporter's names."""
        return read_gpu_counters(self._nvml, self._handles)

    def health(self) -> list[GpuHealth]:
        """Return what says how well each GPU is."""
        return read_gpu_health(self._nvml, self._handles)

    def processes(self) -> list[list[int]]:
        """Return the processes that compute on each GPU."""
        return [self._processes(handle) for handle in self._handles]

    def _processes(self, handle: Any) -> list[int]:
        try:
            return [process.pid for process in self._nvml.nvmlDeviceGetComputeRunningProcesses(handle)]
        except (self._nvml.NVMLError, AttributeError):
            return []

    def facts(self) -> list[dict[str, Any]]:
        """Return the facts that do not change: name, UUID, memory, limits."""
        return [self._facts(index, handle) for index, handle in enumerate(self._handles)]

    def _facts(self, index: int, handle: Any) -> dict[str, Any]:
        nvml = self._nvml
        return self._entries(
            index=lambda: index,
            name=lambda: nvml.nvmlDeviceGetName(handle),
            uuid=lambda: nvml.nvmlDeviceGetUUID(handle),
            memory_bytes=lambda: nvml.nvmlDeviceGetMemoryInfo(handle).total,
            power_limit_w=lambda: nvml.nvmlDeviceGetEnforcedPowerLimit(handle) / 1e3,
            max_sm_clock_hz=lambda: nvml.nvmlDeviceGetMaxClockInfo(handle, nvml.NVML_CLOCK_SM) * 1e6,
            max_memory_clock_hz=lambda: nvml.nvmlDeviceGetMaxClockInfo(handle, nvml.NVML_CLOCK_MEM) * 1e6,
            pcie_generation=lambda: nvml.nvmlDeviceGetCurrPcieLinkGeneration(handle),
            pcie_width=lambda: nvml.nvmlDeviceGetCurrPcieLinkWidth(handle),
            driver=lambda: nvml.nvmlSystemGetDriverVersion(),
            peer_path=lambda: slowest_peer_path(nvml, self._handles, index),
        )

    def clocks(self) -> list[dict[str, Any]]:
        """Return each GPU's clock, its highest clock, and why it is lower; this is fast to read."""
        nvml = self._nvml
        return [
            self._entries(
                uuid=partial(nvml.nvmlDeviceGetUUID, handle),
                max_sm_clock_hz=partial(self._clock_hz, nvml.nvmlDeviceGetMaxClockInfo, handle),
                sm_clock_hz=partial(self._clock_hz, nvml.nvmlDeviceGetClockInfo, handle),
                throttle=partial(self._throttle, handle),
            )
            for handle in self._handles
        ]

    def _clock_hz(self, read: Callable[[Any, int], int], handle: Any) -> float:
        return read(handle, self._nvml.NVML_CLOCK_SM) * 1e6

    def _throttle(self, handle: Any) -> list[str]:
        return _reasons(self._nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle))

    def read(self) -> list[dict[str, Any]]:
        """Return one entry per GPU, in the order of `facts`."""
        is_slow = self._num_reads % _SLOW_EVERY == 0
        self._num_reads += 1
        return [self._read(index, handle, is_slow) for index, handle in enumerate(self._handles)]

    def _read(self, index: int, handle: Any, is_slow: bool) -> dict[str, Any]:
        nvml = self._nvml
        entries = self._entries(
            busy_percent=lambda: nvml.nvmlDeviceGetUtilizationRates(handle).gpu,
            memory_busy_percent=lambda: nvml.nvmlDeviceGetUtilizationRates(handle).memory,
            memory_used_bytes=lambda: device_memory(nvml, handle).used,
            sm_clock_hz=lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM) * 1e6,
            memory_clock_hz=lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_MEM) * 1e6,
            power_w=lambda: nvml.nvmlDeviceGetPowerUsage(handle) / 1e3,
            temperature_c=lambda: nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU),
            throttle=lambda: _reasons(nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle)),
        )
        entries |= self._link_rates(index, handle)
        if is_slow:
            entries |= self._entries(
                pcie_sent_bytes_per_s=lambda: (
                    nvml.nvmlDeviceGetPcieThroughput(handle, nvml.NVML_PCIE_UTIL_TX_BYTES) * 1e3
                ),
                pcie_received_bytes_per_s=lambda: (
                    nvml.nvmlDeviceGetPcieThroughput(handle, nvml.NVML_PCIE_UTIL_RX_BYTES) * 1e3
                ),
            )
        return entries

    def _link_rates(self, index: int, handle: Any) -> dict[str, float]:
        """Return the NVLink traffic of all links; NVML counts KiB since the driver was loaded."""
        nvml, rates = self._nvml, {}
        for name, field in (
            ("nvlink_sent_bytes_per_s", "NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX"),
            ("nvlink_received_bytes_per_s", "NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX"),
        ):
            number = getattr(nvml, field, None)
            if number is None:
                continue
            count = self._entries(kib=partial(_field, nvml, handle, number)).get("kib")
            now = time.monotonic()
            if count is None:
                continue
            if (index, name) in self._links:
                then, before = self._links[index, name]
                if count >= before:
                    rates[name] = (count - before) * 1024 / (now - then)
            self._links[index, name] = (now, count)
        return rates

    def _entries(self, **reads: Callable[[], Any]) -> dict[str, Any]:
        """Return the values that the driver gives."""
        values = {}
        for name, read in reads.items():
            try:
                value = read()
            except (self._nvml.NVMLError, AttributeError, UnicodeDecodeError):
                continue
            if value is not None:
                values[name] = value.decode() if isinstance(value, bytes) else value
        return values


def _field(nvml: Any, handle: Any, number: int) -> int | None:
    """Return a field of all links together (scope: every bit set); None if this GPU has none."""
    (value,) = nvml.nvmlDeviceGetFieldValues(handle, [(number, 0xFFFFFFFF)])
    return int(value.value.ullVal) if value.nvmlReturn == 0 else None


def _reasons(bits: int) -> list[str]:
    return [name for bit, name in THROTTLE_REASONS.items() if bits & bit]
