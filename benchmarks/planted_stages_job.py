"""Train on files whose loader has one slow stage: `python benchmarks/planted_stages_job.py STAGE FOLDER [SECONDS]`.

STAGE is `storage` (the files are read cold each time), `decompress`, `decode`, `transform`, `code` (the data set's own
Python), `collate`, or `healthy`. All else takes a fraction of it. FOLDER holds the files of that stage: `files_of`
writes them.
"""

from __future__ import annotations

import io
import os
import sys
import time
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, Dataset, default_collate

STAGES = ("storage", "decompress", "decode", "transform", "code", "collate")
NUM_FILES, BATCH, SIDE = 64, 8, 16
LARGE_SIDE = 700  # of the images that take long to decode
COLD_BYTES = 256 << 10
SLOW_S = 0.008  # of the stages that compute


def files_of(stage: str, folder: Path) -> None:
    generator = np.random.default_rng(0)
    side = LARGE_SIDE if stage == "decode" else SIDE
    for number in range(NUM_FILES):
        pixels = generator.integers(0, 255, (side, side, 3), dtype=np.uint8)
        if stage == "decompress":
            content = zlib.compress(bytes(1 << 20) + pixels.tobytes() * 1500, 9)
        else:
            stream = io.BytesIO()
            Image.fromarray(pixels).save(stream, "jpeg", quality=90)
            content = stream.getvalue()
        if stage == "storage":
            content += generator.bytes(COLD_BYTES)
        (folder / f"{number:03d}.bin").write_bytes(content)


def compute(seconds: float) -> None:
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass


class Samples(Dataset[torch.Tensor]):
    def __init__(self, stage: str, folder: Path) -> None:
        self.stage = stage
        self.paths = sorted(folder.glob("*.bin"))

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> torch.Tensor:
        with open(self.paths[index], "rb") as file:
            content = file.read()
            if self.stage == "storage":
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        if self.stage == "decompress":
            content = zlib.decompress(content)
            return torch.frombuffer(bytearray(content[-SIDE * SIDE * 3 :]), dtype=torch.uint8).float()
        image = Image.open(io.BytesIO(content)).convert("RGB")
        if self.stage == "transform":
            image = image.resize((600, 600), Image.Resampling.LANCZOS)
        if self.stage == "code":
            compute(SLOW_S)
        pixels = np.asarray(image.resize((SIDE, SIDE)))
        return torch.from_numpy(pixels.copy()).flatten().float()


def slow_collate(samples: list[Any]) -> torch.Tensor:
    compute(SLOW_S * len(samples))
    return default_collate(samples)


def main(stage: str, folder: Path, seconds: float) -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    collate = slow_collate if stage == "collate" else default_collate
    loader = DataLoader(
        Samples(stage, folder), BATCH, shuffle=True, num_workers=1, persistent_workers=True, collate_fn=collate
    )
    model = nn.Linear(SIDE * SIDE * 3, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-9)
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        for pixels in loader:
            if stage == "healthy":
                compute(0.05)
            model(pixels).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), float(sys.argv[3]) if len(sys.argv) > 3 else 12.0)
