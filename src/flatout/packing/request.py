"""The options of `flatout data pack`, checked as far as they can be without the source."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from flatout.errors import UsageError

SHARDS_PER_WORKER = 4  # of each rank
ALL = "all"  # the name of the only split
_MAX_CROP = 1 << 14


@dataclass(frozen=True, slots=True, kw_only=True)
class PackRequest:
    """What to pack, and how."""

    source: Path
    folder: Path
    kind: str | None = None  # None: by the source
    num_ranks: int = 8
    num_workers: int = 4  # data loader workers per rank
    shard_bytes: int = 300_000_000  # the largest mean size of a shard
    seed: int = 0
    keeps_order: bool = False
    splits: tuple[tuple[str, float], ...] = ((ALL, 1.0),)
    stratify: str | None = None
    crop: int | None = None  # resize images that are at least twice this
    path_column: str | None = None
    label_column: str | None = None

    def check(self) -> None:
        """Raise UsageError for options that contradict each other."""
        if self.crop is not None and not 1 <= self.crop <= _MAX_CROP:
            raise UsageError(f"`--resize-for` must be from 1 to {_MAX_CROP:,} pixels, but is {self.crop:,}")
        if self.stratify is not None and len(self.splits) < 2:
            raise UsageError("`--stratify` needs splits, but there are none", hint="add --split train=0.9,val=0.1")
        source, folder = self.source.absolute(), self.folder.absolute()
        if source == folder or source in folder.parents:
            raise UsageError(
                f"the shards must not be within the data set, but {self.folder} is within {self.source}",
                hint="pass another folder for the shards",
            )

    @property
    def least_shards(self) -> int:
        """Return the number of shards that a split needs at least."""
        return SHARDS_PER_WORKER * self.num_ranks * self.num_workers


def parse_splits(text: str | None) -> tuple[tuple[str, float], ...]:
    """Read `train=0.9,val=0.1`. Raise UsageError for anything else."""
    if text is None:
        return ((ALL, 1.0),)
    splits: list[tuple[str, float]] = []
    for part in text.split(","):
        name, _, share_text = part.partition("=")
        share = _share(share_text)
        if not name.replace("-", "").replace("_", "").isalnum() or not name.isascii() or share is None:
            raise _not_splits(text)
        splits.append((name, share))
    names = [name for name, _ in splits]
    total = sum(share for _, share in splits)
    if len(set(names)) != len(names) or not math.isclose(total, 1.0, abs_tol=1e-9):
        raise _not_splits(text)
    return tuple(splits)


def _share(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if 0 < value <= 1 else None


def _not_splits(text: str) -> UsageError:
    return UsageError(
        f"`--split` must be different names with shares that sum to 1, but is `{text}`",
        hint="e.g. --split train=0.9,val=0.1",
    )


def split_names(splits: Sequence[tuple[str, float]]) -> list[str]:
    return [name for name, _ in splits]
