"""Inputs that declare more than a host has, or a tree without end, are answered at once."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path

import pytest
from tests.doctor.samples import lspci_bridge, lspci_gpu, smi

from flatout.doctor.graph import topology_of
from flatout.doctor.inputs import read_inputs
from flatout.doctor.judge import judge_machine
from flatout.doctor.machine import Machine
from flatout.doctor.unknown import NotReadError
from flatout.errors import InputError
from flatout.records.doctor import Topology

CASES = Path(__file__).parents[1] / "data" / "doctor"
MAX_CPU_S = 5.0


def topology(tmp_path: Path, text: str) -> Topology | None:
    (tmp_path / "input").write_text(text)
    began_s = time.process_time()
    snapshot = read_inputs([tmp_path / "input"])
    judge_machine(snapshot)
    found = topology_of(Machine(snapshot))
    assert time.process_time() - began_s < MAX_CPU_S
    return found


def nested(addresses: list[str]) -> str:
    pci = [
        f'<pci busid="{address}" class="0x060400" link_speed="32.0 GT/s PCIe" link_width="16">' for address in addresses
    ]
    gpu = '<pci busid="0008:00:00.0" class="0x030200" link_speed="32.0 GT/s PCIe" link_width="16"/>'
    return f'<system version="1"><cpu numaid="0" affinity="ff">{"".join(pci)}{gpu}{"</pci>" * len(pci)}</cpu></system>'


def test_a_bridge_below_itself_is_used_once(tmp_path: Path) -> None:
    found = topology(tmp_path, nested(["ffff:ff:03.0"] * 3))
    assert found is not None
    assert [node.id for node in found.nodes] == ["NUMA 0", "ffff:ff:03.0", "0008:00:00.0"]
    assert "ffff:ff:03.0 appears more than once" in found.problems[0]


@pytest.mark.parametrize(("num_bridges", "is_read"), [(31, True), (32, False), (5000, False)])
def test_bridges_above_each_other_are_bounded(tmp_path: Path, num_bridges: int, is_read: bool) -> None:
    addresses = [f"{number // 256:04x}:{number % 256:02x}:00.0" for number in range(16, 16 + num_bridges)]
    found = topology(tmp_path, nested(addresses))
    nodes = () if found is None else found.nodes
    assert ("0008:00:00.0" in {node.id for node in nodes}) == is_read


def test_buses_of_lspci_in_a_ring_are_cut(tmp_path: Path) -> None:
    text = lspci_bridge("01:00.0", "02") + lspci_bridge("02:00.0", "01") + lspci_gpu("02:01.0")
    found = topology(tmp_path, text)
    assert found is not None
    assert any("is behind itself" in problem for problem in found.problems)


def test_more_gpus_than_a_host_has_are_not_listed(tmp_path: Path) -> None:
    snapshot = read_inputs([CASES / "counted.txt"])  # "Attached GPUs: 1000000000"
    began_s = time.process_time()
    statuses = {check.id: check.status for check in judge_machine(snapshot).checks}
    assert time.process_time() - began_s < MAX_CPU_S
    assert statuses["gpu-ecc-uncorrectable"] == "unknown"
    with pytest.raises(NotReadError, match="counts 1,000,000,000 GPUs, and a host has at most 1,024"):
        _ = Machine(snapshot).gpus


@pytest.mark.parametrize(("count", "is_listed"), [(1024, True), (1025, False)])
def test_gpus_that_are_only_counted_are_listed_up_to_a_bound(tmp_path: Path, count: int, is_listed: bool) -> None:
    text = smi().outputs["nvidia-smi -q"].text
    assert text is not None
    (tmp_path / "smi.txt").write_text(text.replace(": 4\n", f": {count}\n"))
    machine = Machine(read_inputs([tmp_path / "smi.txt"]))
    if is_listed:
        assert len(machine.gpus) == count
    else:
        with pytest.raises(NotReadError):
            _ = machine.gpus


def test_a_link_that_leaves_a_folder_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret\n")
    host = tmp_path / "host" / "proc"
    host.mkdir(parents=True)
    (host / "meminfo").write_text("MemTotal: 1 kB\n")
    (host / "inside").symlink_to("meminfo")
    (host / "outside").symlink_to(tmp_path / "secret")
    (host / "itself").symlink_to("itself")
    snapshot = read_inputs([tmp_path / "host"])
    assert set(snapshot.files) == {"/proc/meminfo", "/proc/inside"}
    assert snapshot.problems == {"/proc/outside": "it is a link that leaves the folder"}


def test_a_pipe_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InputError, match="it is a pipe, and only files are read"):
        read_inputs([tmp_path / "pipe"])


@pytest.mark.parametrize(
    "part", ["<" + "a" * 150_000, "<" * 75_000 + "a" * 75_000, "<a " * 50_000, "<a>" * 50_000, "&amp;" * 30_000]
)
def test_xml_without_its_ends_costs_no_time(tmp_path: Path, part: str) -> None:
    begin = "<?xml version='1.0'?>\n<nvidia_smi_log>\n<gpu id='00000000:1B:00.0'>\n"
    (tmp_path / "smi.xml").write_text(f"{begin}{part}\n")
    began_s = time.process_time()
    with suppress(InputError):
        judge_machine(read_inputs([tmp_path / "smi.xml"]))
    assert time.process_time() - began_s < MAX_CPU_S


def test_long_lines_cost_no_time(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("node:1:2 [0] NCCL INFO " + "a:0.[" * 40_000 + "\nnode:1:2 [0] NCCL INFO x\n")
    began_s = time.process_time()
    judge_machine(read_inputs([tmp_path / "log"]))
    assert time.process_time() - began_s < MAX_CPU_S
