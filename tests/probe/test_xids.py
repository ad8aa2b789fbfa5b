"""Errors that the driver logs: by its events and by the kernel's log, and never "none" where nobody watches."""

from __future__ import annotations

import io
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.probe.drivers import XidDriver

from flatout.probe import sampler, xids
from flatout.probe.foreign_load import ForeignLoad
from flatout.probe.nvml import Gpus

# As /dev/kmsg gives them: of another GPU's in a log of a real error, and of one that was lost.
GSP = (
    "3,9001,5361812345,-;NVRM: Xid (PCI:0000:9b:00): 119, pid=2024380, name=nvidia-smi, Timeout after 6s of waiting for"
    " RPC response from GPU4 GSP! Expected function 103 (GSP_RM_ALLOC) (0x2081 0x4).\n"
)
LOST = (
    "3,9002,5361812399,-;NVRM: Xid (PCI:0000:1b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.\n"
)
OTHERS = (
    "3,9003,5361812400,-;NVRM: GPU at PCI:0000:9b:00: GPU-00000000-0000-0000-0000-000000000000\n"
    " SUBSYSTEM=pci\n"
    "4,9004,5361812401,-;nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 20034, Fatal, Link 52 LTSSM Fault Up\n"
    "6,9005,5361812402,-;eth0: link up, and someone writes of Xid (PCI:0000:9b:00): 79\n"
)


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A kernel log with an old error in it, of a kernel with the driver."""
    file, driver = tmp_path / "kmsg", tmp_path / "version"
    file.write_text(LOST)
    driver.write_text("NVRM version: NVIDIA UNIX x86_64 Kernel Module")
    monkeypatch.setattr(xids, "KERNEL_LOG", file)
    monkeypatch.setattr(xids, "DRIVER", driver)
    return file


@pytest.fixture
def no_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(xids, "DRIVER", tmp_path / "none")


def gpus(monkeypatch: pytest.MonkeyPatch, driver: Any) -> Gpus:
    monkeypatch.setitem(sys.modules, "pynvml", driver)
    return Gpus()


@pytest.mark.usefixtures("no_log")
def test_events_say_which_gpu_and_which_number_and_nothing_waits_for_them(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = XidDriver()
    watch = gpus(monkeypatch, driver).xids()
    assert (watch.problem, watch.read()) == (None, [])
    driver.coming = {0: [], 1: [94, 48]}
    assert watch.read() == [{"gpu": 1, "number": 94}, {"gpu": 1, "number": 48}]
    assert watch.read() == []
    assert set(driver.waits_ms) == {0}


@pytest.mark.usefixtures("no_log")
@pytest.mark.parametrize("refuses", ["Not Supported", "Insufficient Permissions"])
def test_a_driver_that_tells_no_xids_leaves_them_unknown(monkeypatch: pytest.MonkeyPatch, refuses: str) -> None:
    watch = gpus(monkeypatch, XidDriver(refuses=refuses)).xids()
    assert watch.read() is None
    assert watch.problem == f"NVML reports no Xids for GPU 0: {refuses}; this kernel has no NVIDIA driver" or (
        watch.problem is not None and f"GPU 1: {refuses}" in watch.problem
    )


@pytest.mark.usefixtures("no_log")
def test_without_nvml_and_a_log_they_are_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    watch = gpus(monkeypatch, None).xids()
    assert watch.read() is None and watch.problem == "NVML shows no GPU; this kernel has no NVIDIA driver"


@pytest.mark.usefixtures("no_log")
def test_a_gpu_that_is_lost_has_told_its_last_and_is_unknown_from_then_on(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = XidDriver()
    watch = gpus(monkeypatch, driver).xids()
    driver.coming, driver.lost = {0: [79], 1: []}, {0}
    assert watch.read() == [{"gpu": 0, "number": 79}]
    assert watch.read() is None
    assert watch.problem is not None and "no more Xids for GPU 0: GPU is lost" in watch.problem
    driver.coming[1] = [63]
    assert watch.read() == [{"gpu": 1, "number": 63}]


def test_the_kernels_log_counts_from_the_start_on(monkeypatch: pytest.MonkeyPatch, log: Path) -> None:
    watch = gpus(monkeypatch, XidDriver(refuses="Not Supported")).xids()
    assert (watch.problem, watch.read()) == (None, [])  # what was there before is not of this run
    with log.open("a") as file:
        file.write(OTHERS + GSP)
    assert watch.read() == [{"gpu": 1, "address": "0000:9b:00", "number": 119}]
    assert watch.read() == []


def test_an_error_of_a_gpu_that_is_not_ours_is_none_of_ours(monkeypatch: pytest.MonkeyPatch, log: Path) -> None:
    """A container has some of the host's GPUs, and its kernel's whole log."""
    watch = gpus(monkeypatch, XidDriver()).xids()
    with log.open("a") as file:
        file.write(GSP.replace("0000:9b", "0000:c3"))
    assert watch.read() == []


def test_without_nvml_the_log_still_tells_the_address(monkeypatch: pytest.MonkeyPatch, log: Path) -> None:
    watch = gpus(monkeypatch, None).xids()
    with log.open("a") as file:
        file.write(GSP)
    assert watch.read() == [{"address": "0000:9b:00", "number": 119}]


def test_a_log_that_may_not_be_read_is_a_reason(monkeypatch: pytest.MonkeyPatch, log: Path) -> None:
    def refuse(*_: object) -> int:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "open", refuse)
    watch = gpus(monkeypatch, None).xids()
    assert watch.problem == f"NVML shows no GPU; {log} cannot be read: operation not permitted"


def test_records_that_were_overwritten_and_an_empty_log_hold_nothing_up(
    monkeypatch: pytest.MonkeyPatch, log: Path
) -> None:
    watch = gpus(monkeypatch, None).xids()
    answers = iter([BrokenPipeError(32, "Broken pipe"), LOST.encode(), BlockingIOError(11, "again")])

    def read(*_: object) -> bytes:
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(os, "read", read)
    assert watch.read() == [{"address": "0000:1b:00", "number": 79}]


@pytest.mark.usefixtures("no_log")
def test_the_sampler_writes_them_and_also_those_that_came_with_the_end(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    driver, file = XidDriver(), io.StringIO()
    found = gpus(monkeypatch, driver)

    def ends(_: float) -> bool:
        driver.coming[1] = [79]
        return True

    sampler.sample(file, found, found.xids(), ForeignLoad({os.getpid()}, str(tmp_path)), 0.01, ends)
    lines = [json.loads(line) for line in file.getvalue().splitlines()]
    assert [line["xids"] for line in lines] == [[], [{"gpu": 1, "number": 79}]]
