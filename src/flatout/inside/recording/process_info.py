"""What a rank says of itself in its step file, and how it ended. Asks nothing that would wake a sleeping GPU."""

from __future__ import annotations

import os
import sys
import time
from typing import Any

import torch

from flatout.inside.identity import Identity
from flatout.inside.protocol import EXIT
from flatout.inside.recording.attempt import script_name

_PATIENCE_S = 5.0


def about_process(identity: Identity, base_unix_ns: int, source: str) -> dict[str, Any]:
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
    facts = torch.cuda.get_device_properties(index)
    return {
        "index": index,
        "name": facts.name,
        "memory_bytes": facts.total_memory,
        "uuid": str(facts.uuid) if hasattr(facts, "uuid") else None,
    }


def ended_by() -> str:
    """`exit`, or the name of the exception that ended the process."""
    error = getattr(sys, "last_type", None)
    return error.__name__ if error is not None else EXIT


def is_gpu_done() -> bool:
    """Whether the GPU finishes its work within a few seconds: a rank whose peers died may wait in it for ever."""
    if not torch.cuda.is_initialized():
        return True
    event = torch.cuda.Event()
    event.record()
    deadline = time.monotonic() + _PATIENCE_S
    while not event.query():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True
