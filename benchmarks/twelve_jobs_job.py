"""A training on gloo ranks whose speed is known: its steps rest for as long as the arguments say.

Run by `tune_twelve_jobs.py` under torchrun. With `--steps`, it ends after so many and prints the mean step.
"""

from __future__ import annotations

import argparse
import os
import random
import time

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset


class Samples(Dataset[Tensor]):
    """Samples that take a while to arrive, as from network storage."""

    def __init__(self, num: int, wait_s: float) -> None:
        self._num, self._wait_s = num, wait_s

    def __len__(self) -> int:
        return self._num

    def __getitem__(self, index: int) -> Tensor:
        if self._wait_s:
            time.sleep(self._wait_s)
        return torch.randn(32, generator=torch.Generator().manual_seed(index))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--pause", type=float, default=0.04, help="seconds that each step rests")
    parser.add_argument("--sample-wait", type=float, default=0.0, help="seconds that each of a step's 8 samples takes")
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--epoch", type=int, default=100_000, help="steps per epoch")
    parser.add_argument("--boundary", type=float, default=0.0, help="seconds that each epoch's end rests")
    parser.add_argument("--run-noise", type=float, default=0.0, help="standard deviation of a run's speed")
    parser.add_argument("--step-noise", type=float, default=0.03)
    parser.add_argument("--drift", type=float, default=0.0, help="share by which steps get longer in an hour")
    parser.add_argument("--steps", type=int, default=0)
    options = parser.parse_args()
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    rng = random.Random(int.from_bytes(os.urandom(8), "little"))
    # Both ranks wait for the slower one, so one of them has all the noise.
    is_noisy = dist.get_rank() == 0
    of_run = rng.lognormvariate(0.0, options.run_noise) if is_noisy else 1.0
    drift = 1 + options.drift * (time.time() % 86_400) / 3600
    model = nn.parallel.DistributedDataParallel(nn.Linear(32, 32))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loader = DataLoader(Samples(8 * options.epoch, options.sample_wait), batch_size=8, num_workers=options.workers)
    num_steps, began_s = 0, time.perf_counter()
    while not options.steps or num_steps < options.steps:
        for samples in loader:
            loss = ((model(samples) - samples) ** 2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            of_step = rng.lognormvariate(0.0, options.step_noise) if is_noisy else 1.0
            time.sleep(options.pause * of_run * of_step * drift)
            num_steps += 1
            if num_steps == options.steps:
                break
        else:
            time.sleep(options.boundary)
    if is_noisy:
        print(f"mean step: {(time.perf_counter() - began_s) / max(num_steps, 1):.6f} s", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
