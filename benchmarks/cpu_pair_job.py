"""A small training job on the CPU, with a fault or not: `cpu_pairs.py` runs it. Prints its mean step in seconds."""

from __future__ import annotations

import argparse
import contextlib
import os
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, Dataset

WARMUP = 6


class Data(Dataset[torch.Tensor]):
    def __init__(self, width: int, sleep_s: float, spin_s: float) -> None:
        self.width, self.sleep_s, self.spin_s = width, sleep_s, spin_s

    def __len__(self) -> int:
        return 100_000

    def __getitem__(self, index: int) -> torch.Tensor:
        if self.sleep_s:
            time.sleep(self.sleep_s)
        end = time.thread_time() + self.spin_s
        while self.spin_s and time.thread_time() < end:
            pass
        return torch.randn(self.width)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    defaults = {"steps": 24, "width": 256, "layers": 4, "batch": 16, "workers": 0, "accum": 1, "nosync": 0}
    for name, value in {**defaults, "bucket": 25, "threads": 1}.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--sleep", type=float, default=0.0)
    parser.add_argument("--spin", type=float, default=0.0)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    if "RANK" in os.environ:
        dist.init_process_group("gloo")
    layers = [m for _ in range(options.layers) for m in (nn.Linear(options.width, options.width), nn.GELU())]
    model: nn.Module = nn.Sequential(*layers)
    if dist.is_initialized():
        model = nn.parallel.DistributedDataParallel(model, bucket_cap_mb=options.bucket)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    data = Data(options.width, options.sleep, options.spin)
    batches = iter(DataLoader(data, batch_size=options.batch, num_workers=options.workers))
    times = []
    for _ in range(options.steps):
        begin = time.perf_counter()
        for number in range(options.accum):
            is_early = bool(options.nosync) and number < options.accum - 1
            with model.no_sync() if is_early else contextlib.nullcontext():
                model(next(batches)).pow(2).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        times.append(time.perf_counter() - begin)
    if int(os.environ.get("RANK", "0")) == 0:
        print("STEP", sum(times[WARMUP:]) / len(times[WARMUP:]), flush=True)


if __name__ == "__main__":
    main()
