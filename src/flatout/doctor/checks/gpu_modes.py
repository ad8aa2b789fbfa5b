"""Checks of GPU modes, the number of GPUs, and faults logged by the driver."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from flatout.catalog.xids import xid_fix, xid_name
from flatout.doctor.check import check, fail, info, named, none_in_log, ok, warn, with_missing
from flatout.doctor.gpu_values import gpu_values
from flatout.doctor.log_lines import judge_log
from flatout.doctor.lspci_tree import lspci_kind
from flatout.doctor.machine import NVIDIA, SMI_LIST, Machine
from flatout.doctor.outcome import CheckOutcome
from flatout.doctor.parse.kernel_log import GpuEvent
from flatout.doctor.parse.lspci import PciDevice
from flatout.doctor.parse.nvidia_smi import SmiGpu, is_list_complete
from flatout.doctor.sysfs_tree import pci_kind
from flatout.doctor.unknown import NotReadError

_SMI = "NVIDIA nvidia-smi manual, https://docs.nvidia.com/deploy/nvidia-smi/"
# NVIDIA's catalogue of Xid messages; the list of Azure's node health checks, with 94 and 95 (contained and uncontained
# memory errors) and 79 (fallen off the bus). 13, 31, 43 and 45 are mostly faults of the program.
_HARDWARE_XIDS = {48, 56, 57, 58, 62, 63, 64, 65, 68, 69, 73, 74, 79, 80, 81, 92, 94, 95, 109, 119, 120, 140}
_PROGRAM_XIDS = {13, 31, 43, 45}
_NVLINK_XIDS = range(144, 151)  # on Blackwell; the line says whether the fault is fatal
_RECOVERY_ACTION_XID = 154  # `changed from 0x0 (None) to 0x4 (Drain and Reset)`
_OFF_BUS_XID = 79


@check(
    "gpu-count",
    "gpu",
    topic="number of GPUs",
    read="`nvidia-smi -q`: GPUs, compared with NVIDIA's PCI devices of class 03 in sysfs or lspci",
    expected="the same number",
    source="the PCI bus itself",
    cost="a GPU has fallen off the bus: the job does not start, or runs with fewer ranks",
    fix="look for Xid 79 in the kernel log, reset the node, reseat the GPU",
    when_wrong="a container sees the host's whole bus, but only its own GPUs",
)
def count(machine: Machine) -> CheckOutcome:
    listed = _listed_gpus(machine)
    gone = [device.address for device in listed if device.is_gone]
    if gone:
        return fail(f"GPUs on the bus do not respond (rev ff): {named(gone)}")
    on_bus = _sysfs_gpus(machine) or {device.address for device in listed}
    if not on_bus:
        raise NotReadError("the PCI bus has no NVIDIA GPU")
    try:
        used = {gpu.address for gpu in machine.smi.gpus}
    except NotReadError as error:
        raise NotReadError(f"{len(on_bus)} NVIDIA GPUs are on the bus, but {error}") from error
    if machine.smi.num_attached not in (None, len(used)):
        raise NotReadError(f"`nvidia-smi -q` counts {machine.smi.num_attached} GPUs and describes {len(used)}")
    unused = sorted(on_bus - used)
    if not unused:
        return ok(f"{len(used)} GPUs")
    try:
        is_container = machine.is_container
    except NotReadError as error:
        return warn(f"GPUs on the bus are not used by the driver: {named(unused)}; normal in a container: {error}")
    if is_container:
        return info(f"{len(used)} of {len(on_bus)} GPUs of the host are assigned to this container")
    return fail(f"GPUs on the bus are not used by the driver: {named(unused)}")


def _sysfs_gpus(machine: Machine) -> set[str]:
    """Return the addresses of NVIDIA's GPUs on the bus, without their audio functions (.1)."""
    gpus = {address for address in machine.pci_addresses if pci_kind(machine, address) == "gpu"}
    return {address for address in gpus if machine.pci_file(address, "vendor") == NVIDIA}


def _listed_gpus(machine: Machine) -> list[PciDevice]:
    """Return NVIDIA's GPUs that lspci lists; none if its output was not read."""
    try:
        devices = machine.lspci
    except NotReadError:
        return []
    gpus = [device for device in devices if lspci_kind(device.kind, device.name) == "gpu"]
    return [gpu for gpu in gpus if "NVIDIA" in gpu.name]


