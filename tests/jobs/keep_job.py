"""A small training that saves and resumes by flags of its own, as nanoGPT's does, and fails where it is told to.

    torchrun --nproc-per-node 2 keep_job.py --out=DIR --steps=40 [--init_from=resume] [--fault=data --at=20 --rank=1]

A fault comes once: the file DIR/fault-<kind> says that it has been. With --always, each time.
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
from torch.utils.data import DataLoader, Dataset

parser = argparse.ArgumentParser()
parser.add_argument("--out", type=Path, required=True)
parser.add_argument("--steps", type=int, default=40)
parser.add_argument("--save_every", type=int, default=5)
parser.add_argument("--step_s", type=float, default=0.02)
parser.add_argument("--init_from", default="scratch")
parser.add_argument("--fault", default="")
parser.add_argument("--at", type=int, default=20)
parser.add_argument("--rank", type=int, default=1)
parser.add_argument("--workers", type=int, default=0)
parser.add_argument("--always", action="store_true")
args = parser.parse_args()

atexit.register(time.sleep, 0.1)  # else gloo may abort the process, see jobs/ends_later.py
dist.init_process_group("gloo")
rank = dist.get_rank()
args.out.mkdir(exist_ok=True)
checkpoint = args.out / "ckpt.pt"


def comes(kind: str, step: int) -> bool:
    if args.fault != kind or step != args.at or rank != args.rank:
        return False
    marker = args.out / f"fault-{kind}"
    is_new = not marker.exists()
    if is_new:
        marker.touch()
    return is_new or args.always


class Numbers(Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, index: int) -> torch.Tensor:
        if index % 4 == 0 and comes("data", index // 4):
            time.sleep(3600)
        return torch.randn(8, generator=torch.Generator().manual_seed(index))


def evaluate() -> None:
    """Longer than any step, in one call that does nothing that could be seen."""
    model.eval()
    time.sleep(18)
    model.train()


class Slow:
    """Pickled slowly, as to a slow disk."""

    def __reduce__(self) -> tuple[type, tuple[()]]:
        time.sleep(18)
        return Slow, ()


torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
begin = 0
if args.init_from == "resume":
    saved = torch.load(checkpoint)
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    begin = saved["iter_num"]
wrapped = DistributedDataParallel(model)
batches = iter(
    DataLoader(torch.utils.data.Subset(Numbers(), range(begin * 4, 1_000_000)), batch_size=4, num_workers=args.workers)
)

for step in range(begin, args.steps):
    batch = next(batches)
    loss = (wrapped(batch) - batch.sum(1, keepdim=True)).square().mean()
    optimizer.zero_grad()
    if comes("late", step):
        dist.barrier()
    if args.fault == "slow" and rank == args.rank:
        time.sleep(0.2)
    loss.backward()
    optimizer.step()
    time.sleep(args.step_s)
    with (args.out / f"losses-{rank}.txt").open("a") as file:
        file.write(f"{step} {loss.item():.9f}\n")
    with (args.out / f"times-{rank}.txt").open("a") as file:
        file.write(f"{os.getpid()} {time.time()}\n")
    if comes("kill", step):
        os.kill(os.getpid(), signal.SIGKILL)
    if comes("raise", step):
        raise ValueError(f"a number of {step} that is too large")
    if comes("exit", step):
        raise SystemExit(3)
    if args.fault == "evaluation" and step == args.at:
        evaluate()
    if rank == 0 and (step + 1) % args.save_every == 0:
        content = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "iter_num": step + 1}
        if args.fault == "checkpoint" and step + 1 == args.at:
            content["slow"] = Slow()
        torch.save(content, checkpoint)

dist.barrier()
dist.destroy_process_group()
