"""A training of one process that rests after each step, as long as `--pause` says: for tests of interruptions.

Each run makes a file in the folder RUNS, at its start, and then waits for as long as there is a file `hold` beside that
folder. Its steps are an optimizer's, so a recorder need not watch many of them until it knows what a step is.
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset


class Samples(Dataset[Tensor]):
    def __len__(self) -> int:
        return 100_000

    def __getitem__(self, index: int) -> Tensor:
        return torch.randn(64, generator=torch.Generator().manual_seed(index))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--pause", type=float, default=0.04)
    pause_s = parser.parse_args().pause
    runs = Path(os.environ["RUNS"])
    (runs / f"{os.getpid()}-{time.time_ns()}").touch()
    while runs.with_name("hold").exists():
        time.sleep(0.01)
    torch.manual_seed(0)
    model = nn.Linear(64, 64)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for samples in DataLoader(Samples(), batch_size=8):
        loss = ((model(samples) - samples) ** 2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        time.sleep(pause_s)


if __name__ == "__main__":
    main()
