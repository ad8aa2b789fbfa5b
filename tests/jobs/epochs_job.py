"""A job of short epochs on gloo ranks. What a step, an evaluation and a checkpoint take is slept, and so is known."""

from __future__ import annotations

import argparse
import os
import tempfile
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

BATCH = 4


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--steps", type=int, default=15, help="of an epoch")
    parser.add_argument("--step-ms", type=float, default=20.0)
    parser.add_argument("--evaluation-ms", type=float, default=200.0)
    parser.add_argument("--save-ms", type=float, default=100.0, help="on rank 0, after each epoch")
    parser.add_argument("--save-every", type=int, default=1, help="epochs")
    arguments = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    world_size = dist.get_world_size()
    data = TensorDataset(torch.randn(BATCH * arguments.steps * world_size, 8))
    sampler: DistributedSampler[tuple[torch.Tensor, ...]] = DistributedSampler(data, shuffle=False)
    loader = DataLoader(data, batch_size=BATCH, sampler=sampler)
    model = DistributedDataParallel(nn.Linear(8, 8))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with tempfile.TemporaryDirectory() as folder:
        for number in range(1, arguments.epochs + 1):
            for (samples,) in loader:
                time.sleep(arguments.step_ms / 1000)
                model(samples).square().mean().backward()
                optimizer.step()
                optimizer.zero_grad()
            model.eval()
            with torch.no_grad():
                model(samples)
            time.sleep(arguments.evaluation_ms / 1000)
            model.train()
            if dist.get_rank() == 0 and number % arguments.save_every == 0:
                torch.save(_Slow(arguments.save_ms / 1000), os.path.join(folder, "state.pt"))
            dist.barrier()
    dist.destroy_process_group()


class _Slow:
    """An object that takes some time to be saved."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def __getstate__(self) -> dict[str, float]:
        time.sleep(self.seconds)
        return {"seconds": self.seconds}


if __name__ == "__main__":
    main()
