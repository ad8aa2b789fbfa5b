"""A training of one process that rests after each step, as long as `--pause` says: for tests of interruptions.

Each run makes a file in the folder RUNS, at its start. Its weights are updated by hand: the first optimizer of torch's
imports torch's compiler, which would double the time of such a short run.
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
    (Path(os.environ["RUNS"]) / f"{os.getpid()}-{time.time_ns()}").touch()
    torch.manual_seed(0)
    model = nn.Linear(64, 64)
    for samples in DataLoader(Samples(), batch_size=8):
        loss = ((model(samples) - samples) ** 2).mean()
        loss.backward()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= 0.01 * parameter.grad
                parameter.grad = None
        time.sleep(pause_s)


if __name__ == "__main__":
    main()
