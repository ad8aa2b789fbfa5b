"""What the GPUs of this host do now. In: NVML through `Gpus`. Out: `GpuStatus` by UUID; empty without a driver."""

from __future__ import annotations

from typing import Any

from flatout.probe.nvml import Gpus
from flatout.records.watch import GpuStatus


class GpuReadings:
    """Reads the GPUs again and again."""

    def __init__(self, gpus: Gpus | None = None) -> None:
        self._gpus = gpus if gpus is not None else Gpus()
        facts = self._gpus.facts()
        self._uuids = [fact.get("uuid") for fact in facts]
        self.model: str | None = next((str(fact["name"]) for fact in facts if "name" in fact), None)

    def by_uuid(self) -> dict[str, GpuStatus]:
        if not self._uuids:
            return {}
        readings = zip(self._uuids, self._gpus.read(), strict=True)
        return {uuid: _status(index, read) for index, (uuid, read) in enumerate(readings) if uuid is not None}

    def by_pid(self) -> dict[int, str]:
        """Return the UUID of the GPU that each process computes on."""
        uuid_of_pid: dict[int, str] = {}
        for uuid, pids in zip(self._uuids, self._gpus.processes(), strict=True):
            if uuid is not None:
                uuid_of_pid |= dict.fromkeys(pids, uuid)
        return uuid_of_pid


def _status(index: int, read: dict[str, Any]) -> GpuStatus:
    return GpuStatus(
        index=index,
        busy_percent=read.get("busy_percent"),
        memory_used_bytes=read.get("memory_used_bytes"),
        sm_clock_hz=read.get("sm_clock_hz"),
        power_w=read.get("power_w"),
        temperature_c=read.get("temperature_c"),
        throttle=tuple(read.get("throttle", ())),
    )
