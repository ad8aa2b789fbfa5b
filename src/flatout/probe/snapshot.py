"""Read this machine into a Snapshot: /proc, /sys, /etc and outputs of tools, without root. Nothing is changed.

A file or a tool that cannot be read is noted with the reason. No tool runs longer than its limit, so that a hanging
driver or mount delays nothing else.
"""

from __future__ import annotations

import glob
import os
import platform
import shutil
import signal
import subprocess
import sys
import sysconfig
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

from flatout.probe.limits import control_groups
from flatout.records.snapshot import Output, Snapshot

_LIMIT_S = 20.0
_MAX_BYTES = 64 << 10  # maximum number of bytes read from a file
_MAX_LOG_BYTES = 1 << 20  # maximum size kept of an output: its end, because the end of a kernel log is the newest part
_FILES = (
    "/proc/cmdline",
    "/proc/cpuinfo",
    "/proc/loadavg",
    "/proc/meminfo",
    "/proc/modules",
    "/proc/mounts",
    "/proc/self/cgroup",
    "/proc/self/limits",
    "/proc/self/status",
    "/proc/uptime",
    "/proc/version",
    "/proc/vmstat",
    "/proc/driver/nvidia/version",
    "/proc/sys/kernel/numa_balancing",
    "/proc/sys/kernel/osrelease",
    "/proc/sys/kernel/yama/ptrace_scope",
    "/proc/sys/net/core/rmem_max",
    "/proc/sys/net/core/wmem_max",
    "/proc/sys/net/core/somaxconn",
    "/proc/sys/net/ipv4/ip_local_port_range",
    "/proc/sys/net/ipv4/tcp_rmem",
    "/proc/sys/net/ipv4/tcp_wmem",
    "/proc/sys/vm/swappiness",
    "/sys/kernel/mm/transparent_hugepage/enabled",
    "/sys/devices/system/clocksource/clocksource0/current_clocksource",
    "/sys/devices/system/clocksource/clocksource0/available_clocksource",
    "/sys/class/dmi/id/sys_vendor",
    "/sys/class/dmi/id/product_name",
    "/.dockerenv",
    "/run/.containerenv",
    "/etc/nccl.conf",
    "/etc/systemd/logind.conf",
)
_GLOBS = (
    "/sys/devices/system/cpu/cpu[0-9]*/cpufreq/scaling_governor",
    "/sys/devices/system/cpu/cpu[0-9]*/cpufreq/scaling_max_freq",
    "/sys/devices/system/cpu/cpu[0-9]*/cpufreq/cpuinfo_max_freq",
    "/sys/devices/system/node/node[0-9]*/cpulist",
    "/sys/devices/system/node/node[0-9]*/meminfo",
    "/sys/class/net/*/mtu",
    "/sys/class/net/*/speed",
    "/sys/class/net/*/operstate",
    "/sys/class/net/*/carrier_down_count",
    "/sys/class/infiniband/*/fw_ver",
    "/sys/class/infiniband/*/hca_type",
    "/sys/class/infiniband/*/board_id",
    "/sys/class/infiniband/*/device/numa_node",
    "/sys/class/infiniband/*/ports/*/state",
    "/sys/class/infiniband/*/ports/*/phys_state",
    "/sys/class/infiniband/*/ports/*/rate",
    "/sys/class/infiniband/*/ports/*/link_layer",
    "/sys/class/infiniband/*/ports/*/gids/[0-9]",
    "/sys/class/infiniband/*/ports/*/gid_attrs/types/[0-9]",
    "/sys/class/infiniband/*/ports/*/counters/*",
    "/sys/class/infiniband/*/ports/*/hw_counters/*",
    "/sys/block/*/queue/rotational",
    "/sys/block/*/queue/read_ahead_kb",
    "/sys/kernel/iommu_groups/[0-9]*/type",
)
_PCI_FILES = (
    "class",
    "vendor",
    "device",
    "numa_node",
    "local_cpulist",
    "current_link_speed",
    "current_link_width",
    "max_link_speed",
    "max_link_width",
    "aer_dev_correctable",
    "aer_dev_fatal",
    "aer_dev_nonfatal",
)
_LINKS = ("/sys/bus/pci/devices/*", "/sys/class/infiniband/*", "/sys/class/net/*", "/sys/block/nvme*")
_CGROUP_FILES = (
    *("cpu.max", "cpu.stat", "cpuset.cpus.effective", "memory.max", "memory.current", "memory.events", "pids.max"),
    *("cpu.cfs_quota_us", "cpu.cfs_period_us", "memory.limit_in_bytes", "pids.current"),
)
_CONTROLLERS = ("cpu", "memory", "pids")
_COMMANDS: dict[str, tuple[str, ...]] = {
    "nvidia-smi -q": ("nvidia-smi", "-q"),
    "NVML": (sys.executable, "-m", "flatout.probe.gpu_values"),
    "nvidia-smi topo -m": ("nvidia-smi", "topo", "-m"),
    "nvidia-smi topo -p2p r": ("nvidia-smi", "topo", "-p2p", "r"),
    "nvidia-smi nvlink -s": ("nvidia-smi", "nvlink", "-s"),
    "nvidia-smi nvlink -e": ("nvidia-smi", "nvlink", "-e"),
    "nvidia-smi -L": ("nvidia-smi", "-L"),
    "lspci -vvv": ("lspci", "-D", "-vvv"),
    "df -P -k": ("df", "-P", "-k"),
    "df -P -i": ("df", "-P", "-i"),
    "systemctl is-active nvidia-fabricmanager": ("systemctl", "is-active", "nvidia-fabricmanager"),
    "chronyc tracking": ("chronyc", "tracking"),
    "ipmitool sdr elist": ("ipmitool", "sdr", "elist"),
}
_PREFIXES = (
    *("NCCL_", "CUDA_", "TORCH_", "PYTORCH_", "OMP_", "MKL_", "KMP_", "GLOO_", "FI_", "UCX_", "SLURM_JOB_NUM_NODES"),
    *(
        "LOCAL_RANK",
        "LOCAL_WORLD_SIZE",
        "RANK",
        "WORLD_SIZE",
        "COMPUTE_PROFILE",
        "TORCHDYNAMO_",
        "NSYS_",
        "NV_",
        "NVIDIA_",
    ),
    *(
        "LD_PRELOAD",
        "LD_LIBRARY_PATH",
        "HF_HOME",
        "HF_DATASETS_CACHE",
        "TMPDIR",
        "KUBERNETES_SERVICE_HOST",
        "SLURM_NTASKS",
    ),
)


