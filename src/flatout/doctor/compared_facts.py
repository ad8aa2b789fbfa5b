"""The facts in which hosts are compared: versions, and every setting that a capture holds.

A text fact is the same on all hosts, or differs on some. Where a host names its devices in its own way, the names are
shown and only the values are compared. A numeric fact is a range, in which only outliers are reported.
"""

from __future__ import annotations

import re
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from flatout.doctor.checks.network_interfaces import physical_interfaces
from flatout.doctor.checks.software_nccl import settings
from flatout.doctor.machine import Machine
from flatout.doctor.parse.nvidia_smi import SmiGpu
from flatout.doctor.unknown import NotReadError
from flatout.records.doctor import Status
from flatout.units import num_bytes

_NET, _RDMA = "/sys/class/net", "/sys/class/infiniband"
_CPU = "/sys/devices/system/cpu"
_NAMES_IN_BRACKETS = re.compile(r" \([^()]*\)")
_UUID = re.compile(r"(?:GPU-|MIG-)?[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-")
# Parameters of the kernel that name this host's own disks and consoles.
_OWN_PARAMETERS = re.compile(
    r"(?:BOOT_IMAGE|root|rootflags|initrd|resume|rd\.\S+|ip|BOOTIF|console|ks|inst\.\S+|hostname|systemd\.machine_id|"
    r"crashkernel|UUID)=|(?:ro|rw|quiet|splash|rhgb)$|\S*[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-"
)
# Variables that differ between hosts or ranks by their nature, or that have a separate fact.
_OWN_VARIABLES = re.compile(
    r"NCCL_.*|(?:LOCAL_)?RANK|SLURM_.*|KUBERNETES_SERVICE_HOST|TMPDIR|NVIDIA_VISIBLE_DEVICES|.*_(?:HOST|ADDR|ADDRESS|"
    r"NODE_?ID|PID|UUID)"
)
_SMALL_LOAD = 0.25  # per CPU


class TextFact(NamedTuple):
    read: Callable[[Machine], str]
    status: Status  # status of a difference
    has_names: bool = False  # names of devices in brackets, which are not compared

    def key(self, text: str) -> str:
        """Return the part of the text that is compared."""
        return _NAMES_IN_BRACKETS.sub("", text) if self.has_names else text


class NumberFact(NamedTuple):
    read: Callable[[Machine], float]
    share: float  # share of the median; a smaller deviation does not matter
    write: Callable[[float], str]
    floor: float = 0.0  # added to every value, so that small differences between small values do not matter
    is_range: bool = False  # the range is shown for two hosts, too


def _gpu_text(*paths: str) -> Callable[[Machine], str]:
    def read(machine: Machine) -> str:
        texts = {text for gpu in machine.gpus if (text := gpu.text(*paths))}
        if not texts:
            raise NotReadError(f"`nvidia-smi -q` reports no {paths[0]}")
        return ", ".join(sorted(texts))

    return read


def _busy_gpu_median(*paths: str) -> Callable[[Machine], float]:
    def read(machine: Machine) -> float:
        with_value = [gpu for gpu in machine.gpus if gpu.number(*paths) is not None]
        return _median(filter(machine.is_loaded, with_value), paths, "no GPU was busy")

    return read


def _median(gpus: Iterable[SmiGpu], paths: Sequence[str], problem: str) -> float:
    numbers = [number for gpu in gpus if (number := gpu.number(*paths)) is not None]
    if not numbers:
        raise NotReadError(problem)
    return statistics.median(numbers)


def _power_limit(machine: Machine) -> str:
    limits = {gpu.number("Enforced Power Limit", "Current Power Limit") for gpu in machine.gpus}
    watts = sorted(limit for limit in limits if limit is not None)
    if not watts:
        raise NotReadError("`nvidia-smi -q` reports no Enforced Power Limit")
    return ", ".join(dict.fromkeys(f"{limit:.0f} W" for limit in watts))


def _driver(machine: Machine) -> str:
    if not machine.smi.driver:
        raise NotReadError("`nvidia-smi -q` reports no driver version")
    return machine.smi.driver


def _driver_module(machine: Machine) -> str:
    text = machine.file("/proc/driver/nvidia/version")
    return "open" if "Open Kernel Module" in text else "proprietary"


