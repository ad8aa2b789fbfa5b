"""Determine how a GPU reaches the other GPUs of its host, from the driver's list of peer-to-peer abilities.

In: the module `pynvml` and handles of all GPUs. Out: the slowest of its paths: NVLink, PCIe, or the host's memory where
the driver refuses peer-to-peer access. NCCL asks for the same abilities before it connects two GPUs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

PeerPath = Literal["nvlink", "pcie", "host"]
# nvmlGpuP2PCapsIndex: in some versions of pynvml, the one of reading is a tuple.
READ, WRITE, NVLINK = 0, 1, 2
_SLOWEST_FIRST: tuple[PeerPath, ...] = ("host", "pcie", "nvlink")


def slowest_peer_path(nvml: Any, handles: Sequence[Any], index: int) -> PeerPath | None:
    """Return the slowest path of a GPU to any other; None if it is alone. Raises NVMLError if the driver is silent."""
    others = [other for number, other in enumerate(handles) if number != index]
    paths = {_path(nvml, handles[index], other) for other in others}
    return next((path for path in _SLOWEST_FIRST if path in paths), None)


def _path(nvml: Any, one: Any, other: Any) -> PeerPath:
    if _is_possible(nvml, one, other, NVLINK):
        return "nvlink"
    reads = _is_possible(nvml, one, other, READ)
    writes = _is_possible(nvml, one, other, WRITE)
    return "pcie" if reads and writes else "host"


def _is_possible(nvml: Any, one: Any, other: Any, ability: int) -> bool:
    return bool(nvml.nvmlDeviceGetP2PStatus(one, other, ability) == nvml.NVML_P2P_STATUS_OK)
