"""Checks of the NICs' PCIe links, and of their access to GPU memory."""

from __future__ import annotations

import re

from flatout.doctor.check import check, fail, info, named, ok, warn, with_missing
from flatout.doctor.graph import topology_of
from flatout.doctor.log_lines import judge_log
from flatout.doctor.machine import Machine
from flatout.doctor.outcome import CheckOutcome
from flatout.doctor.pcie_links import LinkComparison
from flatout.doctor.unknown import NotHereError, NotReadError


@check(
    "nic-pcie-link",
    "network",
    topic="PCIe links of the NICs",
    read="sysfs current_link_speed, current_link_width and their max, else `lspci -vvv` LnkSta and LnkCap",
    expected="current = max",
    source="vendor: the maximum that the NIC itself reports",
    cost="a 400 Gb/s NIC needs 16 lanes of generation 5: half the lanes or half the speed halve its bandwidth",
    fix="reseat the NIC; move it to a slot of its generation",
    when_wrong="the NIC is newer than its slot by choice; the second port of a NIC reports a link that does not exist",
    traffic="network",
)
def pcie_link(machine: Machine) -> CheckOutcome:
    topology = topology_of(machine)
    if topology is None:
        raise NotReadError("the input does not show any NIC link")
    links = {node.id: node.link for node in topology.nodes if node.kind == "nic"}
    if not links:
        if machine.bus_is_known:
            raise NotHereError("there is no NIC on the bus")
        raise NotReadError("the input has no NIC")
    compared = LinkComparison(links)
    if not compared.num_read:
        raise NotReadError("no NIC reports its current and maximum link (virtual NICs have none)")
    slow = named(f"{nic}: {speeds}" for nic, speeds in compared.slow.items())
    share = compared.lowest_share
    if compared.narrow:
        narrow = named(f"{nic}: {lanes}" for nic, lanes in compared.narrow.items())
        slower = f"; slower: {slow}" if slow else ""
        return fail(f"PCIe links of NICs have fewer lanes: {narrow}{slower}", bandwidth_share=share)
    if slow:
        outcome = warn(f"PCIe links of NICs are slower than they can be: {slow}", bandwidth_share=share)
    else:
        outcome = ok(f"{compared.num_read} NICs at full speed")
    return with_missing(outcome, compared.num_missing, "NICs reported no value")


@check(
    "nic-gpu-direct",
    "network",
    topic="kernel support for GPUDirect RDMA",
    read="/proc/modules: nvidia_peermem; /proc/driver/nvidia/version: open module; kernel version (DMA-BUF from 5.12)",
    expected="nvidia_peermem, or DMA-BUF: the open kernel module on Linux 5.12 or newer",
    source="NVIDIA GPUDirect RDMA documentation; NCCL documentation, GPUDirect",
    cost="each message between hosts is copied through host memory; one host without it slows down all hosts",
    fix="ask an administrator to run `modprobe nvidia_peermem`, or to install the open kernel modules",
    when_wrong="EFA and other fabrics have separate modules; an NCCL log with GDRDMA is proof",
    traffic="network",
)
def gpu_direct(machine: Machine) -> CheckOutcome:
    devices = machine.rdma_devices
    if not machine.num_gpus:
        raise NotHereError("there is no NVIDIA GPU")
    if machine.modules() & {"nvidia_peermem", "nv_peer_mem"}:
        return ok(f"nvidia_peermem is loaded, {len(devices)} RDMA devices")
    is_open_module = "Open Kernel Module" in machine.file("/proc/driver/nvidia/version")
    release = re.match(r"(\d+)\.(\d+)", machine.file("/proc/sys/kernel/osrelease"))
    has_dma_buf = release is not None and (int(release[1]), int(release[2])) >= (5, 12)
    if is_open_module and has_dma_buf:
        return ok("DMA-BUF: the open kernel module on a kernel that supports it")
    return fail("nvidia_peermem is not loaded, and the driver or the kernel lacks DMA-BUF")


@check(
    "nic-health",
    "network",
    topic="NIC firmware health",
    read="kernel log: firmware and command errors of mlx5_core, bnxt_en, ice, ena, efa and others; `NETDEV WATCHDOG`",
    expected="none",
    source="Linux kernel documentation, mlx5 devlink health reporters",
    cost="the port is down until the driver resets it, and NCCL's connections over it fail (completion status 12)",
    fix="restart the node; update the NIC's firmware; if it happens again, replace the NIC",
    when_wrong="the log can be days old",
)
def health(machine: Machine) -> CheckOutcome:
    return judge_log(machine, "nic_health", fail)


@check(
    "nic-peermem-errors",
    "network",
    topic="errors of nvidia_peermem",
    read="kernel log: nvidia-peermem ERROR",
    expected="none",
    source="NVIDIA GPUDirect RDMA documentation",
    cost="a process ended while its memory was registered; frequent crashes of jobs cause many such errors",
    fix="install a newer driver and a newer software stack for the NIC",
    when_wrong="`detected invalid context, skipping further processing` at the end of a process is harmless",
)
def peermem_errors(machine: Machine) -> CheckOutcome:
    lines = machine.kernel_log.lines["peermem"]
    is_harmless = all("invalid context" in line for line in lines)
    return judge_log(machine, "peermem", info if is_harmless else warn)
