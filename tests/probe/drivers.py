"""A GPU driver as `pynvml` shows it, without one."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any


class NVMLError(Exception):
    def __init__(self, text: str, value: int = 3) -> None:
        super().__init__(text)
        self.value = value


class XidDriver:
    """Two GPUs. `coming[index]`: numbers of Xids that wait to be told; `lost`: GPUs that answer nothing any more."""

    NVML_CLOCK_SM = 1
    NVML_ERROR_TIMEOUT = 10
    nvmlEventTypeXidCriticalError = 8  # noqa: N815
    NVMLError = NVMLError

    def __init__(self, *, refuses: str | None = None) -> None:
        self.coming: dict[int, list[int]] = {0: [], 1: []}
        self.lost: set[int] = set()
        self.refuses = refuses
        self.waits_ms: list[int] = []

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("nvml"):
            raise AttributeError(name)

        def refuse(*_: object) -> None:
            raise NVMLError("Not Supported")

        return refuse

    def nvmlInit(self) -> None:  # noqa: N802
        pass

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        return 2

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:  # noqa: N802
        return index

    def nvmlDeviceGetPciInfo(self, handle: int) -> Any:  # noqa: N802
        return SimpleNamespace(busId=("00000000:1B:00.0", b"00000000:9B:00.0")[handle])

    def nvmlEventSetCreate(self) -> dict[str, int]:  # noqa: N802
        return {}

    def nvmlDeviceRegisterEvents(self, handle: int, kinds: int, events: dict[str, int]) -> None:  # noqa: N802
        if self.refuses is not None:
            raise NVMLError(self.refuses)
        assert kinds == self.nvmlEventTypeXidCriticalError
        events["handle"] = handle

    def nvmlEventSetWait(self, events: dict[str, int], timeout_ms: int) -> Any:  # noqa: N802
        self.waits_ms.append(timeout_ms)
        handle = events["handle"]
        if self.coming[handle]:
            return SimpleNamespace(device=handle, eventType=8, eventData=self.coming[handle].pop(0))
        raise NVMLError("GPU is lost", 15) if handle in self.lost else NVMLError("Timeout", self.NVML_ERROR_TIMEOUT)
