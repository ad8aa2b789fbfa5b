"""Modes of the GPUs, and whether all are there."""

from __future__ import annotations

import re

from flatout.doctor.check import CheckOutcome, check, fail, info, named, need, none_in_log, ok, warn, with_missing
from flatout.doctor.graph import lspci_kind, pci_kind
from flatout.doctor.machine import SMI_LIST, Machine
from flatout.doctor.parse.kernel_log import GpuEvent
from flatout.doctor.parse.nvidia_smi import is_list_complete
from flatout.doctor.unknown import NotReadError

_SMI = "NVIDIA nvidia-smi manual, https://docs.nvidia.com/deploy/nvidia-smi/"
# NVIDIA's catalogue of Xid messages; the list of Azure's node health checks, with 94 and 95 (contained and uncontained
# memory errors) and 79 (fallen off the bus). 13, 31, 43 and 45 are mostly faults of the program.
_XID_OF_HARDWARE = {48, 56, 57, 58, 62, 63, 64, 65, 68, 69, 73, 74, 79, 80, 81, 92, 94, 95, 109, 119, 120, 140}
_XID_OF_PROGRAM = {13, 31, 43, 45}
_XID_OF_NVLINK = range(144, 151)  # of Blackwell; whether it is fatal, the line says
_RECOVERY_ACTION = 154  # `changed from 0x0 (None) to 0x4 (Drain and Reset)`


def _is_hardware(event: GpuEvent) -> bool:
    if event.code in _XID_OF_NVLINK:
        return "Nonfatal" not in event.text
    if event.code == _RECOVERY_ACTION:
        return not re.search(r"to 0x0 \(None\)", event.text)
    return event.code in _XID_OF_HARDWARE


@check(
    "gpu-count",
    "gpu",
    title="the driver uses every GPU that is plugged in",
    read="`nvidia-smi -q`: GPUs, against PCI devices of class 03 of NVIDIA in sysfs or lspci",
    expected="the same number",
    source="the bus itself",
    cost="a GPU that fell off the bus: the job does not start, or runs with fewer ranks",
    fix="look for Xid 79 in the kernel log, reset the node, reseat the GPU",
    when_wrong="a container sees the bus of the host, but only the GPUs that it was given",
)
def count(machine: Machine) -> CheckOutcome:
    # A second function of a GPU (.1) is its audio.
    plugged = {
        address
        for address in machine.pci_addresses
        if pci_kind(machine, address) == "gpu"
        and machine.optional(f"/sys/bus/pci/devices/{address}/vendor") == "0x10de"
    }
    try:
        listed = [d for d in machine.lspci if lspci_kind(d.kind, d.name) == "gpu" and "NVIDIA" in d.name]
    except NotReadError:
        listed = []
    if gone := [device.address for device in listed if device.is_gone]:
        return fail(f"on the bus, but answering nothing (rev ff): {named(gone)}")
    if not plugged:
        plugged = {device.address for device in listed}
    if not plugged:
        raise NotReadError("no NVIDIA GPU is on the bus that was read")
    try:
        used = {gpu.address for gpu in machine.smi.gpus}
    except NotReadError as error:
        raise NotReadError(f"{len(plugged)} NVIDIA GPUs are on the bus, but {error}") from error
    if machine.smi.num_attached not in (None, len(used)):
        raise NotReadError(f"`nvidia-smi -q` says {machine.smi.num_attached} GPUs and describes {len(used)}")
    if missing := sorted(plugged - used):
        try:
            is_container = machine.is_container
        except NotReadError as error:
            return warn(f"on the bus, but not used by the driver: {named(missing)}; as in a container: {error}")
        if is_container:
            return info(f"{len(used)} of {len(plugged)} GPUs of the host are given to this container")
        return fail(f"on the bus, but not used by the driver: {named(missing)}")
    return ok(f"{len(used)} GPUs")


@check(
    "gpu-persistence",
    "gpu",
    title="the driver stays loaded between jobs",
    read="`nvidia-smi -q`: Persistence Mode",
    expected="Enabled",
    source=_SMI,
    cost="seconds at each start of a job, and clocks and limits that are forgotten between jobs",
    fix="an administrator starts nvidia-persistenced",
    when_wrong="under some hypervisors it cannot be enabled",
)
def persistence(machine: Machine) -> CheckOutcome:
    modes = {gpu.address: mode for gpu in machine.gpus if (mode := gpu.text("Persistence Mode"))}
    need(list(modes), "`nvidia-smi -q` has no Persistence Mode")
    off = [gpu for gpu, mode in modes.items() if mode != "Enabled"]
    outcome = warn(f"disabled on {named(off)}") if off else ok(f"enabled on {len(modes)} GPUs")
    return with_missing(outcome, len(machine.gpus) - len(modes), "GPUs did not say")


