"""Learn a small function with each way to exchange gradients. Usage: learning.py STEPS SEEDS; rank 0 prints the losses.

The longer table, of a language model with three seeds, is made by `benchmarks/hook_convergence.py`.
"""

from __future__ import annotations

import atexit
import ctypes
import json
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from flatout.inside.gradient_hooks import make_hook
from flatout.inside.patches.local_sgd import WeightAverage

WAYS: dict[str, dict[str, Any]] = {
    "plain": {},
    "bf16": {"hook": "bf16"},
    "fp16": {"hook": "fp16"},
    "int8": {"hook": "int8"},
    "powersgd-2": {"hook": "powersgd", "rank": 2, "start": 5},
    "topk-10%": {"hook": "topk", "percent": 10},
    "topk-1%+momentum": {"hook": "topk", "percent": 1, "momentum": True},
    "topk-10%+momentum": {"hook": "topk", "percent": 10, "momentum": True},
    "average-8": {"every": 8, "is_outer": False},
    "diloco-8": {"every": 8, "is_outer": True},
    "none": {"every": 1_000_000, "is_outer": False},
}


def build(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 4))


def train(
    ddp: nn.parallel.DistributedDataParallel,
    optimizer: torch.optim.Optimizer,
    exchange: dict[str, Any],
    loss: Callable[[int], torch.Tensor],
    steps: int,
) -> None:
    """Train with a way to exchange: a hook's name and parameters, `WeightAverage`'s, or nothing for DDP's own."""
    average = hook = None
    if "every" in exchange:
        average = WeightAverage(ddp, **exchange)
    elif exchange:
        hook, function = make_hook(ddp, **exchange)
        ddp.register_comm_hook(hook, function)
    for step in range(steps):
        ddp.require_backward_grad_sync = average is None
        optimizer.zero_grad()
        loss(step).backward()
        nn.utils.clip_grad_norm_(ddp.parameters(), 1.0)
        optimizer.step()
        if average is not None:
            average.step()
    if hook is not None:
        hook.remove()


def learn(exchange: dict[str, Any], seed: int, steps: int) -> float:
    """Return rank 0's loss on inputs that were not seen, as a share of that of a model that always says the mean."""
    teacher = build(seed + 1000).requires_grad_(False)
    for parameter in teacher.parameters():
        parameter *= 3
    ddp = nn.parallel.DistributedDataParallel(build(seed))
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.05, momentum=0.9)
    generator = torch.Generator().manual_seed(seed * 100 + dist.get_rank())

    def loss(step: int) -> torch.Tensor:
        del step
        inputs = torch.randn(16, 16, generator=generator)
        error: torch.Tensor = (ddp(inputs) - teacher(inputs)).square().mean()
        return error

    train(ddp, optimizer, exchange, loss, steps)
    with torch.no_grad():
        unseen = torch.randn(512, 16, generator=torch.Generator().manual_seed(7))
        wanted = teacher(unseen)
        error = (ddp.module(unseen) - wanted).square().mean()
        return float(error / (wanted - wanted.mean(0)).square().mean())


def main() -> None:
    steps, seeds = int(sys.argv[1]), int(sys.argv[2])
    torch.set_num_threads(1)
    atexit.register(time.sleep, 0.1)  # else gloo may abort the process, see tests/jobs/ends_later.py
    dist.init_process_group("gloo")
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(dist.group.WORLD))
    losses = {way: [learn(exchange, seed, steps) for seed in range(seeds)] for way, exchange in WAYS.items()}
    losses["untrained"] = [learn({}, seed, 0) for seed in range(seeds)]
    dist.barrier()
    if dist.get_rank() == 0:
        print("losses", json.dumps(losses), flush=True)


if __name__ == "__main__":
    main()
