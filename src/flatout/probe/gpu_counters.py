"""Read the counters of NVIDIA GPUs under the names of dcgm-exporter, through NVML.

In: the module `pynvml` and the handles of `Gpus`, or stand-ins with the same functions. Out: one `GpuCounters` per GPU.
A counter that the driver does not give is absent. `DCGM_FI_PROF_*` need DCGM itself and are never here. Units are those
of dcgm-exporter: MHz, MiB, mJ, ns, watts, degrees Celsius. Nothing is changed on the GPUs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal

import msgspec

from flatout.probe.device_memory import device_memory

_MIB = 1 << 20
Kind = Literal["gauge", "counter"]


class GpuCounter(msgspec.Struct, frozen=True, kw_only=True):
    """One counter: its name in dcgm-exporter, what it counts, and how it is read from NVML."""

    name: str
    kind: Kind
    help: str
    read: Callable[[Any, Any], float]


class GpuCounters(msgspec.Struct, frozen=True, kw_only=True):
    """The counters of one GPU at one moment, with the labels that dcgm-exporter gives it."""

    gpu: int
    uuid: str
    pci_bus_id: str
    device: str
    model: str
    values: Mapping[str, float]


def _field(name: str) -> Callable[[Any, Any], float]:
    """Return a reader of one of NVML's numbered fields."""

    def read(nvml: Any, handle: Any) -> float:
        (value,) = nvml.nvmlDeviceGetFieldValues(handle, [(getattr(nvml, name), 0)])
        if value.nvmlReturn != 0:
            raise LookupError(name)
        return float(value.value.ullVal)

    return read


def _call(name: str) -> Callable[[Any, Any], float]:
    return lambda nvml, handle: getattr(nvml, name)(handle)


def _memory(part: str) -> Callable[[Any, Any], float]:
    return lambda nvml, handle: getattr(device_memory(nvml, handle), part) / _MIB


def _utilization(part: str) -> Callable[[Any, Any], float]:
    return lambda nvml, handle: getattr(nvml.nvmlDeviceGetUtilizationRates(handle), part)


def _clock(domain: str) -> Callable[[Any, Any], float]:
    return lambda nvml, handle: nvml.nvmlDeviceGetClockInfo(handle, getattr(nvml, domain))


def _ecc(kind: str, period: str) -> Callable[[Any, Any], float]:
    return lambda nvml, handle: nvml.nvmlDeviceGetTotalEccErrors(handle, getattr(nvml, kind), getattr(nvml, period))


def _remapped(place: int) -> Callable[[Any, Any], float]:
    return lambda nvml, handle: float(nvml.nvmlDeviceGetRemappedRows(handle)[place])


_CORRECTED, _UNCORRECTED = "NVML_MEMORY_ERROR_TYPE_CORRECTED", "NVML_MEMORY_ERROR_TYPE_UNCORRECTED"
_VOLATILE, _AGGREGATE = "NVML_VOLATILE_ECC", "NVML_AGGREGATE_ECC"

