"""A model that infers in batches: `python batch_at_latency_job.py --batch N [--loader] [--calls N]`.

With `--calls` it stops after as many, and prints the 99th percentile of their times and the samples per second.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

WARM_UP = 20


def batches(data: torch.Tensor, size: int, *, loader: bool) -> Iterator[torch.Tensor]:
    while True:
        if loader:
            yield from (rows for (rows,) in DataLoader(TensorDataset(data), batch_size=size))
        else:
            yield from data.split(size)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch", type=int, required=True)
    parser.add_argument("--loader", action="store_true")
    parser.add_argument("--calls", type=int, default=1_000_000)
    options = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = nn.Sequential(*(nn.Linear(1024, 1024) for _ in range(6))).eval()
    data = torch.randn(4096, 1024)
    took_s = []
    with torch.inference_mode():
        before_s = time.perf_counter()
        for call, rows in enumerate(batches(data, options.batch, loader=options.loader)):
            if call == options.calls + WARM_UP:
                break
            model(rows)
            now_s = time.perf_counter()
            took_s.append(now_s - before_s)
            before_s = now_s
    measured = sorted(took_s[WARM_UP:])
    rate = options.batch * len(measured) / sum(measured)
    print(json.dumps({"p99_s": measured[int(0.99 * len(measured))], "samples_per_s": rate}))


if __name__ == "__main__":
    main()
