"""Measure how long each hook computes for the gradients of a step on this machine, without a network.

    python -m flatout.inside.gradient_hooks.codec_time cpu NUM_RANKS THREADS

The collectives of this process are replaced by copies within the memory: a rank gets its own data, as if from all
others. It prints nanoseconds per byte of fp32 gradients, by the compression: the least of some calls. Ranks that
train at the same time compete for cores and memory, so that compressing takes longer there.
"""

from __future__ import annotations

import json
import sys
import time
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from flatout.inside.gradient_hooks import make_hook
from flatout.inside.gradient_hooks.gradient_hook import GradientHook, gradients_of
from flatout.inside.gradient_hooks.lane import use_lane

# What `make_hook` takes for each compression that can be asked for.
PARAMETERS: dict[str, dict[str, Any]] = {
    "bf16": {"hook": "bf16"},
    "fp16": {"hook": "fp16"},
    "int8": {"hook": "int8"},
    "topk-1%": {"hook": "topk", "percent": 1},
    "topk-10%": {"hook": "topk", "percent": 10},
    "powersgd-1": {"hook": "powersgd", "rank": 1, "start": 2},
    "powersgd-2": {"hook": "powersgd", "rank": 2, "start": 2},
}
NUM_CALLS = 5  # of which the shortest counts: other work on the machine only adds to it
NUM_MATRICES = 16
_SIDE = 512  # of each square matrix: 1 MiB


def measure(device: str, num_ranks: int) -> dict[str, float]:
    """Return nanoseconds per byte by compression, with the collectives of torch replaced for good in this process."""
    _replace_collectives(num_ranks)
    layers = [nn.Linear(_SIDE, _SIDE, bias=False, device=device) for _ in range(NUM_MATRICES)]
    model = nn.Sequential(*layers)
    ddp = SimpleNamespace(module=model, parameters=model.parameters, process_group=None)
    use_lane(None, SimpleNamespace(group=None))
    num_bytes = 4 * NUM_MATRICES * _SIDE * _SIDE
    found = {}
    with torch.no_grad():
        for name, parameters in PARAMETERS.items():
            hook, _ = make_hook(ddp, **parameters)
            _reduce_s(hook, model, device)  # the first call has no error of an earlier one to add
            shortest_s = min(_reduce_s(hook, model, device) for _ in range(NUM_CALLS))
            found[name] = shortest_s / num_bytes * 1e9
    return found


def _reduce_s(hook: GradientHook, model: nn.Module, device: str) -> float:
    buffer = torch.randn(NUM_MATRICES * _SIDE * _SIDE, device=device)
    parts = buffer.split(_SIDE * _SIDE)
    named = list(model.named_parameters())
    views = [(name, parameter, part.view_as(parameter)) for (name, parameter), part in zip(named, parts, strict=True)]
    gradients = gradients_of(buffer, views)
    _wait_for(device)
    began = time.perf_counter()
    hook.reduce(buffer, gradients)
    _wait_for(device)
    return time.perf_counter() - began


def _wait_for(device: str) -> None:
    if device != "cpu":
        torch.cuda.synchronize()


def _replace_collectives(num_ranks: int) -> None:
    replaced: Any = dist
    replaced.get_world_size = lambda *_, **__: num_ranks
    replaced.all_reduce = lambda tensor, **_: tensor
    replaced.all_to_all_single = lambda output, own, **_: output.copy_(own)
    for name in ("all_gather_into_tensor", "all_gather_single"):
        if hasattr(dist, name):
            setattr(replaced, name, _gather)


def _gather(output: torch.Tensor, own: torch.Tensor, **_: object) -> None:
    output.view(-1, own.numel())[:] = own.reshape(1, -1)


def main() -> None:
    device, num_ranks, threads = sys.argv[1:]
    torch.set_num_threads(int(threads))
    print(json.dumps(measure(device, int(num_ranks))))


if __name__ == "__main__":
    main()
