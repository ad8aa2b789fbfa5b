"""Decide which shard holds which sample, from the samples and the options alone.

In: a `Listing` and a `PackRequest`. Out: a `PackingPlan`. The same arguments give the same plan on every machine, so an
interrupted pack continues with the same shards. The numbers of samples in two shards of a split differ by one at most.
"""

from __future__ import annotations

import hashlib
import math
import random
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import msgspec

from flatout.errors import UsageError
from flatout.packing.request import ALL, PackRequest
from flatout.packing.sources import Listing
from flatout.records.packing import SourceSample

SHARD_NUMBER = "%06d"
_SORTED_SHARE = 0.5  # a source is class-sorted if neighbours change their label less than half as often as by chance


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedShard:
    """The samples of a shard, by their index in the source, in the order in which they are written."""

    split: str
    shard: str
    indices: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PackingPlan:
    """All shards of a pack. `digest` identifies the samples, the options and the shards."""

    digest: str
    shards: tuple[PlannedShard, ...]
    is_class_sorted: bool


def make_plan(listing: Listing, request: PackRequest, mean_bytes: float) -> PackingPlan:
    """Return the plan. Raise UsageError if there are too few samples for the shards that each worker needs."""
    samples = listing.samples
    order = list(range(len(samples)))
    if not request.keeps_order:
        random.Random(request.seed).shuffle(order)
    shards: list[PlannedShard] = []
    for split, indices in _splits(order, samples, request).items():
        shards += _shards(split, indices, request, mean_bytes)
    return PackingPlan(
        digest=_digest(listing, request, shards),
        shards=tuple(shards),
        is_class_sorted=is_class_sorted([sample.label for sample in samples]),
    )


def is_class_sorted(labels: Sequence[int | None]) -> bool:
    """Whether equal labels are next to each other, so that a reader with a small buffer sees one class at a time."""
    counts = Counter(labels)
    if len(counts) < 2:
        return False
    total = len(labels)
    num_changes = sum(label != following for label, following in pairwise(labels))
    equal_pairs = sum(count * (count - 1) for count in counts.values())
    expected_changes = (total - 1) * (1 - equal_pairs / (total * (total - 1)))
    return num_changes < _SORTED_SHARE * expected_changes


def _splits(order: Sequence[int], samples: Sequence[SourceSample], request: PackRequest) -> dict[str, list[int]]:
    """Return the indices in each split, in the given order."""
    groups: dict[str, list[int]] = defaultdict(list)
    for index in order:
        group = samples[index].group if request.stratify is not None else ""
        groups[group].append(index)
    chosen: dict[int, str] = {}
    shares = [share for _, share in request.splits]
    names = [name for name, _ in request.splits]
    debts = [0.0] * len(shares)
    for group in sorted(groups):
        indices = groups[group]
        counts = _counts(len(indices), shares, debts)
        # In the given order, a split would get the beginning of each group.
        drawn = list(indices)
        random.Random(f"{request.seed} {group}").shuffle(drawn)
        place = 0
        for name, count in zip(names, counts, strict=True):
            chosen.update(dict.fromkeys(drawn[place : place + count], name))
            place += count
    return {name: [index for index in order if chosen[index] == name] for name in names}


def _counts(total: int, shares: Sequence[float], debts: list[float]) -> list[int]:
    """Divide a group by the shares, by the largest remainders; `debts` carries what earlier groups were rounded by.

    Each count is its exact share, rounded down or up. With the debts, groups of one sample do not all go to one split.
    """
    exact = [total * share for share in shares]
    counts = [math.floor(value + 1e-9) for value in exact]
    remainders = [value - count + debt for value, count, debt in zip(exact, counts, debts, strict=True)]
    can_grow = [number for number, value in enumerate(exact) if value - counts[number] > 1e-9]
    by_need = sorted(can_grow, key=lambda number: (-remainders[number], number))
    for number in by_need[: total - sum(counts)]:
        counts[number] += 1
    for number, value in enumerate(exact):
        debts[number] += value - counts[number]
    return counts


def _shards(split: str, indices: Sequence[int], request: PackRequest, mean_bytes: float) -> list[PlannedShard]:
    least = request.least_shards
    if len(indices) < least:
        what = "the data set" if split == ALL else f"the split {split}"
        raise UsageError(
            f"`--ranks` * `--workers` * 4 shards must be at most the number of samples, but are"
            f" {request.num_ranks} * {request.num_workers} * 4 = {least:,}, and {what} has {len(indices):,}",
            hint="pass fewer --ranks and --workers, as many as the training has",
        )
    num_consumers = request.num_ranks * request.num_workers
    by_size = math.ceil(len(indices) * mean_bytes / request.shard_bytes)
    wanted = max(least, math.ceil(by_size / num_consumers) * num_consumers)
    num_shards = min(wanted, len(indices) // num_consumers * num_consumers)
    short, num_longer = divmod(len(indices), num_shards)
    prefix = "" if split == ALL else f"{split}-"
    shards = []
    place = 0
    for number in range(num_shards):
        size = short + (number < num_longer)
        shards.append(
            PlannedShard(
                split=split, shard=prefix + SHARD_NUMBER % number + ".tar", indices=tuple(indices[place : place + size])
            )
        )
        place += size
    return shards


def _digest(listing: Listing, request: PackRequest, shards: Sequence[PlannedShard]) -> str:
    """Return a checksum over all that decides the content of the shards, but for the content of the samples."""
    digest = hashlib.sha256()
    digest.update(msgspec.json.encode([listing.kind, str(listing.root), listing.classes, request.crop]))
    for sample in listing.samples:
        digest.update(msgspec.msgpack.encode(sample))
    for shard in shards:
        digest.update(msgspec.msgpack.encode((shard.split, shard.shard, shard.indices)))
    return digest.hexdigest()
