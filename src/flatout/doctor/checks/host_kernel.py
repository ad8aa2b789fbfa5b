"""Checks of the kernel log for hardware faults, of the uptime, and of the fabric manager."""

from __future__ import annotations

from flatout.doctor.check import check, fail, info, named, none_in_log, ok, warn, with_missing
from flatout.doctor.log_lines import judge_log, logged
from flatout.doctor.machine import FABRIC_MANAGER_LOG, NVIDIA, Machine
from flatout.doctor.outcome import CheckOutcome
from flatout.doctor.unknown import NotHereError

_READ = "kernel log (`dmesg`, else `journalctl -k` of the last 24 hours): "
_OLD = "the log can be days old, or have lost its beginning"


@check(
    "kernel-machine-check",
    "host",
    topic="uncorrectable CPU and memory errors",
    read=_READ + "mce, EDAC UE",
    expected="none",
    source="Linux kernel documentation, RAS",
    cost="the node restarts, or the job computes with wrong data",
    fix="drain the node; replace the memory module that the log names",
    when_wrong=_OLD,
)
def machine_check(machine: Machine) -> CheckOutcome:
    return judge_log(machine, "machine_check", fail)


@check(
    "kernel-memory-corrected",
    "host",
    topic="corrected memory errors",
    read=_READ + "EDAC CE",
    expected="fewer than 10 lines",
    source="proposed by Flatout, uncalibrated",
    cost="nothing yet, but such modules fail more often, and many errors at once cost CPU time",
    fix="have the module that the log names examined",
    when_wrong=_OLD,
)
def memory_corrected(machine: Machine) -> CheckOutcome:
    num_lines = len(machine.kernel_log.lines["memory_corrected"])
    return judge_log(machine, "memory_corrected", warn if num_lines >= 10 else info)


@check(
    "kernel-pcie-errors",
    "host",
    topic="PCIe errors",
    read=_READ + "AER, slots whose link went down; sysfs: aer_dev_fatal, _nonfatal and _correctable of each device",
    expected="0 fatal and nonfatal",
    source="Linux kernel documentation, pcieaer-howto",
    cost="a device can fall off the bus, or repeats its transfers",
    fix="reseat the device or its riser",
    when_wrong="sysfs counts from the start of the host; correctable errors during start-up are normal",
)
def pcie_errors(machine: Machine) -> CheckOutcome:
    fatal, nonfatal = _aer_counts(machine, "fatal"), _aer_counts(machine, "nonfatal")
    if any(fatal.values()):
        return fail(f"fatal PCIe errors: {_counts(fatal)}")
    if any(nonfatal.values()):
        return warn(f"nonfatal PCIe errors: {_counts(nonfatal)}")
    if not fatal:
        return _pcie_errors_in_log(machine)
    correctable = _aer_counts(machine, "correctable")
    many = _counts(correctable, above=100)
    if many:
        return info(f"corrected errors: {many}")
    num_missing = len(fatal.keys() - nonfatal.keys())
    return with_missing(ok(f"none on {len(fatal)} devices"), num_missing, "devices reported no count")


def _pcie_errors_in_log(machine: Machine) -> CheckOutcome:
    for kind, outcome in (("aer_fatal", fail), ("aer_nonfatal", warn), ("slot_down", warn), ("aer_corrected", info)):
        if lines := logged(machine, kind):
            return outcome(lines)
    return none_in_log(machine)


def _aer_counts(machine: Machine, kind: str) -> dict[str, int]:
    """Return the error count of each device."""
    files = machine.matching(f"/sys/bus/pci/devices/*/aer_dev_{kind}")
    return {path.split("/")[5]: _total(text) for path, text in files.items()}


def _total(text: str) -> int:
    """Sum `NAME count` lines. If there is a last line TOTAL_ERR_..., it already is the sum."""
    rows = [line.split() for line in text.splitlines()]
    counts = {row[0]: int(row[1]) for row in rows if len(row) == 2}
    for name, count in counts.items():
        if name.startswith("TOTAL"):
            return count
    return sum(counts.values())


def _counts(counts: dict[str, int], *, above: int = 0) -> str:
    return named(f"{address}: {count}" for address, count in counts.items() if count > above)


@check(
    "kernel-crash",
    "host",
    topic="kernel crashes",
    read=_READ + "Kernel panic, BUG, Oops, general protection fault",
    expected="none",
    source="Linux kernel documentation, bug-hunting",
    cost="after an oops the kernel continues, but the thread's locks stay locked: drivers and mounts hang later",
    fix="restart the node; find the module that the trace names, and update it",
    when_wrong="the log dates from before a restart (pstore, kdump)",
)
def crash(machine: Machine) -> CheckOutcome:
    return judge_log(machine, "crash", fail)


@check(
    "kernel-hung-task",
    "host",
    topic="processes hung in the kernel",
    read=_READ + "blocked for more than N seconds",
    expected="none",
    source="Linux kernel documentation, hung_task",
    cost="a process that waits for a driver or a mount cannot be killed: a rank or `nvidia-smi` hangs",
    fix="find the driver or mount that the process waits for; often only a restart helps",
    when_wrong="a network file system was slow under load",
)
def hung_task(machine: Machine) -> CheckOutcome:
    return judge_log(machine, "hung_task", warn)