@check(
    "gpu-compute-mode",
    "gpu",
    title="processes may share a GPU where they need to",
    read="`nvidia-smi -q`: Compute Mode",
    expected="Default",
    source=_SMI,
    cost="Prohibited: no job runs; Exclusive_Process: a second process on the GPU (a loader with CUDA, a tool) fails",
    fix="an administrator sets `nvidia-smi -c DEFAULT`",
    when_wrong="one process a GPU, without helpers, runs well in exclusive mode",
)
def compute_mode(machine: Machine) -> CheckOutcome:
    modes = {gpu.address: mode for gpu in machine.gpus if (mode := gpu.text("Compute Mode"))}
    need(list(modes), "`nvidia-smi -q` has no Compute Mode")
    prohibited = [gpu for gpu, mode in modes.items() if mode == "Prohibited"]
    if prohibited:
        return fail(f"no process may use {named(prohibited)}")
    exclusive = [gpu for gpu, mode in modes.items() if mode.startswith("Exclusive")]
    outcome = info(f"exclusive on {named(exclusive)}") if exclusive else ok(f"Default on {len(modes)} GPUs")
    return with_missing(outcome, len(machine.gpus) - len(modes), "GPUs did not say")


@check(
    "gpu-mig",
    "gpu",
    title="no GPU is divided into MIG devices",
    read="`nvidia-smi -q`: MIG Mode, Current; else MIG devices in `nvidia-smi -L`",
    expected="Disabled",
    source="NVIDIA Multi-Instance GPU user guide: MIG devices have no NVLink and no GPU-to-GPU P2P",
    cost="NCCL runs at most one rank a GPU, without peer-to-peer transfers",
    fix="an administrator sets `nvidia-smi -mig 0` and resets the GPU",
    when_wrong="jobs of one GPU may well share it by MIG",
)
def mig(machine: Machine) -> CheckOutcome:
    missing = 0
    try:
        missing = sum("MIG Mode/Current" not in gpu.values for gpu in machine.gpus)
        modes = {gpu.address: gpu.text("MIG Mode/Current") for gpu in machine.gpus}
        known = {gpu: mode == "Enabled" for gpu, mode in modes.items() if mode}
        if not known and not any("MIG Mode/Current" in gpu.values for gpu in machine.gpus):
            raise NotReadError("`nvidia-smi -q` has no MIG Mode")
        if not known:
            return ok("these GPUs cannot be divided")
    except NotReadError:
        missing = 0
        known = {f"GPU{number}": devices > 0 for number, (_, devices) in machine.listed.items()}
        is_whole = is_list_complete(machine.snapshot.outputs[SMI_LIST].text or "")
        if not is_whole and not any(known.values()):
            raise NotReadError(f"the list of `{SMI_LIST}` is cut off: MIG devices may be missing") from None
    divided = [gpu for gpu, is_divided in known.items() if is_divided]
    outcome = fail(f"divided: {named(divided)}") if divided else ok(f"none of {len(known)} GPUs is divided")
    return with_missing(outcome, missing, "GPUs did not say")


@check(
    "gpu-fabric",
    "gpu",
    title="GPUs on an NVSwitch have joined their fabric",
    read="`nvidia-smi -q`: Fabric, State and Status",
    expected="Completed, Success",
    source="NVIDIA Fabric Manager user guide",
    cost="CUDA does not start on such a GPU (error 802), or NVLink is not used: all-reduce at PCIe speed",
    fix="an administrator starts nvidia-fabricmanager in the driver's own version",
    when_wrong="GPUs without NVSwitch say N/A",
)
def fabric(machine: Machine) -> CheckOutcome:
    states = {gpu.address: (gpu.text("Fabric/State"), gpu.text("Fabric/Status")) for gpu in machine.gpus}
    known = {gpu: pair for gpu, pair in states.items() if pair[0]}
    if not known:
        if any(gpu.section("Fabric") for gpu in machine.gpus):
            return info("these GPUs are on no NVSwitch")
        raise NotReadError("`nvidia-smi -q` has no Fabric")
    bad = [
        f"{gpu}: {', '.join(filter(None, pair))}"
        for gpu, pair in known.items()
        if pair[0] != "Completed" or pair[1] not in (None, "Success")
    ]
    outcome = fail(f"not joined: {named(bad)}") if bad else ok(f"{len(known)} GPUs completed")
    return with_missing(outcome, len(states) - len(known), "GPUs did not say")


