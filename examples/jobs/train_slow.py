"""A small training job with ordinary faults, for `make demo`: two gloo ranks on the CPU.

It classifies noisy patterns that lie in small files on slow storage (each read takes 2 ms, as on a busy file server)
and reads them in the process that trains; and it accumulates gradients over four passes, but reduces them in each.
Nothing in it knows of Flatout.

    torchrun --standalone --nproc-per-node 2 examples/jobs/train_slow.py
"""

from __future__ import annotations

import argparse
import time

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

NUM_CLASSES = 10
SIZE = 3 * 32 * 32
READ_S = 0.002  # a small file from a busy file server


class SlowFiles(Dataset[tuple[Tensor, int]]):
    """Patterns that are read one by one; the same index always gives the same sample."""

    def __init__(self, length: int) -> None:
        self.length = length
        self.patterns = torch.randn(NUM_CLASSES, SIZE, generator=torch.Generator().manual_seed(1))

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        time.sleep(READ_S)
        label = index % NUM_CLASSES
        noise = torch.randn(SIZE, generator=torch.Generator().manual_seed(index))
        return 0.03 * self.patterns[label] + noise, label


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--batch-size", type=int, default=4)
    parser.add_argument("--accumulate", type=int, default=4)
    parser.add_argument("--width", type=int, default=512)
    args = parser.parse_args()

    dist.init_process_group("gloo")
    torch.manual_seed(0)
    data = SlowFiles(args.steps * args.accumulate * args.batch_size * dist.get_world_size())
    sampler: DistributedSampler[tuple[Tensor, int]] = DistributedSampler(data, seed=0)
    loader = DataLoader(data, batch_size=args.batch_size, sampler=sampler)
    model = DistributedDataParallel(
        nn.Sequential(nn.Linear(SIZE, args.width), nn.ReLU(), nn.Linear(args.width, args.width), nn.ReLU(),
                      nn.Linear(args.width, NUM_CLASSES))
    )  # fmt: skip
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    criterion = nn.CrossEntropyLoss()

    for number, (samples, labels) in enumerate(loader):
        loss = criterion(model(samples), labels) / args.accumulate
        loss.backward()
        if (number + 1) % args.accumulate == 0:
            optimizer.step()
            optimizer.zero_grad()
            step = (number + 1) // args.accumulate
            if step % 50 == 0 and dist.get_rank() == 0:
                print(f"step {step}: loss {loss.item() * args.accumulate:.3f}", flush=True)
            if step == args.steps:
                break
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
