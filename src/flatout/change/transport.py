"""Determine the transport of the ranks' collectives at its slowest place, from NCCL's variables and the hosts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from flatout.records.change import JobFacts
from flatout.records.recording import HostUse

_INFINIBAND = Path("/sys/class/infiniband")


def with_transport(facts: JobFacts, hosts: Sequence[HostUse], *, infiniband: Path = _INFINIBAND) -> JobFacts:
    """Return the facts with the transport: socket, infiniband, shared_memory, pcie or nvlink; None if it is uncertain.

    A setting for one transport is useless for another, so an uncertain one stays unknown.
    """
    return msgspec.structs.replace(facts, transport=_transport(facts, hosts, infiniband))


def _transport(facts: JobFacts, hosts: Sequence[HostUse], infiniband: Path) -> str | None:
    if facts.backend != "nccl" or facts.num_hosts is None:
        return None
    disabled = {name for name, value in facts.environment.items() if name.endswith("_DISABLE") and value == "1"}
    if facts.num_hosts == 1 and "NCCL_P2P_DISABLE" not in disabled:
        path = _peer_path(facts, hosts)
        if path != "host":
            return path
    if facts.num_hosts == 1 and "NCCL_SHM_DISABLE" not in disabled:
        return "shared_memory"
    if "NCCL_IB_DISABLE" in disabled or facts.environment.get("NCCL_NET") == "Socket":
        return "socket"
    return "infiniband" if _has_devices(infiniband) else "socket"


def _peer_path(facts: JobFacts, hosts: Sequence[HostUse]) -> str | None:
    """Return the slowest path between two GPUs of the host: nvlink, pcie, or host where there is no direct one.

    Where NCCL_P2P_LEVEL is set, NCCL may pass by a path over PCIe, so that one is uncertain.
    """
    gpus = [gpu for host in hosts for gpu in host.gpus]
    if any(gpu.nvlink_sent_bytes_per_s is not None for gpu in gpus):
        return "nvlink"
    paths = {gpu.peer_path for gpu in gpus}
    if not paths or None in paths:
        return None
    if "host" in paths:
        return "host"
    is_forced = "NCCL_P2P_LEVEL" in facts.environment
    if "pcie" not in paths:
        return "nvlink"
    return None if is_forced else "pcie"


def _has_devices(folder: Path) -> bool:
    return folder.is_dir() and any(folder.iterdir())