@check(
    "kernel-lockup",
    "host",
    topic="CPUs that locked up or stalled",
    read=_READ + "soft lockup, hard LOCKUP, RCU stalls",
    expected="none",
    source="Linux kernel documentation, lockup-watchdogs and RCU stallwarn",
    cost="a core did nothing else for at least 20 seconds: its ranks, and all ranks that wait for them, were stalled",
    fix="find the process and the driver that the trace below the line names; update that driver; restart the node",
    when_wrong="the virtual machine was paused by its host for a while; " + _OLD,
)
def lockup(machine: Machine) -> CheckOutcome:
    if lines := logged(machine, "lockup"):
        return fail(lines)
    return judge_log(machine, "cpu_stall", warn)


@check(
    "kernel-other-errors",
    "host",
    topic="other errors in the kernel log",
    read=_READ + "lines at error level that no other check recognizes, by log level (`dmesg -x`), or else by keywords",
    expected="none from the drivers of GPUs, NICs, disks or file systems",
    source="Linux kernel, KERN_ERR and above",
    cost="unknown: nobody has judged these lines",
    fix="read them: `dmesg --level=err,crit,alert,emerg`; search for the driver's text, and update the driver",
    when_wrong="many kernels write harmless errors as they start; without levels, words such as `failed` decide",
)
def other_errors(machine: Machine) -> CheckOutcome:
    errors = machine.kernel_log.other_errors
    if not errors:
        return none_in_log(machine)
    num_lines = sum(error.num_lines for error in errors)
    examples = [f"{error.text[:120]} ({error.num_lines}x)" for error in errors[:3]]
    more = f"; {len(errors) - 3} more kinds" if len(errors) > 3 else ""
    lines = "1 line" if num_lines == 1 else f"{num_lines} lines"
    reason = f"{lines} at error level that no check recognizes: {'; '.join(examples)}{more}"
    return warn(reason) if errors[0].is_grave else info(reason)


@check(
    "kernel-cpu-thermal",
    "host",
    topic="CPU thermal throttling",
    read=_READ + "temperature above threshold",
    expected="none",
    source="Linux kernel, x86 thermal throttling",
    cost="CPU clocks drop: this host's kernel launches and data loaders are late",
    fix="check the cooling: fans, filters, inlet temperature",
    when_wrong=_OLD,
)
def cpu_thermal(machine: Machine) -> CheckOutcome:
    return judge_log(machine, "thermal", warn)


@check(
    "kernel-nccl-crash",
    "software",
    topic="crashes inside NCCL",
    read=_READ + "segfault in libnccl",
    expected="none",
    source="Linux kernel log",
    cost="the job ends with signal 11 on one rank, and the others hang until their timeout",
    fix="install a newer NCCL (`pip install -U nvidia-nccl-cu12`); report the crash with NCCL_DEBUG=INFO",
    when_wrong="a crash while the job ends can be a consequence of another fault",
)
def nccl_crash(machine: Machine) -> CheckOutcome:
    return judge_log(machine, "segfault_nccl", warn)


@check(
    "kernel-uptime",
    "host",
    topic="uptime of the host",
    read="/proc/uptime",
    expected="more than 10 minutes",
    source="proposed by Flatout",
    cost="right after a restart, services, clocks and links are not stable yet",
    fix="wait a moment; if nobody restarted the host, find out why it restarted",
    when_wrong="in some containers this is the uptime of the container",
)
def uptime(machine: Machine) -> CheckOutcome:
    seconds = float(machine.file("/proc/uptime").split()[0])
    if seconds < 600:
        return info(f"{seconds / 60:.0f} minutes: the host has just restarted")
    return ok(f"{seconds / 86400:.1f} days")


@check(
    "fabric-manager",
    "gpu",
    topic="NVSwitch fabric manager",
    read="`systemctl is-active nvidia-fabricmanager`; NVSwitches on the PCI bus; the fabric manager log, if given",
    expected="active, if there are NVSwitches, and no error in the log",
    source="NVIDIA Fabric Manager user guide",
    cost="CUDA does not start (error 802), or NVLink between GPUs is not used",
    fix="ask an administrator to start it in the driver's version",
    when_wrong="for a virtual machine or container it may run on the host; gpu-fabric shows what counts",
)
def fabric_manager(machine: Machine) -> CheckOutcome:
    log = machine.snapshot.outputs.get(FABRIC_MANAGER_LOG)
    if log is not None and log.text is not None:
        return _fabric_manager_log(log.text.splitlines())
    num_switches = len(machine.pci_devices("0x0680", NVIDIA))
    if machine.bus_is_known and not num_switches:
        raise NotHereError("there is no NVSwitch on the bus")
    state = machine.output("systemctl is-active nvidia-fabricmanager").strip() or "unknown to systemd"
    if state == "active":
        return ok("active")
    if not num_switches:
        return info(f"{state}; whether there are NVSwitches was not read")
    shown = f"{state}; {num_switches} NVSwitches"
    return info(shown) if machine.is_container else fail(f"the fabric manager is not active: {shown}")


def _fabric_manager_log(lines: list[str]) -> CheckOutcome:
    errors = [line for line in lines if "[ERROR]" in line or "[FATAL]" in line]
    if errors:
        return warn(f"{len(errors)} errors in the fabric manager's log, the last: {errors[-1][:160]}")
    return info(f"no error in {len(lines)} lines of its log")
