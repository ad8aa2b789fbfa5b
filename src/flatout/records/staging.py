"""Copying a data set to the local disk of a node ahead of a job."""

from __future__ import annotations

import re
from typing import Annotated

import msgspec

DATA_SET_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,50}[a-z0-9])?")  # can be a part of a feature and of a label
Count = Annotated[int, msgspec.Meta(ge=0, lt=1 << 62)]


class StagedIndex(msgspec.Struct, frozen=True, kw_only=True):
    """The mark of a complete copy, in its folder."""

    source: str
    num_files: Count
    num_bytes: Count


class StageResult(msgspec.Struct, frozen=True, kw_only=True):
    """What `flatout data stage` did."""

    source: str
    folder: str
    num_files: int
    num_bytes: int
    num_copied: int  # the others were already there, unchanged
    copied_bytes: int
    is_checked_by_pack: bool  # copies were also compared with the checksums that a pack has of its shards


def slurm_feature(data_set: str) -> str:
    """Return the feature of a Slurm node that holds a data set."""
    return f"data_{data_set.replace('-', '_')}"


def node_label(data_set: str) -> str:
    """Return the label of a Kubernetes node that holds a data set."""
    return f"data.flatout.dev/{data_set}"
