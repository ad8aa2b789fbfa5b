"""Checks of the IOMMU and PCIe access control, which can redirect traffic between devices through the CPU."""

from __future__ import annotations

import re

from flatout.doctor.check import check, info, named, need, ok, warn
from flatout.doctor.machine import NO_FILE, Machine
from flatout.doctor.outcome import CheckOutcome
from flatout.doctor.unknown import NotReadError

_NCCL = "NCCL documentation, troubleshooting: PCI access control services (ACS) and IOMMU"


@check(
    "pci-iommu",
    "host",
    topic="IOMMU translation",
    read="sysfs: iommu_groups/*/type; /proc/cmdline: iommu=, intel_iommu=, amd_iommu=",
    expected="none, or type identity (iommu=pt), on bare metal",
    source=_NCCL,
    cost="traffic between GPUs, and between GPU and NIC, goes through the root complex: half the bandwidth, or hangs",
    fix="ask an administrator to start the kernel with `iommu=pt`, or to turn the IOMMU off in the firmware",
    when_wrong="virtual machines, Grace and confidential computing need it",
    traffic="pcie",
)
def iommu(machine: Machine) -> CheckOutcome:
    if machine.is_virtual:
        return info("this is a virtual machine, and its host controls the IOMMU")
    groups = machine.matching("/sys/kernel/iommu_groups/*/type")
    if not groups:
        if machine.snapshot.problems.get("/sys/kernel/iommu_groups") in ("empty", NO_FILE):
            return ok("off")
        options = re.findall(r"\b(?:intel_|amd_)?iommu=\S+", machine.file("/proc/cmdline"))
        shown = named(options) or "no IOMMU option"
        raise NotReadError(f"the input has no IOMMU group; the kernel was started with {shown}")
    translated = [kind for kind in groups.values() if kind != "identity"]
    if not translated:
        return ok(f"identity for {len(groups)} groups")
    kinds = named(sorted(set(translated)))
    shown = f"{kinds} for {len(translated)} of {len(groups)} groups"
    return warn(f"IOMMU translation is on: {shown}") if machine.num_gpus else info(shown)


@check(
    "pci-access-control",
    "host",
    topic="PCIe access control (ACS)",
    read="`lspci -vvv`: ACSCtl of bridges (most systems show it to root only)",
    expected="ReqRedir- on all bridges between GPUs and NICs, on bare metal",
    source=_NCCL,
    cost="traffic below a switch goes through the root complex: half the bandwidth, or hangs",
    fix="turn ACS off in the firmware, or with `setpci` as NCCL's documentation shows",
    when_wrong="a virtual machine's host needs ACS to isolate guests; root ports without a switch below do not matter",
    traffic="pcie",
)
def access_control(machine: Machine) -> CheckOutcome:
    bridges = [device for device in machine.lspci if device.kind == "PCI bridge"]
    readable = [bridge for bridge in bridges if bridge.acs_redirects is not None]
    if not readable:
        is_denied = any(device.is_denied for device in machine.lspci)
        raise NotReadError("lspci shows ACSCtl to root only" if is_denied else "lspci shows no ACSCtl")
    redirecting = [bridge.address for bridge in readable if bridge.acs_redirects]
    num_missing = len(bridges) - len(readable)
    if not redirecting and num_missing:
        raise NotReadError(f"{num_missing} of {len(bridges)} bridges report no value")
    if not redirecting:
        return ok(f"{len(readable)} bridges redirect nothing")
    if machine.is_surely_virtual:
        return info(f"in this virtual machine, on {named(redirecting)}")
    return warn(f"PCIe requests are redirected (ACS) on {named(redirecting)}")


@check(
    "pci-read-request",
    "network",
    topic="PCIe read request size of the NICs",
    read="`lspci -vvv`: DevCtl, MaxReadReq of InfiniBand and Ethernet controllers of NVIDIA (Mellanox)",
    expected="4096 bytes",
    source="NVIDIA networking documentation, PCIe tuning",
    cost="the same data needs more requests, and NICs of 200 Gb/s and faster lose some bandwidth",
    fix="ask an administrator to set it with `setpci` or mlxconfig",
    when_wrong="NICs below 200 Gb/s lose nothing with 512",
)
def read_request(machine: Machine) -> CheckOutcome:
    controllers = ("Infiniband controller", "Ethernet controller")
    nics = [device for device in machine.lspci if device.kind in controllers and "Mellanox" in device.name]
    sizes = {nic.address: nic.max_read_request_bytes for nic in nics if nic.max_read_request_bytes is not None}
    need(list(sizes), "lspci shows no MaxReadReq of such a NIC (it needs -vvv, often as root)")
    small = [f"{address}: {size}" for address, size in sizes.items() if size < 4096]
    if small:
        return info(f"smaller: {named(small)}")
    if len(sizes) < len(nics):
        return info(f"4096 on {len(sizes)} of {len(nics)} NICs")
    return ok(f"4096 on {len(sizes)} NICs")
