"""One process of `flatout bench --share`: `python -m flatout.probe.share_worker`, which works on demand.

In: lines of JSON on standard input, `{"work": "matmul", "start_unix_s": .., "seconds": ..}`. Out: a line of JSON each,
`{"rate": ..}`, and first one that says the device. Calls are queued without waiting for each, as in a job: a limit on
the compute units looks as if it did not hold if every call is waited for. Without torch, numpy works on one core.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

_SIZE = {"cuda": 4096, "cpu": 256}
_COPY_BYTES = {"cuda": 1 << 28, "cpu": 1 << 24}
_TOGETHER_S = 0.02  # calls are queued for about as long


def main() -> int:
    wants_numpy = "--numpy" in sys.argv or importlib.util.find_spec("torch") is None
    works, device, sync = _of_numpy() if wants_numpy else _of_torch()
    for call, _ in works.values():
        call()
    sync()
    print(json.dumps({"device": device}), flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        call, amount = works[asked["work"]]
        rate = _rate(call, amount, sync, asked["start_unix_s"], asked["seconds"])
        print(json.dumps({"rate": rate}), flush=True)
    return 0


def _rate(
    call: Callable[[], object], amount: float, sync: Callable[[], None], start_unix_s: float, seconds: float
) -> float:
    """Work from the given time on, and return the amount per second."""
    time.sleep(max(start_unix_s - time.time(), 0.0))
    began, num_calls, at_once = time.perf_counter(), 0, 1
    now = began
    while now - began < seconds:
        batch_began = now
        for _ in range(at_once):
            call()
        sync()
        num_calls += at_once
        now = time.perf_counter()
        if now - batch_began < _TOGETHER_S / 2:
            at_once *= 2
    return amount * num_calls / (now - began)


def _of_numpy() -> tuple[dict[str, tuple[Callable[[], Any], float]], str, Callable[[], None]]:
    import numpy as np

    size, count = _SIZE["cpu"], _COPY_BYTES["cpu"] // 4
    a, b, c = (np.ones((size, size), np.float32) for _ in range(3))
    source, target = np.ones(count, np.float32), np.empty(count, np.float32)
    works: dict[str, tuple[Callable[[], Any], float]] = {
        "matmul": (lambda: np.matmul(a, b, out=c), 2.0 * size**3),
        "memory_copy": (lambda: np.copyto(target, source), 2.0 * _COPY_BYTES["cpu"]),
    }
    return works, f"CPU of {os.uname().nodename}", lambda: None


def _of_torch() -> tuple[dict[str, tuple[Callable[[], Any], float]], str, Callable[[], None]]:
    import torch

    kind = "cuda" if torch.cuda.is_available() else "cpu"
    if kind == "cpu":
        torch.set_num_threads(1)
    size, count = _SIZE[kind], _COPY_BYTES[kind] // 4
    dtype = torch.bfloat16 if kind == "cuda" else torch.float32
    a, b, c = (torch.ones((size, size), dtype=dtype, device=kind) for _ in range(3))
    source, target = torch.ones(count, device=kind), torch.empty(count, device=kind)
    works: dict[str, tuple[Callable[[], Any], float]] = {
        "matmul": (lambda: torch.mm(a, b, out=c), 2.0 * size**3),
        "memory_copy": (lambda: target.copy_(source), 2.0 * _COPY_BYTES[kind]),
    }
    name = torch.cuda.get_device_name() if kind == "cuda" else f"CPU of {os.uname().nodename}"
    return works, name, torch.cuda.synchronize if kind == "cuda" else lambda: None


if __name__ == "__main__":
    raise SystemExit(main())
