"""CPUs: clocks, and how many of them the job may use."""

from __future__ import annotations

import re

from flatout.doctor.check import CheckOutcome, check, fail, info, named, need, ok, warn
from flatout.doctor.machine import Machine
from flatout.doctor.unknown import NotHereError, NotReadError

_KERNEL = "Linux kernel documentation, https://docs.kernel.org/"


@check(
    "cpu-governor",
    "host",
    title="the CPUs do not save power",
    read="sysfs: cpufreq/scaling_governor of each CPU",
    expected="performance (or schedutil, which is info)",
    source=_KERNEL + "admin-guide/pm/cpufreq.html",
    cost="launches and loaders on the CPU are slower while a clock ramps up; single ranks come late",
    fix="an administrator sets it: `cpupower frequency-set -g performance`",
    when_wrong="with intel_pstate or amd_pstate in active mode, powersave still reaches full clocks under load",
)
def governor(machine: Machine) -> CheckOutcome:
    found = machine.matching("/sys/devices/system/cpu/cpu*/cpufreq/scaling_governor")
    if not found:
        if machine.is_virtual:
            raise NotReadError("a virtual machine does not show the governor of its host")
        raise NotReadError("sysfs shows no cpufreq")
    slow = [path.split("/")[5] for path, name in found.items() if name not in ("performance", "schedutil")]
    if not slow:
        return (ok if set(found.values()) == {"performance"} else info)(f"{named(sorted(set(found.values())))}")
    return warn(f"{named(sorted({found[path] for path in found}))} on {len(slow)} of {len(found)} CPUs")


@check(
    "cpu-clock-limit",
    "host",
    title="no CPU is limited below its highest clock",
    read="sysfs: cpufreq/scaling_max_freq against cpuinfo_max_freq",
    expected="the same",
    source=_KERNEL + "admin-guide/pm/cpufreq.html",
    cost="all work on the CPU is slower by as much",
    fix="an administrator sets it: `cpupower frequency-set -u MAX`",
    when_wrong="boost was turned off on purpose",
)
def clock_limit(machine: Machine) -> CheckOutcome:
    limited = {}
    most = machine.matching("/sys/devices/system/cpu/cpu*/cpufreq/cpuinfo_max_freq")
    pairs = 0
    for path, text in most.items():
        now = machine.optional(path.replace("cpuinfo_max_freq", "scaling_max_freq"))
        if now is not None:
            pairs += 1
            if int(now) < 0.98 * int(text):
                limited[path.split("/")[5]] = f"{int(now) / 1e6:.1f} of {int(text) / 1e6:.1f} GHz"
    if not pairs:
        raise NotReadError("sysfs shows no cpufreq")
    if limited:
        return warn(f"limited on {len(limited)} of {pairs} CPUs: {named(sorted(set(limited.values())))}")
    return ok(f"{pairs} CPUs may reach their highest clock")


@check(
    "cpu-clocksource",
    "host",
    title="reading the clock needs no system call",
    read="sysfs: clocksource0/current_clocksource",
    expected="tsc; in virtual machines also kvm-clock and hyperv_clocksource_tsc_page; arch_sys_counter on Arm",
    source=_KERNEL + "virt/kvm/x86/timekeeping.html",
    cost="hpet and acpi_pm take about a microsecond for each reading, which profilers and launchers do often",
    fix="look in the kernel log for why tsc was marked unstable; `tsc=reliable` if it is known to be good",
    when_wrong="never seen to be",
)
def clocksource(machine: Machine) -> CheckOutcome:
    name = machine.file("/sys/devices/system/clocksource/clocksource0/current_clocksource")
    need(name, "`current_clocksource` is empty")
    if name in ("tsc", "kvm-clock", "hyperv_clocksource_tsc_page", "arch_sys_counter", "pvclock"):
        return ok(name)
    return warn(name) if name in ("hpet", "acpi_pm", "jiffies", "xen", "refined-jiffies") else info(name)


@check(
    "cpu-cores-for-ranks",
    "host",
    title="there are cores for the ranks and their loaders",
    read="/proc/self/status Cpus_allowed_list, cpu.max (or cfs_quota_us) of control groups; GPUs or LOCAL_WORLD_SIZE",
    expected="at least 4 cores a rank: the rank, its NCCL proxy and two workers",
    source="proposal of this project, uncalibrated",
    cost="the loader, launches and NCCL's proxies wait for each other: GPUs starve",
    fix="a larger CPU request for the container or job, or fewer workers",
    when_wrong="jobs without a loader on the CPU need less; bound ranks see only their own cores here",
)
def cores_for_ranks(machine: Machine) -> CheckOutcome:
    allowed, quota, ranks = len(machine.cpus_allowed), machine.cpu_quota, machine.num_ranks_here
    cores = allowed if quota is None else min(allowed, quota)
    shown = f"{cores:g} cores for {ranks} ranks" + ("" if quota is None or quota >= allowed else " (a quota)")
    if cores < ranks:
        return fail(shown)
    return warn(shown) if cores < 4 * ranks and machine.num_gpus else ok(shown)


