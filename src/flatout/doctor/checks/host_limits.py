"""Checks of the limits of this process, and of the container around it."""

from __future__ import annotations

import re

from flatout.doctor.check import check, fail, info, ok, warn
from flatout.doctor.machine import Machine
from flatout.doctor.outcome import CheckOutcome
from flatout.doctor.unknown import NotHereError, NotReadError

_LIMITS = "/proc/self/limits"
_IPC_LOCK = 1 << 14  # the bit of CAP_IPC_LOCK
_UNITS = {"": 0, "k": 10, "m": 20, "g": 30}  # units of a tmpfs's size, as powers of two


@check(
    "host-environment",
    "host",
    topic="kind of host: bare metal, virtual machine or container",
    read="`hypervisor` of /proc/cpuinfo and the firmware's vendor; /.dockerenv, /run/.containerenv, /proc/self/cgroup",
    expected="any; inside a virtual machine or container, several checks judge differently",
    source="Linux kernel documentation; systemd-detect-virt",
    cost="a virtual machine can hide PCIe switches and NUMA nodes; a container has its own limits",
    fix="none needed",
    when_wrong="some containers and hypervisors cannot be recognised",
)
def environment(machine: Machine) -> CheckOutcome:
    kind = "a virtual machine" if machine.is_virtual else "bare metal"
    if machine.is_container:
        return info(f"{kind}, inside a container")
    return info(f"{kind}, no container was recognised")


@check(
    "limit-memlock",
    "host",
    topic="memlock limit for RDMA",
    read=_LIMITS + ": Max locked memory; CapEff of /proc/self/status (IPC_LOCK)",
    expected="unlimited on a machine with RDMA devices",
    source="NCCL documentation, troubleshooting; libibverbs",
    cost="NCCL fails to register memory (`ibv_reg_mr` or `ibv_create_cq` failed), and the job does not start",
    fix="`ulimit -l unlimited`; Docker: `--ulimit memlock=-1`; Slurm: PropagateResourceLimitsExcept=MEMLOCK",
    when_wrong="the job starts with limits different from this shell's",
)
def memlock(machine: Machine) -> CheckOutcome:
    limit = machine.limit("Max locked memory")
    if limit is None:
        return ok("unlimited")
    shown = f"{limit >> 10:,} KiB"
    if _can_lock_more(machine):
        return ok(f"{shown}, but this process has the capability to lock more (IPC_LOCK)")
    try:
        num_devices = len(machine.rdma_devices)
    except NotHereError:
        return info(f"{shown}, and there is no RDMA device")
    return fail(f"the memlock limit is too low for RDMA: {shown}, with {num_devices} RDMA devices")


def _can_lock_more(machine: Machine) -> bool:
    status = machine.optional("/proc/self/status") or ""
    capabilities = re.search(r"^CapEff:\s*([0-9a-f]+)", status, re.MULTILINE)
    return capabilities is not None and bool(int(capabilities[1], 16) & _IPC_LOCK)


@check(
    "limit-open-files",
    "host",
    topic="limit on open files",
    read=_LIMITS + ": Max open files",
    expected="at least 65,536; more for jobs of several hundred ranks",
    source="NCCL documentation, troubleshooting; PyTorch: a loader's tensors are open files",
    cost="`Too many open files` in data loaders, or when large jobs start",
    fix="`ulimit -n 1048576`; Docker: `--ulimit nofile=1048576`",
    when_wrong="small jobs need fewer",
)
def open_files(machine: Machine) -> CheckOutcome:
    limit = machine.limit("Max open files")
    if limit is None:
        return ok("unlimited")
    shown = f"{limit:,}"
    if limit >= 65_536:
        return ok(shown)
    return warn(f"the limit on open files is low: {shown}") if limit <= 1024 else info(shown)


@check(
    "limit-stack",
    "host",
    topic="stack size limit",
    read=_LIMITS + ": Max stack size",
    expected="8 MiB or so, not unlimited",
    source="NCCL documentation, troubleshooting: an unlimited stack can make NCCL or its plugins hang or fail",
    cost="some libraries crash at start-up",
    fix="`ulimit -s 8192`",
    when_wrong="Fortran codes require it",
)
def stack(machine: Machine) -> CheckOutcome:
    limit = machine.limit("Max stack size")
    return warn("the stack size is unlimited") if limit is None else ok(f"{limit >> 10:,} KiB")