@check(
    "gpu-recovery-action",
    "gpu",
    title="the driver asks for no reset",
    read="`nvidia-smi -q`: GPU Recovery Action",
    expected="None",
    source=_SMI,
    cost="the GPU cannot be used, or not reliably, until then",
    fix="drain the node and do what is asked: reset or reboot",
    when_wrong="never seen to be",
)
def recovery_action(machine: Machine) -> CheckOutcome:
    actions: dict[str, str] = {}
    for gpu in machine.gpus:
        found = [value for path, value in gpu.values.items() if path.endswith("GPU Recovery Action")]
        if found and found[0].lower() not in ("n/a", "unknown"):
            actions[gpu.address] = found[0]
    need(list(actions), "`nvidia-smi -q` has no GPU Recovery Action: the driver is older than 555")
    asked = [f"{gpu}: {action}" for gpu, action in actions.items() if action != "None"]
    outcome = fail(f"asked for: {named(asked)}") if asked else ok(f"None on {len(actions)} GPUs")
    return with_missing(outcome, len(machine.gpus) - len(actions), "GPUs did not say")


@check(
    "gpu-confidential-compute",
    "gpu",
    title="whether confidential computing is on",
    read="`nvidia-smi -q`: Conf Compute Protected Memory Usage, Total",
    expected="either",
    source="NVIDIA confidential computing deployment guides",
    cost="copies to and from the host are encrypted, at a few GB/s instead of the link's speed",
    fix="turn it off where it is not needed",
    when_wrong="never seen to be",
)
def confidential(machine: Machine) -> CheckOutcome:
    sizes = {
        gpu.address: size
        for gpu in machine.gpus
        if (size := gpu.number("Conf Compute Protected Memory Usage/Total")) is not None
    }
    need(list(sizes), "`nvidia-smi -q` does not tell protected memory")
    on = [gpu for gpu, size in sizes.items() if size > 0]
    return info(f"on for {named(on)}" if on else "off")


@check(
    "gpu-xid",
    "gpu",
    title="the driver has reported no fault of a GPU",
    read="kernel log (`dmesg`, else `journalctl -k` of 24 hours): NVRM: Xid, and `fallen off the bus` without one",
    expected="no Xid of hardware",
    source="NVIDIA Xid catalogue, https://docs.nvidia.com/deploy/xid-errors/; Azure's list for node health",
    cost="the job ends, or a GPU falls out of it",
    fix="look the code up in the vendor's catalogue; drain the node for 48, 64, 74, 79, 95, 119",
    when_wrong="the log may be days old: an Xid before the last reset is history",
)
def xid(machine: Machine) -> CheckOutcome:
    events = machine.kernel_log.xids
    hardware = sorted({f"Xid {event.code} on {event.address}" for event in events if _is_hardware(event)})
    said = {event.address for event in events if event.code == 79}
    hardware += [
        f"{address} has fallen off the bus"
        for address in machine.kernel_log.off_bus
        if not any(address.startswith(other) for other in said)
    ]
    if hardware:
        return fail(named(hardware))
    other = [event for event in events if event.code not in _XID_OF_PROGRAM]
    if other:
        return warn(f"Xid {named(sorted({f'{event.code} on {event.address}' for event in other}))}")
    if events:
        return warn(f"Xid {named(sorted({str(event.code) for event in events}))}: mostly a fault of a program")
    return none_in_log(machine)


@check(
    "gpu-sxid",
    "gpu",
    title="the NVSwitches have reported no fault",
    read="kernel log: nvidia-nvswitch SXid",
    expected="none",
    source="NVIDIA Fabric Manager user guide, SXid messages",
    cost="a fatal one ends every job that uses the switch",
    fix="an administrator resets the GPUs and switches of the board together",
    when_wrong="the log may be days old; many SXids are not fatal",
)
def sxid(machine: Machine) -> CheckOutcome:
    events = machine.kernel_log.sxids
    if not events:
        return none_in_log(machine)
    is_fatal = any(event.text.lower().startswith("fatal") for event in events)
    codes = named(sorted({f"{event.code} on {event.address}" for event in events}))
    return fail(f"fatal SXid: {codes}") if is_fatal else warn(f"SXid {codes}")