@check(
    "gpu-persistence",
    "gpu",
    topic="GPU persistence mode",
    read="`nvidia-smi -q`: Persistence Mode",
    expected="Enabled",
    source=_SMI,
    cost="each job takes seconds longer to start, and clock and power settings are lost between jobs",
    fix="ask an administrator to start nvidia-persistenced",
    when_wrong="some hypervisors do not allow it",
)
def persistence(machine: Machine) -> CheckOutcome:
    modes = gpu_values(machine, lambda gpu: gpu.text("Persistence Mode"), "`nvidia-smi -q` has no Persistence Mode")
    off = [gpu for gpu, mode in modes.items() if mode != "Enabled"]
    if off:
        return modes.judged(warn(f"persistence mode is disabled on {named(off)}"))
    return modes.judged(ok(f"enabled on {len(modes)} GPUs"))


@check(
    "gpu-compute-mode",
    "gpu",
    topic="GPU compute mode",
    read="`nvidia-smi -q`: Compute Mode",
    expected="Default",
    source=_SMI,
    cost="Prohibited: no job runs; Exclusive_Process: a second process on the GPU (a loader with CUDA, a tool) fails",
    fix="ask an administrator to run `nvidia-smi -c DEFAULT`",
    when_wrong="one process per GPU, without CUDA in other processes, runs well in exclusive mode",
)
def compute_mode(machine: Machine) -> CheckOutcome:
    modes = gpu_values(machine, lambda gpu: gpu.text("Compute Mode"), "`nvidia-smi -q` has no Compute Mode")
    prohibited = [gpu for gpu, mode in modes.items() if mode == "Prohibited"]
    if prohibited:
        return fail(f"no process can use {named(prohibited)}")
    exclusive = [gpu for gpu, mode in modes.items() if mode.startswith("Exclusive")]
    if exclusive:
        return modes.judged(info(f"exclusive on {named(exclusive)}"))
    return modes.judged(ok(f"Default on {len(modes)} GPUs"))


@check(
    "gpu-mig",
    "gpu",
    topic="GPU MIG mode",
    read="`nvidia-smi -q`: MIG Mode, Current; else MIG devices in `nvidia-smi -L`",
    expected="Disabled",
    source="NVIDIA Multi-Instance GPU user guide: MIG devices have no NVLink and no GPU-to-GPU P2P",
    cost="NCCL can use only one instance per GPU, and has no peer-to-peer transfers",
    fix="ask an administrator to run `nvidia-smi -mig 0` and reset the GPU",
    when_wrong="single-GPU jobs share a GPU deliberately",
)
def mig(machine: Machine) -> CheckOutcome:
    try:
        return _mig_by_mode(machine)
    except NotReadError:
        return _mig_by_devices(machine)


def _mig_by_mode(machine: Machine) -> CheckOutcome:
    path = "MIG Mode/Current"
    modes = {gpu.address: mode for gpu in machine.gpus if (mode := gpu.text(path))}
    num_missing = sum(path not in gpu.values for gpu in machine.gpus)
    if not modes and num_missing == len(machine.gpus):
        raise NotReadError("`nvidia-smi -q` has no MIG Mode")
    if not modes:
        return ok("these GPUs do not support MIG")
    outcome = _mig_outcome({gpu: mode == "Enabled" for gpu, mode in modes.items()})
    return with_missing(outcome, num_missing, "GPUs reported no value")


def _mig_by_devices(machine: Machine) -> CheckOutcome:
    is_divided = {f"GPU{number}": num_devices > 0 for number, (_, num_devices) in machine.listed.items()}
    text = machine.output(SMI_LIST)
    if not any(is_divided.values()) and not is_list_complete(text):
        raise NotReadError(f"the output of `{SMI_LIST}` is truncated: MIG devices may be missing")
    return _mig_outcome(is_divided)


