"""Time the exchange of gradients by each hook. Usage: hooks.py MIB CALLS HOOK ..

A hook is `plain`, `int8-all-gather`, or a compression. The gradients are those of square matrices of 1 MiB each.
Each rank prints {HOOK: {"s": median seconds, "bytes": sent by this node}}.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from flatout.inside.gradient_hooks import GradientHook, make_hook
from flatout.inside.gradient_hooks.codec_time import PARAMETERS
from flatout.inside.gradient_hooks.gradient_hook import Gradient, all_gather, gradients_of
from flatout.inside.gradient_hooks.int8 import pack, unpack

MIB = 1 << 20


class Plain(GradientHook):
    def reduce(self, buffer: torch.Tensor, gradients: list[Gradient]) -> None:
        del gradients
        self.reduce_plainly(buffer)


class Int8AllGather(GradientHook):
    """8-bit integers as torch's quantization hook sends them: every rank's whole gradient to every other."""

    def reduce(self, buffer: torch.Tensor, gradients: list[Gradient]) -> None:
        del gradients
        packed = pack(buffer.view(1, -1, 256))
        gathered = torch.empty(self.world_size, packed.shape[1], dtype=torch.uint8)
        all_gather(gathered, packed, group=self.group)
        buffer.zero_()
        for part in gathered:
            buffer += unpack(part).view(-1)
        buffer.div_(self.world_size)


def hook_of(name: str, ddp: Any) -> GradientHook:
    if name == "plain":
        return Plain(ddp)
    return Int8AllGather(ddp) if name == "int8-all-gather" else make_hook(ddp, **PARAMETERS[name])[0]


def bytes_sent() -> int:
    rows = Path("/proc/net/dev").read_text().splitlines()
    return sum(int(row.partition(":")[2].split()[8]) for row in rows if row.strip().startswith("eth0:"))


def main() -> None:
    num_mib, calls = int(sys.argv[1]), int(sys.argv[2])
    dist.init_process_group("gloo")
    torch.manual_seed(dist.get_rank())
    model = nn.Sequential(*[nn.Linear(512, 512, bias=False) for _ in range(num_mib)])
    ddp = nn.parallel.DistributedDataParallel(model)
    found = {}
    for name in sys.argv[3:]:
        hook = hook_of(name, ddp)
        exchange(hook, ddp)  # the first call of a group also connects
        times, sent = [], []
        for _ in range(calls):
            dist.barrier()
            before = bytes_sent()
            times.append(exchange(hook, ddp))
            sent.append(bytes_sent() - before)
        found[name] = {"s": statistics.median(times), "bytes": statistics.median(sent)}
        dist.barrier()
    dist.destroy_process_group()
    print(json.dumps(found))


def exchange(hook: GradientHook, ddp: Any) -> float:
    """Return the seconds in which a hook reduces one bucket with all gradients."""
    parameters = list(ddp.module.named_parameters())
    buffer = torch.randn(sum(parameter.numel() for _, parameter in parameters))
    parts = buffer.split([parameter.numel() for _, parameter in parameters])
    views = [(*each, part.view_as(each[1])) for each, part in zip(parameters, parts, strict=True)]
    gradients = gradients_of(buffer, views)
    began = time.perf_counter()
    hook.reduce(buffer, gradients)
    return time.perf_counter() - began


if __name__ == "__main__":
    main()
