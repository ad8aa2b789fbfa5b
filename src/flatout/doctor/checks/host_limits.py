"""Limits of this process, and of the container around it."""

from __future__ import annotations

import re

from flatout.doctor.check import CheckOutcome, check, fail, info, ok, warn
from flatout.doctor.machine import Machine
from flatout.doctor.unknown import NotHereError, NotReadError

_LIMITS = "/proc/self/limits"


@check(
    "host-environment",
    "host",
    title="whether this is bare metal, a virtual machine or a container",
    read="`hypervisor` of /proc/cpuinfo and the firmware's vendor; /.dockerenv, /run/.containerenv, /proc/self/cgroup",
    expected="either; several checks judge otherwise inside of one",
    source="Linux kernel documentation; systemd-detect-virt",
    cost="a virtual machine may hide PCIe switches and NUMA nodes; a container has limits of its own",
    fix="none needed",
    when_wrong="some containers and hypervisors leave no trace",
)
def environment(machine: Machine) -> CheckOutcome:
    kind = "a virtual machine" if machine.is_virtual else "bare metal"
    return info(f"{kind}, inside a container" if machine.is_container else f"{kind}, no container was recognised")


@check(
    "limit-memlock",
    "host",
    title="memory for RDMA may be locked",
    read=_LIMITS + ": Max locked memory; CapEff of /proc/self/status (IPC_LOCK)",
    expected="unlimited on a machine with RDMA devices",
    source="NCCL documentation, troubleshooting; libibverbs",
    cost="NCCL fails to register memory (`ibv_reg_mr` or `ibv_create_cq` failed), and the job does not start",
    fix="`ulimit -l unlimited`; Docker: `--ulimit memlock=-1`; Slurm: PropagateResourceLimitsExcept=MEMLOCK",
    when_wrong="the job is started with other limits than this shell",
)
def memlock(machine: Machine) -> CheckOutcome:
    limit = machine.limit("Max locked memory")
    if limit is None:
        return ok("unlimited")
    capabilities = re.search(r"^CapEff:\s*([0-9a-f]+)", machine.optional("/proc/self/status") or "", re.MULTILINE)
    if capabilities and int(capabilities[1], 16) >> 14 & 1:
        return ok(f"{limit >> 10:,} KiB, but this process may lock more (IPC_LOCK)")
    try:
        devices = machine.rdma_devices
    except NotHereError:
        return info(f"{limit >> 10:,} KiB, and there is no RDMA device")
    return fail(f"{limit >> 10:,} KiB, with {len(devices)} RDMA devices")


@check(
    "limit-open-files",
    "host",
    title="enough files and sockets may be open",
    read=_LIMITS + ": Max open files",
    expected="at least 65,536; more from some hundred ranks on",
    source="NCCL documentation, troubleshooting; PyTorch: a loader's tensors are open files",
    cost="`Too many open files` in loaders or at start-up of large jobs",
    fix="`ulimit -n 1048576`; Docker: `--ulimit nofile=1048576`",
    when_wrong="small jobs need few",
)
def open_files(machine: Machine) -> CheckOutcome:
    limit = machine.limit("Max open files")
    if limit is None or limit >= 65_536:
        return ok("unlimited" if limit is None else f"{limit:,}")
    return warn(f"{limit:,}") if limit <= 1024 else info(f"{limit:,}")


@check(
    "limit-stack",
    "host",
    title="threads have stacks of a fixed size",
    read=_LIMITS + ": Max stack size",
    expected="8 MiB or so, not unlimited",
    source="NCCL documentation, troubleshooting: an unlimited stack may make NCCL or its plugins hang or fail",
    cost="crashes at start-up with some libraries",
    fix="`ulimit -s 8192`",
    when_wrong="Fortran codes ask for it",
)
def stack(machine: Machine) -> CheckOutcome:
    limit = machine.limit("Max stack size")
    return warn("unlimited") if limit is None else ok(f"{limit >> 10:,} KiB")


@check(
    "limit-processes",
    "host",
    title="enough processes and threads may be started",
    read=_LIMITS + ": Max processes; pids.max and pids.current of the control groups",
    expected="at least 1,024 left for each rank",
    source="proposal of this project, uncalibrated",
    cost="`Resource temporarily unavailable` when loaders, NCCL or the compiler start threads",
    fix="`ulimit -u`; Docker: `--pids-limit -1`; Kubernetes: podPidsLimit",
    when_wrong="small jobs need few",
)
def processes(machine: Machine) -> CheckOutcome:
    limits = [limit for limit in [machine.limit("Max processes")] if limit is not None]
    for path, text in machine.matching("/sys/fs/cgroup*/pids.max").items():
        if text != "max":
            used = machine.optional(path.replace("pids.max", "pids.current")) or "0"
            limits.append(int(text) - int(used))
    machine.need_control_groups("pids.max")
    if not limits:
        return ok("unlimited")
    least, ranks = min(limits), machine.num_ranks_here
    shown = f"{least:,} for {ranks} ranks"
    return ok(shown) if least >= 1024 * ranks else warn(shown)


@check(
    "limit-shared-memory",
    "host",
    title="/dev/shm is large enough for loaders and NCCL",
    read="/proc/mounts (size=) and `df -P -k` of /dev/shm",
    expected="at least 1 GiB; a loader needs workers x prefetch x bytes of a batch",
    source="Docker's default is 64 MB; nccl issue 290; PyTorch issue 5040",
    cost="`Bus error` in loader workers, `posix_fallocate failed` in NCCL, or NCCL without shared memory",
    fix="Docker: `--shm-size 16g` or `--ipc host`; Kubernetes: an emptyDir with medium Memory",
    when_wrong="loaders that do not share tensors through it (file_system strategy, no workers)",
)
def shared_memory(machine: Machine) -> CheckOutcome:
    size = _shm_bytes(machine)
    shown = f"{size / (1 << 30):.2f} GiB"
    if size <= 64 << 20:
        return fail(f"{shown}, Docker's default")
    return warn(shown) if size < 1 << 30 else ok(shown)


def _shm_bytes(machine: Machine) -> int:
    try:
        text = machine.output("df -P -k")
    except NotReadError:
        text = ""
    for line in text.splitlines():
        words = line.split()
        if len(words) >= 6 and words[5] == "/dev/shm":
            return int(words[1]) << 10
    for mount in machine.mounts:
        if mount.path == "/dev/shm":
            if match := re.search(r"(?:^|,)size=(\d+)([kmg]?)", mount.options):
                return int(match[1]) << {"": 0, "k": 10, "m": 20, "g": 30}[match[2]]
            return machine.memory_bytes["MemTotal"] // 2  # tmpfs's default
    raise NotReadError("no /dev/shm is mounted, as far as was read")


@check(
    "limit-remove-ipc",
    "host",
    title="shared memory of a job outlives the user's last login",
    read="/etc/systemd/logind.conf: RemoveIPC",
    expected="no, for users who leave jobs behind",
    source="systemd documentation, logind.conf",
    cost="a job that runs on after logout loses its shared memory: bus errors hours later",
    fix="an administrator sets RemoveIPC=no",
    when_wrong="system users, and jobs of schedulers with sessions of their own",
)
def remove_ipc(machine: Machine) -> CheckOutcome:
    text = machine.file("/etc/systemd/logind.conf")
    found = re.findall(r"^\s*RemoveIPC\s*=\s*(\w+)", text, re.MULTILINE)
    if not found:
        return info("not set: the distribution's default (yes upstream, no in many)")
    return ok("no") if found[-1].lower() in ("no", "false", "0") else info(f"RemoveIPC={found[-1]}")
