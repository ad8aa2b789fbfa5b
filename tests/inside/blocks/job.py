"""A training job that knows nothing of Flatout and runs until it is stopped. Usage: job.py STEPS [OPTION ..]

Before each optimizer step it prints `step`, its number, and what there is to see of how it runs.
"""

from __future__ import annotations

import atexit
import ctypes
import gc
import os
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info

WIDTH = 8


class Numbers(Dataset):
    """Each sample is its own index, and the process that loaded it."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int, int]:
        return torch.full((WIDTH,), index / self.length), index, get_worker_info() is not None


class Stream(IterableDataset):
    def __iter__(self):
        for index in range(100_000):
            yield torch.full((WIDTH,), index % 7 / 7), index, get_worker_info() is not None


def start_gloo() -> None:
    """The group is never destroyed, see tests/inside/patches/job.py."""
    atexit.register(time.sleep, 0.1)
    dist.init_process_group("gloo")
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(dist.group.WORLD))


def main() -> None:
    num_steps = int(sys.argv[1])
    options = set(sys.argv[2:])
    if "RANK" in os.environ:
        start_gloo()
    torch.manual_seed(0)
    if "gc-off" in options:
        gc.disable()
    kept = [[number] for number in range(2_000_000)] if "objects" in options else []
    model: nn.Module = nn.Sequential(nn.Linear(WIDTH, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))
    if dist.is_initialized():
        model = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    data = Stream() if "stream" in options else Numbers(96)
    workers = next((int(option.partition("=")[2]) for option in options if option.startswith("workers=")), 0)
    persists = "persistent" in options
    loader = DataLoader(
        data, batch_size=4, num_workers=workers, persistent_workers=persists, shuffle="stream" not in options
    )
    passes = 2 if "accumulate" in options else 1
    batches = endless(loader)
    for step in range(num_steps):
        seen: list[int] = []
        for _ in range(passes):
            x, indices, in_worker = next(batches)
            seen += indices.tolist()
            loss = model(x).pow(2).mean()
            loss.backward()
        tell(step, model, loss, seen, bool(in_worker.any()))
        optimizer.step()
        optimizer.zero_grad()
    del kept


def endless(loader: DataLoader):
    while True:
        yield from loader


def tell(step: int, model: nn.Module, loss: torch.Tensor, seen: list[int], in_worker: bool) -> None:
    if dist.is_initialized() and dist.get_rank() != 0:
        return
    bucket = getattr(model, "bucket_bytes_cap", 0) >> 20
    words = {
        "threads": torch.get_num_threads(),
        "gc": int(gc.isenabled()),
        "cores": len(os.sched_getaffinity(0)),
        "workers": int(in_worker),
        "bucket": bucket,
        "tf32": int(torch.get_float32_matmul_precision() == "high"),
        "samples": ",".join(map(str, seen)),
        "loss": loss.item().hex(),
    }
    print("step", step, *(f"{name}={value}" for name, value in words.items()), flush=True)


if __name__ == "__main__":
    main()