_Row = tuple[str, Kind, str, Callable[[Any, Any], float]]
# Name without the prefix, kind, what it counts, reader.
_STATE: tuple[_Row, ...] = (
    ("SM_CLOCK", "gauge", "SM clock frequency (in MHz).", _clock("NVML_CLOCK_SM")),
    ("MEM_CLOCK", "gauge", "Memory clock frequency (in MHz).", _clock("NVML_CLOCK_MEM")),
    ("MEMORY_TEMP", "gauge", "Memory temperature (in C).", _field("NVML_FI_DEV_MEMORY_TEMP")),
    (
        "GPU_TEMP",
        "gauge",
        "GPU temperature (in C).",
        lambda n, h: n.nvmlDeviceGetTemperature(h, n.NVML_TEMPERATURE_GPU),
    ),
    ("POWER_USAGE", "gauge", "Power draw (in W).", lambda n, h: n.nvmlDeviceGetPowerUsage(h) / 1e3),
    ("GPU_UTIL", "gauge", "GPU utilization (in %).", _utilization("gpu")),
    ("MEM_COPY_UTIL", "gauge", "Memory utilization (in %).", _utilization("memory")),
    ("FB_FREE", "gauge", "Framebuffer memory free (in MiB).", _memory("free")),
    ("FB_USED", "gauge", "Framebuffer memory used (in MiB).", _memory("used")),
    ("FB_RESERVED", "gauge", "Framebuffer memory reserved (in MiB).", _memory("reserved")),
    ("ROW_REMAP_FAILURE", "gauge", "Whether remapping of rows has failed.", _remapped(3)),
)
_COUNTS: tuple[_Row, ...] = (
    ("TOTAL_ENERGY_CONSUMPTION", "counter", "Energy since boot (in mJ).", _call("nvmlDeviceGetTotalEnergyConsumption")),
    ("PCIE_REPLAY_COUNTER", "counter", "Number of PCIe retries.", _call("nvmlDeviceGetPcieReplayCounter")),
    ("CORRECTABLE_REMAPPED_ROWS", "counter", "Remapped rows for correctable errors.", _remapped(0)),
    ("UNCORRECTABLE_REMAPPED_ROWS", "counter", "Remapped rows for uncorrectable errors.", _remapped(1)),
    ("ECC_SBE_VOL_TOTAL", "counter", "Single-bit volatile ECC errors.", _ecc(_CORRECTED, _VOLATILE)),
    ("ECC_DBE_VOL_TOTAL", "counter", "Double-bit volatile ECC errors.", _ecc(_UNCORRECTED, _VOLATILE)),
    ("ECC_SBE_AGG_TOTAL", "counter", "Single-bit persistent ECC errors.", _ecc(_CORRECTED, _AGGREGATE)),
    ("ECC_DBE_AGG_TOTAL", "counter", "Double-bit persistent ECC errors.", _ecc(_UNCORRECTED, _AGGREGATE)),
)
# Name without the prefix, what the clock was lowered for, NVML's field.
_VIOLATIONS = (
    ("POWER_VIOLATION", "power", "NVML_FI_DEV_PERF_POLICY_POWER"),
    ("THERMAL_VIOLATION", "thermal", "NVML_FI_DEV_PERF_POLICY_THERMAL"),
    ("SYNC_BOOST_VIOLATION", "sync-boost", "NVML_FI_DEV_PERF_POLICY_SYNC_BOOST"),
    ("BOARD_LIMIT_VIOLATION", "board limit", "NVML_FI_DEV_PERF_POLICY_BOARD_LIMIT"),
    ("LOW_UTIL_VIOLATION", "low utilization", "NVML_FI_DEV_PERF_POLICY_LOW_UTILIZATION"),
    ("RELIABILITY_VIOLATION", "reliability", "NVML_FI_DEV_PERF_POLICY_RELIABILITY"),
)
# Name without the prefix and the end, which errors.
_NVLINK = (
    ("NVLINK_CRC_FLIT_ERROR", "flow-control CRC errors"),
    ("NVLINK_CRC_DATA_ERROR", "data CRC errors"),
    ("NVLINK_REPLAY_ERROR", "retries"),
    ("NVLINK_RECOVERY_ERROR", "recovery errors"),
)


def _all_rows() -> Iterator[_Row]:
    yield from _STATE
    yield from _COUNTS
    for name, reason, field in _VIOLATIONS:
        yield name, "counter", f"Throttling duration due to {reason} constraints (in ns).", _field(field)
    for name, errors in _NVLINK:
        field = f"NVML_FI_DEV_{name}_COUNT_TOTAL"
        yield f"{name}_COUNT_TOTAL", "counter", f"Number of NVLink {errors}.", _field(field)


COUNTERS = tuple(
    GpuCounter(name=f"DCGM_FI_DEV_{name}", kind=kind, help=text, read=read) for name, kind, text, read in _all_rows()
)


def read_gpu_counters(nvml: Any, handles: list[Any]) -> list[GpuCounters]:
    """Return the counters of each GPU, in the order of the handles."""
    return [_of_gpu(nvml, index, handle) for index, handle in enumerate(handles)]


def _of_gpu(nvml: Any, index: int, handle: Any) -> GpuCounters:
    values = {}
    for counter in COUNTERS:
        value = _read(nvml, lambda counter=counter: float(counter.read(nvml, handle)))  # type: ignore[misc]
        if value is not None:
            values[counter.name] = value
    bus = _read(nvml, lambda: nvml.nvmlDeviceGetPciInfo(handle).busId)
    return GpuCounters(
        gpu=index,
        uuid=_text(_read(nvml, lambda: nvml.nvmlDeviceGetUUID(handle))),
        pci_bus_id=_text(bus),
        device=f"nvidia{index}",
        model=_text(_read(nvml, lambda: nvml.nvmlDeviceGetName(handle))),
        values=values,
    )


def _read(nvml: Any, read: Callable[[], Any]) -> Any:
    """Return the value; None if the driver or an old `nvidia-ml-py` does not give it."""
    try:
        return read()
    except (nvml.NVMLError, AttributeError, LookupError, TypeError, ValueError):
        return None


def _text(value: Any) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value or "")