def read_machine(environment: Mapping[str, str] = os.environ, *, data: str | None = None) -> Snapshot:
    """Read this machine within about 20 seconds. `data` is the path of the data set, if known."""
    files: dict[str, str] = {}
    problems: dict[str, str] = {}
    with ThreadPoolExecutor(8) as pool:
        waiting = {name: pool.submit(_output, command) for name, command in _commands(data).items()}
        log = pool.submit(read_kernel_log)
        for path in (*_FILES, os.path.expanduser("~/.nccl.conf"), *_found(problems)):
            _read(path, files, problems)
        _read_named_topology(environment, files, problems)
        outputs = {name: future.result() for name, future in waiting.items()}
        outputs["kernel log"] = log.result()
    outputs["python packages"] = _packages()
    if "NCCL_TOPO_FILE" in environment and environment["NCCL_TOPO_FILE"] in files:
        outputs["NCCL topology XML"] = Output(text=files[environment["NCCL_TOPO_FILE"]])
    return Snapshot(
        host=platform.node() or None,
        taken_at=datetime.now(UTC).isoformat(timespec="seconds"),
        read_from=("this machine",),
        files=files,
        links={path: os.path.realpath(path) for pattern in _LINKS for path in glob.glob(pattern)},
        problems=problems,
        outputs=outputs,
        environment={name: value for name, value in environment.items() if name.startswith(_PREFIXES)},
    )


def _commands(data: str | None) -> dict[str, tuple[str, ...]]:
    paths = [path for path in (".", "/tmp", "/dev/shm", data) if path and os.path.isdir(path)]
    return {name: (*command, *paths) if command[0] == "df" else command for name, command in _COMMANDS.items()}


