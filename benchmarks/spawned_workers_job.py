"""A training whose rank was started by `torch.multiprocessing.spawn`: its loader's workers are spawned, too.

    flatout tune --budget 300s -- python benchmarks/spawned_workers_job.py

Each epoch has 16 short steps, and each start of the loader imports torch in two workers. `results/spawned_workers.json`
is that command's result.
"""

from __future__ import annotations

import time

import torch
from torch import multiprocessing
from torch.utils.data import DataLoader, Dataset

NUM_EPOCHS, NUM_SAMPLES, BATCH, STEP_S = 40, 64, 4, 0.02


class Samples(Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return NUM_SAMPLES

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((8,), float(index))


def train(rank: int) -> None:
    torch.manual_seed(rank)
    model = torch.nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-5)
    loader = DataLoader(Samples(), batch_size=BATCH, num_workers=2, shuffle=True)
    for epoch in range(NUM_EPOCHS):
        began = time.monotonic()
        for samples in loader:
            time.sleep(STEP_S)
            loss = model(samples).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch}: {time.monotonic() - began:.2f} s, loss {loss.item():.6f}", flush=True)


if __name__ == "__main__":
    multiprocessing.spawn(train, nprocs=1)
