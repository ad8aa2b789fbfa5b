"""Read and set the power limits of GPUs through NVML, and restore what was there.

In: the driver. Out: limits in watts and energy in joules; while a `PowerLimits` is entered, limits may be set, and at
its end, however it ends, each GPU gets back the limit that it had. A process that is killed cannot do that: the limit
then stays until somebody sets it or the driver is loaded again.

Nothing here is called unless the user asks for it by a separate option.
"""

from __future__ import annotations

from contextlib import suppress
from types import TracebackType
from typing import Any

import msgspec

from flatout.errors import FlatoutError, InputError

_MW_PER_W = 1000


class PowerLimitError(FlatoutError):
    """A power limit cannot be set or read here."""


class PowerLimit(msgspec.Struct, frozen=True, kw_only=True):
    """The limit of one GPU, and what the driver accepts."""

    index: int
    uuid: str
    limit_w: float
    least_w: float
    most_w: float


class PowerLimits:
    """The limits of some GPUs. A test passes its own `nvml` and handles; otherwise they are those of this host."""

    def __init__(self, nvml: Any = None, handles: list[Any] | None = None) -> None:
        if nvml is None or handles is None:
            nvml, handles = _of_this_host()
        self._nvml = nvml
        self._handles = handles
        self._own_mw: dict[int, int] = {}  # limits to restore, by index

    def __enter__(self) -> PowerLimits:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.restore()

    def read(self) -> list[PowerLimit]:
        """Return the limit of each GPU. Raises PowerLimitError if the driver does not give it."""
        return [self._read(index, handle) for index, handle in enumerate(self._handles)]

    def _read(self, index: int, handle: Any) -> PowerLimit:
        nvml = self._nvml
        try:
            least_mw, most_mw = nvml.nvmlDeviceGetPowerManagementLimitConstraints(handle)
            limit_mw = nvml.nvmlDeviceGetPowerManagementLimit(handle)
            uuid = nvml.nvmlDeviceGetUUID(handle)
        except nvml.NVMLError as error:
            raise PowerLimitError(f"the driver gives no power limit of GPU {index}: {error}") from None
        return PowerLimit(
            index=index,
            uuid=uuid.decode() if isinstance(uuid, bytes) else uuid,
            limit_w=limit_mw / _MW_PER_W,
            least_w=least_mw / _MW_PER_W,
            most_w=most_mw / _MW_PER_W,
        )

    def set(self, index: int, limit_w: float) -> None:
        """Set the limit of one GPU. Raises PowerLimitError if that is not allowed here."""
        nvml, handle = self._nvml, self._handles[index]
        try:
            own_mw = nvml.nvmlDeviceGetPowerManagementLimit(handle)
            nvml.nvmlDeviceSetPowerManagementLimit(handle, round(limit_w * _MW_PER_W))
        except nvml.NVMLError as error:
            raise PowerLimitError(
                f"the power limit of GPU {index} cannot be set to {limit_w:g} W: {error}",
                hint="setting it needs root, and a GPU that is not a part of another's machine",
            ) from None
        self._own_mw.setdefault(index, own_mw)

    def restore(self) -> None:
        """Give each GPU whose limit was set its earlier limit."""
        for index, own_mw in self._own_mw.items():
            with suppress(self._nvml.NVMLError):
                self._nvml.nvmlDeviceSetPowerManagementLimit(self._handles[index], own_mw)
        self._own_mw.clear()

    def energy_j(self, index: int) -> float | None:
        """Return the energy that a GPU used since the driver was loaded; None if the driver does not give it."""
        try:
            return float(self._nvml.nvmlDeviceGetTotalEnergyConsumption(self._handles[index])) / 1e3
        except self._nvml.NVMLError:
            return None


def _of_this_host() -> tuple[Any, list[Any]]:
    try:
        import pynvml
    except ImportError:
        raise InputError("the package nvidia-ml-py is not installed", hint="pip install nvidia-ml-py") from None
    try:
        pynvml.nvmlInit()
        return pynvml, [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]
    except pynvml.NVMLError as error:
        hint = "power limits need an NVIDIA GPU and its driver"
        raise InputError(f"NVML reports no GPU: {error}", hint=hint) from None
