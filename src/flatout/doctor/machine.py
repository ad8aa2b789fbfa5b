"""A parsed snapshot: each text is parsed once, when a check first needs it. A missing text raises NotReadError."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable
from functools import cached_property
from typing import NamedTuple, TypeVar

from flatout.doctor.parse.cpu_list import parse_cpu_list
from flatout.doctor.parse.kernel_log import KernelLog, parse_kernel_log
from flatout.doctor.parse.lspci import PciDevice, full_address, parse_lspci
from flatout.doctor.parse.nccl_log import NcclLog, parse_nccl_log
from flatout.doctor.parse.nccl_topology import NcclGraph, NcclTopology, parse_nccl_graph, parse_nccl_topology
from flatout.doctor.parse.number import count_in
from flatout.doctor.parse.nvidia_smi import SmiGpu, SmiQuery, parse_list, parse_nvlink_status, parse_query
from flatout.doctor.parse.nvml import parse_nvml
from flatout.doctor.parse.topology_matrix import TopologyMatrix, parse_peer_to_peer, parse_topology_matrix
from flatout.doctor.unknown import NotHereError, NotReadError
from flatout.records.snapshot import Snapshot

Parsed = TypeVar("Parsed")

SMI_QUERY, SMI_TOPOLOGY, SMI_P2P = "nvidia-smi -q", "nvidia-smi topo -m", "nvidia-smi topo -p2p r"
SMI_NVLINK, SMI_NVLINK_ERRORS, SMI_LIST = "nvidia-smi nvlink -s", "nvidia-smi nvlink -e", "nvidia-smi -L"
NVML = "NVML"
LSPCI, KERNEL_LOG, NCCL_LOG = "lspci -vvv", "kernel log", "NCCL log"
BMC_SENSORS = "sensors of the BMC"  # a `BmcReading` as JSON, read through Redfish
NCCL_TOPOLOGY, NCCL_GRAPH, FABRIC_MANAGER_LOG = "NCCL topology XML", "NCCL graph XML", "fabric manager log"
NVIDIA, AMD, INTEL, AMD_CHIPSET = "0x10de", "0x1002", "0x8086", "0x1022"  # vendors of PCI devices
_MOST_GPUS = 1024
_LOADED_PERCENT = 10
NO_FILE = "no such file or directory"
_UNLIMITED_BYTES = 1 << 60  # version 1 of control groups writes a number near 2^63 for "no limit"
_VIRTUAL_VENDOR = re.compile(r"QEMU|KVM|VMware|Xen|innotek|Virtual|Google Compute|HVM domU|Amazon EC2")


class Machine:
    def __init__(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot
        self._children: dict[str, set[str]] = {}
        for path in snapshot.files:
            folder, _, name = path.rpartition("/")
            while folder and name not in self._children.setdefault(folder, set()):
                self._children[folder].add(name)
                folder, _, name = folder.rpartition("/")

    def file(self, path: str) -> str:
        """Return the text of a file, stripped. Raises NotReadError with the reason."""
        if path in self.snapshot.files:
            return self.snapshot.files[path].strip()
        problem = self.snapshot.problems.get(path, "it is not in the input")
        raise NotReadError(f"`{path}` was not read: {problem}")

    def optional(self, path: str) -> str | None:
        text = self.snapshot.files.get(path)
        return None if text is None else text.strip()

    def number(self, path: str) -> int:
        text = self.file(path)
        try:
            return int(text.split()[0])
        except (ValueError, IndexError):
            raise NotReadError(f"`{path}` does not hold a number, but `{text[:60]}`") from None

    def is_absent(self, path: str) -> bool:
        """Whether the machine has no such file. Raises NotReadError if that is unknown."""
        if path in self.snapshot.files:
            return False
        if self.snapshot.problems.get(path) == NO_FILE:
            return True
        self.file(path)
        raise AssertionError

    def names(self, folder: str) -> list[str]:
        return sorted(self._children.get(folder, ()), key=natural)

    def matching(self, pattern: str) -> dict[str, str]:
        return {path: text.strip() for path, text in self.snapshot.files.items() if fnmatch.fnmatchcase(path, pattern)}

    def output(self, name: str) -> str:
        """Return the output of a command. Raises NotReadError with the reason."""
        output = self.snapshot.outputs.get(name)
        if output is None:
            raise NotReadError(f"the input has no output of `{name}`")
        if output.text is None:
            raise NotReadError(f"`{name}` gave no output: {output.problem}")
        return output.text

    def _parsed(self, name: str, parse: Callable[[str], Parsed]) -> Parsed:
        text = self.output(name)
        try:
            return parse(text)
        except ValueError as error:
            raise NotReadError(f"`{name}` cannot be parsed: {error}") from error

    @property
    def environment(self) -> dict[str, str]:
        if self.snapshot.environment is None:
            raise NotReadError("the environment was not read")
        return self.snapshot.environment

    @cached_property
    def smi(self) -> SmiQuery:
        """Return the values of `nvidia-smi -q`, or else those from NVML, under the same names."""
        if self.has_nvml and not self._has_output(SMI_QUERY):
            return self._parsed(NVML, parse_nvml)
        return self._parsed(SMI_QUERY, parse_query)

    @property
    def has_nvml(self) -> bool:
        return self._has_output(NVML)

    def _has_output(self, name: str) -> bool:
        output = self.snapshot.outputs.get(name)
        return output is not None and output.text is not None

    @cached_property
    def gpus(self) -> tuple[SmiGpu, ...]:
        """Return the GPUs that the text describes, and a GPU without values for each one that it only counts."""
        described = self.smi.gpus
        if not described:
            raise NotReadError(f"`{SMI_QUERY}` names no GPU")
        num_attached = self.smi.num_attached or 0
        if num_attached > _MOST_GPUS:
            raise NotReadError(f"`{SMI_QUERY}` counts {num_attached:,} GPUs, and a host has at most {_MOST_GPUS:,}")
        missing = range(len(described) + 1, num_attached + 1)
        only_counted = [SmiGpu(address=f"GPU {number} of {num_attached}", values={}) for number in missing]
        return (*described, *only_counted)

    @cached_property
    def matrix(self) -> TopologyMatrix:
        return self._parsed(SMI_TOPOLOGY, parse_topology_matrix)

    @cached_property
    def peer_to_peer(self) -> TopologyMatrix:
        return self._parsed(SMI_P2P, parse_peer_to_peer)

    @cached_property
    def nvlinks(self) -> dict[int, dict[int, float | None]]:
        links = self._parsed(SMI_NVLINK, parse_nvlink_status)
        if not links:
            raise NotReadError(f"`{SMI_NVLINK}` names no GPU")
        return links

    @cached_property
    def listed(self) -> dict[int, tuple[str, int]]:
        gpus = self._parsed(SMI_LIST, parse_list)
        if not gpus:
            raise NotReadError(f"`{SMI_LIST}` names no GPU")
        return gpus

    @cached_property
    def lspci(self) -> tuple[PciDevice, ...]:
        return self._parsed(LSPCI, parse_lspci)

    @cached_property
    def kernel_log(self) -> KernelLog:
        return self._parsed(KERNEL_LOG, parse_kernel_log)

    @cached_property
    def nccl_log(self) -> NcclLog:
        if NCCL_LOG not in self.snapshot.outputs:
            raise NotReadError("no NCCL log was given: run the job with NCCL_DEBUG=INFO, then `--nccl-log FILE`")
        return self._parsed(NCCL_LOG, parse_nccl_log)

    @cached_property
    def nccl_topology(self) -> NcclTopology:
        if NCCL_TOPOLOGY not in self.snapshot.outputs:
            raise NotReadError("the input has no NCCL topology XML, and NCCL_TOPO_FILE is not set")
        return self._parsed(NCCL_TOPOLOGY, parse_nccl_topology)

    @cached_property
    def nccl_graphs(self) -> tuple[NcclGraph, ...]:
        return self._parsed(NCCL_GRAPH, parse_nccl_graph)

    @cached_property
    def pci_addresses(self) -> list[str]:
        return self.names("/sys/bus/pci/devices")

    def pci_file(self, address: str, name: str) -> str:
        """Return the text of a device's file; empty if it was not read."""
        return self.optional(f"/sys/bus/pci/devices/{address}/{name}") or ""

    def pci_devices(self, class_prefix: str, vendor: str) -> list[str]:
        """Return the addresses of the vendor's devices of this class."""
        of_class = [
            address for address in self.pci_addresses if self.pci_file(address, "class").startswith(class_prefix)
        ]
        return [address for address in of_class if self.pci_file(address, "vendor") == vendor]

    @cached_property
    def is_virtual(self) -> bool:
        """Whether this is a virtual machine, by the firmware's vendor or the CPU's `hypervisor` flag."""
        vendor = self.optional("/sys/class/dmi/id/sys_vendor") or ""
        product = self.optional("/sys/class/dmi/id/product_name") or ""
        if _VIRTUAL_VENDOR.search(f"{vendor} {product}"):
            return ".metal" not in product
        cpu = self.optional("/proc/cpuinfo")
        if cpu is None:
            raise NotReadError("`/proc/cpuinfo` was not read, so it is unknown whether this is a virtual machine")
        flags = re.search(r"^flags\s*:(.*)$", cpu, re.MULTILINE)
        if flags is None:
            raise NotReadError("`/proc/cpuinfo` has no flags, so it is unknown whether this is a virtual machine")
        return "hypervisor" in flags[1].split()

    @property
    def is_surely_virtual(self) -> bool:
        """Whether this is known to be a virtual machine."""
        try:
            return self.is_virtual
        except NotReadError:
            return False

    @cached_property
    def is_container(self) -> bool:
        if any(path in self.snapshot.files for path in ("/.dockerenv", "/run/.containerenv")):
            return True
        groups = self.file("/proc/self/cgroup")
        if re.search(r"docker|kubepods|containerd|libpod|lxc", groups):
            return True
        return "KUBERNETES_SERVICE_HOST" in (self.snapshot.environment or {})

    def is_loaded(self, gpu: SmiGpu) -> bool:
        """Whether the GPU was busy when it was read; only then are its clocks and PCIe speed meaningful."""
        busy_percent = gpu.number("Utilization/GPU", "Utilization/Gpu")
        if busy_percent is None:
            raise NotReadError(f"`{SMI_QUERY}` does not report the utilization of {gpu.address}")
        return busy_percent >= _LOADED_PERCENT

    @cached_property
    def rdma_devices(self) -> list[str]:
        """Return the devices below /sys/class/infiniband. Raises NotHereError if the kernel has none."""
        devices = self.names("/sys/class/infiniband")
        if devices:
            return devices
        problem = self.snapshot.problems.get("/sys/class/infiniband")
        if problem in {NO_FILE, "empty"}:
            raise NotHereError("there is no RDMA device (InfiniBand, RoCE or EFA) on this machine")
        because = f": {problem}" if problem else ""
        raise NotReadError(f"`/sys/class/infiniband` was not read{because}")

    def need_rdma_device(self) -> None:
        """Raise NotHereError if there is no RDMA device, NotReadError if none was read."""
        _ = self.rdma_devices

    @cached_property
    def bus_is_known(self) -> bool:
        """Whether the PCI bus was read with the class of every device, or is known to be empty."""
        if not self.pci_addresses:
            return self.snapshot.problems.get("/sys/bus/pci/devices") in {NO_FILE, "empty"}
        return all(self.pci_file(address, "class") for address in self.pci_addresses)

    @cached_property
    def num_gpus(self) -> int:
        """Return the number of NVIDIA GPUs on the bus, else that from the driver; 0 only if the bus was read."""
        on_bus = self.pci_devices("0x03", NVIDIA)
        if on_bus:
            return len(on_bus)
        try:
            return len(self.gpus)
        except NotReadError:
            if self.bus_is_known:
                return 0
            raise

    @cached_property
    def cpus_allowed(self) -> frozenset[int]:
        match = re.search(r"^Cpus_allowed_list:\s*(\S+)", self.file("/proc/self/status"), re.MULTILINE)
        if match is None:
            raise NotReadError("`/proc/self/status` does not list the allowed CPUs")
        return parse_cpu_list(match[1])

    @cached_property
    def cpu_quota(self) -> float | None:
        """Return the number of cores whose time the control groups allow; None if they set no limit."""
        self.need_control_groups("cpu.max", "cpu.cfs_quota_us", "cpu.cfs_period_us")
        quotas = []
        for text in self.matching("/sys/fs/cgroup*/cpu.max").values():
            quota, period = text.split()
            if quota != "max":
                quotas.append(int(quota) / int(period))
        for path, text in self.matching("/sys/fs/cgroup*/cpu.cfs_quota_us").items():
            if int(text) > 0:
                quotas.append(int(text) / self.number(path.replace("quota", "period")))
        return min(quotas, default=None)

    @cached_property
    def memory_limit_bytes(self) -> int | None:
        """Return the lowest memory limit of the control groups; None if they set none."""
        self.need_control_groups("memory.max", "memory.limit_in_bytes")
        files = self.matching("/sys/fs/cgroup*/memory.max") | self.matching("/sys/fs/cgroup*/memory.limit_in_bytes")
        limits = [int(text) for text in files.values() if text != "max"]
        return min((limit for limit in limits if limit < _UNLIMITED_BYTES), default=None)

    def need_control_groups(self, *names: str) -> None:
        """Raise NotReadError if a file with such a name exists but was not read; without the file there is no limit."""
        for path, problem in self.snapshot.problems.items():
            if path.startswith("/sys/fs/cgroup/") and path.rpartition("/")[2] in names:
                raise NotReadError(f"`{path}` was not read: {problem}")
        if not self.names("/sys/fs/cgroup") and self.snapshot.problems.get("/sys/fs/cgroup") != NO_FILE:
            raise NotReadError("the input has no control group (`/sys/fs/cgroup`)")

    @cached_property
    def num_ranks_here(self) -> int:
        """Return the number of a job's processes on this host: LOCAL_WORLD_SIZE, or else one per GPU, at least one."""
        environment = self.snapshot.environment or {}
        num_ranks = count_in(environment.get("LOCAL_WORLD_SIZE"))
        return num_ranks or max(1, self.num_gpus)

    @cached_property
    def memory_bytes(self) -> dict[str, int]:
        """Return the values of /proc/meminfo: name -> bytes."""
        lines = re.findall(r"^(\w+(?:\(\w+\))?):\s+(\d+) kB", self.file("/proc/meminfo"), re.MULTILINE)
        if not lines:
            raise NotReadError("`/proc/meminfo` cannot be parsed")
        return {name: int(kib) << 10 for name, kib in lines}

    def limit(self, name: str) -> int | None:
        """Return the soft limit from /proc/self/limits; None means unlimited."""
        for line in self.file("/proc/self/limits").splitlines():
            if line.startswith(name):
                soft = line[len(name) :].split()[0]
                return None if soft == "unlimited" else int(soft)
        raise NotReadError(f"`/proc/self/limits` has no {name}")

    @cached_property
    def mounts(self) -> list[MountEntry]:
        lines = [line.split() for line in self.file("/proc/mounts").splitlines()]
        mounts = [MountEntry(*fields[:4]) for fields in lines if len(fields) >= 4]
        if not mounts:
            raise NotReadError("`/proc/mounts` names no mount")
        return mounts

    def modules(self) -> set[str]:
        return {line.split()[0] for line in self.file("/proc/modules").splitlines() if line.strip()}

    @cached_property
    def packages(self) -> dict[str, str]:
        """Return package -> version in the Python that runs Flatout, with torch's CUDA version as `cuda`."""
        text = self.output("python packages")
        packages = dict(re.findall(r"^([\w.-]+)==(\S+)$", text, re.MULTILINE))
        cuda = re.search(r"^cuda(?:: .*?)? = ['\"]([\d.]+)['\"]", text, re.MULTILINE)
        if cuda:
            packages["cuda"] = cuda[1]
        return packages


class MountEntry(NamedTuple):
    device: str
    path: str
    kind: str
    options: str


def natural(name: str) -> tuple[object, ...]:
    """Return a sort key that puts `NIC2` before `NIC10`."""
    return tuple(int(part) if part.isdecimal() else part for part in re.split(r"(\d+)", name))


__all__ = ["Machine", "full_address"]
