"""A training on small files, whose loader is slow in a known way: what a sample takes is computed or slept."""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Files(Dataset[torch.Tensor]):
    def __init__(self, folder: Path, num_samples: int, compute_s: float, sleep_s: float) -> None:
        self.paths = [folder / f"{number}.json" for number in range(num_samples)]
        for number, path in enumerate(self.paths):
            path.write_text(json.dumps([number / num_samples] * 8))
        self.compute_s, self.sleep_s = compute_s, sleep_s

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> torch.Tensor:
        with open(self.paths[index]) as file:
            values = torch.tensor(json.load(file))
        return self.augment(values)

    def augment(self, values: torch.Tensor) -> torch.Tensor:
        until = time.thread_time() + self.compute_s
        while time.thread_time() < until:
            pass
        time.sleep(self.sleep_s)
        return values + torch.randn(8) * 0.01


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--samples", type=int, default=160)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--compute-ms", type=float, default=0.0, help="per sample")
    parser.add_argument("--sleep-ms", type=float, default=0.0, help="per sample")
    parser.add_argument("--step-ms", type=float, default=2.0)
    arguments = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    arguments.folder.mkdir(exist_ok=True)
    data = Files(arguments.folder, arguments.samples, arguments.compute_ms / 1000, arguments.sleep_ms / 1000)
    loader = DataLoader(data, batch_size=4, shuffle=True, num_workers=arguments.workers)
    model = nn.Linear(8, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(arguments.epochs):
        for values in loader:
            time.sleep(arguments.step_ms / 1000)
            loss = model(values).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            print(loss.item().hex())


if __name__ == "__main__":
    main()
