"""The names of all measurements, as `--only` takes them."""

from __future__ import annotations

from collections.abc import Collection

from flatout.probe.ceilings.bus import COLLECTIVES
from flatout.probe.ceilings.pairs import NAMES as PAIRS
from flatout.probe.ceilings.storage import NAMES as STORAGE

NAMES = (
    *("matmul", "memory_copy", "memory_triad", "host_memory_copy", "kernel_launch", "operator_dispatch"),
    *("host_to_device_pinned", "host_to_device_pageable", "device_to_host_pinned", "device_to_host_pageable"),
    *COLLECTIVES,
    *PAIRS,
    *("decode_jpeg", "decode_zlib"),
    *STORAGE,
)


def concerns(what: str, only: Collection[str]) -> bool:
    """Whether `what`, a key of `not_measured`, concerns one of the names in `only` (empty: all names).

    `what` is a name with details (`matmul fp8`, `all_reduce all, the sizes above`), the beginning of several names
    (`storage`, `host_to_device, device_to_host`), or `collectives`.
    """
    if not only:
        return True
    words = [part.split()[0] for part in what.split(", ") if part]
    if words[:1] == ["collectives"]:
        return any(name in COLLECTIVES or name in PAIRS for name in only)
    return any(name == word or name.startswith(f"{word}_") for name in only for word in words)
