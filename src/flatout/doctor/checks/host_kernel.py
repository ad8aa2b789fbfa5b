"""What the kernel's log says of the hardware, and how long the host has been up."""

from __future__ import annotations

from flatout.doctor.check import CheckOutcome, check, fail, info, named, none_in_log, ok, warn, with_missing
from flatout.doctor.machine import FABRIC_MANAGER_LOG, Machine
from flatout.doctor.unknown import NotHereError

_READ = "kernel log (`dmesg`, else `journalctl -k` of 24 hours): "
_OLD = "the log may be days old, or have lost its beginning"


def _said(machine: Machine, kind: str) -> str | None:
    """`3 lines, the last: ...`; None where the log has none."""
    lines = machine.kernel_log.lines[kind]
    return f"{len(lines)} lines, the last: {lines[-1][:140]}" if lines else None


@check(
    "kernel-machine-check",
    "host",
    title="the CPU and the memory have reported no error that could not be corrected",
    read=_READ + "mce, EDAC UE",
    expected="none",
    source="Linux kernel documentation, RAS",
    cost="the node restarts, or computes with wrong data",
    fix="drain the node; replace the memory module that is named",
    when_wrong=_OLD,
)
def machine_check(machine: Machine) -> CheckOutcome:
    said = _said(machine, "machine_check")
    return fail(said) if said else none_in_log(machine)


@check(
    "kernel-memory-corrected",
    "host",
    title="few memory errors had to be corrected",
    read=_READ + "EDAC CE",
    expected="fewer than 10 lines",
    source="proposal of this project, uncalibrated",
    cost="nothing yet, but such modules fail more often; storms of them cost CPU time",
    fix="have the module examined that is named",
    when_wrong=_OLD,
)
def memory_corrected(machine: Machine) -> CheckOutcome:
    said = _said(machine, "memory_corrected")
    if not said:
        return none_in_log(machine)
    return (warn if len(machine.kernel_log.lines["memory_corrected"]) >= 10 else info)(said)


@check(
    "kernel-pcie-errors",
    "host",
    title="the PCIe ports have reported no fatal error",
    read=_READ + "AER, slots whose link went down; sysfs: aer_dev_fatal, _nonfatal and _correctable of each device",
    expected="0 fatal and nonfatal",
    source="Linux kernel documentation, pcieaer-howto",
    cost="a device falls off the bus, or its copies are repeated",
    fix="reseat the device or its riser",
    when_wrong="counters of sysfs are since the start of the host; correctable ones at start-up are normal",
)
def pcie_errors(machine: Machine) -> CheckOutcome:
    counts = {
        kind: {
            path.split("/")[5]: _total(text)
            for path, text in machine.matching(f"/sys/bus/pci/devices/*/aer_dev_{kind}").items()
        }
        for kind in ("fatal", "nonfatal", "correctable")
    }
    for kind in ("fatal", "nonfatal"):
        if bad := [f"{address}: {count}" for address, count in counts[kind].items() if count]:
            return (fail if kind == "fatal" else warn)(f"{kind} errors: {named(bad)}")
    if not counts["fatal"]:
        if said := _said(machine, "aer_fatal"):
            return fail(said)
        if said := _said(machine, "aer_nonfatal") or _said(machine, "slot_down"):
            return warn(said)
        corrected = _said(machine, "aer_corrected")
        return info(corrected) if corrected else none_in_log(machine)
    some = [f"{address}: {count}" for address, count in counts["correctable"].items() if count > 100]
    if some:
        return info(f"corrected errors: {named(some)}")
    silent = len(set(counts["fatal"]) - set(counts["nonfatal"]))
    return with_missing(ok(f"none on {len(counts['fatal'])} devices"), silent, "devices did not say")


def _total(text: str) -> int:
    """The sum of `NAME count` lines, of which the last, TOTAL_ERR_..., is one itself."""
    rows = [line.split() for line in text.splitlines() if len(line.split()) == 2]
    totals = [int(count) for name, count in rows if name.startswith("TOTAL")]
    return totals[0] if totals else sum(int(count) for _, count in rows)


