"""Memory of the host."""

from __future__ import annotations

import re

from flatout.doctor.check import CheckOutcome, check, fail, info, named, need, none_in_log, ok, warn
from flatout.doctor.machine import Machine
from flatout.doctor.unknown import NotReadError

_GIB = 1 << 30


@check(
    "memory-available",
    "host",
    title="most of the memory is free for the job",
    read="/proc/meminfo: MemAvailable of MemTotal",
    expected="at least a quarter",
    source="proposal of this project, uncalibrated",
    cost="no cache for the data set; then swapping, or the kernel ends a rank",
    fix="end what is left over; look at /dev/shm and tmpfs, which are memory too",
    when_wrong="run while the job runs, it counts the job",
)
def available(machine: Machine) -> CheckOutcome:
    memory = machine.memory_bytes
    free, total = memory["MemAvailable"], memory["MemTotal"]
    shown = f"{free / _GIB:.1f} of {total / _GIB:.1f} GiB"
    return warn(shown) if free < total / 4 else ok(shown)


@check(
    "memory-limit",
    "host",
    title="the container may use the host's memory",
    read="memory.max or memory.limit_in_bytes of the control groups, against MemTotal",
    expected="either; a job plans with what it may use",
    source="Linux kernel documentation, control groups",
    cost="the kernel ends a rank that goes above it; page cache counts too, so a small limit rereads the data set",
    fix="a larger memory request",
    when_wrong="never seen to be",
)
def limit(machine: Machine) -> CheckOutcome:
    most, total = machine.memory_limit_bytes, machine.memory_bytes["MemTotal"]
    if most is None or most >= total:
        return ok("no limit below the host's memory")
    return info(f"limited to {most / _GIB:.1f} of {total / _GIB:.1f} GiB")


@check(
    "memory-swap",
    "host",
    title="no memory is swapped out",
    read="/proc/meminfo: SwapTotal, SwapFree",
    expected="none in use",
    source="proposal of this project",
    cost="a rank that touches swapped memory waits for the disk, and all others for the rank",
    fix="free memory, then `swapoff -a` by an administrator",
    when_wrong="what is swapped out may belong to processes that sleep",
)
def swap(machine: Machine) -> CheckOutcome:
    memory = machine.memory_bytes
    used = memory["SwapTotal"] - memory["SwapFree"]
    if not memory["SwapTotal"]:
        return ok("there is none")
    return warn(f"{used / _GIB:.1f} GiB in use") if used > memory["MemTotal"] // 100 else ok(f"{used >> 20} MiB in use")


@check(
    "memory-huge-pages",
    "host",
    title="how transparent huge pages are used",
    read="sysfs: transparent_hugepage/enabled",
    expected="madvise or always",
    source="Linux kernel documentation, transhuge",
    cost="with never, loaders on large arrays spend more time in page faults",
    fix="an administrator sets madvise",
    when_wrong="programs that ask for huge pages themselves",
)
def huge_pages(machine: Machine) -> CheckOutcome:
    text = machine.file("/sys/kernel/mm/transparent_hugepage/enabled")
    chosen = re.search(r"\[(\w+)\]", text)
    if chosen is None:
        raise NotReadError(f"it reads `{text[:60]}`")
    return info(chosen[1])


@check(
    "memory-oom",
    "host",
    title="the kernel has ended no process for want of memory",
    read="memory.events of the control groups (oom_kill), and the kernel log",
    expected="none",
    source="Linux kernel documentation, control groups",
    cost="a rank or a loader's worker disappears with signal 9; the job ends or hangs",
    fix="fewer workers, smaller prefetch, a larger memory request",
    when_wrong="of an earlier job, or of a program beside it",
)
def oom(machine: Machine) -> CheckOutcome:
    events = machine.matching("/sys/fs/cgroup*/memory.events")
    kills = [int(number) for text in events.values() for number in re.findall(r"^oom_kill (\d+)", text, re.MULTILINE)]
    if any(kills):
        return fail(f"{max(kills)} processes of this control group")
    try:
        lines = machine.kernel_log.lines["oom"]
    except NotReadError as error:
        if not kills:
            raise
        raise NotReadError(f"none in this control group, but outside of it is not known: {error}") from error
    return warn(f"{len(lines)} lines of the kernel log: {lines[-1][:120]}") if lines else none_in_log(machine)


@check(
    "memory-numa-nodes",
    "host",
    title="each NUMA node has about as much memory as the others",
    read="sysfs: node*/meminfo, MemTotal",
    expected="within 10 %",
    source="peers; proposal of this project",
    cost="a node with missing modules has less bandwidth, and its ranks use the other's memory",
    fix="look at the population of memory modules (`dmidecode -t memory`, by an administrator)",
    when_wrong="nodes of other memory, such as that of a GPU (GH200, GB200) or CXL",
)
def numa_nodes(machine: Machine) -> CheckOutcome:
    sizes = {}
    for path, text in machine.matching("/sys/devices/system/node/node*/meminfo").items():
        if match := re.search(r"MemTotal:\s+(\d+) kB", text):
            node = path.split("/")[5]
            if machine.optional(f"/sys/devices/system/node/{node}/cpulist"):  # nodes without CPUs are other memory
                sizes[node] = int(match[1]) << 10
    need(list(sizes), "no NUMA node's memory was read")
    if len(sizes) == 1:
        return info("there is one NUMA node with CPUs")
    least, most = min(sizes.values()), max(sizes.values())
    shown = named(f"{node}: {size / _GIB:.0f} GiB" for node, size in sizes.items())
    return warn(shown) if least < 0.9 * most else ok(shown)
