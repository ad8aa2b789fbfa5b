"""Describe the process of a rank for the step file, and how the process ended.

Nothing here wakes a sleeping GPU: torch.cuda is queried only if the script has initialized it.
"""

from __future__ import annotations

import os
import sys
import time
from typing import Any

import torch

from flatout.inside.identity import Identity
from flatout.inside.protocol import EXIT
from flatout.inside.recording.attempt import script_name

_GPU_TIMEOUT_S = 5.0


def process_info(identity: Identity, base_unix_ns: int, source: str) -> dict[str, Any]:
    """Return the header of the step file; `source` is the kind of event that steps are counted by."""
    return {
        "rank": identity.rank,
        "world_size": identity.world_size,
        "local_rank": identity.local_rank,
        "num_nodes": identity.num_nodes,
        "backend": identity.backend,
        "hostname": os.uname().nodename,
        "pid": os.getpid(),
        "script": script_name(),
        "base_unix_ns": base_unix_ns,
        "recorded_since_unix_ns": time.time_ns(),
        "steps_from": source,
        "python": sys.version.split()[0],
        "torch": str(torch.__version__),
        "cuda": torch.version.cuda or torch.version.hip,
        "num_threads": torch.get_num_threads(),
        "device": _device(),
    }


def _device() -> dict[str, Any] | None:
    if not torch.cuda.is_initialized():
        return None
    index = torch.cuda.current_device()
    properties = torch.cuda.get_device_properties(index)
    return {
        "index": index,
        "name": properties.name,
        "memory_bytes": properties.total_memory,
        "uuid": str(properties.uuid) if hasattr(properties, "uuid") else None,
    }


def ended_by() -> str:
    """Return EXIT, or the name of the exception that ended the process."""
    error = getattr(sys, "last_type", None)
    return error.__name__ if error is not None else EXIT


def is_gpu_done() -> bool:
    """Whether the GPU finishes its work within a few seconds; a collective can hang forever if a peer has died."""
    if not torch.cuda.is_initialized():
        return True
    event = torch.cuda.Event()
    event.record()
    deadline = time.monotonic() + _GPU_TIMEOUT_S
    while not event.query():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True
