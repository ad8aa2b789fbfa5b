"""Read a finished pack again, and compare each sample with the checksum in the index.

In: the folder, and the training's ranks and workers if they are known. Out: a `PackCheck`.
"""

from __future__ import annotations

import hashlib
import os
from collections import defaultdict
from pathlib import Path

from flatout.input_files import open_file
from flatout.packing.index import read_samples, required_index
from flatout.packing.request import SHARDS_PER_WORKER
from flatout.records.packing import DamagedSample, PackCheck, PackedSample


def verify_pack(folder: Path, *, num_ranks: int | None = None, num_workers: int | None = None) -> PackCheck:
    """Return which samples are damaged, and how even the shards are. Raise InputError if it is not a pack."""
    index = required_index(folder)
    by_shard: dict[str, list[PackedSample]] = defaultdict(list)
    num_samples = 0
    for sample in read_samples(folder):
        by_shard[sample.shard].append(sample)
        num_samples += 1
    shards = [shard for split in index.splits for shard in split.shards]
    damaged: list[DamagedSample] = []
    for shard in shards:
        damaged += _damaged(folder / shard.shard, by_shard[shard.shard], shard.num_samples)
    if num_samples != index.num_samples:
        reason = f"it lists {num_samples:,} samples instead of {index.num_samples:,}"
        damaged.append(DamagedSample(name="samples.jsonl", reason=reason))
    counts = [shard.num_samples for shard in shards]
    needed = SHARDS_PER_WORKER * num_ranks * (num_workers or 1) if num_ranks is not None else None
    return PackCheck(
        folder=str(folder),
        num_samples=num_samples,
        num_shards=len(shards),
        damaged=tuple(damaged),
        least_samples=min(counts),
        most_samples=max(counts),
        least_shards=min(len(split.shards) for split in index.splits),
        needed_shards=needed,
    )


def _damaged(path: Path, samples: list[PackedSample], num_samples: int) -> list[DamagedSample]:
    """Return the samples of a shard that differ from the index; the shard itself if it cannot be read."""
    if len(samples) != num_samples:
        reason = f"the index lists {len(samples):,} of its {num_samples:,} samples"
        return [DamagedSample(name=path.name, reason=reason)]
    damaged = []
    try:
        with open_file(path) as file:
            size = file.seek(0, os.SEEK_END)
            for sample in sorted(samples, key=lambda sample: sample.offset):
                file.seek(sample.offset)
                # A number of bytes far beyond the file's would be memory that nothing fills.
                content = file.read(min(sample.num_bytes, size))
                if hashlib.sha256(content).hexdigest() != sample.sha256:
                    reason = f"its bytes in {path.name} are not those that were packed"
                    damaged.append(DamagedSample(name=sample.name, reason=reason))
    except OSError as error:
        return [DamagedSample(name=path.name, reason=(error.strerror or str(error)).lower())]
    return damaged
