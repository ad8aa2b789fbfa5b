"""Time collectives on gloo. Usage: collectives.py NAME:BYTES:CALLS ..

Each rank prints the median seconds of a call as {NAME:BYTES: seconds}.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable

import torch
import torch.distributed as dist

from flatout.inside.gradient_hooks.gradient_hook import all_gather


def call_of(name: str, num_bytes: int) -> Callable[[], object]:
    size = dist.get_world_size()
    if name == "all_reduce":
        data = torch.ones(num_bytes // 4)
        return lambda: dist.all_reduce(data)
    whole, part = torch.ones(num_bytes // size * size), torch.ones(num_bytes // size, dtype=torch.uint8)
    whole = whole.to(torch.uint8)
    if name == "all_gather":
        return lambda: all_gather(whole, part, group=None)
    assert name == "all_to_all", name
    other = torch.empty_like(whole)
    return lambda: dist.all_to_all_single(other, whole)


def main() -> None:
    dist.init_process_group("gloo")
    found = {}
    for word in sys.argv[1:]:
        name, num_bytes, calls = word.split(":")
        call = call_of(name, int(num_bytes))
        call()
        times = []
        for _ in range(int(calls)):
            dist.barrier()
            began = time.perf_counter()
            call()
            times.append(time.perf_counter() - began)
        found[f"{name}:{num_bytes}"] = statistics.median(times)
    dist.barrier()
    dist.destroy_process_group()
    print(json.dumps(found))


if __name__ == "__main__":
    main()
