"""Train on files that are read cold each time, whose samples then take a known time to decode; print the rate.

Each file is dropped from the page cache right after it was read (`posix_fadvise`), so that every epoch reads from the
storage. The rate is that of all batches after the first seconds, in which workers start.
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

BATCH = 8
START_S = 2.0


class ColdFiles(Dataset[torch.Tensor]):
    def __init__(self, folder: Path, decode_s: float) -> None:
        self.paths = sorted(folder.glob("*.bin"))
        self.decode_s = decode_s

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> torch.Tensor:
        with open(self.paths[index], "rb") as file:
            data = file.read()
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        until = time.thread_time() + self.decode_s
        while time.thread_time() < until:
            pass
        return torch.full((8,), float(data[0]))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--decode-ms", type=float, default=0.0)
    parser.add_argument("--seconds", type=float, default=5.0)
    arguments = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    data = ColdFiles(arguments.folder, arguments.decode_ms / 1000)
    loader = DataLoader(
        data, BATCH, shuffle=True, num_workers=arguments.workers, persistent_workers=arguments.workers > 0
    )
    model = nn.Linear(8, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    began = time.perf_counter()
    num_counted, counted_from = 0, None
    while time.perf_counter() - began < arguments.seconds:
        for values in loader:
            model(values).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            now = time.perf_counter()
            if counted_from is None and now - began >= START_S:
                counted_from = now
            elif counted_from is not None:
                num_counted += len(values)
            if now - began >= arguments.seconds:
                break
    assert counted_from is not None
    print(f"rate {num_counted / (time.perf_counter() - counted_from):.2f}")


if __name__ == "__main__":
    main()
