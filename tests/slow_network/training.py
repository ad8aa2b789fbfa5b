"""Train a DistributedDataParallel whose gradients have so many MiB. Usage: training.py --mib N --steps N [--seed N]"""

from __future__ import annotations

import argparse
import atexit
import ctypes
import os
import time

import torch
import torch.distributed as dist
from torch import nn


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--mib", type=int, default=4)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    atexit.register(time.sleep, 0.1)  # else gloo may abort the process, see tests/jobs/ends_later.py
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(dist.group.WORLD))
    torch.manual_seed(given.seed)
    layers = [layer for _ in range(given.mib) for layer in (nn.Linear(512, 512, bias=False), nn.ReLU())]
    model = nn.parallel.DistributedDataParallel(nn.Sequential(*layers), bucket_cap_mb=2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    generator = torch.Generator().manual_seed(int(os.environ["RANK"]))
    for step in range(given.steps):
        rows = torch.randn(16, 512, generator=generator)
        loss = (model(rows) - rows.roll(1, 1)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"step {step} loss {loss.item():.6f}", flush=True)
    dist.barrier()


if __name__ == "__main__":
    main()