def _nccl_packages(machine: Machine) -> str:
    """Return NCCL's packages, of any CUDA."""
    packages = machine.packages
    versions = [f"{name} {packages[name]}" for name in sorted(packages) if re.match(r"nvidia-nccl|rccl", name)]
    return ", ".join(versions) or "not installed"


def _nccl_settings(machine: Machine) -> str:
    values = [f"{name}={setting.value}" for name, setting in sorted(settings(machine).items())]
    return ", ".join(values) or "none"


def _by_value(values: Mapping[str, str]) -> str:
    """Return `9000 x 2 (eth0, eth1), 1500 x 1 (eth2)`: each value, how often it occurs, and the devices with it."""
    names: defaultdict[str, list[str]] = defaultdict(list)
    for name, value in values.items():
        names[value].append(name)
    return ", ".join(f"{value} x {len(names[value])} ({', '.join(names[value])})" for value in sorted(names))


def _of_interfaces(name: str) -> Callable[[Machine], str]:
    def read(machine: Machine) -> str:
        values = {
            interface: text
            for interface in physical_interfaces(machine)
            if (text := machine.optional(f"{_NET}/{interface}/{name}")) and not text.startswith("-")
        }
        if not values:
            raise NotReadError(f"no `{_NET}/*/{name}` was read")
        return _by_value(values)

    return read


def _of_rdma_ports(name: str) -> Callable[[Machine], str]:
    def read(machine: Machine) -> str:
        values = {}
        for device in machine.rdma_devices:
            for port in machine.names(f"{_RDMA}/{device}/ports"):
                text = machine.optional(f"{_RDMA}/{device}/ports/{port}/{name}")
                if text:
                    values[f"{device}/{port}"] = text.split(" (")[0]
        if not values:
            raise NotReadError(f"no `{_RDMA}/*/ports/*/{name}` was read")
        return _by_value(values)

    return read


def _rdma_firmware(machine: Machine) -> str:
    versions = {
        device: text for device in machine.rdma_devices if (text := machine.optional(f"{_RDMA}/{device}/fw_ver"))
    }
    if not versions:
        raise NotReadError(f"no `{_RDMA}/*/fw_ver` was read")
    return _by_value(versions)


def _of_cpus(name: str) -> Callable[[Machine], str]:
    def read(machine: Machine) -> str:
        cpus = [cpu for cpu in machine.names(_CPU) if re.fullmatch(r"cpu\d+", cpu)]
        texts = {machine.optional(f"{_CPU}/{cpu}/cpufreq/{name}") for cpu in cpus}
        known = sorted(text for text in texts if text)
        if not known:
            raise NotReadError(f"no `{_CPU}/*/cpufreq/{name}` was read")
        return ", ".join(known)

    return read


def _of_disks(name: str) -> Callable[[Machine], str]:
    def read(machine: Machine) -> str:
        disks = [disk for disk in machine.names("/sys/block") if not re.match(r"loop|ram|zram|dm-|md|sr", disk)]
        values = {disk: text for disk in disks if (text := machine.optional(f"/sys/block/{disk}/queue/{name}"))}
        if not values:
            raise NotReadError(f"no `/sys/block/*/queue/{name}` was read")
        return _by_value(values)

    return read


def _peermem(machine: Machine) -> str:
    return "loaded" if "nvidia_peermem" in machine.modules() else "not loaded"


def _cpu_model(machine: Machine) -> str:
    match = re.search(r"^model name\s*:\s*(.*)$", machine.file("/proc/cpuinfo"), re.MULTILINE)
    if match is None:
        raise NotReadError("`/proc/cpuinfo` names no model")
    return match[1].strip()


def _numa_nodes(machine: Machine) -> str:
    nodes = [node for node in machine.names("/sys/devices/system/node") if re.fullmatch(r"node\d+", node)]
    if not nodes:
        raise NotReadError("no NUMA node (`/sys/devices/system/node`) was read")
    lists = [machine.optional(f"/sys/devices/system/node/{node}/cpulist") or "?" for node in nodes]
    return f"{len(nodes)}: {'; '.join(lists)}"


def _huge_pages(machine: Machine) -> str:
    text = machine.file("/proc/meminfo")
    number = re.search(r"^HugePages_Total:\s*(\d+)", text, re.MULTILINE)
    size = re.search(r"^Hugepagesize:\s*(\d+ kB)", text, re.MULTILINE)
    if number is None or size is None:
        raise NotReadError("`/proc/meminfo` has no huge pages")
    return f"{number[1]} of {size[1]}"


