"""Report Xids (errors that the GPU driver logs) as they occur, from NVML's events and, if readable, the kernel's log.

In: the driver's handles, /dev/kmsg. Out: which GPU and which number, since the last call. Nothing waits. Only Xids
after the start are reported. If not all GPUs are monitored, the answer is None, not "none".
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

KERNEL_LOG = Path("/dev/kmsg")
DRIVER = Path("/proc/driver/nvidia/version")  # without a driver in this kernel, its log mentions no GPU
# NVRM: Xid (PCI:0000:9b:00): 119, pid=2024380, name=nvidia-smi, Timeout after 6s ...
_LINE = re.compile(r"NVRM: Xid \((?:PCI:)?([0-9a-fA-F]+):([0-9a-fA-F]+):([0-9a-fA-F]+)[^)]*\): (\d+)")
_RECORD_BYTES = 8192  # the kernel's longest record
_MAX_READS = 10_000  # per round: a log that fills faster than it is read must not delay the sampler


class Xids:
    """Xids from both sources. An Xid that both report is returned twice."""

    def __init__(self, nvml: Any, handles: list[Any]) -> None:
        self._events = _Events(nvml, handles) if handles else None
        self._log = _KernelLog()
        self._addresses = _addresses(nvml, handles)
        self._knows_all = bool(handles) and len(self._addresses) == len(handles)

    @property
    def problem(self) -> str | None:
        """Return why Xids are unknown; None if they are known."""
        if self._log.is_readable or (self._events is not None and self._events.problem is None):
            return None
        return f"{self._events.problem if self._events is not None else 'NVML shows no GPU'}; {self._log.problem}"

    def read(self) -> list[dict[str, Any]] | None:
        """Return the Xids since the last call; None if no source is reliable and none was reported."""
        found: list[dict[str, Any]] = []
        if self._events is not None:
            found += [{"gpu": index, "number": number} for index, number in self._events.read()]
        for address, number in self._log.read():
            index = self._addresses.get(address)
            if index is not None:
                found.append({"gpu": index, "address": address, "number": number})
            elif not self._knows_all:  # otherwise the Xid belongs to a GPU that is not visible in this container
                found.append({"address": address, "number": number})
        return found if found or self.problem is None else None


class _Events:
    """NVML's events. Each GPU has its own event set, which identifies the GPU of an event without a handle."""

    def __init__(self, nvml: Any, handles: list[Any]) -> None:
        self.problem: str | None = None
        self._nvml = nvml
        self._sets: dict[int, Any] = {}
        for index, handle in enumerate(handles):
            try:
                events = nvml.nvmlEventSetCreate()
                nvml.nvmlDeviceRegisterEvents(handle, nvml.nvmlEventTypeXidCriticalError, events)
            except (nvml.NVMLError, AttributeError) as error:
                self.problem = f"NVML reports no Xids for GPU {index}: {error}"
                continue
            self._sets[index] = events

    def read(self) -> list[tuple[int, int]]:
        """Return the GPU's index and the Xid's number, for each Xid."""
        found = []
        for index, events in list(self._sets.items()):
            for _ in range(_MAX_READS):
                try:
                    event = self._nvml.nvmlEventSetWait(events, 0)
                except self._nvml.NVMLError as error:
                    if getattr(error, "value", None) != self._nvml.NVML_ERROR_TIMEOUT:  # the GPU is lost
                        self.problem = f"NVML reports no more Xids for GPU {index}: {error}"
                        del self._sets[index]
                    break
                if event.eventType & self._nvml.nvmlEventTypeXidCriticalError:
                    found.append((index, int(event.eventData)))
        return found


class _KernelLog:
    """The kernel log, one record per read, each with priority, number and time. Existing records are skipped."""

    def __init__(self) -> None:
        self.problem = ""
        self._descriptor: int | None = None
        if not DRIVER.exists():
            self.problem = "this kernel has no NVIDIA driver"
            return
        try:
            self._descriptor = os.open(KERNEL_LOG, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            os.lseek(self._descriptor, 0, os.SEEK_END)
        except OSError as error:
            self._close(f"{KERNEL_LOG} cannot be read: {(error.strerror or str(error)).lower()}")

    @property
    def is_readable(self) -> bool:
        return self._descriptor is not None

    def read(self) -> list[tuple[str, int]]:
        """Return the GPU's address and the Xid's number, for each Xid."""
        found: list[tuple[str, int]] = []
        for _ in range(_MAX_READS):
            if self._descriptor is None:
                break
            try:
                text = os.read(self._descriptor, _RECORD_BYTES).decode(errors="replace")
            except BlockingIOError:
                break
            except BrokenPipeError:  # records were overwritten before they were read; the next read skips them
                continue
            except OSError as error:
                self._close(f"{KERNEL_LOG} can no longer be read: {(error.strerror or str(error)).lower()}")
                break
            if not text:
                break
            found += [
                (_address(domain, bus, device), int(number)) for domain, bus, device, number in _LINE.findall(text)
            ]
        return found

    def _close(self, problem: str) -> None:
        self.problem = problem
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def _addresses(nvml: Any, handles: list[Any]) -> dict[str, int]:
    """Return the index of each GPU by its address, without the function (`.0`)."""
    found = {}
    for index, handle in enumerate(handles):
        try:
            name = nvml.nvmlDeviceGetPciInfo(handle).busId
        except (nvml.NVMLError, AttributeError):
            continue
        text = name.decode(errors="replace") if isinstance(name, bytes) else str(name)
        parts = text.partition(".")[0].split(":")
        if len(parts) == 3:
            found[_address(*parts)] = index
    return found


def _address(domain: str, bus: str, device: str) -> str:
    """Return an address in one form: NVML writes domains with eight capital digits, the kernel's log with four."""
    return f"{int(domain, 16):04x}:{int(bus, 16):02x}:{int(device, 16):02x}"
