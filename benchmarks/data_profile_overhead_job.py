"""Train on JPEG files with one loader worker until a file `stop` appears; write the time and the loss of each step.

    python benchmarks/data_profile_overhead_job.py FILES STEPS

FILES is a folder of images, STEPS a file that gets 16 bytes a step: nanoseconds of CLOCK_MONOTONIC, and the loss.
"""

from __future__ import annotations

import io
import struct
import sys
import time
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset

BATCH, CROP, LENGTH = 8, 64, 1 << 20
STEP = struct.Struct("<qd")


class Images(Dataset[tuple[torch.Tensor, int]]):
    """The files, over and over, so that no epoch ends."""

    def __init__(self, folder: Path) -> None:
        self.paths = sorted(folder.glob("*.jpeg"))

    def __len__(self) -> int:
        return LENGTH

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        with open(self.paths[index % len(self.paths)], "rb") as file:
            image = Image.open(io.BytesIO(file.read())).convert("RGB")
        if torch.rand(()) < 0.5:
            image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        pixels = torch.from_numpy(np.array(image.resize((CROP, CROP)))).float().div_(255)
        return pixels, index % 10


def main(folder: Path, steps: Path) -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * CROP * CROP, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    stop = steps.with_name("stop")
    with steps.open("wb", buffering=0) as file:
        for pixels, labels in DataLoader(Images(folder), BATCH, shuffle=True, num_workers=1):
            loss = torch.nn.functional.cross_entropy(model(pixels), labels)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            file.write(STEP.pack(time.monotonic_ns(), loss.item()))
            if stop.exists():
                return


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