@check(
    "limit-processes",
    "host",
    topic="limit on processes and threads",
    read=_LIMITS + ": Max processes; pids.max and pids.current of the control groups",
    expected="at least 1,024 left for each rank",
    source="proposed by Flatout, uncalibrated",
    cost="`Resource temporarily unavailable` when loaders, NCCL or the compiler start threads",
    fix="`ulimit -u`; Docker: `--pids-limit -1`; Kubernetes: podPidsLimit",
    when_wrong="small jobs need fewer",
)
def processes(machine: Machine) -> CheckOutcome:
    limit = machine.limit("Max processes")
    num_left = _num_left_in_groups(machine)
    machine.need_control_groups("pids.max")
    if limit is not None:
        num_left.append(limit)
    if not num_left:
        return ok("unlimited")
    least, num_ranks = min(num_left), machine.num_ranks_here
    shown = f"{least:,} for {num_ranks} ranks"
    return ok(shown) if least >= 1024 * num_ranks else warn(f"the limit on processes and threads is low: {shown}")


def _num_left_in_groups(machine: Machine) -> list[int]:
    """Return how many more processes each limited control group allows."""
    num_left = []
    for path, most in machine.matching("/sys/fs/cgroup*/pids.max").items():
        if most != "max":
            num_used = machine.optional(path.replace("pids.max", "pids.current")) or "0"
            num_left.append(int(most) - int(num_used))
    return num_left


@check(
    "limit-shared-memory",
    "host",
    topic="size of /dev/shm",
    read="/proc/mounts (size=) and `df -P -k` of /dev/shm",
    expected="at least 1 GiB; a loader needs workers x prefetch x bytes per batch",
    source="Docker's default is 64 MB; nccl issue 290; PyTorch issue 5040",
    cost="`Bus error` in loader workers, `posix_fallocate failed` in NCCL, or NCCL without shared memory",
    fix="Docker: `--shm-size 16g` or `--ipc host`; Kubernetes: an emptyDir with medium Memory",
    when_wrong="the data loaders do not share tensors through /dev/shm (file_system strategy, no workers)",
)
def shared_memory(machine: Machine) -> CheckOutcome:
    size = _shm_bytes(machine)
    shown = f"{size / (1 << 30):.2f} GiB"
    if size <= 64 << 20:
        return fail(f"/dev/shm is too small: {shown}, Docker's default")
    return warn(f"/dev/shm is small: {shown}") if size < 1 << 30 else ok(shown)


def _shm_bytes(machine: Machine) -> int:
    try:
        lines = machine.output("df -P -k").splitlines()
    except NotReadError:
        lines = []
    for line in lines:
        words = line.split()
        if len(words) >= 6 and words[5] == "/dev/shm":
            return int(words[1]) << 10
    for mount in machine.mounts:
        if mount.path != "/dev/shm":
            continue
        if match := re.search(r"(?:^|,)size=(\d+)([kmg]?)", mount.options):
            return int(match[1]) << _UNITS[match[2]]
        return machine.memory_bytes["MemTotal"] // 2  # tmpfs's default
    raise NotReadError("the input does not show how /dev/shm is mounted")


@check(
    "limit-remove-ipc",
    "host",
    topic="removal of shared memory at logout",
    read="/etc/systemd/logind.conf: RemoveIPC",
    expected="no, for users who leave jobs running",
    source="systemd documentation, logind.conf",
    cost="a job that continues after the user's last logout loses its shared memory: bus errors hours later",
    fix="ask an administrator to set RemoveIPC=no",
    when_wrong="system users, and jobs that a scheduler starts in separate sessions",
)
def remove_ipc(machine: Machine) -> CheckOutcome:
    text = machine.file("/etc/systemd/logind.conf")
    values = re.findall(r"^[ \t]*+RemoveIPC\s*=\s*(\w+)", text, re.MULTILINE)
    if not values:
        return info("not set: the distribution's default (yes upstream, no in many)")
    last = values[-1]
    return ok("no") if last.lower() in ("no", "false", "0") else info(f"RemoveIPC={last}")
