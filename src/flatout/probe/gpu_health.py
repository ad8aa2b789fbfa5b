"""Read what says how well the GPUs of this host are, through NVML.

In: the module `pynvml` and the handles of `Gpus`, or stand-ins with the same functions. Out: one `GpuHealth` per GPU; a
value that the driver does not give is None. Nothing is changed on the GPUs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from flatout.records.gpu_health import GpuHealth

_HZ_PER_MHZ = 1e6


def read_gpu_health(nvml: Any, handles: Sequence[Any]) -> list[GpuHealth]:
    """Return the health of each GPU."""
    return [_health(nvml, handle, index) for index, handle in enumerate(handles)]


def _health(nvml: Any, handle: Any, index: int) -> GpuHealth:
    def known(read: Callable[[], Any]) -> Any:
        try:
            return read()
        except (nvml.NVMLError, AttributeError, LookupError):
            return None

    def field(name: str) -> int | None:
        (value,) = nvml.nvmlDeviceGetFieldValues(handle, [(getattr(nvml, name), 0)])
        return None if value.nvmlReturn != 0 else int(value.value.ullVal)

    def errors(kind: str) -> int:
        number, since_boot = getattr(nvml, f"NVML_MEMORY_ERROR_TYPE_{kind}"), nvml.NVML_VOLATILE_ECC
        return int(nvml.nvmlDeviceGetTotalEccErrors(handle, number, since_boot))

    rows = known(lambda: nvml.nvmlDeviceGetRemappedRows(handle)) or (None, None, None, None)
    clock_mhz = known(lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM))
    return GpuHealth(
        gpu=index,
        uuid=known(lambda: str(nvml.nvmlDeviceGetUUID(handle))),
        model=known(lambda: str(nvml.nvmlDeviceGetName(handle))),
        corrected_errors=known(lambda: errors("CORRECTED")),
        uncorrected_errors=known(lambda: errors("UNCORRECTED")),
        correctable_remaps=rows[0],
        uncorrectable_remaps=rows[1],
        is_remap_pending=None if rows[2] is None else bool(rows[2]),
        has_remap_failed=None if rows[3] is None else bool(rows[3]),
        pcie_replays=known(lambda: int(nvml.nvmlDeviceGetPcieReplayCounter(handle))),
        nvlink_replays=known(lambda: field("NVML_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL")),
        nvlink_recoveries=known(lambda: field("NVML_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL")),
        margin_c=known(lambda: float(nvml.nvmlDeviceGetMarginTemperature(handle))),
        busy_percent=known(lambda: float(nvml.nvmlDeviceGetUtilizationRates(handle).gpu)),
        sm_clock_hz=None if clock_mhz is None else clock_mhz * _HZ_PER_MHZ,
        recovery_action=known(lambda: field("NVML_FI_DEV_GET_GPU_RECOVERY_ACTION")),
    )
