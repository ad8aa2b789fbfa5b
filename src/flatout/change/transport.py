"""Over what the ranks' collectives go, at the slowest place: from NCCL's variables and what the hosts have."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from flatout.records.change import JobFacts
from flatout.records.recording import HostUse

_INFINIBAND = Path("/sys/class/infiniband")


def with_transport(facts: JobFacts, hosts: Sequence[HostUse], *, infiniband: Path = _INFINIBAND) -> JobFacts:
    """The facts with the transport: socket, infiniband, shared_memory or nvlink; None where it cannot be told.

    A setting for one transport is useless on another, so what is not sure stays unknown.
    """
    return msgspec.structs.replace(facts, transport=_transport(facts, hosts, infiniband))


def _transport(facts: JobFacts, hosts: Sequence[HostUse], infiniband: Path) -> str | None:
    if facts.backend != "nccl" or facts.num_hosts is None:
        return None
    is_off = {name for name, value in facts.environment.items() if name.endswith("_DISABLE") and value == "1"}
    if facts.num_hosts == 1 and "NCCL_P2P_DISABLE" not in is_off:
        has_nvlink = any(gpu.nvlink_sent_bytes_per_s is not None for host in hosts for gpu in host.gpus)
        return "nvlink" if has_nvlink else None
    if facts.num_hosts == 1 and "NCCL_SHM_DISABLE" not in is_off:
        return "shared_memory"
    if "NCCL_IB_DISABLE" in is_off or facts.environment.get("NCCL_NET") == "Socket":
        return "socket"
    return "infiniband" if infiniband.is_dir() and any(infiniband.iterdir()) else "socket"
