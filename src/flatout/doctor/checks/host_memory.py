"""Checks of the host's memory."""

from __future__ import annotations

import re

from flatout.doctor.check import check, fail, info, named, need, none_in_log, ok, warn
from flatout.doctor.machine import Machine
from flatout.doctor.outcome import CheckOutcome
from flatout.doctor.unknown import NotReadError

_GIB = 1 << 30


@check(
    "memory-available",
    "host",
    topic="available memory",
    read="/proc/meminfo: MemAvailable of MemTotal",
    expected="at least a quarter of the memory",
    source="proposed by Flatout, uncalibrated",
    cost="the data set is not cached; then the host swaps, or the OOM killer ends a rank",
    fix="end leftover processes; check /dev/shm and tmpfs, which use memory too",
    when_wrong="while a job is running, its own memory is counted",
)
def available(machine: Machine) -> CheckOutcome:
    memory = machine.memory_bytes
    free, total = memory["MemAvailable"], memory["MemTotal"]
    shown = f"{free / _GIB:.1f} of {total / _GIB:.1f} GiB"
    return warn(f"little memory is available: {shown}") if free < total / 4 else ok(shown)


@check(
    "memory-limit",
    "host",
    topic="memory limit of the container",
    read="memory.max or memory.limit_in_bytes of the control groups, against MemTotal",
    expected="any; plan the job with the memory that it can use",
    source="Linux kernel documentation, control groups",
    cost="the OOM killer ends a rank that exceeds it; page cache counts too, so under a small limit data is read again",
    fix="request more memory",
    when_wrong="no known case",
)
def limit(machine: Machine) -> CheckOutcome:
    most, total = machine.memory_limit_bytes, machine.memory_bytes["MemTotal"]
    if most is None or most >= total:
        return ok("no limit below the host's memory")
    return info(f"limited to {most / _GIB:.1f} of {total / _GIB:.1f} GiB")


@check(
    "memory-swap",
    "host",
    topic="swapped memory",
    read="/proc/meminfo: SwapTotal, SwapFree",
    expected="none in use",
    source="proposed by Flatout",
    cost="a rank that touches swapped memory waits for the disk, and all others wait for the rank",
    fix="free memory; then ask an administrator to run `swapoff -a`",
    when_wrong="the swapped memory can belong to sleeping processes",
)
def swap(machine: Machine) -> CheckOutcome:
    memory = machine.memory_bytes
    used = memory["SwapTotal"] - memory["SwapFree"]
    if not memory["SwapTotal"]:
        return ok("there is no swap")
    if used > memory["MemTotal"] // 100:
        return warn(f"memory is swapped out: {used / _GIB:.1f} GiB in use")
    return ok(f"{used >> 20} MiB in use")


@check(
    "memory-huge-pages",
    "host",
    topic="transparent huge pages",
    read="sysfs: transparent_hugepage/enabled",
    expected="madvise or always",
    source="Linux kernel documentation, transhuge",
    cost="with never, loaders on large arrays spend more time in page faults",
    fix="ask an administrator to set madvise",
    when_wrong="the program requests huge pages itself",
)
def huge_pages(machine: Machine) -> CheckOutcome:
    text = machine.file("/sys/kernel/mm/transparent_hugepage/enabled")
    chosen = re.search(r"\[(\w+)\]", text)
    if chosen is None:
        raise NotReadError(f"its content is `{text[:60]}`")
    return info(chosen[1])


@check(
    "memory-oom",
    "host",
    topic="processes killed by the OOM killer",
    read="memory.events of the control groups (oom_kill), and the kernel log",
    expected="none",
    source="Linux kernel documentation, control groups",
    cost="a rank or a loader worker is killed with signal 9; the job ends or hangs",
    fix="use fewer workers or a smaller prefetch, or request more memory",
    when_wrong="the killed process belonged to an earlier job, or to another program",
)
def oom(machine: Machine) -> CheckOutcome:
    events = machine.matching("/sys/fs/cgroup*/memory.events").values()
    counts = [int(match[1]) for text in events for match in re.finditer(r"^oom_kill (\d+)", text, re.MULTILINE)]
    if any(counts):
        return fail(f"the OOM killer killed {max(counts)} processes of this control group")
    try:
        lines = machine.kernel_log.lines["oom"]
    except NotReadError as error:
        if not counts:
            raise
        raise NotReadError(f"none in this control group; unknown outside it: {error}") from error
    if lines:
        return warn(f"the OOM killer killed processes, {len(lines)} lines of the kernel log: {lines[-1][:120]}")
    return none_in_log(machine)


@check(
    "memory-numa-nodes",
    "host",
    topic="memory per NUMA node",
    read="sysfs: node*/meminfo, MemTotal",
    expected="equal within 10 %",
    source="peers; proposed by Flatout",
    cost="a NUMA node with missing modules has less bandwidth, and its ranks use another node's memory",
    fix="check which memory modules are installed (`dmidecode -t memory`, by an administrator)",
    when_wrong="nodes with other kinds of memory, such as a GPU's (GH200, GB200) or CXL",
)
def numa_nodes(machine: Machine) -> CheckOutcome:
    sizes = _node_bytes(machine)
    need(list(sizes), "the input has no NUMA node memory sizes")
    if len(sizes) == 1:
        return info("there is only one NUMA node with CPUs")
    least, most = min(sizes.values()), max(sizes.values())
    shown = named(f"{node}: {size / _GIB:.0f} GiB" for node, size in sizes.items())
    return warn(f"NUMA nodes have unequal memory: {shown}") if least < 0.9 * most else ok(shown)


def _node_bytes(machine: Machine) -> dict[str, int]:
    """Return the bytes of each NUMA node with CPUs; a node without CPUs is another kind of memory."""
    sizes = {}
    for path, text in machine.matching("/sys/devices/system/node/node*/meminfo").items():
        node = path.split("/")[5]
        has_cpus = bool(machine.optional(f"/sys/devices/system/node/{node}/cpulist"))
        match = re.search(r"MemTotal:\s+(\d+) kB", text)
        if match and has_cpus:
            sizes[node] = int(match[1]) << 10
    return sizes
