"""Reduce gradients that are known by each hook. Usage: gradients.py FOLDER HOOKS; HOOKS is JSON, {name: parameters}.

The weights never change, so each rank's own gradients are known without the hook. FOLDER gets, for each rank and hook,
the own and the reduced gradients of each step by the parameter's name.
"""

from __future__ import annotations

import atexit
import ctypes
import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn

from flatout.inside.gradient_hooks import make_hook
from flatout.inside.patches.local_sgd import WeightAverage

STEPS = 4
MOMENTUM, DECAY = 0.9, 0.01


def build() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(40, 64), nn.ReLU(), nn.Linear(64, 33), nn.ReLU(), nn.Linear(33, 2))


def batches(rank: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(10 + rank)
    return [torch.randn(8, 40, generator=generator) for _ in range(STEPS)]


def gradients(model: nn.Module) -> dict[str, np.ndarray]:
    return {name: parameter.grad.numpy().copy() for name, parameter in model.named_parameters()}


def own_gradients(batch: torch.Tensor) -> dict[str, np.ndarray]:
    model = build()
    model(batch).square().mean().backward()
    return gradients(model)


def reduced_gradients(parameters: dict[str, Any], rank: int, *, is_broken: bool) -> list[dict[str, np.ndarray]]:
    model = nn.parallel.DistributedDataParallel(build(), bucket_cap_mb=0.005)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0, momentum=MOMENTUM, weight_decay=DECAY)
    state, hook = make_hook(model, **parameters)
    model.register_comm_hook(state, hook)
    found = []
    for number, batch in enumerate(batches(rank)):
        optimizer.zero_grad()
        loss = model(batch).square().mean()
        overflows = is_broken and number == 1
        (loss * float("inf") if overflows else loss).backward()
        found.append(gradients(model.module))
        if overflows:  # a gradient scaler leaves the step out
            continue
        optimizer.step()
        assert optimizer.param_groups[0]["momentum"] == MOMENTUM
    state.remove()
    return found


def averaged_weights(rank: int, *, is_outer: bool) -> list[list[float]]:
    """Return a weight of this rank's before and after each of three averages; a rank adds its number before each."""
    ddp = nn.parallel.DistributedDataParallel(nn.Linear(1, 1, bias=False))
    nn.init.constant_(ddp.module.weight, 10.0)
    average = WeightAverage(ddp, every=2, is_outer=is_outer)
    found = []
    for _ in range(3):
        with torch.no_grad():
            ddp.module.weight += rank
        before = ddp.module.weight.item()
        assert not average.step()
        assert ddp.module.weight.item() == before
        assert average.step()
        found.append([before, ddp.module.weight.item()])
    return found


def main() -> None:
    folder, hooks = Path(sys.argv[1]), json.loads(sys.argv[2])
    atexit.register(time.sleep, 0.1)  # else gloo may abort the process, see tests/jobs/ends_later.py
    dist.init_process_group("gloo")
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(dist.group.WORLD))
    rank = dist.get_rank()
    for name, parameters in hooks.items():
        is_broken = parameters.pop("is_broken", False)
        reduced = reduced_gradients(parameters, rank, is_broken=is_broken)
        for step, batch in enumerate(batches(rank)):
            np.savez(folder / f"{name}-{rank}-{step}-own.npz", **own_gradients(batch))
            np.savez(folder / f"{name}-{rank}-{step}-reduced.npz", **reduced[step])
    weights = {"average": averaged_weights(rank, is_outer=False), "diloco": averaged_weights(rank, is_outer=True)}
    (folder / f"weights-{rank}.json").write_text(json.dumps(weights))
    dist.barrier()


if __name__ == "__main__":
    main()
