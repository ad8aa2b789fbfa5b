"""Data sets with one planted slow stage each, for loaders in this process or in workers."""

from __future__ import annotations

import json
import os
import threading
import time
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import Dataset

SLOW_S = 0.004  # per sample; everything else takes far less
NUM_SAMPLES = 64


def compute(seconds: float) -> None:
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass


class Files(Dataset[torch.Tensor]):
    """One small JSON file per sample; each stage costs next to nothing."""

    def __init__(self, folder: Path) -> None:
        self.paths = [folder / f"{number}.json" for number in range(NUM_SAMPLES)]
        for number, path in enumerate(self.paths):
            path.write_text(json.dumps({"value": number}))

    def __len__(self) -> int:
        return NUM_SAMPLES

    def __getitem__(self, index: int) -> Any:
        with open(self.paths[index], "rb") as file:
            content = json.loads(file.read())
        return self.change(torch.full((4,), float(content["value"])))

    def change(self, value: torch.Tensor) -> Any:
        return value


class SlowCode(Files):
    def change(self, value: torch.Tensor) -> torch.Tensor:
        compute(SLOW_S)
        return value


class Sleeping(Files):
    def change(self, value: torch.Tensor) -> torch.Tensor:
        time.sleep(SLOW_S)
        return value


class _SlowToPickle:
    """What a worker takes long to send: its pickling computes."""

    def __reduce__(self) -> tuple[type, tuple[()]]:
        compute(2 * SLOW_S)
        return _SlowToPickle, ()


class SlowToSend(Files):
    def change(self, value: torch.Tensor) -> Any:
        return _SlowToPickle()


class Pipes(Files):
    """Files that a slow storage delivers late: each is a pipe, which a thread fills after a while."""

    def __getitem__(self, index: int) -> torch.Tensor:
        path = self.paths[index].with_suffix(f".pipe-{os.getpid()}")
        os.mkfifo(path)
        writer = threading.Thread(target=_write_late, args=(path,))
        writer.start()
        with open(path, "rb") as file:
            file.read()
        writer.join()
        path.unlink()
        return torch.zeros(4)


def _write_late(path: Path) -> None:
    descriptor = os.open(path, os.O_WRONLY)
    time.sleep(SLOW_S)
    os.write(descriptor, b'{"value": 1}')
    os.close(descriptor)


def slow_collate(samples: list[Any]) -> torch.Tensor:
    compute(SLOW_S * len(samples))
    return torch.stack(samples)


def first(samples: list[Any]) -> list[Any]:
    return samples
