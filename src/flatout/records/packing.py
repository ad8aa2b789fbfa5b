"""Packing a data set into shards: where each sample's bytes are, what a shard holds, and what a whole pack holds.

In a pack's folder, `index.json` is a `PackIndex`, each line of `samples.jsonl` is a `PackedSample`, and the folder
`.packing` has a `ShardRecord` for each finished shard until all are finished.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

Count = Annotated[int, msgspec.Meta(ge=0, lt=1 << 62)]


ShardName = Annotated[
    str, msgspec.Meta(pattern=r"^[A-Za-z0-9_-]+\.tar$")
]  # a file in the pack's folder, never elsewhere


class FileContent(msgspec.Struct, frozen=True, kw_only=True, tag="file"):
    """The content is a whole file."""

    path: str


class LineContent(msgspec.Struct, frozen=True, kw_only=True, tag="line"):
    """The content is one line of a JSONL file."""

    path: str
    offset: int
    num_bytes: int


class CellContent(msgspec.Struct, frozen=True, kw_only=True, tag="cell"):
    """The content is the bytes in one cell of a Parquet file; `row` counts within the row group."""

    path: str
    group: int
    row: int
    column: str


Content = FileContent | LineContent | CellContent


class SourceSample(msgspec.Struct, frozen=True, kw_only=True):
    """A sample of the data set before it is packed."""

    name: str  # unique in the data set; for a file, its path relative to the root
    extension: str  # of its member in the shard, e.g. jpg
    content: Content | None  # None: the sample has only fields
    label: int | None = None
    group: str = ""  # the value by which splits are stratified
    fields: bytes = b""  # other columns, as a JSON object; empty: there are none


class PackedSample(msgspec.Struct, frozen=True, kw_only=True):
    """A sample in a shard. `offset` and `num_bytes` locate its content within the shard."""

    index: Count  # in the order of the source
    name: str
    label: int | None
    split: str
    shard: str
    member: str
    offset: Count
    num_bytes: Count
    sha256: str
    source_bytes: Count
    source_mtime_ns: int
    is_resized: bool = False


class ShardRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A shard that is complete and verified."""

    plan: str  # digest of the plan that it belongs to
    shard: str
    num_bytes: Count
    sha256: str
    samples: tuple[PackedSample, ...]


class DamagedSample(msgspec.Struct, frozen=True, kw_only=True):
    """A sample that cannot be packed, and why."""

    name: str
    reason: str


class PackedShard(msgspec.Struct, frozen=True, kw_only=True):
    """A shard as the index lists it."""

    shard: ShardName
    num_samples: Count
    num_bytes: Count
    sha256: str


class PackedSplit(msgspec.Struct, frozen=True, kw_only=True):
    """The shards of one split."""

    name: str
    num_samples: Count
    shards: tuple[PackedShard, ...]


class PackIndex(msgspec.Struct, frozen=True, kw_only=True):
    """What a pack holds. Paths of samples are relative to `root`."""

    plan: str
    kind: str  # image-folder, csv, parquet or jsonl
    source: str
    root: str
    num_samples: Count
    num_bytes: Count  # of the samples' contents
    classes: tuple[str, ...]
    seed: int
    is_permuted: bool
    holds_files: bool  # each sample is a file, by whose path a script can read it
    resized_for: (
        int | None
    )  # the crop for which large images were resized; None: each sample is bit-equal to its source
    num_resized: Count
    splits: tuple[PackedSplit, ...]


class OpenTimes(msgspec.Struct, frozen=True, kw_only=True):
    """What a file of the source costs: means over `num_files` files, which one thread opened and read."""

    num_files: int
    open_s: float
    read_s: float
    mean_bytes: float


class PackingGain(msgspec.Struct, frozen=True, kw_only=True):
    """What packing will bring. `factor` is the most that reading can gain; None: nothing, or unknown."""

    cause: str  # see `packing.gain`
    file_system: str  # "": unknown
    times: OpenTimes | None
    factor: float | None = None


class PackResult(msgspec.Struct, frozen=True, kw_only=True):
    """What `flatout data pack` did, or would do."""

    folder: str
    kind: str
    num_samples: int
    num_shards: int
    least_samples: int  # in a shard
    most_samples: int
    num_ranks: int
    num_workers: int
    is_class_sorted: bool
    is_permuted: bool
    gain: PackingGain
    is_written: bool
    num_kept_shards: int = 0  # shards that an earlier run had finished
    num_resized: int = 0
    num_bytes: int = 0
    splits: dict[str, int] = {}
    reading: tuple[str, ...] = ()  # lines of a program that reads the pack
    is_read_unchanged: bool = False  # `flatout run --packed` lets the script read it unchanged


class PackCheck(msgspec.Struct, frozen=True, kw_only=True):
    """What `flatout data verify` found in a pack."""

    folder: str
    num_samples: int
    num_shards: int
    damaged: tuple[DamagedSample, ...]
    least_samples: int
    most_samples: int
    least_shards: int  # of a split
    needed_shards: int | None  # four a rank and worker; None: not asked
