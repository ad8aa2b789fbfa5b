"""Loaders of the same JPEG files by several libraries, for `loaders_side_by_side.py`: each yields batches for ever.

A batch is the indices of its samples in the order of the files and their pixels, as bytes of red, green and blue. All
but SPDL's own decoder run the same function on the same bytes. Each makes its batches in a random order.
"""

from __future__ import annotations

import io
import json
import os
import random
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset, Sampler

from flatout.inside.packed_reads.reads import hook_packed_reads
from flatout.inside.protocol import Variable

BATCH = 32
CROP = 160

Batches = Generator[tuple[torch.Tensor, torch.Tensor], None, None]


class Files(NamedTuple):
    """The files of one run, and the packs of them."""

    folder: Path
    paths: list[Path]
    pack: Path
    shrunk: Path  # the pack with images shrunk for the crop; empty without one


def decoded(data: bytes) -> torch.Tensor:
    with Image.open(io.BytesIO(data)) as image:
        small = image.convert("RGB").resize((CROP, CROP), Image.Resampling.BICUBIC)
    return torch.from_numpy(np.array(small))


def read(path: Path) -> bytes:
    with open(path, "rb") as file:
        return file.read()


class Images(Dataset[Any]):
    def __init__(self, paths: list[Path]) -> None:
        self.paths = paths

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> tuple[int, torch.Tensor]:
        return index, decoded(read(self.paths[index]))


class ForEver(Sampler[int]):
    """One permutation after the other, so that no loader ends an epoch while it is measured."""

    def __init__(self, length: int) -> None:
        self._length = length

    def __iter__(self) -> Iterator[int]:
        while True:
            yield from random.sample(range(self._length), self._length)


def torch_loader(files: Files, workers: int, prefetch: int = 2) -> Batches:
    options = {"prefetch_factor": prefetch} if workers else {}
    loader = DataLoader(Images(files.paths), BATCH, sampler=ForEver(len(files.paths)), num_workers=workers, **options)
    yield from loader


def packed_loader(files: Files, pack: Path, workers: int) -> Batches:
    """Read the files' contents from a pack, as under `flatout run --packed`."""
    os.environ[Variable.PACKED] = json.dumps([{"folder": str(pack), "source": str(files.folder)}])
    hook_packed_reads()
    return torch_loader(files, workers)


def webdataset_loader(files: Files, workers: int) -> Batches:
    import webdataset

    shards = sorted(map(str, files.pack.glob("*.tar")))
    data = webdataset.WebDataset(shards, shardshuffle=len(shards)).shuffle(256).map(_of_shard)
    batches = data.batched(BATCH, partial=False).repeat()
    for indices, pixels in DataLoader(batches, batch_size=None, num_workers=workers):
        yield torch.as_tensor(indices), torch.as_tensor(pixels)


def _of_shard(sample: dict[str, Any]) -> tuple[int, torch.Tensor]:
    return int(sample["__key__"].rpartition("/")[2]), decoded(sample["jpeg"])


def spdl_threads(files: Files, threads: int) -> Batches:
    """SPDL's pipeline of threads, with the same function."""
    data = Images(files.paths)
    return _spdl(files, threads, data.__getitem__, _stacked)


def _stacked(samples: list[tuple[int, torch.Tensor]]) -> tuple[torch.Tensor, torch.Tensor]:
    indices, pixels = zip(*samples, strict=True)
    return torch.tensor(indices), torch.stack(pixels)


def spdl_decoder(files: Files, threads: int) -> Batches:
    """SPDL's pipeline of threads with its own decoder, which needs FFmpeg's libraries."""
    import spdl.io

    scaled = f"scale=w={CROP}:h={CROP}:flags=bicubic,format=pix_fmts=rgb24"
    spdl.io.load_image(str(files.paths[0]), filter_desc=scaled)  # here, so that an error ends the contender

    def frames_of(index: int) -> tuple[int, Any]:
        packets = spdl.io.demux_image(str(files.paths[index]))
        return index, spdl.io.decode_packets(packets, filter_desc=scaled)

    def batch_of(samples: list[tuple[int, Any]]) -> tuple[torch.Tensor, torch.Tensor]:
        indices, frames = zip(*samples, strict=True)
        return torch.tensor(indices), spdl.io.to_torch(spdl.io.convert_frames(list(frames)))

    return _spdl(files, threads, frames_of, batch_of)


def _spdl(files: Files, threads: int, sample_of: Callable[[int], Any], batch_of: Callable[[list[Any]], Any]) -> Batches:
    from spdl.pipeline import PipelineBuilder

    builder = PipelineBuilder().add_source(ForEver(len(files.paths))).pipe(sample_of, concurrency=threads)
    pipeline = builder.aggregate(BATCH).pipe(batch_of).add_sink(4).build(num_threads=threads)
    with pipeline.auto_stop():
        yield from pipeline.get_iterator()


def spdl_processes(files: Files, workers: int) -> Batches:
    """SPDL's loader for data sets of torch, which replaces the DataLoader."""
    from spdl.dataloader import get_pytorch_dataloader

    images, order = Images(files.paths), ForEver(len(files.paths))
    yield from get_pytorch_dataloader(
        images, BATCH, sampler=order, num_workers=workers, multiprocessing_context="fork", in_order=True
    )


BASE = "DataLoader, 2 workers"
CONTENDERS: dict[str, Callable[[Files], Batches]] = {
    "DataLoader, no workers": lambda files: torch_loader(files, 0),
    BASE: lambda files: torch_loader(files, 2),
    "DataLoader, 2 workers, 8 batches ahead": lambda files: torch_loader(files, 2, prefetch=8),
    "DataLoader, 4 workers": lambda files: torch_loader(files, 4),
    "DataLoader, 2 workers, from a pack": lambda files: packed_loader(files, files.pack, 2),
    "DataLoader, 2 workers, from a pack shrunk for the crop": lambda files: packed_loader(files, files.shrunk, 2),
    "WebDataset, 2 workers, the same shards": lambda files: webdataset_loader(files, 2),
    "SPDL, 2 threads, Pillow": lambda files: spdl_threads(files, 2),
    "SPDL, 4 threads, Pillow": lambda files: spdl_threads(files, 4),
    "SPDL, 2 threads, its own decoder": lambda files: spdl_decoder(files, 2),
    "SPDL for data sets of torch, 2 processes": lambda files: spdl_processes(files, 2),
}
ON_SLOW_STORAGE = (BASE, "DataLoader, 4 workers", "DataLoader, 2 workers, from a pack")
ON_SLOW_STORAGE += ("WebDataset, 2 workers, the same shards", "SPDL, 4 threads, Pillow")
OTHER_PIXELS = ("DataLoader, 2 workers, from a pack shrunk for the crop", "SPDL, 2 threads, its own decoder")