def _mig_outcome(is_divided: dict[str, bool]) -> CheckOutcome:
    divided = [gpu for gpu, is_mig in is_divided.items() if is_mig]
    if divided:
        return fail(f"GPUs are divided (MIG): {named(divided)}")
    return ok(f"none of {len(is_divided)} GPUs is partitioned")


@check(
    "gpu-fabric",
    "gpu",
    topic="NVSwitch fabric state of the GPUs",
    read="`nvidia-smi -q`: Fabric, State and Status",
    expected="Completed, Success",
    source="NVIDIA Fabric Manager user guide",
    cost="CUDA does not start on such a GPU (error 802), or NVLink is not used: all-reduce at PCIe speed",
    fix="ask an administrator to start nvidia-fabricmanager in the driver's version",
    when_wrong="GPUs without NVSwitch report N/A",
    traffic="gpus",
)
def fabric(machine: Machine) -> CheckOutcome:
    try:
        states = gpu_values(machine, _fabric_state, "`nvidia-smi -q` has no Fabric")
    except NotReadError:
        if any(gpu.section("Fabric") for gpu in machine.gpus):
            return info("these GPUs are not connected to an NVSwitch")
        raise
    not_joined = [
        f"{gpu}: {state}" for gpu, state in states.items() if state not in ("Completed", "Completed, Success")
    ]
    if not_joined:
        return states.judged(fail(f"GPUs have not joined the NVSwitch fabric: {named(not_joined)}"))
    return states.judged(ok(f"{len(states)} GPUs have joined the fabric"))


def _fabric_state(gpu: SmiGpu) -> str | None:
    """Return `Completed, Success`, or the state alone if the GPU gives no status."""
    state = gpu.text("Fabric/State")
    status = gpu.text("Fabric/Status")
    if state is None or status is None:
        return state
    return f"{state}, {status}"


@check(
    "gpu-recovery-action",
    "gpu",
    topic="GPU recovery action",
    read="`nvidia-smi -q`: GPU Recovery Action",
    expected="None",
    source=_SMI,
    cost="until then, the GPU is unusable or unreliable",
    fix="drain the node, then reset or reboot as the driver requests",
    when_wrong="no known case",
)
def recovery_action(machine: Machine) -> CheckOutcome:
    actions = gpu_values(
        machine, _recovery_action, "`nvidia-smi -q` has no GPU Recovery Action: the driver is older than 555"
    )
    requested = [f"{gpu}: {action}" for gpu, action in actions.items() if action != "None"]
    if requested:
        return actions.judged(fail(f"the driver requests a recovery: {named(requested)}"))
    return actions.judged(ok(f"none needed on {len(actions)} GPUs"))


def _recovery_action(gpu: SmiGpu) -> str | None:
    """Return the recovery action; unlike in other fields, the text `None` is a value here: no action is needed."""
    for path, action in gpu.values.items():
        if path.endswith("GPU Recovery Action"):
            return None if action.lower() in ("n/a", "unknown") else action
    return None


@check(
    "gpu-confidential-compute",
    "gpu",
    topic="confidential computing on the GPUs",
    read="`nvidia-smi -q`: Conf Compute Protected Memory Usage, Total",
    expected="any",
    source="NVIDIA confidential computing deployment guides",
    cost="copies to and from the host are encrypted, at a few GB/s instead of the link's speed",
    fix="turn it off if it is not needed",
    when_wrong="no known case",
)
def confidential(machine: Machine) -> CheckOutcome:
    sizes = gpu_values(
        machine,
        lambda gpu: gpu.number("Conf Compute Protected Memory Usage/Total"),
        "`nvidia-smi -q` does not show protected memory",
    )
    on = [gpu for gpu, size in sizes.items() if size > 0]
    return info(f"on for {named(on)}" if on else "off")


