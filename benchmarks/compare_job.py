"""A small training job of gloo ranks in which one cause of slowness can be planted, for `compare_gate.py`.

torchrun --standalone --nproc-per-node 2 benchmarks/compare_job.py --sleep 0.02
"""

from __future__ import annotations

import argparse
import os
import time

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset


class Samples(Dataset[Tensor]):
    """Samples that take a while to make: `sleep_s` each."""

    def __init__(self, width: int, sleep_s: float) -> None:
        self.width, self.sleep_s = width, sleep_s

    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, index: int) -> Tensor:
        if self.sleep_s:
            time.sleep(self.sleep_s)
        return torch.full((self.width,), float(index % 7))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sleep", type=float, default=0.0, help="seconds per batch in the loader")
    parser.add_argument("--items", type=int, default=0, help="calls of .item() per step")
    parser.add_argument("--bucket-mb", type=float, default=25.0)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--steps", type=int, default=5000)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--depth", type=int, default=8)
    args = parser.parse_args()

    torch.set_num_threads(args.threads)
    if "RANK" in os.environ:
        dist.init_process_group("gloo")
    else:
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    torch.manual_seed(0)
    layers = [nn.Linear(256, 256) for _ in range(args.depth)]
    model = nn.parallel.DistributedDataParallel(nn.Sequential(*layers), bucket_cap_mb=args.bucket_mb)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    batches = iter(DataLoader(Samples(256, args.sleep / args.batch), batch_size=args.batch))
    for _ in range(args.steps):
        loss = model(next(batches)).square().mean()
        loss.backward()
        for _ in range(args.items):
            loss.item()
        optimizer.step()
        optimizer.zero_grad()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
