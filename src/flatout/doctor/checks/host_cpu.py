"""Checks of the CPUs: clocks, and how many of them the job can use."""

from __future__ import annotations

import re

from flatout.doctor.check import check, fail, info, named, need, ok, warn
from flatout.doctor.machine import Machine
from flatout.doctor.outcome import CheckOutcome
from flatout.doctor.unknown import NotHereError, NotReadError

_KERNEL = "Linux kernel documentation, https://docs.kernel.org/"
_FAST_CLOCKS = ("tsc", "kvm-clock", "hyperv_clocksource_tsc_page", "arch_sys_counter", "pvclock")
_SLOW_CLOCKS = ("hpet", "acpi_pm", "jiffies", "xen", "refined-jiffies")


@check(
    "cpu-governor",
    "host",
    topic="CPU frequency governor",
    read="sysfs: cpufreq/scaling_governor of each CPU",
    expected="performance (or schedutil, which is info)",
    source=_KERNEL + "admin-guide/pm/cpufreq.html",
    cost="kernel launches and data loaders are slower while a clock ramps up, and single ranks are late",
    fix="ask an administrator to set it: `cpupower frequency-set -g performance`",
    when_wrong="with intel_pstate or amd_pstate in active mode, powersave still reaches full clocks under load",
)
def governor(machine: Machine) -> CheckOutcome:
    governors = list(machine.matching("/sys/devices/system/cpu/cpu*/cpufreq/scaling_governor").values())
    if not governors:
        if machine.is_virtual:
            raise NotReadError("a virtual machine does not show the governor of its host")
        raise NotReadError("sysfs shows no cpufreq")
    shown = named(sorted(set(governors)))
    num_slow = sum(name not in ("performance", "schedutil") for name in governors)
    if num_slow:
        return warn(f"CPU frequency governor {shown} on {num_slow} of {len(governors)} CPUs")
    return ok(shown) if shown == "performance" else info(shown)


@check(
    "cpu-clock-limit",
    "host",
    topic="CPU frequency limits",
    read="sysfs: cpufreq/scaling_max_freq against cpuinfo_max_freq",
    expected="the same",
    source=_KERNEL + "admin-guide/pm/cpufreq.html",
    cost="all work on the CPU slows down in proportion",
    fix="ask an administrator to set it: `cpupower frequency-set -u MAX`",
    when_wrong="boost was turned off deliberately",
)
def clock_limit(machine: Machine) -> CheckOutcome:
    limits = _limit_and_highest_khz(machine)
    if not limits:
        raise NotReadError("sysfs shows no cpufreq")
    limited = [f"{limit / 1e6:.1f} of {highest / 1e6:.1f} GHz" for limit, highest in limits if limit < 0.98 * highest]
    if limited:
        return warn(
            f"the CPU frequency is limited on {len(limited)} of {len(limits)} CPUs: {named(sorted(set(limited)))}"
        )
    return ok(f"{len(limits)} CPUs can reach their highest clock")


def _limit_and_highest_khz(machine: Machine) -> list[tuple[int, int]]:
    """Return the limit and the highest clock of each CPU that gives both."""
    limits = []
    for path, highest in machine.matching("/sys/devices/system/cpu/cpu*/cpufreq/cpuinfo_max_freq").items():
        limit = machine.optional(path.replace("cpuinfo_max_freq", "scaling_max_freq"))
        if limit is not None:
            limits.append((int(limit), int(highest)))
    return limits


@check(
    "cpu-clocksource",
    "host",
    topic="kernel clock source",
    read="sysfs: clocksource0/current_clocksource",
    expected="tsc; in virtual machines also kvm-clock and hyperv_clocksource_tsc_page; arch_sys_counter on Arm",
    source=_KERNEL + "virt/kvm/x86/timekeeping.html",
    cost="hpet and acpi_pm take about a microsecond per reading, and profilers and launchers read the clock often",
    fix="find in the kernel log why tsc was marked unstable; `tsc=reliable` if it is known to be good",
    when_wrong="no known case",
)
def clocksource(machine: Machine) -> CheckOutcome:
    name = machine.file("/sys/devices/system/clocksource/clocksource0/current_clocksource")
    need(name, "`current_clocksource` is empty")
    if name in _FAST_CLOCKS:
        return ok(name)
    return warn(f"the kernel's clock source is slow: {name}") if name in _SLOW_CLOCKS else info(name)


