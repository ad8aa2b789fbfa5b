"""A small training job on the CPU with one ordinary fault, recorded as users do: `gloo_job.py FAULT FOLDER`."""

from __future__ import annotations

import atexit
import ctypes
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.profiler import ProfilerActivity, profile, schedule

FAULT, FOLDER = sys.argv[1:3]


class Samples(torch.utils.data.Dataset):
    def __len__(self):
        return 10_000

    def __getitem__(self, index):
        if FAULT == "data-loading":
            time.sleep(0.01)  # 160 ms a step: more than the exchange takes, however busy the machine is
        return torch.randn(512)


def main():
    torch.set_num_threads(1)
    atexit.register(time.sleep, 0.1)  # else gloo may abort the process, see jobs/ends_later.py
    dist.init_process_group("gloo")
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(dist.group.WORLD))  # never freed, see jobs/ends_later.py
    rank = dist.get_rank()
    model = nn.parallel.DistributedDataParallel(nn.Sequential(*[nn.Linear(512, 512) for _ in range(6)]))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    batches = iter(torch.utils.data.DataLoader(Samples(), batch_size=16))
    matrix = torch.randn(700, 700)

    def step():
        batch = next(batches)
        if FAULT == "straggler" and rank == 1:
            for _ in range(8):
                matrix @ matrix
        model(batch).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        if FAULT == "host-bound" and rank == 0:
            end = time.perf_counter() + 0.05
            while time.perf_counter() < end:
                sum(range(100))

    for _ in range(3):
        step()
    with profile(
        activities=[ProfilerActivity.CPU],
        schedule=schedule(wait=0, warmup=1, active=4),
        on_trace_ready=lambda p: p.export_chrome_trace(f"{FOLDER}/rank{rank}.json"),
    ) as profiler:
        for _ in range(5):
            step()
            profiler.step()
    dist.destroy_process_group()


main()