def _chosen(path: str) -> Callable[[Machine], str]:
    """Return a function that reads the word in brackets: `always [madvise] never`."""

    def read(machine: Machine) -> str:
        text = machine.file(path)
        match = re.search(r"\[(\w+)\]", text)
        return match[1] if match else text

    return read


def _kernel_parameters(machine: Machine) -> str:
    words = [word for word in machine.file("/proc/cmdline").split() if not _OWN_PARAMETERS.match(word)]
    return " ".join(sorted(words)) or "none"


def _iommu(machine: Machine) -> str:
    base = "/sys/kernel/iommu_groups"
    kinds = {machine.optional(f"{base}/{group}/type") for group in machine.names(base)}
    known = sorted(kind for kind in kinds if kind)
    if known:
        return ", ".join(known)
    if machine.snapshot.problems.get(base) in ("empty", "no such file or directory"):
        return "off"
    raise NotReadError(f"no `{base}/*/type` was read")


def _limit(name: str) -> Callable[[Machine], str]:
    def read(machine: Machine) -> str:
        limit = machine.limit(name)
        return "unlimited" if limit is None else f"{limit:,}"

    return read


def _cpu_quota(machine: Machine) -> str:
    return "none" if machine.cpu_quota is None else f"{machine.cpu_quota:g} cores"


def _memory_limit(machine: Machine) -> str:
    return "none" if machine.memory_limit_bytes is None else num_bytes(machine.memory_limit_bytes)


def _shared_memory_size(machine: Machine) -> str:
    for line in machine.output("df -P -k").splitlines():
        words = line.split()
        if len(words) >= 6 and words[5] == "/dev/shm" and words[1].isdecimal():
            return num_bytes(int(words[1]) << 10)
    raise NotReadError("`df -P -k` has no /dev/shm")


def _load(machine: Machine) -> float:
    return float(machine.file("/proc/loadavg").split()[0]) / _num_cpus(machine)


def _num_cpus(machine: Machine) -> int:
    return machine.file("/proc/cpuinfo").count("processor\t:") or len(machine.cpus_allowed)


def _service(name: str) -> Callable[[Machine], str]:
    return lambda machine: machine.output(name).strip() or "unknown to systemd"