@check(
    "cpu-cores-for-ranks",
    "host",
    topic="CPU cores per rank",
    read="/proc/self/status Cpus_allowed_list, cpu.max (or cfs_quota_us) of control groups; GPUs or LOCAL_WORLD_SIZE",
    expected="at least 4 cores per rank: the rank, its NCCL proxy and two workers",
    source="proposed by Flatout, uncalibrated",
    cost="the data loader, kernel launches and NCCL's proxies compete for cores, and GPUs starve",
    fix="request more CPUs for the container or job, or use fewer workers",
    when_wrong="jobs without a data loader on the CPU need fewer; bound ranks see only their own cores",
)
def cores_for_ranks(machine: Machine) -> CheckOutcome:
    num_allowed, quota, num_ranks = len(machine.cpus_allowed), machine.cpu_quota, machine.num_ranks_here
    cores: float = num_allowed
    shown = f"{cores:g} cores for {num_ranks} ranks"
    if quota is not None and quota < num_allowed:
        cores = quota
        shown = f"{cores:g} cores for {num_ranks} ranks (a quota)"
    if cores < num_ranks:
        return fail(f"too few CPU cores: {shown}")
    if cores < 4 * num_ranks and machine.num_gpus:
        return warn(f"few CPU cores: {shown}")
    return ok(shown)


@check(
    "cpu-quota",
    "host",
    topic="CPU quota",
    read="cpu.max or cfs_quota_us of this process's control groups, each level",
    expected="no limit, or at least the number of allowed CPUs",
    source=_KERNEL + "admin-guide/cgroup-v2.html",
    cost="when the quota is used up, all threads stop until the end of the period (100 ms)",
    fix="request whole CPUs (Kubernetes: the static CPU manager), or raise the limit",
    when_wrong="the job never reaches the quota (see cpu-throttled)",
)
def quota(machine: Machine) -> CheckOutcome:
    limit, num_allowed = machine.cpu_quota, len(machine.cpus_allowed)
    if limit is None:
        return ok("none")
    shown = f"{limit:g} cores' worth of {num_allowed} CPUs"
    return info(shown) if limit < num_allowed else ok(shown)


@check(
    "cpu-throttled",
    "host",
    topic="CPU throttling by the quota",
    read="cpu.stat of the control groups: nr_throttled of nr_periods",
    expected="at most 1 % of the periods",
    source=_KERNEL + "admin-guide/cgroup-v2.html; the limit is proposed by Flatout",
    cost="each time, all threads pause for up to 100 ms, and all other ranks wait",
    fix="raise the limit, or start fewer threads and workers",
    when_wrong="the counter starts with the control group, so the throttling can date from start-up",
)
def throttled(machine: Machine) -> CheckOutcome:
    shares = []
    for text in machine.matching("/sys/fs/cgroup*/cpu.stat").values():
        fields = dict(re.findall(r"^(\w+) (\d+)$", text, re.MULTILINE))
        num_periods = int(fields.get("nr_periods", 0))
        if num_periods:
            shares.append(int(fields["nr_throttled"]) / num_periods)
    if shares:
        worst = max(shares)
        shown = f"in {worst:.1%} of the periods"
        return warn(f"the quota throttles the CPUs {shown}") if worst > 0.01 else ok(shown)
    if machine.cpu_quota is None:
        return ok("there is no quota")
    raise NotReadError("the control groups report no periods")


@check(
    "cpu-load",
    "host",
    topic="CPU load",
    read="/proc/loadavg against the CPUs of the host",
    expected="a one-minute load below the number of CPUs",
    source="proposed by Flatout, uncalibrated",
    cost="ranks wait for a core; the slowest delays all others",
    fix="find leftover processes with `ps aux --sort=-%cpu` and end them; find out who else uses the node",
    when_wrong="while a job is running, it is counted, too; so are processes that wait for a disk",
)
def load(machine: Machine) -> CheckOutcome:
    average = float(machine.file("/proc/loadavg").split()[0])
    num_cpus = len(re.findall(r"^processor\s*:", machine.file("/proc/cpuinfo"), re.MULTILINE))
    if not num_cpus:
        raise NotReadError("`/proc/cpuinfo` lists no processor")
    shown = f"load {average:g} on {num_cpus} CPUs"
    return warn(f"the CPUs are overloaded: {shown}") if average > num_cpus else ok(shown)


@check(
    "cpu-numa-balancing",
    "host",
    topic="automatic NUMA balancing",
    read="/proc/sys/kernel/numa_balancing",
    expected="0 on machines with several NUMA nodes",
    source="vendors' tuning guides for GPU servers (NVIDIA, AMD)",
    cost="the kernel unmaps pages to see who uses them, which pauses launches and copies at random",
    fix="ask an administrator to run `sysctl kernel.numa_balancing=0`",
    when_wrong="ranks that are not bound to cores can gain from it",
)
def numa_balancing(machine: Machine) -> CheckOutcome:
    nodes = [name for name in machine.names("/sys/devices/system/node") if name.startswith("node")]
    value = machine.number("/proc/sys/kernel/numa_balancing")
    if value == 0:
        return ok("0")
    need(nodes, f"it is {value}, and the number of NUMA nodes is unknown")
    if len(nodes) == 1:
        raise NotHereError(f"{value}, on a machine with one NUMA node")
    return warn(f"automatic NUMA balancing is on ({value}), on a machine with {len(nodes)} NUMA nodes")
