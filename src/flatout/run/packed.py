"""Prepare what the job's processes read from packs of `flatout data pack`.

In: the values of `--packed`. Out: the variable that the job's processes read. Raises UsageError for a folder that is
not a pack, or whose data set the script would not find in it, and for files that changed since they were packed.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path

from flatout.errors import UsageError
from flatout.packing.index import read_samples, required_index
from flatout.records.packing import PackIndex
from flatout.run.messages import say

_NUM_CHECKED = 64


def packed_setting(packs: Sequence[str]) -> str:
    """Return the setting of the job's processes for `DIR` or `DIR=SOURCE`, and say what is read from where."""
    entries = []
    for text in packs:
        folder_text, separator, source_text = text.partition("=")
        if not folder_text or (separator and not source_text):
            raise UsageError(f"`--packed` must be DIR or DIR=SOURCE, but is `{text}`")
        folder = Path(folder_text).absolute()
        index = required_index(folder)
        source = Path(source_text).absolute() if source_text else Path(index.root)
        _check(folder, index, source)
        rounding = f", {index.num_resized:,} of them resized: the losses differ" if index.num_resized else ""
        say(f"the {index.num_samples:,} samples of {source} are read from {folder}{rounding}")
        entries.append({"folder": str(folder), "source": str(source)})
    return json.dumps(entries)


def _check(folder: Path, index: PackIndex, source: Path) -> None:
    """Check that the samples are files, and that those which still exist are as they were when they were packed."""
    if not index.holds_files:
        raise UsageError(
            f"`--packed` needs samples that are files, but {folder} was packed from rows of {index.source}",
            hint="read it with the three lines that `flatout data pack` prints",
        )
    spacing = max(1, index.num_samples // _NUM_CHECKED)
    for sample in read_samples(folder):
        if sample.index % spacing:
            continue
        try:
            status = os.stat(source / sample.name)
        except OSError:
            continue  # a pack does not need its source
        if (status.st_size, status.st_mtime_ns) != (sample.source_bytes, sample.source_mtime_ns):
            raise UsageError(
                f"{source / sample.name} is not the file that was packed into {folder}",
                hint="pack the data set again, into another folder",
            )
