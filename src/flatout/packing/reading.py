"""Write the lines of a program that reads a pack, for data sets whose scripts Flatout cannot redirect."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from flatout.packing.plan import SHARD_NUMBER, PackingPlan
from flatout.packing.shard import content_member
from flatout.packing.sources import Listing
from flatout.records.packing import FileContent, SourceSample


def is_read_unchanged(listing: Listing) -> bool:
    """Whether each sample is a file, whose reads `flatout run --packed` can serve."""
    return all(isinstance(sample.content, FileContent) for sample in listing.samples)


def reading_lines(folder: Path, split: str, listing: Listing, plan: PackingPlan) -> tuple[str, ...]:
    """Return three lines of Python that read a split with the library webdataset, in each rank and worker its own."""
    names = [shard.shard.removesuffix(".tar") for shard in plan.shards if shard.split == split]
    prefix = names[0][: -len(SHARD_NUMBER % 0)]
    first, last = (name[len(prefix) :] for name in (names[0], names[-1]))
    shards = folder.absolute() / f"{prefix}{{{first}..{last}}}.tar"
    members = ", ".join(f'"{member}"' for member in _members(listing.samples))
    return (
        "import webdataset",
        f'shards = webdataset.WebDataset("{shards}", shardshuffle=1000, nodesplitter=webdataset.split_by_node)',
        f'samples = shards.shuffle(1000).decode("pil").to_tuple({members})',
    )


def _members(samples: Sequence[SourceSample]) -> list[str]:
    contents = sorted({content_member(sample) for sample in samples if sample.content is not None})
    members = [";".join(contents)] if contents else []
    if any(sample.label is not None for sample in samples):
        members.append("cls")
    if any(sample.fields for sample in samples):
        members.append("json")
    return members
