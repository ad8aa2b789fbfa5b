"""The PCIe link of a GPU under load: which reading counts, from a tree of sysfs and from a driver without a GPU."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from tests.probe.drivers import NVMLError

from flatout.probe.ceilings import transfer
from flatout.probe.ceilings.link import link_under_load, pci_address, read_link
from flatout.probe.ceilings.raw import Raw, RawBenchmark
from flatout.probe.ceilings.summary import ceilings_of
from flatout.records.ceilings import Ceilings, LoadedLink
from flatout.report.ceilings_text import ceilings_text
from flatout.report.json import enveloped_json
from flatout.report.terminal import TextStyle

GPU = "0000:1b:00.0"
IDLE = LoadedLink(speed_gt_per_s=2.5, width=16, best_speed_gt_per_s=16, best_width=16, source="sysfs")
BUSY = LoadedLink(speed_gt_per_s=16, width=16, best_speed_gt_per_s=16, best_width=16, source="sysfs")


class Copies:
    """Each reading takes the time of one copy; the link wakes after the second."""

    def __init__(self) -> None:
        self.left = 0
        self.num_readings = 0

    def copy(self) -> None:
        self.left += 1

    def is_busy(self) -> bool:
        return self.left > 0

    def read(self) -> LoadedLink | None:
        self.left -= 1
        self.num_readings += 1
        return BUSY if self.num_readings > 2 and self.left > 0 else IDLE


def test_the_last_reading_while_copies_run_counts() -> None:
    copies = Copies()
    assert link_under_load(copies.read, copies.copy, copies.is_busy) == BUSY


def test_a_reading_of_an_idle_link_is_none() -> None:
    assert link_under_load(lambda: IDLE, lambda: None, lambda: False) is None


def test_a_link_that_nothing_shows_is_none_and_is_not_waited_for() -> None:
    assert link_under_load(lambda: None, lambda: None, lambda: True) is None


def sysfs(folder: Path, speed: str, width: str, port_width: str = "16") -> Path:
    """A GPU below a port, and the flat folder with a link to it, as the kernel has them."""
    gpu = folder / "sys" / "0000:1a:01.0" / GPU
    gpu.mkdir(parents=True)
    names = {"current_link_speed": speed, "current_link_width": width}
    for name, text in {**names, "max_link_speed": "32.0 GT/s PCIe", "max_link_width": "16"}.items():
        (gpu / name).write_text(f"{text}\n")
    (gpu.parent / "max_link_speed").write_text("16.0 GT/s PCIe\n")
    (gpu.parent / "max_link_width").write_text(f"{port_width}\n")
    devices = folder / "devices"
    devices.mkdir()
    (devices / GPU).symlink_to(gpu)
    return devices


def test_sysfs_gives_the_link_and_what_both_ends_can(tmp_path: Path) -> None:
    assert read_link(GPU, sysfs(tmp_path, "16.0 GT/s PCIe", "16")) == BUSY


def test_half_the_lanes_are_below_unless_the_port_has_no_more(tmp_path: Path) -> None:
    narrow = read_link(GPU, sysfs(tmp_path / "a", "16.0 GT/s PCIe", "8"))
    assert narrow is not None
    assert narrow.is_below
    alike = read_link(GPU, sysfs(tmp_path / "b", "16.0 GT/s PCIe", "8", port_width="8"))
    assert alike is not None
    assert not alike.is_below


class Driver:
    """NVML of a GPU of generation 5 in a slot that lets it have 4; it refuses what `lacks` names."""

    NVMLError = NVMLError

    def __init__(self, lacks: str = "") -> None:
        self.lacks = lacks

    def __getattr__(self, name: str) -> object:
        if name == self.lacks:
            raise NVMLError("Not Supported")
        answers = {
            "nvmlDeviceGetCurrPcieLinkGeneration": 3,
            "nvmlDeviceGetCurrPcieLinkWidth": 16,
            "nvmlDeviceGetMaxPcieLinkGeneration": 4,
            "nvmlDeviceGetMaxPcieLinkWidth": 16,
        }
        return lambda *_: answers.get(name)


@pytest.mark.parametrize(("speed", "width"), [("Unknown", "63"), ("16.0 GT/s PCIe", "0"), ("", "")])
def test_where_sysfs_tells_nothing_nvml_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, speed: str, width: str
) -> None:
    devices = sysfs(tmp_path, speed, width)
    monkeypatch.setitem(sys.modules, "pynvml", Driver())  # type: ignore[arg-type]
    found = read_link(GPU, devices)
    assert found == LoadedLink(speed_gt_per_s=8, width=16, best_speed_gt_per_s=16, best_width=16, source="NVML")
    assert found.is_below
    for lacks in ("nvmlInit", "nvmlDeviceGetHandleByPciBusId", "nvmlDeviceGetCurrPcieLinkWidth"):
        monkeypatch.setitem(sys.modules, "pynvml", Driver(lacks))  # type: ignore[arg-type]
        assert read_link(GPU, devices) is None


def test_the_address_is_as_sysfs_writes_it() -> None:
    def of(**about: int) -> str | None:
        cuda = SimpleNamespace(get_device_properties=lambda _: SimpleNamespace(**about))
        return pci_address(SimpleNamespace(cuda=cuda), None)

    assert of(pci_domain_id=0, pci_bus_id=0x1B, pci_device_id=0) == GPU
    assert of(name=3) is None  # of an older torch


def test_the_check_of_a_pinned_copy_reads_the_link(monkeypatch: pytest.MonkeyPatch) -> None:
    busy = iter([True, True, False])
    stream = SimpleNamespace(query=lambda: not next(busy))
    monkeypatch.setattr(transfer, "SIZE_BYTES", 1 << 12)
    monkeypatch.setattr(transfer, "pci_address", lambda *_: GPU)
    monkeypatch.setattr(transfer, "read_link", lambda address: BUSY if address == GPU else None)
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda self: self)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda *_: None)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda *_: stream)
    cases = {case.name: case for case in transfer.torch_benchmarks(torch, torch.device("cpu")) if case.who == "each"}
    pinned, pageable = cases["host_to_device_pinned"], cases["host_to_device_pageable"]
    assert pinned.check() is None
    assert pageable.check() is None
    assert pinned.labels["pcie"]["speed_gt_per_s"] == 16
    assert "pcie" not in pageable.labels


def measured(*links: LoadedLink | None) -> Ceilings:
    ranks = []
    for link in links:
        labels = {"size": 1 << 28, "pcie": None if link is None else {name: getattr(link, name) for name in FIELDS}}
        case = RawBenchmark(
            name="host_to_device_pinned", unit="B/s", work=2.0**28, checked="all", labels=labels, seconds=[0.01]
        )
        ranks.append((case,))
    raw = Raw(
        benchmarks=tuple(ranks),
        devices=("a GPU",) * len(links),
        hosts=("h",) * len(links),
        is_gpu=True,
        backend="nccl",
        software="torch",
        not_measured={},
    )
    return ceilings_of(raw, took_s=1.0, outliers=lambda _, share: {}, min_peers=4)


FIELDS = ("speed_gt_per_s", "width", "best_speed_gt_per_s", "best_width", "source")


def test_the_link_is_in_the_measurement_the_json_and_the_text() -> None:
    found = measured(BUSY, IDLE, BUSY, None)
    assert [one.pcie for one in found.measurements] == [BUSY, IDLE, BUSY, None]
    told = json.loads(enveloped_json("flatout/ceilings", 1, [], found))
    assert told["measurements"][1]["pcie"]["speed_gt_per_s"] == 2.5
    assert told["measurements"][3]["pcie"] is None
    lines = ceilings_text(found, style=TextStyle(width=200, has_unicode=False)).splitlines()
    assert [line for line in lines if line.startswith("PCIe link")] == [
        "PCIe link under load, rank 1: 2.5 GT/s x 16, BELOW the 16 GT/s x 16 that both ends support (sysfs)",
        "PCIe link under load, ranks 0, 2: 16 GT/s x 16, the maximum that both ends support (sysfs)",
        "PCIe link under load, rank 3: unknown: neither sysfs nor NVML shows it while copies run",
    ]
