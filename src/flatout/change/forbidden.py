"""Forbidden settings: they are fast and wrong, may hang a job, or belong to the site. Each has its reason.

The catalogue does not contain them, and `combine` refuses them regardless of their source. `forbidden_settings` also
checks the environment that a job is started with, to warn of forbidden settings that are already set.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from flatout.change.tuner_plugin import is_own_plugin
from flatout.inside.protocol import PLUGIN_NAME, Variable

MIB = 1 << 20
_FUNCTIONS = {"broadcast", "reduce", "allgather", "reducescatter", "allreduce"}
_LEAVES_NONE = "a collective that none of those named supports then fails: exclude with ^ instead of naming"
_LEAVES_OTHERS_NONE = (
    "since NCCL 2.31, to set one collective leaves the others without any algorithm: exclude for all five (vllm#58179)"
)
_SITE = "belongs to the site and must match its fabric: ask the administrators, do not search"


Rule = Callable[[str, Mapping[str, str]], str | None]  # a variable's value, the environment -> why it is forbidden


def _always(reason: str) -> Rule:
    return lambda value, environment: reason


def _threads(value: str, _: Mapping[str, str]) -> str | None:
    if _is_power_of_two(value, 64, 1024):
        return None
    return "must be a power of two: others give wrong data (NVIDIA/nccl#698)"


def _buffer(value: str, _: Mapping[str, str]) -> str | None:
    if _is_power_of_two(value, MIB, 16 * MIB):
        return None
    return "must be a power of two from 1 to 16 MiB"


def _net_chunk(value: str, environment: Mapping[str, str]) -> str | None:
    """Allow 512 KiB only with a buffer of 8 MiB, and 1 MiB or more never."""
    num_bytes = _integer(value)
    buffer_bytes = _integer(environment.get("NCCL_BUFFSIZE", "")) or 4 * MIB
    max_bytes = MIB // 2 if buffer_bytes >= 8 * MIB else MIB // 4
    if num_bytes is not None and num_bytes <= max_bytes:
        return None
    return f"above {max_bytes} bytes with this NCCL_BUFFSIZE, send and receive give wrong data (NVIDIA/nccl#2408)"


def _protocol(value: str, _: Mapping[str, str]) -> str | None:
    named = _named(value)
    if any("LL128" in protocol.upper() for protocol in named):
        return "LL128 corrupts data if NCCL does not choose it itself (NCCL documentation)"
    if named:
        return _LEAVES_NONE
    return None if _covers_all(value) else _LEAVES_OTHERS_NONE


def _algorithm(value: str, _: Mapping[str, str]) -> str | None:
    if _named(value):
        return _LEAVES_NONE
    return None if _covers_all(value) else _LEAVES_OTHERS_NONE


def _tuner(value: str, environment: Mapping[str, str]) -> str | None:
    """Allow the plugin that Flatout has built for this user, with a table: it changes nothing for other sizes."""
    if is_own_plugin(value):
        has_table = bool(environment.get(Variable.NCCL_TABLE))
        return None if has_table else "Flatout's tuner plugin needs a table: flatout tune nccl"
    if PLUGIN_NAME.part(value.rpartition("/")[2]) is not None:
        return "Flatout has not built this plugin for this user, and a job would run its code"
    return "the usual tuner plugin uses one channel for sizes that its table lacks, and is slow there"


def _sockets(value: str, environment: Mapping[str, str]) -> str | None:
    threads = _integer(environment.get("NCCL_SOCKET_NTHREADS", "1"))
    sockets = _integer(environment.get("NCCL_NSOCKS_PERTHREAD", "1"))
    is_valid = threads is not None and sockets is not None and 1 <= threads <= 16 and 1 <= threads * sockets <= 64
    return None if is_valid else "at most 16 threads, and threads times sockets at most 64 (NCCL documentation)"


FORBIDDEN: Mapping[str, Rule] = {
    "NCCL_CHUNK_SIZE": _always("about 7 times as fast, but wrong: corrupt data and Xid 31 (NVIDIA/nccl#2408, #1496)"),
    "NCCL_P2P_NET_CHUNKSIZE": _net_chunk,
    "NCCL_LL128_BUFFSIZE": _always("hangs or corrupts data unless it is 120 * 2^k (NVIDIA/nccl#1739)"),
    "NCCL_NTHREADS": _threads,
    "NCCL_LL128_NTHREADS": _threads,
    "NCCL_BUFFSIZE": _buffer,
    "NCCL_PROTO": _protocol,
    "NCCL_ALGO": _algorithm,
    "NCCL_SOCKET_NTHREADS": _sockets,
    "NCCL_NSOCKS_PERTHREAD": _sockets,
    "NCCL_TUNER_PLUGIN": _tuner,
    "NCCL_TUNER_CONFIG_FILE": _always("see NCCL_TUNER_PLUGIN"),
    "NCCL_P2P_LEVEL": _always("the topology decides; LOC switches direct links off"),
    "NCCL_NET_GDR_LEVEL": _always("the topology decides; forcing more may not help (NVIDIA/nccl#1151)"),
    "NCCL_IB_SL": _always(_SITE),
    "NCCL_IB_TC": _always(_SITE),
    "NCCL_IB_GID_INDEX": _always(_SITE),
    "NCCL_IB_PCI_RELAXED_ORDERING": _always(_SITE),
    "NCCL_IB_ADAPTIVE_ROUTING": _always(_SITE),
    "NCCL_IB_HCA": _always(_SITE),
    "NCCL_IB_TIMEOUT": _always("affects robustness, not speed"),
    "NCCL_IB_RETRY_CNT": _always("affects robustness, not speed"),
    "NCCL_SOCKET_IFNAME": _always(_SITE),
    "NCCL_CROSS_NIC": _always(_SITE),
    "NCCL_TOPO_FILE": _always(_SITE),
    "NCCL_NO_CACHE": _always("is undocumented"),
}


def forbidden_settings(environment: Mapping[str, str]) -> tuple[str, ...]:
    """Return one line per variable that is forbidden: `NAME=value: reason`."""
    lines = []
    for name, value in sorted(environment.items()):
        rule = FORBIDDEN.get(name)
        reason = rule(value, environment) if rule is not None else None
        if reason is not None:
            lines.append(f"{name}={value}: {reason}")
    return tuple(lines)


def _integer(text: str) -> int | None:
    return int(text) if re.fullmatch(r"\d+", text) else None


def _is_power_of_two(text: str, least: int, most: int) -> bool:
    number = _integer(text)
    return number is not None and least <= number <= most and number & (number - 1) == 0


def _covers_all(value: str) -> bool:
    """Whether NCCL_ALGO or NCCL_PROTO sets all five collectives, by name or in a first item without one."""
    items = value.lower().split(";")
    if ":" not in items[0]:
        return True
    return {item.partition(":")[0].strip() for item in items} >= _FUNCTIONS


def _named(value: str) -> list[str]:
    """Return the items of NCCL_ALGO or NCCL_PROTO (`[^]a,b;func:[^]c`) that name what to use, not what to exclude."""
    items = [item.rpartition(":")[2].strip() for item in value.split(";")]
    return [item for item in items if item and not item.startswith("^")]
