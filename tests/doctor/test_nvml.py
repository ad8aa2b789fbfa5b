"""Where nvidia-smi is not, the driver's own library tells the same; of a driver that refuses, nothing is made up."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest
from tests.doctor.samples import printed, result, smi
from tests.probe.drivers import NVMLError, XidDriver

from flatout.doctor.machine import Machine
from flatout.probe.gpu_values import gpu_values
from flatout.records.snapshot import Output, Snapshot


class Driver(XidDriver):
    """Two H100, as `pynvml` shows them; what is not here is refused."""

    def __init__(self, **changes: Any) -> None:
        super().__init__()
        self.changes = changes

    def nvmlSystemGetDriverVersion(self) -> bytes:  # noqa: N802
        return b"550.54.15"

    def nvmlSystemGetCudaDriverVersion(self) -> int:  # noqa: N802
        return 12040

    def nvmlDeviceGetName(self, handle: int) -> str:  # noqa: N802
        return "NVIDIA H100 80GB HBM3"

    def nvmlDeviceGetPersistenceMode(self, handle: int) -> int:  # noqa: N802
        return 1

    def nvmlDeviceGetMigMode(self, handle: int) -> tuple[int, int]:  # noqa: N802
        return (self.changes.get("mig", 0) if handle == 1 else 0, 0)

    def nvmlDeviceGetMaxPcieLinkGeneration(self, handle: int) -> int:  # noqa: N802
        return 5

    def nvmlDeviceGetCurrPcieLinkGeneration(self, handle: int) -> int:  # noqa: N802
        return 5

    def nvmlDeviceGetMaxPcieLinkWidth(self, handle: int) -> int:  # noqa: N802
        return 16

    def nvmlDeviceGetCurrPcieLinkWidth(self, handle: int) -> int:  # noqa: N802
        return int(self.changes.get("width", 16)) if handle == 1 else 16

    def nvmlDeviceGetUtilizationRates(self, handle: int) -> Any:  # noqa: N802
        return SimpleNamespace(gpu=90, memory=10)

    def nvmlDeviceGetMemoryErrorCounter(self, handle: int, kind: int, period: int, place: int) -> int:  # noqa: N802
        is_asked = (kind, period, place) == (1, 0, 2)  # NVML: uncorrected, volatile, DRAM
        return int(self.changes.get("ecc", 0)) if is_asked and handle == 1 else 0

    def nvmlDeviceGetRemappedRows(self, handle: int) -> tuple[int, int, int, int]:  # noqa: N802
        return (0, 0, int(self.changes.get("pending", 0)) if handle == 1 else 0, 0)

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, handle: int) -> int:  # noqa: N802
        return int(self.changes.get("reasons", 0)) if handle == 1 else 0


def snapshot(**changes: Any) -> Snapshot:
    return printed("NVML", json.dumps(gpu_values(Driver(**changes))))


@pytest.mark.parametrize(
    ("check", "change"),
    [
        ("gpu-ecc-uncorrectable", {"ecc": 3}),
        ("gpu-row-remap", {"pending": 1}),
        ("gpu-mig", {"mig": 1}),
        ("gpu-pcie-width", {"width": 8}),
    ],
)
def test_a_fault_that_only_nvml_shows_is_found(check: str, change: dict[str, int]) -> None:
    assert result(check, snapshot()).status == "ok"
    found = result(check, snapshot(**change))
    assert found.status in ("warn", "fail")
    assert "0000:9b:00.0" in found.reason
    assert "0000:1b:00.0" not in found.reason


def test_what_the_driver_refuses_is_unknown_and_never_ok() -> None:
    assert result("gpu-power-limit", snapshot()).status == "unknown"
    assert "GPU Power Readings/Current Power Limit" not in json.dumps(gpu_values(Driver()))


def test_the_driver_and_its_cuda_are_known() -> None:
    machine = Machine(snapshot())
    assert (machine.smi.driver, machine.smi.cuda, len(machine.gpus)) == ("550.54.15", "12.4", 2)
    assert machine.gpus[0].text("Product Name") == "NVIDIA H100 80GB HBM3"


def test_nvidia_smi_is_asked_first() -> None:
    outputs = smi(num=4).outputs | snapshot(ecc=3).outputs
    assert len(Machine(Snapshot(outputs=outputs)).gpus) == 4


def test_a_tool_that_is_absent_is_said_beside_what_the_library_told() -> None:
    absent = {"nvidia-smi -q": Output(problem="there is no `nvidia-smi` here", is_missing=True)}
    found = result("driver-answers", Snapshot(outputs=snapshot().outputs | absent))
    assert found.status == "ok"
    assert "through NVML only" in found.reason
    assert "there is no `nvidia-smi` here" in found.reason


def test_a_driver_without_gpus_gives_nothing() -> None:
    class NoDriver(XidDriver):
        def nvmlInit(self) -> None:  # noqa: N802
            raise NVMLError("Driver Not Loaded")

    with pytest.raises(NVMLError):
        gpu_values(NoDriver())
