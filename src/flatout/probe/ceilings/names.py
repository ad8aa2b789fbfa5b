"""The names of all that is measured, as `--only` takes them."""

from flatout.probe.ceilings.bus import COLLECTIVES
from flatout.probe.ceilings.storage import NAMES as STORAGE

NAMES = (
    *("matmul", "memory_copy", "memory_triad", "host_memory_copy", "kernel_launch", "operator_dispatch"),
    *("host_to_device_pinned", "host_to_device_pageable", "device_to_host_pinned", "device_to_host_pageable"),
    *COLLECTIVES,
    *("decode_jpeg", "decode_zlib"),
    *STORAGE,
)
