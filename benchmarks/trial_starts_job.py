"""A training on the CPU whose start has parts of a known length: `trial_starts.py` runs it, alone or under torchrun."""

from __future__ import annotations

import argparse
import os
import time

import numpy as np
import torch
import torch.distributed
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset


class Samples(Dataset[Tensor]):
    def __init__(self, first_s: float, each_s: float) -> None:
        self.first_s, self.each_s = first_s, each_s

    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, index: int) -> Tensor:
        time.sleep(self.first_s if index == 0 else self.each_s)
        return torch.full((64,), float(index % 7))


@torch.no_grad()  # type: ignore[untyped-decorator]
def evaluate(model: nn.Module, seconds: float) -> None:
    model.eval()
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        model(torch.zeros(8, 64))
        time.sleep(0.01)
    model.train()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("setup", "evaluate", "first-batch", "batch", "step", "noise"):
        parser.add_argument(f"--{name}", type=float, default=0.0)
    parser.add_argument("--spin", type=int, default=0, help="size of a matrix product in each step, on all threads")
    arguments = parser.parse_args()
    time.sleep(arguments.setup)
    torch.manual_seed(0)
    model: nn.Module = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64))
    if "RANK" in os.environ:
        torch.distributed.init_process_group("gloo")
        torch.set_num_threads(1)
    if arguments.evaluate:
        evaluate(model, arguments.evaluate)
    if "RANK" in os.environ:
        model = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    noise = np.random.default_rng(os.getpid())
    matrix = torch.ones(arguments.spin, arguments.spin) if arguments.spin else None
    for samples in DataLoader(Samples(arguments.first_batch, arguments.batch), batch_size=1):
        optimizer.zero_grad()
        loss = ((model(samples) - samples) ** 2).mean()
        loss.backward()
        if matrix is not None:
            torch.mm(matrix, matrix)
        time.sleep(arguments.step * float(np.exp(noise.normal(0, arguments.noise))))
        optimizer.step()


if __name__ == "__main__":
    main()