@check(
    "kernel-crash",
    "host",
    title="the kernel has not crashed",
    read=_READ + "Kernel panic, BUG, Oops, general protection fault",
    expected="none",
    source="Linux kernel documentation, bug-hunting",
    cost="after an oops the kernel goes on, but what the thread held stays locked: drivers and mounts hang later",
    fix="restart the node; look which module the trace names, and update it",
    when_wrong="a log that was kept from before a restart (pstore, kdump)",
)
def crash(machine: Machine) -> CheckOutcome:
    said = _said(machine, "crash")
    return fail(said) if said else none_in_log(machine)


@check(
    "kernel-hung-task",
    "host",
    title="no process hangs in the kernel",
    read=_READ + "blocked for more than N seconds",
    expected="none",
    source="Linux kernel documentation, hung_task",
    cost="a process that waits for a driver or a mount for minutes cannot be ended; a rank or `nvidia-smi` hangs",
    fix="look at which driver or mount it waits for; often only a restart helps",
    when_wrong="a slow network file system under load",
)
def hung_task(machine: Machine) -> CheckOutcome:
    said = _said(machine, "hung_task")
    return warn(said) if said else none_in_log(machine)


@check(
    "kernel-cpu-thermal",
    "host",
    title="the CPUs have not been too hot",
    read=_READ + "temperature above threshold",
    expected="none",
    source="Linux kernel, x86 thermal throttling",
    cost="clocks fall: launches and loaders of this host are late",
    fix="look at cooling: fans, filters, inlet temperature",
    when_wrong=_OLD,
)
def cpu_thermal(machine: Machine) -> CheckOutcome:
    said = _said(machine, "thermal")
    return warn(said) if said else none_in_log(machine)


@check(
    "kernel-nccl-crash",
    "software",
    title="no process has crashed inside NCCL",
    read=_READ + "segfault in libnccl",
    expected="none",
    source="Linux kernel log",
    cost="the job ends with signal 11 on one rank, and the others hang until their timeout",
    fix="a newer NCCL (`pip install -U nvidia-nccl-cu12`); report it with NCCL_DEBUG=INFO",
    when_wrong="while a job is torn down, a crash may be a consequence of another fault",
)
def nccl_crash(machine: Machine) -> CheckOutcome:
    said = _said(machine, "segfault_nccl")
    return warn(said) if said else none_in_log(machine)


@check(
    "kernel-uptime",
    "host",
    title="how long the host has been up",
    read="/proc/uptime",
    expected="more than 10 minutes",
    source="proposal of this project",
    cost="right after a start, services, clocks and links are still settling",
    fix="wait a moment; if nobody restarted it, find out why it did",
    when_wrong="in some containers this is the uptime of the container",
)
def uptime(machine: Machine) -> CheckOutcome:
    seconds = float(machine.file("/proc/uptime").split()[0])
    if seconds < 600:
        return info(f"{seconds / 60:.0f} minutes: it was restarted just now")
    return ok(f"{seconds / 86400:.1f} days")


@check(
    "fabric-manager",
    "gpu",
    title="the fabric manager runs where there are NVSwitches",
    read="`systemctl is-active nvidia-fabricmanager`; NVSwitches on the PCI bus; a fabric manager log that is given",
    expected="active, and no error in its log",
    source="NVIDIA Fabric Manager user guide",
    cost="CUDA does not start (error 802), or NVLink between GPUs is not used",
    fix="an administrator starts it in the driver's own version",
    when_wrong="in a virtual machine or container it may run on the host; gpu-fabric says what counts",
)
def fabric_manager(machine: Machine) -> CheckOutcome:
    log = machine.snapshot.outputs.get(FABRIC_MANAGER_LOG)
    if log is not None and log.text is not None:
        lines = log.text.splitlines()
        errors = [line for line in lines if "[ERROR]" in line or "[FATAL]" in line]
        if errors:
            return warn(f"{len(errors)} errors in its log, the last: {errors[-1][:160]}")
        return info(f"no error in {len(lines)} lines of its log")
    switches = [
        address
        for address in machine.pci_addresses
        if machine.pci_class(address).startswith("0x0680")
        and machine.optional(f"/sys/bus/pci/devices/{address}/vendor") == "0x10de"
    ]
    if machine.bus_is_known and not switches:
        raise NotHereError("there is no NVSwitch on the bus")
    state = machine.output("systemctl is-active nvidia-fabricmanager").strip()
    if state == "active":
        return ok("active")
    where = f"{len(switches)} NVSwitches" if switches else "whether there are NVSwitches was not read"
    return (fail if switches and not machine.is_container else info)(f"{state or 'not known to systemd'}; {where}")
