"""The checks, in the order of the report. Each module has the checks of one kind, marked with `@check`."""

from __future__ import annotations

from types import ModuleType

from flatout.doctor.check import Check
from flatout.doctor.checks import (
    gpu_clocks,
    gpu_links,
    gpu_memory,
    gpu_modes,
    host_bmc,
    host_cpu,
    host_kernel,
    host_limits,
    host_memory,
    host_pci,
    nccl_log,
    nccl_log_errors,
    network_ib,
    network_interfaces,
    network_pci,
    software_nccl,
    software_torch,
    storage,
    topology,
    topology_nccl,
    topology_numa,
)

_MODULES: tuple[ModuleType, ...] = (
    gpu_memory,
    gpu_clocks,
    gpu_modes,
    gpu_links,
    topology,
    topology_numa,
    topology_nccl,
    software_nccl,
    software_torch,
    host_cpu,
    host_limits,
    host_memory,
    host_kernel,
    host_pci,
    host_bmc,
    network_ib,
    network_pci,
    network_interfaces,
    nccl_log,
    nccl_log_errors,
    storage,
)
CHECKS: tuple[Check, ...] = tuple(
    value for module in _MODULES for value in vars(module).values() if isinstance(value, Check)
)
