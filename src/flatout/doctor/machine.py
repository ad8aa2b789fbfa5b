"""A snapshot, read: each text is parsed once, when a check first asks for it, and a missing one is a NotReadError."""

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
NCCL_TOPOLOGY, NCCL_GRAPH, FABRIC_MANAGER_LOG = "NCCL topology XML", "NCCL graph XML", "fabric manager log"
_LOADED_PERCENT = 10
NO_FILE = "no such file or directory"
_UNLIMITED_BYTES = 1 << 60  # version 1 of control groups writes a number near 2^63 for "no limit"


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
        """The text of a file, stripped. Raises NotReadError with the reason."""
        if path in self.snapshot.files:
            return self.snapshot.files[path].strip()
        raise NotReadError(f"`{path}` was not read: {self.snapshot.problems.get(path, 'it is not in what was given')}")

    def optional(self, path: str) -> str | None:
        text = self.snapshot.files.get(path)
        return None if text is None else text.strip()

    def number(self, path: str) -> int:
        text = self.file(path)
        try:
            return int(text.split()[0])
        except (ValueError, IndexError):
            raise NotReadError(f"`{path}` holds no number, but `{text[:60]}`") from None

    def is_absent(self, path: str) -> bool:
        """True where the machine was looked at and has no such file; raises NotReadError where it was not looked at."""
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
        """What a command printed. Raises NotReadError with the reason."""
        output = self.snapshot.outputs.get(name)
        if output is None:
            raise NotReadError(f"no output of `{name}` is in what was read")
        if output.text is None:
            raise NotReadError(f"`{name}` gave nothing: {output.problem}")
        return output.text

    def _parsed(self, name: str, parse: Callable[[str], Parsed]) -> Parsed:
        text = self.output(name)
        try:
            return parse(text)
        except ValueError as error:
            raise NotReadError(f"`{name}` cannot be understood: {error}") from error

    @property
    def environment(self) -> dict[str, str]:
        if self.snapshot.environment is None:
            raise NotReadError("the environment is not in what was read")
        return self.snapshot.environment

    @cached_property
    def smi(self) -> SmiQuery:
        """What `nvidia-smi -q` says, else the driver's library itself, under the same names."""
        output = self.snapshot.outputs.get(SMI_QUERY)
        if (output is None or output.text is None) and self.has_nvml:
            return self._parsed(NVML, parse_nvml)
        return self._parsed(SMI_QUERY, parse_query)

    @property
    def has_nvml(self) -> bool:
        output = self.snapshot.outputs.get(NVML)
        return output is not None and output.text is not None

    @cached_property
    def gpus(self) -> tuple[SmiGpu, ...]:
        """Those that the text describes, and an empty one for each that it only counts: a part is not the whole."""
        described = self.smi.gpus
        if not described:
            raise NotReadError(f"`{SMI_QUERY}` names no GPU")
        missing = range(len(described) + 1, (self.smi.num_attached or 0) + 1)
        return (*described, *(SmiGpu(address=f"GPU {n} of {missing.stop - 1}", values={}) for n in missing))

    @cached_property
    def matrix(self) -> TopologyMatrix:
        return self._parsed(SMI_TOPOLOGY, parse_topology_matrix)

    @cached_property
    def peer_to_peer(self) -> TopologyMatrix:
        return self._parsed(SMI_P2P, parse_peer_to_peer)

    @cached_property
    def nvlinks(self) -> dict[int, dict[int, float | None]]:
        found = self._parsed(SMI_NVLINK, parse_nvlink_status)
        if not found:
            raise NotReadError(f"`{SMI_NVLINK}` names no GPU")
        return found

    @cached_property
    def listed(self) -> dict[int, tuple[str, int]]:
        found = self._parsed(SMI_LIST, parse_list)
        if not found:
            raise NotReadError(f"`{SMI_LIST}` names no GPU")
        return found

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
            raise NotReadError("no NCCL topology XML was given, and NCCL_TOPO_FILE names none")
        return self._parsed(NCCL_TOPOLOGY, parse_nccl_topology)

    @cached_property
    def nccl_graphs(self) -> tuple[NcclGraph, ...]:
        return self._parsed(NCCL_GRAPH, parse_nccl_graph)

    @cached_property
    def pci_addresses(self) -> list[str]:
        return self.names("/sys/bus/pci/devices")

    def pci_class(self, address: str) -> str:
        return self.optional(f"/sys/bus/pci/devices/{address}/class") or ""

    @cached_property
    def is_virtual(self) -> bool:
        """True inside a virtual machine, as the CPU's `hypervisor` flag or the firmware's vendor says."""
        cpu = self.optional("/proc/cpuinfo")
        vendor = self.optional("/sys/class/dmi/id/sys_vendor") or ""
        product = self.optional("/sys/class/dmi/id/product_name") or ""
        if re.search(r"QEMU|KVM|VMware|Xen|innotek|Virtual|Google Compute|HVM domU|Amazon EC2", f"{vendor} {product}"):
            return ".metal" not in product
        if cpu is None:
            raise NotReadError("`/proc/cpuinfo` was not read, so it is not known whether this is a virtual machine")
        flags = re.search(r"^flags\s*:(.*)$", cpu, re.MULTILINE)
        if flags is None:
            raise NotReadError("`/proc/cpuinfo` has no flags, so it is not known whether this is a virtual machine")
        return "hypervisor" in flags[1].split()

    @cached_property
    def is_container(self) -> bool:
        if any(path in self.snapshot.files for path in ("/.dockerenv", "/run/.containerenv")):
            return True
        groups = self.file("/proc/self/cgroup")
        return bool(re.search(r"docker|kubepods|containerd|libpod|lxc", groups)) or (
            self.snapshot.environment is not None and ("KUBERNETES_SERVICE_HOST" in self.snapshot.environment)
        )

    def is_loaded(self, gpu: SmiGpu) -> bool:
        """True where the GPU was at work when it was read; only then do its clocks and PCIe speed say anything."""
        busy = gpu.number("Utilization/GPU", "Utilization/Gpu")
        if busy is None:
            raise NotReadError(f"`{SMI_QUERY}` does not say how busy {gpu.address} is")
        return busy >= _LOADED_PERCENT

    @cached_property
    def rdma_devices(self) -> list[str]:
        """Devices below /sys/class/infiniband. Raises NotHereError where the kernel has none."""
        found = self.names("/sys/class/infiniband")
        if found:
            return found
        if self.snapshot.problems.get("/sys/class/infiniband") in {NO_FILE, "empty"}:
            raise NotHereError("there is no RDMA device (InfiniBand, RoCE or EFA) on this machine")
        why = self.snapshot.problems.get("/sys/class/infiniband")
        raise NotReadError(f"`/sys/class/infiniband` was not read{f': {why}' if why else ''}")

    @cached_property
    def bus_is_known(self) -> bool:
        """True where the PCI bus was read with the class of every device, or is known to be empty."""
        if not self.pci_addresses:
            return self.snapshot.problems.get("/sys/bus/pci/devices") in {NO_FILE, "empty"}
        return all(self.pci_class(address) for address in self.pci_addresses)

    @cached_property
    def num_gpus(self) -> int:
        """NVIDIA's on the bus, else of the driver; 0 only where the bus was read."""
        on_bus = [
            address
            for address in self.pci_addresses
            if self.pci_class(address).startswith("0x03")
            and self.optional(f"/sys/bus/pci/devices/{address}/vendor") == "0x10de"
        ]
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
            raise NotReadError("`/proc/self/status` does not say which CPUs are allowed")
        return parse_cpu_list(match[1])

    @cached_property
    def cpu_quota(self) -> float | None:
        """Cores' worth of time that the control groups allow; None where they were read and set no limit."""
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
        """The least limit of the control groups; None where they were read and set none."""
        self.need_control_groups("memory.max", "memory.limit_in_bytes")
        files = self.matching("/sys/fs/cgroup*/memory.max") | self.matching("/sys/fs/cgroup*/memory.limit_in_bytes")
        limits = [int(text) for text in files.values() if text != "max"]
        return min((limit for limit in limits if limit < _UNLIMITED_BYTES), default=None)

    def need_control_groups(self, *names: str) -> None:
        """Raise NotReadError where a file of that name could not be read: a group without it sets no limit."""
        for path, why in self.snapshot.problems.items():
            if path.startswith("/sys/fs/cgroup/") and path.rpartition("/")[2] in names:
                raise NotReadError(f"`{path}` was not read: {why}")
        if not self.names("/sys/fs/cgroup") and self.snapshot.problems.get("/sys/fs/cgroup") != NO_FILE:
            raise NotReadError("no control group (`/sys/fs/cgroup`) was read")

    @cached_property
    def num_ranks_here(self) -> int:
        """Processes of a job that share this host: LOCAL_WORLD_SIZE, else one a GPU, at least one."""
        given = (self.snapshot.environment or {}).get("LOCAL_WORLD_SIZE", "")
        return int(given) if given.isdecimal() and int(given) else max(1, self.num_gpus)

    @cached_property
    def memory_bytes(self) -> dict[str, int]:
        """/proc/meminfo."""
        found = re.findall(r"^(\w+(?:\(\w+\))?):\s+(\d+) kB", self.file("/proc/meminfo"), re.MULTILINE)
        if not found:
            raise NotReadError("`/proc/meminfo` cannot be understood")
        return {name: int(number) << 10 for name, number in found}

    def limit(self, name: str) -> int | None:
        """The soft limit of /proc/self/limits; None is unlimited."""
        for line in self.file("/proc/self/limits").splitlines():
            if line.startswith(name):
                soft = line[len(name) :].split()[0]
                return None if soft == "unlimited" else int(soft)
        raise NotReadError(f"`/proc/self/limits` has no {name}")

    @cached_property
    def mounts(self) -> list[Mount]:
        found = [Mount(*line.split()[:4]) for line in self.file("/proc/mounts").splitlines() if len(line.split()) >= 4]
        if not found:
            raise NotReadError("`/proc/mounts` names no mount")
        return found

    def modules(self) -> set[str]:
        return {line.split()[0] for line in self.file("/proc/modules").splitlines() if line.strip()}

    @cached_property
    def packages(self) -> dict[str, str]:
        """Package -> version, and `cuda` of torch, as the Python that runs Flatout has them."""
        text = self.output("python packages")
        found = dict(re.findall(r"^([\w.-]+)==(\S+)$", text, re.MULTILINE))
        cuda = re.search(r"^cuda(?:: .*?)? = ['\"]([\d.]+)['\"]", text, re.MULTILINE)
        return found | ({"cuda": cuda[1]} if cuda else {})


class Mount(NamedTuple):
    device: str
    path: str
    kind: str
    options: str


def natural(name: str) -> tuple[object, ...]:
    """`NIC2` before `NIC10`."""
    return tuple(int(part) if part.isdecimal() else part for part in re.split(r"(\d+)", name))


__all__ = ["Machine", "full_address"]
