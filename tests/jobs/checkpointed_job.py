"""A small training on flatout.checkpoint, which goes on by itself, and whose ranks die where they are told.

    torchrun --nproc-per-node 2 checkpointed_job.py DIR --steps=100 [--kill=8:1 --kill=60:0]

`--kill=STEP:RANK` is once each. DIR/steps.txt has a line for each step that rank 0 has made: number, process, host.
"""

from __future__ import annotations

import argparse
import atexit
import os
import signal
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from flatout.checkpoint import Checkpointer

parser = argparse.ArgumentParser()
parser.add_argument("folder", type=Path)
parser.add_argument("--steps", type=int, default=100)
parser.add_argument("--every", type=int, default=5)
parser.add_argument("--step_s", type=float, default=0.05)
parser.add_argument("--kill", action="append", default=[])
args = parser.parse_args()

atexit.register(time.sleep, 0.1)  # else gloo may abort the process, see jobs/ends_later.py
dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Linear(8, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)

with Checkpointer(args.folder / "ckpt", model=model, optimizer=optimizer, every=args.every) as checkpointer:
    for step in range(checkpointer.resume(), args.steps):
        for kill in args.kill:
            marker = args.folder / f"killed-{kill}"
            if kill == f"{step}:{rank}" and not marker.exists():
                marker.touch()
                os.kill(os.getpid(), signal.SIGKILL)
        batch = torch.randn(4, 8, generator=torch.Generator().manual_seed(2 * step + rank))
        optimizer.zero_grad()
        (model(batch) - batch.sum(1, keepdim=True)).square().mean().backward()
        optimizer.step()
        if rank == 0:
            with (args.folder / "steps.txt").open("a") as file:
                file.write(f"{step} {os.getpid()} {os.uname().nodename}\n")
        checkpointer.step(step + 1)
        time.sleep(args.step_s)

dist.barrier()
dist.destroy_process_group()
