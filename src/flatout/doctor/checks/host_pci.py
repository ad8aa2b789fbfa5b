"""IOMMU and PCIe access control, which send traffic between devices through the CPU."""

from __future__ import annotations

import re

from flatout.doctor.check import CheckOutcome, check, info, named, need, ok, warn
from flatout.doctor.machine import Machine
from flatout.doctor.unknown import NotReadError

_NCCL = "NCCL documentation, troubleshooting: PCI access control services (ACS) and IOMMU"


@check(
    "pci-iommu",
    "host",
    title="on bare metal, the IOMMU translates nothing for GPUs and NICs",
    read="sysfs: iommu_groups/*/type; /proc/cmdline: iommu=, intel_iommu=, amd_iommu=",
    expected="none, or type identity (iommu=pt)",
    source=_NCCL,
    cost="traffic between GPUs, and between GPU and NIC, goes up to the root and back: half its bandwidth, or hangs",
    fix="an administrator starts the kernel with `iommu=pt`, or turns it off in the firmware",
    when_wrong="virtual machines, Grace and confidential computing need it",
)
def iommu(machine: Machine) -> CheckOutcome:
    if machine.is_virtual:
        return info("this is a virtual machine: its host decides")
    groups = machine.matching("/sys/kernel/iommu_groups/*/type")
    if not groups:
        if machine.snapshot.problems.get("/sys/kernel/iommu_groups") in ("empty", "no such file or directory"):
            return ok("off")
        options = re.findall(r"\b(?:intel_|amd_)?iommu=\S+", machine.file("/proc/cmdline"))
        raise NotReadError(
            f"no IOMMU group was read; the kernel was started with {named(options) or 'no option for it'}"
        )
    translated = [path for path, kind in groups.items() if kind != "identity"]
    if not translated:
        return ok(f"identity for {len(groups)} groups")
    kinds = named(sorted({groups[path] for path in translated}))
    return (warn if machine.num_gpus else info)(f"{kinds} for {len(translated)} of {len(groups)} groups")


@check(
    "pci-access-control",
    "host",
    title="on bare metal, PCIe switches let devices talk to each other directly",
    read="`lspci -vvv`: ACSCtl of bridges (most systems show it to root only)",
    expected="ReqRedir- on all bridges between GPUs and NICs",
    source=_NCCL,
    cost="traffic below a switch goes up to the root and back: half its bandwidth, or hangs",
    fix="turn ACS off in the firmware, or `setpci` as NCCL's documentation shows",
    when_wrong="a virtual machine's host needs it to keep guests apart; root ports without a switch below",
)
def access_control(machine: Machine) -> CheckOutcome:
    devices = machine.lspci
    bridges = [device for device in devices if device.kind == "PCI bridge"]
    said = [device for device in bridges if device.acs_redirects is not None]
    if not said:
        denied = any(device.is_denied for device in devices)
        raise NotReadError("lspci shows ACSCtl to root only" if denied else "lspci shows no ACSCtl")
    redirecting = [device.address for device in said if device.acs_redirects]
    if not redirecting:
        if len(said) < len(bridges):
            raise NotReadError(f"{len(bridges) - len(said)} of {len(bridges)} bridges do not say")
        return ok(f"{len(said)} bridges redirect nothing")
    try:
        if machine.is_virtual:
            return info(f"in this virtual machine, on {named(redirecting)}")
    except NotReadError:
        pass
    return warn(f"requests are redirected on {named(redirecting)}")


@check(
    "pci-read-request",
    "network",
    title="NICs may ask for large reads",
    read="`lspci -vvv`: DevCtl, MaxReadReq of InfiniBand and Ethernet controllers of NVIDIA (Mellanox)",
    expected="4096 bytes",
    source="NVIDIA networking documentation, PCIe tuning",
    cost="more requests for the same data: some bandwidth of 200 Gb/s and faster NICs",
    fix="`setpci` or mlxconfig by an administrator",
    when_wrong="NICs below 200 Gb/s lose nothing with 512",
)
def read_request(machine: Machine) -> CheckOutcome:
    nics = {
        device.address: device.max_read_request_bytes
        for device in machine.lspci
        if device.kind in ("Infiniband controller", "Ethernet controller") and "Mellanox" in device.name
    }
    known = {address: size for address, size in nics.items() if size is not None}
    need(list(known), "lspci shows no MaxReadReq of such a NIC (it needs -vvv, often as root)")
    small = [f"{address}: {size}" for address, size in known.items() if size < 4096]
    if small:
        return info(f"smaller: {named(small)}")
    return (
        ok(f"4096 on {len(known)} NICs")
        if len(known) == len(nics)
        else info(f"4096 on {len(known)} of {len(nics)} NICs")
    )