def _found(problems: dict[str, str]) -> list[str]:
    paths = [path for pattern in _GLOBS for path in glob.glob(pattern)]
    for folder in glob.glob("/sys/bus/pci/devices/*"):
        paths += [f"{folder}/{name}" for name in _PCI_FILES if os.path.exists(f"{folder}/{name}")]
    for folder in (
        "/sys/class/infiniband",
        "/sys/bus/pci/devices",
        "/sys/devices/system/cpu/cpu0/cpufreq",
        "/sys/kernel/iommu_groups",
        "/sys/class/net",
    ):
        if not os.path.isdir("/sys/kernel"):
            problems[folder] = "sysfs is not mounted here"  # nothing can be called absent if nothing is visible
        elif not os.path.isdir(folder):
            problems[folder] = "no such file or directory"
        elif not os.listdir(folder):
            problems[folder] = "empty"
    for group in _control_groups():
        paths += [f"{group}/{name}" for name in _CGROUP_FILES if os.path.exists(f"{group}/{name}")]
    return paths


def _control_groups() -> list[str]:
    """Return this process's groups, of both versions and each level; in a container the mount itself is the group."""
    folders = ["/sys/fs/cgroup", *(f"/sys/fs/cgroup/{name}" for name in _CONTROLLERS)]
    folders += [str(folder) for name in _CONTROLLERS for folder in control_groups(name)]
    return [folder for folder in dict.fromkeys(folders) if os.path.isdir(folder)]


def _read(path: str, files: dict[str, str], problems: dict[str, str]) -> None:
    try:
        with open(path, "rb") as file:
            files[path] = file.read(_MAX_BYTES).decode("utf-8", "replace")
    except OSError as error:
        problems[path] = (error.strerror or str(error)).lower()


def _read_named_topology(environment: Mapping[str, str], files: dict[str, str], problems: dict[str, str]) -> None:
    for path in (environment.get("NCCL_TOPO_FILE"), "/var/run/nvidia-topologyd/virtualTopology.xml"):
        if path:
            _read(path, files, problems)


def _output(command: tuple[str, ...]) -> Output:
    if shutil.which(command[0]) is None:
        return Output(problem=f"there is no `{command[0]}` here", is_missing=True)
    try:
        process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            stdin=subprocess.DEVNULL,
            env=os.environ | {"LC_ALL": "C"},
            start_new_session=True,
        )
    except OSError as error:
        return Output(problem=(error.strerror or str(error)).lower())
    try:
        printed, said_of_errors = process.communicate(timeout=_LIMIT_S)
    except subprocess.TimeoutExpired:
        _abandon(process)
        return Output(problem=f"it did not finish within {_LIMIT_S:g} s")
    text = printed[-_MAX_LOG_BYTES:].decode("utf-8", "replace")
    said = (said_of_errors or printed).decode("utf-8", "replace").strip().splitlines()
    if process.returncode and (not text.strip() or command[0] not in ("df", "systemctl")):
        return Output(
            problem=f"it ended with code {process.returncode}: {said[0][:200] if said else 'it printed nothing'}"
        )
    return Output(text=text)


def _abandon(process: subprocess.Popen[bytes]) -> None:
    """End a process and its children, without waiting for one that hangs in the kernel: it cannot be killed."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    with suppress(subprocess.TimeoutExpired):
        process.wait(timeout=1)
    for stream in (process.stdout, process.stderr):
        if stream is not None:
            stream.close()


def read_kernel_log() -> Output:
    first = _output(("dmesg", "-x"))  # with the level of each line
    if not first.text:
        first = _output(("dmesg",))  # this dmesg may not know -x
    if first.text:
        return first
    second = _output(("journalctl", "-k", "--no-pager", "--quiet", "--since", "-24h"))
    if second.text and second.text.strip():
        return second
    return Output(problem=f"dmesg: {first.problem or 'it is empty'}; journalctl -k: {second.problem or 'it is empty'}")


def _nccl_packages() -> list[str]:
    """Return the names of NCCL's packages in this Python, of any CUDA."""
    folder = Path(sysconfig.get_path("purelib"))
    names = [path.name.split("-")[0].replace("_", "-") for path in folder.glob("nvidia_nccl_*.dist-info")]
    return sorted(set(names))


def _packages() -> Output:
    """Return the versions of training packages in this Python; torch is not imported, its `version.py` is read."""
    lines = []
    for name in (
        "torch",
        "deepspeed",
        "transformers",
        "accelerate",
        "lightning",
        *_nccl_packages(),
    ):
        try:
            lines.append(f"{name}=={metadata.version(name)}")
        except metadata.PackageNotFoundError:
            continue
    version_file = Path(sysconfig.get_path("purelib"), "torch", "version.py")
    with suppress(OSError):
        lines.append(version_file.read_text(encoding="utf-8"))
    return Output(text="\n".join(lines) + "\n")
