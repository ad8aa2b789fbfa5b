"""Bind each rank to separate cores: an equal share of the allowed cores, or the cores of its GPU's NUMA node.

The binding is set for all existing threads; later threads and loader workers inherit it. A rank that was not started by
a launcher knows its rank only once its process group exists.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import re
from collections.abc import Mapping
from contextlib import suppress
from functools import wraps
from pathlib import Path
from typing import Any

import torch

from flatout.inside.patches.report import Report

_SYS = Path("/sys")
_LOCAL = (
    ("LOCAL_RANK", "LOCAL_WORLD_SIZE"),
    ("SLURM_LOCALID", "SLURM_NTASKS_PER_NODE"),
    ("OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"),
    ("MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
)


def bind_cores(report: Report, *, by: str = "exclusive") -> None:
    rank_and_size = local_rank_and_size(os.environ)
    if rank_and_size is not None:
        _bind(report, by, *rank_and_size)
        return
    report.waits("the local rank and the number of ranks on this host are unknown")
    if not torch.distributed.is_available():
        return
    original = torch.distributed.init_process_group

    @wraps(original)
    def init_process_group(*args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        if not report.is_applied:
            report.guarded(bind_spawned)()
        return result

    def bind_spawned() -> None:
        numbers = multiprocessing.current_process()._identity
        size = torch.distributed.get_world_size()
        if (
            len(numbers) == 1
            and numbers[0] - 1 == torch.distributed.get_rank()
            and os.environ.get("MASTER_ADDR", "localhost") in ("localhost", "127.0.0.1")
        ):
            _bind(report, by, torch.distributed.get_rank(), size)

    torch.distributed.init_process_group = init_process_group
    torch.distributed.distributed_c10d.init_process_group = init_process_group


def local_rank_and_size(environment: Mapping[str, str]) -> tuple[int, int] | None:
    """Return this process's local rank and the number of ranks on its host, from a launcher's variables."""
    for rank_name, size_name in _LOCAL:
        rank_text = environment.get(rank_name, "")
        size_text = re.match(r"\d+", environment.get(size_name, ""))
        if not rank_text.isdecimal() or size_text is None:
            continue
        rank, size = int(rank_text), int(size_text[0])
        if rank < size:
            return rank, size
    return None


def cores_to_bind(by: str, rank: int, size: int) -> set[int] | str:
    """Return the cores for a rank, or why there are none for it."""
    allowed = os.sched_getaffinity(0)
    nodes = nodes_of(allowed)
    if by == "exclusive":
        cores = share_of(allowed, nodes, rank, size)
    elif len(nodes) < 2:
        return "there is one NUMA node"
    else:
        node = _node_of_gpu(rank)
        cores = nodes.get(node if node is not None else list(nodes)[rank * len(nodes) // size], set())
    if not cores or len(allowed) < size:
        return "there are not enough cores for the ranks"
    return cores


def _bind(report: Report, by: str, rank: int, size: int) -> None:
    cores = cores_to_bind(by, rank, size)
    if isinstance(cores, str):
        report.note(cores)
        return
    for thread in os.listdir("/proc/self/task"):
        with suppress(OSError):  # the thread has ended
            os.sched_setaffinity(int(thread), cores)
    report.details["cores"] = ",".join(map(str, sorted(cores)))
    report.did("processes", is_process_wide=True)


def nodes_of(allowed: set[int], sys: Path = _SYS) -> dict[int, set[int]]:
    """Return the allowed cores by NUMA node, without nodes that have no allowed core."""
    nodes = {}
    for folder in sorted((sys / "devices/system/node").glob("node[0-9]*"), key=lambda path: int(path.name[4:])):
        cores = _listed(folder / "cpulist") & allowed
        if cores:
            nodes[int(folder.name[4:])] = cores
    return nodes or {0: set(allowed)}


def share_of(allowed: set[int], nodes: dict[int, set[int]], rank: int, size: int, sys: Path = _SYS) -> set[int]:
    """Return an equal share of the cores, within one node if possible; the two threads of a core stay together."""

    def siblings(core: int) -> int:
        return min(_listed(sys / f"devices/system/cpu/cpu{core}/topology/thread_siblings_list") or {core})

    node_of = {core: node for node, cores in nodes.items() for core in cores}
    ordered = sorted(allowed, key=lambda core: (node_of.get(core, 0), siblings(core), core))
    return set(ordered[rank * len(ordered) // size : (rank + 1) * len(ordered) // size])


def _listed(path: Path) -> set[int]:
    """Read a list of numbers in the kernel's format, e.g. `0-3,8`."""
    try:
        text = path.read_text().strip()
    except OSError:
        return set()
    numbers: set[int] = set()
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        numbers.update(range(int(first), int(last or first) + 1))
    return numbers


def _node_of_gpu(rank: int) -> int | None:
    """Return the NUMA node of a rank's GPU according to the driver, because CUDA must not be initialized here."""
    name = _gpu_name(rank, os.environ.get("CUDA_VISIBLE_DEVICES"))
    try:
        bus_id = _bus_id(name)
        if bus_id is None:
            return None
        domain, _, rest = bus_id.lower().partition(":")
        node = int((_SYS / f"bus/pci/devices/{domain[-4:]}:{rest}/numa_node").read_text())
    except (OSError, AttributeError, ValueError):
        return None
    return node if node >= 0 else None


def _gpu_name(rank: int, visible: str | None) -> str:
    """Return the index or UUID of a rank's GPU, from the value of CUDA_VISIBLE_DEVICES."""
    if visible is None:
        return str(rank)
    names = [name for name in visible.split(",") if name]
    if rank < len(names):
        return names[rank]
    return names[0] if len(names) == 1 else ""


def _bus_id(name: str) -> str | None:
    nvml = ctypes.CDLL("libnvidia-ml.so.1")
    if nvml.nvmlInit_v2() != 0:
        return None
    device, info = ctypes.c_void_p(), _PciInfo()
    if name.isdecimal():
        code = nvml.nvmlDeviceGetHandleByIndex_v2(int(name), ctypes.byref(device))
    else:
        code = nvml.nvmlDeviceGetHandleByUUID(name.encode(), ctypes.byref(device))
    if code != 0 or nvml.nvmlDeviceGetPciInfo_v3(device, ctypes.byref(info)) != 0:
        return None
    return bytes(info.bus_id).decode()


class _PciInfo(ctypes.Structure):
    _fields_ = (
        ("bus_id_legacy", ctypes.c_char * 16),
        ("domain", ctypes.c_uint),
        ("bus", ctypes.c_uint),
        ("device", ctypes.c_uint),
        ("pci_device_id", ctypes.c_uint),
        ("pci_subsystem_id", ctypes.c_uint),
        ("bus_id", ctypes.c_char * 32),
    )