@check(
    "gpu-xid",
    "gpu",
    topic="GPU Xid errors",
    read="kernel log (`dmesg`, else `journalctl -k` of the last 24 hours): NVRM: Xid, "
    "and `fallen off the bus` without one",
    expected="no hardware Xid",
    source="NVIDIA Xid catalogue, https://docs.nvidia.com/deploy/xid-errors/; Azure's list for node health",
    cost="the job ends or loses a GPU",
    fix="each Xid has its own fix, which the result shows; drain the node for 48, 64, 74, 79, 95, 119",
    when_wrong="the log can be days old: an Xid from before the last reset no longer matters",
)
def xid(machine: Machine) -> CheckOutcome:
    log = machine.kernel_log
    hardware = [event for event in log.xids if _is_hardware(event)]
    with_xid = tuple(event.address for event in log.xids if event.code == _OFF_BUS_XID)
    off_bus = [address for address in log.off_bus if not address.startswith(with_xid)]
    if hardware or off_bus:
        return _hardware_faults(hardware, off_bus)
    unclear = [event for event in log.xids if event.code not in _PROGRAM_XIDS]
    if unclear:
        return warn(_named_xids(unclear), fix=_xid_fixes(unclear))
    if log.xids:
        return warn(f"{_named_xids(log.xids)}: usually a program error", fix=_xid_fixes(log.xids))
    return none_in_log(machine)


def _hardware_faults(events: Sequence[GpuEvent], off_bus: Sequence[str]) -> CheckOutcome:
    """Report Xids of the hardware, and GPUs that have fallen off the bus without an Xid."""
    if not events:
        return fail(named(f"{address} has fallen off the bus" for address in off_bus), fix=xid_fix(_OFF_BUS_XID))
    also = "".join(f", {address} has fallen off the bus" for address in off_bus)
    return fail(_named_xids(events) + also, fix=_xid_fixes(events))


def _named_xids(events: Iterable[GpuEvent]) -> str:
    """Return `Xid 119 on 0000:9b:00 (GSP RPC timeout)`, for each code and GPU once."""
    by_code = {(event.code, event.address): xid_name(event.code) for event in events}
    return named(
        f"Xid {code} on {address}" + (f" ({name})" if name else "") for (code, address), name in sorted(by_code.items())
    )


def _xid_fixes(events: Iterable[GpuEvent]) -> str:
    """Return the fix for each code; the codes are named if there are several."""
    codes = sorted({event.code for event in events})
    if len(codes) == 1:
        return xid_fix(codes[0])
    return "; ".join(f"Xid {code}: {xid_fix(code)}" for code in codes)


def _is_hardware(event: GpuEvent) -> bool:
    if event.code in _NVLINK_XIDS:
        return "Nonfatal" not in event.text
    if event.code == _RECOVERY_ACTION_XID:
        return "to 0x0 (None)" not in event.text
    return event.code in _HARDWARE_XIDS


def _on_gpu(event: GpuEvent) -> str:
    return f"{event.code} on {event.address}"


@check(
    "gpu-driver-start",
    "gpu",
    topic="GPU initialization by the driver",
    read="kernel log: RmInitAdapter failed, GSP errors, failed probes by nvidia and amdgpu, API mismatch",
    expected="none",
    source="NVIDIA driver documentation, chapter Common Problems; NVIDIA open kernel modules, kernel-open/nvidia/nv.c",
    cost="the GPU is not usable: `nvidia-smi` misses it, and jobs on this host get fewer GPUs or do not start",
    fix="reset the GPU (`nvidia-smi -r`) or restart the node with the power off; reseat the card; use one "
    "driver version for module, firmware and libraries; return the GPU if it fails again on the same address",
    when_wrong="the log can be days old; an `API mismatch` during a driver update goes away after a restart",
)
def driver_start(machine: Machine) -> CheckOutcome:
    return judge_log(machine, "gpu_init", fail)


@check(
    "gpu-sxid",
    "gpu",
    topic="NVSwitch SXid errors",
    read="kernel log: nvidia-nvswitch SXid",
    expected="none",
    source="NVIDIA Fabric Manager user guide, SXid messages",
    cost="a fatal SXid ends every job that uses the switch",
    fix="ask an administrator to reset the GPUs and switches of the board together",
    when_wrong="the log can be days old; many SXids are not fatal",
)
def sxid(machine: Machine) -> CheckOutcome:
    events = machine.kernel_log.sxids
    if not events:
        return none_in_log(machine)
    codes = named(sorted({_on_gpu(event) for event in events}))
    is_fatal = any(event.text.lower().startswith("fatal") for event in events)
    return fail(f"fatal SXid: {codes}") if is_fatal else warn(f"SXid {codes}")
