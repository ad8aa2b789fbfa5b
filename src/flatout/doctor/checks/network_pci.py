"""How NICs reach the GPUs' memory."""

from __future__ import annotations

import re

from flatout.doctor.check import CheckOutcome, check, fail, info, named, none_in_log, ok, warn, with_missing
from flatout.doctor.graph import topology_of
from flatout.doctor.machine import Machine
from flatout.doctor.unknown import NotHereError, NotReadError


@check(
    "nic-pcie-link",
    "network",
    title="the PCIe link of each NIC has all its lanes and its full speed",
    read="sysfs current_link_speed, current_link_width and their max, else `lspci -vvv` LnkSta and LnkCap",
    expected="current = max",
    source="vendor: what the NIC itself says it can",
    cost="a 400 Gb/s NIC needs 16 lanes of generation 5: half of either halves what it sends",
    fix="reseat the NIC; move it to a slot of its generation",
    when_wrong="a newer NIC in an older slot, as bought; a second port of one NIC has a link of its own for show",
)
def pcie_link(machine: Machine) -> CheckOutcome:
    topology = topology_of(machine)
    if topology is None:
        raise NotReadError("no NIC's link is in what was read")
    nics = [node for node in topology.nodes if node.kind == "nic"]
    if not nics:
        if machine.bus_is_known:
            raise NotHereError("there is no NIC on the bus")
        raise NotReadError("no NIC is in what was read")
    slow, narrow, num_read = [], [], 0
    for nic in nics:
        link = nic.link
        if link is None or link.width is None or link.max_width is None:
            continue
        if link.width < link.max_width:
            narrow.append(f"{nic.id}: x{link.width} of x{link.max_width}")
        elif link.speed_gt_per_s is None or link.max_speed_gt_per_s is None:
            continue
        elif link.speed_gt_per_s < link.max_speed_gt_per_s:
            slow.append(f"{nic.id}: {link.speed_gt_per_s:g} of {link.max_speed_gt_per_s:g} GT/s")
        num_read += 1
    if not num_read:
        raise NotReadError("no NIC gives its link now and at most (virtual NICs have none)")
    if narrow:
        return fail(f"fewer lanes: {named(narrow)}" + (f"; slower: {named(slow)}" if slow else ""))
    outcome = warn(f"slower: {named(slow)}") if slow else ok(f"{num_read} NICs at full speed")
    return with_missing(outcome, len(nics) - num_read, "NICs did not say")


@check(
    "nic-gpu-direct",
    "network",
    title="the kernel lets NICs read and write the GPUs' memory",
    read="/proc/modules: nvidia_peermem; /proc/driver/nvidia/version: open module; kernel version (DMA-BUF from 5.12)",
    expected="nvidia_peermem, or DMA-BUF: the open kernel module on Linux 5.12 or newer",
    source="NVIDIA GPUDirect RDMA documentation; NCCL documentation, GPUDirect",
    cost="each message between hosts takes a copy through memory of the host; one host without it holds back all",
    fix="`modprobe nvidia_peermem` by an administrator, or the open kernel modules",
    when_wrong="EFA and other fabrics have modules of their own; an NCCL log with GDRDMA is proof",
)
def gpu_direct(machine: Machine) -> CheckOutcome:
    devices = machine.rdma_devices
    if not machine.num_gpus:
        raise NotHereError("there is no NVIDIA GPU")
    modules = machine.modules()
    if modules & {"nvidia_peermem", "nv_peer_mem"}:
        return ok(f"nvidia_peermem is loaded, {len(devices)} RDMA devices")
    driver = machine.file("/proc/driver/nvidia/version")
    release = re.match(r"(\d+)\.(\d+)", machine.file("/proc/sys/kernel/osrelease"))
    if "Open Kernel Module" in driver and release and (int(release[1]), int(release[2])) >= (5, 12):
        return ok("DMA-BUF: the open kernel module on a kernel that has it")
    return fail("nvidia_peermem is not loaded, and the driver or the kernel has no DMA-BUF for it")


@check(
    "nic-health",
    "network",
    title="the firmware of the NICs answers the driver",
    read="kernel log: mlx5_core, health compromised, Health issue observed",
    expected="none",
    source="Linux kernel documentation, mlx5 devlink health reporters",
    cost="the port is gone until the driver has reset it: NCCL's connections over it fail (completion status 12)",
    fix="restart the node; update the NIC's firmware; if it returns, replace the NIC",
    when_wrong="the log may be days old",
)
def health(machine: Machine) -> CheckOutcome:
    lines = machine.kernel_log.lines["nic_health"]
    return fail(f"{len(lines)} lines, the last: {lines[-1][:140]}") if lines else none_in_log(machine)


@check(
    "nic-peermem-errors",
    "network",
    title="nvidia_peermem reports no error",
    read="kernel log: nvidia-peermem ERROR",
    expected="none",
    source="NVIDIA GPUDirect RDMA documentation",
    cost="a process that ends while its memory is registered; many of them come with jobs that crash",
    fix="a newer driver and a newer stack of the NIC",
    when_wrong="`detected invalid context, skipping further processing` at the end of a process is harmless",
)
def peermem_errors(machine: Machine) -> CheckOutcome:
    lines = machine.kernel_log.lines["peermem"]
    if not lines:
        return none_in_log(machine)
    harmless = all("invalid context" in line for line in lines)
    return (info if harmless else warn)(f"{len(lines)} lines, the last: {lines[-1][:140]}")
