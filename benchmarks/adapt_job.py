"""The job of `adapt_jobs.py`: a DDP training on gloo that computes by sleeping, for each sample.

    torchrun --standalone --nproc-per-node 3 benchmarks/adapt_job.py --out DIR --steps 600 [--slow-rank 1 --slow 1.5]

It saves and resumes by its own options, and each rank writes the loss of each step with all its digits. With
`--fits N`, a microbatch of more than N samples raises what torch raises without GPU memory.
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--out", type=Path, required=True)
parser.add_argument("--steps", type=int, default=600)
parser.add_argument("--batch", type=int, default=8)
parser.add_argument("--passes", type=int, default=1)
parser.add_argument("--fits", type=int, default=1_000_000)
parser.add_argument("--sample_s", type=float, default=0.005)
parser.add_argument("--slow-rank", type=int, default=-1)
parser.add_argument("--slow-node", default="")
parser.add_argument("--slow", type=float, default=1.0)
parser.add_argument("--fixed", action="store_true", help="a step takes as long with fewer samples")
parser.add_argument("--width", type=int, default=32)
parser.add_argument("--save_every", type=int, default=50)
parser.add_argument("--init_from", default="scratch")
args = parser.parse_args()

torch.set_num_threads(1)
dist.init_process_group("gloo")
rank, num_ranks = dist.get_rank(), dist.get_world_size()
args.out.mkdir(exist_ok=True)
checkpoint = args.out / "ckpt.pt"
is_slow = rank == args.slow_rank or os.uname().nodename == args.slow_node
sample_s = args.sample_s * (args.slow if is_slow else 1.0)


class Compute(nn.Module):
    """Takes as long as the samples need on this rank."""

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        if len(batch) > args.fits:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has 79.11 GiB in total")
        time.sleep((args.batch if args.fixed else len(batch)) * sample_s)
        return batch


torch.manual_seed(0)
model = nn.Sequential(Compute(), nn.Linear(8, args.width), nn.Tanh(), nn.Linear(args.width, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
step, epoch = 0, 0
if args.init_from == "resume":
    saved = torch.load(checkpoint)
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    step, epoch = saved["iter_num"], saved["epoch"]
wrapped = nn.parallel.DistributedDataParallel(model)
generator = torch.Generator().manual_seed(1)
inputs = torch.randn(4096, 8, generator=generator)
data = TensorDataset(inputs, inputs.sum(1, keepdim=True))
sampler = DistributedSampler(data, num_replicas=num_ranks, rank=rank)
with (args.out / f"losses-{os.uname().nodename}-{rank}.txt").open("a") as file:
    while step < args.steps:
        sampler.set_epoch(epoch)
        passes, total = 0, 0.0
        for samples, wanted in DataLoader(data, batch_size=args.batch, sampler=sampler, drop_last=True):
            loss = (wrapped(samples) - wanted).square().mean() / args.passes
            loss.backward()
            passes, total = passes + 1, total + loss.item()
            if passes < args.passes:
                continue
            optimizer.step()
            optimizer.zero_grad()
            file.write(f"{step} {total.hex()} {time.time():.3f}\n")
            file.flush()
            step, passes, total = step + 1, 0, 0.0
            if rank == 0 and step % args.save_every == 0:
                state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
                torch.save({**state, "iter_num": step, "epoch": epoch}, checkpoint)
            if step >= args.steps:
                break
        epoch += 1
dist.barrier()
dist.destroy_process_group()