TEXT_FACTS: Mapping[str, TextFact] = {
    "number of GPUs": TextFact(lambda machine: str(len(machine.gpus)), "fail"),
    "GPU model": TextFact(_gpu_text("Product Name"), "warn"),
    "GPU firmware (VBIOS)": TextFact(_gpu_text("VBIOS Version"), "info"),
    "power limit of the GPUs": TextFact(_power_limit, "warn"),
    "GPU persistence mode": TextFact(_gpu_text("Persistence Mode"), "warn"),
    "GPU compute mode": TextFact(_gpu_text("Compute Mode"), "warn"),
    "GPU MIG mode": TextFact(_gpu_text("MIG Mode/Current"), "warn"),
    "GPU ECC mode": TextFact(_gpu_text("ECC Mode/Current"), "warn"),
    "GPU application clocks": TextFact(_gpu_text("Applications Clocks/Graphics"), "warn"),
    "PCIe generation of the GPUs": TextFact(_gpu_text("PCIe Generation/Max"), "warn"),
    "PCIe width of the GPUs": TextFact(_gpu_text("Link Width/Max"), "warn"),
    "driver": TextFact(_driver, "warn"),
    "driver's kernel module": TextFact(_driver_module, "warn"),
    "fabric manager": TextFact(_service("systemctl is-active nvidia-fabricmanager"), "warn"),
    "kernel": TextFact(lambda machine: machine.file("/proc/sys/kernel/osrelease"), "info"),
    "kernel parameters": TextFact(_kernel_parameters, "warn"),
    "NCCL": TextFact(_nccl_packages, "warn"),
    "NCCL settings": TextFact(_nccl_settings, "warn"),
    "rates of RDMA ports": TextFact(_of_rdma_ports("rate"), "fail", has_names=True),
    "states of RDMA ports": TextFact(_of_rdma_ports("state"), "fail", has_names=True),
    "link layers of RDMA ports": TextFact(_of_rdma_ports("link_layer"), "warn", has_names=True),
    "active MTU of RDMA ports": TextFact(_of_rdma_ports("active_mtu"), "warn", has_names=True),
    "firmware of RDMA devices": TextFact(_rdma_firmware, "info", has_names=True),
    "nvidia_peermem": TextFact(_peermem, "warn"),
    "MTU": TextFact(_of_interfaces("mtu"), "warn", has_names=True),
    "speeds of network interfaces": TextFact(_of_interfaces("speed"), "warn", has_names=True),
    "CPU": TextFact(_cpu_model, "info"),
    "allowed CPUs": TextFact(lambda machine: str(len(machine.cpus_allowed)), "warn"),
    "NUMA nodes": TextFact(_numa_nodes, "warn"),
    "CPU frequency governor": TextFact(_of_cpus("scaling_governor"), "warn"),
    "CPU frequency limit": TextFact(_of_cpus("scaling_max_freq"), "warn"),
    "clock source": TextFact(
        lambda machine: machine.file("/sys/devices/system/clocksource/clocksource0/current_clocksource"), "warn"
    ),
    "huge pages": TextFact(_huge_pages, "warn"),
    "transparent huge pages": TextFact(_chosen("/sys/kernel/mm/transparent_hugepage/enabled"), "warn"),
    "IOMMU": TextFact(_iommu, "warn"),
    "CPU quota": TextFact(_cpu_quota, "warn"),
    "memory limit": TextFact(_memory_limit, "warn"),
    "memlock limit": TextFact(_limit("Max locked memory"), "warn"),
    "limit on open files": TextFact(_limit("Max open files"), "warn"),
    "limit on processes": TextFact(_limit("Max processes"), "info"),
    "stack size limit": TextFact(_limit("Max stack size"), "info"),
    "size of /dev/shm": TextFact(_shared_memory_size, "warn"),
    "read-ahead of the disks in KiB": TextFact(_of_disks("read_ahead_kb"), "info", has_names=True),
}
NUMBER_FACTS: Mapping[str, NumberFact] = {
    "memory of the host": NumberFact(lambda machine: float(machine.memory_bytes["MemTotal"]), 0.02, num_bytes),
    "available memory": NumberFact(
        lambda machine: float(machine.memory_bytes["MemAvailable"]), 0.5, num_bytes, is_range=True
    ),
    "load per CPU": NumberFact(_load, 1.0, lambda value: f"{value:.2f}", floor=_SMALL_LOAD, is_range=True),
    "clock of busy GPUs": NumberFact(_busy_gpu_median("Clocks/SM"), 0.05, lambda value: f"{value:g} MHz"),
    "temperature of busy GPUs": NumberFact(_busy_gpu_median("GPU Current Temp"), 0.25, lambda value: f"{value:g} C"),
}


def captured_settings(machines: Iterable[Machine]) -> dict[str, TextFact]:
    """Return a fact for each kernel setting, package and variable that any of the machines has."""
    facts: dict[str, TextFact] = {}
    for machine in machines:
        for name, fact in (*_kernel_settings(machine), *_packages(machine), *_variables(machine)):
            facts.setdefault(name, fact)
    return dict(sorted(facts.items()))


def _words_of(path: str) -> Callable[[Machine], str]:
    return lambda machine: " ".join(machine.file(path).split())


def _version_of(package: str) -> Callable[[Machine], str]:
    return lambda machine: machine.packages.get(package) or "not installed"


def _variable(name: str) -> Callable[[Machine], str]:
    return lambda machine: machine.environment.get(name, "not set")


def _kernel_settings(machine: Machine) -> Iterator[tuple[str, TextFact]]:
    for path in machine.snapshot.files:
        if path.startswith("/proc/sys/") and path != "/proc/sys/kernel/osrelease":
            name = path.removeprefix("/proc/sys/").replace("/", ".")
            yield name, TextFact(_words_of(path), "warn")


def _packages(machine: Machine) -> Iterator[tuple[str, TextFact]]:
    try:
        packages = machine.packages
    except NotReadError:
        return
    for name in packages:
        if not name.startswith("nvidia-nccl"):
            shown = "CUDA of torch" if name == "cuda" else name
            yield shown, TextFact(_version_of(name), "warn")


def _variables(machine: Machine) -> Iterator[tuple[str, TextFact]]:
    for name, value in (machine.snapshot.environment or {}).items():
        if not _OWN_VARIABLES.fullmatch(name) and not _UUID.match(value):
            yield name, TextFact(_variable(name), "warn")