@check(
    "cpu-quota",
    "host",
    title="no quota of a control group stops threads within a period",
    read="cpu.max or cfs_quota_us of this process's control groups, each level",
    expected="none, or no fewer than the CPUs that may be used",
    source=_KERNEL + "admin-guide/cgroup-v2.html",
    cost="when the quota is used up, all threads stand still to the end of the period (100 ms)",
    fix="request whole CPUs (Kubernetes: the static CPU manager), or raise the limit",
    when_wrong="a quota that is never reached (see cpu-throttled)",
)
def quota(machine: Machine) -> CheckOutcome:
    limit, allowed = machine.cpu_quota, len(machine.cpus_allowed)
    if limit is None:
        return ok("none")
    shown = f"{limit:g} cores' worth of {allowed} CPUs"
    return info(shown) if limit < allowed else ok(shown)


@check(
    "cpu-throttled",
    "host",
    title="the quota has not held this control group back",
    read="cpu.stat of the control groups: nr_throttled of nr_periods",
    expected="at most 1 % of the periods",
    source=_KERNEL + "admin-guide/cgroup-v2.html; the limit is a proposal of this project",
    cost="each is a pause of up to 100 ms of all threads, for which all other ranks wait",
    fix="raise the limit, or start fewer threads and workers",
    when_wrong="counted since the group began: it may be of start-up only",
)
def throttled(machine: Machine) -> CheckOutcome:
    found = machine.matching("/sys/fs/cgroup*/cpu.stat")
    worst = None
    for text in found.values():
        fields = dict(re.findall(r"^(\w+) (\d+)$", text, re.MULTILINE))
        if int(fields.get("nr_periods", 0)):
            share = int(fields["nr_throttled"]) / int(fields["nr_periods"])
            worst = max(worst or 0.0, share)
    if worst is None:
        if machine.cpu_quota is None:
            return ok("there is no quota")
        raise NotReadError("the control groups give no periods")
    return warn(f"in {worst:.1%} of the periods") if worst > 0.01 else ok(f"in {worst:.1%} of the periods")


@check(
    "cpu-load",
    "host",
    title="nothing else keeps the CPUs busy",
    read="/proc/loadavg against the CPUs of the host",
    expected="a load of one minute below the number of CPUs",
    source="proposal of this project, uncalibrated",
    cost="ranks wait for a core; the slowest holds all others back",
    fix="`ps aux --sort=-%cpu`: end what is left over, ask who else uses the node",
    when_wrong="run while the job runs, it counts the job; processes that wait for a disk count too",
)
def load(machine: Machine) -> CheckOutcome:
    average = float(machine.file("/proc/loadavg").split()[0])
    cpus = len(re.findall(r"^processor\s*:", machine.file("/proc/cpuinfo"), re.MULTILINE))
    if not cpus:
        raise NotReadError("`/proc/cpuinfo` names no processor")
    return warn(f"load {average:g} on {cpus} CPUs") if average > cpus else ok(f"load {average:g} on {cpus} CPUs")


@check(
    "cpu-numa-balancing",
    "host",
    title="the kernel does not move pages between NUMA nodes by itself",
    read="/proc/sys/kernel/numa_balancing",
    expected="0 on machines with several NUMA nodes",
    source="vendors' tuning guides for GPU servers (NVIDIA, AMD)",
    cost="pages are unmapped to see who uses them: pauses in launches and copies at random",
    fix="an administrator sets `sysctl kernel.numa_balancing=0`",
    when_wrong="ranks that are bound nowhere may gain from it",
)
def numa_balancing(machine: Machine) -> CheckOutcome:
    nodes = [name for name in machine.names("/sys/devices/system/node") if name.startswith("node")]
    value = machine.number("/proc/sys/kernel/numa_balancing")
    if value == 0:
        return ok("0")
    need(nodes, f"it is {value}, and how many NUMA nodes there are was not read")
    if len(nodes) == 1:
        raise NotHereError(f"{value}, on a machine with one NUMA node")
    return warn(f"{value}, on a machine with {len(nodes)} NUMA nodes")
