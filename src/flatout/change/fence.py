"""Settings that are fast and wrong, that can hang a job, or that belong to the site: refused, each with its reason.

The catalogue holds none of them, and `combine` refuses them wherever they come from. `fenced` also reads the
environment that a job is started with, for those who want to be warned of what they have set already.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

MIB = 1 << 20
_LEFT_WITHOUT = "a function that none of the named ones suits then fails: exclude with ^ instead of naming"
_SITE = "belongs to the site and must match its fabric: ask, do not search"


def _always(reason: str) -> Callable[[str, Mapping[str, str]], str | None]:
    return lambda value, environment: reason


def _threads(value: str, _: Mapping[str, str]) -> str | None:
    number = _integer(value)
    if number is None or number < 64 or number > 1024 or number & (number - 1):
        return "must be a power of two: others give wrong data (NVIDIA/nccl#698)"
    return None


def _buffer(value: str, _: Mapping[str, str]) -> str | None:
    number = _integer(value)
    if number is None or not MIB <= number <= 16 * MIB or number & (number - 1):
        return "must be a power of two from 1 to 16 MiB"
    return None


def _net_chunk(value: str, environment: Mapping[str, str]) -> str | None:
    """512 KiB only with a buffer of 8 MiB; from 1 MiB on never."""
    number = _integer(value)
    buffer = _integer(environment.get("NCCL_BUFFSIZE", "")) or 4 * MIB
    most = MIB // 2 if buffer >= 8 * MIB else MIB // 4
    if number is None or number > most:
        return f"above {most} bytes with this NCCL_BUFFSIZE, send and receive give wrong data (NVIDIA/nccl#2408)"
    return None


def _protocol(value: str, _: Mapping[str, str]) -> str | None:
    if any("LL128" in chosen.upper() for chosen in _chosen(value)):
        return "LL128 where NCCL does not choose it itself corrupts data (NCCL documentation)"
    return _LEFT_WITHOUT if _chosen(value) else None


def _algorithm(value: str, _: Mapping[str, str]) -> str | None:
    return _LEFT_WITHOUT if _chosen(value) else None


def _sockets(value: str, environment: Mapping[str, str]) -> str | None:
    threads = _integer(environment.get("NCCL_SOCKET_NTHREADS", "1"))
    sockets = _integer(environment.get("NCCL_NSOCKS_PERTHREAD", "1"))
    if threads is None or sockets is None or not 1 <= threads <= 16 or not 1 <= threads * sockets <= 64:
        return "at most 16 threads, and threads times sockets at most 64 (NCCL documentation)"
    return None


FENCES: Mapping[str, Callable[[str, Mapping[str, str]], str | None]] = {
    "NCCL_CHUNK_SIZE": _always("about 7 times as fast and wrong: corrupt data and Xid 31 (NVIDIA/nccl#2408, #1496)"),
    "NCCL_P2P_NET_CHUNKSIZE": _net_chunk,
    "NCCL_LL128_BUFFSIZE": _always("hangs or corrupts data unless it is 120 * 2^k (NVIDIA/nccl#1739)"),
    "NCCL_NTHREADS": _threads,
    "NCCL_LL128_NTHREADS": _threads,
    "NCCL_BUFFSIZE": _buffer,
    "NCCL_PROTO": _protocol,
    "NCCL_ALGO": _algorithm,
    "NCCL_SOCKET_NTHREADS": _sockets,
    "NCCL_NSOCKS_PERTHREAD": _sockets,
    "NCCL_TUNER_PLUGIN": _always("a tuner plugin gets one channel for what it has no row for, and is slow there"),
    "NCCL_TUNER_CONFIG_FILE": _always("see NCCL_TUNER_PLUGIN"),
    "NCCL_P2P_LEVEL": _always("the topology decides; LOC switches direct links off"),
    "NCCL_NET_GDR_LEVEL": _always("the topology decides; forcing more may not help (NVIDIA/nccl#1151)"),
    "NCCL_IB_SL": _always(_SITE),
    "NCCL_IB_TC": _always(_SITE),
    "NCCL_IB_GID_INDEX": _always(_SITE),
    "NCCL_IB_PCI_RELAXED_ORDERING": _always(_SITE),
    "NCCL_IB_ADAPTIVE_ROUTING": _always(_SITE),
    "NCCL_IB_HCA": _always(_SITE),
    "NCCL_IB_TIMEOUT": _always("is for robustness, not speed"),
    "NCCL_IB_RETRY_CNT": _always("is for robustness, not speed"),
    "NCCL_SOCKET_IFNAME": _always(_SITE),
    "NCCL_CROSS_NIC": _always(_SITE),
    "NCCL_TOPO_FILE": _always(_SITE),
    "NCCL_NO_CACHE": _always("is undocumented and not to be relied on"),
}


def fenced(environment: Mapping[str, str]) -> tuple[str, ...]:
    """One line for each variable that is refused: `NAME=value: reason`."""
    found = []
    for name, value in sorted(environment.items()):
        rule = FENCES.get(name)
        reason = rule(value, environment) if rule is not None else None
        if reason is not None:
            found.append(f"{name}={value}: {reason}")
    return tuple(found)


def _integer(text: str) -> int | None:
    return int(text) if re.fullmatch(r"\d+", text) else None


def _chosen(value: str) -> list[str]:
    """The items of NCCL_ALGO or NCCL_PROTO (`[^]a,b;func:[^]c`) that name what to use, not what to leave out."""
    items = [item.rpartition(":")[2].strip() for item in value.split(";")]
    return [item for item in items if item and not item.startswith("^")]
